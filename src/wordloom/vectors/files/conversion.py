"""Convert word vectors between formats, and report what the new format cannot store."""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError, did_you_mean
from wordloom.files import abandoned, is_special
from wordloom.vectors.corpus.phrases import write_phrases
from wordloom.vectors.corpus.vocabulary import saved_rule, word_rule
from wordloom.vectors.fasttext.model import FastTextArgs, FastTextModel
from wordloom.vectors.fasttext.vectors import FastTextVectors
from wordloom.vectors.files.checkpoints import Rows, TokenVectors, open_vectors
from wordloom.vectors.files.fasttext import is_fasttext, load_fasttext, save_fasttext
from wordloom.vectors.files.formats import save_vectors, with_readable_words
from wordloom.vectors.files.word2vec_text import save_word2vec
from wordloom.vectors.files.words import check_unicode_errors
from wordloom.vectors.store.keyed import KeyedVectors

FORMATS = ("folder", "word2vec", "word2vec-text", "glove", "fasttext")

_ZEROS = "the output matrix is zeros: {}; this changes no word vectors, but it changes further training"


class Conversion(NamedTuple):
    """The result of a conversion.

    Attributes:
        format: one of FORMATS.
        words: the number of words.
        dim: the number of components.
        notes: a line for each part that the new file lacks, and for each that was invented for it.
    """

    format: str
    words: int
    dim: int
    notes: list[str]


def convert_vectors(
    source: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    to: str | None = None,
    rows: Rows | None = None,
    unicode_errors: str = "strict",
    force: bool = False,
) -> Conversion:
    """Convert the vectors at ``source``, in any format that :func:`open_vectors` reads, and write ``dest``.

    Args:
        source: a file or folder of vectors, a fastText model, or a trained model's folder.
        dest: the new file or folder.  A name that ends in .gz is compressed.
        to: one of FORMATS.  None chooses by the suffix of ``dest``: .bin is fastText's format if ``source``
            has n-grams and word2vec's binary otherwise, .vec and .txt are word2vec's text, and no suffix is a
            folder.
        rows: the tensor of a trained model, see :func:`open_vectors`.
        unicode_errors: how to treat words of a file that are not UTF-8, see :func:`load_word2vec`.
            Conversion from fastText to fastText keeps the bytes of words.
        force: replace an existing ``dest``.

    Raises:
        VectorError: ``source`` does not exist, ``dest`` exists, its suffix is not a format, or the format
            cannot store a word; or as :func:`open_vectors`.
    """
    source, dest = Path(source), Path(dest)
    check_unicode_errors(unicode_errors)
    if not source.exists():
        raise VectorError(f"'{source}' does not exist; give a file or folder of vectors to convert")
    if to is not None and to not in FORMATS:
        raise VectorError(f"unknown format {to!r}; {did_you_mean(to, FORMATS)}")
    if to is None:
        _suffix(dest)  # refuse an unknown suffix before reading anything
    _check_dest(source, dest, to, force)
    model = _model_at(source) if rows is None else None
    wv = model.wv if model is not None else open_vectors(source, rows=rows, unicode_errors=unicode_errors)
    ngrams = isinstance(wv, FastTextVectors) and bool(wv.subwords)
    if to is None:
        to = _BY_SUFFIX[_suffix(dest)]
        if to == "word2vec" and (ngrams or model is not None):
            to = "fasttext"
        _check_dest(source, dest, to, force)
    notes: list[str] = []
    if isinstance(wv, TokenVectors) and to != "folder":
        wv = _bare(wv, notes)
    if to == "fasttext":
        save_fasttext(_fasttext_of(source, wv, notes) if model is None else model, dest)
        return Conversion(to, len(wv), wv.vector_size, notes)
    if model is not None:
        wv = with_readable_words(model.wv, unicode_errors, source)
    if model is not None and model.args.model == "supervised":
        notes.append(
            f"{len(model.labels):,} labels and their rows are left out: only fasttext stores a classifier"
        )
    if to == "folder":
        rule = None if isinstance(wv, TokenVectors) else word_rule(source)
        saved = None if rule is None else saved_rule(rule)
        save_vectors(wv, dest, made_by=f"wordloom, converted from {source.name}", word_rule=saved)
        if rule is not None and rule.phrases:
            write_phrases(rule.phrases, dest)
        return Conversion(to, len(wv), wv.vector_size, notes)
    if isinstance(wv, FastTextVectors) and ngrams:
        notes.append(
            f"n-grams are left out ({wv.subwords.buckets:,} rows): words not among the {len(wv):,} have no "
            "vector; fasttext and folder keep them"
        )
    if wv.counts is not None:
        notes.append("the counts of words are left out; fasttext and folder keep them")
    save_word2vec(wv, dest, binary=to == "word2vec", header=to != "glove")
    return Conversion(to, len(wv), wv.vector_size, notes)


_BY_SUFFIX = {"": "folder", ".bin": "word2vec", ".vec": "word2vec-text", ".txt": "word2vec-text"}


def _suffix(dest: Path) -> str:
    packed = dest.suffix == ".gz"
    suffix = Path(dest.stem).suffix if packed else dest.suffix
    if suffix not in _BY_SUFFIX or (packed and not suffix):
        raise VectorError(
            f"the name {dest.name!r} has no known suffix: end it in .bin, .vec or .txt (then .gz to "
            f"compress), give a folder's name without a dot, or choose --to {'|'.join(FORMATS)}"
        )
    return suffix


