"""KeyedVectors: words and their vectors, with the method names of gensim 4's ``KeyedVectors``.

Code written for gensim's class runs here and gets the same answers.  ``docs/word-vectors.md`` lists where the
two differ.  The main differences are:

* An unknown word raises a KeyError whose message suggests similar words.
* A question without a meaningful answer raises :class:`QuestionError`, a ValueError, where gensim raises
  several kinds of errors or returns NaN.
* A zero vector has the cosine 0 with every vector.  Ties are in vocabulary order.
* Words are strings, vectors are float32, and single numbers are Python floats.
* Files are read completely or refused.  Pickles are never read.
* Names that gensim removed, and a few others, raise an AttributeError that names the replacement
  (:data:`wordloom.vectors.store.refusals.NOT_HERE`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import DTypeLike

from wordloom.errors import VectorError
from wordloom.vectors.store.evaluation import evaluate_word_analogies, evaluate_word_pairs
from wordloom.vectors.store.questions import Questions
from wordloom.vectors.store.refusals import NOT_HERE, QuestionError
from wordloom.vectors.store.word_store import Key, Vector


class KeyedVectors(Questions):
    """V words with one vector of D components each.

    Every method that takes a word also takes the number of its row.  :class:`WordStore` lists the attributes.
    """

    evaluate_word_analogies = evaluate_word_analogies
    evaluate_word_pairs = evaluate_word_pairs

    if not TYPE_CHECKING:  # mypy would otherwise accept every attribute name

        def __getattr__(self, name):
            advice = f": {NOT_HERE[name]}" if name in NOT_HERE else ""
            raise AttributeError(f"{type(self).__name__} has no {name!r}{advice}", name=name, obj=self)

    # -- folders and files -----------------------------------------------------------------------------
    # gensim has these as methods.  The file formats build KeyedVectors, so the methods look the functions up
    # in the package's public names when they are called.

    def save(self, fname_or_handle: str | os.PathLike[str]) -> None:
        """Write words, vectors and counts to a folder with :func:`wordloom.vectors.save_vectors`.

        Warns if there are attributes other than the count, which the folder does not keep.
        """
        from wordloom.vectors import save_vectors

        if not len(self):
            raise VectorError("there are no vectors to save; add some first")
        if lost := [attr for attr in self.expandos if attr != "count"]:
            warnings.warn(f"a folder of vectors does not keep {', '.join(map(repr, lost))}", stacklevel=2)
        save_vectors(self, fname_or_handle)

    @classmethod
    def load(cls, fname: str | os.PathLike[str], mmap: Literal["r", "c"] | None = None) -> Self:
        """Open a folder that :meth:`save` wrote, or a file, with :func:`wordloom.vectors.load_vectors`.

        Args:
            fname: the folder or file.
            mmap: ``"r"`` keeps ``vectors`` memory-mapped and read-only.  Otherwise they are read into memory.

        Raises VectorError if there are no vectors, or they are not of this class.
        """
        from wordloom.vectors import load_vectors

        if mmap not in (None, "r", "c"):
            raise VectorError(f"mmap {mmap!r} would write to the folder; use 'r', or None to read it")
        loaded = load_vectors(fname)
        if not isinstance(loaded, cls):
            kind = type(loaded).__name__
            raise VectorError(f"'{fname}' holds {kind}, not {cls.__name__}; open it with {kind}.load")
        if mmap != "r" and "vectors" in vars(loaded):  # FastTextVectors compute them on first use
            loaded.vectors = np.array(loaded.vectors)
        return loaded

    def save_word2vec_format(
        self,
        fname: str | os.PathLike[str],
        fvocab: str | os.PathLike[str] | None = None,
        binary: bool = False,
        total_vec: int | None = None,
        write_header: bool = True,
        prefix: str = "",
        append: bool = False,
        sort_attr: str = "count",
    ) -> None:
        """Write word2vec's text or binary format with :func:`wordloom.vectors.save_word2vec`.

        Args:
            fname, binary, write_header, prefix: see there; ``write_header`` is its ``header``.
            fvocab: a file for lines of a word and its ``sort_attr``.
            total_vec, append: accepted at their defaults only.
            sort_attr: the attribute that sorts the words in descending order, if they have it.

        Raises:
            VectorError: see there; or ``fvocab`` is given and the words have no ``sort_attr``.
        """
        from wordloom.vectors import save_word2vec, write_word_counts

        if append or total_vec not in (None, len(self)):
            raise QuestionError("a file of vectors is written completely: leave out total_vec and append")
        if fvocab is not None and sort_attr not in self.expandos:
            raise QuestionError(f"these words have no {sort_attr!r} to write; leave out fvocab")
        order = None
        if sort_attr in self.expandos:
            order = np.argsort(-self.expandos[sort_attr], kind="stable")
        save_word2vec(self, fname, binary=binary, header=write_header, order=order, prefix=prefix)
        if fvocab is not None and order is not None:
            words = (prefix + self.index_to_key[row] for row in order)
            write_word_counts(fvocab, words, self.expandos[sort_attr][order])

    @classmethod
    def load_word2vec_format(
        cls,
        fname: str | os.PathLike[str],
        fvocab: str | os.PathLike[str] | None = None,
        binary: bool = False,
        encoding: str = "utf8",
        unicode_errors: str = "strict",
        limit: int | None = None,
        datatype: DTypeLike = np.float32,
        no_header: bool = False,
    ) -> KeyedVectors:
        """Read word2vec's text or binary, or GloVe's text, with :func:`wordloom.vectors.load_word2vec`.

        Args:
            fname, binary, limit, unicode_errors: see there.
            fvocab: a file with lines of a word and its count.
            encoding, datatype: accepted at their defaults only.
            no_header: the first line belongs to a word, as in GloVe's files.
        """
        from wordloom.vectors import load_word2vec, read_word_counts

        if encoding.lower().replace("_", "-") not in ("utf8", "utf-8"):
            raise QuestionError(f"files of vectors must be UTF-8, not {encoding}; convert the file")
        if np.dtype(datatype) != np.float32:
            raise QuestionError(f"vectors are float32, not {np.dtype(datatype)}; leave out datatype")
        if binary and no_header:
            raise QuestionError("word2vec's binary format has a first line; leave out no_header")
        loaded = load_word2vec(
            fname, binary=binary, header=not no_header, limit=limit, unicode_errors=unicode_errors
        )
        if fvocab is not None:
            counts = read_word_counts(fvocab, loaded.index_to_key)
            loaded.expandos["count"] = np.array(list(counts.values()), dtype=np.int64)
        return loaded

    def vectors_for_all(
        self, keys: Iterable[Key], allow_inference: bool = True, copy_vecattrs: bool = False
    ) -> KeyedVectors:
        """Return the words of ``keys`` that have vectors, without duplicates, as new KeyedVectors.

        Args:
            keys: words.
            allow_inference: also include words outside the vocabulary that have a vector (fastText).
            copy_vecattrs: copy the attributes, including the count, of words in the vocabulary.
        """
        known = self if allow_inference else self.key_to_index
        names = (
            self.index_to_key[key] if isinstance(key, int | np.integer) and key in self else key
            for key in keys
        )
        words = [word for word in dict.fromkeys(names) if isinstance(word, str) and word in known]
        subset = KeyedVectors(vector_size=self.vector_size)
        subset.add_vectors(words, self._several(words))
        if copy_vecattrs:
            rows = {place: row for place, word in enumerate(words) if (row := self._row(word)) is not None}
            for attr, column in self.expandos.items():
                subset.expandos[attr] = np.zeros(len(words), dtype=column.dtype)
                subset.expandos[attr][list(rows)] = column[list(rows.values())]
        return subset

    # -- deprecated names that gensim 4 keeps ----------------------------------------------------------

    def word_vec(self, *args: Any, **kwargs: Any) -> Vector:
        """Call :meth:`get_vector`."""
        _warn_deprecated("word_vec", "get_vector")
        return self.get_vector(*args, **kwargs)

    def words_closer_than(self, word1: Key, word2: Key) -> list[str]:
        """Call :meth:`closer_than`."""
        _warn_deprecated("words_closer_than", "closer_than")
        return self.closer_than(word1, word2)

    def init_sims(self, replace: bool = False) -> None:
        """Call :meth:`fill_norms` and, if ``replace``, :meth:`unit_normalize_all`."""
        _warn_deprecated("init_sims", "fill_norms")
        self.fill_norms()
        if replace:
            self.unit_normalize_all()


def _warn_deprecated(name: str, new: str) -> None:
    warnings.warn(f"{name} is deprecated; call {new}", DeprecationWarning, stacklevel=3)
