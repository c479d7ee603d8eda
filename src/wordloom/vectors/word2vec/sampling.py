"""How often words are passed over, which words stand in as negatives, and the tree of hierarchical softmax.

The formulas are those of word2vec.c, which differ in places from the papers'.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError

__all__ = ["alias_table", "huffman", "keep_probabilities"]


def keep_probabilities(counts: NDArray[np.int64], sample: float) -> NDArray[np.float64]:
    """[V], the chance that an occurrence of a word is trained on: (sqrt(f / sample) + 1) * sample / f, 1 at
    most, f being the word's share of all (word2vec.c; Mikolov et al. 2013, arXiv:1310.4546, section 2.3,
    prints another formula).  ``sample`` 0 keeps all.

    Raises VectorError for counts below 1.
    """
    if len(counts) and np.min(counts) < 1:
        raise VectorError(
            f"a word of the vocabulary has the count {np.min(counts)}; each occurs at least once"
        )
    if sample <= 0:
        return np.ones(len(counts))
    share = counts / (sample * np.sum(counts))
    return np.minimum((np.sqrt(share) + 1) / share, 1.0)


def alias_table(weights: NDArray[np.float64]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Tables ``keep``, ``other`` [V] that draw i in proportion to ``weights`` with two looks (Vose 1991).

    Draw i evenly and u evenly of 0 .. 2^32 - 1; it is i where u < keep[i], else other[i].  What is drawn so
    follows the weights to V parts in 2^32.

    Raises VectorError for weights that are negative, not finite, or all zero.
    """
    given = np.asarray(weights, dtype=np.float64)
    total = given.sum()
    if not len(given) or not np.isfinite(total) or total <= 0 or given.min() < 0:
        raise VectorError("weights to draw by must be finite, none below 0 and not all 0")
    share = given / total * len(given)
    # What rounding leaves over at the end is light or heavy by a hair: it keeps itself.
    keep, other = np.ones(len(given)), np.arange(len(given))
    light, heavy = np.flatnonzero(share < 1).tolist(), np.flatnonzero(share >= 1).tolist()
    rest = share.tolist()
    while light and heavy:
        small, large = light.pop(), heavy[-1]
        keep[small], other[small] = rest[small], large
        rest[large] -= 1.0 - rest[small]
        if rest[large] < 1:
            light.append(heavy.pop())
    return np.minimum(keep * 2.0**32, 2.0**32 - 1).astype(np.uint32), other.astype(np.uint32)


def huffman(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint8]]:
    """The Huffman tree over words by falling count: (starts [V + 1], nodes [N], codes [N]).

    From the root to word w lie the inner nodes ``nodes[starts[w]:starts[w + 1]]`` (0 .. V - 2, the root being
    V - 2), and at each ``codes`` says which way the path goes on.  Built by word2vec.c's method, two queues
    and no heap, so ties fall as they do there.

    Raises VectorError for counts that rise, or an empty list.
    """
    V = len(counts)
    if not V or np.any(np.diff(counts) > 0):
        raise VectorError("a Huffman tree is made over one word or more, by falling count; sort them")
    unmade = np.iinfo(np.int64).max  # heavier than any sum of counts
    weight = [*np.asarray(counts).tolist(), *[unmade] * V]
    parent, code = np.zeros(2 * V, dtype=np.int64), np.zeros(2 * V, dtype=np.uint8)
    word, inner = V - 1, V  # the lightest leaf and the lightest inner node not yet below another
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
    climbing, at = np.arange(V), np.arange(V)  # words whose path is not at the root yet, and where it is
    while len(climbing := climbing[at != root]):
        at = parent[at[at != root]]
        depth[climbing] += 1
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(depth)])
    nodes, codes = np.zeros(starts[-1], dtype=np.int32), np.zeros(starts[-1], dtype=np.uint8)
    climbing, at, place = np.arange(V), np.arange(V), starts[1:] - 1
    while (on_the_way := at != root).any():
        climbing, at = climbing[on_the_way], at[on_the_way]
        codes[place[climbing]], nodes[place[climbing]] = code[at], parent[at] - V
        place[climbing] -= 1
        at = parent[at]
    return starts, nodes, codes
