"""Small random models whose next tokens are neither certain nor uniform."""

from __future__ import annotations

from typing import Any

import torch

from wordloom.models import GPT2Config, GPTConfig, LlamaConfig, build

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
