"""From Python functions to machine code: the decorators of kernels, and the cache of compiled code on disk.

numba reuses machine code on disk until the file of the function changes.  Our kernels inline functions of
other files, and intrinsics whose code other files write.  So their key is a hash of the function's file and
of every file of the package that it imports, directly or indirectly.

Decorators, by what the compiler may do with the arithmetic and by where the code ends up:

    exact       inlined     products and sums may be fused into one instruction
    leaf        inlined     sums may also be reordered, which vectors of them need; NaN and infinity are kept
    unordered   inlined     NaN may be taken for any number: only for the search for a maximum
    program     on disk     arithmetic in order; releases the interpreter's lock
    routine     on disk     a program with the arithmetic of ``leaf``
    exact_routine  on disk  a program with the arithmetic of ``exact``

Every function is inlined by force into the kernels that call it, also one that has code of its own on disk.
Otherwise a process that compiles and a process that reads code from disk would link different copies of a
function, whose sums round differently, and a run resumed in a second process would not end with the bits of
an uninterrupted one.
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

# A match in a comment or a docstring names no file, or one more file to hash.
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+([^\n]*))", re.MULTILINE
)
_NAME = re.compile(r"[\w.]+")
_SUMS = {"contract", "reassoc", "nsz", "arcp"}

# Nobody calls these functions from C, and an entry for C would contain all that is inlined once more
_INLINED: Any = {"error_model": "numpy", "forceinline": True, "no_cfunc_wrapper": True}

# numba's decorators have no types
exact: Any = njit(fastmath={"contract"}, **_INLINED)
leaf: Any = njit(fastmath=_SUMS, **_INLINED)
unordered: Any = njit(fastmath={"nnan", "nsz"}, **_INLINED)


def compiled(signature: Any = None, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate as ``numba.njit(signature, cache=True, **options)`` does, with the key of this module."""

    def compile_later(function: Callable[..., Any]) -> Any:
        dispatcher: Any = njit(**options)(function)
        _keep(dispatcher, function)
        if signature is not None:
            dispatcher.compile(signature)
            dispatcher.disable_compile()
        return dispatcher

    return compile_later


def compiled_callback(signature: Any, function: Callable[..., Any], source: Path | None = None) -> Any:
    """Return ``numba.cfunc(signature, cache=True)(function)``, with the key of this module.

    ``source`` is the file of the kernel that ``function``, a closure, calls.
    """
    dispatcher: Any = CFunc(function, normalize_signature(signature), locals={}, options={})  # type: ignore[no-untyped-call]
    _keep(dispatcher, function, source)
    dispatcher.compile()
    return dispatcher


def _keep(dispatcher: Any, function: Callable[..., Any], source: Path | None = None) -> None:
    try:
        dispatcher._cache = _Cache(function, source)
    except RuntimeError:  # no folder can be written to: each process compiles for itself
        return


class _Cache(FunctionCache):
    """numba's cache of one function, keyed by :func:`stamp`."""

    def __init__(self, function: Callable[..., Any], source: Path | None) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file = _CacheFile(  # type: ignore[no-untyped-call]
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=stamp(source or Path(inspect.getfile(function))),
        )

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        # numba's key has the variables of a closure too, which differ in each process; the stamp covers them
        return sig, codegen.magic_tuple()


class _CacheFile(IndexDataCacheFile):
    """An index of machine code, empty if it was written for types that no longer exist under their names."""

    def _load_index(self) -> Any:
        try:
            return super()._load_index()  # type: ignore[no-untyped-call]
        except (AttributeError, ImportError):
            return {}


def stamp(file: Path) -> str:
    """Return a hash of the contents of all :func:`inlined_files` of ``file``."""
    digest = hashlib.sha256()
    for path in inlined_files(file):
        digest.update(_contents(*_version(path))[0])
    return digest.hexdigest()


def inlined_files(file: Path) -> list[Path]:
    """Return ``file`` and all files of its package that it imports, directly or not, in order of path."""
    files, waiting = {file}, [file]
    while waiting:
        for path in _imported(waiting.pop()):
            if path not in files:
                files.add(path)
                waiting.append(path)
    return sorted(files)


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
    for module, imported, modules in _IMPORT.findall(source.decode("utf-8", errors="replace")):
        names += [module, *(f"{module}.{name}" for name in _NAME.findall(imported))] if module else []
        names += _NAME.findall(modules)
    return hashlib.sha256(source).digest(), tuple(dict.fromkeys(names))


program: Any = compiled(nogil=True, **_INLINED)
routine: Any = compiled(nogil=True, fastmath=_SUMS, **_INLINED)
exact_routine: Any = compiled(nogil=True, fastmath={"contract"}, **_INLINED)
