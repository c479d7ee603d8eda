"""WordStore: words, their vectors and other attributes; the base of :class:`KeyedVectors`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from wordloom.errors import VectorError
from wordloom.vectors.store.refusals import QuestionError, UnknownAttributeError, UnknownWordError, near_words

Vector: TypeAlias = NDArray[np.float32]
Key: TypeAlias = "str | int"


class WordStore:
    """V words with a vector of D components each.

    Attributes:
        index_to_key: the V words, in order of falling frequency if it is known.
        key_to_index: word -> row.
        vectors: [V, D] float32, in memory or memory-mapped; writable if the original array is.  After
            changing numbers in it, call ``fill_norms(force=True)``.
        counts: [V] int64, the count of each word in training, or None.
        norms: [V], the lengths of the vectors.
        expandos: attribute -> [V]; :meth:`set_vecattr` writes them.
    """

    # ``vectors`` when their lengths were computed, the lengths, and the lengths with 1 instead of 0
    _measured: tuple[Vector, Vector, Vector] | None = None

    def __init__(
        self,
        words: Iterable[str] | int | None = None,
        vectors: ArrayLike | None = None,
        dtype: DTypeLike = np.float32,
        *,
        counts: NDArray[np.int64] | None = None,
        check: bool = True,
        vector_size: int | None = None,
        count: int = 0,
    ) -> None:
        """Take V ``words`` and ``vectors`` [V, D], which are copied only to convert them to float32.

        ``KeyedVectors(D)`` or ``KeyedVectors(vector_size=D)``, as in gensim, has no words at first;
        :meth:`add_vectors` adds them.  gensim's ``count`` and ``dtype`` are accepted at their defaults only.

        Raises:
            VectorError: the sizes differ or are 0, a word occurs twice, or a vector is not finite
                (``check=False`` skips this check, which reads all vectors).
        """
        if isinstance(words, int) and vectors is not None and np.asarray(vectors).ndim == 0:
            vectors, count = None, int(np.asarray(vectors))  # gensim's second argument
        if count or np.dtype(dtype) != np.float32:
            raise VectorError(
                "give words with their vectors, or only a number of components: vectors are float32, and "
                "add_vectors allocates what it needs"
            )
        if vectors is None:
            size = words if isinstance(words, int) else vector_size if words is None else None
            if size is None or size < 1:
                raise VectorError("give words with their vectors, or the number of components")
            self._keep([], np.empty((0, size), dtype=np.float32), {})
            return
        if words is None or isinstance(words, int) or vector_size is not None:
            raise VectorError("give words with their vectors, or a number of components, not both")
        array = np.asarray(vectors)
        self._take_words(words, array, counts)
        self.vectors: Vector = array if array.dtype == np.float32 else array.astype(np.float32)
        if check:
            self._refuse_non_finite()

    def _take_words(
        self, words: Iterable[str], vectors: NDArray[Any], counts: NDArray[np.int64] | None
    ) -> None:
        """Take ``words`` and ``counts``, whose number must be that of ``vectors``."""
        self.index_to_key = list(words)
        if vectors.ndim != 2 or len(vectors) != len(self.index_to_key):
            raise VectorError(
                f"there are {len(self.index_to_key)} words and vectors of shape {vectors.shape}; "
                "give one row for each word"
            )
        if not vectors.size:
            raise VectorError("there are no vectors here; give at least one word with one component")
        if counts is not None and len(counts) != len(self.index_to_key):
            raise VectorError(f"{len(self.index_to_key)} words have {len(counts)} counts; give one for each")
        self.key_to_index = {word: row for row, word in enumerate(self.index_to_key)}
        if len(self.key_to_index) != len(self.index_to_key):
            # key_to_index has the last row of each word
            first = next(r for r, word in enumerate(self.index_to_key) if self.key_to_index[word] != r)
            word = self.index_to_key[first]
            again = self.index_to_key.index(word, first + 1)
            raise VectorError(
                f"the word {word!r} occurs twice, as number {first + 1:,} and {again + 1:,}; keep one"
            )
        self.expandos: dict[str, NDArray[Any]] = {}
        if counts is not None:
            self.expandos["count"] = np.array(counts, dtype=np.int64)

    def _refuse_non_finite(self) -> None:
        with np.errstate(invalid="ignore"):  # inf - inf
            if np.isfinite(self.vectors.sum(dtype=np.float64)):  # non-finite if any number is
                return
        bad = np.flatnonzero(~np.isfinite(self.vectors).all(axis=1))
        if len(bad):
            others = f", nor are those of {len(bad) - 1:,} other words" if len(bad) > 1 else ""
            raise VectorError(
                f"the vector of {self.index_to_key[bad[0]]!r} (word number {bad[0] + 1:,}) is not finite"
                f"{others}; remove these words"
            )

    def __len__(self) -> int:
        return len(self.index_to_key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} words, {self.vector_size} components)"

    @property
    def vector_size(self) -> int:
        """The number of components D."""
        return int(self.vectors.shape[1])

    @property
    def counts(self) -> NDArray[np.int64] | None:
        """The count of each word in training [V], or None."""
        return self.expandos.get("count")

    # -- lengths ---------------------------------------------------------------------------------------

    @property
    def norms(self) -> Vector:
        """The lengths of the vectors [V].  Assign None to have them computed again."""
        return self._lengths()[1]

    @norms.setter
    def norms(self, known: Vector | None) -> None:
        self._measured = None if known is None else (self.vectors, known, nonzero(known))

    @property
    def _divisors(self) -> Vector:
        """The lengths of the vectors [V], with 1 instead of 0."""
        return self._lengths()[2]

    def _lengths(self) -> tuple[Vector, Vector, Vector]:
        if self._measured is None or self._measured[0] is not self.vectors:
            measured = lengths(self.vectors)
            self._measured = self.vectors, measured, nonzero(measured)
        return self._measured

    def fill_norms(self, force: bool = False) -> None:
        """Compute the lengths of the vectors; ``force`` computes them again after changes in ``vectors``."""
        if force:
            self._measured = None
        self._lengths()

    def get_normed_vectors(self) -> Vector:
        """Return a copy of the vectors [V, D], each scaled to length 1."""
        return self.vectors / self._divisors[:, None]

    def unit_normalize_all(self) -> None:
        """Scale all vectors to length 1 in place."""
        self.vectors = self.get_normed_vectors()

    # -- words to vectors ------------------------------------------------------------------------------

    def _row(self, key: object) -> int | None:
        """Return the row of a word or of a row's number, or None."""
        if isinstance(key, str):
            return self.key_to_index.get(key)
        return int(key) if isinstance(key, int | np.integer) and 0 <= key < len(self) else None

    def get_index(self, key: Key, default: int | None = None) -> int:
        """Return the row of ``key``, or ``default`` if there is none.

        Raises:
            UnknownWordError: there is no row and no default.  The message suggests similar words.
        """
        row = self._row(key)
        if row is None:
            row = default
        if row is None:
            raise UnknownWordError(key, lambda: self._hint(key))
        return row

    def has_index_for(self, key: object) -> bool:
        """Return whether ``key`` is one of the V words, or the number of a row."""
        return self._row(key) is not None

    def __contains__(self, key: object) -> bool:
        return self.has_index_for(key)

    def __getitem__(self, key_or_keys: Key | Iterable[Key]) -> Vector:
        """Return the read-only vector [D] of a word, or the vectors [n, D] of several words.

        Raises UnknownWordError if a word has no vector.
        """
        if isinstance(key_or_keys, Iterable) and not isinstance(key_or_keys, str | bytes):
            return self._several(key_or_keys)
        return self.get_vector(key_or_keys)  # type: ignore[arg-type]  # bytes, which it refuses

    def get_vector(self, key: Key, norm: bool = False) -> Vector:
        """Return the read-only vector [D] of a word, scaled to length 1 if ``norm``."""
        row = self.get_index(key)
        vector = self.vectors[row] / self._divisors[row] if norm else self.vectors[row]
        vector.setflags(write=False)  # it may be a view of ``vectors``
        return vector

    def _several(self, keys: Iterable[Key]) -> Vector:
        """Return the vectors [n, D] of ``keys``."""
        return self.vectors[np.array([self.get_index(key) for key in keys], dtype=np.intp)]

    def _hint(self, key: object) -> str:
        among = f" of {len(self):,} words; "
        if isinstance(key, str):
            near = self._near(key)
            meant = f"; did you mean {' or '.join(map(repr, near))}?"
            return meant if near else f" of {len(self):,} words"
        if isinstance(key, int | np.integer):
            return f"{among}a number must be a row, 0 to {len(self) - 1:,}"
        return f"{among}give a word or the number of a row; queries also take a vector as a numpy array"

    def _near(self, key: str) -> list[str]:
        return near_words(key, self.index_to_key, self.key_to_index)

    # -- attributes of words ---------------------------------------------------------------------------

    def get_vecattr(self, key: Key, attr: str) -> Any:
        """Return an attribute of a word.  ``"count"`` is its count in training.

        Raises UnknownAttributeError if no word has this attribute.
        """
        return self._attribute(attr)[self.get_index(key)]

    def _attribute(self, attr: str) -> NDArray[Any]:
        if attr not in self.expandos:
            names = ", ".join(map(repr, self.expandos)) or "none"
            raise UnknownAttributeError(f"these words have no attribute {attr!r}; attributes: {names}")
        return self.expandos[attr]

    def set_vecattr(self, key: Key, attr: str, val: Any) -> None:
        """Set an attribute of a word.  The first value decides the type of the attribute."""
        row = self.get_index(key)
        kind = np.dtype({int: np.int64, str: object}.get(type(val), type(val)))
        if attr not in self.expandos:
            self.expandos[attr] = np.zeros(len(self), dtype=kind)
        column = self.expandos[attr]
        if not np.issubdtype(kind, column.dtype):
            raise QuestionError(f"{attr!r} holds {column.dtype} and {val!r} is {kind}; use another name")
        column[row] = val

    # -- more words ------------------------------------------------------------------------------------

    def add_vector(self, key: str, vector: ArrayLike) -> int:
        """Add one word with :meth:`add_vectors`, which copies all vectors, and return its row."""
        self.add_vectors([key], np.asarray(vector)[None])
        return self.key_to_index[key]

    def add_vectors(
        self,
        keys: str | Sequence[str],
        weights: ArrayLike,
        extras: Mapping[str, NDArray[Any]] | None = None,
        replace: bool = False,
    ) -> None:
        """Append words and their vectors, in a copy of ``vectors``.

        Args:
            keys: n words, or one.
            weights: their vectors [n, D], or [D] of one.
            extras: attribute -> [n] values.  Other attributes of new words are 0.
            replace: overwrite the vectors and attributes of words that exist already.

        Raises QuestionError if the sizes differ, a word occurs twice, or a vector is not finite.
        """
        keys = [keys] if isinstance(keys, str | int) else list(keys)
        vectors = self._checked(keys, weights)
        columns = {attr: _column(attr, values, len(keys)) for attr, values in (extras or {}).items()}
        new = [key for key in keys if key not in self.key_to_index]
        rows = {key: row for row, key in enumerate(new, len(self))}
        used = [place for place, key in enumerate(keys) if replace or key in rows]
        places = [rows[key] if key in rows else self.key_to_index[key] for key in (keys[at] for at in used)]

        def extended(old: NDArray[Any], values: NDArray[Any] | None) -> NDArray[Any]:
            column = np.concatenate([old, np.zeros((len(new), *old.shape[1:]), dtype=old.dtype)])
            if values is not None:
                column[places] = values[used]
            return column

        before = {attr: np.zeros(len(self), dtype=values.dtype) for attr, values in columns.items()}
        before |= self.expandos
        expandos = {attr: extended(old, columns.get(attr)) for attr, old in before.items()}
        self._keep(self.index_to_key + new, extended(self.vectors, vectors), expandos)

    def _checked(self, keys: Sequence[object], weights: ArrayLike) -> Vector:
        """Return the vectors [n, D] of n new words."""
        odd = [key for key in keys if not isinstance(key, str)]
        if odd:
            raise QuestionError(f"a word must be a str, and {odd[0]!r} is a {type(odd[0]).__name__}")
        if (different := len(set(keys))) < len(keys):
            raise QuestionError(f"only {different} of {len(keys)} words are distinct; keep one of each")
        rows = as_vectors(weights)
        rows = rows[None] if rows.ndim == 1 and len(keys) == 1 else rows
        if rows.shape != (len(keys), self.vector_size):
            raise QuestionError(
                f"the vectors have the shape {rows.shape}; give [{len(keys)}, {self.vector_size}]"
            )
        return rows

    def __setitem__(self, keys: str | Sequence[str], weights: ArrayLike) -> None:
        self.add_vectors(keys, weights, replace=True)

    def sort_by_descending_frequency(self) -> None:
        """Sort the words by falling count.  Ties are in reverse order, as in gensim."""
        counts = self._attribute("count")
        order = np.lexsort((-np.arange(len(counts)), -counts))
        words = [self.index_to_key[row] for row in order]
        kept = {attr: column[order] for attr, column in self.expandos.items()}
        self._keep(words, self.vectors[order], kept)

    def _keep(self, words: list[str], vectors: Vector, expandos: dict[str, NDArray[Any]]) -> None:
        self.index_to_key = words
        self.key_to_index = {word: row for row, word in enumerate(words)}
        self.vectors = vectors
        self.expandos = expandos


