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


def test_what_decides_the_batches_is_in_their_fingerprint(make_shards):
    shards = make_shards(*documents(40))
    first = ContiguousBatches(shards, seq_len=4, rows=2)
    assert first.fingerprint == ContiguousBatches(shards, seq_len=4, rows=2).fingerprint
    others = [
        {"seq_len": 5, "rows": 2},
        {"seq_len": 4, "rows": 3},
        {"seq_len": 4, "rows": 2, "document_mask": True},
    ]
    assert len({first.fingerprint, *(ContiguousBatches(shards, **each).fingerprint for each in others)}) == 4
    for name in ("seq_len", "rows"):
        with pytest.raises(DataError, match=f"{name}=0 is not allowed"):
            ContiguousBatches(shards, **{"seq_len": 4, "rows": 2, name: 0})


def test_an_error_names_the_documents_of_the_batch(make_shards):
    batches = ContiguousBatches(make_shards(*documents(7, 1, 9, 4)), seq_len=4, rows=2)
    assert [name.rpartition("#")[2] for name in batches.document_ids(0, 1)] == ["0"]
    assert [name.rpartition("#")[2] for name in batches.document_ids(0, 2)] == ["0", "2"]
