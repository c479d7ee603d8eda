"""Check the file that an export writes."""

from __future__ import annotations

from pathlib import Path

from wordloom.errors import CheckpointError


def check_out(out: str | Path, *, force: bool) -> Path:
    """Return the path of a new file; raises CheckpointError without its folder, or if it exists and not
    ``force``."""
    path = Path(out)
    if path.is_dir() or not path.parent.is_dir():
        raise CheckpointError(f"'{path}' cannot be written; name a file in a folder that exists")
    if path.exists() and not force:
        raise CheckpointError(f"'{path}' exists; choose another name, or replace it with --force")
    return path
