"""config.json: equal after a round trip, strict about what would be computed otherwise."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wordloom.errors import CheckpointError
from wordloom.models import PRESETS, GPT2Config, GPTConfig, LlamaConfig, RobertaConfig, TransformerConfig
from wordloom.nn import ACTIVATIONS
from wordloom.weights import config_from_json, config_to_json, load_config
from wordloom.weights.configs import FORMATS

THEIRS = (GPTConfig, GPT2Config, LlamaConfig)
share = st.sampled_from([0.0, 0.1, 0.25])
open_share = st.none() | share
shared: dict[str, Any] = {
    "vocab_size": st.integers(1, 99),
    "max_seq_len": st.integers(1, 99),
    "n_layers": st.integers(1, 4),
    "activation": st.sampled_from(sorted(ACTIVATIONS)),
    "norm_eps": st.sampled_from([1e-5, 1e-6, 1e-3]),
    "tie_embeddings": st.booleans(),
    "dropout": share,
    "embedding_dropout": open_share,
    "attention_dropout": open_share,
}
heads = st.sampled_from([{"dim": 24, "n_heads": 4}, {"dim": 24, "n_heads": 1}])
rope = st.sampled_from(
    [
        None,
        {"rope_type": "default"},
        {"type": "linear", "factor": 2.0},
        {"rope_type": "linear", "factor": 3.5},
        {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 7},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ]
)
gpts = st.builds(
    lambda shape, **rest: GPTConfig(**shape, **rest),
    heads,
    positions=st.sampled_from(["learned", "sinusoidal"]),
    output_bias=st.booleans(),
    hidden_dim=st.sampled_from([None, 96, 20]),
    **shared,
)
gpt2s = st.builds(
    lambda shape, **rest: GPT2Config(**shape, **rest),
    heads,
    bias=st.booleans(),
    hidden_dim=st.sampled_from([None, 96, 20]),
    **shared,
)
llamas = st.builds(
    lambda shape, kv, **rest: LlamaConfig(**shape, n_kv_heads=kv and min(kv, shape["n_heads"]), **rest),
    heads,
    st.sampled_from([None, 1, 4]),
    head_dim=st.sampled_from([None, 6, 10]),
    attention=st.sampled_from(["full", "band:4", "band:4*2,full", "full,band:1", "band:3,band:4", "block:3"]),
    hidden_dim=st.sampled_from([None, 256, 20]),
    attention_bias=st.booleans(),
    feed_forward_bias=st.booleans(),
    rope_theta=st.sampled_from([10000.0, 500.0]),
    rope_scaling=rope,
    **shared,
)


transformers = st.builds(
    lambda shape, vocabularies, places, **rest: TransformerConfig(**shape, **vocabularies, **places, **rest),
    heads,
    st.sampled_from(
        [{"share_embeddings": True}, {"share_embeddings": False}, {"share_embeddings": False,
         "source_vocab_size": 50}]
    ),
    st.sampled_from(
        [{"positions": "sinusoidal"}, {"positions": "sinusoidal_halves"}, {"norm_place": "pre"},
         {"positions": "learned"}, {"positions": "rotary"}]
    ),
    n_decoder_layers=st.none() | st.integers(1, 4),
    hidden_dim=st.sampled_from([None, 96, 20]),
    scale_embeddings=st.booleans(),
    attention_bias=st.booleans(),
    output_bias=st.booleans(),
    activation_dropout=share,
    **shared | {"attention_dropout": share},
)  # fmt: skip


@given(gpts | gpt2s | llamas | transformers)
@example(LlamaConfig(dim=36, n_heads=4, head_dim=8))  # whose dim gives heads of no possible size
@example(LlamaConfig(dim=35, n_heads=7, n_kv_heads=1, head_dim=2))
@settings(max_examples=100, deadline=None)
def test_reading_what_was_written_gives_an_equal_config(config: Any) -> None:
    written = config_to_json(config, {"eos_token_id": 3})
    assert config_from_json(json.loads(json.dumps(written))) == config
    assert (written["bos_token_id"], written["eos_token_id"], written["pad_token_id"]) == (None, 3, None)


@pytest.mark.parametrize("preset", [name for name in PRESETS if isinstance(PRESETS[name], THEIRS)])
def test_presets_need_no_settings_of_ours(preset: str) -> None:
    written = config_to_json(PRESETS[preset])
    assert "wordloom" not in written
    assert written["model_type"] in ("openai-gpt", "gpt2", "llama")
    assert config_from_json(written) == PRESETS[preset]


@pytest.mark.parametrize("preset", ["transformer-base", "transformer-big"])
def test_the_papers_transformer_is_marians_with_three_settings_of_ours(preset: str) -> None:
    written = config_to_json(PRESETS[preset])
    assert written["model_type"] == "marian"
    assert written["wordloom"].keys() == {"positions", "attention_bias", "output_bias"}
    assert config_from_json(written) == PRESETS[preset]


@pytest.mark.parametrize(
    "config",
    [
        GPTConfig(positions="sinusoidal"),
        GPTConfig(output_bias=True),
        GPTConfig(hidden_dim=100),
        GPTConfig(activation="gelu"),  # what transformers calls gelu there is the tanh approximation
        GPT2Config(bias=False),
        GPT2Config(activation="swish_learnt"),
        LlamaConfig(dim=100, n_heads=3, head_dim=32),
        RobertaConfig(n_layers=2, attention="longformer:3:1,longformer:5:1", global_projections=True),
        LlamaConfig(
            rope_scaling={"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 512}
        ),
    ],
)
def test_what_transformers_would_compute_otherwise_has_a_model_type_of_our_own(config: Any) -> None:
    written = config_to_json(config)
    assert written["model_type"].startswith("wordloom-")
    assert "architectures" not in written


def test_settings_that_change_nothing_in_use_lie_under_our_name() -> None:
    config = LlamaConfig(dropout=0.1, embedding_dropout=0.0)
    written = config_to_json(config)
    assert written["model_type"] == "llama"
    assert written["attention_dropout"] == 0.1
    assert written["wordloom"] == {"dropout": 0.1, "embedding_dropout": 0.0, "attention_dropout": None}
    assert config_from_json(written) == config
    del written["wordloom"]
    assert config_from_json(written) == LlamaConfig(attention_dropout=0.1)


def test_settings_of_ours_that_contradict_edited_ones_give_way(caplog: pytest.LogCaptureFixture) -> None:
    written = config_to_json(LlamaConfig(dropout=0.1))
    resized = config_from_json(written | {"vocab_size": 32001})  # another tool's edit that ours agree with
    assert resized == LlamaConfig(dropout=0.1, vocab_size=32001)
    with caplog.at_level(logging.WARNING):
        edited = config_from_json(written | {"attention_dropout": 0.5})
    assert edited == LlamaConfig(attention_dropout=0.5)
    assert "contradict" in caplog.text


LLAMA: dict[str, Any] = {"model_type": "llama", "max_position_embeddings": 64}
MINISTRAL: dict[str, Any] = {"model_type": "ministral", "max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("settings", "theta", "scaling"),
    [
        ({}, 10000.0, None),
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5, None),
        ({"rope_parameters": {"rope_type": "default"}, "rope_theta": 7.0}, 7.0, None),
        (
            {"rope_theta": 9.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
            9.0,
            {"rope_type": "linear", "factor": 2.0},
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            10000.0,
            {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64},
        ),
        (
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "factor": 8,
                    "low_freq_factor": 1,
                    "high_freq_factor": 4,
                }
            },
            10000.0,
            {
                "rope_type": "llama3",
                "factor": 8,
                "low_freq_factor": 1,
                "high_freq_factor": 4,
                "original_max_position_embeddings": 64,
            },
        ),
    ],
)
def test_rope_settings_old_and_new(settings: dict[str, Any], theta: float, scaling: dict | None) -> None:
    config = config_from_json(LLAMA | settings)
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ({}, "names no model_type"),
        ({"model_type": "lama"}, "unknown model_type 'lama'; did you mean 'llama'"),
        (
            {"model_type": "xyz"},
            "unknown model_type 'xyz'; allowed: openai-gpt, gpt2, llama, mistral, ",
        ),
        ({"model_type": "gemma2"}, "type 'gemma2' are not read here: a Gemma adds 1 to the weights of its"),
        ({"model_type": "gpt_neo"}, "type 'gpt_neo' are not read here: a GPT-Neo does not scale its"),
        (MINISTRAL | {"layer_types": ["chunked_attention"] * 32}, "layer_types can be a list of sliding_att"),
        (MINISTRAL | {"layer_types": ["full_attention"] * 3}, "layer_types lists 3 of 32 layers"),
        *(
            (
                MINISTRAL | {"sliding_window": window},
                "sliding_window can be a whole number from 1 or null, not",
            )
            for window in (0, "8", "8,full", "8+global:4", 8.0, True, [8])
        ),
        ({"model_type": "cohere"}, "a Cohere runs attention and feed-forward side by side"),
        (
            {"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx = True",
        ),
        ({"model_type": "gpt2", "scale_attn_weights": False}, "scale_attn_weights = False"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention = True"),
        (
            {"model_type": "gpt2", "activation_function": "gleu"},
            "activation_function = 'gleu'; did you mean 'gelu'",
        ),
        ({"model_type": "gpt2", "activation_function": "quick_gelu"}, "activation_function = 'quick_gelu'"),
        *(
            ({"model_type": family, "is_causal": False}, "is_causal = False; only True is computed")
            for family in ("openai-gpt", "gpt2", "llama", "marian")
        ),
        ({"model_type": "gpt2", "pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"model_type": "gpt2", "quantization_config": {"bits": 4}}, "quantization_config"),
        ({"model_type": "gpt2", "n_embd": "768"}, "'dim' takes int, not '768'"),
        ({"model_type": "gpt2", "n_embd": 767}, "767"),
        *(
            (LLAMA | {"architectures": value}, '"architectures" must be a list of names')
            for value in (5, [5], {"a": 1}, "LlamaForCausalLM")
        ),
        ({"model_type": "openai-gpt", "afn": "gelu_exact"}, "afn = 'gelu_exact'"),
        (LLAMA | {"hidden_act": "xielu"}, "hidden_act = 'xielu'"),
        (LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type 'yarn'"),
        (
            LLAMA | {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor",
        ),
        (LLAMA | {"rope_parameters": 3}, "rope_parameters must be a table"),
        (LLAMA | {"num_attention_heads": 5}, "does not divide into 5 heads"),
        (LLAMA | {"wordloom": {"dropoot": 0.1}}, "unknown settings: dropoot"),
        ({"model_type": ["llama"]}, "unknown model_type ['llama']"),
        ({"model_type": {"a": 1}}, "unknown model_type {'a': 1}"),
        ({"model_type": "gpt2", "activation_function": ["gelu"]}, "activation_function = ['gelu']"),
        ({"model_type": "openai-gpt", "afn": {"a": 1}}, "afn = {'a': 1}"),
        (LLAMA | {"hidden_act": []}, "hidden_act = []"),
        (LLAMA | {"rope_scaling": {"rope_type": ["linear"]}}, "rope_type ['linear']"),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": "2"}}, "factor must be a number above 0"),
        (
            LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 0}},
            "rope_theta must be a number",
        ),
        (LLAMA | {"rms_norm_eps": 0}, "norm_eps must be a number above 0 and below 1, such as 1e-5; not 0"),
        ({"model_type": "gpt2", "n_layer": 10**30}, "n_layers can be 2,000 at most"),
        ({"model_type": "wordloom-gpt", "dmi": 8}, "'dmi' of model family 'gpt'; did you mean 'dim'"),
    ],
)
def test_what_we_would_compute_otherwise_is_refused_by_name(theirs: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        config_from_json(theirs)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


SIZES = {"n_embd": 36, "n_layer": 3, "n_head": 6, "n_positions": 50}
MARIAN_SIZES = {
    "d_model": 36,
    "encoder_layers": 3,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
}


@pytest.mark.parametrize(
    ("model_type", "sizes"), [("gpt2", SIZES), ("openai-gpt", SIZES), ("marian", MARIAN_SIZES)]
)
def test_a_setting_can_go_by_either_of_its_names_in_transformers(
    model_type: str, sizes: dict[str, int]
) -> None:
    transformers = pytest.importorskip("transformers")
    kind = transformers.CONFIG_MAPPING[model_type]
    aliased = {theirs: alias for alias, theirs in kind.attribute_map.items()}
    spelled = {aliased.get(key, key): value for key, value in sizes.items()}
    assert spelled != sizes
    assert kind(**spelled).to_dict() == kind(**sizes).to_dict()
    config = config_from_json({"model_type": model_type, **sizes})
    assert config_from_json({"model_type": model_type, **spelled}) == config
    assert config_from_json({"model_type": model_type, **sizes, **spelled}) == config
    assert (config.dim, config.n_layers, config.n_heads) == (36, 3, 6)
    for key, alias in aliased.items():
        with pytest.raises(CheckpointError, match=f"{key} = .* and {alias} = 7 are one setting"):
            config_from_json({"model_type": model_type, key: sizes.get(key, 5), alias: 7})


def test_every_family_knows_the_aliases_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    for form in FORMATS.values():
        if form.model_type in transformers.CONFIG_MAPPING:
            assert dict(form.aliases) == transformers.CONFIG_MAPPING[form.model_type].attribute_map


def test_names_of_classes_that_are_not_numbered() -> None:
    theirs = {"model_type": "bag_of_words", "vocab_size": 9, "features": "counts", "max_ngram": 1}
    with pytest.raises(CheckpointError, match="numbered"):
        config_from_json(theirs | {"id2label": {"first": "a", "second": "b"}})


def test_settings_that_change_nothing_are_no_obstacle() -> None:
    real = {
        "_name_or_path": "x", "torch_dtype": "bfloat16", "transformers_version": "4.31.0", "use_cache": True,
        "pretraining_tp": 2, "initializer_range": 0.02, "pad_token_id": 0, "task_specific_params": {},
    }  # fmt: skip
    assert config_from_json(LLAMA | real) == LlamaConfig(max_seq_len=64)
    gpt2 = {
        "model_type": "gpt2",
        "n_ctx": 1024,
        "summary_type": "cls_index",
        "reorder_and_upcast_attn": False,
    }
    assert config_from_json(gpt2) == GPT2Config(dropout=0.1)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere does not exist; give the folder"):
        load_config(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"is no checkpoint folder: it has no config\.json"):
        load_config(tmp_path)
    path = tmp_path / "config.json"
    with pytest.raises(CheckpointError, match=r"is a file, not a folder"):
        path.write_text("{}") and load_config(path)
    with pytest.raises(CheckpointError, match=r"config\.json: it names no model_type"):
        load_config(tmp_path)
    path.write_text('{"model_type": ')
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        load_config(tmp_path)
    path.write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        load_config(tmp_path)
    path.write_text("[1]")
    with pytest.raises(CheckpointError, match="must hold a JSON object, not a list"):
        load_config(tmp_path)
