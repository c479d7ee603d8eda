"""Operations and cache bytes per token, against counts made another way."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from wordloom.errors import ConfigError
from wordloom.models import PRESETS, GPT2Config, GPTConfig, LlamaConfig, build, skeleton
from wordloom.models.building.cost import flops_per_token, kv_cache_bytes_per_token
from wordloom.nn import set_attention_backend

SHAPE = {"vocab_size": 61, "max_seq_len": 32, "dim": 24, "n_layers": 3, "n_heads": 4}
CONFIGS = [
    GPTConfig(**SHAPE),
    GPT2Config(**SHAPE),
    LlamaConfig(**SHAPE, n_kv_heads=2, hidden_dim=40),
    LlamaConfig(**SHAPE, n_kv_heads=1, head_dim=8, hidden_dim=40, tie_embeddings=True),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: type(c).__name__)
def test_flops_are_what_torch_counts(config):
    B, T = 2, 16
    model = build(config)
    set_attention_backend(model, "math")  # whose matrix products the counter sees one by one
    tokens = torch.zeros(B, T, dtype=torch.long)
    counter = FlopCounterMode(display=False)
    with counter:
        model(tokens)
    ours = flops_per_token(config, context=T)
    assert ours.forward * B * T == counter.get_total_flops()
    assert ours == flops_per_token(model, context=T)
    counter = FlopCounterMode(display=False)
    with counter:
        model(tokens).sum().backward()
    assert ours.training * B * T == counter.get_total_flops()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: type(c).__name__)
def test_cache_bytes_are_what_the_cache_holds(config):
    B, T = 2, 7
    model = build(config)
    cache = model.new_cache(B, T)
    model.hidden(torch.zeros(B, T, dtype=torch.long), cache=cache)
    held = sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))
    assert kv_cache_bytes_per_token(config, element_bytes=4) * B * T == held


def test_known_sizes():
    # 6 N + 12 L H Q T, the count that model FLOP utilisation is quoted with, N without the embeddings that
    # are only looked up (Chowdhery et al. 2022, appendix B)
    gpt2 = flops_per_token(PRESETS["gpt2"], context=1024)
    matrices = 12 * 12 * 768**2 + 50257 * 768
    assert gpt2.training == 6 * matrices + 12 * 12 * 12 * 64 * 1024
    # Llama 2 70B: 8 kv heads of 128, 80 layers, two bytes: 320 KiB per token; multi-head would be 8 times it
    big = PRESETS["llama2-70b"]
    assert kv_cache_bytes_per_token(big, element_bytes=2) == 320 * 1024
    assert kv_cache_bytes_per_token(big, element_bytes=2, n_kv_heads=64) == 8 * 320 * 1024
    assert kv_cache_bytes_per_token(big, element_bytes=2, n_kv_heads=1) == 320 * 1024 // 8


def test_a_skeleton_takes_no_memory():
    model = skeleton(PRESETS["llama-65b"])
    assert all(p.is_meta for p in model.parameters())
    assert sum(p.numel() for p in model.parameters()) == 65_285_660_672


def test_a_context_below_one_is_refused():
    with pytest.raises(ConfigError, match=r"context .* above 0, not 0"):
        flops_per_token(PRESETS["gpt2"], context=0)
