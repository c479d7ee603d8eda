"""The catalogue says what is so; fetching checks what arrives and keeps nothing it should not."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from wordloom.data import DATASETS, Corpus, DatasetFile, DatasetInfo, documents, fetch, resolve
from wordloom.data.sets.fetch import download_folder, is_here, local_files
from wordloom.errors import DataError

CONTENT = b"some published text\n" * 2000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server on the loopback device: /good, /good.gz, /cut (stops half-way), anything else 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.server.hits.append(self.path)  # type: ignore[attr-defined]
            body = {"/good": CONTENT, "/cut": CONTENT, "/good.gz": gzip.compress(CONTENT)}.get(self.path)
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write((body or b"")[: len(body or b"") // 2 if self.path == "/cut" else None])

        def log_message(self, *args: object) -> None:
            pass

    monkeypatch.setenv("NO_PROXY", "*")
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.hits = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()
    thread.join()


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch):
    """Adds a data set of one file to the catalogue, and empties $WORDLOOM_DATA."""
    monkeypatch.delenv("WORDLOOM_DATA", raising=False)

    def add(
        url: str | None, *, sha256: str | None = SHA256, path: str = "made/text.txt.gz", **settings
    ) -> None:
        size = len(CONTENT) if sha256 == SHA256 else None
        info = {
            "title": "made",
            "task": "language modelling",
            "licence": "none",
            "origin": "here",
            "format": "text",
            "layout": "plain text",
            "parts": {"all": (DatasetFile(path=path, sha256=sha256, bytes=size, url=url),)},
        }
        monkeypatch.setitem(DATASETS, "made", DatasetInfo(**{**info, **settings}))

    return add


def kept() -> list[str]:
    folder = download_folder()
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(("page", "stored"), [("good", "made/text.txt"), ("good.gz", "made/text.txt.gz")])
def test_the_right_hash(server: str, publish, page: str, stored: str) -> None:
    publish(f"{server}/{page}")
    with pytest.raises(
        DataError, match=r"not in \$WORDLOOM_DATA \(not set\) nor downloaded; run `wordloom data"
    ):
        resolve("made")
    said: list[str] = []
    (file,) = fetch("made", progress=said.append)
    assert (file.bytes, file.sha256, file.state, file.downloaded) == (len(CONTENT), SHA256, "verified", True)
    assert kept() == [stored]
    assert said == [f"downloading {server}/{page}"]
    assert [d.text for d in documents("made")] == [CONTENT.decode()]
    (again,) = fetch("made/all")
    assert (again.downloaded, again.state) == (False, "verified")


@pytest.mark.parametrize("page", ["good", "good.gz"])
def test_the_wrong_hash(server: str, publish, page: str) -> None:
    publish(f"{server}/{page}", sha256="0" * 64)
    with pytest.raises(DataError, match=f"{page}.* sha256 .*{'0' * 64}.* not kept"):
        fetch("made")
    assert kept() == []


def test_an_unknown_hash_is_said_to_be_unknown(server: str, publish) -> None:
    publish(f"{server}/good", sha256=None)
    (file,) = fetch("made")
    assert (file.state, file.sha256) == ("unverified", SHA256)


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_download_that_breaks_off_leaves_nothing(server: str, publish, sha256: str | None) -> None:
    publish(f"{server}/cut", sha256=sha256)
    with pytest.raises(DataError, match=r"/cut cannot be downloaded .*check the network"):
        fetch("made")
    assert kept() == []


def test_a_page_that_is_not_there(server: str, publish) -> None:
    publish(f"{server}/gone")
    with pytest.raises(DataError, match="404"):
        fetch("made")


def test_no_network(publish) -> None:
    publish("http://127.0.0.1:9/x")
    with pytest.raises(DataError, match="cannot be downloaded"):
        fetch("made")


def test_the_data_folder_comes_first_and_is_checked(
    server: str, publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(f"{server}/good")
    fetch("made")
    monkeypatch.setenv("WORDLOOM_DATA", str(tmp_path))
    (tmp_path / "made").mkdir()
    packed = tmp_path / "made" / "text.txt.gz"
    packed.write_bytes(gzip.compress(CONTENT))
    assert [source.path for source in resolve("made")] == [str(packed)]
    assert fetch("made")[0].path == packed
    packed.write_bytes(gzip.compress(CONTENT[:-1]))
    with pytest.raises(DataError, match=r"damaged|sha256"):
        fetch("made")
    assert packed.exists()
    packed.unlink()
    (tmp_path / "made" / "text.txt").write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match=r"has 39,999 bytes, not 40,000"):
        resolve("made")


def test_a_set_that_is_no_running_text(server: str, publish) -> None:
    publish(f"{server}/good", format=None, layout="a table")
    fetch("made")
    assert len(local_files("made")) == 1
    with pytest.raises(DataError, match="not running text but a table"):
        Corpus(sources="made").files()


@pytest.mark.parametrize("name", ["nonesuch", "bookscorpus"])
def test_sets_that_cannot_be_fetched(name: str) -> None:
    with pytest.raises(DataError, match=r"not distributable|no data set 'nonesuch'"):
        fetch(name)


def test_the_catalogue_is_complete() -> None:
    for name, info in DATASETS.items():
        assert info.title, name
        assert info.licence, name
        assert info.origin, name
        assert info.parts or "point to your copy" in info.notes, name
        for file in info.files:
            assert file.sha256 is None or len(file.sha256) == 64, file
            assert file.url is None or file.url.startswith("https://"), file
            assert file.url or file.made_here or "derived" in info.origin, file
            assert all(source.url and source.url.startswith("https://") for source in file.sources), file
    for expected in ("enwiki", "squad-v1.1", "squad-v2", "swag", "alpaca", "bookscorpus", "glue-cola"):
        assert expected in DATASETS
    assert DATASETS["enwiki"].files[0].sha256 is None
    assert DATASETS["squad-v1.1"].bytes == 30_288_272 + 4_854_279


def test_every_set_in_the_data_folder_has_its_hash(data_folder: Path) -> None:
    sets = {name: info for name, info in DATASETS.items() if not any(file.made_here for file in info.files)}
    here = [
        f"{name}/{part}" for name, info in sets.items() for part in info.parts if is_here(f"{name}/{part}")
    ]
    assert {"tiny-shakespeare/all", "ptb/test", "gutenberg/train", "lambada/test"} <= set(here)
    named = {data_folder / file.path for info in DATASETS.values() for file in info.files}
    loose = {"README.md", "SHA256SUMS", "index.tsv"}  # of the folder, and of its cut of Gutenberg
    assert {path for path in data_folder.rglob("*") if path.is_file() and path.name not in loose} <= named
    here.remove("gutenberg/train")  # 97 MB of xz, left out for time
    assert sum(file.state == "verified" for part in here for file in fetch(part)) == 90
