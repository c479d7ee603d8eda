"""The corpus that every Python carries: its own documentation, about 1.8 MB of English.

It is what ``pydoc_data.topics`` holds (the language reference, by topic) and the docstrings of the
standard library, read with :mod:`ast` from the source files; nothing is imported.  One document is
one topic or one source file, its paragraphs in their order, a blank line between two.

Four choices make it English, and make its held-out part honest:

- Tests are left out (folders ``test``, ``tests`` and ``idle_test``): their docstrings are labels
  and expected outputs, and many systems install Python without them.
- Doctest examples (from ``>>>`` to the next blank line, as :mod:`doctest` reads them) are left
  out.  Grammar, signatures and code samples inside the prose stay, about 3% of the bytes.
- A paragraph appears once: it is dropped when its letters, in words and in lower case, were seen
  in an earlier one, or when more than half of its runs of five words were.  The second rule takes
  what was copied from module to module and then edited.
- A topic or a file goes to one part as a whole, by a hash of its name, about one byte in ten to
  validation.  A name keeps its part in every version of Python.

The corpus is the same wherever the same standard library lies; two versions of Python differ.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Literal, cast, get_args

from wordloom.data.files.document import Document
from wordloom.errors import DataError, did_you_mean
from wordloom.files import write_bytes

__all__ = ["Part", "embedded_documents", "embedded_file", "write_embedded"]

Part = Literal["train", "validation", "all"]

# Of the seeds below 100, the one that holds out nearest to a tenth of the topics and a tenth of the
# docstrings on Python 3.11, 3.12 and 3.13 with no document above a tenth of what it holds out.  No
# model was scored to choose it.
_SPLIT_SEED = 73
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data"}
_SHINGLE = 5  # words

_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")
_DOCTEST = re.compile(r"^[ \t]*>>>.*", re.MULTILINE | re.DOTALL)
_TRAILING_SPACE = re.compile(r"[ \t]+$", re.MULTILINE)
# Control characters, byte-order marks and lone surrogates: a handful, from string escapes.
_NOT_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ud800-\udfff]")


def embedded_documents(part: Part = "all") -> Iterator[Document]:
    """The documents of one part of the corpus, or of both, topics first.

    A document's ``source`` is the path of its file under the library, for a topic
    ``pydoc_data/topics.py:NAME``; its ``index`` is 0, for a source holds one document.  The text is
    a ``str``.  Reading the library takes some seconds, once per process.

    Raises :class:`~wordloom.errors.DataError` for an unknown part, and on a Python that carries
    no standard-library sources.
    """
    if part not in get_args(Part):
        raise DataError(
            f"the embedded corpus has no part {part!r}; {did_you_mean(str(part), get_args(Part))}"
        )
    return (Document(text, source, 0) for source, text in _texts(part))


def write_embedded(folder: str | os.PathLike[str]) -> list[Path]:
    """Write ``train.jsonl`` and ``validation.jsonl`` into ``folder``; returns the two paths.

    One JSON object a line, with ``text`` and ``source``.  A file appears whole or not at all; one
    that is there already and equal is left as it is.

    Raises :class:`~wordloom.errors.DataError` when a file is there and differs (another version of
    Python wrote it), before anything is written.
    """
    folder = Path(folder)
    contents = {folder / f"{part}.jsonl": _json_lines(part) for part in ("train", "validation")}
    for path, content in contents.items():
        if path.exists() and path.read_bytes() != content:
            raise DataError(
                f"{path} exists and differs from the corpus of Python {sys.version.split()[0]}; "
                "choose another folder, or remove the file to have it written anew"
            )
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        if not path.exists():
            write_bytes(path, content)
    return list(contents)


def embedded_file(folder: str | os.PathLike[str], path: str) -> Path:
    """The file ``path`` (``python-docs/train.jsonl``) of the corpus below ``folder``, written when missing.

    Another Python, or another version of this module, has a folder of its own: its text may differ.
    """
    made_by = f"{sys.version}\n{_standard_library()}\n".encode() + Path(__file__).read_bytes()
    name = Path(path)
    place = Path(folder) / f"{name.parent}-{blake2b(made_by, digest_size=6).hexdigest()}"
    if not (place / name.name).exists():
        write_embedded(place)
    return place / name.name


def _texts(part: Part) -> Iterator[tuple[str, str]]:
    for source, text in _corpus(_standard_library()):
        if part in ("all", _part_of(source)):
            yield source, text


def _json_lines(part: Part) -> bytes:
    rows = (json.dumps({"text": text, "source": source}, ensure_ascii=False) for source, text in _texts(part))
    return "".join(f"{row}\n" for row in rows).encode()


def _part_of(source: str) -> Literal["train", "validation"]:
    digest = blake2b(f"{_SPLIT_SEED}:{source}".encode(), digest_size=8).digest()
    return "validation" if int.from_bytes(digest, "big") < 2**64 // 10 else "train"


def _standard_library() -> Path:
    folder = Path(sysconfig.get_path("stdlib"))
    if not (folder / "pydoc_data" / "topics.py").is_file():
        raise DataError(
            f"this Python carries no library sources with pydoc_data/topics.py (looked in {folder}); "
            "use a full installation of Python, or train on a text of your own"
        )
    return folder


@lru_cache(maxsize=1)
def _corpus(library: Path) -> tuple[tuple[str, str], ...]:
    """(source, text) of every document, topics first, since a copy yields to the first seen."""
    sources = list(_topics(library / "pydoc_data" / "topics.py"))
    for path in sorted(library.rglob("*.py"), key=lambda path: path.relative_to(library).as_posix()):
        relative = path.relative_to(library)
        if _NOT_LIBRARY.isdisjoint(relative.parts):
            sources.append((relative.as_posix(), list(_docstrings(_parse(path)))))
    documents = zip(
        (source for source, _ in sources), _deduplicated(texts for _, texts in sources), strict=True
    )
    return tuple((source, "\n\n".join(paragraphs)) for source, paragraphs in documents if paragraphs)


def _parse(path: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # invalid escapes in old docstrings
        warnings.simplefilter("ignore", DeprecationWarning)  # the same, before Python 3.12
        try:
            return ast.parse(path.read_bytes())
        except (SyntaxError, ValueError) as error:
            raise DataError(
                f"{path} is not Python {sys.version.split()[0]} ({error}); the embedded corpus reads the "
                "library's own sources: repair the installation, or train on a text of your own"
            ) from error


def _topics(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The one dictionary in ``pydoc_data/topics.py``, a document per topic, by name."""
    for statement in _parse(path).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            topics = cast(dict[str, str], ast.literal_eval(statement.value))
            yield from ((f"pydoc_data/topics.py:{name}", [topics[name]]) for name in sorted(topics))
            return
    raise DataError(f"{path} holds no dictionary of topics, as Python 3.11 to 3.14 have it; use one of these")


