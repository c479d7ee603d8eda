"""fastText's binary models (``.bin``), supervised or not: read and written as the C++ tool does.

The layout, all little-endian: two int32, the magic number and the version; the settings; the dictionary,
words first and then labels, each by falling count; the input matrix; the output matrix.  What is quantized
(``.ftz``) is refused.
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
from wordloom.vectors.files.whole_files import new_file, opened

__all__ = [
    "BEFORE_MAGIC",
    "begins_as_fasttext",
    "begins_before_magic",
    "is_fasttext",
    "load_fasttext",
    "save_fasttext",
]

BEFORE_MAGIC = (
    "a fastText model from before 2017, when its files were laid out otherwise; give the .vec file, or write "
    "the model again by gensim (load_facebook_model, then save_facebook_model)"
)

_MAGIC, _VERSION, _OLDER = 793712314, 12, 11
_ARGS = struct.Struct("<12id")
_SIZES = struct.Struct("<3iqq")  # entries, words, labels, running words, n-grams that pruning left
_ENTRY = np.dtype([("count", "<i8"), ("kind", "i1")])  # after the name and a zero; kind 1 is a label
_SHAPE = struct.Struct("<?qq")  # whether quantized, rows, columns
_WRITTEN = 1 << 22  # components, 16 MiB, written at a time


# -- writing ---------------------------------------------------------------------------------------------


def save_fasttext(model: FastTextModel, path: str | os.PathLike[str]) -> None:
    """Write ``model`` in fastText's format, version 12.  fastText reads it, and where there are no labels
    gensim does.

    A name that ends in .gz is compressed.  The file appears under its name when it is complete.

    Raises:
        VectorError: a word or label holds the character 0 or half a character, which the format cannot keep,
            or is there twice; a row is not finite; or the file cannot be written.
    """
    path = Path(path)
    # fastText divides by the number of buckets wherever there are n-grams.
    args = model.args if model.args.buckets else replace(model.args, max_n=0)
    entries = [
        _entry(name, count, kind)
        for kind, names, counts in (
            (0, model.words, model.counts),
            (1, model.labels, model.label_counts),
        )
        for name, count in zip(names, counts if counts is not None else (), strict=True)
    ]
    _refuse_twice([*model.words, *model.labels])
    _refuse_non_finite(model)
    V, L = len(model.words), len(model.labels)
    with new_file(path) as file:
        file.write(struct.pack("<2i", _MAGIC, _VERSION))
        file.write(_pack_args(args))
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
            f"the word {name!r} holds the character 0 or half a character: fastText's format cannot keep it"
        )
    return raw + struct.pack("<xqb", count, kind)


def _pack_args(args: FastTextArgs) -> bytes:
    return _ARGS.pack(
        args.dim,
        args.window,
        args.epochs,
        args.min_count,
        args.negative,
        args.word_ngrams,
        LOSSES.index(args.loss) + 1,
        MODELS.index(args.model) + 1,
        args.buckets,
        args.min_n,
        args.max_n,
        args.lr_update_rate,
        args.sample,
    )


def _refuse_twice(names: list[str]) -> None:
    if len(set(names)) == len(names):
        return
    twice, _ = Counter(names).most_common(1)[0]
    raise VectorError(f"the word {twice!r} is there twice; keep one")


def _refuse_non_finite(model: FastTextModel) -> None:
    for name, matrix in (("input", model.input_matrix), ("output", model.output_matrix)):
        row = broken_row(matrix)
        if row is not None:
            of = f" ({model.words[row]!r})" if name == "input" and row < len(model.words) else ""
            raise VectorError(f"row {row + 1:,}{of} of the {name} matrix is not finite; train again")


# -- what a file is --------------------------------------------------------------------------------------


def is_fasttext(path: Path) -> bool:
    """Whether a file begins as fastText's models do, those of before the magic number too."""
    try:
        with opened(path) as file:
            return begins_as_fasttext(file.read(_ARGS.size))
    except (OSError, EOFError, zlib.error):
        return False  # what is wrong is said where it is read


