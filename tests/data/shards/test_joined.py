"""Shards in many shares: arrays, batches and names are those of the same shards in one folder."""

from __future__ import annotations

import secrets
from pathlib import Path

import numpy as np
import pytest
import torch

from wordloom.data import CausalBatches, ContiguousBatches, TokenShards
from wordloom.data.ledgers import Ledger
from wordloom.data.shards.arrays import JoinedArray, MappedFiles
from wordloom.data.shards.folders import LocalFolder
from wordloom.data.shards.index import Index, JoinedPart, Share, joined_ledger
from wordloom.data.shards.joined import JoinedShards
from wordloom.data.shards.storage import ShardWriter, read_meta
from wordloom.errors import DataError

SEED = secrets.randbits(32)  # drawn anew in every run; a failing test prints it


@pytest.fixture
def rng() -> np.random.Generator:
    print(f"seed {SEED}")
    return np.random.default_rng(SEED)


def write(folder: Path, documents: list[np.ndarray], first: int, vocab_size: int) -> dict:
    """Write the documents, which are numbered from ``first`` in one file, and return their description."""
    writer = ShardWriter(folder, vocab_size=vocab_size)
    ids = np.concatenate([*documents, np.empty(0, writer.dtype)]).astype(writer.dtype)
    ends = np.cumsum([len(each) for each in documents]).tolist()
    writer.add(ids, ends, [3 * len(d) for d in documents], [(0, n + first) for n in range(len(documents))])
    ledger = Ledger(
        part="train", split="none", files=1, documents=len(ends), tokens=len(ids), bytes=3 * len(ids)
    )
    meta = {"fingerprint": folder.name, "vocab_size": vocab_size, "eos_id": None, "pad_id": 1}
    writer.finish({**meta, "sources": ["made"], "ledger": ledger.as_dict()})
    return read_meta(folder / "meta.json", 1, "shards")


def divided(
    folder: Path, documents: list[np.ndarray], edges: list[int], vocab_size: int
) -> tuple[TokenShards, JoinedShards]:
    """Return the documents in one folder, and in shares between ``edges``, numbers of documents."""
    write(folder / "whole", documents, 0, vocab_size)
    shares, ledgers = [], []
    for n, (first, stop) in enumerate(zip([0, *edges], [*edges, len(documents)], strict=True)):
        meta = write(folder / "shares" / str(n), documents[first:stop], 0, vocab_size)
        counts = {name: meta["arrays"][name]["count"] for name in ("tokens", "ends")}
        shares.append(
            Share(
                folder=f"shares/{n}",
                fingerprint=str(n),
                tokens=counts["tokens"],
                documents=counts["ends"],
                checks=meta["checks"],
                first_document=first,
            )
        )
        ledgers.append(Ledger.from_dict(meta["ledger"]))
    part = JoinedPart(ledger=joined_ledger(ledgers, files=1), shares=shares)
    dtype = meta["arrays"]["tokens"]["dtype"]
    index = Index(
        tokenizer="t", vocab_size=vocab_size, eos_id=None, pad_id=1, dtype=dtype, parts={"train": part}
    )
    again = Index.from_json(index.as_json(), "here")
    assert again == index
    return TokenShards(folder / "whole"), JoinedShards(LocalFolder(folder), again, again.parts["train"])


def drawn(rng: np.random.Generator, vocab_size: int, count: int) -> tuple[list[np.ndarray], list[int]]:
    """Draw documents, many of one token, and edges of shares, some of them equal."""
    lengths = np.where(rng.random(count) < 0.3, 1, rng.integers(1, 40, count))
    documents = [rng.integers(0, vocab_size, length) for length in lengths]
    return documents, sorted(rng.integers(0, count + 1, int(rng.integers(1, 9))).tolist())


@pytest.mark.parametrize("trial", range(6))
@pytest.mark.parametrize("vocab_size", [300, 100_000])
def test_arrays_are_those_of_one_folder(tmp_path: Path, rng, trial: int, vocab_size: int) -> None:
    rng = np.random.default_rng([SEED, trial])
    documents, edges = drawn(rng, vocab_size, int(rng.integers(2, 120)))
    whole, joined = divided(tmp_path, documents, edges, vocab_size)
    n, d = len(whole), len(documents)
    assert (len(joined), joined.ends.size) == (n, d)
    assert joined.ledger == whole.ledger
    for mine, theirs in (
        (joined.ids, whole.tokens()),
        (joined.ends, whole.ends),
        (joined.document_bytes, whole.document_bytes),
    ):
        assert mine.dtype == theirs.dtype
        assert np.asarray(mine).tolist() == theirs.tolist()
        size = len(theirs)
        for _ in range(20):
            start, stop = sorted(rng.integers(0, size + 1, 2).tolist())
            found = mine[start:stop]
            assert (found.dtype, found.tolist()) == (theirs.dtype, theirs[start:stop].tolist())
            some = rng.integers(-size, size, int(rng.integers(0, 30)))
            assert mine[some].tolist() == theirs[some].tolist()
            row = np.minimum(rng.integers(0, size, (5, 1)) + np.arange(int(rng.integers(1, 9))), size - 1)
            assert np.array_equal(mine[row], theirs[row])
        assert mine[-1] == theirs[-1]
        with pytest.raises(IndexError):
            mine[size]
    places = rng.integers(-2, n + 3, (7, 5))
    for side in ("left", "right"):
        assert np.array_equal(joined.ends.searchsorted(places, side), whole.ends.searchsorted(places, side))
        assert joined.ends.searchsorted(n, side) == whole.ends.searchsorted(n, side)
    assert joined.origins.tolist() == whole.origins.tolist()
    assert joined.sources == whole.sources
    for document in range(d):
        assert joined.document_span(document) == whole.document_span(document)
        assert joined.document_name(document) == whole.document_name(document) == f"made#{document}"
    for position in rng.integers(0, n, 20).tolist():
        assert joined.document_of(position) == whole.document_of(position)


