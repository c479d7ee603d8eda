"""The subsampler and the alias table follow their formulas; Huffman's tree is optimal, and gensim's."""

import heapq
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wordloom.errors import VectorError
from wordloom.vectors.word2vec.sampling import alias_table, huffman, keep_probabilities

counts_lists = st.lists(st.integers(1, 10**6), min_size=1, max_size=60).map(lambda c: sorted(c, reverse=True))


def within_chance(seen, expected):
    """Pearson's chi-square lies within five standard deviations of its mean."""
    likely = expected > 0
    assert not seen[~likely].any()
    freedom = likely.sum() - 1
    chi2 = ((seen - expected)[likely] ** 2 / expected[likely]).sum()
    assert abs(chi2 - freedom) < 5 * (2 * freedom) ** 0.5


# -- subsampling ---------------------------------------------------------------------------------------


def test_keeping_follows_the_c_code():
    """word2vec.c: (sqrt(cn / (sample * train_words)) + 1) * (sample * train_words) / cn."""
    counts = np.array([50_000, 3_000, 400, 20, 5])
    total = counts.sum()
    for sample in (1e-2, 1e-3, 1e-5):
        expected = [((n / (sample * total)) ** 0.5 + 1) * (sample * total) / n for n in counts.tolist()]
        np.testing.assert_allclose(keep_probabilities(counts, sample), np.minimum(expected, 1), rtol=1e-12)


def test_keeping_is_gensims():
    models = pytest.importorskip("gensim.models")
    text = [["the"] * 40 + ["cat"] * 9 + ["sat"] * 3 + ["on"]] * 5
    theirs = models.Word2Vec(vector_size=2, min_count=1, sample=1e-2)
    theirs.build_vocab(text)
    counts = np.array([theirs.wv.get_vecattr(word, "count") for word in theirs.wv.index_to_key])
    kept = [theirs.wv.get_vecattr(word, "sample_int") / (2**32 - 1) for word in theirs.wv.index_to_key]
    np.testing.assert_allclose(keep_probabilities(counts, 1e-2), kept, atol=1e-9)


@given(counts_lists, st.sampled_from([0, 1e-5, 1e-3, 0.1, 1.0]))
def test_chances_are_chances_and_fall_with_frequency(counts, sample):
    chances = keep_probabilities(np.array(counts), sample)
    assert np.all((chances > 0) & (chances <= 1))
    assert np.all(np.diff(chances) >= 0)
    assert sample > 0 or np.all(chances == 1)


def test_words_are_kept_as_often_as_it_says():
    rng = np.random.default_rng(3)
    counts = np.array([60_000, 20_000, 5_000, 800, 90])
    chances = keep_probabilities(counts, 1e-2)
    kept = rng.binomial(counts, chances)
    likely = chances < 1
    deviation = (kept - counts * chances)[likely] / np.sqrt(counts * chances * (1 - chances))[likely]
    assert np.all(np.abs(deviation) < 5)
    assert np.array_equal(kept[~likely], counts[~likely])


def test_a_word_that_never_occurs_is_refused():
    with pytest.raises(VectorError, match="has the count 0"):
        keep_probabilities(np.array([5, 0]), 1e-3)


# -- the alias table -----------------------------------------------------------------------------------


def shares(keep, other):
    """What share of draws each of V is, exactly."""
    V = len(keep)
    found = keep / 2.0**32
    np.add.at(found, other, 1 - keep / 2.0**32)
    return found / V


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=200).filter(lambda w: sum(w) > 0))
def test_the_alias_table_holds_the_weights(weights):
    keep, other = alias_table(np.array(weights))
    assert keep.dtype == other.dtype == np.uint32
    np.testing.assert_allclose(shares(keep, other), np.array(weights) / sum(weights), atol=1e-9)
    never = np.array(weights) == 0
    assert not keep[never].any()
    assert not never[other[keep < 2**32 - 1]].any()


def test_draws_follow_the_weights():
    counts = np.arange(1, 301)[::-1] ** 2 + 5
    weights = counts**0.75
    keep, other = alias_table(weights)
    rng = np.random.default_rng(11)
    place = rng.integers(0, len(weights), size=1_000_000)
    u = rng.integers(0, 2**32, size=1_000_000, dtype=np.uint32)
    drawn = np.where(u < keep[place], place, other[place])
    within_chance(np.bincount(drawn, minlength=len(weights)), 1_000_000 * weights / weights.sum())


