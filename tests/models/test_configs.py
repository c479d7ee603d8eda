"""What a user can get wrong in a model's settings, each a clear line."""

import pytest

from wordloom.errors import ConfigError
from wordloom.models import PRESETS, GPT2Config, GPTConfig, LlamaConfig, config_from, family_of


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
    ],
)
def test_a_wrong_setting_is_refused_in_one_clear_line(family: str, settings: dict, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from(family, **settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_left_open_follow_the_papers() -> None:
    assert (LlamaConfig().ffn_dim, LlamaConfig().kv_heads, LlamaConfig().head_width) == (11008, 32, 128)
    assert LlamaConfig(dim=288, n_heads=6).ffn_dim == 768  # 8/3 of 288 is 768 exactly
    assert LlamaConfig(dim=300, n_heads=6).ffn_dim == 1024
    assert PRESETS["gpt2"] == GPT2Config()
    assert family_of(GPTConfig()) == "gpt"
    assert config_from("llama", rope_theta=10000) == LlamaConfig()  # a whole number is a float too
