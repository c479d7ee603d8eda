"""Word Mover's Distance (Kusner et al. 2015): what it costs to carry one text's words to the other's.

The cheapest way to carry them is found exactly, as a linear program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError
from wordloom.vectors.store.word_store import Key, Vector

__all__ = ["movers_distance"]


def movers_distance(text: Sequence[Key], other: Sequence[Key], vector: Callable[[Key], Vector]) -> float:
    """The least sum of amount * Euclidean distance that brings the words of ``text`` onto those of ``other``,
    each word weighing its share of its text.

    Raises VectorError where the program that looks for it fails.
    """
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, kron, vstack
    from scipy.spatial.distance import cdist

    here, there = Counter(text), Counter(other)
    ends = [np.stack([vector(word) for word in counted]) for counted in (here, there)]
    costs: NDArray[np.float64] = cdist(*ends)  # [n, m]
    n, m = costs.shape
    leaving = kron(eye_array(n), np.ones((1, m)))  # [n, n * m]: sums over what goes out of each word
    arriving = kron(np.ones((1, n)), eye_array(m))
    shares = [
        np.array(list(counted.values())) / size for counted, size in ((here, len(text)), (there, len(other)))
    ]
    found = linprog(
        costs.ravel(), A_eq=vstack([leaving, arriving]), b_eq=np.concatenate(shares), method="highs"
    )
    if not found.success:
        raise VectorError(f"no distance of texts of {n:,} and {m:,} words was found: {found.message}")
    return float(found.fun)