def test_a_large_vocabulary_has_the_weights_too():
    weights = (1e7 / np.arange(1, 100_001)) ** 0.75  # Zipf
    found = shares(*alias_table(weights))
    np.testing.assert_allclose(found, weights / weights.sum(), rtol=1e-4)


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [1.0, -1.0, 2.0], [1.0, np.nan], [np.inf]])
def test_weights_that_nothing_can_be_drawn_by(weights):
    with pytest.raises(VectorError, match="weights of samples"):
        alias_table(np.array(weights))


# -- Huffman -------------------------------------------------------------------------------------------


def paths(counts):
    """(nodes, codes) of each word."""
    starts, nodes, codes = huffman(np.array(counts))
    assert len(starts) == len(counts) + 1
    assert starts[-1] == len(nodes) == len(codes)
    return [(tuple(nodes[a:b].tolist()), tuple(codes[a:b].tolist())) for a, b in pairwise(starts)]


def least_cost(counts):
    """Total length of the best prefix code, by a heap."""
    heap, cost = list(counts), 0
    heapq.heapify(heap)
    while len(heap) > 1:
        both = heapq.heappop(heap) + heapq.heappop(heap)
        cost += both
        heapq.heappush(heap, both)
    return cost


@given(counts_lists)
def test_the_tree_is_a_best_prefix_code(counts):
    found = paths(counts)
    codes = sorted(code for _, code in found)
    assert all(longer[: len(code)] != code for code, longer in pairwise(codes))
    if len(counts) > 1:
        assert sum(0.5 ** len(code) for code in codes) == 1  # no bit is wasted
    assert sum(n * len(code) for n, (_, code) in zip(counts, found, strict=True)) == least_cost(counts)


@given(counts_lists)
def test_the_nodes_are_those_on_the_way(counts):
    """Walking the same turns comes by the same nodes, each node lies in one place, the root is the last."""
    where = {}
    for nodes, code in paths(counts):
        for depth, node in enumerate(nodes):
            assert where.setdefault(code[:depth], node) == node
    assert sorted(where.values()) == list(range(len(counts) - 1))
    assert len(counts) == 1 or where[()] == len(counts) - 2


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=60, unique=True))
def test_the_tree_is_gensims_where_no_two_weights_tie(counts):
    models = pytest.importorskip("gensim.models")
    counts = sorted(counts, reverse=True)
    heap, weights = sorted(counts), list(counts)
    while len(heap) > 1:  # do inner nodes weigh alike?
        both = heapq.heappop(heap) + heapq.heappop(heap)
        weights.append(both)
        heapq.heappush(heap, both)
    theirs = models.Word2Vec(vector_size=2, min_count=1, hs=1, negative=0, sample=0)
    theirs.build_vocab_from_freq({f"w{i}": n for i, n in enumerate(counts)})
    lengths = [len(theirs.wv.get_vecattr(f"w{i}", "code")) for i in range(len(counts))]
    found = paths(counts)
    assert sum(n * k for n, k in zip(counts, lengths, strict=True)) == least_cost(counts)
    if len(set(weights)) < len(weights):
        return
    for i, (nodes, code) in enumerate(found):
        assert tuple(theirs.wv.get_vecattr(f"w{i}", "code").tolist()) == code
        assert tuple(theirs.wv.get_vecattr(f"w{i}", "point").tolist()) == nodes


def test_of_equal_weights_the_inner_node_goes_first_as_in_the_c_code():
    """The pair of ones weighs 2 like word 0, and is taken before it; the later word is taken first."""
    assert paths([2, 1, 1]) == [((1,), (1,)), ((1, 0), (0, 1)), ((1, 0), (0, 0))]


def test_a_single_word_needs_no_turn():
    assert paths([7]) == [((), ())]


@pytest.mark.parametrize("counts", [[], [1, 2]])
def test_counts_that_do_not_fall(counts):
    with pytest.raises(VectorError, match="with falling counts"):
        huffman(np.array(counts))
