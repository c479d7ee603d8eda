"""word2vec's text and binary files, and GloVe's text.

A vector file is taken whole or refused: a line with another number of components, a number that is none, a
word twice, a file that ends too soon or too late are errors that say where.  What gensim reads is what we
write, and the other way round; tabs and several spaces between numbers, which gensim does not take, are read
too, and a byte order mark is none of the first word's letters.
"""

from __future__ import annotations

import codecs
import gzip
import os
import zlib
from array import array
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError, position
from wordloom.vectors.files.fasttext import BEFORE_MAGIC, begins_as_fasttext, begins_before_magic
from wordloom.vectors.files.whole_files import encoded, naming, new_file, opened
from wordloom.vectors.files.word2vec_binary import Progress, read_binary
from wordloom.vectors.files.word_decoding import check_unicode_errors, decode, readable
from wordloom.vectors.store.keyed import KeyedVectors

__all__ = ["load_word2vec", "save_word2vec"]

_HEAD = 1 << 16  # bytes that show what a file is
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\x0b\x0c"))


# -- writing ---------------------------------------------------------------------------------------------


def save_word2vec(
    vectors: KeyedVectors,
    path: str | os.PathLike[str],
    *,
    binary: bool | None = None,
    header: bool = True,
    order: NDArray[np.intp] | None = None,
    prefix: str = "",
) -> None:
    """Write word2vec's format: text, or binary where ``binary`` (by default: where the name ends in .bin).

    ``header=False`` leaves the first line out of a text: GloVe's format.  Numbers in text are the shortest
    that read back to the same float32.  ``order`` [V] is the order of the rows, ``prefix`` stands before each
    word.
    A name that ends in .gz is compressed.  The file appears under its
    name when it is complete.

    Words that hold U+DC80 to U+DCFF are written as the bytes that these stand for.

    Raises:
        VectorError: a word is empty or holds a space or line break, which the format cannot keep; or the file
            cannot be written.
    """
    path = Path(path)
    binary = path.name.removesuffix(".gz").endswith(".bin") if binary is None else binary
    if binary and not header:
        raise VectorError(
            "word2vec's binary format needs its first line; leave header as it is, or write text"
        )
    if not len(vectors):
        raise VectorError("there are no vectors to save; add some first")
    rows = range(len(vectors)) if order is None else order
    first = "".join(prefix + vectors.index_to_key[row] for row in rows[:1])
    if not header and (first.startswith("\ufeff") or _ends_in_column(first)):
        raise VectorError(
            f"the word {first!r} would be read otherwise at the beginning of {path.name}; write a header"
        )
    keeps = (" \n", path.name, "surrogateescape")
    for word in vectors.index_to_key:  # all are known to fit before anything is written
        encoded(prefix + word, *keeps)
    with new_file(path) as file:
        if header:
            file.write(f"{len(vectors)} {vectors.vector_size}\n".encode())
        matrix = vectors.vectors
        for row in rows:
            raw = encoded(prefix + vectors.index_to_key[row], *keeps)
            numbers = (
                matrix[row].astype("<f4").tobytes() if binary else " ".join(map(str, matrix[row])).encode()
            )
            file.write(b"%b %b\n" % (raw, numbers))


# -- reading ---------------------------------------------------------------------------------------------


