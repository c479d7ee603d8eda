"""Phrases, beside gensim's."""

from __future__ import annotations

import gensim.models.phrases
import numpy as np
import pytest

from wordloom.errors import VectorError
from wordloom.vectors.phrases import Phrases


@pytest.fixture(scope="module")
def texts() -> list[list[str]]:
    """Two hundred texts in which some words like to follow one another."""
    random = np.random.default_rng(0)
    names = [f"w{i}" for i in range(40)]
    made = []
    for _ in range(200):
        text = [names[i] for i in random.integers(0, 40, 30)]
        for pair in (("w1", "w2"), ("w3", "w4"), ("w2", "w3")):
            at = int(random.integers(0, 28))
            text[at : at + 2] = pair
        made.append(text)
    return made


@pytest.mark.parametrize(("min_count", "threshold"), [(5, 10.0), (1, 1.0), (5, 0.5), (20, 2.0)])
def test_pairs_and_scores_are_those_of_gensim(texts, min_count, threshold):
    theirs = gensim.models.phrases.Phrases(texts, min_count=min_count, threshold=threshold)
    expected = {tuple(pair.split("_")): score for pair, score in theirs.export_phrases().items()}
    ours = Phrases.learn(texts, min_count=min_count, threshold=threshold)
    assert ours.pairs == pytest.approx(expected)
    assert [ours.join(text) for text in texts] == [theirs[text] for text in texts]


def test_the_leftmost_pair_is_joined():
    phrases = Phrases({("a", "b"): 1.0, ("b", "c"): 9.0})
    assert phrases.join(["a", "b", "c", "b", "c"]) == ["a_b", "c", "b_c"]
    assert phrases.join([]) == []


def test_two_passes_make_longer_phrases():
    text = ["the", "new", "york", "times"]
    first, second = Phrases({("new", "york"): 1.0}), Phrases({("new_york", "times"): 1.0})
    assert second.join(first.join(text)) == ["the", "new_york_times"]


def test_memory_is_bounded_and_it_is_said(texts):
    phrases = Phrases.learn(texts, min_count=1, threshold=1.0, most_pairs=100)
    assert phrases.pruned_below > 0
    assert Phrases.learn(texts).pruned_below == 0


def test_settings_out_of_range_are_refused(texts):
    with pytest.raises(VectorError, match="threshold above 0"):
        Phrases.learn(texts, threshold=0)
