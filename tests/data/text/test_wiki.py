"""MediaWiki exports: what is kept, what is dropped, in which order, and what is refused."""

from __future__ import annotations

import bz2
import re
from collections import Counter
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from wordloom.data import documents, pieces
from wordloom.data.files.stream import Meter
from wordloom.data.text.wiki_markup import strip_markup
from wordloom.data.text.wiki_workers import Stripper, stripped
from wordloom.errors import DataError

pytest.importorskip("mwparserfromhell")

NAMESPACES = '<namespaces><namespace key="0" /><namespace key="6">Datei</namespace></namespaces>'


def page(title: str, text: str, *, ns: int = 0, redirect: bool = False) -> str:
    mark = '<redirect title="X" />' if redirect else ""
    return (
        f"<page><title>{escape(title)}</title><ns>{ns}</ns><id>1</id>{mark}<revision><id>2</id>"
        f'<contributor><username>u</username></contributor><text xml:space="preserve">{escape(text)}</text>'
        "</revision></page>"
    )


def dump(*pages: str) -> bytes:
    start = f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/"><siteinfo>{NAMESPACES}</siteinfo>'
    return (start + "".join(pages) + "</mediawiki>").encode()


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("'''Bold''' and ''italic'' and '''''both'''''.", "Bold and italic and both."),
        ("''Iliad'''s heroes", "Iliad's heroes"),
        ("a [[link]], a [[target|shown]] and [[many]]s", "a link, a shown and manys"),
        ("see [http://x.org the site], [http://y.org], http://z.org", "see the site, , http://z.org"),
        ("before {{cite|a={{b}}|c}} after", "before  after"),
        ("one<ref name=a>{{cite}} [[x]]</ref> two<ref name=b /> three<ref>y", "one two threey"),
        ("x\n{| class=a\n! h\n|-\n| [[c]] || {{d}}\n|}\ny", "x\n\ny"),
        ("''open\n{|\n| cell\n|}\nend", "open\n\nend"),
        ("[[File:a.jpg|thumb|A [[nested]] caption]]text", "text"),
        ("[[image: b.png|20px]][[Category:Things|Key]]text [[:Category:Shown|shown]]", "text shown"),
        ("== Head ''line'' ==\nbody\n=== Sub ===\nmore", "Head line\nbody\nSub\nmore"),
        ("* one\n* two\n# three\n:four", "one\ntwo\nthree\nfour"),
        ("a&nbsp;b &amp; c&#x2014;d", "a\xa0b & c—d"),
        ("a<!-- hidden -->b<br />c __NOTOC__", "ab\nc"),
        ("x <math>E=mc^2</math> <gallery>\na.jpg|c\n</gallery>y", "x y"),
        ("<small>kept</small> <span style='x'>too</span>", "kept too"),
        ("word ({{IPA|x}}) next", "word next"),
        ("a\n\n\n\n\nb", "a\n\nb"),
    ],
)
def test_markup(markup: str, text: str) -> None:
    assert re.sub(r" +", " ", strip_markup(markup)) == re.sub(r" +", " ", text)


@pytest.mark.parametrize("suffix", [".xml", ".xml.bz2"])
def test_a_dump(tmp_path: Path, suffix: str) -> None:
    raw = dump(
        page("One & only", "''first''"),
        page("Moved", "#REDIRECT [[One]]", redirect=True),
        page("Old move", "#redirect [[One]]"),
        page("Talk:One", "chatter", ns=1),
        page("Two", "[[Datei:x.png|miniatur|caption]]second [[Datum]]"),
        page("Empty", "{{only|templates}}"),
    )
    path = tmp_path / f"wiki{suffix}"
    path.write_bytes(bz2.compress(raw) if suffix.endswith("bz2") else raw)
    tally: Counter[str] = Counter()
    meter = Meter()
    found = list(pieces(path, tally=tally, meter=meter))
    assert [p.text for p in found] == ["One & only\n\nfirst", "Two\n\nsecond Datum", "Empty\n\n"]
    assert tally == {"redirects": 2, "pages that are not articles": 1}
    assert meter.read == path.stat().st_size


def test_the_number_of_processes_changes_nothing() -> None:
    articles = [(f"T{n}", f"[[a|text {n}]] {{{{x}}}}" + "''y'' " * (n % 7 * 50)) for n in range(200)]
    alone = list(stripped(iter(articles), frozenset(), 1))
    assert list(stripped(iter(articles), frozenset(), 3)) == alone
    assert alone[5][1] == strip_markup(articles[5][1])


def test_a_reader_that_stops_early_leaves_no_process() -> None:
    import psutil

    before = {child.pid for child in psutil.Process().children()}
    found = stripped(iter([("t", "x")] * 500), frozenset(), 2)
    next(found)
    assert {child.pid for child in psutil.Process().children()} - before
    found.close()
    assert not {child.pid for child in psutil.Process().children()} - before


def test_a_worker_that_dies_is_told() -> None:
    helper = Stripper()
    helper._process.kill()
    helper._process.wait()
    with pytest.raises(DataError, match="ended early"):
        helper.strip("x", [])
    helper._process.stdout.close()


def test_exports_that_are_cut_off_or_something_else(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_bytes(dump(page("One", "text"))[:-20])
    with pytest.raises(DataError, match=r"a\.xml: truncated or broken XML"):
        list(documents(tmp_path / "a.xml"))
    (tmp_path / "a.xml").write_bytes(b"<rss><item/></rss>")
    with pytest.raises(DataError, match="XML of <rss>, not a MediaWiki export"):
        list(documents(tmp_path / "a.xml"))
    (tmp_path / "a.xml").write_bytes(b"")
    with pytest.raises(DataError, match="truncated or broken XML"):
        list(documents(tmp_path / "a.xml"))


@pytest.mark.parametrize(
    ("right", "wrong"), [("<ns>0</ns>", "<ns>zero</ns>"), ('<namespace key="6">', '<namespace key="x">')]
)
def test_a_namespace_that_is_no_number(tmp_path: Path, right: str, wrong: str) -> None:
    (tmp_path / "a.xml").write_text(dump(page("One", "text")).decode().replace(right, wrong))
    with pytest.raises(DataError, match=r"a\.xml: <(ns> 'zero'|namespace> 'x') is not the number"):
        list(documents(tmp_path / "a.xml"))


def test_the_sample_of_the_english_wikipedia(data_folder: Path) -> None:
    tally: Counter[str] = Counter()
    texts = [str(p.text) for p in pieces("wiki-sample", tally=tally, workers=1)]
    assert (len(texts), tally["redirects"], tally["pages that are not articles"]) == (106, 99, 1)
    assert texts[0].startswith(
        "Anarchism\n\nAnarchism is a political philosophy that advocates self-governed"
    )
    for leftover in ("{{", "[[", "]]", "{|", "<ref", "'''", "&nbsp;", "File:", "Category:", "<br", "<!--"):
        assert not [text[:40] for text in texts if leftover in text], leftover
