"""Small random models whose next tokens are neither certain nor uniform."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wordloom.generate import Conditioned, Hypothesis
from wordloom.models import GPT2Config, GPTConfig, LlamaConfig, Memory, build
from wordloom.nn.cache import RecurrentCache

FAMILIES = ("gpt", "gpt2", "llama")


def tiny_model(
    family: str, *, vocab_size: int = 61, max_seq_len: int = 48, seed: int = 0, **more: Any
) -> Any:
    shape: dict[str, Any] = {
        "vocab_size": vocab_size, "max_seq_len": max_seq_len, "dim": 32, "n_layers": 3, "n_heads": 4, **more,
    }  # fmt: skip
    config = {
        "gpt": lambda: GPTConfig(**shape),
        "gpt2": lambda: GPT2Config(**shape),
        "llama": lambda: LlamaConfig(**{"n_kv_heads": 2, "hidden_dim": 40, **shape}),
    }[family]()
    generator = torch.Generator().manual_seed(seed)
    model = build(config, generator=generator)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # biases and gains away from 0 and 1, weights large enough that context matters
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.mul_(6.0) if parameter.dim() > 1 else parameter.add_(0.2 * noise)
            if name.startswith("position"):
                parameter.mul_(3.0)
    return model.eval()


class TinyPair(nn.Module):
    """A SequenceToSequence in a page: a running sum of what was written looks at the source.

    ``encoded`` and ``written`` are the rows of every call.
    """

    def __init__(self, *, vocab_size: int = 23, max_seq_len: int | None = None, seed: int = 0) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=vocab_size, source_vocab_size=19)
        if max_seq_len is not None:
            self.config.max_seq_len = max_seq_len
        self.source_embedding, self.token_embedding = nn.Embedding(19, 16), nn.Embedding(vocab_size, 16)
        self.lm_head = nn.Linear(16, vocab_size)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=generator)
        self.encoded: list[int] = []
        self.written: list[int] = []

    def encode(self, source: Tensor, *, attend: Tensor | None = None) -> Memory:
        self.encoded.append(len(source))
        values = self.source_embedding(source)  # [B, S, D]
        real = values if attend is None else values * attend[:, :, None]
        return Memory(values, attend, (real.sum(dim=1),))

    def hidden(self, prefix: Tensor, memory: Memory, *, cache: RecurrentCache | None = None) -> Tensor:
        self.written.append(len(prefix))
        assert len(prefix) == len(memory.values)
        before = None if cache is None else cache.layer(0).state
        (state,) = memory.state if before is None else before  # [B, D]
        states = state[:, None] + self.token_embedding(prefix).cumsum(dim=1)  # [B, T, D]
        scores = states @ memory.values.transpose(1, 2)  # [B, T, S]
        if memory.attend is not None:
            scores = scores.masked_fill(~memory.attend[:, None], -torch.inf)
        if cache is not None:
            cache.layer(0).state = (states[:, -1],)
            cache.advance(prefix)
        return torch.tanh(states + scores.softmax(dim=-1) @ memory.values)

    def forward(self, source: Tensor, prefix: Tensor, *, attend: Tensor | None = None) -> Tensor:
        return self.lm_head(self.hidden(prefix, self.encode(source, attend=attend)))

    def new_cache(self, batch: int, length: int) -> RecurrentCache:
        return RecurrentCache(n_layers=1, batch=batch)


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Rows of ids padded on the right [B, S], and where they are real."""
    S = max(map(len, rows))
    attend = torch.tensor([[True] * len(row) + [False] * (S - len(row)) for row in rows])
    return torch.tensor([row + [0] * (S - len(row)) for row in rows]), attend


def read(model: Any, sources: list[list[int]]) -> Conditioned:
    """``model`` with these sources read."""
    source, attend = padded(sources)
    with torch.no_grad():
        return Conditioned(model, model.encode(source, attend=attend))


def assert_same(ours: list[list[Hypothesis]], theirs: list[list[Hypothesis]]) -> None:
    """The same ids in the same order, scores within 1e-4."""
    assert [[found.ids for found in row] for row in ours] == [[found.ids for found in row] for row in theirs]
    for mine, other in zip(chain(*ours), chain(*theirs), strict=True):
        assert mine.score == pytest.approx(other.score, abs=1e-4, rel=1e-6)
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-3)