def load_word2vec(
    path: str | os.PathLike[str],
    *,
    binary: bool | None = None,
    header: bool | None = None,
    limit: int | None = None,
    unicode_errors: str = "strict",
    progress: Progress | None = None,
) -> KeyedVectors:
    """Read word2vec's text or binary format, or GloVe's text, compressed by gzip or not.

    The vectors of a binary that is not compressed stay in the file, which is memory-mapped, until they are
    asked for: see :class:`wordloom.vectors.files.word2vec_binary.MappedVectors`.

    Args:
        path: the file.
        binary, header: whether it is binary, and whether it begins with the number of words and of
            components; None sees for itself.  (A first line of two whole numbers is taken for a header.)
        limit: read the first so many words alone.
        unicode_errors: what to do with words that are not UTF-8: ``"strict"`` raises an error, ``"replace"``
            puts U+FFFD in place of invalid bytes, ``"ignore"`` leaves these bytes out, and
            ``"surrogateescape"`` keeps them as U+DC80 to U+DCFF.  Of words that become equal the first is
            kept, with a warning.
        progress: told, now and then, how many words are read, and of how many where that is known.

    Raises:
        VectorError: there is no such file, or it goes wrong somewhere, with the line or word.
    """
    path = Path(path)
    check_unicode_errors(unicode_errors)
    if limit is not None and limit < 1:
        raise VectorError(f"limit {limit} leaves no words; give 1 or more, or None for all")
    try:
        with opened(path) as file:
            head = file.read(_HEAD)
            file.seek(0)
            _refuse_strangers(path, head)
            shape = _shape(head) if header is None or header else None
            if shape is None and (header or binary):
                raise VectorError(f"'{path}' does not begin with a line of two numbers, words and components")
            if shape is not None and 0 in shape:
                raise VectorError(
                    f"'{path}' is empty: its first line says {shape[0]} words of {shape[1]} components"
                )
            if shape is not None and (_looks_binary(head, shape[1]) if binary is None else binary):
                return read_binary(file, path, shape, limit, unicode_errors, progress)
            try:
                return _read_text(file, path, shape, limit, unicode_errors, progress)
            except VectorError:
                if shape is not None or b"\0" not in head:
                    raise
                raise VectorError(
                    f"'{path}' is neither a text of vectors nor word2vec's binary, which begins with a line "
                    "of two numbers; give another file"
                ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise VectorError(f"'{path}' is truncated or damaged ({error}); download it again") from None
    except OSError as error:
        raise VectorError(
            f"cannot read '{path}': {error.strerror or error}; give a file of vectors"
        ) from None


def _refuse_strangers(path: Path, head: bytes) -> None:
    if not head.strip():
        raise VectorError(f"'{path}' is empty; give a file of vectors")
    if begins_before_magic(head):
        raise VectorError(f"'{path}': {BEFORE_MAGIC}")
    if begins_as_fasttext(head):
        raise VectorError(
            f"'{path}' is a fastText model, not a file of word vectors alone; read it with load_vectors, or "
            "give its .vec file"
        )
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        raise VectorError(
            f"'{path}' is a pickle, which is never read: it can run code; write it again with "
            "gensim's save_word2vec_format"
        )
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise VectorError(f"'{path}' is written in UTF-16; convert it to UTF-8")


def _shape(head: bytes) -> tuple[int, int] | None:
    """What a first line of two whole numbers says."""
    parts = head.removeprefix(codecs.BOM_UTF8).partition(b"\n")[0].split()
    if len(parts) == 2 and all(part.isdigit() and len(part) < 19 for part in parts):
        return int(parts[0]), int(parts[1])
    return None


def _looks_binary(head: bytes, dim: int) -> bool:
    """Whether what follows the first line is no text: the first vector is not written in figures, and there
    are bytes that no text has."""
    body = head.partition(b"\n")[2]
    line, complete, _ = body.partition(b"\n")
    parts = line.split()
    try:
        figures = list(map(float, parts[-dim:] if complete else parts[1:-1]))
    except ValueError:
        figures = []
    if (len(parts) > dim and len(figures) == dim) or (not complete and figures):
        return False
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(body) - 4:  # else the last character is cut
            return True
    return len(body.translate(None, _CONTROLS)) < len(body)


def _read_text(
    file: IO[bytes],
    path: Path,
    shape: tuple[int, int] | None,
    limit: int | None,
    unicode_errors: str,
    progress: Progress | None,
) -> KeyedVectors:
    """The vectors of a text."""
    first = 1
    promised, dim = shape if shape is not None else (None, 0)
    if shape is not None:
        file.readline()
        first = 2
    wanted = min((n for n in (limit, promised) if n is not None), default=None)
    words: list[str] = []
    values = array("f")  # grows where it lies: a list of rows would take the memory twice
    for number, raw in enumerate(file, first):
        if wanted is not None and len(words) == wanted:
            if limit is None and raw.strip():
                raise VectorError(
                    f"{position(path, number)}: the file goes on after the {wanted:,} words that its "
                    "first line promises; put that right, or read with a limit"
                )
            break
        if number == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
        line = decode(raw, position(path, number), unicode_errors).rstrip(" \t\r\n")
        if not line:
            continue
        parsed = _parsed(line, dim)
        if parsed is None:
            raise VectorError(f"{position(path, number)}: {_wrong(line, dim)}")
        word, figures = parsed
        words.append(word)
        values.extend(figures)
        dim = len(figures)
        if progress is not None and len(words) % 10_000 == 0:
            progress(len(words), wanted)
    if promised is not None and wanted is not None and len(words) < wanted:
        raise VectorError(
            f"'{path}' is truncated: its first line promises {promised:,} words, {len(words):,} are there"
        )
    if not words:
        raise VectorError(f"'{path}' is empty; give a file of vectors")
    vectors = np.frombuffer(values, dtype=np.float32).reshape(len(words), dim)
    words, kept = readable(words, unicode_errors, path)
    with naming(path):
        return KeyedVectors(words, vectors if kept is None else vectors[kept])


def _parsed(line: str, dim: int) -> tuple[str, list[float]] | None:
    """A word and its ``dim`` numbers (0: as many as there are), or None where the line is something else."""
    # As gensim has it: one space before each number, and whatever else stands before them is the word.
    word, *figures = line.rsplit(" ", dim) if dim else line.split(" ")
    fits = len(figures) == dim if dim else not _ends_in_column(word)
    if figures and fits and " " not in word and (numbers := _numbers(figures)) is not None:
        return word, numbers
    # As others have it: tabs, several spaces, and a word of several parts, of which the last is no number.
    word, *figures = (line.rsplit(None, dim) if dim else line.split()) or [""]
    parts = word.split()
    if len(figures) != (dim or len(figures) or 1) or (len(parts) > 1 and _is_number(parts[-1])):
        return None
    numbers = _numbers(figures)
    return None if numbers is None else (word.lstrip(), numbers)


def _ends_in_column(word: str) -> bool:
    """Whether what stands before the first space is a word, a tab and a number, and so no word."""
    _, tab, last = word.rpartition("\t")
    return bool(tab) and _is_number(last)


def _numbers(figures: list[str]) -> list[float] | None:
    try:
        return list(map(float, figures))
    except ValueError:
        return None


def _is_number(text: str) -> bool:
    return _numbers([text]) is not None


def _wrong(line: str, dim: int) -> str:
    """What is wrong with a line that is no word and ``dim`` numbers."""
    parts = line.split()[1:]
    if not parts and not dim:
        return "a word without numbers; a line is a word and its components, one space before each"
    odd = [part for part in parts if not _is_number(part)]
    if odd and (not dim or len(parts) == dim):
        return f"{odd[0]!r} stands where a number belongs"
    return f"{len(parts):,} numbers after the word where {dim:,} belong"
