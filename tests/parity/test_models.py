"""Whole models against transformers: logits and gradients, float32, 1e-4."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


def tokens_of(*shape: int) -> Tensor:
    return torch.randint(0, 31, shape, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("T", [1, 7, 33])
@torch.no_grad()
def test_logits(pair: Any, T: int) -> None:
    tokens = tokens_of(2, T)
    torch.testing.assert_close(pair.ours(tokens), pair.theirs(tokens).logits, **TOLERANCE)


def test_gradients(pair: Any) -> None:
    tokens = tokens_of(2, 13)
    ours, theirs = pair.ours(tokens[:, :-1]), pair.theirs(tokens[:, :-1]).logits
    for logits in (ours, theirs):
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    expected = pair.to_ours({name: p.grad for name, p in pair.theirs.named_parameters()})
    seen = 0
    for name, parameter in pair.ours.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], **TOLERANCE)
        seen += parameter.numel()
    assert seen == sum(p.numel() for p in pair.theirs.parameters())


@torch.no_grad()
def test_rotary_logits_past_the_trained_context(rotary_pair: Any) -> None:
    """Dynamic scaling starts to stretch there."""
    tokens = tokens_of(1, 61)
    torch.testing.assert_close(rotary_pair.ours(tokens), rotary_pair.theirs(tokens).logits, **TOLERANCE)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(pair: Any, side: str) -> None:
    T, lengths = 9, torch.tensor([9, 4, 1])
    column = torch.arange(T)[None]
    attend = column >= T - lengths[:, None] if side == "left" else column < lengths[:, None]
    positions = (attend.cumsum(1) - 1).clamp(min=0)
    tokens = tokens_of(3, T)
    ours = pair.ours(tokens, attend=attend)
    theirs = pair.theirs(tokens, attention_mask=attend.long(), position_ids=positions).logits
    torch.testing.assert_close(ours[attend], theirs[attend], **TOLERANCE)
    for logits in (ours, theirs):
        F.cross_entropy(logits[attend], tokens[attend]).backward()
    expected = pair.to_ours({name: p.grad for name, p in pair.theirs.named_parameters()})
    for name, parameter in pair.ours.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], **TOLERANCE)


@torch.no_grad()
def test_cache(pair: Any) -> None:
    """The same chunks through both caches; openai-gpt has none, so there it is the whole row."""
    T, chunks = 12, (5, 1, 3, 3)
    attend = torch.arange(T) >= torch.tensor([[0], [3]])
    positions = (attend.cumsum(1) - 1).clamp(min=0)
    tokens = tokens_of(2, T)
    ours_cache = pair.ours.new_cache(2, T)
    theirs_cache = DynamicCache() if pair.theirs.config.model_type != "openai-gpt" else None
    whole = pair.theirs(tokens, attention_mask=attend.long(), position_ids=positions).logits
    start = 0
    for chunk in chunks:
        stop = start + chunk
        new, real = tokens[:, start:stop], attend[:, start:stop]
        if start == 0:  # they pad in front of the tokens, and our cache behind them
            behind = torch.stack([new[0], new[1].roll(-3)])
            ours = pair.ours(behind, attend=real.flip(1), cache=ours_cache)
            ours = torch.stack([ours[0], ours[1].roll(3, dims=0)])
        else:
            ours = pair.ours(new, cache=ours_cache)
        theirs = whole[:, start:stop]
        if theirs_cache is not None:
            theirs = pair.theirs(
                new,
                attention_mask=attend[:, :stop].long(),
                position_ids=positions[:, start:stop],
                past_key_values=theirs_cache,
                use_cache=True,
            ).logits
        torch.testing.assert_close(ours[real], theirs[real], **TOLERANCE)
        start = stop


@torch.no_grad()
def test_hidden_states_before_the_head(pair: Any) -> None:
    tokens = tokens_of(2, 11)
    base = getattr(pair.theirs, pair.theirs.base_model_prefix)
    torch.testing.assert_close(pair.ours.hidden(tokens), base(tokens).last_hidden_state, **TOLERANCE)
