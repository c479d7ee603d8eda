"""Entities as conlleval finds them, and scores of them as its formulas give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score

from wordloom.errors import EvaluationError
from wordloom.evaluate.token_classification import Entity, entities, is_bio, tag_agreement

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
texts = st.lists(st.lists(st.sampled_from(TAGS), min_size=1, max_size=7), min_size=1, max_size=6)


def begins(before: str, tag: str) -> bool:
    """conlleval's startOfChunk, of B, I and O."""
    mark, _, kind = tag.partition("-")
    previous, _, previous_kind = before.partition("-")
    return mark == "B" or (mark == "I" and previous == "O") or (mark != "O" and previous_kind != kind)


def ends(before: str, tag: str) -> bool:
    """conlleval's endOfChunk, of B, I and O."""
    mark, _, kind = tag.partition("-")
    previous, _, previous_kind = before.partition("-")
    return previous in ("B", "I") and (mark in ("B", "O") or previous_kind != kind)


def conlleval(targets, predicted):
    """correctChunk, foundCorrect and foundGuessed by the script's own walk over two columns at once."""
    right = true = found = 0
    inside = False
    before, guessed_before = "O", "O"
    flat = [
        pair
        for a, b in zip(targets, predicted, strict=True)
        for pair in [*zip(a, b, strict=True), ("O", "O")]
    ]
    for tag, guessed in flat:
        if inside:
            if ends(before, tag) and ends(guessed_before, guessed):
                inside, right = False, right + 1
            elif ends(before, tag) != ends(guessed_before, guessed) or tag[2:] != guessed[2:]:
                inside = False
        if begins(before, tag) and begins(guessed_before, guessed) and tag[2:] == guessed[2:]:
            inside = True
        true, found = true + begins(before, tag), found + begins(guessed_before, guessed)
        before, guessed_before = tag, guessed
    return right, true, found


@settings(max_examples=50, deadline=None)
@given(texts, st.data())
def test_entities_are_counted_as_by_conlleval(targets, data):
    predicted = [[data.draw(st.sampled_from((tag, *TAGS))) for tag in text] for text in targets]
    scores = tag_agreement(targets, predicted, settings={})
    right, true, found = conlleval(targets, predicted)
    assert [scores.counts[name] for name in ("right_entities", "entities", "found")] == [right, true, found]
    for name, above, below in [
        ("entity_precision", right, found), ("entity_recall", right, true),
        ("entity_f1", 2 * right, true + found),
    ]:  # fmt: skip
        assert scores[name].value == (above / below if below else 0)
        assert bool(scores[name].note) == (not below)
    assert scores["accuracy"].value == accuracy_score(np.concatenate(targets), np.concatenate(predicted))
    kinds = scores.details["entities"]
    assert sum(counts["right"] for counts in kinds.values()) == right


def test_where_entities_begin_and_end():
    iob2 = ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "I-LOC"]
    assert entities(iob2) == [Entity("PER", 0, 2), Entity("LOC", 3, 4), Entity("LOC", 4, 6)]
    iob1 = ["I-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-LOC"]
    assert entities(iob1) == entities(iob2)
    assert entities(["I-PER", "I-LOC"]) == [Entity("PER", 0, 1), Entity("LOC", 1, 2)]
    assert entities(["O"]) == entities([]) == []
    assert entities(["B-x-y", "I-x-y"]) == [Entity("x-y", 0, 2)]


def test_an_entity_with_another_end_or_type_is_wrong():
    targets = [["B-PER", "I-PER", "O", "B-LOC"]]
    scores = tag_agreement(targets, [["B-PER", "O", "O", "B-PER"]], settings={"set": "x"})
    assert scores["entity_f1"].value == 0.0
    assert scores["accuracy"].value == 0.5
    assert scores["entity_f1"].signature.startswith("entity_f1|set:x|ci:no|")
    assert scores.details["entities"] == {
        "LOC": {"true": 1, "found": 0, "right": 0}, "PER": {"true": 1, "found": 2, "right": 0}
    }  # fmt: skip


def test_labels_that_are_not_bio_have_their_accuracy_alone():
    scores = tag_agreement([["at", "nn"], ["vb"]], [["at", "vb"], ["vb"]], settings={})
    assert list(scores) == ["accuracy"]
    assert scores["accuracy"].value == pytest.approx(2 / 3)
    assert not is_bio(["O", "B-", "nn"])


def test_intervals_are_of_texts_and_hold_the_truth():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(100):  # of an entity each: found as it is by 0.7, missed by 0.3; F1 = 1.4 / 1.7
        found = rng.random(100) < 0.7
        score = tag_agreement([["B-x"]] * 100, [["B-x"] if hit else ["O"] for hit in found], settings={})[
            "entity_f1"
        ]
        held += score.interval[0] <= 1.4 / 1.7 <= score.interval[1]
    assert 88 <= held <= 100


def test_what_cannot_be_scored():
    for targets, predicted, says in [
        ([["O"]], [], "1 texts have 0 predictions"),
        ([["O"], ["O"]], [["O"], ["O", "O"]], "text 2 has 1 words and 2 predicted labels"),
        ([["B-x"]], [["S-x"]], "the tag 'S-x' is not one of O, B-TYPE and I-TYPE"),
        ([], [], "no word to score"),
    ]:
        with pytest.raises(EvaluationError, match=says):
            tag_agreement(targets, predicted, settings={})
