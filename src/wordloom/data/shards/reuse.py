"""Write a folder of shards once, and reuse it: one process writes while the others wait."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from filelock import FileLock, Timeout

from wordloom.data.cache import lock_path, locked
from wordloom.errors import DataError
from wordloom.files import publish_folder


class _Reusable(Protocol):
    reused: bool


AnyShards = TypeVar("AnyShards", bound=_Reusable)


def reused_or_written(
    target: Path, read: Callable[[], AnyShards], write: Callable[[Path], None]
) -> AnyShards:
    """Return the shards that ``read()`` reads from ``target``; write them if they are missing or damaged.

    ``write(folder)`` fills a temporary folder, which is renamed to ``target``.  A killed run leaves a
    temporary folder, which the next call removes.

    Raises DataError if the folder cannot be written.
    """
    if (shards := _existing(target, read)) is not None:
        return shards
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target, "preparing the same shards"):
            if (shards := _existing(target, read)) is not None:  # another run wrote it meanwhile
                return shards
            shutil.rmtree(target, ignore_errors=True)  # damaged
            _remove_left_over(target)
            folder = _temporary(target)
            try:
                write(folder)
                publish_folder(folder, target)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    except OSError as error:
        raise DataError(
            f"cannot write token shards to '{target.parent}': {error.strerror or error}; "
            "free space there, or choose another folder with WORDLOOM_CACHE"
        ) from error
    return read()


def _existing(target: Path, read: Callable[[], AnyShards]) -> AnyShards | None:
    if not target.exists():
        return None
    try:
        shards = read()
    except DataError:
        return None
    shards.reused = True
    return shards


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.tmp")


def _remove_left_over(target: Path) -> None:
    """Remove the temporary folders of killed runs, whose locks nobody holds."""
    for folder in target.parent.glob(".*.tmp"):
        if folder == _temporary(target):  # this process holds its lock
            shutil.rmtree(folder)
            continue
        try:
            with FileLock(lock_path(folder.with_name(folder.name[1 : -len(".tmp")])), timeout=0):
                shutil.rmtree(folder, ignore_errors=True)
        except Timeout:
            continue  # another process is writing it
