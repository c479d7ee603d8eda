"""Group texts by their vectors with scikit-learn (k-means or agglomerative), and describe the groups.

The words of a cluster are those that it has more often than the other clusters. Their weight is the log-odds
with an informative Dirichlet prior, divided by its standard error (Monroe, Colaresi & Quinn 2008, "Fightin'
words", section 3.5.1). The prior is the counts in all texts. Unlike class-based tf-idf, this needs no list of
stop words: a word that is as frequent elsewhere has weight 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import DataError, WordloomError, did_you_mean

Method = Literal["kmeans", "agglomerative"]
METHODS = ("kmeans", "agglomerative")

_STARTS = 10  # runs of k-means, of which the best is taken
_MOST_PAIRED = 20_000  # texts; the distances of all pairs take 1.6 GB
_MOST_COMPARED = 5_000  # texts that the silhouette compares in pairs
_LEAST_COUNT = 2  # a word that a cluster has only once says little


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """N texts in K clusters, the largest first.

    Attributes:
        assigned: [N] int64, the cluster of each text, from 0.
        distances: [N] float64, the Euclidean distance of each text's vector to its centre.
        centres: [K, D] float64, the mean of each cluster's vectors.
        sizes: [K] int64.
        nearest: for each cluster the numbers, from 0, of the texts nearest to its centre, the nearest first.
        words: for each cluster (word, weight), the heaviest first.
        silhouette: the mean over texts of (b - a) / max(a, b) (Rousseeuw 1987), where a is a text's mean
            distance within its cluster, and b that to the nearest other; None if every text is a cluster.
        compared: the number of texts in that mean: all, or a sample drawn by the seed.
        nmi, adjusted_rand: the agreement with the labels: mutual information over the mean of the entropies,
            and the Rand index corrected for chance (Hubert & Arabie 1985); None without labels.
        labels: for each cluster the number of texts with each label, the most frequent first; empty without.
        method, seed: the settings of the clustering.
    """

    assigned: NDArray[np.int64]
    distances: NDArray[np.float64]
    centres: NDArray[np.float64] = field(repr=False)
    sizes: NDArray[np.int64]
    nearest: list[list[int]] = field(repr=False)
    words: list[list[tuple[str, float]]] = field(repr=False)
    silhouette: float | None
    compared: int
    nmi: float | None = None
    adjusted_rand: float | None = None
    labels: list[dict[str, int]] = field(default_factory=list, repr=False)
    method: str
    seed: int


def cluster_texts(
    texts: Sequence[str],
    vectors: NDArray[Any],
    k: int,
    *,
    method: Method = "kmeans",
    seed: int = 0,
    labels: Sequence[str] | None = None,
    n_texts: int = 5,
    n_words: int = 10,
) -> Clusters:
    """Group ``texts`` by their ``vectors`` [N, D] into ``k`` clusters.

    ``kmeans`` takes the best of ten starts by k-means++, drawn from ``seed``. ``agglomerative`` joins
    clusters by Ward's method (1963); its memory grows with the square of N. Both use Euclidean distances,
    which order vectors of length 1 as cosines do.

    Args:
        labels: the labels of the texts, to compare the clusters with; they do not affect the clusters.
        n_texts, n_words: how many texts and words of each cluster to keep.

    Raises:
        DataError: ``k`` is below 2, or above the number of texts or of different vectors; a text is empty;
            vectors are not finite, or not as many as the texts; too many texts for ``agglomerative``.
        WordloomError: an unknown method, or scikit-learn is missing.
    """
    if method not in METHODS:
        raise WordloomError(f"unknown clustering {method!r}; {did_you_mean(method, METHODS)}")
    check_texts(texts, k, method)
    x = np.asarray(vectors, np.float64)
    _check_vectors(x, len(texts), k)
    if labels is not None and len(labels) != len(texts):
        raise DataError(f"{len(labels):,} labels for {len(texts):,} texts; give each text one")
    assigned = _by_size(_assigned(x, k, method, seed))
    if (count := int(assigned.max()) + 1) < k:  # k-means does not separate vectors that differ by rounding
        raise DataError(
            f"only {count:,} vectors differ by more than rounding; give fewer than {k:,} clusters"
        )
    sizes = np.bincount(assigned, minlength=k)
    centres = np.stack([x[assigned == cluster].mean(0) for cluster in range(k)])  # [K, D]
    distances = np.linalg.norm(x - centres[assigned], axis=1)
    members = [np.flatnonzero(assigned == cluster) for cluster in range(k)]
    silhouette, compared = _silhouette(x, assigned, seed)
    return Clusters(
        assigned=assigned,
        distances=distances,
        centres=centres,
        sizes=sizes,
        nearest=[
            numbers[np.argsort(distances[numbers], kind="stable")][:n_texts].tolist() for numbers in members
        ],
        words=top_words(texts, assigned, n_words),
        silhouette=silhouette,
        compared=compared,
        method=method,
        seed=seed,
        **({} if labels is None else _agreement(labels, assigned, members)),
    )


def check_texts(
    texts: Sequence[str], k: int, method: Method = "kmeans", *, place: Callable[[int], str] | None = None
) -> None:
    """Raise DataError if ``texts`` cannot be grouped into ``k`` clusters, before their vectors are computed.

    ``place`` names a text by its number, from 0. Raises WordloomError if scikit-learn is missing.
    """
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise WordloomError("clusters need scikit-learn: pip install scikit-learn") from None
    if k < 2:
        raise DataError(f"clusters: {k} is too few; give 2 or more")
    if len(texts) < 2:
        raise DataError(f"{len(texts)} text(s) cannot be grouped; give 2 or more")
    if k > len(texts):
        raise DataError(f"{len(texts):,} texts cannot be {k:,} clusters; give {len(texts):,} or fewer")
    if empty := [i + 1 for i, text in enumerate(texts) if not text.strip()]:
        name = f"text {empty[0]:,}" if place is None else place(empty[0] - 1)
        others = f", and so are {len(empty) - 1:,} more" if len(empty) > 1 else ""
        raise DataError(f"{name}: the text is empty{others}; leave it out of the clusters")
    if method == "agglomerative" and len(texts) > _MOST_PAIRED:
        raise DataError(
            f"agglomerative clustering keeps the distances of all pairs, and takes {_MOST_PAIRED:,} texts at "
            f"most, not {len(texts):,}; take kmeans"
        )


def _check_vectors(x: NDArray[np.float64], n: int, k: int) -> None:
    if x.ndim != 2 or len(x) != n:
        raise DataError(f"vectors of shape {list(x.shape)} for {n:,} texts; give one row for each text")
    wrong = np.flatnonzero(~np.isfinite(x).all(1))
    if len(wrong):
        raise DataError(
            f"{len(wrong):,} vectors are not finite, the first that of text {wrong[0] + 1:,}; look at the "
            "model, or compute in fp32"
        )
    different = len(np.unique(x, axis=0))
    if different < k:
        raise DataError(f"there are only {different:,} different vectors; give fewer than {k:,} clusters")


def _assigned(x: NDArray[np.float64], k: int, method: Method, seed: int) -> NDArray[np.int64]:
    from sklearn.cluster import AgglomerativeClustering, KMeans

    if method == "kmeans":
        clustering = KMeans(k, n_init=_STARTS, random_state=seed)
    else:
        clustering = AgglomerativeClustering(k, linkage="ward")
    return np.asarray(clustering.fit_predict(x), np.int64)


def _agreement(
    labels: Sequence[str], assigned: NDArray[np.int64], members: Sequence[NDArray[np.int64]]
) -> dict[str, Any]:
    """Return the fields of :class:`Clusters` that compare the clusters with labels."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    named = [sorted(str(labels[i]) for i in numbers.tolist()) for numbers in members]
    return {
        "nmi": float(normalized_mutual_info_score(list(labels), assigned)),
        "adjusted_rand": float(adjusted_rand_score(list(labels), assigned)),
        "labels": [dict(Counter(names).most_common()) for names in named],
    }