def begins_as_fasttext(head: bytes) -> bool:
    """:func:`is_fasttext`, of a file that begins with ``head``."""
    return head.startswith(_MAGIC.to_bytes(4, "little")) or begins_before_magic(head)


def begins_before_magic(head: bytes) -> bool:
    """Whether a file that begins with ``head`` is a fastText model whose first bytes are the settings."""
    if len(head) < _ARGS.size:
        return False
    dim, *rest, loss, model, buckets, min_n, max_n, rate, sample = _ARGS.unpack_from(head)
    # No text begins so: these are small numbers, of four bytes each.
    return (
        0 < dim < 1 << 16
        and 1 <= loss <= len(LOSSES)
        and 1 <= model <= len(MODELS)
        and min(*rest, buckets, min_n, rate) >= 0
        and min_n <= max_n < 1 << 16
        and 0 <= sample <= 1
    )


# -- reading ---------------------------------------------------------------------------------------------


def load_fasttext(path: str | os.PathLike[str], *, check: bool = True) -> FastTextModel:
    """Read a model that fastText, gensim (``save_facebook_model``) or :func:`save_fasttext` wrote.

    Its matrices are memory-mapped, so they are read-only and take no memory until asked for; they begin at
    any byte of the file, so what computes with many rows at once copies these first.  A file compressed by
    gzip is unpacked into memory.  Bytes of words that are not UTF-8 become U+DC80 .. U+DCFF, with a warning,
    and are written again as they were.

    Args:
        path: the file.
        check: whether all rows are looked through for numbers that are not finite, which reads the file once.

    Raises:
        VectorError: there is no such file, it is none of fastText's or quantized, or it goes wrong somewhere.
    """
    path = Path(path)
    try:
        content = _content(path)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise VectorError(f"'{path}' is truncated or damaged ({error}); download it again") from None
    except OSError as error:
        raise VectorError(f"cannot read '{path}': {error.strerror or error}; give a fastText model") from None
    try:
        reader = _Reader(content)
        model = _read(reader)
        _refuse_twice([*model.words, *model.labels])
        if check:
            _refuse_non_finite(model)
    except VectorError as error:
        raise VectorError(f"'{path}': {error}") from None
    if reader.odd:
        warnings.warn(
            f"'{path}': {len(reader.odd):,} words are not UTF-8, the first being {reader.odd[0]!r}; bytes "
            "that are none stand as U+DC80 .. U+DCFF",
            stacklevel=2,
        )
    return model


def _content(path: Path) -> bytes | mmap.mmap:
    """All bytes of a file, mapped where it lies on disk as it is."""
    with opened(path) as found:
        file: Any = found
        if isinstance(file, gzip.GzipFile) or not os.fstat(file.fileno()).st_size:
            return file.read()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # closed with the last array on it