def _check_dest(source: Path, dest: Path, to: str | None, force: bool) -> None:
    if not dest.exists():
        return
    if dest.samefile(source):
        raise VectorError(f"'{dest}' is the source; give another name")
    if dest.is_dir() and not set(dest.iterdir()) - abandoned(dest) and to in (None, "folder"):
        return
    if is_special(dest):
        raise VectorError(f"'{dest}' is a device, a pipe or a socket; name a file or a folder")
    if not force:
        raise VectorError(f"'{dest}' exists already; replace it with --force, or give another name")
    if to is not None and dest.is_dir() != (to == "folder"):
        kind, other = ("a folder", "a file") if dest.is_dir() else ("a file", "a folder")
        raise VectorError(f"'{dest}' is {kind} and {to} is {other}; give another name")


def _model_at(source: Path) -> FastTextModel | None:
    """Return the fastText model at ``source``, or in the run folder ``source``, or None."""
    if source.is_dir() and not (source / "vectors.json").exists() and (source / "model.bin").exists():
        source = source / "model.bin"
    return load_fasttext(source) if not source.is_dir() and is_fasttext(source) else None


def _bare(tokens: TokenVectors, notes: list[str]) -> KeyedVectors:
    words = tokens.words()
    if left := len(tokens) - len(words):
        notes.append(f"tokens lose their spaces; {left:,} that then equal another token are left out")
    else:
        notes.append("tokens lose their spaces")
    return words


# -- into fastText's format --------------------------------------------------------------------------------


def _fasttext_of(source: Path, wv: KeyedVectors, notes: list[str]) -> FastTextModel:
    """Return the vectors as a fastText model, with the output matrix of their run if there is one."""
    V, D = len(wv), wv.vector_size
    buckets, n = 0, (0, 0)
    inputs: NDArray[np.float32] = wv.vectors
    if isinstance(wv, FastTextVectors):
        inputs = np.concatenate([wv.vectors_vocab, wv.vectors_ngrams])
        buckets, n = wv.subwords.buckets, (wv.subwords.min_n, wv.subwords.max_n)
    else:
        notes.append("the source has no n-grams, so the model has no vectors of unseen words")
    counts = wv.counts
    if counts is None:
        counts = np.arange(V, 0, -1, dtype=np.int64)
        notes.append("the source has no counts: words get the counts V, V - 1, ... 1, as in gensim")
    args = replace(FastTextArgs(dim=D, buckets=buckets, min_n=n[0], max_n=n[1]), **_trained(source))
    output, origin = _outputs(source, inputs[:V], hs=args.loss == "hs")
    notes.append(origin)
    return FastTextModel(
        args=args,
        words=wv.index_to_key,
        counts=counts,
        input_matrix=inputs,
        output_matrix=output,
        n_tokens=int(counts.sum()),
    )


def _trained(source: Path) -> dict[str, Any]:
    """Return the settings of the run's recipe under fastText's names."""
    if not (source / "recipe.toml").is_file():
        return {}
    try:
        recipe = tomllib.loads((source / "recipe.toml").read_text(encoding="utf-8"))
        vectors = recipe["vectors"]
        if vectors.get("algorithm", "word2vec") not in ("word2vec", "fasttext"):
            return {}
        same = {name: vectors[name] for name in ("window", "epochs", "negative", "sample") if name in vectors}
        if "sample" not in same and vectors.get("constants", "gensim") != "fasttext":
            same["sample"] = 1e-3  # the default of gensim and of word2vec.c; fastText's is 1e-4
        return {
            **same,
            "model": vectors["architecture"],
            "loss": "hs" if vectors["hierarchical_softmax"] else "ns",
            "min_count": recipe["words"]["min_count"],
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VectorError(f"'{source}': its recipe.toml is damaged ({error}); restore it") from None


def _outputs(source: Path, own: NDArray[np.float32], *, hs: bool) -> tuple[NDArray[np.float32], str]:
    """Return the output matrix [V, D] of the run in ``source``, or zeros, and a note on its origin."""
    from safetensors import SafetensorError, safe_open

    zeros = np.zeros(own.shape, dtype=np.float32)
    path = source / "checkpoints" / "vectors.safetensors"
    if not path.is_file():
        return zeros, _ZEROS.format("the source has none")
    try:
        with safe_open(path, framework="numpy") as file:
            if not {"inputs", "outputs"} <= set(file.keys()):
                return zeros, _ZEROS.format("the run's checkpoint has none")
            saved = file.get_slice("inputs")[: len(own)]
            outputs = file.get_tensor("outputs")
    except (OSError, SafetensorError) as error:
        raise VectorError(f"cannot read '{path}': {error}; remove it to convert without it") from None
    if saved.shape != own.shape or not np.array_equal(saved, own):
        return zeros, _ZEROS.format("the checkpoint belongs to other vectors")
    if outputs.shape[1] != own.shape[1] or len(outputs) > len(own):
        raise VectorError(f"'{path}' is damaged: outputs of shape {outputs.shape} for vectors of {own.shape}")
    # A tree has one inner node less than words.  fastText's target is 1 for the path code 1, and word2vec's
    # and ours for the code 0, so the rows have opposite signs.
    zeros[: len(outputs)] = -outputs if hs else outputs
    return zeros, f"the output matrix is the run's, from checkpoints/{path.name}"
