"""Hashes of a run's checkpoint files: written into ``trainer/state.json``, compared at every load."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wordloom.errors import CheckpointError

STATE = "trainer/state.json"


def write_state(folder: Path, values: dict[str, Any], known: Mapping[str, str] | None = None) -> None:
    """Write ``trainer/state.json``: ``values``, their hash, and that of every other file of ``folder``.

    ``known`` are hashes of some files, by relative path.
    """
    values = {**values, "files": _hashes(folder, known or {})}
    text = json.dumps({**values, "sha256": _hash(values)}, indent=1)
    (folder / STATE).write_text(text, encoding="utf-8")


def read_values(folder: Path) -> dict[str, Any]:
    """Return the values of ``trainer/state.json``; raise CheckpointError if they are damaged."""
    try:
        values: Any = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if values.pop("sha256") == _hash(values):
            return dict(values)
        problem = f"{STATE} is not as it was written"
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        problem = f"cannot read {STATE} ({type(error).__name__}: {error})"
    raise CheckpointError(f"{folder} is damaged: {problem}; {advice_if_damaged(folder)}")


def _hash(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _hashes(folder: Path, known: Mapping[str, str]) -> dict[str, str]:
    """Return the sha256 of every file below ``folder`` except ``trainer/state.json``, by relative path."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != STATE:
            hashes[name] = known.get(name) or file_hash(path)
    return hashes


def file_hash(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(folder: Path) -> None:
    """Raise CheckpointError if a file of a run's checkpoint is missing or differs from what was written.

    Folders without ``trainer/state.json`` pass.
    """
    if not (folder / STATE).is_file():
        return
    written = read_values(folder)["files"]
    try:
        hashes = _hashes(folder, {})
    except OSError as error:
        raise CheckpointError(f"cannot read {folder}: {error}; {advice_if_damaged(folder)}") from None
    for name, digest in written.items():
        if hashes.get(name) != digest:
            problem = "is not as it was written" if name in hashes else "is missing"
            raise CheckpointError(f"{folder} is damaged: {name} {problem}; {advice_if_damaged(folder)}")


def advice_if_damaged(checkpoint: Path) -> str:
    """Return advice on how to continue when ``RUN/checkpoints/step-N`` cannot be used."""
    steps = {
        path.name: int(path.name.removeprefix("step-"))
        for path in checkpoint.parent.glob("step-*")
        if re.fullmatch(r"step-\d+", path.name)
    }
    before = [name for name, step in steps.items() if step < steps.get(checkpoint.name, 0)]
    if before:
        previous = max(before, key=steps.__getitem__)
        return f"remove {checkpoint} to continue from the checkpoint before it, {previous}"
    return "no checkpoint before it is left: start the run again with --force"