def _docstrings(tree: ast.AST) -> Iterator[str]:
    """Dedented docstrings of a module, its classes and functions, nested ones too, from the top."""
    if isinstance(tree, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(tree)
        if docstring:
            yield docstring
    for child in ast.iter_child_nodes(tree):
        # Definitions stand among statements; expressions hold none and are most of a tree.
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _docstrings(child)


def _paragraphs(text: str) -> Iterator[str]:
    """Return the paragraphs between blank lines, without doctest examples, with their indentation."""
    text = _TRAILING_SPACE.sub("", _NOT_TEXT.sub("", text))
    for block in _BLANK_LINES.split(text):
        paragraph = _DOCTEST.sub("", block).strip("\n")
        if paragraph:
            yield paragraph


def _deduplicated(sources: Iterable[Iterable[str]]) -> Iterator[list[str]]:
    """The paragraphs of each source that were not seen before, in it or in an earlier one."""
    seen: set[str] = set()
    shingles: set[tuple[str, ...]] = set()
    for texts in sources:
        kept = []
        for paragraph in (paragraph for text in texts for paragraph in _paragraphs(text)):
            words = re.findall(r"[^\W\d_]+", paragraph.lower())
            runs = set(zip(*(words[i:] for i in range(_SHINGLE)), strict=False))
            key = " ".join(words)
            if not key or key in seen or 2 * len(runs & shingles) > len(runs):
                continue
            seen.add(key)
            shingles |= runs
            kept.append(paragraph)
        yield kept
