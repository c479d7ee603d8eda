"""Files of word vectors: word2vec's text and binary, GloVe's text, and a folder of our own.

A vector file is taken whole or refused: a line with another number of components, a number that is none, a
word twice, a file that ends too soon or too late are errors that say where.  What gensim reads is what we
write, and the other way round.
"""

from __future__ import annotations

import gzip
import json
import mmap
import os
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError
from wordloom.vectors.fasttext_vectors import FastTextVectors
from wordloom.vectors.keyed import KeyedVectors
from wordloom.vectors.subwords import Subwords
from wordloom.vectors.whole_files import durable, new_file, opened, temporary, written

__all__ = ["is_fasttext", "load_vectors", "load_word2vec", "save_vectors", "save_word2vec"]

Progress = Callable[[int, int | None], None]

_ROWS = ("vocab", "ngrams")
_OPTIONAL = {"counts.npy", "vectors_vocab.npy", "vectors_ngrams.npy"}  # not every folder has these
_HEAD = 1 << 16  # bytes that show what a file is
_LONGEST_WORD = 1 << 16  # bytes; a binary file in which none ends within that is none
_FASTTEXT = (793712314).to_bytes(4, "little")
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\x0b\x0c"))


# -- our own folder --------------------------------------------------------------------------------------


def save_vectors(vectors: KeyedVectors, folder: str | os.PathLike[str], **about: Any) -> None:
    """Write ``vectors.npy`` [V, D] float32, ``words.txt`` (UTF-8, one to a line), ``counts.npy`` [V] int64
    where there are counts, and ``vectors.json``: the shape and ``about``.  Of :class:`FastTextVectors` also
    ``vectors_vocab.npy`` [V, D] and ``vectors_ngrams.npy`` [buckets, D].

    Older vectors in ``folder`` are replaced at the end, all at once; other files stay.

    Raises:
        VectorError: a word holds a line break, ``about`` is no JSON, or the folder cannot be written.
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
        raise VectorError(f"what is kept beside the vectors must be JSON: {error}") from None
    words = [_encoded(word, "\n", "words.txt") + b"\n" for word in vectors.index_to_key]
    contents: dict[str, Callable[[IO[bytes]], object]] = {
        name: partial(np.save, arr=np.ascontiguousarray(rows, dtype="<f4")) for name, rows in parts.items()
    }
    contents["words.txt"] = lambda file: file.writelines(words)
    if (counts := vectors.counts) is not None:
        contents["counts.npy"] = lambda file: np.save(file, counts.astype("<i8"))
    contents["vectors.json"] = lambda file: file.write(about_text.encode())
    with written(folder), ExitStack() as temporaries:
        ready = {name: temporaries.enter_context(temporary(folder / name)) for name in contents}
        for name, write in contents.items():
            with durable(ready[name]) as file:
                write(file)
        # Without vectors.json, which comes last, there are no vectors: never old words with new vectors.
        (folder / "vectors.json").unlink(missing_ok=True)
        for name, beside in ready.items():
            beside.replace(folder / name)
        for name in _OPTIONAL - contents.keys():
            (folder / name).unlink(missing_ok=True)


def load_vectors(path: str | os.PathLike[str]) -> KeyedVectors:
    """The vectors of a folder that :func:`save_vectors` wrote, memory-mapped: they take no memory until asked
    for, and the time to open them is that of reading the words.  A file is read by :func:`load_word2vec`, a
    fastText model by :func:`load_fasttext`, which also maps it but looks it through once.

    Raises:
        VectorError: there are no vectors at ``path``, or they are damaged.
    """
    folder = Path(path)
    if not folder.is_dir():
        return _fasttext_vectors(folder) if is_fasttext(folder) else load_word2vec(folder)
    try:
        about = json.loads((folder / "vectors.json").read_bytes())
        words = (folder / "words.txt").read_bytes().decode("utf-8").split("\n")[:-1]
        vectors = _mapped(folder / "vectors.npy")
        counts = np.load(folder / "counts.npy") if about["counted"] else None
        expected = (about["words"], about["dim"])
        subwords = Subwords(**about["subwords"]) if "subwords" in about else None
        parts = [_mapped(folder / f"vectors_{part}.npy") for part in _ROWS if subwords is not None]
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise VectorError(
            f"'{folder}' holds no word vectors: it has no {missing}; give another folder"
        ) from None
    except (OSError, ValueError, EOFError, KeyError, TypeError, VectorError) as error:
        raise VectorError(f"the word vectors in '{folder}' are damaged ({error}); make them again") from None
    if vectors.shape != expected or len(words) != len(vectors):
        raise VectorError(
            f"the word vectors in '{folder}' are damaged: vectors.npy has the shape {vectors.shape}, "
            f"words.txt {len(words):,} words, and vectors.json says {expected}; make them again"
        )
    if subwords is None:
        return KeyedVectors(words, vectors, counts=counts, check=False)
    try:
        own, ngrams = parts
        return FastTextVectors(words, own, ngrams, subwords, counts=counts, vectors=vectors, check=False)
    except VectorError as error:
        raise VectorError(f"the word vectors in '{folder}' are damaged ({error}); make them again") from None


def _mapped(path: Path) -> NDArray[np.float32]:
    return np.load(path, mmap_mode="r").view(np.ndarray)


def is_fasttext(path: Path) -> bool:
    """Whether a file begins as fastText's models do."""
    try:
        with opened(path) as file:
            return file.read(len(_FASTTEXT)) == _FASTTEXT
    except (OSError, EOFError, zlib.error):
        return False  # what is wrong is said where it is read


