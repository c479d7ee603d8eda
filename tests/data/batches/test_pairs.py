"""Batches of pairs: every pair once an epoch, its tokens whole, little padding, the same for any cut."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from wordloom.data import IGNORE, Ledger, PairBatch, PairBatches, PairCorpus, PairShards, prepare_pairs
from wordloom.data.batches.buckets import make_buckets
from wordloom.data.batches.causal import to_device
from wordloom.data.shards.storage import ShardWriter
from wordloom.errors import DataError
from wordloom.objectives import Loss
from wordloom.recipe import TrainSettings
from wordloom.text import Tokenizer
from wordloom.training.trainer import Trainer

EOS, PAD = 0, 1
PAIRS = st.lists(
    st.tuples(*[st.lists(st.integers(2, 30), min_size=1, max_size=25)] * 2), min_size=1, max_size=60
)
TOKENS = st.sampled_from([1, 7, 40, 100, 5000])
PADDING = st.sampled_from([0.0, 0.05, 0.3, 0.9])


def shards_of(pairs: list[tuple[list[int], list[int]]], folder: Path, *, eos: int | None = EOS) -> PairShards:
    """Shards without a tokenizer."""
    ledger = {"part": "train", "split": "none", "files": 2, "documents": len(pairs), "bytes": 1, "notes": []}
    for side, name in enumerate(("source", "target")):
        writer = ShardWriter(folder / name, vocab_size=31)
        ids = [pair[side] for pair in pairs]
        ends = np.cumsum([len(some) for some in ids]).tolist()
        ledger["tokens"] = ends[-1]
        writer.add(np.concatenate(ids), ends, [1] * len(ids), [(0, n) for n in range(len(ids))])
        meta = {"fingerprint": name, "vocab_size": 31, "eos_id": eos, "pad_id": PAD, "sources": [f"a.{name}"]}
        writer.finish({**meta, "ledger": ledger})
    described = {"version": 1, "fingerprint": "f", "ledger": {**ledger, "unit": "pair"}}
    (folder / "pairs.json").write_text(json.dumps(described))
    return PairShards(folder)


def some_pairs(n: int = 400, longest: int = 40) -> list[tuple[list[int], list[int]]]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, longest, n)
    others = np.maximum(1, lengths + rng.integers(-3, 4, n))
    return [(rng.integers(2, 31, a).tolist(), rng.integers(2, 31, b).tolist())
            for a, b in zip(lengths, others, strict=True)]  # fmt: skip


def read(batch: PairBatch) -> list[tuple[list[int], list[int]]]:
    """The pairs of a batch, from what a model is given, with every rule of the layout checked."""
    source, attend, prefix, targets = batch
    assert source.dtype == prefix.dtype == targets.dtype == torch.int64
    assert attend.dtype == torch.bool
    assert source.shape == attend.shape
    assert prefix.shape == targets.shape
    assert len(source) == len(prefix)
    assert attend.sum(1).max() == source.shape[1]  # no wider than the longest
    assert (targets != IGNORE).sum(1).max() == targets.shape[1]
    pairs = []
    for row in range(len(source)):
        s, t = int(attend[row].sum()), int((targets[row] != IGNORE).sum())
        assert attend[row, :s].all()
        assert (source[row, s:] == PAD).all()
        assert source[row, s - 1] == EOS
        assert prefix[row, 0] == PAD
        assert prefix[row, 1:t].tolist() == targets[row, : t - 1].tolist()  # of it only what came before
        assert (prefix[row, t:] == PAD).all()
        assert targets[row, t - 1] == EOS
        assert (targets[row, t:] == IGNORE).all()
        pairs.append((source[row, : s - 1].tolist(), targets[row, : t - 1].tolist()))
    return pairs


def epoch_of(batches: PairBatches, epoch: int = 0) -> list[PairBatch]:
    n = batches.samples_per_epoch
    return [batches.batch(epoch * n + sample) for sample in range(n)]


# --------------------------------------------------------------------------------------- properties


@given(PAIRS, TOKENS, PADDING, st.sampled_from(["permutation", "sequential"]), st.integers(0, 2**63 - 1))
@settings(max_examples=60, deadline=None)
def test_every_epoch_gives_each_pair_once_and_whole(pairs, batch_tokens, padding, order, seed):
    with tempfile.TemporaryDirectory() as folder:
        shards = shards_of(pairs, Path(folder))
        batches = PairBatches(shards, batch_tokens=batch_tokens, padding=padding, order=order, seed=seed)
        expected = Counter((tuple(a), tuple(b)) for a, b in pairs)
        for epoch in (0, 5):
            found = [pair for batch in epoch_of(batches, epoch) for pair in read(batch)]
            assert Counter((tuple(a), tuple(b)) for a, b in found) == expected
            first = epoch * batches.samples_per_epoch
            numbers = batches.pair_numbers(first, batches.samples_per_epoch)
            assert [pairs[n] for n in numbers] == found
            assert sorted(numbers) == list(range(len(pairs)))


@given(PAIRS, TOKENS, st.integers(0, 30), st.integers(1, 6), st.data())
@settings(max_examples=30, deadline=None)
def test_any_cut_of_the_samples_gives_the_same_ones(pairs, batch_tokens, start, count, data):
    with tempfile.TemporaryDirectory() as folder:
        batches = PairBatches(shards_of(pairs, Path(folder)), batch_tokens=batch_tokens, seed=3)
        whole = read(batches.batch(start, count))
        cut = data.draw(st.integers(1, count))
        parts = read(batches.batch(start, cut))
        if cut < count:
            parts += read(batches.batch(start + cut, count - cut))
        assert parts == whole
        again = PairBatches(PairShards(folder), batch_tokens=batch_tokens, seed=3)
        assert read(again.batch(start, count)) == whole


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=300),
    st.integers(1, 2000),
    PADDING,
)
@settings(max_examples=150, deadline=None)
def test_buckets_hold_each_pair_once_in_batches_of_bounded_size(lengths, batch_tokens, padding):
    lengths = np.array(lengths).T
    pairs, ends, batches = make_buckets(lengths, batch_tokens=batch_tokens, padding=padding)
    assert sorted(pairs) == list(range(lengths.shape[1]))
    sizes = np.diff(ends, prepend=0)
    assert (sizes >= batches).all()
    assert (batches >= 1).all()
    assert batches.sum() >= min(lengths.shape[1], max(1, round(lengths[1].sum() / batch_tokens)))
    widest = [lengths[:, pairs[end - n : end]].max(1) for n, end in zip(sizes, ends, strict=True)]
    assert [tuple(w[::-1]) for w in widest] == sorted(tuple(w[::-1]) for w in widest)
    rows = -(-sizes // batches)
    assert (rows * np.array(widest)[:, 1] <= 2 * batch_tokens + np.array(widest)[:, 1]).all()


# ------------------------------------------------------------------------------------------- examples


def test_batches_have_about_as_many_tokens_as_asked_and_little_padding(tmp_path):
    shards = shards_of(some_pairs(4000), tmp_path)
    for padding in (0.05, 0.1, 0.2):
        batches = PairBatches(shards, batch_tokens=1000, padding=padding)
        for epoch in (0, 1):
            made = epoch_of(batches, epoch)
            scored = np.array([int((batch.targets != IGNORE).sum()) for batch in made])
            assert np.sort(scored)[2] > 800  # of the shortest, some are kept small: see the bound below
            assert scored.max() < 1200
            real = [
                sum(int(batch.source_attend.sum()) for batch in made) / sum(b.source.numel() for b in made),
                scored.sum() / sum(batch.targets.numel() for batch in made),
            ]
            assert batches.real_shares(epoch) == pytest.approx(real)
            assert sum(real) / 2 > 1 - padding - 0.005
    assert batches.tokens_per_sample[1] == pytest.approx(scored.mean())
    tight, wide = (len(PairBatches(shards, batch_tokens=1000, padding=each)._batches) for each in (0.05, 0.2))
    assert wide < tight  # the more padding, the more pairs a pair may meet


def test_one_long_pair_among_short_ones_makes_no_giant_batch(tmp_path):
    pairs = [([5] * 4, [6] * 4)] * 500 + [([5] * 4, [6] * 400)]
    batches = PairBatches(shards_of(pairs, tmp_path), batch_tokens=1000)
    assert max(batch.targets.numel() for batch in epoch_of(batches)) <= 2000 + 401


def test_epochs_differ_in_order_and_company_and_sequential_ones_do_not(tmp_path):
    shards = shards_of(some_pairs(2000), tmp_path)
    batches = PairBatches(shards, batch_tokens=500, padding=0.1)

    def company(number: int) -> set[frozenset[int]]:
        n = batches.samples_per_epoch
        return {frozenset(batches.pair_numbers(number * n + sample).tolist()) for sample in range(n)}

    assert len(company(0) & company(1)) < batches.samples_per_epoch / 2
    widths = [[batch.targets.shape[1] for batch in epoch_of(batches, epoch)] for epoch in (0, 1)]
    assert widths[0] != widths[1]
    assert widths[0] != sorted(widths[0])
    other = PairBatches(shards, batch_tokens=500, padding=0.1, seed=1)
    assert other.pair_numbers(0).tolist() != batches.pair_numbers(0).tolist()
    fixed = PairBatches(shards, batch_tokens=500, order="sequential")
    n = fixed.samples_per_epoch
    assert fixed.pair_numbers(0, n).tolist() == fixed.pair_numbers(7 * n, n).tolist()
    lengths = [batch.targets.shape[1] for batch in epoch_of(fixed)]
    assert lengths == sorted(lengths)
    assert min(fixed.real_shares()) > max(batches.real_shares())


def test_far_samples_are_found_at_once(tmp_path):
    batches = PairBatches(shards_of(some_pairs(50), tmp_path), batch_tokens=100)
    assert len(batches.batch(10**15).source) >= 1


def test_tokens_move_to_a_device_as_one_batch(tmp_path):
    batch = PairBatches(shards_of(some_pairs(20), tmp_path)).batch(0)
    moved = to_device(batch, torch.device("meta"))
    assert isinstance(moved, PairBatch)
    assert [part.device.type for part in moved] == ["meta"] * 4
    assert [part.shape for part in moved] == [part.shape for part in batch]


def test_a_start_token_of_its_own(tmp_path):
    batch = PairBatches(shards_of(some_pairs(5), tmp_path), start_id=7).batch(0)
    assert (batch.prefix[:, 0] == 7).all()
    padding = batch.targets == IGNORE
    assert padding.any()
    assert (batch.prefix[padding] == PAD).all()


def test_sources_that_begin_with_a_token(tmp_path):
    pairs = some_pairs(50)
    batches = PairBatches(shards_of(pairs, tmp_path), batch_tokens=100, start_id=PAD, source_start_id=9)
    made = epoch_of(batches)
    found = []
    for batch in made:
        assert (batch.source[:, 0] == 9).all()
        assert batch.source_attend[:, 0].all()
        rest = batch._replace(source=batch.source[:, 1:], source_attend=batch.source_attend[:, 1:])
        found += read(rest)
    assert sorted(found) == sorted(pairs)
    real = sum(int(batch.source_attend.sum()) for batch in made)
    assert batches.real_shares()[0] == pytest.approx(real / sum(batch.source.numel() for batch in made))
    assert batches.tokens_per_sample[0] == pytest.approx(real / len(made))


def test_an_error_names_the_pairs_of_the_batch(tmp_path):
    batches = PairBatches(shards_of(some_pairs(30), tmp_path), batch_tokens=100)
    numbers = sorted(batches.pair_numbers(1, 2).tolist())
    assert batches.document_ids(1, 2) == [f"a.source#{n}" for n in numbers]


def test_fingerprint_is_that_of_everything_that_decides_the_batches(tmp_path):
    shards = shards_of(some_pairs(30), tmp_path)
    changed = [
        {},
        {"seed": 1},
        {"batch_tokens": 99},
        {"order": "sequential"},
        {"padding": 0.1},
        {"start_id": 5},
        {"source_start_id": 5},
    ]
    prints = [PairBatches(shards, **each).fingerprint for each in changed]
    assert len(set(prints)) == len(changed)
    assert PairBatches(shards).fingerprint == prints[0]


def test_the_ledger_says_what_is_padding(tmp_path):
    batches = PairBatches(shards_of(some_pairs(), tmp_path), batch_tokens=500)
    ledger = batches.ledger
    made = epoch_of(batches)
    real = sum(int(batch.source_attend.sum() + (batch.targets != IGNORE).sum()) for batch in made)
    assert ledger.packed_share == pytest.approx(
        real / sum(batch.source.numel() + batch.targets.numel() for batch in made)
    )
    text = "\n".join(ledger.lines())
    source, target = batches.real_shares()
    assert f"padding: {source:.1%} of source and {target:.1%} of target positions hold tokens" in text
    assert f"order: {batches.samples_per_epoch} batches of about 500 target tokens, put together anew" in text
    assert Ledger.from_dict(ledger.as_dict()) == ledger


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"order": "random"}, "order='random' is not known; allowed: permutation, sequential"),
        ({"batch_tokens": 0}, "batch_tokens=0 is not allowed; at least 1"),
        ({"seed": -1}, "seed=-1"),
        ({"padding": 1.0}, "0 <= padding < 1"),
        ({"start_id": 31}, "start_id=31 is not allowed; 0 <= start_id < 31"),
        ({"source_start_id": -1}, "source_start_id=-1 is not allowed; 0 <= source_start_id < 31"),
    ],
)
def test_impossible_settings(tmp_path, changed: dict, says: str) -> None:
    with pytest.raises(DataError, match=says):
        PairBatches(shards_of(some_pairs(5), tmp_path), **changed)


def test_impossible_batches(tmp_path):
    batches = PairBatches(shards_of(some_pairs(5), tmp_path))
    for start, count in [(-1, 1), (0, 0)]:
        with pytest.raises(DataError, match="batch"):
            batches.batch(start, count)


def test_tokens_that_a_tokenizer_lacks(tmp_path):
    shards = shards_of(some_pairs(5), tmp_path, eos=None)
    with pytest.raises(DataError, match="the source tokenizer has no end-of-sequence token"):
        PairBatches(shards)
    shards.source.eos_id = shards.target.eos_id = EOS
    shards.target.pad_id = None
    with pytest.raises(DataError, match="no pad token to begin a prefix with; give a start_id"):
        PairBatches(shards)


def test_the_trainer_counts_batches_and_scores_every_target_once(tmp_path):
    batches = PairBatches(shards_of(some_pairs(60), tmp_path), batch_tokens=200)
    n = batches.samples_per_epoch

    def objective(model: torch.nn.Module, batch: PairBatch) -> Loss:
        logits = model(batch.prefix).flatten(0, 1)
        total = cross_entropy(logits, batch.targets.flatten(), ignore_index=IGNORE, reduction="sum")
        return Loss(total, (batch.targets != IGNORE).sum())

    def step(micro: int) -> dict:
        torch.manual_seed(0)
        settings = TrainSettings(
            steps=1, batch_size=n, micro_batch_size=micro, precision="fp32", device="cpu"
        )
        return Trainer(torch.nn.Embedding(31, 31), objective, batches, settings, total_steps=1).train_step()

    one_by_one, at_once = step(1), step(n)
    assert one_by_one["loss_count"] == at_once["loss_count"] == int((batches.shards.lengths[1] + 1).sum())
    assert one_by_one["loss_total"] == pytest.approx(at_once["loss_total"], rel=1e-6)
    assert one_by_one["gradient_norm"] == pytest.approx(at_once["gradient_norm"], rel=1e-5)


def test_padding_of_multi30k_at_4000_target_tokens(data_folder: Path) -> None:
    corpus = PairCorpus(
        sources="multi30k/train", source_column="de", target_column="en",
        split="files", validation_sources="multi30k/val",
    )  # fmt: skip
    tokenizer = Tokenizer.train(
        [text for pair in corpus.pairs("train") for text in pair[:2]], kind="bpe", vocab_size=8000
    )
    shards = prepare_pairs(corpus, tokenizer, tokenizer, part="train")
    batches = PairBatches(shards, batch_tokens=4000)
    for epoch in range(3):
        assert min(batches.real_shares(epoch)) > 0.91
    scored = [int((batches.batch(n).targets != IGNORE).sum()) for n in range(batches.samples_per_epoch)]
    assert min(scored) > 3900
    assert max(scored) < 4100
    assert sum(scored) == int((shards.lengths[1] + 1).sum())
