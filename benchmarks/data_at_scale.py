"""Measure reading tokens of a large corpus: rates, and the memory that a whole epoch needs.

    python benchmarks/data_at_scale.py [--gigabytes 10] [--shares 64] [--seq-len 1024] [--rows 32]

The corpus is prepared tokens in shares, whose files are sparse: they have their full size, and take no room
on the disk.  The local rates are therefore those of the reader, not of a disk.  The same folder is read
over HTTP from another process on this machine, first with an empty cache and then again.  Memory is what the
process itself holds (anonymous), and all of its pages with those of mapped files, which the system takes back
when it needs them.
"""

from __future__ import annotations

import argparse
import hashlib
import http.server
import json
import multiprocessing
import os
import re
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

from entry import in_one_line

DOCUMENT = 1000  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--shares", type=int, default=64)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--windows", type=int, default=6400, help="windows of each rate")
    parser.add_argument("--folder", type=Path, help="where the corpus is written [default: a temporary one]")
    given = parser.parse_args()

    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        os.environ["WORDLOOM_CACHE"] = f"{folder}/cache"
        corpus = Path(folder) / "corpus"
        tokens = int(given.gigabytes * 1e9 / 2 / given.shares) // DOCUMENT * DOCUMENT
        write_corpus(corpus, given.shares, tokens)
        write_corpus(Path(folder) / "one", 1, min(tokens * given.shares, 500_000 * DOCUMENT))
        report(corpus, Path(folder) / "one", given)