def same(one, other) -> bool:
    return all(
        (a is None and b is None) or (torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("trial", range(4))
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("order", ["permutation", "random", "sequential"])
def test_windows_are_those_of_one_folder(tmp_path: Path, rng, order, masked: bool, trial: int) -> None:
    rng = np.random.default_rng([SEED, trial, masked])
    whole, joined = divided(tmp_path, *drawn(rng, 900, int(rng.integers(30, 200))), 900)
    settings = {"seq_len": int(rng.integers(1, 30)), "seed": trial, "order": order, "document_mask": masked}
    one, other = (CausalBatches(shards, **settings) for shards in (whole, joined))
    assert one.samples_per_epoch == other.samples_per_epoch
    assert one.ledger == other.ledger
    end = 3 * one.samples_per_epoch
    for _ in range(12):
        start = int(rng.integers(0, end))
        count = min(int(rng.integers(1, 20)), one.samples_per_epoch)
        assert same(one.batch(start, count), other.batch(start, count))
        assert one.document_ids(start, count) == other.document_ids(start, count)


@pytest.mark.parametrize("trial", range(4))
@pytest.mark.parametrize("masked", [False, True])
def test_streams_are_those_of_one_folder(tmp_path: Path, rng, masked: bool, trial: int) -> None:
    rng = np.random.default_rng([SEED, 7, trial, masked])
    whole, joined = divided(tmp_path, *drawn(rng, 900, int(rng.integers(30, 200))), 900)
    settings = {"seq_len": int(rng.integers(1, 30)), "rows": 4, "document_mask": masked}
    one, other = (ContiguousBatches(shards, **settings) for shards in (whole, joined))
    for start in range(0, 2 * one.samples_per_epoch, 4):
        assert same(one.batch(start, 4), other.batch(start, 4))


def test_more_files_than_may_be_open(tmp_path: Path, rng) -> None:
    """A process may have some thousand files open; a corpus has more shares than that."""
    import resource

    items = rng.integers(0, 60_000, 1500)
    (tmp_path / "all").mkdir()
    files, store = [], MappedFiles()
    for n, item in enumerate(items.tolist()):
        path = tmp_path / "all" / f"{n}.bin"
        path.write_bytes(np.array([item], "<u2").tobytes())
        files.append(store.open(path, "<u2", 1))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
    try:
        joined = JoinedArray(files, "<u2")
        kept = [joined[n : n + 1] for n in range(100)]  # views keep their maps
        del kept
        order = rng.permutation(1500)
        assert joined[order].tolist() == items[order].tolist()
        assert joined[:].tolist() == items.tolist()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("damage", ["short", "missing"])
def test_a_damaged_share_is_refused_when_it_is_opened(tmp_path: Path, rng, damage: str) -> None:
    _, joined = divided(tmp_path, [np.arange(5), np.arange(9)], [1], 100)
    file = tmp_path / "shares/1/ends.bin"
    file.unlink() if damage == "missing" else file.write_bytes(b"\0" * 7)
    index = Index(
        tokenizer="t", vocab_size=100, eos_id=None, pad_id=1, dtype="<u2",
        parts={"train": JoinedPart(ledger=joined.ledger, shares=joined._shares)},
    )  # fmt: skip
    with pytest.raises(DataError, match=r"ends\.bin' is damaged: \d bytes where 8 belong; prepare it again"):
        JoinedShards(LocalFolder(tmp_path), index, index.parts["train"])


def test_an_index_of_another_kind_is_refused() -> None:
    for text in ("", "[]", "{}", '{"version": 1}', '{"version": 1, "parts": {"train": {}}}'):
        with pytest.raises(DataError, match=r"'here' is not an index of shards .*merge the folder again"):
            Index.from_json(text, "here")
    with pytest.raises(DataError, match="version 2, not 1"):
        Index.from_json('{"version": 2}', "here")
