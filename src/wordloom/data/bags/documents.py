"""Documents as bags of words without labels: counts, presence or tf-idf, and the nearest documents.

>>> bags = DocumentBags.fit(["the cat sat on the mat", "a dog sat here", "stocks fell"])
>>> bags.rows.shape
(3, 10)
>>> [(near.index, round(near.similarity, 3)) for near in bags.nearest("Where sat the cat?")]
[(0, 0.81), (1, 0.19)]
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.data.bags.vectorizer import (
    FEATURES,
    VOCABULARY,
    BagVectorizer,
    row_lengths,
    smooth_idf,
    weighted,
)
from wordloom.errors import CheckpointError, DataError, did_you_mean
from wordloom.files import finish_replacement, replacement

DESCRIPTION, ARRAYS = "bags.json", "bags.safetensors"
# files of other models, whose folders must not hold bags, too
_OTHERS = (VOCABULARY, "config.json", "tokenizer.json", "recipe.toml", "vectors.json")
VERSION = 1


class Neighbour(NamedTuple):
    """The number of a document, and the cosine of its features with those of the query."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    similarity: float


class DocumentBags:
    """Bags of words of N documents over V terms, as in scikit-learn's CountVectorizer and TfidfVectorizer.

    The texts of the documents are not kept.

    Attributes:
        vectorizer: the vocabulary and the splitter of texts.
        counts: CSR [N, V] int32, the count of each term in each document.
        features: ``"counts"``, ``"binary"`` or ``"tfidf"``; see
            :func:`wordloom.data.bags.vectorizer.weighted`.
        idf: [V] float64, the inverse document frequencies; None unless the features are tf-idf.
        about: further facts that are saved with the bags, such as the origin of the documents.
    """

    def __init__(
        self,
        vectorizer: BagVectorizer,
        counts: Any,
        *,
        features: str = "tfidf",
        idf: NDArray[np.float64] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Take the ``counts`` of ``vectorizer``, and compute ``idf`` from them unless it is given.

        Raises DataError for unknown features.
        """
        if features not in FEATURES:
            raise DataError(f"unknown features {features!r}; {did_you_mean(str(features), FEATURES)}")
        self.vectorizer, self.counts, self.features = vectorizer, counts, features
        self.idf = idf
        if features == "tfidf" and idf is None:
            self.idf = smooth_idf(counts)
        self.about = dict(about or {})

    @classmethod
    def fit(
        cls, texts: Iterable[str], *, features: str = "tfidf", lower: bool = True, **settings: Any
    ) -> DocumentBags:
        """Return the bags of ``texts``, which are read once as a stream.

        ``settings`` are ``split``, ``max_ngram``, ``min_count``, ``max_terms`` and ``tokenizer`` of
        :meth:`BagVectorizer.fit_counts`, which also raises the errors.
        """
        if features not in FEATURES:  # before all the texts are read
            raise DataError(f"unknown features {features!r}; {did_you_mean(str(features), FEATURES)}")
        vectorizer, counted = BagVectorizer.fit_counts(texts, lower=lower, **settings)
        return cls(vectorizer, counted.rows, features=features)

    def __len__(self) -> int:
        return int(self.counts.shape[0])

    @cached_property
    def rows(self) -> Any:
        """The features of the documents: CSR [N, V] float64."""
        return self.weigh(self.counts)

    @cached_property
    def _lengths(self) -> NDArray[np.float64]:
        return row_lengths(self.rows)

    def vectorize(self, texts: Iterable[str]) -> Any:
        """Return the features of M other texts: CSR [M, V] float64."""
        return self.weigh(self.vectorizer.counts(texts))

    def weigh(self, counts: Any) -> Any:
        """Return the features of ``counts`` [M, V]: CSR [M, V] float64."""
        return weighted(counts, self.features, self.idf)

    def nearest(self, text: str, topn: int = 10) -> list[Neighbour]:
        """Return the ``topn`` documents nearest to ``text`` that share a word with it."""
        return nearest_rows(self.rows, self.vectorize([text]), topn, lengths=self._lengths)

    def save_pretrained(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write ``bags.safetensors`` (counts and idf), ``vocabulary.json`` and ``bags.json``.

        With ``overwrite``, complete new bags replace older ones in ``folder``; other files stay.  Raises
        CheckpointError if ``folder`` holds something else or cannot be written.
        """
        folder = Path(folder)
        refuse_taken(folder, overwrite=overwrite)
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        parts = {name: np.ascontiguousarray(getattr(self.counts, name)) for name in ("indptr", "indices")}
        parts |= {"counts": np.ascontiguousarray(self.counts.data)}
        if self.idf is not None:
            parts["idf"] = self.idf
        described = {
            "version": VERSION,
            "features": self.features,
            "documents": len(self),
            "terms": len(self.vectorizer),
            "about": self.about,
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with replacement(folder, last=DESCRIPTION) as new:
                self.vectorizer.save_pretrained(new)
                save_file(parts, new / ARRAYS)
                text = json.dumps(described, ensure_ascii=False, indent=1)
                (new / DESCRIPTION).write_text(text + "\n", encoding="utf-8")
        except (OSError, SafetensorError) as error:
            why = getattr(error, "strerror", None) or error
            raise CheckpointError(
                f"cannot write bags of words to '{folder}': {why}; choose another place"
            ) from error

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> DocumentBags:
        """Load saved bags; raise CheckpointError for a folder without bags of words, or with damaged ones."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
        from scipy.sparse import csr_matrix

        folder = Path(folder)
        try:
            finish_replacement(folder)
            described = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
            if described["version"] != VERSION:
                raise ValueError(f"version {described['version']}, not {VERSION}")
            vectorizer = BagVectorizer.from_pretrained(folder)
            shape = (described["documents"], described["terms"])
            if len(vectorizer) != shape[1]:
                raise ValueError(f"{VOCABULARY} has {len(vectorizer):,} terms, the bags {shape[1]:,}")
            parts = load_file(folder / ARRAYS)
            counts = csr_matrix((parts["counts"], parts["indices"], parts["indptr"]), shape=shape)
            counts.check_format(full_check=True)
            idf = parts.get("idf")
            if (idf is not None) != (described["features"] == "tfidf"):
                raise ValueError("the inverse document frequencies do not go with the features")
            if idf is not None and (idf.shape != shape[1:] or not np.isfinite(idf).all()):
                raise ValueError("the inverse document frequencies are not one number for each term")
            return cls(vectorizer, counts, features=described["features"], idf=idf, about=described["about"])
        except FileNotFoundError as error:
            missing = Path(error.filename or ARRAYS).name
            raise CheckpointError(
                f"'{folder}' holds no bags of words: it has no {missing}; give another folder"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, SafetensorError, DataError) as error:
            raise CheckpointError(
                f"the bags of words in '{folder}' are damaged ({error}); make them again"
            ) from None


def nearest_rows(
    rows: Any, query: Any, topn: int, *, lengths: NDArray[np.float64] | None = None
) -> list[Neighbour]:
    """Return the ``topn`` of ``rows`` (CSR [N, V]) with the largest positive cosines with ``query``, [1, V].

    Of rows with equal cosines, the first comes first.  ``lengths`` [N] are those of the rows, if known.
    Raises DataError for ``topn`` below 1.
    """
    if topn < 1:
        raise DataError(f"topn {topn} asks for nothing; give 1 or more")
    products = np.asarray((rows @ query.T).todense()).ravel()  # [N]
    both = (row_lengths(rows) if lengths is None else lengths) * row_lengths(query)
    cosines = np.divide(products, both, out=np.zeros_like(products), where=both > 0)
    order = np.argsort(-cosines, kind="stable")[:topn]
    return [Neighbour(int(i), float(cosines[i])) for i in order if cosines[i] > 0]


def refuse_taken(folder: Path, *, overwrite: bool) -> None:
    """Raise CheckpointError for a folder that :meth:`DocumentBags.save_pretrained` must not replace."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"'{folder}' is a file; name a folder to save into")
    if (folder / DESCRIPTION).exists():
        if not overwrite:
            raise CheckpointError(
                f"'{folder}' holds bags of words already; choose another folder, or replace them with "
                "overwrite=True (at the command --force)"
            )
    elif others := [name for name in _OTHERS if (folder / name).exists()]:
        raise CheckpointError(
            f"'{folder}' holds something else, of which {others[0]} is a part; choose another folder"
        )
