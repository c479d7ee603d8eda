"""Attention scorers against their equations, and attention over a memory with padding."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from wordloom.errors import ConfigError
from wordloom.nn.scorers import SCORERS, AdditiveScorer, DotScorer, attend_to

B, T, S, H = 2, 3, 4, 5
CASES: dict[str, dict[str, int]] = {
    "dot": {"dim": H, "memory_dim": H},
    "general": {"dim": H, "memory_dim": 7},
    "additive": {"dim": H, "memory_dim": 7, "score_dim": 6},
}
EVERY = pytest.mark.parametrize("name", CASES)


def made(name: str) -> Any:
    scorer = SCORERS[name](**CASES[name])
    generator = torch.Generator().manual_seed(0)
    for parameter in scorer.parameters():
        nn.init.normal_(parameter, generator=generator)
    return scorer


def inputs(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    width = CASES[name]["memory_dim"]
    return torch.randn(B, T, H, generator=generator), torch.randn(B, S, width, generator=generator)


def by_hand(scorer: Any, q: list[float], m: list[float]) -> float:
    def times(matrix: Any, vector: list[float]) -> list[float]:
        return [sum(w * x for w, x in zip(row, vector, strict=True)) for row in matrix.weight.tolist()]

    if type(scorer) is DotScorer:
        return sum(a * b for a, b in zip(q, m, strict=True))
    if isinstance(scorer, AdditiveScorer):
        sums = zip(times(scorer.query_proj, q), times(scorer.key_proj, m), strict=True)
        return sum(v * math.tanh(a + b) for v, (a, b) in zip(scorer.v.tolist(), sums, strict=True))
    return sum(a * b for a, b in zip(q, times(scorer.key_proj, m), strict=True))


@EVERY
def test_a_score_is_the_equation(name: str) -> None:
    scorer, (queries, memory) = made(name), inputs(name)
    scores = scorer(queries, scorer.keys(memory))
    assert scores.shape == (B, T, S)
    for b in range(B):
        for t in range(T):
            wanted = [by_hand(scorer, queries[b, t].tolist(), m.tolist()) for m in memory[b]]
            assert scores[b, t].tolist() == pytest.approx(wanted, rel=1e-5, abs=1e-5)
    exact = torch.stack([scorer.exact(queries[:, t], memory) for t in range(T)], dim=1)
    torch.testing.assert_close(scores, exact, rtol=1e-5, atol=1e-5)
    assert scorer.keys(memory).shape == (B, S, scorer.score_dim)


@EVERY
def test_what_is_attended_to_is_the_mean_of_the_real_memory(name: str) -> None:
    scorer, (queries, memory) = made(name), inputs(name)
    memory.requires_grad_()
    attend = torch.tensor([[True] * 3 + [False], [False] * 4])
    found, weights = attend_to(memory, queries, scorer, attend=attend)
    again = attend_to(memory, queries, scorer, keys=scorer.keys(memory), attend=attend)
    exact = attend_to(memory, queries, scorer, attend=attend, exact=True)
    for other in (again, exact):
        torch.testing.assert_close(other, (found, weights), rtol=1e-5, atol=1e-5)
    alone, shares = attend_to(memory[:1, :3], queries[:1], scorer)
    torch.testing.assert_close(found[:1], alone, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weights[:1, :, :3], shares, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(shares.sum(-1), torch.ones(1, T))
    torch.testing.assert_close(alone, shares @ memory[:1, :3])
    assert not weights[0, :, 3].any()
    assert not weights[1].any()  # a row without anything to attend to
    assert not found[1].any()
    found.square().sum().backward()
    assert memory.grad is not None
    assert memory.grad.isfinite().all()
    assert not memory.grad[0, 3].any()


def test_a_dot_product_needs_equal_widths() -> None:
    with pytest.raises(ConfigError, match="of one width, not 5 and 7; project the memory, or take 'general'"):
        DotScorer(dim=5, memory_dim=7)
