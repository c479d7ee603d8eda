"""Prepared tokens behind a URL: equal arrays, byte ranges, retries, a bounded cache, refused changes."""

from __future__ import annotations

import http.server
import json
import logging
import multiprocessing
import os
import re
import secrets
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from wordloom.data import CausalBatches, Corpus, TokenShards, prepare
from wordloom.data.shards.merge import merge_shares
from wordloom.data.shards.prepared import PreparedCorpus, PreparedFolder
from wordloom.data.shards.remote import block_cache, files, requests
from wordloom.data.shards.remote.block_cache import Block, BlockCache
from wordloom.data.shards.tasks import prepare_share
from wordloom.data.text.shares import ShareNumber
from wordloom.errors import DataError
from wordloom.text import Tokenizer

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

SEED = secrets.randbits(32)
BLOCK = 512  # bytes, so that small files have many


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves byte ranges of a folder, and fails as ``server.faults`` says."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and content leave together: the kernel would hold back the second of two writes
    disable_nagle_algorithm = True

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        server = self.server
        path = server.folder / self.path.lstrip("/")
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        with server.lock:
            server.requests.append((self.command, self.path, span and (int(span[1]), int(span[2]) + 1)))
            fault = server.faults.pop(0) if server.faults and span else None
        if fault == "drop":
            self.close_connection = True
            return
        if isinstance(fault, int):
            self.send_error(fault)
            return
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        if fault == "corrupt":
            content = bytes(len(content))
        start, stop = (int(span[1]), int(span[2]) + 1) if span and server.ranges else (0, len(content))
        part = content[start:stop]
        if fault == "short":
            part = part[:-1]
        self.send_response(206 if span and server.ranges else 200)
        self.send_header("Content-Length", str(len(part)))
        if span and server.ranges:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(part)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # blocks are asked for at once, and a full queue makes each wait for seconds

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.lock = folder, threading.Lock()
        self.requests: list = []
        self.faults: list = []
        self.ranges = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server(tmp_path: Path):
    (tmp_path / "served").mkdir()
    with Server(tmp_path / "served") as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks and short waits."""
    import wordloom.data.shards.joined
    import wordloom.data.shards.storage

    for module in (wordloom.data.shards.joined, wordloom.data.shards.storage, files):
        monkeypatch.setattr(module, "BLOCK", BLOCK)
    monkeypatch.setattr(requests, "WAITS", (0.01, 0.02, 0.03))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the quick brown fox " * 30], kind="bpe", vocab_size=270)


@pytest.fixture
def rng() -> np.random.Generator:
    print("seed", SEED)
    return np.random.default_rng(SEED)


def prepared(folder: Path, out: Path, tokenizer: Tokenizer, rng, documents: int = 300) -> TokenShards:
    """Prepare drawn texts in tasks in the folder ``out``, and return them in one piece."""
    words = ["the", "quick", "brown", "fox", "x"]
    texts = [" ".join(rng.choice(words, int(rng.integers(1, 40))).tolist()) for _ in range(documents)]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    corpus = Corpus(sources=folder / "a.jsonl", split="hash", validation_fraction=0)
    count = int(rng.integers(1, 6))
    for number in range(1, count + 1):
        prepare_share(corpus, tokenizer, ShareNumber(number, count), out=out, parts=("train",))
    merge_shares(out)
    return prepare(corpus, tokenizer, part="train", cache=folder / "whole")


def in_memory(folder: Path) -> str:
    """Copy a folder into fsspec's memory file system, and return its URL."""
    url = f"memory://{secrets.token_hex(8)}"
    fsspec.filesystem("memory").put(str(folder), url, recursive=True)
    return url


