"""A tiny model and a batcher with no files behind it."""

from __future__ import annotations

import pytest
import torch

from wordloom.data.batches.causal import CausalBatch
from wordloom.models import GPT2Config, build
from wordloom.recipe import TrainSettings

VOCAB, T = 17, 8


class SyntheticBatches:
    """Sample i is a window of a fixed sequence; every fourth window ends in unscored targets."""

    samples_per_epoch = 64

    def __init__(self) -> None:
        # mostly x -> 3 x + 5, so there is something to learn, with a tenth of noise
        generator = torch.Generator().manual_seed(3)
        noise = torch.randint(0, VOCAB, (4096,), generator=generator)
        jump = torch.rand(4096, generator=generator) < 0.1
        data = [1]
        for i in range(1, 4096):
            data.append(int(noise[i]) if jump[i] else (3 * data[-1] + 5) % VOCAB)
        self.data = torch.tensor(data)

    def batch(self, start: int, count: int) -> CausalBatch:
        rows = torch.stack([self.data[(i * 31) % 4000 :][: T + 1] for i in range(start, start + count)])
        targets = rows[:, 1:].clone()
        for row, sample in enumerate(range(start, start + count)):
            if sample % 4 == 0:
                targets[row, -3:] = -100
        return CausalBatch(rows[:, :-1], targets)

    def document_ids(self, start: int, count: int) -> list[str]:
        return [f"synthetic.txt#{i}" for i in range(start, start + count)]


@pytest.fixture
def batches() -> SyntheticBatches:
    return SyntheticBatches()


@pytest.fixture
def tiny_model():
    """A function that builds equal tiny models, with or without dropout."""

    def make(dropout: float = 0.0, **settings: int):
        config = GPT2Config(
            vocab_size=VOCAB, max_seq_len=T, dim=16, n_layers=2, n_heads=2, dropout=dropout, **settings
        )
        return build(config, generator=torch.Generator().manual_seed(5))

    return make


@pytest.fixture
def settings():
    """A function that makes TrainSettings of a short run."""

    def make(**changes) -> TrainSettings:
        values = {"steps": 12, "seq_len": T, "batch_size": 8, "learning_rate": 1e-2, "device": "cpu",
                  "precision": "fp32", **changes}  # fmt: skip
        return TrainSettings(**values)

    return make
