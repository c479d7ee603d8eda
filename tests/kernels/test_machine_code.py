"""Machine code on disk is used again, and never after an edit of a file that it inlines."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from wordloom.kernels import machine_code

INLINED = (
    "from numba import njit\n\nleaf = njit(forceinline=True)\n\n\n@leaf\ndef grown(x):\n    return x + 1\n"
)
BETWEEN = "from kernel_package.deep import (  # over two lines\n    grown,\n)\n"
KERNEL = """
import numpy as np
from numba import types

from kernel_package import between
from wordloom.kernels.machine_code import compiled, compiled_callback

grown = between.grown


@compiled(nogil=True)
def lazy(x):
    return grown(x)


@compiled(types.int64(types.int64))
def eager(x):
    return grown(x)


def called_back(x):
    return grown(x)


callback = compiled_callback(types.int64(types.int64), called_back)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "kernel_package"
    folder.mkdir()
    for name, text in (("__init__", ""), ("deep", INLINED), ("between", BETWEEN), ("kernel", KERNEL)):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield folder
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("kernel_package")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def answers() -> tuple[tuple[int, ...], int]:
    """What the functions say of 1 in what could be a new process, and how many of them came from the disk."""
    forget()
    kernel = importlib.import_module("kernel_package.kernel")
    said = (kernel.lazy(1), kernel.eager(1), kernel.callback.ctypes(1))
    hits = sum(sum(f.stats.cache_hits.values()) for f in (kernel.lazy, kernel.eager))
    return said, hits + kernel.callback.cache_hits


def test_an_edit_of_an_inlined_file_compiles_anew(package):
    assert answers() == ((2, 2, 2), 0)
    assert answers() == ((2, 2, 2), 3)
    (package / "deep.py").write_text(INLINED.replace("x + 1", "x + 7"), encoding="utf-8")
    assert answers() == ((8, 8, 8), 0)
    assert answers() == ((8, 8, 8), 3)
    (package / "alone.py").write_text("x = 1\n", encoding="utf-8")  # inlined by nobody
    assert answers() == ((8, 8, 8), 3)


def test_a_type_that_is_renamed_compiles_anew(package):
    kernel = (
        "from typing import NamedTuple\n\nfrom wordloom.kernels.machine_code import compiled\n\n\n"
        "class Before(NamedTuple):\n    x: int\n\n\n@compiled()\ndef first(pair):\n    return pair.x\n\n\n"
        "def answer():\n    return first(Before(4))\n"
    )
    for text in (kernel, kernel.replace("Before", "After")):
        (package / "renamed.py").write_text(text, encoding="utf-8")
        forget()
        assert importlib.import_module("kernel_package.renamed").answer() == 4


def test_where_nothing_can_be_written_it_is_compiled_all_the_same(package, monkeypatch):
    def nowhere(*_given):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(machine_code.FunctionCache, "__init__", nowhere)
    assert answers() == ((2, 2, 2), 0)


def test_every_kernel_is_kept_by_this_key_and_names_its_files():
    source = Path(machine_code.__file__).parents[1]
    files = [path for path in source.rglob("*.py") if path.name != "machine_code.py"]
    plain = [path for path in files if re.search(r"cache=True|\bcfunc\(", path.read_text(encoding="utf-8"))]
    assert plain == []
    names = {path.name for path in machine_code.inlined_files(source / "kernels" / "attention" / "dense.py")}
    inlined = "arithmetic blocks dense machine_code memory parallel products registers"
    assert names == {f"{name}.py" for name in inlined.split()}
    words = machine_code.inlined_files(source / "vectors/word2vec/kernels.py")
    assert np.all([path.is_file() for path in words])
