"""Write the derived files of data sets from the published files that they come from, byte for byte.

The sha256 of every derived file is known, so a changed source is noticed.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from wordloom.data.sets import stories260k

_BOOK_BEGINS = re.compile(r"\*\*\* ?START OF (THE|THIS) PROJECT GUTENBERG.*?\*\*\*", re.IGNORECASE)
_BOOK_ENDS = re.compile(r"\*\*\* ?END OF (THE|THIS) PROJECT GUTENBERG", re.IGNORECASE)
_LAST_LINE = re.compile(r"\n\s*End of (the )?Project Gutenberg.*\Z", re.IGNORECASE | re.DOTALL)
_PAIR = ("UID", "field", "linguistics_term", "pairID", "sentence_good", "sentence_bad")


def content(path: str, sources: list[Path]) -> bytes:
    """Return the content of the derived file ``path``; ``sources`` are the local copies of its sources."""
    folder, _, name = path.partition("/")
    return _RULES[folder](name, *sources)


def book_text(raw: bytes) -> str:
    """Return a book without Project Gutenberg's header and footer, with at most one blank line in a row."""
    text = raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    if begin := _BOOK_BEGINS.search(text):
        text = text[begin.end() :]
    if end := _BOOK_ENDS.search(text):
        text = text[: end.start()]
    return re.sub(r"\n{3,}", "\n\n", _LAST_LINE.sub("", text)).strip()


def _gutenberg(name: str, archive: Path) -> bytes:
    listed = json.loads((resources("wordloom.data") / "gutenberg.json").read_text(encoding="utf-8"))
    with zipfile.ZipFile(archive) as opened:
        members = _members(opened)
        books = [book_text(opened.read(members[f"{title}.txt"])) for title in listed[name.partition(".")[0]]]
    return ("\n\n<|endoftext|>\n".join(books) + "\n").encode()


def _blimp(_name: str, archive: Path) -> bytes:
    lines = []
    with zipfile.ZipFile(archive) as opened:
        for path, member in sorted(_members(opened).items()):
            if path.startswith("data/") and path.endswith(".jsonl"):
                for line in opened.read(member).decode().splitlines():
                    pair = json.loads(line)
                    lines.append(json.dumps({key: pair[key] for key in _PAIR}, ensure_ascii=False) + "\n")
    return "".join(lines).encode()


def _members(archive: zipfile.ZipFile) -> dict[str, str]:
    """Return the names of the archive's members by their path in the repository."""
    return {name.partition("/")[2]: name for name in archive.namelist()}


def _squad(name: str, source: Path) -> bytes:
    given = json.loads(source.read_text(encoding="utf-8"))
    articles = given["data"][:24] if name.startswith("dev") else [_training_article(given)]
    return json.dumps({"version": "1.1", "data": articles}, ensure_ascii=False).encode()


def _training_article(paragraphs: list[dict[str, Any]]) -> dict[str, Any]:
    """The questions in SQuAD's format; the source has the texts of the answers, not where they begin."""
    article: dict[str, Any] = {"title": "", "paragraphs": []}
    number = 0
    for paragraph in paragraphs:
        asked = []
        for given in paragraph["qas"]:
            number += 1
            answer = {
                "text": given["answer"],
                "answer_start": paragraph["context"].find(given["answer"]),
            }
            asked.append(
                {
                    "id": f"train-subset-{number:05}",
                    "question": given["question"],
                    "answers": [answer],
                }
            )
        article["paragraphs"].append({"context": paragraph["context"], "qas": asked})
    return article


_RULES: dict[str, Callable[..., bytes]] = {
    "gutenberg": _gutenberg,
    "blimp": _blimp,
    "squad": _squad,
    "weights": lambda name, *sources: stories260k.content(name.rpartition("/")[2], *sources),
}
