"""Derived data sets are written byte for byte from the files that they come from."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import random
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files as resources
from pathlib import Path

import pytest

from wordloom.data import DATASETS, fetch
from wordloom.data.sets.derived import book_text
from wordloom.data.sets.fetch import download_folder, is_here, local_files
from wordloom.errors import DataError


def archive(members: dict[str, bytes]) -> bytes:
    """A repository as GitHub sends it: all below one folder, here in random order."""
    names = [*members]
    random.Random(len(names)).shuffle(names)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as opened:
        for name in names:
            opened.writestr(f"Repository-3e56b0/{name}", members[name])
    return packed.getvalue()


def blimp(data: Path) -> bytes:
    members: dict[str, bytes] = {"README.md": b"BLiMP", "raw_results/data/x.jsonl": b"{}\n"}
    with gzip.open(data / "blimp/blimp.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            pair = {"lexically_identical": False, **json.loads(line), "one_prefix_method": True}
            members.setdefault(f"data/{pair['UID']}.jsonl", b"")
            members[f"data/{pair['UID']}.jsonl"] += json.dumps(pair).encode() + b"\n"
    return archive(members)


def books(data: Path) -> bytes:
    titles = json.loads((resources("wordloom.data") / "gutenberg.json").read_text(encoding="utf-8"))["valid"]
    text = lzma.decompress((data / "gutenberg/valid.txt.xz").read_bytes()).decode()
    published = {}
    for title, book in zip(titles, text.removesuffix("\n").split("\n\n<|endoftext|>\n"), strict=True):
        whole = (
            f"Title: {title}\n\n*** START OF THIS PROJECT GUTENBERG EBOOK A TITLE ***\n\n\n{book}\n\n\n\n"
            "End of the Project Gutenberg EBook of A Title\nby its author\n\n"
            "*** END OF THIS PROJECT GUTENBERG EBOOK A TITLE ***\n\nThe licence.\n"
        )
        published[f"{title}.txt"] = b"\xef\xbb\xbf" + whole.replace("\n", "\r\n").encode()
    return archive(published)


def squad(data: Path) -> bytes:
    with gzip.open(data / "squad/dev-v1.1-articles01-24.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    return json.dumps({"data": [*articles, *articles], "version": "1.1"}).encode()


def squad_train(data: Path) -> bytes:
    with gzip.open(data / "squad/train-v1.1-subset4000.json.gz", "rt", encoding="utf-8") as file:
        paragraphs = json.load(file)["data"][0]["paragraphs"]
    rows = [
        {
            "context": paragraph["context"],
            "qas": [
                {"question": asked["question"], "answer": asked["answers"][0]["text"]}
                for asked in paragraph["qas"]
            ],
        }
        for paragraph in paragraphs
    ]
    return json.dumps(rows, indent=4).encode()


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """Pages of a server on the loopback device, by path below the origin of every derived file."""
    pages: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *args: object) -> None:
            pass

    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("WORDLOOM_DATA", raising=False)
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    origin = f"http://127.0.0.1:{httpd.server_port}/"
    for name, info in [*DATASETS.items()]:
        parts = {}
        for part, of_part in info.parts.items():
            parts[part] = tuple(
                replace(
                    file,
                    sources=tuple(
                        # The sample is not the official file, whose hash is known.
                        replace(
                            source,
                            url=origin + source.path,
                            sha256=None if "dev-v1.1" in source.path else source.sha256,
                        )
                        for source in file.sources
                    ),
                )
                for file in of_part
            )
        monkeypatch.setitem(DATASETS, name, replace(info, parts=parts))
    yield pages
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def kept() -> set[str]:
    folder = download_folder()
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_every_derived_file_is_written_with_its_hash(mirror: dict[str, bytes], data_folder: Path) -> None:
    stories = data_folder / "weights/stories260K"
    mirror |= {
        "/sources/blimp.zip": blimp(data_folder),
        "/sources/gutenberg.zip": books(data_folder),
        "/sources/squad-train.json": squad_train(data_folder),
        "/squad/dev-v1.1.json": squad(data_folder),
        "/weights/stories260K/stories260K.bin": (stories / "stories260K.bin").read_bytes(),
        "/weights/stories260K/tok512.bin": (stories / "tok512.bin").read_bytes(),
    }
    said: list[str] = []
    with pytest.raises(DataError, match="downloaded; run `wordloom data fetch blimp`"):
        local_files("blimp")
    for given in ("blimp", "gutenberg/valid", "squad-sample/train", "squad-sample/dev", "stories260k/hf"):
        assert not is_here(given)
        for file in fetch(given, progress=said.append):
            assert (file.state, file.downloaded) == ("verified", True), file
        assert is_here(given)
    folder = "weights/stories260K"
    assert kept() == {
        "blimp/blimp.jsonl",
        "gutenberg/valid.txt",
        "squad/train-v1.1-subset4000.json",
        "squad/dev-v1.1-articles01-24.json",
        "squad/dev-v1.1.json",  # of the set squad-v1.1
        *(f"{folder}/hf/{name.name}" for name in (stories / "hf").iterdir()),
        *(f"{folder}/{name}" for name in ("stories260K.bin", "tok512.bin")),
    }
    assert sum(line.startswith("downloading") for line in said) == 6
    assert sum(line.startswith("writing") for line in said) == 9
    (again,) = fetch("blimp")
    assert (again.downloaded, again.state) == (False, "verified")


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (b"not a zip", "has other contents .BadZipFile"),
        (archive({"data/x.jsonl": b"{}\n"}), "has other contents .KeyError"),
        (archive({}), "what is written from .*blimp.zip has sha256 .*it was not kept"),
    ],
)
def test_a_source_with_other_contents(mirror: dict[str, bytes], page: bytes, message: str) -> None:
    mirror["/sources/blimp.zip"] = page
    with pytest.raises(DataError, match=message):
        fetch("blimp")
    assert kept() == set()  # the next call downloads it again


def test_a_missing_source(mirror: dict[str, bytes]) -> None:
    with pytest.raises(DataError, match=r"gutenberg\.zip cannot be downloaded"):
        fetch("gutenberg/train")
    assert kept() == set()


def test_a_book_whose_markers_are_on_two_lines_keeps_its_header() -> None:
    header = "***START OF THE PROJECT GUTENBERG EBOOK A LONG\nTITLE***"
    assert book_text(f"{header}\r\n\r\n\r\nText.\r\n\r\nEnd of Project Gutenberg's A".encode()) == (
        f"{header}\n\nText."
    )
