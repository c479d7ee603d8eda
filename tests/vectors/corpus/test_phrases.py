"""Phrases, beside gensim's."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import gensim.models.phrases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wordloom.errors import VectorError
from wordloom.vectors.corpus import phrases as module
from wordloom.vectors.corpus.phrases import Joining, Phrases

TEXTS = st.lists(st.lists(st.sampled_from("abcd"), max_size=30), max_size=8)
CUTS = st.lists(st.integers(0, 30), max_size=5)


def whole(texts):
    return ((text, True) for text in texts)


def in_stretches(text, cuts):
    """``text`` cut anywhere, also into nothing: (words, whether they end it)."""
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [(text[start:stop], n == len(edges) - 2) for n, (start, stop) in enumerate(pairwise(edges))]


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
    ours = Phrases.learn(whole(texts), min_count=min_count, threshold=threshold)
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
    phrases = Phrases.learn(whole(texts), min_count=1, threshold=1.0, most_pairs=100)
    assert phrases.pruned_below > 0
    assert Phrases.learn(whole(texts)).pruned_below == 0


@given(TEXTS, CUTS, st.integers(1, 20))
def test_counting_is_that_of_whole_texts(made, cuts, at_once):
    """Whatever they are cut into, and however many words are counted in one go."""
    words = Counter(word for text in made for word in text)
    pairs = Counter(pair for text in made for pair in pairwise(text))
    different = len(words) + len(pairs)
    expected = {(a, b): (n - 1) / words[a] / words[b] * different for (a, b), n in pairs.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AT_ONCE", at_once)
        stretches = [stretch for text in made for stretch in in_stretches(text, cuts)]
        found = Phrases.learn(stretches, min_count=1, threshold=1e-9)
    assert found.pairs == {pair: score for pair, score in expected.items() if score > 1e-9}


@given(TEXTS, CUTS)
def test_joining_stretch_by_stretch_is_joining_whole_texts(made, cuts):
    passes = [Phrases(dict.fromkeys([("a", "b"), ("b", "c"), ("d", "d")], 1.0))]
    passes.append(Phrases(dict.fromkeys([("a_b", "c"), ("c", "a_b"), ("d_d", "d")], 1.0)))
    joining = Joining(passes)
    for text in made:
        got = [w for words, last in in_stretches(text, cuts) for w in joining.push(words, last=last)]
        assert got == passes[1].join(passes[0].join(text))


@given(TEXTS, st.integers(1, 12))
def test_what_is_counted_at_a_time_is_bounded(made, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AT_ONCE", 5)
        counts = module._PairCounts(most)
        for text in made:
            counts.add(text, last=True)
            if not counts._waiting:
                assert len(counts._ids) + len(counts._keys) <= most
        counts.flush()
        assert len(counts._ids) + len(counts._keys) <= most
    words = Counter(word for text in made for word in text)
    for word, number in zip(counts._ids, counts._words.tolist(), strict=True):
        assert 0 < number <= words[word]
    for key, number in zip(counts._keys.tolist(), counts._pairs.tolist(), strict=True):
        a, b = key >> 32, key & 0xFFFFFFFF  # a pair never outlives its words
        assert 0 < number <= min(counts._words[a], counts._words[b])


def test_settings_out_of_range_are_refused(texts):
    with pytest.raises(VectorError, match="threshold above 0"):
        Phrases.learn(whole(texts), threshold=0)
