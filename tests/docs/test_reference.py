"""The generated reference pages match the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def _reference() -> Any:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts/reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFERENCE = _reference()


@pytest.mark.parametrize("name", REFERENCE.PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    """If this fails, run ``python scripts/reference.py``."""
    assert (ROOT / f"docs/reference/{name}.md").read_text(encoding="utf-8") == REFERENCE.PAGES[name]()