def test_arrays_and_windows_are_those_of_local_shards(tmp_path: Path, server, tokenizer, rng) -> None:
    whole = prepared(tmp_path, server.folder / "out", tokenizer, rng)
    for url in (f"{server.url}/out", in_memory(server.folder / "out")):
        remote = PreparedFolder(url).open("train")
        assert remote.folder == url
        assert remote.ids[:].tolist() == whole.tokens().tolist()
        assert remote.ends[:].tolist() == whole.ends[:].tolist()
        assert remote.origins.tolist() == whole.origins.tolist()
        assert remote.document_name(7) == whole.document_name(7)
        for side in ("left", "right"):
            places = rng.integers(-1, len(whole) + 2, (9, 4))
            found, expected = (each.ends.searchsorted(places, side) for each in (remote, whole))
            assert found.tolist() == expected.tolist()
        some = rng.integers(0, len(whole), 50)
        assert remote.ids[some].tolist() == whole.tokens()[some].tolist()
        one, other = (CausalBatches(each, seq_len=24, seed=5, document_mask=True) for each in (whole, remote))
        for start in rng.integers(0, 2 * one.samples_per_epoch, 12).tolist():
            for mine, theirs in zip(one.batch(start, 6), other.batch(start, 6), strict=True):
                assert mine.tolist() == theirs.tolist()


def test_the_tokenizer_comes_with_the_tokens(tmp_path: Path, server, tokenizer, rng) -> None:
    prepared(tmp_path, server.folder / "out", tokenizer, rng, 20)
    for url in (f"{server.url}/out", in_memory(server.folder / "out")):
        folder = PreparedCorpus(train=url).saved_tokenizer()
        assert folder is not None
        assert Tokenizer.from_pretrained(folder).fingerprint == tokenizer.fingerprint


def test_a_folder_in_one_piece_is_read_too(tmp_path: Path, tokenizer, rng) -> None:
    whole = prepared(tmp_path, tmp_path / "out", tokenizer, rng, 50)
    folder = PreparedFolder(in_memory(whole.folder))
    assert folder.parts == ["train"]
    assert folder.open("train").ids[:].tolist() == whole.tokens().tolist()
    assert folder.open("train").document_name(3) == whole.document_name(3)


def test_only_the_blocks_of_a_window_are_read_and_each_once(tmp_path: Path, server, tokenizer, rng) -> None:
    prepared(tmp_path, server.folder / "out", tokenizer, rng)
    remote = PreparedFolder(f"{server.url}/out").open("train")
    server.requests.clear()
    at = len(remote) // 2
    remote.tokens(at, at + 8)
    spans = [(path, span) for _, path, span in server.requests if path.endswith("tokens.bin")]
    assert 1 <= len(spans) <= 2
    assert all(stop - start <= BLOCK and start % BLOCK == 0 for _, (start, stop) in spans)
    server.requests.clear()
    assert remote.tokens(at, at + 8).size == 8
    again = PreparedFolder(f"{server.url}/out").open("train")  # another process would read the disk, too
    server.requests.clear()
    assert again.tokens(at, at + 8).tolist() == remote.tokens(at, at + 8).tolist()
    assert server.requests == []


@pytest.mark.parametrize("faults", [["drop"] * 2, [503, 500, "drop"], ["short"], ["corrupt"], [429]])
def test_failures_that_pass_are_retried(tmp_path: Path, server, tokenizer, rng, faults, caplog) -> None:
    whole = prepared(tmp_path, server.folder / "out", tokenizer, rng)
    remote = PreparedFolder(f"{server.url}/out").open("train")
    assert remote.ids[:3].tolist() == whole.tokens()[:3].tolist()
    server.faults[:] = faults
    with caplog.at_level(logging.WARNING):
        assert remote.ids[:].tolist() == whole.tokens().tolist()
    assert server.faults == []
    assert "trying again in" in caplog.text or set(faults) == {"drop"}  # aiohttp tries once more by itself


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("drop", r"cannot be read: .*; tried 4 times in 0\.06 seconds; check the network, then start again"),
        (503, r"503.*; tried 4 times in 0\.06 seconds"),
        (403, r"cannot be read: 403.*; check the address and access"),
        (404, "is missing; check the folder"),
        ("corrupt", "differs from the checksums of its folder: it was changed or damaged"),
    ],
)
def test_failures_that_stay_are_one_line(tmp_path: Path, server, tokenizer, rng, fault, message) -> None:
    prepared(tmp_path, server.folder / "out", tokenizer, rng)
    remote = PreparedFolder(f"{server.url}/out").open("train")
    remote.tokens(0, 1)  # the checksums are here
    server.faults[:] = [fault] * 1000
    with pytest.raises(DataError, match=message) as caught:
        remote.tokens()[:]
    assert "\n" not in str(caught.value)


