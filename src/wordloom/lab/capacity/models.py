"""The models of the capacity experiment: GPT-2 with rotary positions, LLaMA and LSTM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from wordloom.errors import CheckpointError, ConfigError
from wordloom.lab.capacity.settings import Settings
from wordloom.models.building.build import build, config_from
from wordloom.models.gpt2 import GPT2, GPT2Config
from wordloom.nn.attention import positions_and_visibility
from wordloom.nn.cache import KeyValueCache
from wordloom.nn.positions import Rotary

HEAD_DIM = 64  # the paper's
_WEIGHTS = "model.safetensors"


class RotaryGPT2(GPT2):
    """GPT-2 with rotary positions in every attention, in place of learned ones."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__(config)
        del self.position_embedding
        self.rotary = Rotary(head_dim=config.dim // config.n_heads)

    def hidden(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        attend: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """tokens [B, T] -> [B, T, D], the vectors that ``lm_head`` reads."""
        own, visibility = positions_and_visibility(tokens, attend=attend, documents=documents, cache=cache)
        rotary = self.rotary.angles(own if positions is None else positions)
        x = self.token_embedding(tokens)  # [B, T, D]
        blocks: Any = self.blocks
        for i, block in enumerate(blocks):
            kept = None if cache is None else cache.layer(i)
            normed = block.attention_norm(x)
            x = x + block.attention(normed, visibility=visibility, rotary=rotary, cache=kept)
            x = x + block.feed_forward(block.ffn_norm(x))
        if cache is not None:
            cache.advance(tokens, attend)
        return self.final_norm(x)


def config_of(settings: Settings) -> Any:
    """Return the config of the model of a run.

    The hidden widths give the three families about the same number of parameters.  All tie the head to the
    embedding and have no dropout.  Raises ConfigError for an impossible shape.
    """
    facts = settings.facts
    shape = {"vocab_size": facts.vocab_size, "dim": settings.dim, "n_layers": settings.layers}
    if settings.family == "lstm":
        return config_from(
            "rnn", **shape, hidden_dim=round(1.25 * settings.dim), tie_embeddings=True, output_bias=False
        )
    heads = max(1, settings.dim // HEAD_DIM)
    if settings.dim % (2 * heads):
        raise ConfigError(
            f"dim must be a multiple of {2 * heads}, not {settings.dim}: rotary positions turn pairs in heads"
        )
    shape |= {"n_heads": heads, "max_seq_len": facts.window}
    if settings.family == "llama":
        shape["hidden_dim"] = round(2.75 * settings.dim)
    return config_from(settings.family, **shape, tie_embeddings=True)


def new_model(settings: Settings) -> Any:
    """Return the model of a run, initialised with the run's seed; raise ConfigError as :func:`config_of`."""
    config, generator = config_of(settings), torch.Generator().manual_seed(settings.seed)
    if settings.family != "gpt2":
        return build(config, generator=generator)
    model = RotaryGPT2(config)
    model.init_weights(generator)
    return model


def save_weights(model: nn.Module, folder: Path) -> None:
    """Write the weights of ``model`` to a file in ``folder``, shared ones once."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}
    temporary = folder / f".writing-{_WEIGHTS}"
    save_file(weights, temporary)
    temporary.replace(folder / _WEIGHTS)


def read_model(settings: Settings, folder: Path) -> Any:
    """Return the model of a run with the weights in ``folder``: of the run itself, or of a checkpoint.

    Raises CheckpointError for weights that cannot be read.
    """
    model = new_model(settings)
    try:
        found = load_file(folder / _WEIGHTS)
        wanted = {name: parameter.shape for name, parameter in model.named_parameters()}
        if {name: tensor.shape for name, tensor in found.items()} != wanted:
            raise ValueError("the file holds the weights of another model")
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {folder / _WEIGHTS}: {error}") from None
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(found[name])
    return model
