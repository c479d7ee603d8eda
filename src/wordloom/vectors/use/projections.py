"""Projections of words: on named axes, and on a plane with their neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError, WordloomError, did_you_mean
from wordloom.vectors.store.keyed import KeyedVectors
from wordloom.vectors.store.refusals import UnknownWordError
from wordloom.vectors.store.word_store import Key, Vector


class Axis(NamedTuple):
    """A direction named by words: toward the mean of ``toward``, and away from the mean of ``away``, if
    given.

    From male to female is an example.  Several words a side make the direction more robust.
    """

    toward: tuple[str, ...]
    away: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name: ``female``, or ``male → female``."""
        sides = [" + ".join(words) for words in (self.away, self.toward) if words]
        return " → ".join(sides)

    def direction(self, vectors: KeyedVectors) -> Vector:
        """Return mean(toward) - mean(away) [D] of vectors scaled to length 1, scaled to length 1 too.

        Raises:
            UnknownWordError: a word has no vector.
            VectorError: ``toward`` is empty, or both sides are equal.
        """
        direction = vectors.get_mean_vector(self.toward, ignore_missing=False)
        if self.away:
            direction = direction - vectors.get_mean_vector(self.away, ignore_missing=False)
        length = np.linalg.norm(direction)
        if length < 1e-6:  # differences of unit vectors are far longer
            raise VectorError(
                f"the axis {self.name!r} has no direction: its sides are equal; give other words"
            )
        return (direction / length).astype(np.float32)


def parse_axes(
    vectors: KeyedVectors, *, toward: Sequence[str] = (), start: Sequence[str] = (), end: Sequence[str] = ()
) -> list[Axis]:
    """Parse axes from the command line: commas separate axes, and + joins words of one side.

    ``toward=["newborn,human"]`` are two axes; ``start=["man+he"], end=["woman+she"]`` is one.

    Raises VectorError if ``start`` and ``end`` do not have the same number of axes, or there are none.
    """
    axes = [Axis(side) for side in _sides(vectors, toward)]
    starts, ends = _sides(vectors, start), _sides(vectors, end)
    if len(starts) != len(ends):
        raise VectorError(
            f"{len(starts)} axes have a start and {len(ends)} an end; give one --to for each --from (commas "
            "separate axes, and + joins words of one side)"
        )
    axes += [Axis(ahead, behind) for behind, ahead in zip(starts, ends, strict=True)]
    if not axes:
        raise VectorError("no axis is given; give --toward, or --from and --to")
    return axes


def _sides(vectors: KeyedVectors, given: Sequence[str]) -> list[tuple[str, ...]]:
    names = [name for text in given for name in ([text] if text in vectors.key_to_index else text.split(","))]
    sides = [(name,) if name in vectors.key_to_index else tuple(name.split("+")) for name in names]
    if not all(word for side in sides for word in side):
        raise VectorError(f"a word is missing in {', '.join(map(repr, given))}; write a word in each place")
    return sides


def project(vectors: KeyedVectors, words: Sequence[Key], axes: Sequence[Axis]) -> NDArray[np.float32]:
    """Return the cosines [n, axes] of n words with each axis: 1 along it, 0 across it, -1 against it.

    Bolukbasi et al. 2016, arXiv:1607.06520, project words on the direction from he to she in this way.

    Raises:
        UnknownWordError: a word has no vector.
        VectorError: there are no axes, or one has no direction.
    """
    if not axes:
        raise VectorError("there is no axis; give one or more")
    directions = np.stack([axis.direction(vectors) for axis in axes])  # [axes, D]
    units = np.stack([vectors.get_vector(word, norm=True) for word in words])  # [n, D]
    return units @ directions.T


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
        raise WordloomError("t-SNE needs scikit-learn: pip install scikit-learn") from None
    if len(units) < 4:
        raise VectorError(f"t-SNE needs four words or more, not {len(units)}; give more, or use pca")
    # Perplexity is the effective number of neighbours: with few words, a third of them.
    perplexity = min(30.0, (len(units) - 1) / 3)
    distances = np.clip(1 - units @ units.T, 0, 2)
    np.fill_diagonal(distances, 0)
    tsne = TSNE(metric="precomputed", init="random", perplexity=perplexity, random_state=seed)
    points: Points = tsne.fit_transform(distances).astype(np.float64)
    return principal_components(points)[0]  # rotated, so that the map is wider than high