def _fasttext_vectors(path: Path) -> FastTextVectors:
    from wordloom.vectors.fasttext_format import load_fasttext

    model = load_fasttext(path)
    try:
        return model.wv
    except VectorError as error:
        raise VectorError(f"'{path}': {error}") from None


# -- other tools' files ----------------------------------------------------------------------------------


def save_word2vec(
    vectors: KeyedVectors, path: str | os.PathLike[str], *, binary: bool | None = None, header: bool = True
) -> None:
    """Write word2vec's format: text, or binary where ``binary`` (by default: where the name ends in .bin).

    ``header=False`` leaves the first line out of a text: GloVe's format.  Numbers in text are the shortest
    that read back to the same float32.  A name that ends in .gz is compressed.  The file appears under its
    name when it is complete.

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
    words = [_encoded(word, " \n", path.name) for word in vectors.index_to_key]
    with new_file(path) as file:
        if header:
            file.write(f"{len(vectors)} {vectors.vector_size}\n".encode())
        for word, row in zip(words, vectors.vectors, strict=True):
            numbers = row.astype("<f4").tobytes() if binary else " ".join(map(str, row)).encode()
            file.write(b"%b %b\n" % (word, numbers))


def load_word2vec(
    path: str | os.PathLike[str],
    *,
    binary: bool | None = None,
    header: bool | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> KeyedVectors:
    """Read word2vec's text or binary format, or GloVe's text, compressed by gzip or not.

    Args:
        path: the file.
        binary, header: whether it is binary, and whether it begins with the number of words and of
            components; None sees for itself.  (A first line of two whole numbers is taken for a header.)
        limit: read the first so many words alone.
        progress: told, now and then, how many words are read, and of how many where that is known.

    Raises:
        VectorError: there is no such file, or it goes wrong somewhere, with the line or word.
    """
    path = Path(path)
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
                words, values = _read_binary(file, path, shape, limit, progress)
            else:
                try:
                    words, values = _read_text(file, path, shape, limit, progress)
                except VectorError:
                    if shape is not None or b"\0" not in head:
                        raise
                    raise VectorError(
                        f"'{path}' is neither a text of vectors nor word2vec's binary, which begins with a "
                        "line of two numbers; of a fastText model give the .vec file"
                    ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise VectorError(f"'{path}' is cut short or damaged ({error}); fetch it again") from None
    except OSError as error:
        raise VectorError(
            f"cannot read '{path}': {error.strerror or error}; give a file of vectors"
        ) from None
    try:
        return KeyedVectors(words, values)
    except VectorError as error:
        raise VectorError(f"'{path}': {error}") from None


def _refuse_strangers(path: Path, head: bytes) -> None:
    if not head.strip():
        raise VectorError(f"'{path}' is empty; give a file of vectors")
    if head.startswith(_FASTTEXT):
        raise VectorError(
            f"'{path}' is a fastText model, not a file of word vectors alone; read it with load_vectors, or "
            "give its .vec file"
        )
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        raise VectorError(
            f"'{path}' is a pickle, which is never read: it can run code; write it again with "
            "gensim's save_word2vec_format"
        )


def _shape(head: bytes) -> tuple[int, int] | None:
    """What a first line of two whole numbers says."""
    parts = head.partition(b"\n")[0].split()
    if len(parts) == 2 and all(part.isdigit() and len(part) < 19 for part in parts):
        return int(parts[0]), int(parts[1])
    return None


def _looks_binary(head: bytes, dim: int) -> bool:
    """Whether what follows the first line is no text: the first vector is not written in figures, and there
    are bytes that no text has."""
    body = head.partition(b"\n")[2]
    line, complete, _ = body.partition(b"\n")
    parts = line.rstrip().split(b" ")
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
    file: IO[bytes], path: Path, shape: tuple[int, int] | None, limit: int | None, progress: Progress | None
) -> tuple[list[str], NDArray[np.float32]]:
    """The words and vectors [V, D] of a text."""
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
                    f"'{path}' goes on in line {number:,} after the {wanted:,} words that its first line "
                    "promises; put that right, or read with a limit"
                )
            break
        line = _text(raw, path, f"line {number:,}").rstrip(" \t\r\n")
        if not line:
            continue
        # From the right, so that a word may hold spaces; but what stands before the components is no number.
        word, *figures = line.rsplit(" ", dim) if dim else line.split(" ")
        dim = dim or len(figures)
        try:
            if len(figures) != dim or not dim or (" " in word and _is_number(word.rpartition(" ")[2])):
                raise ValueError
            values.extend(map(float, figures))
        except ValueError:
            raise VectorError(f"'{path}', line {number:,}: {_wrong(line, dim)}") from None
        words.append(word)
        if progress is not None and len(words) % 10_000 == 0:
            progress(len(words), wanted)
    if promised is not None and wanted is not None and len(words) < wanted:
        raise VectorError(
            f"'{path}' is cut short: its first line promises {promised:,} words, {len(words):,} are there"
        )
    if not words:
        raise VectorError(f"'{path}' is empty; give a file of vectors")
    return words, np.frombuffer(values, dtype=np.float32).reshape(len(words), dim)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _wrong(line: str, dim: int) -> str:
    """What is wrong with a line that is no word and ``dim`` numbers."""
    if not dim:
        return "a word without numbers; a line is a word and its components, one space before each"
    parts = line.split(" ")[1:]
    odd = [part for part in parts if not _is_number(part)]
    if odd and len(parts) == dim:
        return f"{odd[0]!r} stands where a number belongs"
    return f"{len(parts):,} numbers after the word where {dim:,} belong"


def _read_binary(
    file: IO[bytes], path: Path, shape: tuple[int, int], limit: int | None, progress: Progress | None
) -> tuple[list[str], NDArray[np.float32]]:
    """The words and vectors [V, D] of a binary."""
    promised, dim = shape
    wanted = min(promised, limit or promised)
    with _content(file) as content:
        place = content.find(b"\n") + 1
        if len(content) - place < wanted * (4 * dim + 1):  # before memory is asked for that much
            raise VectorError(
                f"'{path}' is cut short: {wanted:,} vectors of {dim:,} components do not fit in "
                f"{len(content):,} bytes; fetch it again"
            )
        words: list[str] = []
        vectors = np.empty((wanted, dim), dtype=np.float32)
        for row in range(wanted):
            end = content.find(b" ", place, place + _LONGEST_WORD)
            if end < 0 or end + 1 + 4 * dim > len(content):
                raise VectorError(f"'{path}' is cut short or damaged at word {row + 1:,} of {promised:,}")
            # word2vec.c ends each vector with a line break, gensim does not
            words.append(_text(content[place:end].lstrip(b"\n"), path, f"word {row + 1:,}"))
            place = end + 1 + 4 * dim
            vectors[row] = np.frombuffer(content[end + 1 : place], dtype="<f4")
            if progress is not None and row % 10_000 == 9_999:
                progress(row + 1, wanted)
        if limit is None and (left := len(content) - place) and content[place : place + 2] != b"\n":
            raise VectorError(
                f"'{path}' goes on for {left:,} bytes after the {promised:,} words of {dim:,} components "
                "that its first line promises; put that right, or read with a limit"
            )
    return words, vectors


def _text(raw: bytes, path: Path, place: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise VectorError(f"'{path}', {place}: not UTF-8 ({error.reason}); convert the file") from None


def _encoded(word: str, forbidden: str, name: str) -> bytes:
    """The bytes of a word that a format can keep."""
    if not word or any(letter in word for letter in forbidden):
        raise VectorError(f"the word {word!r} is empty or holds a space or line break: {name} cannot keep it")
    try:
        return word.encode("utf-8")
    except UnicodeEncodeError:
        raise VectorError(f"the word {word!r} is half a character: {name} cannot keep it") from None


@contextmanager
def _content(file: Any) -> Iterator[Any]:
    """All bytes of a file, mapped where it lies on disk as it is."""
    if isinstance(file, gzip.GzipFile):
        yield file.read()
        return
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        yield mapped
