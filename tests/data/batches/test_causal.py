"""Windows, order, document masks and the ledger, each against the plainest possible reading."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from wordloom.data import IGNORE, CausalBatches
from wordloom.errors import DataError


def documents(*lengths: int) -> list[list[int]]:
    """Documents of the given lengths, holding 0, 1, 2, ... so that a token is its own position."""
    ends = np.cumsum(lengths)
    return [list(range(end - length, end)) for end, length in zip(ends, lengths, strict=True)]


def rows(batch) -> list[list[int]]:
    return batch.tokens.tolist()


@pytest.mark.parametrize("order", ["permutation", "random", "sequential"])
def test_targets_are_the_tokens_that_follow(make_shards, order: str) -> None:
    batches = CausalBatches(make_shards(*documents(997)), seq_len=16, seed=3, order=order)
    batch = batches.batch(0, batches.samples_per_epoch)
    assert batch.tokens.dtype == batch.targets.dtype == torch.int64
    assert batch.tokens.shape == batch.targets.shape == (batches.samples_per_epoch, 16)
    assert batch.tokens.is_contiguous()
    assert batch.targets.is_contiguous()
    assert batch.tokens.untyped_storage().data_ptr() != batch.targets.untyped_storage().data_ptr()
    assert batch.positions is batch.documents is None
    scored = batch.targets != IGNORE
    assert torch.equal(batch.targets[scored], batch.tokens[scored] + 1)
    assert torch.equal(batch.tokens[:, 1:][scored[:, 1:]], batch.targets[:, :-1][scored[:, 1:]])


@pytest.mark.parametrize("length", [17, 18, 32, 33, 100, 1000])
def test_an_epoch_visits_every_window_once_from_its_own_phase(make_shards, length: int) -> None:
    batches = CausalBatches(make_shards(*documents(length)), seq_len=16, seed=5)
    count = batches.samples_per_epoch
    phases = []
    for epoch in range(20):
        batch = batches.batch(epoch * count, count)
        assert (batch.targets != IGNORE).all()
        starts = sorted(row[0] for row in rows(batch))
        assert starts == list(range(starts[0], starts[0] + 16 * count, 16))
        assert starts[-1] + 16 < length
        phases.append(starts[0])
    left = length - 1 - 16 * count
    assert left < 32
    if left:
        assert len(set(phases)) > 1
    if length >= 100:
        assert len(set(phases)) > 5
        orders = {
            tuple(row[0] - phases[e] for row in rows(batches.batch(e * count, count))) for e in range(5)
        }
        assert len(orders) == 5


@pytest.mark.parametrize("order", ["permutation", "random", "sequential"])
def test_any_cut_of_the_samples_gives_the_same_ones(make_shards, order: str) -> None:
    batches = CausalBatches(
        make_shards(*documents(500, 300)), seq_len=8, seed=1, order=order, document_mask=True
    )
    whole = batches.batch(0, 500)  # several epochs
    for start, count in [(0, 1), (7, 13), (95, 10), (499, 1), (100, 250)]:
        part = batches.batch(start, count)
        for field, expected in zip(part, whole, strict=True):
            assert torch.equal(field, expected[start : start + count])


def test_far_samples_cost_what_near_ones_do(make_shards) -> None:
    batches = CausalBatches(make_shards(*documents(1000)), seq_len=8, seed=1)
    assert batches.batch(10**15, 4).tokens.shape == (4, 8)


def test_seeds_name_orders(make_shards) -> None:
    shards = make_shards(*documents(1000))
    for order in ("permutation", "random"):
        first, again, other = (
            rows(CausalBatches(shards, seq_len=8, seed=seed, order=order).batch(0, 50)) for seed in (1, 1, 2)
        )
        assert first == again != other


def test_random_starts_are_uniform_over_all_there_are(make_shards) -> None:
    batches = CausalBatches(make_shards(*documents(29)), seq_len=8, seed=1, order="random")
    n = 21_000
    counts = Counter(batches.batch(0, n).tokens[:, 0].tolist())
    assert sorted(counts) == list(range(21))  # 0 to 29 - 8 - 1, as nanoGPT draws them
    chi2 = sum((count - n / 21) ** 2 / (n / 21) for count in counts.values())
    assert chi2 < 45.3  # 99.9% of a chi-squared with 20 degrees of freedom


@pytest.mark.parametrize(("length", "seq_len"), [(2, 16), (16, 16), (17, 16), (18, 16), (100, 16), (97, 8)])
@pytest.mark.parametrize("stride", [None, 1, 3, 8])
def test_sequential_scores_every_target_once(
    make_shards, length: int, seq_len: int, stride: int | None
) -> None:
    batches = CausalBatches(
        make_shards(*documents(length), pad_id=999), seq_len=seq_len, order="sequential", stride=stride
    )
    batch = batches.batch(0, batches.samples_per_epoch)
    scored = batch.targets[batch.targets != IGNORE].tolist()
    assert scored == list(range(1, length))
    for row, targets in zip(batch.tokens, batch.targets, strict=True):
        real = row != 999
        assert torch.equal(row[real], row[0] + torch.arange(int(real.sum())))
        if row[0] > 0:  # every target but the first window's has at least T - stride tokens before it
            assert int((targets != IGNORE).nonzero()[0]) == seq_len - (stride or seq_len)
    assert torch.equal(batches.batch(batches.samples_per_epoch, 1).tokens, batch.tokens[:1])
    packed = batches.ledger.packed_share
    assert packed == pytest.approx(float((batch.tokens != 999).double().mean()))


def test_document_masks_against_a_plain_reading(make_shards) -> None:
    lengths = [3, 1, 1, 9, 40, 2, 7, 16, 5, 30]
    shards = make_shards(*documents(*lengths))
    of = [d for d, length in enumerate(lengths) for _ in range(length)]
    for order in ("permutation", "random", "sequential"):
        batches = CausalBatches(shards, seq_len=8, seed=2, order=order, document_mask=True)
        batch = batches.batch(0, 40)
        for tokens, targets, positions, documents_ in zip(*(field.tolist() for field in batch), strict=True):
            for t, token in enumerate(tokens):
                if documents_[t] == -1:
                    assert targets[t] == IGNORE
                    assert order == "sequential"
                    continue
                assert documents_[t] == of[token]
                first = next(k for k in range(t + 1) if documents_[k] == of[token])
                assert positions[t] == t - first
                crosses = token + 1 < len(of) and of[token + 1] != of[token]
                assert targets[t] == (IGNORE if crosses else token + 1)


def test_masking_attention_and_loss_are_separate_choices(make_shards) -> None:
    shards = make_shards(*documents(*[5] * 20))
    attention, loss, neither = (
        CausalBatches(shards, seq_len=8, document_mask=mask, mask_document_starts=starts).batch(0, 10)
        for mask, starts in [(True, False), (False, True), (False, False)]
    )
    assert attention.documents is not None
    assert (attention.targets != IGNORE).all()
    assert loss.documents is None
    assert torch.equal((loss.targets == IGNORE), neither.tokens % 5 == 4)
    assert (neither.targets != IGNORE).all()


def test_document_ids_name_what_a_batch_touches(make_shards) -> None:
    batches = CausalBatches(make_shards(*documents(8, 4, 1, 3, 20)), seq_len=4, order="sequential")
    assert batches.document_ids(0, 1) == ["made#0"]
    assert batches.document_ids(1, 1) == ["made#0", "made#1"]  # the last target is the next document's first
    assert batches.document_ids(2, 2) == ["made#1", "made#2", "made#3", "made#4"]


@pytest.mark.parametrize(
    ("length", "settings", "named"),
    [
        (100, {"seq_len": 0}, "seq_len=0"),
        (100, {"seq_len": 8, "order": "shuffled"}, "order='shuffled' is not known"),
        (100, {"seq_len": 8, "seed": -1}, "seed=-1"),
        (100, {"seq_len": 8, "stride": 4}, "stride=4 needs order='sequential'"),
        (100, {"seq_len": 8, "stride": 9, "order": "sequential"}, "stride=9"),
        (8, {"seq_len": 8}, "has 8 tokens, but a window of seq_len=8 needs 9"),
        (1, {"seq_len": 8, "order": "sequential"}, "needs 2"),
    ],
)
def test_impossible_settings(make_shards, length: int, settings: dict, named: str) -> None:
    with pytest.raises(DataError, match=named):
        CausalBatches(make_shards(*documents(length)), **settings)


def test_impossible_batches(make_shards) -> None:
    batches = CausalBatches(make_shards(*documents(100)), seq_len=8)
    for start, count in [(-1, 1), (0, 0)]:
        with pytest.raises(DataError, match="batch"):
            batches.batch(start, count)


def test_fingerprint_is_that_of_everything_that_decides_the_batches(make_shards) -> None:
    shards = make_shards(*documents(100))
    settings = [
        {},
        {"seed": 1},
        {"order": "random"},
        {"order": "sequential"},
        {"order": "sequential", "stride": 4},
        {"document_mask": True},
        {"document_mask": True, "mask_document_starts": False},
        {"mask_document_starts": True},
    ]
    prints = [CausalBatches(shards, seq_len=8, **s).fingerprint for s in settings]
    assert len({*prints, CausalBatches(shards, seq_len=9).fingerprint}) == len(settings) + 1
    assert CausalBatches(shards, seq_len=8).fingerprint == prints[0]


def test_the_ledger_counts_what_windows_divide_and_leave(make_shards) -> None:
    batches = CausalBatches(make_shards(*documents(8, 8, 5, 20, 100)), seq_len=8, order="sequential")
    ledger = batches.ledger
    assert ledger.cut == {"document(s) divided by edges of 8-token windows": 2}
    assert ledger.packed_share == pytest.approx(140 / 144)
    assert ledger.from_dict(ledger.as_dict()) == ledger
    text = "\n".join(ledger.lines())
    assert "18 windows of 8 tokens, in text order" in text
    assert "4 positions of the last window are padding" in text
    permuted = "\n".join(CausalBatches(make_shards(*documents(141)), seq_len=8).ledger.lines())
    assert "16 windows of 8 tokens an epoch, permuted; 12 of 140 targets are dropped" in permuted
