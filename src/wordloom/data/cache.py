"""The folder of derived and downloaded data, and its locks for writing processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

_log = logging.getLogger(__name__)


def cache_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return ``folder``, else ``$WORDLOOM_CACHE``, else the user's cache folder of platformdirs, such as
    ``~/.cache/wordloom``."""
    if folder is None and not (folder := os.environ.get("WORDLOOM_CACHE")):
        return user_cache_path("wordloom", appauthor=False)
    return Path(folder).expanduser()


def lock_path(target: Path) -> Path:
    """Return the lock file beside the folder ``target``."""
    return target.with_name(f".{target.name}.lock")


@contextmanager
def locked(target: Path, doing: str) -> Iterator[None]:
    """Hold the lock of ``target``; a process that waits logs that another run is ``doing`` it."""
    lock = FileLock(lock_path(target))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _log.warning("another run is %s; waiting for it", doing)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
