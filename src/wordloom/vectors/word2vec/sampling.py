"""Subsampling of frequent words, sampling of negatives, and the tree of hierarchical softmax.

The formulas are those of word2vec.c, which differ in places from the papers'.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError


def keep_probabilities(counts: NDArray[np.int64], sample: float) -> NDArray[np.float64]:
    """Return the probability [V] that an occurrence of a word is trained on.

    It is min(1, (sqrt(f / sample) + 1) * sample / f) for a word with the share f of the text, as in
    word2vec.c. (The formula in Mikolov et al. 2013, arXiv:1310.4546, section 2.3, differs.)  ``sample`` 0
    keeps all words.

    Raises VectorError for counts below 1.
    """
    if len(counts) and np.min(counts) < 1:
        raise VectorError(
            f"a word of the vocabulary has the count {np.min(counts)}; counts must be 1 or more"
        )
    if sample <= 0:
        return np.ones(len(counts))
    share = counts / (sample * np.sum(counts))
    return np.minimum((np.sqrt(share) + 1) / share, 1.0)


def alias_table(weights: NDArray[np.float64]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return alias tables ``keep`` and ``other`` [V] for sampling in proportion to ``weights`` (Vose 1991).

    Draw i uniformly from 0 to V - 1 and u from 0 to 2^32 - 1; the sample is i if u < keep[i], else other[i].
    Its distribution is accurate to V / 2^32.

    Raises VectorError for weights that are negative, not finite, or all zero.
    """
    given = np.asarray(weights, dtype=np.float64)
    total = given.sum()
    if not len(given) or not np.isfinite(total) or total <= 0 or given.min() < 0:
        raise VectorError("weights of samples must be finite, none below 0 and not all 0")
    share = given / total * len(given)
    # Entries that remain because of rounding keep their own index.
    keep, other = np.ones(len(given)), np.arange(len(given))
    light, heavy = np.flatnonzero(share < 1).tolist(), np.flatnonzero(share >= 1).tolist()
    weight = share.tolist()
    while light and heavy:
        small, large = light.pop(), heavy[-1]
        keep[small], other[small] = weight[small], large
        weight[large] -= 1.0 - weight[small]
        if weight[large] < 1:
            light.append(heavy.pop())
    return np.minimum(keep * 2.0**32, 2.0**32 - 1).astype(np.uint32), other.astype(np.uint32)


def huffman(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint8]]:
    """Return the Huffman tree over words with falling counts: (starts [V + 1], nodes [N], codes [N]).

    The path from the root to word w has the inner nodes ``nodes[starts[w]:starts[w + 1]]`` (0 to V - 2; the
    root is V - 2) and the branches ``codes``.  Like word2vec.c, it uses two queues and no heap, so ties are
    resolved in the same way.

    Raises VectorError for rising counts, or no words.
    """
    V = len(counts)
    if not V or np.any(np.diff(counts) > 0):
        raise VectorError("a Huffman tree needs one word or more with falling counts; sort them")
    unbuilt = np.iinfo(np.int64).max  # heavier than any sum of counts
    weight = [*np.asarray(counts).tolist(), *[unbuilt] * V]
    parent, code = np.zeros(2 * V, dtype=np.int64), np.zeros(2 * V, dtype=np.uint8)
    word, inner = V - 1, V  # the lightest leaf and the lightest inner node without a parent
    for node in range(V, 2 * V - 1):
        pair = []
        for _ in range(2):
            if word >= 0 and weight[word] < weight[inner]:
                pair.append(word)
                word -= 1
            else:
                pair.append(inner)
                inner += 1
        weight[node] = weight[pair[0]] + weight[pair[1]]
        parent[pair] = node
        code[pair[1]] = 1

    root = 2 * V - 2
    depth = np.zeros(V, dtype=np.int64)
    # words whose path has not reached the root, and its current node
    climbing, at = np.arange(V), np.arange(V)
    while len(climbing := climbing[at != root]):
        at = parent[at[at != root]]
        depth[climbing] += 1
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(depth)])
    nodes, codes = np.zeros(starts[-1], dtype=np.int32), np.zeros(starts[-1], dtype=np.uint8)
    climbing, at, place = np.arange(V), np.arange(V), starts[1:] - 1
    while (below := at != root).any():
        climbing, at = climbing[below], at[below]
        codes[place[climbing]], nodes[place[climbing]] = code[at], parent[at] - V
        place[climbing] -= 1
        at = parent[at]
    return starts, nodes, codes
