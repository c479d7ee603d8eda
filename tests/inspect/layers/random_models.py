"""Random models of the families whose layers share one vector per token, with odd sizes drawn anew."""

from __future__ import annotations

import random
from typing import Any

import torch

from wordloom.models import BertConfig, GPT2Config, GPTConfig, LlamaConfig, build

FAMILIES = ("gpt", "gpt2", "llama", "bert")


def random_model(family: str, rng: random.Random, **more: Any) -> Any:
    """Return a model in evaluation mode, with biases and gains away from 0 and 1."""
    heads, width = rng.choice([1, 2, 3, 5]), 2 * rng.randint(1, 4)
    shape: dict[str, Any] = {
        "vocab_size": rng.choice([13, 31, 64]), "max_seq_len": 23, "dim": heads * width, "n_heads": heads,
        "n_layers": rng.randint(1, 4), "hidden_dim": rng.randint(1, 19), **more,
    }  # fmt: skip
    config: Any = {
        "gpt": lambda: GPTConfig(**shape),
        "gpt2": lambda: GPT2Config(**shape),
        "llama": lambda: LlamaConfig(**{"n_kv_heads": 1, **shape}),
        "bert": lambda: BertConfig(**{"masked_lm_head": True, **shape}),
    }[family]()
    model = build(config, generator=torch.Generator().manual_seed(rng.randrange(2**31)))
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape)
            parameter.copy_(0.5 * noise if parameter.dim() > 1 else parameter + 0.2 * noise)
    return model.eval()
