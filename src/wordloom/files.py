"""Writing files and folders whole: beside the target, to the disk, then renamed.  A kill leaves old or new.

One file is replaced by a rename.  Several files of a folder that also holds others, such as a checkpoint in a
run's folder, are replaced in two steps: a rename that decides that the new files count, and moves that
:func:`finish_replacement` completes after a kill.  Whatever reads such a folder calls it first.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from filelock import FileLock

_READY = ".wordloom-ready"  # new files of a folder that count already
_TEMPORARY = ".wordloom-writing-"  # new files that do not count yet
_PLAN = "wordloom-plan.json"  # in there: which files are new, and which old ones go


# -- one file --------------------------------------------------------------------------------------------


@contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """Yield a name beside ``path`` for a file that will be renamed to it; remove that file afterwards."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield beside
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def durable(path: Path) -> Iterator[IO[bytes]]:
    """A new file, on disk when it is closed."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name when it is complete and on disk."""
    with temporary(path) as beside:
        with durable(beside) as file:
            yield file
        os.replace(beside, path)
    sync(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``path`` whole or not at all."""
    with whole_file(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write ``path`` in UTF-8, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def link_target(path: Path) -> Path:
    """Return the file that a symbolic link leads to; a rename to the link would replace the link itself."""
    return Path(os.path.realpath(path))


def is_special(path: Path) -> bool:
    """Return True for a device, a pipe or a socket, which a file cannot replace."""
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))


def refusal(path: Path) -> OSError | None:
    """Return the error that the system raises for a new file in place of ``path``; None if it takes one.

    Missing folders count as folders that will be made.
    """
    path = link_target(path)
    folder = next(parent for parent in path.parents if os.path.exists(parent))
    try:
        with temporary(folder / path.name) as beside:
            beside.touch()
    except OSError as error:
        return error
    return None


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's list of names, to disk where the system can."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """:func:`sync` every file and folder below ``folder``, and itself; give files the mode of new files."""
    (probe := folder / ".mode").touch()
    mode = probe.stat().st_mode
    probe.unlink()
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)  # safetensors writes files that their owner alone can read
        sync(path)
    sync(folder)


# -- a new folder ----------------------------------------------------------------------------------------


def publish_folder(folder: Path, name: Path) -> None:
    """Put a complete ``folder`` on disk and rename it to ``name``, which must not exist."""
    sync_tree(folder)
    folder.rename(name)
    sync(name.parent)


def remove_folder(folder: Path, discarded: Path) -> None:
    """Rename an existing ``folder`` to ``discarded`` and remove it: a kill leaves no part under its name."""
    if folder.exists():
        shutil.rmtree(discarded, ignore_errors=True)
        folder.rename(discarded)
        shutil.rmtree(discarded, ignore_errors=True)


# -- several files of a folder ---------------------------------------------------------------------------


@contextmanager
def replacement(folder: Path, *, last: str, stale: Collection[str] = ()) -> Iterator[Path]:
    """A temporary folder whose files replace those of ``folder`` when the block ends.

    An error in the block leaves ``folder`` as it was.  A kill leaves the old files, or new ones that
    :func:`finish_replacement` moves.  Files in ``stale`` that have no successor are removed.  ``last`` is the
    file without which other tools find nothing to read: it is removed first and moved last.
    """
    finish_replacement(folder)
    for left_over in abandoned(folder):
        shutil.rmtree(left_over)
    new = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=folder))
    try:
        yield new
        _replace_files(folder, new, last=last, stale=stale)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def abandoned(folder: Path) -> set[Path]:
    """Return the temporary folders that an interrupted :func:`replacement` left in ``folder``."""
    return set(folder.glob(_TEMPORARY + "*"))


def _replace_files(folder: Path, source: Path, *, last: str, stale: Collection[str]) -> None:
    names = sorted((path.name for path in source.iterdir()), key=lambda name: (name == last, name))
    plan = {"files": names, "remove": [last, *sorted(set(stale) - set(names))]}
    write_text(source / _PLAN, json.dumps(plan))
    sync_tree(source)
    os.rename(source, folder / _READY)
    sync(folder)
    finish_replacement(folder)


def finish_replacement(folder: Path) -> None:
    """Complete a replacement of files in ``folder`` that was interrupted; raises OSError if it cannot."""
    ready = folder / _READY
    if not ready.is_dir():
        return
    with FileLock(ready / ".lock"):  # a reader may find what a writer is about to finish
        with contextlib.suppress(FileNotFoundError):  # without a plan everything has been moved
            plan = json.loads((ready / _PLAN).read_text(encoding="utf-8"))
            _move(plan, ready, folder)
            (ready / _PLAN).unlink()
        shutil.rmtree(ready, ignore_errors=True)


def _move(plan: dict[str, list[str]], ready: Path, folder: Path) -> None:
    """Carry out ``plan``; what an interrupted call has done already is not done again."""
    for name in plan["remove"]:
        if name not in plan["files"] or (ready / name).exists():
            remove(folder / name)
    for name in plan["files"]:
        if (ready / name).exists():
            if (ready / name).is_dir():  # a rename replaces no folder
                remove(folder / name)
            os.replace(ready / name, folder / name)
    sync(folder)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder; nothing happens if it is missing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
