"""Plain text from wiki mark-up, which mwparserfromhell parses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from typing import Any

_DROPPED_TAGS = {
    *("ref", "references", "table", "gallery", "math", "chem", "ce", "timeline", "imagemap", "score"),
    *("graph", "hiero", "syntaxhighlight", "source", "templatedata", "inputbox", "categorytree", "section"),
    *("style", "script", "noinclude", "mapframe", "maplink", "indicator"),
}
_LIST_TAGS = {"li", "dd", "dt", "hr"}  # as mark-up (*, :, ;) they have no contents of their own
FILE_LINKS = frozenset(("file", "image", "media", "category"))
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_REFERENCE = re.compile(r"<ref\b[^>]*?(?:/>|>.*?</ref\s*>)", re.DOTALL | re.IGNORECASE)
_BROKEN_REFERENCE = re.compile(r"</?ref\b[^>]*>", re.IGNORECASE)
_BROKEN_TABLE = re.compile(r"^\{\|.*?^\|\}", re.DOTALL | re.MULTILINE)
_POSSESSIVE = re.compile(r"(?<=\w)'''(?=s\b)")  # the end of italics, then an apostrophe: ''Iliad'''s
_QUOTES = re.compile(r"'{2,}")
_LINE_EDGES = re.compile(r"^[ \t]+|[ \t]+$", re.MULTILINE)
_MAGIC_WORD = re.compile(r"__[A-Z]+__")
_EMPTY_BRACKETS = re.compile(r" ?\(\s*[;,]?\s*\)")  # what templates such as {{IPA}} leave behind
_BLANK_LINES = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")


def strip_markup(markup: str, *, dropped_links: Set[str] = FILE_LINKS) -> str:
    """Return plain text; ``dropped_links`` are the lower-case prefixes of file and category links."""
    import mwparserfromhell

    # References are most of the mark-up of many articles; without them the parser fails less often.
    markup = _REFERENCE.sub("", _COMMENT.sub("", markup))
    # A rule below handles quotes: one unbalanced '' makes the parser give up on the tables around it.
    code = mwparserfromhell.parse(markup, skip_style_tags=True)
    text = "".join(_text(code, dropped_links))
    text = _BROKEN_REFERENCE.sub("", _BROKEN_TABLE.sub("", text))
    text = _QUOTES.sub("", _POSSESSIVE.sub("'", text))
    text = _EMPTY_BRACKETS.sub("", _MAGIC_WORD.sub("", text))
    return _BLANK_LINES.sub("\n\n", _LINE_EDGES.sub("", text)).strip()


def _text(code: Any, links: Set[str]) -> Iterator[str]:
    """Yield the visible text of a parsed article; templates, arguments and comments have none."""
    for node in code.nodes if code is not None else ():
        match type(node).__name__:
            case "Text":
                yield node.value
            case "Wikilink":
                prefix, colon, _ = str(node.title).partition(":")
                if not (colon and prefix.strip().lower() in links):
                    yield from _text(node.text if node.text is not None else node.title, links)
            case "Heading":
                yield from _text(node.title, links)
            case "ExternalLink":
                if node.title is not None:
                    yield from _text(node.title, links)
                elif not node.brackets:
                    yield str(node.url)
            case "HTMLEntity":
                yield node.normalize()
            case "Tag":
                tag = str(node.tag).strip().lower()
                if tag == "br":
                    yield "\n"
                elif tag not in _DROPPED_TAGS and not (node.wiki_markup and tag in _LIST_TAGS):
                    yield from _text(node.contents, links)
