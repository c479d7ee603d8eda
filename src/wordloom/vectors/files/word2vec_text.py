"""Read and write word2vec's text and binary files, and GloVe's text.

A file is read completely or refused.  Another number of components, an invalid number, a repeated word, and a
file that is too short or too long are errors that name the line or word.  gensim and Wordloom read each
other's files.  Unlike gensim, Wordloom also accepts tabs and several spaces between numbers, and skips a byte
order mark.
"""

from __future__ import annotations

import codecs
import os
from array import array
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError, position
from wordloom.vectors.files.fasttext import BEFORE_MAGIC, begins_as_fasttext, begins_before_magic
from wordloom.vectors.files.word2vec_binary import Progress, read_binary
from wordloom.vectors.files.words import check_unicode_errors, decode, readable
from wordloom.vectors.store.keyed import KeyedVectors
from wordloom.vectors.whole_files import encoded, naming, new_file, opened, reading

_HEAD = 1 << 16  # bytes that show the format of a file
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
    """Write word2vec's text or binary format.

    Numbers in text are the shortest that round-trip to float32.  A name that ends in .gz is compressed.  The
    file appears under its name when it is complete.  The characters U+DC80 to U+DCFF in words are written as
    the bytes that they represent.

    Args:
        binary: write the binary format; None does so if the name ends in .bin.
        header: write the first line.  GloVe's text format has none.
        order: [V], the order of the rows.
        prefix: text before each word.

    Raises:
        VectorError: a word is empty or holds a space or line break, which the format cannot store; or the
            file cannot be written.
    """
    path = Path(path)
    binary = path.name.removesuffix(".gz").endswith(".bin") if binary is None else binary
    if binary and not header:
        raise VectorError("word2vec's binary format needs its first line; leave out header, or write text")
    if not len(vectors):
        raise VectorError("there are no vectors to save; add some first")
    rows = range(len(vectors)) if order is None else order
    first = "".join(prefix + vectors.index_to_key[row] for row in rows[:1])
    if not header and (first.startswith("\ufeff") or _ends_in_column(first)):
        raise VectorError(
            f"the word {first!r} would be read otherwise at the beginning of {path.name}; write a header"
        )
    keeps = (" \n", path.name, "surrogateescape")
    for word in vectors.index_to_key:  # check all before anything is written
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
    """Read word2vec's text or binary format, or GloVe's text, gzipped or not.

    An uncompressed binary is memory-mapped, and its vectors stay in the file until they are used: see
    :class:`wordloom.vectors.files.word2vec_binary.MappedVectors`.

    Args:
        binary: the file is binary; None detects it.
        header: the file begins with the numbers of words and components; None detects it, and takes a first
            line of two whole numbers for a header.
        limit: read only this many words, from the start.
        unicode_errors: how to treat words that are not UTF-8: ``"strict"`` raises an error, ``"replace"``
            replaces invalid bytes with U+FFFD, ``"ignore"`` drops them, and ``"surrogateescape"`` keeps them
            as U+DC80 to U+DCFF.  If words become equal, the first is kept, with a warning.
        progress: called now and then with the words read and, if it is known, their total.

    Raises:
        VectorError: the file does not exist or is damaged; the message names the line or word.
    """
    path = Path(path)
    check_unicode_errors(unicode_errors)
    if limit is not None and limit < 1:
        raise VectorError(f"limit {limit} leaves no words; give 1 or more, or None for all")
    with reading(path, "give a file of vectors"), opened(path) as file:
        head = file.read(_HEAD)
        file.seek(0)
        _check_format(path, head)
        shape = _shape(head) if header is None or header else None
        if shape is None and (header or binary):
            raise VectorError(f"'{path}' does not begin with a line of two numbers: words and components")
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
                f"'{path}' is neither a text of vectors nor word2vec's binary, whose first line has two "
                "numbers; give another file"
            ) from None


def _check_format(path: Path, head: bytes) -> None:
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
            f"'{path}' is a pickle, which is never read: it can run code; convert it with "
            "gensim's save_word2vec_format"
        )
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise VectorError(f"'{path}' is written in UTF-16; convert it to UTF-8")


def _shape(head: bytes) -> tuple[int, int] | None:
    """Return the two whole numbers of the first line, or None."""
    parts = head.removeprefix(codecs.BOM_UTF8).partition(b"\n")[0].split()
    if len(parts) == 2 and all(part.isdigit() and len(part) < 19 for part in parts):
        return int(parts[0]), int(parts[1])
    return None


def _looks_binary(head: bytes, dim: int) -> bool:
    """Return whether the part after the first line is binary.

    It is if the first vector is not written in digits and there are bytes that do not occur in text.
    """
    body = head.partition(b"\n")[2]
    line, complete, _ = body.partition(b"\n")
    parts = line.split()
    try:
        numbers = list(map(float, parts[-dim:] if complete else parts[1:-1]))
    except ValueError:
        numbers = []
    if (len(parts) > dim and len(numbers) == dim) or (not complete and numbers):
        return False
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(body) - 4:  # otherwise the last character is incomplete
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
    """Read the vectors of a text file."""
    first = 1
    promised, dim = shape if shape is not None else (None, 0)
    if shape is not None:
        file.readline()
        first = 2
    wanted = min((n for n in (limit, promised) if n is not None), default=None)
    words: list[str] = []
    values = array("f")  # grows in place; a list of rows would take twice the memory
    for number, raw in enumerate(file, first):
        if wanted is not None and len(words) == wanted:
            if limit is None and raw.strip():
                raise VectorError(
                    f"{position(path, number)}: the file has more than the {wanted:,} words that its "
                    "first line promises; correct the line, or read with a limit"
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
        word, numbers = parsed
        words.append(word)
        values.extend(numbers)
        dim = len(numbers)
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
    """Return a word and its ``dim`` numbers (0: any number), or None for another line."""
    # As in gensim: one space before each number, and everything before the numbers is the word.
    word, *texts = line.rsplit(" ", dim) if dim else line.split(" ")
    fits = len(texts) == dim if dim else not _ends_in_column(word)
    if texts and fits and " " not in word and (numbers := _numbers(texts)) is not None:
        return word, numbers
    # As other tools write: tabs, several spaces, and a word of several parts whose last is not a number.
    word, *texts = (line.rsplit(None, dim) if dim else line.split()) or [""]
    parts = word.split()
    if len(texts) != (dim or len(texts) or 1) or (len(parts) > 1 and _is_number(parts[-1])):
        return None
    numbers = _numbers(texts)
    return None if numbers is None else (word.lstrip(), numbers)


def _ends_in_column(word: str) -> bool:
    """Return whether the part before the first space is a word, a tab and a number."""
    _, tab, last = word.rpartition("\t")
    return bool(tab) and _is_number(last)


def _numbers(texts: list[str]) -> list[float] | None:
    try:
        return list(map(float, texts))
    except ValueError:
        return None


def _is_number(text: str) -> bool:
    return _numbers([text]) is not None


def _wrong(line: str, dim: int) -> str:
    """Describe the fault in a line that is not a word and ``dim`` numbers."""
    parts = line.split()[1:]
    if not parts and not dim:
        return "a word without numbers; a line is a word and its components, one space before each"
    invalid = [part for part in parts if not _is_number(part)]
    if invalid and (not dim or len(parts) == dim):
        return f"{invalid[0]!r} is not a number"
    return f"{len(parts):,} numbers follow the word, and there must be {dim:,}"
