"""The folder of derived and downloaded data, and locks so that one process at a time makes them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

_log = logging.getLogger(__name__)


def cache_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """Return where derived data lie: ``given``, else ``$WORDLOOM_CACHE``, else the user's cache folder.

    That is ``~/.cache/wordloom`` on Linux, and what platformdirs names on other systems.
    """
    if given is not None:
        return Path(given).expanduser()
    if chosen := os.environ.get("WORDLOOM_CACHE"):
        return Path(chosen).expanduser()
    return user_cache_path("wordloom", appauthor=False)


def lock_path(target: Path) -> Path:
    """Return the lock file of the folder ``target``, which lies beside it."""
    return target.with_name(f".{target.name}.lock")


@contextmanager
def locked(target: Path, doing: str) -> Iterator[None]:
    """Hold the lock of ``target``; ``doing`` says in the warning what another process does meanwhile."""
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
