"""Two-dimensional maps of words and their neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError, WordloomError, did_you_mean
from wordloom.vectors.store.keyed import KeyedVectors
from wordloom.vectors.store.refusals import UnknownWordError

Method = Literal["pca", "tsne"]
Points = NDArray[np.float64]

METHODS = ("pca", "tsne")


@dataclass(frozen=True)
class WordMap:
    """A map of n words.

    Attributes:
        words: the queried words, then their neighbours.
        points: [n, 2] float64.
        groups: [n] int64, for each word the index in ``asked`` of the nearest queried word.
        asked: the queried words.
        neighbours: queried word -> its neighbours as (word, cosine), nearest first.
        method: ``pca`` or ``tsne``.
        explained: the share of the variance along each of the two directions, for ``pca``.
    """

    words: list[str]
    points: Points
    groups: NDArray[np.int64]
    asked: list[str]
    neighbours: dict[str, list[tuple[str, float]]] = field(repr=False)
    method: str
    explained: tuple[float, float] | None


def word_map(
    vectors: KeyedVectors,
    words: Sequence[str],
    *,
    topn: int = 8,
    restrict_vocab: int | None = None,
    method: Method = "pca",
    seed: int = 0,
) -> WordMap:
    """Map ``words`` and the ``topn`` neighbours of each to two dimensions, by vectors scaled to length 1.

    ``pca`` projects on the first two principal components.  ``tsne`` (van der Maaten & Hinton 2008, with
    scikit-learn and cosine distances, started from ``seed``) keeps neighbours together; other distances in
    its map have no meaning.

    Raises:
        UnknownWordError: a word has no vector.
        VectorError: no word is given, the method is unknown, or ``tsne`` has fewer than four words.
        WordloomError: ``tsne`` without scikit-learn.
    """
    if method not in METHODS:
        raise VectorError(f"unknown method {method!r}; {did_you_mean(method, METHODS)}")
    if not words:
        raise VectorError("a map needs words; give one or more")
    asked = list(dict.fromkeys(_name(vectors, word) for word in words))
    neighbours = {
        word: vectors.most_similar(word, topn=topn, restrict_vocab=restrict_vocab) for word in asked
    }
    group: dict[str, tuple[float, int]] = {word: (np.inf, place) for place, word in enumerate(asked)}
    for place, word in enumerate(asked):
        for near, cosine in neighbours[word]:
            if near not in group or cosine > group[near][0]:
                group[near] = (cosine, place)
    shown = list(group)
    units = np.stack([vectors.get_vector(word, norm=True) for word in shown]).astype(np.float64)
    points, explained = (
        principal_components(units) if method == "pca" else (neighbour_embedding(units, seed), None)
    )
    groups = np.array([place for _, place in group.values()], dtype=np.int64)
    return WordMap(shown, points, groups, asked, neighbours, method, explained)


def _name(vectors: KeyedVectors, word: str) -> str:
    """Return the name of the row of ``word``; with fastText, an unseen word is returned unchanged."""
    try:
        return vectors.index_to_key[vectors.get_index(word)]
    except UnknownWordError:
        vectors.get_vector(word)
        return word


def principal_components(units: Points) -> tuple[Points, tuple[float, float]]:
    """Return coordinates [n, 2] along the first two principal components, and their shares of the
    variance.
    """
    centred = units - units.mean(axis=0)
    _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
    lengths = np.append(lengths, [0.0, 0.0])[: max(2, len(lengths))]
    directions = np.concatenate([directions, np.zeros((2, units.shape[1]))])[:2]
    # The sign of a singular vector is arbitrary; fix it, so that the map is the same on every machine.
    largest = directions[range(2), np.abs(directions).argmax(axis=1)]
    directions *= np.where(largest < 0, -1.0, 1.0)[:, None]
    shares = lengths[:2] ** 2 / (np.sum(lengths**2) or 1.0)
    return centred @ directions.T, (float(shares[0]), float(shares[1]))


def neighbour_embedding(units: Points, seed: int) -> Points:
    """Return coordinates [n, 2] of t-SNE."""
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise WordloomError("t-SNE needs scikit-learn: pip install 'wordloom[plots]'") from None
    if len(units) < 4:
        raise VectorError(f"t-SNE needs four words or more, not {len(units)}; give more, or use pca")
    # Perplexity is the effective number of neighbours: with few words, a third of them.
    perplexity = min(30.0, (len(units) - 1) / 3)
    distances = np.clip(1 - units @ units.T, 0, 2)
    np.fill_diagonal(distances, 0)
    tsne = TSNE(metric="precomputed", init="random", perplexity=perplexity, random_state=seed)
    points: Points = tsne.fit_transform(distances).astype(np.float64)
    return principal_components(points)[0]  # rotated, so that the map is wider than high
