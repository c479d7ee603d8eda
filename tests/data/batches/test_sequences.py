"""Batches of token sequences: every row once an epoch, by number, padded on the right, never cut unasked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wordloom.data.batches.sequences import SequenceLabelBatches, TokenRows, token_rows
from wordloom.errors import DataError
from wordloom.text import Tokenizer

PAD = 99


def rows_of(lengths: list[int]) -> TokenRows:
    """Row r holds r, r + 1, ..."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.concatenate([np.empty(0), *(np.arange(r, r + n) for r, n in enumerate(lengths))])
    return TokenRows(ids=ids.astype(np.int32), offsets=offsets, unknown=0, cut=0)


def made(lengths: list[int], **settings) -> SequenceLabelBatches:
    return SequenceLabelBatches(rows_of(lengths), np.arange(len(lengths)), pad_id=PAD, **settings)


def test_a_batch_holds_the_rows_their_ends_and_their_classes():
    batch = made([3, 0, 1, 2], order="sequential").batch(0, 3)
    assert batch.inputs.tokens.tolist() == [[0, 1, 2], [PAD] * 3, [2, PAD, PAD]]
    assert batch.inputs.attend.tolist() == [[True] * 3, [False] * 3, [True, False, False]]
    assert batch.targets.tolist() == [0, 1, 2]
    assert made([0, 2], order="sequential").batch(0, 1).inputs.tokens.tolist() == [[PAD]]


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=70),
    alike=st.integers(1, 5),
    seed=st.integers(0, 9),
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=5),
)
def test_each_epoch_has_every_row_once_however_it_is_cut(lengths, alike, seed, cuts):
    batches = made(lengths, alike=alike, seed=seed)
    n, samples = len(lengths), 3 * len(lengths)
    at_once = batches.rows(0, samples)
    assert all(sorted(at_once[e * n : (e + 1) * n]) == list(range(n)) for e in range(3))
    starts = [0, *np.cumsum(cuts).tolist()]
    parts = [batches.rows(start, count) for start, count in zip(starts, cuts, strict=False)]
    whole = batches.rows(0, starts[-1])
    assert np.concatenate(parts).tolist() == whole.tolist()
    assert whole[:samples].tolist() == at_once[: len(whole)].tolist()
    for start, count in zip(starts, cuts, strict=False):
        batch = batches.batch(start, count)
        for row, tokens, attend in zip(batch.targets.tolist(), *batch.inputs, strict=True):
            assert tokens[attend].tolist() == list(range(row, row + lengths[row]))
            assert (tokens[~attend] == PAD).all()
            assert attend.tolist() == sorted(attend.tolist(), reverse=True)


def test_a_pool_may_hold_thousands_of_epochs():
    """More than there may be calls within calls; of which a batch takes some hundred."""
    rows = made([3, 1, 2], alike=1024).rows(0, 1024)
    assert sorted(np.bincount(rows)) == [341, 341, 342]


def test_rows_of_like_length_stand_together_and_in_no_fixed_order():
    lengths = np.random.default_rng(0).integers(1, 40, 1000).tolist()

    def padding(batches):
        cut = [batches.batch(start, 20).inputs.attend for start in range(0, 3000, 20)]
        return sum(int((~attend).sum()) for attend in cut) / sum(attend.numel() for attend in cut)

    alike, apart = made(lengths, alike=20, seed=1), made(lengths, seed=1)
    assert padding(alike) < 0.12 < 0.4 < padding(apart)
    first = [alike.batch(start, 20).inputs.tokens.shape[1] for start in range(0, 320, 20)]
    assert first != sorted(first)
    assert alike.rows(0, 1000).tolist() != alike.rows(1000, 1000).tolist()
    assert alike.rows(0, 50).tolist() != made(lengths, alike=20, seed=2).rows(0, 50).tolist()


def test_passes_see_every_row_once_with_the_shortest_first():
    lengths = np.random.default_rng(0).integers(0, 300, 900).tolist()
    batches = made(lengths, order="length")
    seen = [row for cut in batches.passes() for row in batches.rows(*cut)]
    assert sorted(seen) == list(range(900))
    assert [lengths[row] for row in seen] == sorted(lengths)
    assert max(batches.batch(*cut).inputs.tokens.numel() for cut in batches.passes()) <= 1 << 15
    assert [count for _, count in made([70_000, 70_000], order="length").passes()] == [1, 1]


def test_the_fingerprint_is_of_all_that_decides():
    same = made([2, 3], seed=1).fingerprint
    assert same == made([2, 3], seed=1).fingerprint
    others = [made([3, 2], seed=1), made([2, 3], seed=2), made([2, 3], seed=1, alike=2),
              made([2, 3], seed=1, order="sequential")]  # fmt: skip
    assert len({same, *(batches.fingerprint for batches in others)}) == 5


def test_texts_become_rows_and_long_ones_are_an_error_or_cut():
    tokenizer = Tokenizer.train(["abcde"], kind="char")
    rows = token_rows(tokenizer, ["abc", "", "<unk>", "x"])
    assert np.diff(rows.offsets).tolist() == [3, 0, 5, 1]
    assert rows.unknown == 6  # <, u, n, k and > are characters like x
    assert rows.cut == 0
    with pytest.raises(DataError, match=r"f\.tsv:1: has 4 tokens and train\.seq_len allows 3.*too_long"):
        token_rows(tokenizer, ["a", "abcd"], longest=3, place=lambda row: f"f.tsv:{row}")
    cut = token_rows(tokenizer, ["a", "abcd"], longest=3, too_long="cut")
    assert (cut.cut, tokenizer.decode(cut.ids[1:])) == (1, "abc")


def test_what_makes_no_batches():
    with pytest.raises(DataError, match="there is no row"):
        made([])
    with pytest.raises(DataError, match="2 rows have 3 targets"):
        SequenceLabelBatches(rows_of([1, 1]), np.arange(3))
    with pytest.raises(DataError, match="alike=0"):
        made([1], alike=0)
    with pytest.raises(DataError, match=r"batch\(0, 0\)"):
        made([1]).batch(0, 0)
