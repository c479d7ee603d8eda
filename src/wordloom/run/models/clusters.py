"""Texts grouped by their vectors, by scikit-learn: k-means or agglomerative; and what each group holds.

A group's words are those that it has more often than the other groups: log-odds with an informative Dirichlet
prior, over their standard error (Monroe, Colaresi & Quinn 2008, "Fightin' words", section 3.5.1), the prior
being the counts in all texts.  Unlike class-based tf-idf it needs no list of stop words in any language: a
word that is as frequent elsewhere weighs nothing, however frequent it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import DataError, WordloomError, did_you_mean

__all__ = ["METHODS", "Clusters", "check_texts", "cluster_texts", "top_words"]

Method = Literal["kmeans", "agglomerative"]
METHODS = ("kmeans", "agglomerative")

_STARTS = 10  # of k-means, the best of which is taken
_MOST_PAIRED = 20_000  # texts whose distances, all pairs, fill 1.6 GB
_MOST_COMPARED = 5_000  # texts that the silhouette compares each with each
_SEEN_TWICE = 2  # a word of a group that it holds once says little


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """N texts in K clusters, the largest first.

    Attributes:
        assigned: [N] int64, the cluster of each text, from 0.
        distances: [N] float64, Euclidean, of each text's vector to its centre.
        centres: [K, D] float64, the mean of each cluster's vectors.
        sizes: [K] int64.
        nearest: of each cluster the texts nearest to its centre, by number from 0, the nearest first.
        words: of each cluster (word, weight), the heaviest first.
        silhouette: the mean over texts of (b - a) / max(a, b), a being a text's mean distance within its
            cluster, b that to the nearest other one (Rousseeuw 1987); None where every text is a cluster.
        compared: how many texts that mean is over: all, or a sample drawn by the seed.
        nmi, adjusted_rand: agreement with the labels: mutual information over the mean of the entropies, and
            the Rand index corrected for chance (Hubert & Arabie 1985); None without labels.
        labels: of each cluster, how many texts have which label, the most frequent first; empty without.
        method, seed: how it was made.
    """

    assigned: NDArray[np.int64]
    distances: NDArray[np.float64]
    centres: NDArray[np.float64] = field(repr=False)
    sizes: NDArray[np.int64]
    nearest: list[list[int]] = field(repr=False)
    words: list[list[tuple[str, float]]] = field(repr=False)
    silhouette: float | None
    compared: int
    nmi: float | None
    adjusted_rand: float | None
    labels: list[dict[str, int]] = field(repr=False)
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

    ``kmeans``: the best of ten starts by k-means++, drawn from ``seed``.  ``agglomerative``: the two clusters
    are joined that add least to the variance within (Ward 1963), until ``k`` are left; it draws nothing, and
    its memory grows with the square of N.  Both measure Euclidean distances: of vectors of length 1 these
    order texts as cosines do.

    Args:
        labels: of each text, to be compared with; they play no part in the grouping.
        n_texts, n_words: how many texts and words of each cluster to keep.

    Raises:
        DataError: ``k`` below 2 or above the number of texts or of different vectors, an empty text, vectors
            that are not finite or not as many as texts, more texts than ``agglomerative`` can pair.
        WordloomError: an unknown method; no scikit-learn.
    """
    if method not in METHODS:
        raise WordloomError(f"unknown clustering {method!r}; {did_you_mean(method, METHODS)}")
    check_texts(texts, k, method)
    x = np.asarray(vectors, np.float64)
    _check_vectors(x, len(texts), k)
    if labels is not None and len(labels) != len(texts):
        raise DataError(f"{len(labels):,} labels for {len(texts):,} texts; give each text one")
    assigned = _by_size(_assigned(x, k, method, seed))
    if (found := int(assigned.max()) + 1) < k:  # vectors that differ in their last bits are one to k-means
        raise DataError(f"there are {found:,} vectors that differ by more than rounding, and so no {k:,} "
                        "clusters; give fewer")  # fmt: skip
    sizes = np.bincount(assigned, minlength=k)
    centres = np.stack([x[assigned == cluster].mean(0) for cluster in range(k)])  # [K, D]
    distances = np.linalg.norm(x - centres[assigned], axis=1)
    members = [np.flatnonzero(assigned == cluster) for cluster in range(k)]
    silhouette, compared = _silhouette(x, assigned, seed)
    nmi = rand = None
    tallies: list[dict[str, int]] = []
    if labels is not None:
        from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

        nmi = float(normalized_mutual_info_score(list(labels), assigned))
        rand = float(adjusted_rand_score(list(labels), assigned))
        tallies = [_tally([labels[i] for i in some.tolist()]) for some in members]
    return Clusters(
        assigned=assigned,
        distances=distances,
        centres=centres,
        sizes=sizes,
        nearest=[some[np.argsort(distances[some], kind="stable")][:n_texts].tolist() for some in members],
        words=top_words(texts, assigned, n_words),
        silhouette=silhouette,
        compared=compared,
        nmi=nmi,
        adjusted_rand=rand,
        labels=tallies,
        method=method,
        seed=seed,
    )


