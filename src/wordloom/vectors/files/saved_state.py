"""Where the training of word vectors stands, on disk: what going on needs, and how far it is."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from wordloom.errors import CheckpointError
from wordloom.files import sync, temporary

__all__ = ["SavedState", "how_to_go_on", "stopped_at", "unfinished"]


class SavedState:
    """The state in the folder of a run, written whole or not at all."""

    def __init__(self, run: Path) -> None:
        self.file = run / "checkpoints" / "vectors.safetensors"

    def exists(self) -> bool:
        return self.file.exists()

    def save(self, trainer: Any, facts: dict[str, Any]) -> None:
        """Write the trainer's state beside the last one, make it durable, and only then replace that.

        Raises CheckpointError where there is no room; the last one is still there then.
        """
        arrays = {name: np.ascontiguousarray(array) for name, array in trainer.state().items()}
        metadata = {**facts, "job": trainer.job, "jobs": trainer.jobs, "sha256": _digest(arrays)}
        try:
            self.file.parent.mkdir(exist_ok=True)
            with temporary(self.file) as beside:
                save_file(arrays, beside, metadata={name: str(value) for name, value in metadata.items()})
                sync(beside)
                beside.replace(self.file)
            sync(self.file.parent)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"could not write {self.file}: {error}; free some space and resume from what was saved before"
            ) from None

    def load(self) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
        """Return the arrays, and the facts they were saved with; raises CheckpointError for damaged ones."""
        try:
            with safe_open(self.file, framework="numpy") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                facts = file.metadata() or {}
            if facts.get("sha256", digest := _digest(arrays)) != digest:
                raise OSError("it is not as it was written")
            return arrays, facts
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read {self.file}: {error}; start again with --force") from None

    def progress(self) -> tuple[int, int]:
        """Jobs done, and how many there are; both 0 where nothing was saved."""
        try:
            with safe_open(self.file, framework="numpy") as file:
                facts = file.metadata() or {}
            return int(facts["job"]), int(facts["jobs"])
        except (OSError, SafetensorError, KeyError):
            return 0, 0


def _digest(arrays: dict[str, NDArray[Any]]) -> str:
    """Return the sha256 of the arrays' names and bytes."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(name.encode())
        found.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def stopped_at(run: Path) -> float | None:
    """The share of its training that a run has behind it, where it is one of vectors and not at its end."""
    job, jobs = SavedState(run).progress()
    return job / jobs if job < jobs else None


def how_to_go_on(run: Path) -> str:
    """The command that goes on with a run of vectors."""
    return f"wordloom vectors train --out {shlex.quote(str(run))} --resume"


def unfinished(folder: Path) -> str | None:
    """What to do about a folder that should hold vectors or a model, and holds a run without any; or None."""
    if (folder / "vectors.json").exists():
        return None
    try:
        ours = "\n[vectors]" in (folder / "recipe.toml").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    place = shlex.quote(str(folder))
    command = how_to_go_on(folder) if ours else f"wordloom train {place} --out {place} --resume"
    return f"the run in '{folder}' was broken off before it left what it trains; go on with it: {command}"
