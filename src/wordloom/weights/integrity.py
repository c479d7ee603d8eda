"""Hashes of a run's checkpoint files: written into ``trainer/state.json``, compared at every load."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from wordloom.errors import CheckpointError

STATE = "trainer/state.json"


def hash_files(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file below ``folder`` except ``trainer/state.json``, by relative path."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != STATE:
            with path.open("rb") as file:
                hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def check_files(folder: Path) -> None:
    """Raise CheckpointError if a file of a run's checkpoint is missing or differs from what was written.

    Folders without ``trainer/state.json``, and checkpoints whose state holds no hashes, pass.
    """
    if not (folder / STATE).is_file():
        return
    try:
        values: Any = json.loads((folder / STATE).read_text(encoding="utf-8"))
        written = dict(values.get("files", {}))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(
            f"{folder} is damaged: cannot read {STATE} ({error}); {advice_if_damaged(folder)}"
        ) from None
    if not written:
        return
    try:
        hashes = hash_files(folder)
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
