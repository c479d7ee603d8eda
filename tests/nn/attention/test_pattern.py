"""Patterns: what each kind means, every reader against the dense mask, and what is refused."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wordloom.errors import ConfigError
from wordloom.models import build, config_from
from wordloom.nn.attention import Pattern, patterns_of_layers
from wordloom.nn.attention.pattern import Ranges

TERMS = [
    "band:3", "band:1", "global:2", "dilated:2:3", "dilated:4:2", "dilated:1:7", "block:5", "block:3",
    "random:3:7", "random:2:1", "random:17:2", "random:999999:0", "dilated:3:1073741824", "full",
    "star", "bigbird:2:1:2", "longformer:3:2", "sinks:1:2", "sliding:4",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(TERMS), min_size=1, max_size=4).map("+".join)
LENGTHS = st.sampled_from([1, 2, 3, 7, 13, 29, 40])


def seen(text: str, n: int, *, causal: bool) -> list[str]:
    """Return a line for each query, with the numbers of its keys."""
    mask = Pattern.parse(text, causal=causal).mask(n)
    return [" ".join(str(k) for k in range(n) if mask[q, k]) for q in range(n)]


def test_each_kind_by_hand() -> None:
    assert seen("band:2", 5, causal=True) == ["0", "0 1", "1 2", "2 3", "3 4"]
    assert seen("band:1", 5, causal=False) == ["0 1", "0 1 2", "1 2 3", "2 3 4", "3 4"]
    assert seen("band:1", 3, causal=True) == ["0", "1", "2"]
    assert seen("global:1", 3, causal=True) == ["0", "0", "0"]
    assert seen("global:1", 3, causal=False) == ["0 1 2", "0", "0"]
    assert seen("dilated:2:3", 7, causal=True) == ["0", "1", "2", "0 3", "1 4", "2 5", "3 6"]
    assert seen("dilated:1:3", 7, causal=False) == ["0 3", "1 4", "2 5", "0 3 6", "1 4", "2 5", "3 6"]
    assert seen("block:2", 5, causal=True) == ["0", "0 1", "2", "2 3", "4"]
    assert seen("block:2", 5, causal=False) == ["0 1", "0 1", "2 3", "2 3", "4"]
    assert seen("full", 3, causal=True) == ["0", "0 1", "0 1 2"]
    assert seen("sinks:1:2", 5, causal=True) == ["0", "0 1", "0 1 2", "0 2 3", "0 3 4"]
    assert seen("star", 4, causal=True) == ["0", "0 1", "0 1 2", "0 2 3"]
    assert seen("star", 4, causal=False) == ["0 1 2 3", "0 1 2", "0 1 2 3", "0 2 3"]
    assert seen("band:2+global:1", 5, causal=True) == seen("longformer:2:1", 5, causal=True)
    assert seen("bigbird:2:1:3", 9, causal=True) == seen("band:2+global:1+random:3:0", 9, causal=True)
    assert seen("sliding:2", 5, causal=True) == seen("band:2", 5, causal=True)


def test_random_keys_are_drawn_evenly_and_again() -> None:
    for causal in (True, False):
        pattern = Pattern.parse("random:4:5", causal=causal)
        mask = pattern.mask(300)
        counts = mask.sum(dim=1)
        there = torch.arange(300) + 1 if causal else torch.full((300,), 300)
        assert torch.equal(counts, there.clamp(max=4))
        assert not mask.tril().equal(mask) or causal
        assert torch.equal(mask, Pattern.parse("random:4:5", causal=causal).mask(300))
        assert not torch.equal(mask, Pattern.parse("random:4:6", causal=causal).mask(300))
    # each key of an encoder is drawn about as often as any other: 4 x 300 draws of 300 keys, thrice over
    total = sum(Pattern.parse(f"random:4:{seed}", causal=False).mask(300).sum(dim=0) for seed in range(50))
    assert isinstance(total, Tensor)
    assert abs(float(total.float().mean()) - 200) < 1e-3
    assert 200 - 5 * 14.1 < int(total.min()) <= int(total.max()) < 200 + 5 * 14.1
    assert (
        Pattern.parse("random:4:5", causal=True).mask(7)[:4].equal(torch.ones(4, 7, dtype=torch.bool).tril())
    )


def test_a_causal_draw_does_not_depend_on_what_follows() -> None:
    pattern = Pattern.parse("random:3:2", causal=True)
    assert torch.equal(pattern.mask(90)[:50, :50], pattern.mask(50))


def dense(ranges: Ranges, n: int) -> Tensor:
    """Return [n, n] counts of how often a query visits a key, from the ranges alone."""
    visits = torch.zeros(n, n, dtype=torch.int64)
    for q in range(n):
        seen = {
            k
            for p, step in enumerate(ranges.steps)
            for k in range(int(ranges.first[p, q]), int(ranges.end[p, q]), step)
        }
        for k in seen:
            visits[q, k] += 1
        for k in ranges.drawn[q].tolist():
            if k >= 0:
                visits[q, k] += 1
    return visits


@given(TEXTS, LENGTHS, st.booleans())
@settings(max_examples=120, deadline=None)
def test_every_reader_sees_what_the_dense_mask_allows(text: str, n: int, causal: bool) -> None:
    pattern = Pattern.parse(text, causal=causal)
    mask = pattern.mask(n)
    assert bool(mask.any(dim=1).all())
    assert not causal or torch.equal(mask, mask.tril())
    assert Pattern.parse(str(pattern), causal=causal) == pattern
    assert torch.equal(dense(pattern.ranges(n), n), mask.long())
    assert pattern.n_pairs(n) == int(mask.sum())
    q, k = torch.arange(n)[:, None], torch.arange(n)[None]
    zero = torch.zeros((), dtype=torch.int64)
    assert torch.equal(pattern.mask_mod(n)(zero, zero, q, k).expand(n, n), mask)
    if causal and pattern.remembered is not None:
        first, last = pattern.remembered
        assert not bool((mask & (k >= first) & (k <= q - last)).any())


def test_a_kind_within_another_is_left_out() -> None:
    for text, kept in (
        ("band:3+band:5", "band:5"), ("global:1+global:4", "global:4"), ("dilated:3:1", "band:3"),
        ("full+band:3", "full"), ("random:2:1+random:2:1", "random:2:1"),
        ("block:2+random:1:0+block:2", "block:2+random:1:0"),
    ):  # fmt: skip
        assert str(Pattern.parse(text, causal=True)) == kept


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bnad:3", "unknown attention 'bnad:3' in 'bnad:3'; did you mean 'band'"),
        ("band:3+x", "unknown attention 'x' in"),
        ("", "unknown attention '' in ''; allowed: full, band, global"),
        ("band", r"band is written 'band:W', not 'band'"),
        ("band:3:4", r"band is written 'band:W', not 'band:3:4'"),
        ("band:0", "W of 'band:W' is a whole number from 1 to .*, not '0'"),
        ("band:-1", "not '-1'"),
        ("band:1.5", r"not '1\.5'"),
        ("band:²", "not '²'"),
        ("band:99999999999", "not '99999999999'"),
        ("random:3", r"random is written 'random:R:SEED', not 'random:3'"),
        ("random:0:1", "R of 'random:R:SEED' is a whole number from 1"),
        ("dilated:3", "dilated is written 'dilated:W:D'"),
        ("dilated:3:0", "D of 'dilated:W:D' is a whole number from 1"),
        ("star:1", "star"),
    ],
)
def test_a_mistake_is_one_clear_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        Pattern.parse(text, causal=True)
    assert "\n" not in str(caught.value)


def test_layers_have_patterns_of_their_own() -> None:
    def texts(setting: str, n_layers: int) -> list[str]:
        return [str(pattern) for pattern in patterns_of_layers(setting, n_layers, causal=True)]

    assert texts("band:4", 3) == ["band:4"] * 3
    assert texts("band:4*3,full", 6) == ["band:4", "band:4", "band:4", "full", "band:4", "band:4"]
    assert texts("full, band:2", 3) == ["full", "band:2", "full"]
    for wrong in ("band:4*0", "band:4*x", "band:4*", "band:4,,full"):
        with pytest.raises(ConfigError):
            texts(wrong, 3)


def test_a_recipe_may_list_the_patterns_of_the_layers() -> None:
    size = {"vocab_size": 11, "dim": 8, "n_heads": 2, "n_layers": 3}
    config = config_from("llama", **size, attention=["full", "band:2", "band:2+global:1"])
    assert [str(pattern) for pattern in config.patterns] == ["full", "band:2", "band:2+global:1"]
    assert [block.attention.pattern is None for block in build(config).blocks] == [True, False, False]
    for wrong, says in (
        (["full"], "attention is a list of 1 for 3 layers"),
        (["full", "band:2", 3], "attention lists 3"),
        (["full", "band:2", "full,full"], "unknown attention|lists"),
        (3, "takes str"),
        ("band:0", "W of 'band:W'"),
    ):
        with pytest.raises(ConfigError, match=says):
            config_from("llama", **size, attention=wrong)
    with pytest.raises(ConfigError, match="unknown setting 'attention' of model family 'rnn'"):
        config_from("rnn", vocab_size=11, attention="band:2")


def test_a_long_context_needs_little_work() -> None:
    """The ranges of 32,768 tokens count their pairs without a mask, which would have 10^9 entries."""
    n = 32768
    assert Pattern.parse("band:256", causal=True).n_pairs(n) == 256 * n - 256 * 255 // 2
    sparse = Pattern.parse(random.choice(["bigbird:64:16:32", "dilated:64:8+band:64"]), causal=True)
    assert sparse.n_pairs(n) < 160 * n