def _column(attr: str, values: ArrayLike, n: int) -> NDArray[Any]:
    column = np.asarray(values)
    if column.shape != (n,):
        raise QuestionError(f"{n} words have {attr!r} of shape {column.shape}; give one for each")
    return column


def as_vectors(given: ArrayLike) -> Vector:
    """Return numbers of any kind as float32; raise QuestionError for other values and non-finite numbers."""
    try:
        vectors = np.asarray(given, dtype=np.float32)
    except (TypeError, ValueError):
        raise QuestionError(f"a vector must be numbers, not {type(given).__name__}; give an array") from None
    if not np.isfinite(vectors).all():
        raise QuestionError("a vector is not finite, so nothing is near it")
    return vectors


def lengths(vectors: Vector) -> Vector:
    """Return the lengths [n] of vectors [n, D]."""
    return np.sqrt(np.einsum("vd,vd->v", vectors, vectors))


def nonzero(lengths: Vector) -> Vector:
    """Return ``lengths`` with 1 instead of 0."""
    return np.where(lengths > 0, lengths, np.float32(1))


def whole_number(given: object, name: str) -> int:
    """Return ``given`` as an int; raise QuestionError if it is not a whole number."""
    try:
        return operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        raise QuestionError(f"{name} {given!r} is not a whole number; give one") from None
