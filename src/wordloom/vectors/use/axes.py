"""Words on named directions: how far each lies toward one word, or from one word to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError
from wordloom.vectors.store.keyed import Key, KeyedVectors, Vector

__all__ = ["Axis", "parse_axes", "project"]


class Axis(NamedTuple):
    """A direction among the vectors, named by words: toward the mean of ``toward``, and away from that of
    ``away`` where there is any (from male to female; several words make the direction steadier)."""

    toward: tuple[str, ...]
    away: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``female``, or ``male → female``."""
        sides = [" + ".join(words) for words in (self.away, self.toward) if words]
        return " → ".join(sides)

    def direction(self, vectors: KeyedVectors) -> Vector:
        """[D] of length 1: mean(toward), or mean(toward) - mean(away), of vectors of length 1 each.

        Raises:
            UnknownWordError: a word has no vector.
            VectorError: no word is given to go toward, or the two sides are the same.
        """
        direction = vectors.get_mean_vector(self.toward, ignore_missing=False)
        if self.away:
            direction = direction - vectors.get_mean_vector(self.away, ignore_missing=False)
        length = np.linalg.norm(direction)
        if length < 1e-6:  # means of vectors of length 1
            raise VectorError(f"the axis {self.name!r} has no direction: its sides are alike; give others")
        return (direction / length).astype(np.float32)


def parse_axes(
    vectors: KeyedVectors, *, toward: Sequence[str] = (), start: Sequence[str] = (), end: Sequence[str] = ()
) -> list[Axis]:
    """Axes as people write them: a comma between axes, a plus between words that name one side together.

    ``toward=["newborn,human"]`` are two axes; ``start=["man+he"], end=["woman+she"]`` is one.

    Raises VectorError when ``start`` and ``end`` do not come in pairs, or nothing is named.
    """
    axes = [Axis(side) for side in _sides(vectors, toward)]
    starts, ends = _sides(vectors, start), _sides(vectors, end)
    if len(starts) != len(ends):
        raise VectorError(
            f"an axis goes from something to something: {len(starts)} are named to come from and {len(ends)} "
            "to go to; name as many (a comma stands between axes, a + between words of one side)"
        )
    axes += [Axis(ahead, behind) for behind, ahead in zip(starts, ends, strict=True)]
    if not axes:
        raise VectorError("no axis is named; say which word it goes toward, or from which to which")
    return axes


def _sides(vectors: KeyedVectors, given: Sequence[str]) -> list[tuple[str, ...]]:
    names = [name for text in given for name in ([text] if text in vectors.key_to_index else text.split(","))]
    sides = [(name,) if name in vectors.key_to_index else tuple(name.split("+")) for name in names]
    if not all(word for side in sides for word in side):
        raise VectorError(f"an axis in {', '.join(map(repr, given))} has no name; write a word in each place")
    return sides


def project(vectors: KeyedVectors, words: Sequence[Key], axes: Sequence[Axis]) -> NDArray[np.float32]:
    """[n, axes] cosines of n words with each axis: 1 along it, 0 across, -1 against it.

    (Bolukbasi et al. 2016, arXiv:1607.06520, project words so on the direction from he to she.)

    Raises:
        UnknownWordError: a word has no vector.
        VectorError: there are no axes, or one has no direction.
    """
    if not axes:
        raise VectorError("there is no axis to project words on; give one or more")
    directions = np.stack([axis.direction(vectors) for axis in axes])  # [axes, D]
    units = np.stack([vectors.get_vector(word, norm=True) for word in words])  # [n, D]
    return units @ directions.T
