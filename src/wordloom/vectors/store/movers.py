"""Word Mover's Distance (Kusner et al. 2015), solved exactly as a linear program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError
from wordloom.vectors.store.word_store import Key, Vector


def movers_distance(text: Sequence[Key], other: Sequence[Key], vector: Callable[[Key], Vector]) -> float:
    """Return the Word Mover's Distance of two texts, given as lists of words.

    It is the lowest total of mass * Euclidean distance that moves the words of ``text`` onto those of
    ``other``.  Each word has its share of the text as mass.

    Raises VectorError if the solver fails.
    """
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, kron, vstack
    from scipy.spatial.distance import cdist

    counted = Counter(text), Counter(other)
    costs: NDArray[np.float64] = cdist(*(np.stack([vector(word) for word in c]) for c in counted))  # [n, m]
    n, m = costs.shape
    outflow = kron(eye_array(n), np.ones((1, m)))  # [n, n * m]: sums over the mass that leaves each word
    inflow = kron(np.ones((1, n)), eye_array(m))  # [m, n * m]
    masses = [np.array(list(c.values())) / c.total() for c in counted]
    solution = linprog(
        costs.ravel(), A_eq=vstack([outflow, inflow]), b_eq=np.concatenate(masses), method="highs"
    )
    if not solution.success:
        raise VectorError(f"no distance of texts of {n:,} and {m:,} words was found: {solution.message}")
    return float(solution.fun)
