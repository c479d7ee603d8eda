"""Tables of the documentation are those of the results beside it."""

from __future__ import annotations

import re
from pathlib import Path

from wordloom.lab.capacity.comparing import compare
from wordloom.lab.capacity.result import KINDS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_of_capacity_is_that_of_its_results() -> None:
    text = (DOCS / "capacity.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| ((?:gpt2|llama|lstm), [\d,]+ exposures)? ?\| ([\d,]+) \| (\d) \| (.+) \|$", text, re.MULTILINE
    )
    found, curve = {}, ""
    for name, people, seeds, values in rows:
        curve = name or curve
        found[curve, int(people.replace(",", ""))] = [seeds, *values.split(" | ")]
    expected = {
        (curve.name, point.people): [
            str(len(point.results)),
            *(f"{value:.3f}" for value in (point.most, *map(point.bits, KINDS))),
        ]
        for curve in compare(DOCS / "results" / "capacity").curves
        for point in curve.points
    }
    assert len(expected) == 18
    assert found == expected
