"""Minimal pairs: BLiMP's own rows, and a clear line for every row that is none."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from wordloom.data.rows.minimal_pairs import MinimalPair, minimal_pairs
from wordloom.errors import DataError


def test_blimp():
    pairs = list(minimal_pairs("blimp"))
    assert Counter(Counter(pair.paradigm for pair in pairs).values()) == {1000: 67}
    assert len({pair.phenomenon for pair in pairs}) == 13
    assert pairs[0][:4] == (
        "Who should Derek hug after shocking Richard?", "Who should Derek hug Richard after shocking?",
        "adjunct_island", "island_effects",
    )  # fmt: skip
    assert sum(pair.good == pair.bad for pair in pairs) == 7


def test_rows_of_ones_own(tmp_path):
    path = tmp_path / "a.json"
    rows = [{"sentence_good": "a", "sentence_bad": "b"}]
    rows.append({"sentence_good": "c", "sentence_bad": "d", "UID": "x"})
    path.write_text(json.dumps(rows))
    assert list(minimal_pairs(path)) == [
        MinimalPair("a", "b", "", "", str(path), 1), MinimalPair("c", "d", "x", "", str(path), 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {"sentence_good": "a"},
            "1: a pair needs the field 'sentence_bad'; the fields here are: sentence_good",
        ),
        ({}, "1: a pair needs the field 'sentence_good'; the fields here are: none"),
        ({"sentence_good": "a", "sentence_bad": " "}, "1, field 'sentence_bad': the sentence is empty"),
        ({"sentence_good": 3, "sentence_bad": "b"}, "1, field 'sentence_good': holds a number, not text"),
        ({"sentence_good": "a", "sentence_bad": "b", "UID": []}, "1, field 'UID': holds a list, not text"),
    ],
)
def test_a_row_that_is_no_pair_is_named(row: dict[str, Any], says: str, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(DataError) as error:
        list(minimal_pairs(path))
    assert f"{path}:{says}" in str(error.value)


def test_a_set_for_another_task_is_refused():
    with pytest.raises(DataError, match="'copa' is for multiple choice"):
        list(minimal_pairs("copa"))
