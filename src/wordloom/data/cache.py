"""The folder of derived and downloaded data, which one process writes while the others wait."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from wordloom.errors import DataError, WordloomError
from wordloom.files import publish_folder

_log = logging.getLogger(__name__)


def cache_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return ``folder``, else ``$WORDLOOM_CACHE``, else the user's cache folder of platformdirs, such as
    ``~/.cache/wordloom``."""
    if folder is None and not (folder := os.environ.get("WORDLOOM_CACHE")):
        return user_cache_path("wordloom", appauthor=False)
    return Path(folder).expanduser()


def _lock_path(target: Path) -> Path:
    """Return the lock file beside the folder ``target``."""
    return target.with_name(f".{target.name}.lock")


@contextmanager
def _locked(target: Path, doing: str) -> Iterator[None]:
    """Hold the lock of ``target``; a process that waits logs that another run is ``doing`` it."""
    lock = FileLock(_lock_path(target))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _log.warning("another run is %s; waiting for it", doing)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class _Reusable(Protocol):
    reused: bool


Data = TypeVar("Data", bound=_Reusable)


def reused_or_written(
    target: Path,
    read: Callable[[], Data],
    write: Callable[[Path], None],
    *,
    name: str = "token shards",
    doing: str = "preparing the same shards",
    error: type[WordloomError] = DataError,
    elsewhere: str = "WORDLOOM_CACHE",
) -> Data:
    """Return the data that ``read()`` reads from ``target``; write it if it is missing or damaged.

    ``write(folder)`` fills a temporary folder, which is renamed to ``target``.  A killed run leaves a
    temporary folder, which the next call removes.

    Args:
        name: the name of the data in the error.
        doing: what another run is doing when this one waits for it, for the log.
        error: the type of the error that ``read`` raises for damaged data.
        elsewhere: the setting that chooses another folder, for the error.

    Raises ``error`` if the folder cannot be written.
    """
    if (existing := _existing(target, read, error)) is not None:
        return existing
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target, doing):
            if (existing := _existing(target, read, error)) is not None:  # another run wrote it meanwhile
                return existing
            shutil.rmtree(target, ignore_errors=True)  # damaged
            _remove_left_over(target)
            folder = _temporary(target)
            try:
                write(folder)
                publish_folder(folder, target)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    except OSError as failure:
        raise error(
            f"cannot write {name} to '{target.parent}': {failure.strerror or failure}; "
            f"free space there, or choose another folder with {elsewhere}"
        ) from failure
    return read()


def _existing(target: Path, read: Callable[[], Data], error: type[WordloomError]) -> Data | None:
    if not target.exists():
        return None
    try:
        existing = read()
    except error:
        return None
    existing.reused = True
    return existing


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.tmp")


def _remove_left_over(target: Path) -> None:
    """Remove the temporary folders of killed runs, whose locks nobody holds."""
    for folder in target.parent.glob(".*.tmp"):
        if folder == _temporary(target):  # this process holds its lock
            shutil.rmtree(folder)
            continue
        try:
            with FileLock(_lock_path(folder.with_name(folder.name[1 : -len(".tmp")])), timeout=0):
                shutil.rmtree(folder, ignore_errors=True)
        except Timeout:
            continue  # another process is writing it
