"""Texts and pairs between a model's marks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wordloom.data.batches.framed import Frame, MarkedLabelBatches, _shortened, marked_rows
from wordloom.errors import DataError
from wordloom.text import Tokenizer

TEXTS = ["the cat sat", "on the mat and slept", "a dog"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS * 4, kind="wordpiece", vocab_size=80)


def test_rows_are_framed_as_the_paper_has_it(tokenizer):
    frame = Frame.of_encoder(tokenizer)
    rows = [("the cat sat",), ("a dog", "on the mat and slept")]
    made = marked_rows(tokenizer, rows, frame, longest=30)
    read = [made.ids[a:b].tolist() for a, b in zip(made.offsets, made.offsets[1:], strict=False)]
    one, other, third = (tokenizer.encode(text).ids for text in (*rows[1], *rows[0]))
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    assert read == [[cls, *third, sep], [cls, *one, sep, *other, sep]]
    batches = MarkedLabelBatches(made, np.array([0, 1]), segments=True, pad_id=frame.pad, order="sequential")
    inputs, targets = batches.batch(0, 2)
    assert inputs.segments.tolist()[1] == [0] * (len(one) + 2) + [1] * (len(other) + 1)
    assert not inputs.segments[0].any()
    assert inputs.attend.sum(1).tolist() == [len(row) for row in read]
    assert targets.tolist() == [0, 1]
    plain = MarkedLabelBatches(made, np.array([0, 1]), segments=False, pad_id=frame.pad, order="sequential")
    assert plain.batch(0, 2).inputs.segments is None
    assert plain.fingerprint != batches.fingerprint
    doubled = marked_rows(tokenizer, rows, Frame.of_encoder(tokenizer, doubled=True), longest=30)
    assert doubled.ids[doubled.offsets[1] :].tolist() == [cls, *one, sep, sep, *other, sep]


def test_a_causal_model_reads_to_an_end():
    tokenizer = Tokenizer.train(TEXTS, kind="char", special_tokens=["<eos>"])
    frame = Frame.of_causal(tokenizer)
    made = marked_rows(tokenizer, [("a dog", "the cat")], frame, longest=30)
    end = tokenizer.eos_id
    assert made.ids.tolist() == [*tokenizer.encode("a dog").ids, end, *tokenizer.encode("the cat").ids, end]
    with pytest.raises(DataError, match="no token that ends a text"):
        Frame.of_causal(Tokenizer.train(TEXTS, kind="char", special_tokens=[]))


def test_what_is_too_long_or_empty_is_told(tokenizer):
    frame = Frame.of_encoder(tokenizer)
    pair = ("the cat sat", "on the mat and slept")
    with pytest.raises(DataError, match=r"here: has 11 tokens and train\.seq_len allows 8; .*data\.too_long"):
        marked_rows(tokenizer, [pair], frame, longest=8, place=lambda row: "here")
    made = marked_rows(tokenizer, [pair], frame, longest=8, too_long="cut")
    assert (made.cut, made.cut_rows) == (1, (0,))
    first, second = (tokenizer.encode(text).ids for text in pair)
    assert made.ids.tolist() == [
        tokenizer.cls_id, *first, tokenizer.sep_id, *second[:2], tokenizer.sep_id,
    ]  # fmt: skip
    with pytest.raises(DataError, match=r"data\.tsv:3: text 2 of its two is empty"):
        marked_rows(tokenizer, [("a", " \t")], frame, longest=8, place=lambda row: "data.tsv:3")
    with pytest.raises(DataError, match="row 1: its text is empty"):
        marked_rows(tokenizer, [("a",), ("",)], frame, longest=8)
    with pytest.raises(DataError, match="has 3 texts"):
        marked_rows(tokenizer, [("a", "a", "a")], frame, longest=8)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 30))
def test_the_longer_text_is_cut_first(a: int, b: int, room: int) -> None:
    lengths = [a, b]
    while sum(lengths) > room:  # one token at a time
        lengths[lengths.index(max(lengths)) if a != b or lengths[0] != lengths[1] else 1] -= 1
    whole = [np.arange(a, dtype=np.int32), np.arange(b, dtype=np.int32)]
    made = _shortened(whole, room) if a + b > room else whole
    assert sum(map(len, made)) == min(room, a + b)
    assert abs(len(made[0]) - lengths[0]) <= 1  # of equals either may be cut
    for text, original in zip(made, whole, strict=True):
        assert (text == original[: len(text)]).all()
