"""The reference library's own classes with random tiny configs, and ours with the same weights."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from wordloom.models import MODELS, family_of
from wordloom.weights import config_from_json, renaming_of

transformers = pytest.importorskip("transformers", reason="the reference library is not installed")

GPT = {"vocab_size": 31, "n_positions": 40, "n_embd": 24, "n_layer": 2, "n_head": 3}
LLAMA = {
    "vocab_size": 31,
    "max_position_embeddings": 40,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
ROPE = {
    "linear": {"rope_type": "linear", "factor": 2.5, "rope_theta": 10000.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
        "rope_theta": 500.0,
    },
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("openai-gpt", GPT),
    "gpt-relu-untied": ("openai-gpt", {**GPT, "afn": "relu", "tie_word_embeddings": False}),
    "gpt2": ("gpt2", GPT),
    "gpt2-untied": (
        "gpt2",
        {**GPT, "tie_word_embeddings": False, "n_inner": 17, "activation_function": "gelu"},
    ),
    "gpt2-silu": ("gpt2", {**GPT, "activation_function": "silu", "layer_norm_epsilon": 1e-3}),
    "llama": ("llama", LLAMA),
    "llama-grouped": ("llama", {**LLAMA, "num_key_value_heads": 2, "rms_norm_eps": 1e-3}),
    "llama-multi-query": ("llama", {**LLAMA, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama-head-dim": ("llama", {**LLAMA, "head_dim": 10, "num_key_value_heads": 2}),
    "llama-biases": ("llama", {**LLAMA, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}),
    "mistral": ("mistral", {**LLAMA, "num_key_value_heads": 2, "sliding_window": 7}),
    "mistral-full": ("mistral", {**LLAMA, "num_key_value_heads": 1, "sliding_window": None}),
    "ministral": (
        "ministral",
        {
            **LLAMA,
            "num_key_value_heads": 2,
            "head_dim": 6,
            "sliding_window": 5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    **{f"llama-{kind}": ("llama", {**LLAMA, "rope_parameters": rope}) for kind, rope in ROPE.items()},
}


class Pair(NamedTuple):
    """The same weights in both libraries."""

    theirs: nn.Module
    ours: Any

    def to_ours(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return renaming_of(self.ours.config).to_ours(state)


def make(model_type: str, settings: dict[str, Any], *, seed: int = 0) -> Pair:
    torch.manual_seed(seed)
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = transformers.AutoConfig.for_model(model_type, **settings, **ids)
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # its own initialisation leaves biases at zero
            parameter.add_(0.2 * torch.randn_like(parameter))
    ours_config = config_from_json(config.to_dict())
    ours = MODELS[family_of(ours_config)].model(ours_config)
    ours.load_state_dict(renaming_of(ours_config).to_ours(theirs.state_dict()))
    ours.tie_weights()
    return Pair(theirs, ours.eval())


@pytest.fixture(params=CASES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return make(*CASES[request.param])


@pytest.fixture(params=[name for name in CASES if name.startswith("llama")])
def rotary_pair(request: pytest.FixtureRequest) -> Pair:
    return make(*CASES[request.param])


@pytest.fixture(
    params=[
        "gpt",
        "gpt-relu-untied",
        "gpt2",
        "gpt2-untied",
        "llama-biases",
        "llama-multi-query",
        "llama-llama3",
    ]
)
def folder_pair(request: pytest.FixtureRequest) -> Pair:
    """Fewer cases, for what is about files."""
    return make(*CASES[request.param])


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    yield
    transformers.logging.set_verbosity(verbosity)
