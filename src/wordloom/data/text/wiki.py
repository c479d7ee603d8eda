"""Read Wikipedia ``pages-articles`` dumps: stream the XML by page, strip mark-up with mwparserfromhell.

The text holds the title and the section headings as plain lines, running text, and the text of links.  It has
no templates, tables, files, images and captions, categories, references, galleries, formulas and comments.
Redirects and pages outside the article namespace are dropped and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple
from xml.etree import ElementTree

from wordloom.data.files.source import Source
from wordloom.data.files.stream import Meter, blocks
from wordloom.data.text.wiki_markup import FILE_LINKS
from wordloom.errors import DataError

_FILE, _CATEGORY = 6, 14  # MediaWiki's namespace numbers; their names differ by language


class Page(NamedTuple):
    """A page of the dump."""

    title: str
    namespace: int
    redirect: bool
    markup: str


def wikipedia_texts(
    file: Source, tally: Counter[str], meter: Meter | None = None, *, workers: int | None = None
) -> Iterator[str]:
    """Yield the articles of a dump as plain text; each begins with its title on a line.

    ``tally`` counts the redirects and the pages outside the article namespace.  ``workers`` is the number of
    processes that strip mark-up (default: one per processor); the order of articles does not depend on it.

    Raises DataError if mwparserfromhell is missing, or the file is truncated or no MediaWiki export.
    """
    from wordloom.data.text.wiki_workers import stripped  # imports numpy, which other formats do not need

    require_parser()
    prefixes: set[str] = set()
    for title, text in stripped(_articles(file, tally, prefixes, meter), prefixes, workers):
        if text is None:
            tally["articles whose mark-up cannot be parsed"] += 1
        else:
            yield f"{title}\n\n{text}"


def require_parser() -> str:
    """Return the version of mwparserfromhell, which the text depends on."""
    try:
        import mwparserfromhell
    except ImportError:
        raise DataError(
            "reading Wikipedia dumps needs the package mwparserfromhell: pip install mwparserfromhell"
        ) from None
    return str(mwparserfromhell.__version__)


def _articles(
    file: Source, tally: Counter[str], prefixes: set[str], meter: Meter | None
) -> Iterator[tuple[str, str]]:
    for page in pages(file, prefixes, meter):
        if page.namespace != 0:
            tally["pages that are not articles"] += 1
        elif page.redirect:
            tally["redirects"] += 1
        else:
            yield page.title, page.markup


def pages(file: Source, prefixes: set[str], meter: Meter | None = None) -> Iterator[Page]:
    """Yield every page of the dump; add its link prefixes of files and categories to ``prefixes``."""
    prefixes.update(FILE_LINKS)
    parser: Any = ElementTree.XMLPullParser(("start", "end"))
    root: ElementTree.Element | None = None
    try:
        for block in blocks(file, meter):
            parser.feed(block)
            for event, element in parser.read_events():
                assert isinstance(element, ElementTree.Element)
                tag = _local(element.tag)
                if root is None:
                    root = element
                    if tag != "mediawiki":
                        raise DataError(f"{file.name}: XML of <{tag}>, not a MediaWiki export (<mediawiki>)")
                elif event == "end" and tag == "namespace":
                    if (
                        _number(element.get("key", "0"), "namespace", file) in (_FILE, _CATEGORY)
                        and element.text
                    ):
                        prefixes.add(element.text.lower())
                elif event == "end" and tag == "page":
                    yield _page(element, file)
                    root.clear()  # otherwise the tree grows with the dump
        parser.close()
    except ElementTree.ParseError as error:
        raise DataError(f"{file.name}: truncated or broken XML ({error}); download it again") from error


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _number(text: str, tag: str, file: Source) -> int:
    try:
        return int(text)
    except ValueError:
        raise DataError(
            f"{file.name}: <{tag}> {text[:40]!r} is not the number of a namespace; download the dump again"
        ) from None


def _page(element: ElementTree.Element, file: Source) -> Page:
    title, namespace, redirect, markup = "", 0, False, ""
    for child in element:
        match _local(child.tag):
            case "title":
                title = child.text or ""
            case "ns":
                namespace = _number(child.text or "0", "ns", file)
            case "redirect":
                redirect = True
            case "revision":
                for part in child:
                    if _local(part.tag) == "text":
                        markup = part.text or ""
    return Page(title, namespace, redirect or markup.lstrip()[:9].upper() == "#REDIRECT", markup)
