"""The generated reference pages match the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, get_args

import pytest

from wordloom.recipe.data import DATA

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


def test_a_key_has_a_row_for_the_values_that_some_objectives_take_alone() -> None:
    rows = [line for line in REFERENCE.PAGES["recipe-keys"]().splitlines() if line.startswith("| `too_long`")]
    values = {tuple(row.split(" | ")[1].split(", ")): row for row in rows}
    for objective, table in DATA.items():
        if (field := table.model_fields.get("too_long")) is not None:
            given = get_args(field.annotation)
            row = values[given]
            assert objective in row.split(" | ")[3].replace(";", ",").replace(" ", ",").split(",")
            assert all(f"({value})" in row for value in given if value in ("drop", "cut"))
