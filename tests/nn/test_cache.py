"""The key/value cache: allocated once, grown rarely, reordered by rows, padding remembered."""

import pytest
import torch

from wordloom.nn import KeyValueCache
from wordloom.nn.cache import token_positions


def test_keys_are_written_in_place_and_come_back_as_views() -> None:
    cache = KeyValueCache(n_layers=2, length=5)
    keys, values = torch.randn(2, 3, 2, 5, 4).unbind(0)
    for start, stop in ((0, 2), (2, 3), (3, 5)):
        for i in range(2):
            k, v = cache.layer(i).append(keys[:, :, start:stop] + i, values[:, :, start:stop] + i)
            assert torch.equal(k, keys[:, :, :stop] + i)
            assert torch.equal(v, values[:, :, :stop] + i)
        if start == 0:
            address = cache.layer(0).keys.data_ptr()
        cache.advance(stop - start)
    assert cache.length == 5
    assert cache.layer(0).keys.data_ptr() == address  # nothing was copied on the way


def test_more_tokens_than_asked_for_double_the_room() -> None:
    cache = KeyValueCache(n_layers=1, length=2)
    keys = torch.randn(1, 1, 9, 4)
    sizes = set()
    for t in range(9):
        k, _ = cache.layer(0).append(keys[:, :, t : t + 1], keys[:, :, t : t + 1])
        cache.advance(1)
        sizes.add(cache.layer(0).keys.shape[2])
        assert torch.equal(k, keys[:, :, : t + 1])
    assert sizes == {2, 4, 8, 16}


@pytest.mark.parametrize("capacity", [4, 40])
def test_select_keeps_rows_in_the_order_asked(capacity: int) -> None:
    cache = KeyValueCache(n_layers=1, length=capacity)
    keys = torch.randn(3, 2, 2, 4)
    cache.layer(0).append(keys, -keys)
    cache.attend = torch.tensor([[True, True], [False, True], [True, True]])
    cache.advance(2)
    cache.select(torch.tensor([2, 1, 1]))
    new = torch.randn(3, 2, 1, 4)
    k, v = cache.layer(0).append(new, new)
    assert torch.equal(k, torch.cat([keys[[2, 1, 1]], new], dim=2))
    assert torch.equal(v[:, :, :2], -keys[[2, 1, 1]])
    assert cache.attend.tolist() == [[True, True], [False, True], [False, True]]
    assert cache.layer(0).keys.shape[2] == capacity


def test_positions_skip_padding_and_the_cache_remembers_it() -> None:
    cache = KeyValueCache(n_layers=1, length=8)
    tokens = torch.zeros(2, 3, dtype=torch.long)
    attend = torch.tensor([[False, False, True], [True, True, True]])
    positions, keys = token_positions(tokens, attend=attend, cache=cache)
    assert positions.tolist() == [[0, 0, 0], [0, 1, 2]]
    assert keys is not None
    cache.advance(3)
    positions, keys = token_positions(tokens[:, :2], attend=None, cache=cache)
    assert positions.tolist() == [[1, 2], [3, 4]]
    assert keys is not None
    assert keys.tolist() == [[False, False, True, True, True], [True] * 5]


def test_without_padding_positions_just_run_on() -> None:
    cache = KeyValueCache(n_layers=1, length=8)
    cache.advance(4)
    positions, keys = token_positions(torch.zeros(2, 3, dtype=torch.long), attend=None, cache=cache)
    assert positions.tolist() == [[4, 5, 6]]
    assert keys is None
