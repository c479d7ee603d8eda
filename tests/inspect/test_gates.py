"""The gates of recurrent models: they give the state that the layer itself computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from wordloom.errors import GenerationError
from wordloom.inspect import attention_map, gate_values, last_attention
from wordloom.models import LlamaConfig, RNNConfig, build
from wordloom.nn.recurrent import CELLS

IDS = [3, 1, 4, 1, 5]


def model_of(config: Any) -> Any:
    return build(config, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("ids", [IDS, IDS[:1]])
@pytest.mark.parametrize(
    ("cell", "extra"),
    [*((cell, {}) for cell in CELLS), ("lstm", {"peephole": True}), ("lstm_1997", {"projection": 5})],
)
def test_the_gates_give_the_next_state(cell: str, extra: dict[str, Any], ids: list[int]) -> None:
    model = model_of(RNNConfig(vocab_size=7, dim=4, hidden_dim=8, n_layers=2, cell=cell, **extra))
    cache = model.new_cache(1, len(ids))
    with torch.no_grad():
        model.hidden(torch.tensor([ids]), cache=cache)
    layers = gate_values(model, ids)
    assert len(layers) == 2
    for number, gates in enumerate(layers):
        state = dict(zip("hc", cache.layer(number).state, strict=False))
        assert set(CELLS[cell]) <= set(gates)
        for name, value in state.items():
            torch.testing.assert_close(gates[name], value[0])
    assert not any(block._forward_pre_hooks for block in model.blocks)


def test_models_without_gates_and_prompts_without_tokens() -> None:
    llama = model_of(LlamaConfig(vocab_size=7, dim=8, n_layers=1, n_heads=2))
    with pytest.raises(GenerationError, match="no recurrent layers"):
        gate_values(llama, IDS)
    with pytest.raises(GenerationError, match="at least one token"):
        gate_values(model_of(RNNConfig(vocab_size=7, dim=4)), [])


def test_the_attention_of_the_last_token_is_the_last_row() -> None:
    llama = model_of(LlamaConfig(vocab_size=7, dim=8, n_layers=2, n_heads=2, max_seq_len=16))
    torch.testing.assert_close(last_attention(llama, IDS), attention_map(llama, IDS).weights[:, :, -1])
