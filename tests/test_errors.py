"""How errors name a place in a file."""

from __future__ import annotations

import pytest

from wordloom.errors import position


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (("long.csv", 12345), "long.csv:12345"),
        (("squad.json", 2, 13, "line"), "squad.json:2:13"),
        (("train.JSON.gz", 5), "train.JSON.gz, item 5"),
        (("train.parquet", 5), "train.parquet, row 5"),
        (("standard input", 3, None, "item"), "standard input, item 3"),
    ],
)
def test_a_position_is_written_so_that_an_editor_opens_it(given, written):
    path, number, *more = given
    column, unit = more or (None, None)
    assert position(path, number, column, unit=unit) == written
