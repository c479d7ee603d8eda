"""KeyedVectors: words, their vectors, and the questions people ask of them, by the names gensim's users know.

What is written for gensim 4's ``KeyedVectors`` runs on these as it is and gets the same answers, but:

* An unknown word's error, a KeyError, says which words come near.  ``doesnt_match`` and
  ``rank_by_centrality`` leave such words out with a warning, not with a line in a log.
* A question that makes no sense is a :class:`QuestionError`, a ValueError, with one line, where gensim raises
  ValueError and also where it stumbles on a TypeError, IndexError or ZeroDivisionError, or answers NaN.
  ``restrict_vocab=0`` is one, where gensim looks at all words.
* A vector of length 0 is at cosine 0 to everything, where gensim's is NaN.  Words equally near come in the
  order of the vocabulary.  The vectors of no words, ``wv[[]]``, are none, of shape [0, D].  A single number
  is Python's float, not numpy's.
* ``most_similar_cosmul`` keeps to ``restrict_vocab`` and takes numbers of rows, ``evaluate_word_analogies``
  keeps to ``similarity_function``: gensim takes these and does something else.
* Words are texts and vectors float32.  Counts are there where they are known: ``load_word2vec_format`` and
  ``vectors_for_all`` make up none, and ``get_vecattr(word, "count")`` is a KeyError then.
* Files are taken whole or refused.  A line that is no question, or no pair, is an error with its number; so
  is a word that stands twice in a file of vectors, or twice in ``add_vectors``.  Files of vectors and of
  analogies are UTF-8; pairs may come in another ``encoding``.
* ``save`` writes a folder (:func:`wordloom.vectors.save_vectors`), and ``load`` opens that or a file of
  vectors.  Pickles are never read.  ``save_word2vec_format`` takes no ``total_vec`` and no ``append``.
* ``add_vectors`` and ``wv[word] = vector`` change the answers at once.  gensim keeps old lengths until
  ``fill_norms(force=True)``, which is needed here after numbers in ``vectors`` itself are changed.
* ``KeyedVectors(words, vectors)`` makes one; so does gensim's ``KeyedVectors(vector_size)``, without
  ``count``, ``dtype`` and ``mapfile_path``, and with words added by ``add_vectors``.
* ``wmdistance`` needs no further package, and texts whose words have the same vectors are at 0, not infinity.
* Names that gensim removed, that serve its training or its log, and a few more say what to use instead
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
from wordloom.vectors.store.questions import Questions
from wordloom.vectors.store.refusals import NOT_HERE, QuestionError, UnknownWordError
from wordloom.vectors.store.word_store import Key, Vector

if TYPE_CHECKING:
    from wordloom.vectors.use.evaluation import Agreement, Analogies

__all__ = ["Key", "KeyedVectors", "QuestionError", "UnknownWordError", "Vector"]


class KeyedVectors(Questions):
    """V words with a vector of D components each, and the questions people ask of them.

    Wherever a word is asked for, the number of its row will do.

    Attributes:
        index_to_key: the V words, by falling frequency where that is known.
        key_to_index: word -> row.
        vectors: [V, D] float32, in memory or memory-mapped, writable where the array that was given is.
            Whoever changes numbers in it calls ``fill_norms(force=True)`` afterwards.
        counts: [V] int64, how often each word occurred in training, or None.
        norms: [V], the vectors' lengths.
        expandos: attribute -> [V], what ``set_vecattr`` keeps.
    """

    if not TYPE_CHECKING:  # which would take every name for one that is there

        def __getattr__(self, name):
            advice = f": {NOT_HERE[name]}" if name in NOT_HERE else ""
            raise AttributeError(f"{type(self).__name__} has no {name!r}{advice}", name=name, obj=self)

    # -- judgements ------------------------------------------------------------------------------------

    def evaluate_word_analogies(
        self,
        analogies: str | os.PathLike[str],
        restrict_vocab: int | None = 300000,
        case_insensitive: bool = True,
        dummy4unknown: bool = False,
        similarity_function: str = "most_similar",
    ) -> Analogies:
        """See :func:`wordloom.vectors.evaluate_word_analogies`."""
        from wordloom.vectors.use import evaluation as judging

        return judging.evaluate_word_analogies(
            self,
            analogies,
            restrict_vocab=restrict_vocab,
            case_insensitive=case_insensitive,
            dummy4unknown=dummy4unknown,
            similarity_function=similarity_function,
        )

    def evaluate_word_pairs(
        self,
        pairs: str | os.PathLike[str],
        delimiter: str = "\t",
        encoding: str = "utf8",
        restrict_vocab: int | None = 300000,
        case_insensitive: bool = True,
        dummy4unknown: bool = False,
    ) -> Agreement:
        """See :func:`wordloom.vectors.evaluate_word_pairs`."""
        from wordloom.vectors.use import evaluation as judging

        return judging.evaluate_word_pairs(
            self,
            pairs,
            delimiter=delimiter,
            encoding=encoding,
            restrict_vocab=restrict_vocab,
            case_insensitive=case_insensitive,
            dummy4unknown=dummy4unknown,
        )

    # -- folders and files -----------------------------------------------------------------------------

    def save(self, fname_or_handle: str | os.PathLike[str]) -> None:
        """Write words, vectors and counts to a folder, by :func:`wordloom.vectors.save_vectors`.

        Attributes besides the count are not kept, with a warning.
        """
        from wordloom.vectors.files.formats import save_vectors

        if not len(self):
            raise VectorError("there is not a single vector to save; add some first")
        if lost := [attr for attr in self.expandos if attr != "count"]:
            warnings.warn(f"a folder of vectors does not keep {', '.join(map(repr, lost))}", stacklevel=2)
        save_vectors(self, fname_or_handle)

    @classmethod
    def load(cls, fname: str | os.PathLike[str], mmap: Literal["r", "c"] | None = None) -> Self:
        """The vectors of a folder that :meth:`save` wrote, or of a file: see
        :func:`wordloom.vectors.load_vectors`.

        Args:
            fname: the folder or file.
            mmap: ``"r"`` leaves ``vectors`` mapped and not to be written to; otherwise they are read.

        Raises:
            VectorError: there are none, or they are of another kind than the class.
        """
        from wordloom.vectors.files.formats import load_vectors

        if mmap not in (None, "r", "c"):
            raise VectorError(f"mmap {mmap!r} would write to the folder; give 'r', or None to read it")
        found = load_vectors(fname)
        if not isinstance(found, cls):
            kind = type(found).__name__
            raise VectorError(f"'{fname}' holds {kind}, not {cls.__name__}; open it by {kind}.load")
        if mmap != "r" and "vectors" in vars(found):  # else they are made when they are asked for
            found.vectors = np.array(found.vectors)
        return found

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
        """Write word2vec's text or binary, by :func:`wordloom.vectors.save_word2vec`.

        Args:
            fname, binary, write_header: as there; ``write_header`` is its ``header``.
            fvocab: where lines of a word and its ``sort_attr`` go.
            total_vec, append: must be left as they are; a file is written whole.
            prefix: put before each word.
            sort_attr: write the words by this attribute, falling, where there is such a one.

        Raises:
            VectorError: see there; or ``fvocab`` is given and there is no ``sort_attr``.
        """
        from wordloom.vectors.files.word2vec_text import save_word2vec
        from wordloom.vectors.files.word_counts import write_counts

        if append or total_vec not in (None, len(self)):
            raise QuestionError("a file of vectors is written whole: leave total_vec and append as they are")
        if fvocab is not None and sort_attr not in self.expandos:
            raise QuestionError(f"these words have no {sort_attr!r} to write; leave out fvocab")
        order = None
        if sort_attr in self.expandos:
            order = np.argsort(-self.expandos[sort_attr], kind="stable")
        save_word2vec(self, fname, binary=binary, header=write_header, order=order, prefix=prefix)
        if fvocab is not None and order is not None:
            words = (prefix + self.index_to_key[row] for row in order)
            write_counts(fvocab, words, self.expandos[sort_attr][order])

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
        """Read word2vec's text or binary, or GloVe's text, by :func:`wordloom.vectors.load_word2vec`.

        Args:
            fname, binary, limit: as there.
            fvocab: lines of a word and its count.
            unicode_errors: what to do with words that are not UTF-8, as there.
            encoding, datatype: must be left as they are.
            no_header: whether the first line is a word's, as GloVe's tool writes it.
        """
        from wordloom.vectors.files.word2vec_text import load_word2vec
        from wordloom.vectors.files.word_counts import counts_of

        if encoding.lower().replace("_", "-") not in ("utf8", "utf-8"):
            raise QuestionError(
                f"files of vectors are read as UTF-8, not {encoding}; convert the file, or leave out encoding"
            )
        if np.dtype(datatype) != np.float32:
            raise QuestionError(f"vectors are float32 here, not {np.dtype(datatype)}; leave out datatype")
        if binary and no_header:
            raise QuestionError("word2vec's binary format has a first line; leave out no_header")
        found = load_word2vec(
            fname, binary=binary, header=not no_header, limit=limit, unicode_errors=unicode_errors
        )
        if fvocab is not None:
            found.expandos["count"] = np.array(counts_of(found.index_to_key, fvocab), dtype=np.int64)
        return found

    def vectors_for_all(
        self, keys: Iterable[Key], allow_inference: bool = True, copy_vecattrs: bool = False
    ) -> KeyedVectors:
        """The words of ``keys`` that have vectors, each once, and their vectors.

        Args:
            keys: words.
            allow_inference: whether words count that are not among the V and have a vector nevertheless.
            copy_vecattrs: whether attributes, the count among them, come along, for the words of the V.
        """
        known = self if allow_inference else self.key_to_index
        named = (
            self.index_to_key[key] if isinstance(key, int | np.integer) and key in self else key
            for key in keys
        )
        words = [word for word in dict.fromkeys(named) if isinstance(word, str) and word in known]
        some = KeyedVectors(vector_size=self.vector_size)
        some.add_vectors(words, self._several(words))
        if copy_vecattrs:
            rows = {place: row for place, word in enumerate(words) if (row := self._row(word)) is not None}
            for attr, column in self.expandos.items():
                some.expandos[attr] = np.zeros(len(words), dtype=column.dtype)
                some.expandos[attr][list(rows)] = column[list(rows.values())]
        return some

    # -- names that gensim 4 keeps for older programs --------------------------------------------------

    def word_vec(self, *args: Any, **kwargs: Any) -> Vector:
        """:meth:`get_vector`."""
        _old("word_vec", "get_vector")
        return self.get_vector(*args, **kwargs)

    def words_closer_than(self, word1: Key, word2: Key) -> list[str]:
        """:meth:`closer_than`."""
        _old("words_closer_than", "closer_than")
        return self.closer_than(word1, word2)

    def init_sims(self, replace: bool = False) -> None:
        """:meth:`fill_norms`, or, where ``replace``, :meth:`unit_normalize_all`."""
        _old("init_sims", "fill_norms")
        self.fill_norms()
        if replace:
            self.unit_normalize_all()


def _old(name: str, new: str) -> None:
    warnings.warn(f"{name} is deprecated; call {new}", DeprecationWarning, stacklevel=3)