def test_a_server_that_is_not_there(tmp_path: Path, monkeypatch) -> None:
    with Server(tmp_path) as gone:
        url = gone.url
    with pytest.raises(DataError, match=r"cannot be read: .*; tried 4 times in 0\.06 seconds") as caught:
        PreparedFolder(f"{url}/out")
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="holds no prepared tokens"):
        PreparedFolder("memory://nothing")
    with pytest.raises(DataError, match=r"nosuch.* allowed: the protocols of fsspec"):
        PreparedFolder("nosuch://bucket/folder")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(DataError, match=r"needs the package fsspec: pip install fsspec aiohttp"):
        PreparedFolder("memory://nothing")


def test_a_protocol_without_its_package(monkeypatch) -> None:
    def missing(url: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(DataError, match=r"s3 needs another package: Install s3fs to access S3 \(with pip"):
        PreparedFolder("s3://bucket/folder")


def test_a_server_without_byte_ranges_is_refused(tmp_path: Path, server, tokenizer, rng) -> None:
    prepared(tmp_path, server.folder / "out", tokenizer, rng)
    server.ranges = False
    with pytest.raises(DataError, match="the server does not send byte ranges"):
        PreparedFolder(f"{server.url}/out").open("train")


@pytest.mark.parametrize("change", ["size", "content", "missing", "checks"])
def test_a_changed_file_is_refused(tmp_path: Path, server, tokenizer, rng, change: str) -> None:
    prepared(tmp_path, server.folder / "out", tokenizer, rng)
    PreparedFolder(f"{server.url}/out").open("train").tokens(0, 40)  # some blocks are in the cache
    tokens = next((server.folder / "out").rglob("tokens.bin"))
    content = tokens.read_bytes()
    if change == "size":
        tokens.write_bytes(content[:-2])
    elif change == "content":
        tokens.write_bytes(content[:-2] + bytes([content[-2] ^ 1, content[-1]]))
    elif change == "missing":
        tokens.unlink()
    else:
        checks = tokens.with_name("checks.bin")
        checks.write_bytes(checks.read_bytes()[::-1])
    shutil.rmtree(os.environ["WORDLOOM_CACHE"], ignore_errors=True)
    messages = {
        "size": r"is damaged: \d+ bytes where \d+ belong",
        "content": "differs from the checksums of its folder",
        "missing": "is missing",
        "checks": "differs from the index of its folder: the share was prepared again",
    }
    with pytest.raises(DataError, match=messages[change]):
        PreparedFolder(f"{server.url}/out").open("train").ids[:]


def test_shares_that_were_prepared_again_are_not_mixed_with_cached_blocks(
    tmp_path: Path, server, tokenizer, rng
) -> None:
    first = prepared(tmp_path, server.folder / "out", tokenizer, rng)
    assert PreparedFolder(f"{server.url}/out").open("train").ids[:].tolist() == first.tokens().tolist()
    shutil.rmtree(server.folder / "out")
    second = prepared(tmp_path, server.folder / "out", tokenizer, rng)
    assert PreparedFolder(f"{server.url}/out").open("train").ids[:].tolist() == second.tokens().tolist()


# ------------------------------------------------------------------------------------- the cache


def blocks(rng: np.random.Generator, count: int, size: int = 1000) -> list[tuple[Block, bytes]]:
    return [(Block(f"{n % 7:032x}", n, size), rng.bytes(size)) for n in range(count)]


def disk_use(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*/*.bin"))


def test_the_cache_is_bounded_and_drops_what_was_not_used(tmp_path: Path, rng, monkeypatch) -> None:
    monkeypatch.setattr(block_cache, "_TOUCH", 0.0)
    cache = BlockCache(tmp_path / "cache", limit=50_000)
    some = blocks(rng, 300)
    kept = some[0]
    cache.write([kept])
    for n, each in enumerate(some[1:]):
        cache.write([each])
        os.utime(cache._path(each[0]), ns=(n, n))
        assert cache.read(kept[0], 0, 1000) == kept[1]  # used all the time
        assert disk_use(tmp_path / "cache") <= 50_000
    assert disk_use(tmp_path / "cache") > 40_000
    assert cache.read(some[1][0], 0, 10) is None
    assert cache.read(some[-1][0], 3, 10) == some[-1][1][3:10]


def test_damaged_blocks_are_not_taken(tmp_path: Path, rng) -> None:
    (block, content), *_ = blocks(rng, 1)
    for damage in (b"", content, content + b"1234", bytes(1004), content[:-1] + b"\0" * 5):
        BlockCache(tmp_path / "cache", limit=50_000).write([(block, content)])
        after = BlockCache(tmp_path / "cache", limit=50_000)
        assert after.read(block, 1, 9) == content[1:9]
        after._path(block).write_bytes(damage)
        assert BlockCache(tmp_path / "cache", limit=50_000).read(block, 1, 9) is None
        assert not after.has(block)


def test_a_cache_that_cannot_be_written_is_reported_once(tmp_path: Path, rng, caplog) -> None:
    (tmp_path / "cache").write_text("a file")
    cache = BlockCache(tmp_path / "cache", limit=50_000)
    with caplog.at_level(logging.WARNING):
        for each in blocks(rng, 3):
            cache.write([each])
            assert cache.read(each[0], 0, 1) is None
    assert caplog.text.count("takes no blocks") == 1


def test_the_size_of_the_cache_is_a_setting(monkeypatch) -> None:
    monkeypatch.setenv("WORDLOOM_REMOTE_CACHE_GB", "0.5")
    assert block_cache.cache_limit() == 500_000_000
    for wrong in ("", "many", "0", "-1", "inf", "nan"):
        monkeypatch.setenv("WORDLOOM_REMOTE_CACHE_GB", wrong)
        with pytest.raises(DataError, match=r"WORDLOOM_REMOTE_CACHE_GB=.* is not allowed; give gigabytes"):
            block_cache.cache_limit()


def use_cache(folder: Path, seed: int, failures) -> None:
    draw = np.random.default_rng(seed)
    cache = BlockCache(folder, limit=60_000)
    for n in draw.integers(0, 120, 300).tolist():
        content = bytes([n]) * 1000
        block = Block(f"{n % 7:032x}", n, 1000)
        found = cache.read(block, 100, 300)
        if found is None:
            cache.write([(block, content)])
        elif found != content[100:300]:
            failures.put(n)
        if disk_use_of_others(folder) > 60_000 + 4 * 1004:
            failures.put(-1)


def disk_use_of_others(folder: Path) -> int:
    total = 0
    for path in folder.glob("*/*.bin"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def test_processes_share_a_cache(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")  # the process of the tests may be too large to copy
    failures = context.SimpleQueue()
    workers = [
        context.Process(target=use_cache, args=(tmp_path / "cache", SEED + n, failures)) for n in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert failures.empty()


def test_random_reads_with_a_small_cache_are_right(
    tmp_path: Path, server, tokenizer, rng, monkeypatch
) -> None:
    """Blocks are dropped and read again all the time."""
    monkeypatch.setattr(files, "_AT_ONCE", 3)
    whole = prepared(tmp_path, server.folder / "out", tokenizer, rng)
    monkeypatch.setattr("wordloom.data.shards.remote.folder.BlockCache", lambda: BlockCache(limit=5 * BLOCK))
    remote = PreparedFolder(f"{server.url}/out").open("train")
    ids = whole.tokens()
    for _ in range(20):
        rows = rng.integers(0, len(ids) - 60, (8, 1)) + np.arange(50)
        assert np.array_equal(remote.ids[rows], ids[rows])
    assert disk_use(Path(os.environ["WORDLOOM_CACHE"]) / "remote") <= 5 * BLOCK
