"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for ``package``, whose ``__init__.py`` is ``file``.

    The ``from ... import`` lines under ``if TYPE_CHECKING:`` in ``file`` list the names and their modules.
    Any other name raises AttributeError.
    """
    homes = {
        alias.name: line.module
        for block in ast.parse(Path(file).read_bytes()).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for line in block.body
        if isinstance(line, ast.ImportFrom) and line.module
        for alias in line.names
    }

    def get_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # later uses do not come here
        return value

    return get_name, lambda: sorted(sys.modules[package].__all__)
