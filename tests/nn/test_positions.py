"""Rotary in both conventions, its scalings' small print, and the sinusoidal table."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wordloom.errors import ConfigError
from wordloom.nn import (
    Attention,
    Rotary,
    Visibility,
    apply_rotary,
    halves_to_pairs,
    pairs_to_halves,
    sinusoidal_positions,
)


def test_pairs_are_a_complex_multiplication() -> None:
    """Adjacent pairs as the paper and Meta's code have them: (x0 + i x1) * exp(i m theta)."""
    x = torch.randn(2, 3, 5, 8)
    positions = torch.tensor([[0, 1, 2, 7, 100]])
    rotary = Rotary(head_dim=8, theta=500.0)
    angle = positions[..., None].double() * 500.0 ** (-torch.arange(0, 8, 2).double() / 8)
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    right = torch.view_as_real(torch.view_as_complex(x.double().view(2, 3, 5, 4, 2)) * turn).flatten(-2)
    turned = apply_rotary(x, *rotary.angles(positions), layout="pairs")
    torch.testing.assert_close(turned.double(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_halves_and_pairs_agree_once_rows_are_permuted(bias: bool) -> None:
    torch.manual_seed(0)
    kinds = {"dim": 12, "n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "bias": bias}
    pairs = Attention(**kinds, rotary_layout="pairs")
    halves = Attention(**kinds, rotary_layout="halves")
    state = pairs.state_dict()
    for name in list(state):
        if name.startswith(("q_proj", "k_proj")):
            state[name] = pairs_to_halves(state[name], head_dim=6)
            assert not torch.equal(state[name], pairs.state_dict()[name])
            assert torch.equal(halves_to_pairs(state[name], head_dim=6), pairs.state_dict()[name])
    halves.load_state_dict(state)
    x = torch.randn(2, 7, 12)
    angles = Rotary(head_dim=6).angles(torch.arange(7)[None])
    out = [layer(x, visibility=Visibility(causal=True), rotary=angles) for layer in (pairs, halves)]
    torch.testing.assert_close(*out, rtol=1e-5, atol=1e-6)
    halves.load_state_dict(pairs.state_dict())
    assert (
        halves(x, visibility=Visibility(causal=True), rotary=angles) - out[0]
    ).abs().max() > 1e-3  # the rows mattered


@pytest.mark.parametrize("layout", ["halves", "pairs"])
def test_scores_depend_on_distance_alone_and_length_is_kept(layout: str) -> None:
    rotary = Rotary(head_dim=16)
    q, k = torch.randn(2, 1, 1, 1, 16).unbind(0)

    def score(m: int, n: int) -> float:
        at = [rotary.angles(torch.tensor([[p]])) for p in (m, n)]
        return float((apply_rotary(q, *at[0], layout=layout) * apply_rotary(k, *at[1], layout=layout)).sum())

    assert score(3, 1) == pytest.approx(score(1002, 1000), abs=1e-4)
    assert score(3, 1) != pytest.approx(score(1, 3), abs=1e-4)
    turned = apply_rotary(q, *rotary.angles(torch.tensor([[99]])), layout=layout)
    torch.testing.assert_close(turned.norm(), q.norm())


@given(st.lists(st.integers(0, 4000), min_size=1, max_size=8))
def test_explicit_positions_are_rows_of_the_running_ones(positions: list[int]) -> None:
    rotary = Rotary(head_dim=6, theta=1e5)
    cos, sin = rotary.angles(torch.tensor([positions]))
    all_cos, all_sin = rotary.angles(torch.arange(4001)[None])
    assert torch.equal(cos[0], all_cos[0, positions])
    assert torch.equal(sin[0], all_sin[0, positions])


def test_angles_stay_float32_whatever_the_model_is_in() -> None:
    rotary = Rotary(head_dim=8)
    positions = torch.tensor([[4001, 30001]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cos, sin = rotary.angles(positions)
    assert (cos.dtype, sin.dtype) == (torch.float32, torch.float32)
    angle = positions[..., None].double() * 10000.0 ** (-torch.arange(0, 8, 2).double() / 8)
    torch.testing.assert_close(cos.double(), angle.cos(), rtol=0, atol=3e-3)
    x = torch.randn(1, 1, 2, 8).bfloat16()
    turned = apply_rotary(x, cos, sin)
    assert turned.dtype == torch.bfloat16
    torch.testing.assert_close(turned, apply_rotary(x.float(), cos, sin).bfloat16(), rtol=0, atol=0)


def test_a_linear_scale_stretches_and_theta_sets_the_base() -> None:
    base = Rotary(head_dim=8, theta=100.0).frequencies()
    torch.testing.assert_close(base, 100.0 ** (-torch.arange(0, 8, 2) / 8))
    scaled = Rotary(head_dim=8, theta=100.0, scaling={"rope_type": "linear", "factor": 4.0}).frequencies()
    torch.testing.assert_close(scaled, base / 4)


def test_dynamic_scaling_leaves_short_inputs_alone() -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16}
    rotary, plain = Rotary(head_dim=8, scaling=scaling), Rotary(head_dim=8)
    short, long = torch.arange(16)[None], torch.arange(32)[None]
    assert torch.equal(rotary.angles(short)[0], plain.angles(short)[0])
    # NTK-aware: the slowest wave is stretched by the growth in length, the fastest is kept
    stretch = plain.frequencies()[-1] / rotary.frequencies(length=32)[-1]
    assert float(stretch) == pytest.approx(2.0 * 32 / 16 - 1)
    assert rotary.frequencies(length=32)[0] == plain.frequencies()[0]
    assert not torch.equal(rotary.angles(long)[0], plain.angles(long)[0])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"head_dim": 7}, "head_dim must be even, not 7"),
        ({"head_dim": 8, "scaling": {"rope_type": "linaer", "factor": 2}}, "did you mean 'linear'"),
        ({"head_dim": 8, "scaling": {"rope_type": "yarn", "factor": 2}}, "unknown rope scaling 'yarn'"),
        ({"head_dim": 8, "scaling": {"rope_type": "llama3", "factor": 2}}, "needs low_freq_factor"),
    ],
)
def test_impossible_rotary_settings_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Rotary(**settings)


def test_the_sinusoidal_table_is_the_papers() -> None:
    table = sinusoidal_positions(5001, 6)
    assert (table.shape, table.dtype) == ((5001, 6), torch.float32)
    for position in (0, 1, 5000):
        for i in range(3):
            angle = position / 10000 ** (2 * i / 6)
            assert float(table[position, 2 * i]) == pytest.approx(math.sin(angle), abs=1e-6)
            assert float(table[position, 2 * i + 1]) == pytest.approx(math.cos(angle), abs=1e-6)
    halves = sinusoidal_positions(5001, 6, layout="halves")
    assert torch.equal(halves, table[:, [0, 2, 4, 1, 3, 5]])
    with pytest.raises(ConfigError, match="even dim, not 5"):
        sinusoidal_positions(4, 5)
    with pytest.raises(ConfigError, match="did you mean 'halves'"):
        sinusoidal_positions(4, 4, layout="halfs")
