"""Measure what a model knows of the facts, with its weights as they are and rounded to 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wordloom.data.batches.causal import IGNORE
from wordloom.lab.capacity.bits import Nats
from wordloom.lab.capacity.facts import NAME, REST, VALUE, Facts
from wordloom.nn.evaluating import evaluating
from wordloom.nn.quantized import dequantize, quantize

ORDERS = 4  # orders of each person's attributes over which losses are averaged
_ROWS = 256  # in a forward pass


class Losses(NamedTuple):
    """The mean loss for each person in nats, summed over the tokens of each part of a row.

    Attributes:
        names: of the tokens of the name.
        values: of the tokens of all values.
        rest: of all other tokens, which are no facts about the person.
    """

    names: float
    values: float
    rest: float

    @property
    def nats(self) -> Nats:
        """The losses that decide the bits of knowledge."""
        return Nats(self.names, self.values)


def measure(model: Any, facts: Facts, *, orders: int = ORDERS) -> Losses:
    """Return the losses of ``model`` on all people, each in ``orders`` orders that training does not use."""
    total = torch.zeros(3, dtype=torch.float64)  # by part
    device = model.lm_head.weight.device
    with evaluating(model):
        for rows in facts.measuring(orders, _ROWS):
            logits = model.lm_head(model.hidden(rows.tokens.to(device))).float()  # [B, T, V]
            targets = rows.targets.to(device).flatten()  # [B * T]
            nats = F.cross_entropy(logits.flatten(0, 1), targets, reduction="none", ignore_index=IGNORE)
            total.index_add_(0, rows.parts.flatten().long(), nats.cpu().double())
    mean = (total / (facts.people * orders)).tolist()
    return Losses(names=mean[NAME], values=mean[VALUE], rest=mean[REST])


def _int8(weight: Tensor) -> Tensor:
    """Return weight [N, K] as a model that is loaded in int8 reads it, [N, K]."""
    return dequantize(quantize(weight), *weight.shape)


def _int4(weight: Tensor) -> Tensor:
    """Return weight [N, K] as llama.cpp reads it from Q4_0, [N, K]."""
    rows, columns = weight.shape
    groups = F.pad(weight, (0, -columns % 32)).view(rows, -1, 32)
    place = groups.abs().argmax(dim=-1, keepdim=True)
    scale = groups.gather(-1, place) / -8  # the largest weight becomes level -8
    inverse = torch.where(scale == 0, 0, 1 / scale)
    levels = (groups * inverse + 8.5).floor().clamp(0, 15) - 8
    return (levels * scale.half().float()).flatten(1)[:, :columns]


#: What the matrices of a model's blocks become when they are rounded.
ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {"int8": _int8, "int4": _int4}


@contextmanager
def rounded(model: nn.Module, to: str) -> Iterator[None]:
    """Round the matrices of ``model`` within the block; norms and biases stay float32.

    ``to`` is one of ROUNDINGS.  int8 rounds as loading a model in int8 does.  int4 is llama.cpp's Q4_0:
    32 weights of a row share a scale in float16, and each has one of 16 levels.  The embedding, which is also
    the head, keeps int8: llama.cpp and GPTQ do not round a head to 4 bits either.
    """
    matrices = {name: parameter for name, parameter in model.named_parameters() if parameter.dim() == 2}
    before = {name: parameter.detach().clone() for name, parameter in matrices.items()}
    try:
        for name, parameter in matrices.items():
            rounding = _int8 if name == "token_embedding.weight" else ROUNDINGS[to]
            parameter.data.copy_(rounding(parameter.detach()))
        yield
    finally:
        for name, parameter in matrices.items():
            parameter.data.copy_(before[name])


def used_parameters(model: Any, facts: Facts) -> int:
    """Return the number of parameters of ``model`` without the embeddings of tokens that never occur."""
    unused = facts.vocab_size - facts.used_tokens
    total = sum(parameter.numel() for parameter in model.parameters())
    return int(total - unused * model.token_embedding.embedding_dim)
