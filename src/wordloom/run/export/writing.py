"""Check the file that an export writes."""

from __future__ import annotations

from pathlib import Path

from wordloom.errors import CheckpointError
from wordloom.files import is_special, link_target, refusal
from wordloom.run.folder import is_own_file


def check_out(out: str | Path, *, model: str | Path, force: bool) -> Path:
    """Return the path of a file to write, that behind a link.

    Raises CheckpointError for a file that exists, unless ``force``; for one of the folder ``model``; for a
    folder, a device, a pipe or a socket; and without its folder.
    """
    path = Path(out)
    if path.is_dir() or not path.parent.is_dir() or is_special(path):
        raise CheckpointError(f"'{path}' cannot be written; name a file in a folder that exists")
    if error := refusal(path):
        raise CheckpointError(f"'{path}' cannot be written ({error.strerror}); choose another name")
    if path.exists() and not force:
        raise CheckpointError(f"'{path}' exists; choose another name, or replace it with --force")
    if path.exists() and is_own_file(path, Path(model)):
        raise CheckpointError(f"'{path}' would be read and written; choose another name")
    return link_target(path) if path.is_symlink() else path
