"""Properties of reading, cutting, permuting and batching that must hold for any input."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wordloom.data import IGNORE, CausalBatches, Corpus, documents, prepare
from wordloom.data.batches.order import keyed, permute
from wordloom.data.ledgers import Ledger
from wordloom.data.shards.segments import Cutter, cut_rule
from wordloom.data.shards.storage import ShardWriter, TokenShards
from wordloom.text import Tokenizer

ENGLISH = "The quick brown fox; it's 12345 lazy dogs.\n\nZoë — “naïve”?\n" * 5
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
lively = st.lists(
    st.sampled_from(["a", "B", "'s", " ", "\n", "\r\n", "\t", "9", ".", "é", "日", "\u0301", "🙂"])
)


@pytest.fixture(scope="module")
def trained() -> list[Tokenizer]:
    return [
        Tokenizer.train([ENGLISH], kind="bpe", vocab_size=330),
        Tokenizer.train([ENGLISH], kind="bpe", vocab_size=330, split="llama3", lower=True),
        Tokenizer.train([ENGLISH], kind="wordpiece", vocab_size=120),
        Tokenizer.train([ENGLISH], kind="word"),
    ]


@given(st.integers(1, 3000), st.integers(0, 2**63 - 1))
@settings(deadline=None)
def test_the_permutation_is_one(count: int, seed: int) -> None:
    key = keyed(seed, 1, np.zeros(count, np.uint64))
    assert sorted(permute(np.arange(count, dtype=np.uint64), count, key).tolist()) == list(range(count))


def test_permutations_are_spread_evenly() -> None:
    count, epochs = 24, 6000
    epoch = np.repeat(np.arange(epochs, dtype=np.uint64), count)
    index = np.tile(np.arange(count, dtype=np.uint64), epochs)
    where = permute(index, count, keyed(7, 1, epoch)).reshape(epochs, count)
    pairs = np.zeros((count, count))
    np.add.at(pairs, (index.astype(int), where.ravel().astype(int)), 1)
    chi2 = ((pairs - epochs / count) ** 2 / (epochs / count)).sum()
    freedom = (count - 1) ** 2
    assert abs(chi2 - freedom) < 4 * (2 * freedom) ** 0.5
    fixed_successors = np.mean(np.diff(where.astype(int), axis=1) == 1)
    assert abs(fixed_successors - 1 / count) < 0.005


@given(st.binary(max_size=300), st.sampled_from(["a.txt", "a.txt.gz"]))
@settings(deadline=None)
def test_bytes_are_read_as_they_are(raw: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
        assert b"".join(d.text for d in documents(path, encoding_errors="bytes")) == raw


@given(st.lists(texts, max_size=6), st.sampled_from(["@@", "<|end|>"]))
@settings(deadline=None)
def test_joining_with_a_separator_is_undone_by_reading(parts: list[str], mark: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        parts = [p.replace("\0", "").replace("\r", "").removeprefix("\ufeff") for p in parts if mark not in p]
        path.write_bytes(("".join(f"{part}\n{mark}\n" for part in parts)).encode())
        assert [d.text for d in documents(path, separator=mark)] == (parts or [""])


@given(lively.map("".join), st.integers(1, 30), st.integers(1, 40))
@settings(deadline=None)
def test_cuts_change_no_id(trained: list[Tokenizer], text: str, size: int, step: int) -> None:
    for tokenizer in trained:
        rule = cut_rule(tokenizer)
        assert rule is not None
        cutter = Cutter(size, rule)
        segments = [s for n in range(0, len(text), step) for s in cutter.push(text[n : n + step], last=False)]
        segments += cutter.push("", last=True)
        assert "".join(segments) == text
        cut = [i for s in segments for i in tokenizer.encode_ids(s, specials="text")]
        assert cut == tokenizer.encode_ids(text, specials="text")


@given(st.lists(texts, min_size=1, max_size=8), st.floats(0, 0.99), st.sampled_from(["tail", "hash"]))
@settings(deadline=None)
def test_splits_lose_and_double_nothing(parts: list[str], fraction: float, split: str) -> None:
    import json

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_text("".join(json.dumps({"text": part}) + "\n" for part in parts))
        corpus = Corpus(sources=path, split=split, validation_fraction=fraction)
        train, validation = (
            [(d.index, d.text) for d in corpus.documents(part)] for part in ("train", "validation")
        )
        if split == "hash":
            whole = [(n, text) for n, text in enumerate(parts) if text]
            assert sorted(train + validation) == whole
        else:
            assert "".join(text for _, text in train + validation) == "".join(parts)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.integers(1, 12),
    st.integers(0, 2**63 - 1),
    st.integers(0, 500),
    st.integers(1, 6),
    st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_batches_never_leak(
    lengths: list[int], seq_len: int, seed: int, start: int, count: int, masked: bool
) -> None:
    """A row is a stretch of the text, its target at t is the token after t, or nothing."""
    total = sum(lengths)
    with tempfile.TemporaryDirectory() as folder:
        writer = ShardWriter(Path(folder) / "done", vocab_size=1000)
        ends = np.cumsum(lengths).tolist()
        writer.add(np.arange(total), ends, lengths, [(0, n) for n in range(len(lengths))])
        ledger = Ledger(part="train", split="", files=1, documents=len(lengths), tokens=total, bytes=total)
        meta = {"fingerprint": "", "vocab_size": 1000, "eos_id": None, "pad_id": None, "sources": ["x"]}
        writer.finish({**meta, "ledger": ledger.as_dict()})
        shards = TokenShards(Path(folder) / "done")
        for order in ("permutation", "random", "sequential"):
            if total < (2 if order == "sequential" else seq_len + 1):
                continue
            batches = CausalBatches(shards, seq_len=seq_len, seed=seed, order=order, document_mask=masked)
            batch = batches.batch(start, count)
            again = torch.cat([batches.batch(start + n, 1).tokens for n in range(count)])
            assert torch.equal(again, batch.tokens)
            scored = batch.targets != IGNORE
            assert torch.equal(batch.targets[scored], batch.tokens[scored] + 1)
            real = batch.documents >= 0 if masked else torch.ones_like(scored)
            steps = (batch.tokens[:, 1:] - batch.tokens[:, :-1])[real[:, 1:]]
            if order != "sequential":
                assert (steps == 1).all()
            if masked:
                owner = torch.bucketize(batch.tokens, torch.tensor(ends), right=True)
                assert torch.equal(owner[real], batch.documents[real])


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5).filter(any))
@settings(deadline=None, max_examples=30)
def test_any_bytes_survive_preparation(raw: list[bytes]) -> None:
    tokenizer = Tokenizer.train([], kind="byte")
    with tempfile.TemporaryDirectory() as folder:
        for n, content in enumerate(raw):
            (Path(folder) / f"{n}.txt").write_bytes(content)
        corpus = Corpus(sources=folder, encoding_errors="bytes", validation_fraction=0)
        shards = prepare(corpus, tokenizer, part="train", cache=Path(folder) / ".cache")
        spans = [shards.document_span(d) for d in range(shards.ledger.documents)]
        assert [tokenizer.decode_bytes(shards.tokens(a, b - 1).tolist()) for a, b in spans] == list(
            filter(None, raw)
        )