def _by_size(assigned: NDArray[np.int64]) -> NDArray[np.int64]:
    """Renumber clusters by falling size; of equal ones, the cluster of the earliest text comes first."""
    _, first, numbers, sizes = np.unique(assigned, return_index=True, return_inverse=True, return_counts=True)
    rank = np.empty(len(sizes), np.int64)
    rank[np.lexsort((first, -sizes))] = np.arange(len(sizes))
    return rank[numbers]


def _silhouette(x: NDArray[np.float64], assigned: NDArray[np.int64], seed: int) -> tuple[float | None, int]:
    """Return the mean silhouette and the number of texts in it, a sample if there are many."""
    from sklearn.metrics import silhouette_score

    if len(x) > _MOST_COMPARED:
        drawn = np.random.default_rng(seed).choice(len(x), _MOST_COMPARED, replace=False)
        x, assigned = x[drawn], assigned[drawn]
    if not 2 <= len(np.unique(assigned)) < len(x):
        return None, len(x)
    return float(silhouette_score(x, assigned)), len(x)


def top_words(
    texts: Sequence[str], assigned: NDArray[np.int64], n: int = 10
) -> list[list[tuple[str, float]]]:
    """Return the ``n`` words that distinguish each cluster from the others, the heaviest first, with weights.

    Words are lower-cased and split as :class:`wordloom.data.BagVectorizer` splits them. Punctuation and words
    that a cluster has only once are left out. The weight is a z-score (see the module); a cluster has fewer
    than ``n`` words if fewer have a weight above 0.
    """
    from wordloom.data.bags.vectorizer import BagVectorizer

    vectorizer, counted = BagVectorizer.fit_counts(texts, lower=True)
    terms = np.array(vectorizer.terms, dtype=object)
    is_word = np.array([any(map(str.isalnum, term)) for term in vectorizer.terms])
    if not is_word.any():
        return [[] for _ in range(int(assigned.max()) + 1)]
    rows, terms = counted.rows[:, is_word], terms[is_word]
    total = np.asarray(rows.sum(0), np.float64).ravel()  # [V]
    words = []
    for cluster in range(int(assigned.max()) + 1):
        here = np.asarray(rows[assigned == cluster].sum(0), np.float64).ravel()
        weights = _log_odds(here, total)
        weights[here < _LEAST_COUNT] = 0.0
        best = np.argsort(-weights, kind="stable")[:n]
        words.append([(str(terms[i]), float(weights[i])) for i in best if weights[i] > 0])
    return words


def _log_odds(here: NDArray[np.float64], total: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return z-scores [V] of the words of a cluster with counts ``here`` [V], of ``total`` [V] in all."""
    inside, outside = here + total, 2 * total - here  # with the prior, which is the total
    odds_inside = np.log(inside) - np.log(np.maximum(inside.sum() - inside, 0.5))  # 0.5: for a single word
    odds_outside = np.log(outside) - np.log(np.maximum(outside.sum() - outside, 0.5))
    scores: NDArray[np.float64] = (odds_inside - odds_outside) / np.sqrt(1 / inside + 1 / outside)
    return scores
