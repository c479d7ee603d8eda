"""What a user can get wrong in a model's settings, each a clear line."""

import math

import pytest
import torch

from wordloom.errors import ConfigError
from wordloom.models import PRESETS, GPT2Config, GPTConfig, LlamaConfig, config_from, family_of
from wordloom.nn import Rotary


@pytest.mark.parametrize(
    ("family", "settings", "words"),
    [
        ("gtp2", {}, "unknown model family 'gtp2'; did you mean 'gpt2'"),
        ("gpt2", {"n_layer": 2}, "'n_layer'; it is called 'n_layers' here"),
        ("llama", {"hidden_size": 8}, "'hidden_size'; it is called 'dim' here"),
        ("llama", {"n_kv_head": 8}, "'n_kv_head' of model family 'llama'; did you mean 'n_kv_heads'"),
        ("gpt2", {"n_kv_heads": 2}, "'n_kv_heads' of model family 'gpt2'; did you mean 'n_heads'"),
        ("gpt2", {"dim": "64"}, "'dim' takes int, not '64'"),
        ("gpt2", {"dim": True}, "'dim' takes int, not True"),
        ("gpt2", {"bias": 1}, "'bias' takes bool, not 1"),
        ("gpt2", {"n_layers": 0}, "n_layers must be a whole number above 0, not 0"),
        ("gpt2", {"dropout": 1.0}, "dropout is a share from 0 up to, not including, 1; not 1.0"),
        ("gpt", {"attention_dropout": -0.1}, "attention_dropout is a share"),
        ("gpt", {"positions": "sinusoid"}, "did you mean 'sinusoidal'"),
        ("gpt2", {"dim": 767}, "dim 767 does not divide into 12 heads"),
        ("gpt", {"n_heads": 5}, "dim 768 does not divide into 5 heads"),
        ("llama", {"n_heads": 6, "n_kv_heads": 4}, "n_heads 6 is not a multiple of n_kv_heads 4"),
        ("llama", {"dim": 10, "n_heads": 4}, "dim 10 does not divide into 4 heads"),
        ("llama", {"n_layers": 2_001}, "n_layers can be 2,000 at most, not 2,001"),
        ("gpt2", {"dim": 10**30}, "dim can be 1,048,576 at most"),
        ("gpt", {"vocab_size": 2**31}, "vocab_size can be 2,147,483,647 at most"),
        *(
            (family, {"norm_eps": eps}, "norm_eps must be a number above 0 and below 1")
            for family in ("gpt", "gpt2", "llama")
            for eps in (0, -1.0, math.nan, math.inf)
        ),
    ],
)
def test_a_wrong_setting_is_refused_in_one_clear_line(family: str, settings: dict, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from(family, **settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rope_theta": 0}, "rope_theta must be a number above 0"),
        ({"rope_theta": -5.0}, "rope_theta must be a number above 0"),
        ({"rope_theta": 10**30}, "rope_theta must be a number above 0"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor must be a number above 0"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "1e12), not '2'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": math.nan}}, "1e12), not nan"),
        ({"rope_scaling": {"rope_type": "linear"}}, "needs factor"),
        ({"rope_scaling": DYNAMIC | {"factor": -1}}, "factor must be a number above 0"),
        (
            {"rope_scaling": DYNAMIC | {"original_max_position_embeddings": None}},
            "original_max_position_embeddings must be a number above 0",
        ),
        ({"rope_scaling": DYNAMIC, "head_dim": 2}, "'dynamic' needs a head_dim of 4 or more, not 2"),
        (
            {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
            "needs a high_freq_factor above low_freq_factor",
        ),
        ({"rope_scaling": {"rope_type": "yarn"}}, "unknown rope scaling 'yarn'"),
        ({"head_dim": 7}, "head_dim must be even, not 7"),
    ],
)
def test_rotary_settings_are_checked_with_the_rest(settings: dict, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from("llama", **settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 1e-6}, DYNAMIC, LLAMA3])
@pytest.mark.parametrize("theta", [1e-6, 1e12])
def test_rotary_settings_within_bounds_give_finite_angles(scaling: dict | None, theta: float) -> None:
    config = config_from("llama", rope_theta=theta, rope_scaling=scaling)
    rotary = Rotary(head_dim=config.head_width, theta=config.rope_theta, scaling=config.rope_scaling)
    for angles in rotary.angles(torch.tensor([0, 1, 10**6])):
        assert angles.isfinite().all()


def test_settings_left_open_follow_the_papers() -> None:
    assert (LlamaConfig().ffn_dim, LlamaConfig().kv_heads, LlamaConfig().head_width) == (11008, 32, 128)
    assert LlamaConfig(dim=288, n_heads=6).ffn_dim == 768  # 8/3 of 288 is 768 exactly
    assert LlamaConfig(dim=300, n_heads=6).ffn_dim == 1024
    assert PRESETS["gpt2"] == GPT2Config()
    assert family_of(GPTConfig()) == "gpt"
    assert config_from("llama", rope_theta=10000) == LlamaConfig()  # a whole number is a float too
