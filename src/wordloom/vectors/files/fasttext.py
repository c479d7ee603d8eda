"""Read and write fastText's binary models (``.bin``), unsupervised and supervised.

The little-endian layout: the magic number and the version as int32; the settings; the dictionary, first words
and then labels, each by falling count; the input matrix; the output matrix.  Quantized models (``.ftz``) are
refused.
"""

from __future__ import annotations

import gzip
import mmap
import os
import struct
import warnings
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError
from wordloom.vectors.fasttext.model import LOSSES, MODELS, FastTextArgs, FastTextModel
from wordloom.vectors.fasttext.subwords import word_bytes
from wordloom.vectors.fasttext.vectors import broken_row
from wordloom.vectors.whole_files import naming, new_file, opened, reading

BEFORE_MAGIC = (
    "a fastText model from before 2017, in an older layout; give the .vec file, or convert the model with "
    "gensim (load_facebook_model, then save_facebook_model)"
)

_MAGIC, _VERSION, _OLDER = 793712314, 12, 11
_ARGS = struct.Struct("<12id")
_SIZES = struct.Struct("<3iqq")  # entries, words, labels, tokens of text, n-grams left by pruning
_ENTRY = np.dtype([("count", "<i8"), ("kind", "i1")])  # follows the name and a zero byte; kind 1 is a label
_SHAPE = struct.Struct("<?qq")  # quantized, rows, columns
_WRITTEN = 1 << 22  # components written at a time, 16 MiB
# The settings in the order of the file.  Loss and model are stored as their index + 1.
_FIELDS = (
    *("dim", "window", "epochs", "min_count", "negative", "word_ngrams", "loss", "model", "buckets"),
    *("min_n", "max_n", "lr_update_rate", "sample"),
)
_NAMES = {"loss": LOSSES, "model": MODELS}


# -- writing ---------------------------------------------------------------------------------------------


