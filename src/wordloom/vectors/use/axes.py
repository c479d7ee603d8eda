"""Project words on named axes: toward one word, or from one word to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError
from wordloom.vectors.store.keyed import KeyedVectors
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
