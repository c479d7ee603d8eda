"""Batches of bags: every row once an epoch, by number, whatever the batch size."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from wordloom.data.batches.labelled import BagBatches, LabelBatch
from wordloom.data.ledgers import RowLedger
from wordloom.errors import DataError

N, V = 23, 9


@pytest.fixture
def counts() -> csr_matrix:
    dense = np.random.default_rng(0).poisson(0.6, (N, V)).astype(np.int32)
    dense[4] = 0  # a row without a word
    return csr_matrix(dense)


def dense_of(batch: LabelBatch) -> np.ndarray:
    ids, counts, offsets = (tensor.numpy() for tensor in batch.inputs)
    rows = np.zeros((len(offsets) - 1, V))
    for row in range(len(rows)):
        part = slice(offsets[row], offsets[row + 1])
        rows[row, ids[part]] = counts[part]
    return rows


def test_a_batch_holds_the_rows_and_their_classes(counts):
    batches = BagBatches(counts, np.arange(N), order="sequential")
    batch = batches.batch(3, 4)
    assert batch.targets.tolist() == [3, 4, 5, 6]
    assert (dense_of(batch) == counts.toarray()[3:7]).all()
    assert (dense_of(batches.batch(0, N)) == counts.toarray()).all()
    assert batches.batch(N - 2, 4).targets.tolist() == [N - 2, N - 1, 0, 1]  # into the next epoch


def test_each_epoch_is_a_permutation_of_its_own(counts):
    batches = BagBatches(counts, np.arange(N), seed=3)
    epochs = [batches.batch(epoch * N + 1, N - 1).targets.tolist() for epoch in range(3)]
    whole = [[batches.batch(epoch * N, 1).targets.item(), *rest] for epoch, rest in enumerate(epochs)]
    assert all(sorted(order) == list(range(N)) for order in whole)
    assert whole[0] != whole[1] != whole[2]
    assert whole[0] != BagBatches(counts, np.arange(N), seed=4).batch(0, 10).targets.tolist()


def test_a_change_of_batch_size_changes_no_sample(counts):
    batches = BagBatches(counts, np.arange(N), seed=3)
    at_once = batches.batch(5, 40)
    parts = [batches.batch(5, 7), batches.batch(12, 1), batches.batch(13, 32)]
    assert at_once.targets.tolist() == [t for part in parts for t in part.targets.tolist()]
    assert (dense_of(at_once) == np.concatenate([dense_of(part) for part in parts])).all()


def test_places_and_fingerprint(counts):
    places = [f"f.tsv:{n + 1}" for n in range(N)]
    batches = BagBatches(counts, np.arange(N), places=places, order="sequential")
    assert batches.document_ids(1, 2) == ["f.tsv:2", "f.tsv:3"]
    assert batches.fingerprint == BagBatches(counts, np.arange(N), order="sequential").fingerprint
    other = counts.copy()
    other.data[0] += 1
    assert batches.fingerprint != BagBatches(other, np.arange(N), order="sequential").fingerprint
    assert batches.fingerprint != BagBatches(counts, np.arange(N)[::-1], order="sequential").fingerprint


def test_what_makes_no_batches(counts):
    with pytest.raises(DataError, match="there is no row"):
        BagBatches(counts[:0], np.arange(0))
    with pytest.raises(DataError, match="23 rows have 5 targets"):
        BagBatches(counts, np.arange(5))
    with pytest.raises(DataError, match="seed=-1"):
        BagBatches(counts, np.arange(N), seed=-1)
    with pytest.raises(DataError, match=r"batch\(0, 0\)"):
        BagBatches(counts, np.arange(N)).batch(0, 0)


def test_the_ledger_says_what_is_not_counted():
    ledger = RowLedger(part="validation", split="s", rows=3, terms=40, unknown=10, empty=1,
                         unit="words", labels={"a": 2, "b": 1})  # fmt: skip
    lines = "\n".join(ledger.lines())
    assert "3 rows, 40 words; labels: a 2, b 1" in lines
    assert "10 words (25.0%) are not in the vocabulary" in lines
    assert "empty: 1 row has no term of the vocabulary" in lines