def save_fasttext(model: FastTextModel, path: str | os.PathLike[str]) -> None:
    """Write ``model`` in fastText's format, version 12.

    fastText reads the file, and so does gensim if there are no labels.  A name that ends in .gz is
    compressed. The file appears under its name when it is complete.

    Raises:
        VectorError: a word or label holds the character 0 or half a surrogate pair, or occurs twice; a row is
            not finite; or the file cannot be written.
    """
    path = Path(path)
    # fastText divides by the number of buckets if there are n-grams.
    args = model.args if model.args.buckets else replace(model.args, max_n=0)
    entries = [
        _entry(name, count, kind)
        for kind, names, counts in ((0, model.words, model.counts), (1, model.labels, model.label_counts))
        for name, count in zip(names, counts if counts is not None else (), strict=True)
    ]
    _refuse_twice([*model.words, *model.labels])
    _refuse_non_finite(model)
    V, L = len(model.words), len(model.labels)
    with new_file(path) as file:
        file.write(struct.pack("<2i", _MAGIC, _VERSION))
        file.write(_ARGS.pack(*(_number(args, name) for name in _FIELDS)))
        file.write(_SIZES.pack(V + L, V, L, model.n_tokens, -1))
        file.writelines(entries)
        for matrix in (model.input_matrix, model.output_matrix):
            file.write(_SHAPE.pack(False, *matrix.shape))
            step = max(1, _WRITTEN // model.args.dim)
            for first in range(0, len(matrix), step):
                file.write(matrix[first : first + step].astype("<f4").tobytes())


def _entry(name: str, count: int, kind: int) -> bytes:
    raw = word_bytes(name)
    if b"\0" in raw or raw.decode("utf-8", "surrogateescape") != name:
        raise VectorError(
            f"the word {name!r} holds the character 0 or half a surrogate pair: the format cannot store it"
        )
    return raw + struct.pack("<xqb", count, kind)


def _number(args: FastTextArgs, name: str) -> int | float:
    value = getattr(args, name)
    return _NAMES[name].index(value) + 1 if name in _NAMES else value


def _refuse_twice(names: list[str]) -> None:
    if len(set(names)) == len(names):
        return
    twice, _ = Counter(names).most_common(1)[0]
    raise VectorError(f"the word {twice!r} occurs twice; keep one")


def _refuse_non_finite(model: FastTextModel) -> None:
    for name, matrix in (("input", model.input_matrix), ("output", model.output_matrix)):
        row = broken_row(matrix)
        if row is not None:
            of = f" ({model.words[row]!r})" if name == "input" and row < len(model.words) else ""
            raise VectorError(f"row {row + 1:,}{of} of the {name} matrix is not finite; train again")


# -- recognising a file ----------------------------------------------------------------------------------


def is_fasttext(path: Path) -> bool:
    """Return whether a file begins like a fastText model, including models from before the magic number."""
    try:
        with opened(path) as file:
            return begins_as_fasttext(file.read(_ARGS.size))
    except (OSError, EOFError, zlib.error):
        return False  # reading it raises the error


def begins_as_fasttext(head: bytes) -> bool:
    """Return :func:`is_fasttext` of a file that begins with ``head``."""
    return head.startswith(_MAGIC.to_bytes(4, "little")) or begins_before_magic(head)


def begins_before_magic(head: bytes) -> bool:
    """Return whether ``head`` begins a fastText model without the magic number."""
    if len(head) < _ARGS.size:
        return False
    dim, *others, loss, model, buckets, min_n, max_n, rate, sample = _ARGS.unpack_from(head)
    # These are small numbers of four bytes each, so text never passes.
    return (
        0 < dim < 1 << 16
        and 1 <= loss <= len(LOSSES)
        and 1 <= model <= len(MODELS)
        and min(*others, buckets, min_n, rate) >= 0
        and min_n <= max_n < 1 << 16
        and 0 <= sample <= 1
    )


# -- reading ---------------------------------------------------------------------------------------------


def load_fasttext(path: str | os.PathLike[str], *, check: bool = True) -> FastTextModel:
    """Read a model that fastText, gensim (``save_facebook_model``) or :func:`save_fasttext` wrote.

    The matrices are memory-mapped and read-only.  They are not aligned in the file, so code that computes
    with many rows copies them first.  A gzipped file is decompressed into memory.  Bytes of words that are
    not UTF-8 become U+DC80 to U+DCFF, with a warning; :func:`save_fasttext` restores them.

    Args:
        check: check all rows for numbers that are not finite, which reads the file once.

    Raises VectorError if the file does not exist, is not fastText's, is quantized, or is damaged.
    """
    path = Path(path)
    with reading(path, "give a fastText model"):
        reader = _Reader(_content(path))
    with naming(path):
        model = _read(reader)
        _refuse_twice([*model.words, *model.labels])
        if check:
            _refuse_non_finite(model)
    if reader.invalid:
        warnings.warn(
            f"'{path}': {len(reader.invalid):,} words are not UTF-8, the first being {reader.invalid[0]!r}; "
            "invalid bytes become U+DC80 to U+DCFF",
            stacklevel=2,
        )
    return model


def _content(path: Path) -> bytes | mmap.mmap:
    """Return all bytes of a file, memory-mapped unless it is gzipped or empty."""
    with opened(path) as stream:
        file: Any = stream
        if isinstance(file, gzip.GzipFile) or not os.fstat(file.fileno()).st_size:
            return file.read()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # closed with the last array on it


class _Reader:
    """Reads the parts of a file in order from ``content``."""

    def __init__(self, content: bytes | mmap.mmap) -> None:
        self.content = content
        self.place = 0
        self.invalid: list[str] = []  # names that are not UTF-8

    @property
    def left(self) -> int:
        return len(self.content) - self.place

    def unpack(self, layout: struct.Struct, part: str) -> tuple[Any, ...]:
        if self.left < layout.size:
            raise VectorError(f"truncated in {part}; download it again")
        values = layout.unpack_from(self.content, self.place)
        self.place += layout.size
        return values

    def entries(self, size: int) -> tuple[list[str], NDArray[np.int64], NDArray[np.int8]]:
        """Read the names, counts and kinds of ``size`` words and labels."""
        content, place, last = self.content, self.place, len(self.content) - _ENTRY.itemsize - 1
        names: list[str] = []
        ends = np.empty(size, dtype=np.int64)
        for number in range(size):  # a loop over millions of words: without function calls
            end = content.find(b"\0", place)
            if not 0 <= end <= last:
                raise VectorError(f"truncated in word {number + 1:,} of {size:,}; download it again")
            raw = content[place:end]
            try:
                names.append(raw.decode("utf-8"))
            except UnicodeDecodeError:
                names.append(raw.decode("utf-8", "surrogateescape"))
                self.invalid.append(names[-1])
            ends[number] = end
            place = end + 1 + _ENTRY.itemsize
        dictionary = np.frombuffer(content, dtype=np.uint8, count=place - self.place, offset=self.place)
        after_names = (ends - self.place)[:, None] + np.arange(1, 1 + _ENTRY.itemsize)
        fields = dictionary[after_names].view(_ENTRY)[:, 0]
        self.place = place
        wrong = np.flatnonzero((fields["count"] < 0) | (fields["kind"] < 0) | (fields["kind"] > 1))
        if len(wrong):
            raise VectorError(f"damaged at word {wrong[0] + 1:,} of {size:,}; download it again")
        return names, fields["count"].astype(np.int64), fields["kind"]

    def matrix(self, shape: tuple[int, int], part: str) -> NDArray[np.float32]:
        quantized, rows, columns = self.unpack(_SHAPE, part)
        if quantized:
            raise VectorError(
                "the model is quantized (.ftz), so its vectors are approximations; give the original .bin"
            )
        if (rows, columns) != shape:
            raise VectorError(
                f"damaged: {part} is {rows:,} x {columns:,} and must be {shape[0]:,} x {shape[1]:,}"
            )
        size = 4 * rows * columns
        if self.left < size:
            raise VectorError(
                f"truncated in {part}: {self.left:,} bytes of {size:,} are there; download it again"
            )
        rows_ = np.ndarray(shape, dtype="<f4", buffer=self.content, offset=self.place)
        self.place += size
        return rows_


def _read(reader: _Reader) -> FastTextModel:
    args = _read_args(reader)
    size, V, L, n_tokens, pruned = reader.unpack(_SIZES, "the dictionary")
    if min(V, L) < 0 or size != V + L or n_tokens < 0:
        raise VectorError(f"damaged: {size:,} entries are {V:,} words and {L:,} labels; download it again")
    if reader.left < size * (_ENTRY.itemsize + 1):  # before memory is allocated
        raise VectorError(f"truncated: {size:,} words and labels do not fit in the file; download it again")
    names, counts, kinds = reader.entries(size)
    if kinds[:V].any() or not kinds[V:].all():
        raise VectorError("damaged: a label precedes a word; download it again")
    if pruned >= 0:
        _refuse_pruned(reader, pruned)
    classes = L if args.model == "supervised" else V
    model = FastTextModel(
        args=args,
        words=names[:V],
        counts=counts[:V],
        labels=names[V:],
        label_counts=counts[V:],
        input_matrix=reader.matrix((V + args.buckets, args.dim), "the input matrix"),
        output_matrix=reader.matrix((classes, args.dim), "the output matrix"),
        n_tokens=n_tokens,
    )
    if reader.left:
        raise VectorError(f"{reader.left:,} bytes follow after the output matrix; download it again")
    return model


def _read_args(reader: _Reader) -> FastTextArgs:
    if begins_before_magic(reader.content[: _ARGS.size]):
        raise VectorError(BEFORE_MAGIC)
    if reader.content[:4] != _MAGIC.to_bytes(4, "little"):
        raise VectorError(
            "not a fastText model, which begins with a magic number; give another file, or the .vec file "
            "of a model from before 2017"
        )
    _, version = reader.unpack(struct.Struct("<2i"), "the first bytes")
    if version not in (_OLDER, _VERSION):
        raise VectorError(
            f"a fastText model of version {version}; versions {_OLDER} and {_VERSION} are supported"
        )
    values = dict(zip(_FIELDS, reader.unpack(_ARGS, "the settings"), strict=True))
    loss, model = values["loss"], values["model"]
    if not 1 <= loss <= len(LOSSES) or not 1 <= model <= len(MODELS):
        raise VectorError(f"damaged: there is no loss {loss} or no model {model}; download it again")
    values |= {"loss": LOSSES[loss - 1], "model": MODELS[model - 1]}
    if version == _OLDER and values["model"] == "supervised":
        values["max_n"] = 0  # the older version ignored it: these models have no n-grams
    try:
        return FastTextArgs(**values)
    except VectorError as error:
        raise VectorError(f"damaged: {error}") from None


def _refuse_pruned(reader: _Reader, pruned: int) -> None:
    reader.place = min(reader.place + 8 * pruned, len(reader.content))
    (quantized,) = reader.unpack(struct.Struct("<?"), "the input matrix")
    hint = (
        " and quantized (.ftz); give the original .bin" if quantized else "; train it again without pruning"
    )
    raise VectorError(f"the model is pruned to {pruned:,} n-grams{hint}")