def check_texts(
    texts: Sequence[str], k: int, method: Method = "kmeans", *, place: Callable[[int], str] | None = None
) -> None:
    """Raise DataError where ``texts`` cannot be ``k`` clusters, WordloomError where there is no scikit-learn:
    before anything is computed of them; ``place`` names a text by its number, from 0."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise WordloomError("clusters need scikit-learn: pip install 'wordloom[plots]'") from None
    if k < 2:
        raise DataError(f"{k} cluster(s) would tell nothing apart; give 2 or more")
    if len(texts) < 2:
        raise DataError(f"{len(texts)} text(s) cannot be grouped; give 2 or more")
    if k > len(texts):
        raise DataError(f"{len(texts):,} texts cannot be {k:,} clusters; give {len(texts):,} or fewer")
    if empty := [i + 1 for i, text in enumerate(texts) if not text.strip()]:
        if place is not None:
            others = f", as of {len(empty) - 1:,} more" if len(empty) > 1 else ""
            raise DataError(
                f"{place(empty[0] - 1)}: the text is empty{others}, and so belongs to no cluster; take it out"
            )
        shown = ", ".join(f"{number:,}" for number in empty[:5])
        more = f" and {len(empty) - 5:,} more" if len(empty) > 5 else ""
        raise DataError(f"nothing is in text {shown}{more}, which so belongs to no cluster; take it out")
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
        raise DataError(f"there are {different:,} different vectors, and so no {k:,} clusters; give fewer")


def _assigned(x: NDArray[np.float64], k: int, method: Method, seed: int) -> NDArray[np.int64]:
    from sklearn.cluster import AgglomerativeClustering, KMeans

    made = (
        KMeans(k, n_init=_STARTS, random_state=seed)
        if method == "kmeans"
        else AgglomerativeClustering(k, linkage="ward")
    )
    return np.asarray(made.fit_predict(x), np.int64)


def _by_size(assigned: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same clusters, numbered by falling size; of equal ones, first whose text comes first."""
    _, first, numbers, sizes = np.unique(assigned, return_index=True, return_inverse=True, return_counts=True)
    rank = np.empty(len(sizes), np.int64)
    rank[np.lexsort((first, -sizes))] = np.arange(len(sizes))
    return rank[numbers]


def _silhouette(x: NDArray[np.float64], assigned: NDArray[np.int64], seed: int) -> tuple[float | None, int]:
    """The mean silhouette, and of how many texts: where there are many, of a sample."""
    from sklearn.metrics import silhouette_score

    if len(x) > _MOST_COMPARED:
        drawn = np.random.default_rng(seed).choice(len(x), _MOST_COMPARED, replace=False)
        x, assigned = x[drawn], assigned[drawn]
    if not 2 <= len(np.unique(assigned)) < len(x):
        return None, len(x)
    return float(silhouette_score(x, assigned)), len(x)


def _tally(labels: Sequence[str]) -> dict[str, int]:
    found, counts = np.unique(np.asarray(labels), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {str(found[i]): int(counts[i]) for i in order}


def top_words(
    texts: Sequence[str], assigned: NDArray[np.int64], n: int = 10
) -> list[list[tuple[str, float]]]:
    """The ``n`` words that set each cluster off from the others, and their weights, the heaviest first.

    Words are lower-cased and split as :class:`wordloom.data.BagVectorizer` splits; punctuation, and what a
    cluster holds once, is left out.  The weight is a z-score (see the module): fewer than ``n`` where fewer
    are above 0.
    """
    from wordloom.data.bags.vectorizer import BagVectorizer

    vectorizer, counted = BagVectorizer.fit_counts(texts, lower=True)
    terms = np.array(vectorizer.terms, dtype=object)
    kept = np.array([any(map(str.isalnum, term)) for term in vectorizer.terms])
    if not kept.any():
        return [[] for _ in range(int(assigned.max()) + 1)]
    rows, terms = counted.rows[:, kept], terms[kept]
    total = np.asarray(rows.sum(0), np.float64).ravel()  # [V]
    made = []
    for cluster in range(int(assigned.max()) + 1):
        here = np.asarray(rows[assigned == cluster].sum(0), np.float64).ravel()
        weights = _log_odds(here, total)
        weights[here < _SEEN_TWICE] = 0.0
        best = np.argsort(-weights, kind="stable")[:n]
        made.append([(str(terms[i]), float(weights[i])) for i in best if weights[i] > 0])
    return made


def _log_odds(here: NDArray[np.float64], total: NDArray[np.float64]) -> NDArray[np.float64]:
    """[V] z-scores of the words of a cluster, counted ``here`` [V], against the rest of ``total`` [V]."""
    ours, theirs = here + total, 2 * total - here  # with the prior, which is the total
    odds_ours = np.log(ours) - np.log(np.maximum(ours.sum() - ours, 0.5))  # 0.5: there is but one word
    odds_theirs = np.log(theirs) - np.log(np.maximum(theirs.sum() - theirs, 0.5))
    scores: NDArray[np.float64] = (odds_ours - odds_theirs) / np.sqrt(1 / ours + 1 / theirs)
    return scores
