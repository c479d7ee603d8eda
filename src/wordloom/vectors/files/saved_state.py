"""Save and load the training state of word vectors."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from wordloom.errors import CheckpointError
from wordloom.files import sync, temporary

_FACTS = "wordloom"  # one key for all facts: safetensors writes several keys in a random order


class SavedState:
    """The training state in a run's folder, replaced atomically."""

    def __init__(self, run: Path) -> None:
        self.file = run / "checkpoints" / "vectors.safetensors"

    def exists(self) -> bool:
        return self.file.exists()

    def save(self, trainer: Any, facts: dict[str, Any]) -> None:
        """Write the trainer's state to a temporary file, sync it, and then replace the previous state.

        Raises CheckpointError if it cannot be written; the previous state then remains.
        """
        arrays = {name: np.ascontiguousarray(array) for name, array in trainer.state().items()}
        known = {**facts, "job": trainer.job, "jobs": trainer.jobs, "sha256": _digest(arrays)}
        values = json.dumps({name: str(value) for name, value in known.items()})
        try:
            self.file.parent.mkdir(exist_ok=True)
            with temporary(self.file) as beside:
                save_file(arrays, beside, metadata={_FACTS: values})
                sync(beside)
                beside.replace(self.file)
            sync(self.file.parent)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"could not write {self.file}: {error}; free some space, then resume from the last state"
            ) from None

    def load(self) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
        """Return the arrays and the metadata; raise CheckpointError if the file is damaged."""
        try:
            with safe_open(self.file, framework="numpy") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                facts = _facts(file)
            if facts.get("sha256", digest := _digest(arrays)) != digest:
                raise OSError("its checksum differs")
            return arrays, facts
        except (OSError, SafetensorError, ValueError) as error:
            raise CheckpointError(f"cannot read {self.file}: {error}; start again with --force") from None

    def progress(self) -> tuple[int, int]:
        """Return completed and total jobs, both 0 if no state was saved."""
        try:
            with safe_open(self.file, framework="numpy") as file:
                facts = _facts(file)
            return int(facts["job"]), int(facts["jobs"])
        except (OSError, SafetensorError, KeyError, ValueError):
            return 0, 0


def _facts(file: Any) -> dict[str, str]:
    facts: dict[str, str] = json.loads((file.metadata() or {}).get(_FACTS, "{}"))
    return facts


def _digest(arrays: dict[str, NDArray[Any]]) -> str:
    """Return the sha256 of the arrays' names and bytes."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(name.encode())
        found.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def stopped_at(run: Path) -> float | None:
    """Return the completed share of an unfinished run of word vectors; None for other folders."""
    job, jobs = SavedState(run).progress()
    return job / jobs if job < jobs else None


def resume_command(run: Path) -> str:
    """Return the command that resumes a run of word vectors."""
    return f"wordloom vectors train --out {shlex.quote(str(run))} --resume"


def unfinished(folder: Path) -> str | None:
    """Return an error message if ``folder`` holds a run that stopped before it wrote vectors or a model."""
    if (folder / "vectors.json").exists():
        return None
    try:
        ours = "\n[vectors]" in (folder / "recipe.toml").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    place = shlex.quote(str(folder))
    command = resume_command(folder) if ours else f"wordloom train {place} --resume"
    return f"the run in '{folder}' stopped before it wrote its result; resume it with: {command}"
