"""Batches of questions: a row for each choice, with nothing instead of those that a question lacks."""

from __future__ import annotations

import pytest

from wordloom.data import IGNORE, ChoiceBatches, ChoiceRow, choice_tokens
from wordloom.data.batches.framed import Frame
from wordloom.errors import DataError

FRAME = Frame((301,), (302,), (302,), 300)
QUESTIONS = [
    ChoiceRow("Why?", "", ("so", "no", "because"), 2, "q.jsonl", 1),
    ChoiceRow("It rains.", "A dog", ("barks.", "is wet."), 1, "q.jsonl", 2),
    ChoiceRow("", "", ("Ann", "Bo Bo Bo Bo Bo Bo"), None, "q.jsonl", 3, "ran."),
]


@pytest.fixture(scope="module")
def rows(byte_tokenizer):
    return choice_tokens(byte_tokenizer, QUESTIONS, FRAME, longest=40)


@pytest.mark.parametrize("segments", [True, False])
def test_every_choice_is_a_row_beside_its_question(byte_tokenizer, rows, segments):
    batches = ChoiceBatches(QUESTIONS, rows, segments=segments, pad_id=300, order="sequential")
    batch = batches.batch(0, 3)
    tokens, types, attend = batch.inputs
    assert batch.targets.tolist() == [2, 1, IGNORE]
    assert tokens.shape[:2] == (3, 3)
    for n, question in enumerate(QUESTIONS):
        for k, (first, second) in enumerate(question.pairs):
            a, b = (byte_tokenizer.encode(text).ids for text in (first, second))
            assert tokens[n, k][attend[n, k]].tolist() == [301, *a, 302, *b, 302]
            assert types is None or types[n, k].sum() == len(b) + 1
        for k in range(len(question.choices), 3):
            assert not attend[n, k].any()
    assert (tokens[~attend] == 300).all()
    assert (types is None) != segments
    assert types is None or not types[~attend].any()
    assert batches.batch(1, 1).inputs[0].shape[1] == 2  # no wider than its widest question


def test_orders_and_passes(rows):
    batches = ChoiceBatches(QUESTIONS, rows, segments=True, seed=3)
    assert sorted(batches.rows(0, 3).tolist()) == [0, 1, 2]
    by_length = ChoiceBatches(QUESTIONS, rows, segments=True, order="length")
    assert by_length.rows(0, 3).tolist() == [0, 2, 1]
    assert list(by_length.passes()) == [(0, 3)]
    assert by_length.document_ids(0, 1) == ["q.jsonl:1"]
    assert batches.fingerprint != by_length.fingerprint


def test_too_long_names_the_choice(byte_tokenizer):
    with pytest.raises(DataError, match=r"q\.jsonl:2, choice 1: has 24 tokens"):
        choice_tokens(byte_tokenizer, QUESTIONS, FRAME, longest=22)
    cut = choice_tokens(byte_tokenizer, QUESTIONS, FRAME, longest=22, too_long="cut")
    assert (cut.cut, max(cut.lengths)) == (3, 22)
