"""A corpus of Python's own documentation, about 1.8 MB of English.

It consists of ``pydoc_data.topics`` (the language reference, by topic) and the docstrings of the standard
library, read with :mod:`ast` from the source files without importing them.  A document is a topic or a source
file, with blank lines between its paragraphs.  The corpus depends on the version of Python alone.

- Tests are left out (folders ``test``, ``tests`` and ``idle_test``): their docstrings are labels and expected
  outputs, and many systems install Python without them.
- Doctest examples (from ``>>>`` to the next blank line) are left out.  Grammar, signatures and code samples
  inside the prose stay, about 3% of the bytes.
- A paragraph is dropped if an earlier one has the same words, or contains more than half of its runs of five
  words, as texts do that were copied between modules and edited.
- The hash of its name puts a topic or file into one part, about one byte in ten into validation.  A name
keeps
  its part in every version of Python.
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

from wordloom.data.files.source import Document
from wordloom.errors import DataError, did_you_mean
from wordloom.files import write_bytes

Part = Literal["train", "validation", "all"]

# The seed below 100 that holds out nearest to a tenth of the topics and of the docstrings on Python 3.11 to
# 3.13, with no document above a tenth of the held-out part.  It was chosen without any model's score.
_SPLIT_SEED = 73
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data"}
_SHINGLE = 5  # words

_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")
_DOCTEST = re.compile(r"^[ \t]*>>>.*", re.MULTILINE | re.DOTALL)
_TRAILING_SPACE = re.compile(r"[ \t]+$", re.MULTILINE)
# Control characters, byte-order marks and lone surrogates: a handful, from string escapes.
_NOT_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ud800-\udfff]")


def embedded_documents(part: Part = "all") -> Iterator[Document]:
    """Return the documents of one part of the corpus, or of both, topics first.

    The ``source`` of a document is the path of its file in the library, or ``pydoc_data/topics.py:NAME``; its
    ``index`` is 0.  Reading the library takes some seconds, once per process.

    Raises DataError for an unknown part, and on a Python without the sources of its standard library.
    """
    if part not in get_args(Part):
        raise DataError(
            f"the embedded corpus has no part {part!r}; {did_you_mean(str(part), get_args(Part))}"
        )
    return (Document(text, source, 0) for source, text in _texts(part))


def write_embedded(folder: str | os.PathLike[str]) -> list[Path]:
    """Write ``train.jsonl`` and ``validation.jsonl`` into ``folder``, and return the two paths.

    Each line is a JSON object with ``text`` and ``source``.  Equal files stay as they are.

    Raises DataError, before anything is written, if another version of Python wrote a file.
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
    """Return the file ``path`` (``python-docs/train.jsonl``) below ``folder``; write it if it is missing.

    Every version of Python and of this module has its own folder, because the text may differ.
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
    """Return (source, text) of every document, topics first, because the first of two copies stays."""
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
    """Yield the topics in the dictionary of ``pydoc_data/topics.py``, by name."""
    for statement in _parse(path).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            topics = cast(dict[str, str], ast.literal_eval(statement.value))
            yield from ((f"pydoc_data/topics.py:{name}", [topics[name]]) for name in sorted(topics))
            return
    raise DataError(f"{path} holds no dictionary of topics, as Python 3.11 to 3.14 have it; use one of these")


def _docstrings(tree: ast.AST) -> Iterator[str]:
    """Yield the dedented docstrings of a module, its classes and functions, from the top."""
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
    """Yield the paragraphs of each source that are new in it and in all earlier sources."""
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
