"""Compiled functions on disk, which are compiled again when any file that they inline changes.

numba keeps machine code until the file of the function itself changes.  Our kernels inline functions of other
files, and intrinsics whose code is written by other files, so their key is a hash of all of these: the
function's file and every file of the package that it imports, directly or not.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.sigutils import normalize_signature

__all__ = ["compiled", "compiled_callback", "inlined_files", "stamp"]

# A word too many, from a comment or a docstring, names no file or one more file to hash.
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+([^\n]*))", re.MULTILINE
)
_NAME = re.compile(r"[\w.]+")


def compiled(signature: Any = None, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """As ``numba.njit(signature, cache=True, **options)``, with the key of this module."""

    def compile_later(function: Callable[..., Any]) -> Any:
        made: Any = njit(**options)(function)
        _keep(made, function)
        if signature is not None:
            made.compile(signature)
            made.disable_compile()
        return made

    return compile_later


def compiled_callback(signature: Any, function: Callable[..., Any]) -> Any:
    """As ``numba.cfunc(signature, cache=True)(function)``, with the key of this module."""
    made: Any = CFunc(function, normalize_signature(signature), locals={}, options={})  # type: ignore[no-untyped-call]
    _keep(made, function)
    made.compile()
    return made


def _keep(made: Any, function: Callable[..., Any]) -> None:
    try:
        made._cache = _Cache(function)
    except RuntimeError:  # no folder can be written to: each process compiles for itself
        return


class _Cache(FunctionCache):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file = IndexDataCacheFile(  # type: ignore[no-untyped-call]
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=stamp(Path(inspect.getfile(function))),
        )


def stamp(file: Path) -> str:
    """Return a hash of the contents of all :func:`inlined_files` of ``file``."""
    digest = hashlib.sha256()
    for path in inlined_files(file):
        digest.update(_contents(*_version(path))[0])
    return digest.hexdigest()


def inlined_files(file: Path) -> list[Path]:
    """Return ``file`` and all files of its package that it imports, directly or not, in order of path."""
    found, waiting = {file}, [file]
    while waiting:
        for path in _imported(waiting.pop()):
            if path not in found:
                found.add(path)
                waiting.append(path)
    return sorted(found)


def _imported(file: Path) -> list[Path]:
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    candidates = [root.joinpath(*name.split(".")) for name in _contents(*_version(file))[1]]
    places = [place for path in candidates for place in (path.with_suffix(".py"), path / "__init__.py")]
    return [place for place in places if place.is_file()]


def _version(file: Path) -> tuple[Path, int, int]:
    status = file.stat()
    return file, status.st_mtime_ns, status.st_size


@functools.cache
def _contents(file: Path, _changed: int, _size: int) -> tuple[bytes, tuple[str, ...]]:
    """Return the hash of a file and the modules of its package that it may import, each name once."""
    source = file.read_bytes()
    names: list[str] = []
    for module, those, plainly in _IMPORT.findall(source.decode("utf-8", errors="replace")):
        names += [module, *(f"{module}.{name}" for name in _NAME.findall(those))] if module else []
        names += _NAME.findall(plainly)
    return hashlib.sha256(source).digest(), tuple(dict.fromkeys(names))
