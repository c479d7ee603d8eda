"""Small models whose predictions depend on their context, and tokenizers trained on a few lines."""

from __future__ import annotations

import pytest
import torch

from wordloom.models import GPT2Config, LlamaConfig, build
from wordloom.text import Tokenizer

LINES = "The cat sat on the mat.\nA dog, too, sat down there: why not?\nNobody minded the dog or the cat.\n"


@pytest.fixture(scope="session")
def byte_tokenizer():
    return Tokenizer.train([LINES], kind="byte")


@pytest.fixture(scope="session")
def char_tokenizer():
    return Tokenizer.train([LINES], kind="char", special_tokens=())


def sharpened(config, *, seed=0):
    """A model with large random weights: one as initialised predicts nearly the same whatever it has read."""
    model = build(config, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(12.0)
    return model.eval()


@pytest.fixture(scope="session")
def llama(byte_tokenizer):
    return sharpened(
        LlamaConfig(
            vocab_size=byte_tokenizer.vocab_size, max_seq_len=32, dim=24, n_layers=2, n_heads=4, n_kv_heads=2,
            hidden_dim=40, dropout=0.3,
        )
    )  # fmt: skip


@pytest.fixture(scope="session")
def gpt2(byte_tokenizer):
    return sharpened(
        GPT2Config(vocab_size=byte_tokenizer.vocab_size, max_seq_len=32, dim=24, n_layers=2, n_heads=4)
    )


@pytest.fixture(scope="session")
def char_model(char_tokenizer):
    shape = {"max_seq_len": 32, "dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 40}
    return sharpened(LlamaConfig(vocab_size=char_tokenizer.vocab_size, **shape))
