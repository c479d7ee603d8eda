"""Open any format of word vectors, and write and memory-map our own folder format."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError
from wordloom.files import finish_replacement, replacement
from wordloom.vectors.fasttext.subwords import Subwords
from wordloom.vectors.fasttext.vectors import FastTextVectors
from wordloom.vectors.files.fasttext import is_fasttext, load_fasttext
from wordloom.vectors.files.word2vec_text import load_word2vec
from wordloom.vectors.files.words import check_unicode_errors, readable
from wordloom.vectors.store.keyed import KeyedVectors
from wordloom.vectors.whole_files import encoded, naming, written

_OPTIONAL = {"counts.npy", "vectors_vocab.npy", "vectors_ngrams.npy"}  # files that not every folder has


def save_vectors(vectors: KeyedVectors, folder: str | os.PathLike[str], **about: Any) -> None:
    """Write word vectors to a folder.

    The folder gets ``vectors.npy`` [V, D] float32, ``words.txt`` (UTF-8, one word a line), ``counts.npy`` [V]
    int64 if there are counts, and ``vectors.json`` with the shape and ``about``.  :class:`FastTextVectors`
    add ``vectors_vocab.npy`` [V, D] and ``vectors_ngrams.npy`` [buckets, D].

    Existing vectors in ``folder`` are replaced atomically at the end; other files stay.

    Raises VectorError if a word holds a line break, ``about`` is not JSON, or the folder cannot be written.
    """
    folder = Path(folder)
    described = {**about, "words": len(vectors), "dim": vectors.vector_size}
    parts = {"vectors.npy": vectors.vectors}
    if isinstance(vectors, FastTextVectors):
        described["subwords"] = asdict(vectors.subwords)
        parts |= {"vectors_vocab.npy": vectors.vectors_vocab, "vectors_ngrams.npy": vectors.vectors_ngrams}
    try:
        about_text = json.dumps({**described, "counted": vectors.counts is not None}, indent=2) + "\n"
    except (TypeError, ValueError) as error:
        raise VectorError(f"the notes about the vectors must be JSON: {error}") from None
    contents: dict[str, Callable[[IO[bytes]], object]] = {
        name: partial(np.save, arr=np.ascontiguousarray(rows, dtype="<f4")) for name, rows in parts.items()
    }
    for word in vectors.index_to_key:  # check all before anything is written
        encoded(word, "\n", "words.txt")
    contents["words.txt"] = lambda file: file.writelines(
        encoded(word, "\n", "words.txt") + b"\n" for word in vectors.index_to_key
    )
    if (counts := vectors.counts) is not None:
        contents["counts.npy"] = lambda file: np.save(file, counts.astype("<i8"))
    contents["vectors.json"] = lambda file: file.write(about_text.encode())
    with written(folder), replacement(folder, last="vectors.json", stale=_OPTIONAL) as new:
        for name, write in contents.items():
            with (new / name).open("wb") as file:
                write(file)


def load_vectors(path: str | os.PathLike[str], *, unicode_errors: str = "strict") -> KeyedVectors:
    """Open the vectors of a folder that :func:`save_vectors` wrote, or of a file.

    The vectors of a folder are memory-mapped, so only the words are read.  A file is opened with
    :func:`load_word2vec`, and a fastText model with :func:`load_fasttext`.  These scan the file once and
    memory-map it unless it is text or compressed.

    Args:
        path: the folder or file.
        unicode_errors: how to treat words of a file that are not UTF-8, see :func:`load_word2vec`.

    Raises VectorError if there are no vectors at ``path``, or they are damaged.
    """
    folder = Path(path)
    if not folder.is_dir():
        if is_fasttext(folder):
            return _fasttext_vectors(folder, unicode_errors)
        return load_word2vec(folder, unicode_errors=unicode_errors)
    with written(folder):
        finish_replacement(folder)
    try:
        about = json.loads((folder / "vectors.json").read_bytes())
        words = (folder / "words.txt").read_bytes().decode("utf-8").split("\n")[:-1]
        vectors = _mapped(folder / "vectors.npy")
        counts = np.load(folder / "counts.npy") if about["counted"] else None
        expected = (about["words"], about["dim"])
        if vectors.shape != expected or len(words) != len(vectors):
            raise VectorError(
                f"vectors.npy has the shape {vectors.shape}, words.txt {len(words):,} words, and "
                f"vectors.json says {expected}"
            )
        if "subwords" not in about:
            return KeyedVectors(words, vectors, counts=counts, check=False)
        own, ngrams = (_mapped(folder / f"vectors_{part}.npy") for part in ("vocab", "ngrams"))
        subwords = Subwords(**about["subwords"])
        return FastTextVectors(words, own, ngrams, subwords, counts=counts, vectors=vectors, check=False)
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise VectorError(
            f"'{folder}' holds no word vectors: it has no {missing}; give another folder"
        ) from None
    except (OSError, ValueError, EOFError, KeyError, TypeError, VectorError) as error:
        raise VectorError(
            f"the word vectors in '{folder}' are damaged ({error}); create them again"
        ) from None


def _mapped(path: Path) -> NDArray[np.float32]:
    return np.load(path, mmap_mode="r").view(np.ndarray)


def _fasttext_vectors(path: Path, unicode_errors: str) -> KeyedVectors:
    check_unicode_errors(unicode_errors)
    with warnings.catch_warnings():  # with_readable_words treats words that are not UTF-8
        warnings.filterwarnings("ignore", message=".* are not UTF-8, the first being")
        model = load_fasttext(path)
    with naming(path):
        return with_readable_words(model.wv, unicode_errors, path)


def with_readable_words(wv: FastTextVectors, unicode_errors: str, path: Path) -> FastTextVectors:
    """Return ``wv`` with valid UTF-8 words.  Their vectors stay those of the original bytes."""
    words, kept = readable(wv.index_to_key, unicode_errors, path)
    if words is wv.index_to_key:
        return wv
    rows = slice(None) if kept is None else kept
    return FastTextVectors(
        words,
        wv.vectors_vocab[rows],
        wv.vectors_ngrams,
        wv.subwords,
        counts=None if wv.counts is None else wv.counts[rows],
        vectors=wv.vectors[rows],
        check=False,
    )
