"""Streams read side by side: what is read, in which order, and what of it is scored."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wordloom.data import IGNORE, ContiguousBatches
from wordloom.errors import DataError


def documents(*lengths: int) -> list[list[int]]:
    """Documents of the given lengths, holding 0, 1, 2, ... so that a token is its own position."""
    ends = np.cumsum(lengths)
    return [list(range(end - length, end)) for end, length in zip(ends, lengths, strict=True)]


def epoch(batches: ContiguousBatches, number: int = 0) -> list:
    rows = batches.rows
    first = number * batches.samples_per_epoch
    return [batches.batch(first + at, rows) for at in range(0, batches.samples_per_epoch, rows)]


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    rows=st.integers(1, 5),
    seq_len=st.integers(1, 9),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_stream_is_a_stretch_of_the_text_read_once(make_shards, lengths, rows, seq_len):
    shards = make_shards(*documents(*lengths))
    ids = np.asarray(shards.tokens()).astype(np.int64)
    if (len(ids) - 1) // rows < 1:
        with pytest.raises(DataError, match=f"too few for {rows} streams"):
            ContiguousBatches(shards, seq_len=seq_len, rows=rows)
        return
    batches = ContiguousBatches(shards, seq_len=seq_len, rows=rows)
    for number in (0, 3):
        parts = epoch(batches, number)
        assert [part.fresh for part in parts] == [True] + [False] * (len(parts) - 1)
        tokens = torch.cat([part.tokens for part in parts], dim=1)
        targets = torch.cat([part.targets for part in parts], dim=1)
        assert tokens.shape == (rows, batches.windows * seq_len)
        n = batches.length
        assert bool((targets[:, n:] == IGNORE).all())
        streams = ids[: rows * n].reshape(rows, n)
        assert np.array_equal(tokens[:, :n].numpy(), streams)
        assert np.array_equal(targets[:, :n].numpy(), ids[1 : rows * n + 1].reshape(rows, n))
    assert 0 <= len(ids) - 1 - rows * n < rows
    assert f"{len(ids) - 1 - rows * n:,} targets are dropped" in batches.ledger.notes[-1]
    assert batches.ledger.packed_share == pytest.approx(n / (batches.windows * seq_len))


def test_rows_of_a_batch_may_be_asked_for_in_parts(make_shards):
    batches = ContiguousBatches(make_shards(*documents(20, 30)), seq_len=5, rows=4, document_mask=True)
    for start in range(0, 3 * 4, 4):
        whole = batches.batch(start, 4)
        parts = [batches.batch(start, 1), batches.batch(start + 1, 3)]
        assert [part.first_row for part in parts] == [0, 1]
        for name in ("tokens", "targets", "positions", "documents"):
            assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
    with pytest.raises(DataError, match="lie between two multiples of 4"):
        batches.batch(2, 4)


def test_documents_kept_apart_say_where_they_begin(make_shards):
    shards = make_shards(*documents(7, 1, 9, 4))
    batches = ContiguousBatches(shards, seq_len=4, rows=2, document_mask=True)
    parts = epoch(batches)
    n = batches.length
    positions = torch.cat([part.positions for part in parts], dim=1)[:, :n].flatten()
    numbers = torch.cat([part.documents for part in parts], dim=1)[:, :n].flatten()
    targets = torch.cat([part.targets for part in parts], dim=1)[:, :n].flatten()
    ends = np.asarray(shards.ends)
    starts = np.concatenate([[0], ends[:-1]])
    for at in range(2 * n):
        number = int(np.searchsorted(ends, at, side="right"))
        assert (int(numbers[at]), int(positions[at])) == (number, at - starts[number])
        assert (int(targets[at]) == IGNORE) == (at + 1 in ends)


@given(
    share=st.sampled_from([0.0, 0.03, 0.3, 0.5, 1.0]),
    rows=st.integers(1, 5),
    seq_len=st.integers(1, 9),
    start_id=st.sampled_from([None, 999]),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_some_windows_begin_anew(make_shards, share, rows, seq_len, start_id, seed):
    shards = make_shards(*documents(300, 1, 57))
    plain = ContiguousBatches(shards, seq_len=seq_len, rows=rows)
    batches = ContiguousBatches(
        shards, seq_len=seq_len, rows=rows, restart_share=share, start_id=start_id, seed=seed
    )
    for at in (0, rows, 40 * rows):
        batch, without = batches.batch(at, rows), plain.batch(at, rows)
        assert torch.equal(batch.targets, without.targets)
        assert torch.equal(batch.tokens[:, 1:], without.tokens[:, 1:])
        anew = torch.zeros(rows, dtype=torch.bool) if batch.restarts is None else batch.restarts
        assert bool(anew.all()) if share == 1 else share or batch.restarts is None
        begins = anew | batch.fresh
        assert batch.fresh == (at // rows % batches.windows == 0)
        own = without.tokens[:, 0]
        assert torch.equal(batch.tokens[:, 0], own if start_id is None else torch.where(begins, 999, own))
        last = batches.batch(at + rows - 1, 1)
        assert torch.equal(last.tokens, batch.tokens[-1:])
        assert batch.restarts is None or torch.equal(last.restarts, batch.restarts[-1:])


def test_restarts_have_the_share_that_was_asked_for(make_shards):
    shards = make_shards(*[[5]] * 9000, vocab_size=8)
    batches = ContiguousBatches(shards, seq_len=2, rows=20, restart_share=0.1, start_id=6, seed=3)
    parts = [batches.batch(at, 20) for at in range(0, 10_000, 20)]
    restarts = torch.cat([part.restarts for part in parts])
    assert abs(int(restarts.sum()) - 1000) < 5 * 30  # five deviations of a binomial distribution
    assert batches.ledger.notes[-1] == "restarts: 0.1 of the windows begin with an empty state"
    for wrong in (-0.1, 1.5):
        with pytest.raises(DataError, match="restart_share"):
            ContiguousBatches(shards, seq_len=2, rows=20, restart_share=wrong)


def test_what_decides_the_batches_is_in_their_fingerprint(make_shards):
    shards = make_shards(*documents(40))
    first = ContiguousBatches(shards, seq_len=4, rows=2)
    assert first.fingerprint == ContiguousBatches(shards, seq_len=4, rows=2).fingerprint
    others = [
        {"seq_len": 5, "rows": 2},
        {"seq_len": 4, "rows": 3},
        {"seq_len": 4, "rows": 2, "document_mask": True},
        {"seq_len": 4, "rows": 2, "restart_share": 0.1},
        {"seq_len": 4, "rows": 2, "restart_share": 0.1, "seed": 1},
        {"seq_len": 4, "rows": 2, "start_id": 1},
    ]
    assert len({first.fingerprint, *(ContiguousBatches(shards, **each).fingerprint for each in others)}) == 7
    for name in ("seq_len", "rows"):
        with pytest.raises(DataError, match=f"{name}=0 is not allowed"):
            ContiguousBatches(shards, **{"seq_len": 4, "rows": 2, name: 0})


def test_an_error_names_the_documents_of_the_batch(make_shards):
    batches = ContiguousBatches(make_shards(*documents(7, 1, 9, 4)), seq_len=4, rows=2)
    assert [name.rpartition("#")[2] for name in batches.document_ids(0, 1)] == ["0"]
    assert [name.rpartition("#")[2] for name in batches.document_ids(0, 2)] == ["0", "2"]