class _Reader:
    """Takes one thing after another from ``content``."""

    def __init__(self, content: bytes | mmap.mmap) -> None:
        self.content = content
        self.place = 0
        self.odd: list[str] = []  # names that are not UTF-8

    @property
    def left(self) -> int:
        return len(self.content) - self.place

    def unpack(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        if self.left < layout.size:
            raise VectorError(f"truncated in {what}; download it again")
        values = layout.unpack_from(self.content, self.place)
        self.place += layout.size
        return values

    def entries(self, size: int) -> tuple[list[str], NDArray[np.int64], NDArray[np.int8]]:
        """Names, counts and kinds of ``size`` words and labels."""
        content, place, last = self.content, self.place, len(self.content) - _ENTRY.itemsize - 1
        names: list[str] = []
        ends = np.empty(size, dtype=np.int64)
        for number in range(size):  # a dictionary may have millions of words: no calls of our own in here
            end = content.find(b"\0", place)
            if not 0 <= end <= last:
                raise VectorError(f"truncated in word {number + 1:,} of {size:,}; download it again")
            raw = content[place:end]
            try:
                names.append(raw.decode("utf-8"))
            except UnicodeDecodeError:
                names.append(raw.decode("utf-8", "surrogateescape"))
                self.odd.append(names[-1])
            ends[number] = end
            place = end + 1 + _ENTRY.itemsize
        dictionary = np.frombuffer(content, dtype=np.uint8, count=place - self.place, offset=self.place)
        fields = dictionary[(ends - self.place)[:, None] + np.arange(1, 1 + _ENTRY.itemsize)].view(_ENTRY)[
            :, 0
        ]
        self.place = place
        wrong = np.flatnonzero((fields["count"] < 0) | (fields["kind"] < 0) | (fields["kind"] > 1))
        if len(wrong):
            raise VectorError(f"damaged at word {wrong[0] + 1:,} of {size:,}; download it again")
        return names, fields["count"].astype(np.int64), fields["kind"]

    def matrix(self, shape: tuple[int, int], what: str) -> NDArray[np.float32]:
        quantized, rows, columns = self.unpack(_SHAPE, what)
        if quantized:
            raise VectorError(
                "the model is quantized (.ftz), and its vectors are but approximations; give the .bin it was "
                "made of"
            )
        if (rows, columns) != shape:
            raise VectorError(
                f"damaged: {what} is {rows:,} x {columns:,} where {shape[0]:,} x {shape[1]:,} belong"
            )
        size = 4 * rows * columns
        if self.left < size:
            raise VectorError(
                f"truncated in {what}: {self.left:,} bytes of {size:,} are there; download it again"
            )
        found = np.ndarray(shape, dtype="<f4", buffer=self.content, offset=self.place)
        self.place += size
        return found


def _read(reader: _Reader) -> FastTextModel:
    args = _read_args(reader)
    size, V, L, n_tokens, pruned = reader.unpack(_SIZES, "the dictionary")
    if min(V, L) < 0 or size != V + L or n_tokens < 0:
        raise VectorError(f"damaged: {size:,} entries are {V:,} words and {L:,} labels; download it again")
    if reader.left < size * (_ENTRY.itemsize + 1):  # before memory is asked for that much
        raise VectorError(
            f"truncated: {size:,} words and labels do not fit in what follows; download it again"
        )
    names, counts, kinds = reader.entries(size)
    if kinds[:V].any() or not kinds[V:].all():
        raise VectorError("damaged: words do not stand before labels; download it again")
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
        raise VectorError(f"goes on for {reader.left:,} bytes after the output matrix; download it again")
    return model


def _read_args(reader: _Reader) -> FastTextArgs:
    if begins_before_magic(reader.content[: _ARGS.size]):
        raise VectorError(BEFORE_MAGIC)
    if reader.content[:4] != _MAGIC.to_bytes(4, "little"):
        raise VectorError(
            "not a fastText model, which begins with a number of its own; give another file, or, of a model "
            "from before 2017, the .vec file"
        )
    _, version = reader.unpack(struct.Struct("<2i"), "the first bytes")
    if version not in (_OLDER, _VERSION):
        raise VectorError(f"a fastText model of version {version}; versions {_OLDER} and {_VERSION} are read")
    numbers = reader.unpack(_ARGS, "the settings")
    loss, model = numbers[6:8]
    if not 1 <= loss <= len(LOSSES) or not 1 <= model <= len(MODELS):
        raise VectorError(f"damaged: there is no loss {loss} or no model {model}; download it again")
    old = version == _OLDER and MODELS[model - 1] == "supervised"  # had no n-grams, whatever it says
    try:
        return FastTextArgs(
            dim=numbers[0],
            window=numbers[1],
            epochs=numbers[2],
            min_count=numbers[3],
            negative=numbers[4],
            word_ngrams=numbers[5],
            loss=LOSSES[loss - 1],
            model=MODELS[model - 1],
            buckets=numbers[8],
            min_n=numbers[9],
            max_n=0 if old else numbers[10],
            lr_update_rate=numbers[11],
            sample=numbers[12],
        )
    except VectorError as error:
        raise VectorError(f"damaged: {error}") from None


def _refuse_pruned(reader: _Reader, pruned: int) -> None:
    reader.place = min(reader.place + 8 * pruned, len(reader.content))
    (quantized,) = reader.unpack(struct.Struct("<?"), "the input matrix")
    raise VectorError(
        f"the model is pruned to {pruned:,} n-grams"
        + (" and quantized (.ftz); give the .bin it was made of" if quantized else "; train it again without")
    )
