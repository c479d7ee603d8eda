"""GPT as transformers stores it (model_type ``openai-gpt``): the rows of GPT-2's blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wordloom.models.gpt import GPTConfig
from wordloom.weights.families.gpt2 import BLOCK, gpt_settings
from wordloom.weights.families.task_heads import heads_beside
from wordloom.weights.formats import GPT_ALIASES, Format, Setting, refuse_unless
from wordloom.weights.renaming import Ignored, Row

_TABLE = (
    Row("transformer.tokens_embed.weight", ("token_embedding.weight",)),
    Row("transformer.positions_embed.weight", ("position_embedding.weight",)),
    *BLOCK,
    Row("lm_head.weight", ("lm_head.weight",)),
)

_IGNORED = (
    Ignored(r"h\.\d+\.attn\.bias", "a causal mask"),
    Ignored(r"position_ids", "position numbers"),
    *heads_beside("openai-gpt"),
)

_ACTIVATION_NAMES = {"gelu_tanh": "gelu", "relu": "relu", "silu": "silu"}
_SETTINGS = gpt_settings(
    40478,
    512,
    Setting("afn", "activation", "gelu"),  # "gelu" is the tanh approximation in this family
    activations={theirs: ours for ours, theirs in _ACTIVATION_NAMES.items()}
    | {"gelu_new": "gelu_tanh", "swish": "silu"},
    activation_names=_ACTIVATION_NAMES,
)


def _config_from(theirs: Mapping[str, Any]) -> dict[str, Any]:
    refuse_unless(theirs, is_causal=True)
    return _SETTINGS.read(theirs)


def _config_to(config: GPTConfig) -> dict[str, Any] | None:
    c = config
    learned = c.positions == "learned" and not c.output_bias
    if not learned or c.activation not in _ACTIVATION_NAMES or c.hidden_dim not in (None, 4 * c.dim):
        return None
    return _SETTINGS.write(c)


FORMAT = Format(
    model_type="openai-gpt",
    architecture="OpenAIGPTLMHeadModel",
    prefixes=("transformer.",),
    table=_TABLE,
    ignored=_IGNORED,
    config_from=_config_from,
    config_to=_config_to,
    aliases=GPT_ALIASES,
)