def report(corpus: Path, one: Path, given: argparse.Namespace) -> None:
    """Print a JSON line for each figure."""
    from wordloom.data import CausalBatches, TokenShards
    from wordloom.data.shards.prepared import PreparedFolder

    def batches(shards: TokenShards) -> CausalBatches:
        return CausalBatches(shards, seq_len=given.seq_len, seed=1)

    shards = PreparedFolder(str(corpus)).open("train")
    say(f"{len(shards):,} tokens in {given.shares} shares", bytes=2 * len(shards))
    whole = TokenShards(one / "shares" / "00001-of-00001" / "train")
    for name, each in (("one folder", whole), ("shares", shards)):
        rate(f"local, {name}: random windows", batches(each), given)
    began = time.perf_counter()
    step, last = 1 << 20, min(len(shards), 1 << 30)
    total = sum(int(shards.ids[at : min(at + step, last)].sum()) for at in range(0, last, step))
    say("local, shares: in order", tokens_per_second=round(last / (time.perf_counter() - began)), sum=total)

    before = memory()
    reader, began = batches(shards), time.perf_counter()
    for start in range(0, reader.samples_per_epoch, given.rows):
        reader.batch(start, given.rows)
    seconds = time.perf_counter() - began
    say(
        "an epoch of all windows, in random order",
        windows=reader.samples_per_epoch,
        tokens_per_second=round(reader.samples_per_epoch * given.seq_len / seconds),
        **{f"{name}_before": size for name, size in before.items()},
        **{f"{name}_after": size for name, size in memory().items()},
    )

    receive, send = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(corpus, send), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{receive.recv()}"
    try:
        for state in ("empty cache", "full cache"):
            remote = batches(PreparedFolder(url).open("train"))
            rate(f"HTTP, {state}: random windows", remote, given, most=given.windows // 8)
        rate("HTTP, full cache, read before: random windows", remote, given, most=given.windows // 8)
        say("memory after HTTP", **memory())
    finally:
        server.terminate()


def rate(name: str, batches: Any, given: argparse.Namespace, most: int | None = None) -> None:
    """Print how many random windows are read each second."""
    count = (most or given.windows) // given.rows
    batches.batch(0, given.rows)
    began = time.perf_counter()
    for n in range(1, count + 1):
        batches.batch(n * given.rows, given.rows)
    seconds = time.perf_counter() - began
    windows = count * given.rows
    say(
        name,
        windows_per_second=round(windows / seconds),
        tokens_per_second=round(windows * given.seq_len / seconds),
        milliseconds_per_batch=round(1e3 * seconds / count, 2),
    )


def say(what: str, **figures: object) -> None:
    print(json.dumps({"what": what, **figures}), flush=True)


def memory() -> dict[str, float]:
    """Return the anonymous memory and the resident set of this process, in MB."""
    status = Path("/proc/self/status")
    if not status.exists():
        import psutil

        return {"resident_mb": round(psutil.Process().memory_info().rss / 1e6)}
    sizes = dict(re.findall(r"(RssAnon|VmRSS):\s+(\d+) kB", status.read_text()))
    return {
        "anonymous_mb": round(int(sizes["RssAnon"]) / 1e3),
        "resident_mb": round(int(sizes["VmRSS"]) / 1e3),
    }


def write_corpus(folder: Path, shares: int, tokens: int) -> None:
    """Write a merged folder of sparse files, with ``tokens`` of the id 0 in each share."""
    import numpy as np

    from wordloom.data.ledgers import Ledger
    from wordloom.data.shards.index import INDEX, Index, JoinedPart, Share, joined_ledger
    from wordloom.data.shards.storage import BLOCK

    documents = tokens // DOCUMENT
    ends = np.arange(DOCUMENT, tokens + 1, DOCUMENT, dtype="<i8").tobytes()
    sizes = {"tokens": 2 * tokens, "ends": len(ends), "bytes": len(ends), "origins": 2 * len(ends)}
    empty = zlib.crc32(bytes(BLOCK))
    checks: list[int] = []
    for name, size in sizes.items():
        if name == "ends":
            checks += [zlib.crc32(ends[at : at + BLOCK]) for at in range(0, size, BLOCK)]
        else:
            checks += [empty] * (size // BLOCK) + [zlib.crc32(bytes(size % BLOCK))] * (size % BLOCK > 0)
    content = np.array(checks, "<u4").tobytes()
    ledger = Ledger(part="train", split="none", files=1, documents=documents, tokens=tokens, bytes=4 * tokens)
    counts = {"tokens": tokens, "ends": documents, "bytes": documents, "origins": 2 * documents}
    meta = {
        "version": 1,
        "fingerprint": "sparse",
        "tokenizer": "none",
        "vocab_size": 50_000,
        "eos_id": None,
        "pad_id": None,
        "sources": ["sparse"],
        "ledger": ledger.as_dict(),
        "checks": hashlib.sha256(content).hexdigest(),
        "arrays": {
            name: {"dtype": "<u2" if name == "tokens" else "<i8", "count": count}
            for name, count in counts.items()
        },
    }
    written = []
    for number in range(1, shares + 1):
        path = f"shares/{number:05}-of-{shares:05}/train"
        (folder / path).mkdir(parents=True)
        for name, size in sizes.items():
            with open(folder / path / f"{name}.bin", "wb") as file:
                file.write(ends if name == "ends" else b"")
                file.truncate(size)
        (folder / path / "checks.bin").write_bytes(content)
        (folder / path / "meta.json").write_text(json.dumps(meta))
        written.append(
            Share(
                folder=path,
                fingerprint=f"sparse {number}",
                tokens=tokens,
                documents=documents,
                checks=str(meta["checks"]),
            )
        )
    part = JoinedPart(ledger=joined_ledger([ledger] * shares, files=1), shares=written)
    index = Index(
        tokenizer="none", vocab_size=50_000, eos_id=None, pad_id=None, dtype="<u2", parts={"train": part}
    )
    (folder / INDEX).write_text(index.as_json())


class RangeHandler(http.server.BaseHTTPRequestHandler):
    """Serves byte ranges of the files in ``folder``."""

    protocol_version = "HTTP/1.1"
    folder: Path

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        size = path.stat().st_size
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, stop = (int(span[1]), int(span[2]) + 1) if span else (0, size)
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if self.command == "GET":
            with path.open("rb") as file:
                file.seek(start)
                self.wfile.write(file.read(stop - start))


def serve(folder: Path, started: Any) -> None:
    """Serve ``folder`` over HTTP, and send the port."""
    handler = type("Handler", (RangeHandler,), {"folder": folder})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        started.send(server.server_port)
        server.serve_forever()


if __name__ == "__main__":
    in_one_line(main)
