"""Caches: allocated once, grown rarely; rows join, leave and are truncated, each with a length of its own."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wordloom.errors import ConfigError, GenerationError
from wordloom.nn import KeyValueCache
from wordloom.nn.attention import EVERYTHING, positions_and_visibility
from wordloom.nn.cache import DecoderCache, RecurrentCache

CPU = torch.device("cpu")


def tokens(batch: int, T: int) -> Tensor:
    return torch.zeros(batch, T, dtype=torch.long)


def test_keys_are_written_in_place_and_come_back_as_views() -> None:
    cache = KeyValueCache(n_layers=2, batch=3, length=5)
    keys, values = torch.randn(2, 3, 2, 5, 4).unbind(0)
    for start, stop in ((0, 2), (2, 3), (3, 5)):
        for i in range(2):
            new = keys[:, :, start:stop] + i, values[:, :, start:stop] + i
            k, v, _ = cache.layer(i).append(*new, EVERYTHING)
            assert torch.equal(k, keys[:, :, :stop] + i)
            assert torch.equal(v, values[:, :, :stop] + i)
        if start == 0:
            address = cache.layer(0).keys.data_ptr()
        cache.advance(tokens(3, stop - start))
    assert cache.lengths.tolist() == [5, 5, 5]
    assert cache.layer(0).keys.data_ptr() == address  # nothing was copied on the way


def test_more_tokens_than_asked_for_double_the_room() -> None:
    cache = KeyValueCache(n_layers=1, batch=1, length=2)
    keys = torch.randn(1, 1, 9, 4)
    sizes = set()
    for t in range(9):
        k, _, _ = cache.layer(0).append(keys[:, :, t : t + 1], keys[:, :, t : t + 1], EVERYTHING)
        cache.advance(tokens(1, 1))
        sizes.add(cache.layer(0).keys.shape[2])
        assert torch.equal(k, keys[:, :, : t + 1])
    assert sizes == {2, 4, 8, 16}


@pytest.mark.parametrize("capacity", [4, 40])
def test_select_keeps_rows_in_the_order_asked(capacity: int) -> None:
    cache = KeyValueCache(n_layers=1, batch=3, length=capacity)
    keys = torch.randn(3, 2, 2, 4)
    cache.layer(0).append(keys, -keys, EVERYTHING)
    cache.advance(tokens(3, 2))
    cache.select(torch.tensor([2, 1, 1]))
    new = torch.randn(3, 2, 1, 4)
    k, v, _ = cache.layer(0).append(new, new, EVERYTHING)
    assert torch.equal(k, torch.cat([keys[[2, 1, 1]], new], dim=2))
    assert torch.equal(v[:, :, :2], -keys[[2, 1, 1]])
    assert cache.layer(0).keys.shape[2] == capacity


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rows_join_leave_and_are_truncated_as_lists_are(data: st.DataObject) -> None:
    draw = data.draw
    numbers = iter(range(1, 10**6))
    cache, rows = KeyValueCache(n_layers=2, batch=0, length=draw(st.integers(0, 9))), []

    def write(cache: KeyValueCache, rows: list[list[int]], real: list[int], T: int) -> None:
        """Pass T new tokens of each row, of which the first ``real`` ones count."""
        new = torch.tensor([[next(numbers) for _ in range(T)] for _ in rows]).view(len(rows), 1, T, 1)
        attend = torch.arange(T) < torch.tensor(real)[:, None]
        for layer in cache.layers:
            keys, values, _ = layer.append(new.float(), -new.float(), EVERYTHING)
        for row, ids, n in zip(rows, new[:, 0, :, 0].tolist(), real, strict=True):
            row += ids[:n]
        cache.advance(tokens(len(rows), T), attend if draw(st.booleans()) or min(real) < T else None)
        assert torch.equal(keys, -values)
        assert keys.isfinite().all()

    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["join", "select", "truncate", "write"])) if rows else "join"
        if kind == "join":
            added = [[] for _ in range(draw(st.integers(1, 3)))]
            other = KeyValueCache(n_layers=2, batch=len(added), length=draw(st.integers(0, 9)))
            T = draw(st.integers(1, 6))
            write(other, added, [draw(st.integers(1, T)) for _ in added], T)
            cache.join(other)
            rows += added
        elif kind == "select":
            chosen = draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5))
            cache.select(torch.tensor(chosen))
            rows = [list(rows[place]) for place in chosen]
        elif kind == "truncate":
            kept = [draw(st.integers(0, len(row))) for row in rows]
            cache.truncate(torch.tensor(kept))
            rows = [row[:n] for row, n in zip(rows, kept, strict=True)]
        else:
            T = draw(st.integers(1, 3))
            write(cache, rows, [T] * len(rows), T)
        assert cache.lengths.tolist() == [len(row) for row in rows]
        for layer in cache.layers:
            for row, ids in enumerate(rows):
                assert layer.keys[row, 0, : len(ids), 0].tolist() == ids


def test_a_length_that_a_row_has_not_is_refused() -> None:
    cache = KeyValueCache(n_layers=1, batch=2, length=4)
    cache.layer(0).append(torch.zeros(2, 1, 3, 1), torch.zeros(2, 1, 3, 1), EVERYTHING)
    cache.advance(tokens(2, 3), torch.tensor([[True] * 3, [True, False, False]]))
    for lengths in (2, -1, torch.tensor([4, 1])):
        with pytest.raises(GenerationError, match=r"a cache of \[3, 1\] tokens cannot be truncated to"):
            cache.truncate(lengths)
    cache.truncate(1)
    assert cache.lengths.tolist() == [1, 1]


def test_sources_of_other_lengths_join_padded() -> None:
    caches = []
    for S, n_rows in ((2, 4), (3, 1)):  # two rows of each of two sources, and one row of a longer source
        n_sources = 2 if n_rows == 4 else 1
        cache = DecoderCache(n_layers=1, batch=n_rows, length=4)
        cache.layer(0).source = tuple(torch.full((n_sources, 1, S, 2), float(S)) for _ in range(2))
        cache.layer(0).append(*torch.ones(2, n_rows, 1, 1, 2), EVERYTHING)
        cache.advance(tokens(n_rows, 1))
        caches.append(cache)
    first, second = caches
    first.join(second)
    keys, _ = first.layer(0).source
    assert keys[:, 0, :, 0].tolist() == [[2, 2, 0]] * 4 + [[3, 3, 3]]
    assert first.source_attend.tolist() == [[True, True, False]] * 4 + [[True] * 3]
    first.select(torch.tensor([4, 0]))
    assert first.source_attend.tolist() == [[True] * 3, [True, True, False]]


def stepped(cache: RecurrentCache, value: float) -> None:
    """One token through a model whose state is the sum of all values."""
    layer, batch = cache.layer(0), len(cache.lengths)
    before = torch.zeros(batch, 1) if layer.state is None else layer.state[0]
    layer.state = (before + value,)
    cache.advance(tokens(batch, 1))


def test_a_recurrent_state_goes_back_to_a_snapshot_and_not_to_a_length() -> None:
    cache = RecurrentCache(n_layers=1, batch=2)
    stepped(cache, 1.0)
    saved = cache.snapshot()
    stepped(cache, 2.0)
    with pytest.raises(GenerationError, match=r"cannot be truncated; take a snapshot\(\)"):
        cache.truncate(1)
    cache.truncate(2)  # changes nothing
    cache.restore(saved)
    assert (cache.lengths.tolist(), cache.layer(0).state[0].tolist()) == ([1, 1], [[1.0], [1.0]])
    stepped(cache, 5.0)
    other = saved.snapshot()
    other.select(torch.tensor([1]))
    cache.join(other)  # a row that was put aside comes back
    assert (cache.lengths.tolist(), cache.layer(0).state[0].tolist()) == ([2, 2, 1], [[6.0], [6.0], [1.0]])


@pytest.mark.parametrize("kind", [RecurrentCache, DecoderCache])
def test_rows_join_after_their_first_token(kind: Any) -> None:
    more = {} if kind is RecurrentCache else {"length": 2}
    empty, one = (kind(n_layers=1, batch=1, **more) for _ in range(2))
    if kind is RecurrentCache:
        stepped(one, 1.0)
    else:
        one.layer(0).source = torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
    with pytest.raises(GenerationError, match="rows join after their first token"):
        empty.join(one)


def test_each_row_continues_at_its_own_length() -> None:
    cache = KeyValueCache(n_layers=1, batch=2, length=8)
    attend = torch.tensor([[True, False, False], [True, True, True]])
    positions, visibility = positions_and_visibility(tokens(2, 3), attend=attend, cache=cache)
    assert positions.tolist() == [[0, 1, 2]]
    assert visibility.is_causal(3, 3)  # padding stands behind every token, which does not see it
    cache.advance(tokens(2, 3), attend)
    positions, visibility = positions_and_visibility(tokens(2, 2), cache=cache)
    assert positions.tolist() == [[1, 2], [3, 4]]
    mask = visibility.mask(2, 5, device=CPU)
    assert mask[:, 0].int().tolist() == [
        [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]], [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    ]  # fmt: skip


def test_without_padding_positions_just_run_on() -> None:
    cache = KeyValueCache(n_layers=1, batch=2, length=8)
    cache.advance(tokens(2, 4))
    positions, visibility = positions_and_visibility(tokens(2, 3), cache=cache)
    assert positions.tolist() == [[4, 5, 6]]
    assert visibility.starts is None


def test_padding_before_a_token_does_not_go_into_a_cache() -> None:
    attend = torch.tensor([[False, True]])
    positions, visibility = positions_and_visibility(tokens(1, 2), attend=attend)
    assert (positions.tolist(), visibility.real_keys is attend) == ([[0, 0]], True)
    with pytest.raises(ConfigError, match="padding comes before a token"):
        positions_and_visibility(
            tokens(1, 2), attend=attend, cache=KeyValueCache(n_layers=1, batch=1, length=2)
        )
