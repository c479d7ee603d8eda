"""Adapters: peft reads ours and we read peft's, with equal logits and gradients; merging changes nothing."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from wordloom.errors import CheckpointError, ConfigError
from wordloom.models import (
    BertConfig,
    BertGenerationConfig,
    GPT2Config,
    GPTConfig,
    LlamaConfig,
    RNNClassifierConfig,
    RNNConfig,
    RobertaConfig,
    Seq2SeqConfig,
    TaskConfig,
    TransformerConfig,
    build,
    translates,
)
from wordloom.models.building.lora import (
    DEFAULT_TARGETS,
    adapter_names,
    add_adapter,
    choose_adapter,
    head_modules,
    linear_layers,
    lora_layers,
    matching_layers,
    merge_adapter,
)
from wordloom.models.building.quantized import quantize_model
from wordloom.nn.lora import LoraSettings
from wordloom.weights import load_model, save_model
from wordloom.weights.adapters import load_adapter, save_adapter
from wordloom.weights.peft_config import WITHOUT_EFFECT, PeftConfig

V = 37


def a_config(rng: random.Random, family: str) -> Any:
    heads = rng.choice([1, 3])
    dim = heads * rng.choice([2, 6, 10])
    shape: dict[str, Any] = {
        "vocab_size": V, "dim": dim, "n_layers": rng.choice([1, 2]), "n_heads": heads, "max_seq_len": 24,
    }  # fmt: skip
    if family == "llama":
        hidden = rng.choice([7, 20])
        return LlamaConfig(
            **shape, n_kv_heads=rng.choice([1, heads]), hidden_dim=hidden, tie_embeddings=rng.random() < 0.5
        )
    return {"gpt2": GPT2Config, "gpt": GPTConfig}[family](**shape, dropout=0.0)


def some_settings(rng: random.Random, **given: Any) -> LoraSettings:
    return LoraSettings(**{
        "rank": rng.choice([1, 2, 5]), "alpha": rng.choice([1.0, 3.0, 16.0]),
        "rank_stabilised": rng.random() < 0.5, "dora": rng.random() < 0.5, **given,
    })  # fmt: skip


def shake(model: Any) -> None:
    """Give every adapter of ``model`` other numbers."""
    with torch.no_grad():
        for layer in lora_layers(model).values():
            for adapter in layer.adapters.values():
                for parameter in adapter.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.1)


def logits_of(model: Any, tokens: Tensor) -> Tensor:
    out = model(tokens)
    return out.logits if hasattr(out, "logits") else out


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt"])
@pytest.mark.parametrize("trial", range(4))
def test_peft_reads_ours_and_computes_the_same(family: str, trial: int, tmp_path: Path) -> None:
    rng = random.Random()
    model = build(a_config(rng, family)).eval()
    save_model(model, tmp_path / "base")
    targets = rng.choice([DEFAULT_TARGETS, ("attention.*",), ("down_proj",), ("blocks.0.*",)])
    add_adapter(model, some_settings(rng), matching_layers(model, targets))
    shake(model)
    save_adapter(model, tmp_path / "adapter", base=tmp_path / "base")
    theirs = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter", is_trainable=True
    ).eval()
    tokens = torch.randint(0, V, (2, 11))
    ours, expected = logits_of(model, tokens), logits_of(theirs, tokens)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    ours.pow(2).sum().backward()
    expected.pow(2).sum().backward()
    save_gradients = {
        name: parameter.grad for name, parameter in theirs.named_parameters() if parameter.requires_grad
    }
    if family == "llama":  # whose modules are ours
        for name, layer in lora_layers(model).items():
            adapter = layer.adapters["default"]
            kinds = {"lora_A.default.weight": adapter.A, "lora_B.default.weight": adapter.B}
            if adapter.m is not None:
                kinds["lora_magnitude_vector.default.weight"] = adapter.m
            for end, parameter in kinds.items():
                last = name.split(".")[-1]
                layer_number = name.split(".")[1]
                (found,) = [
                    grad for key, grad in save_gradients.items()
                    if key.endswith(f"{last}.{end}") and f".layers.{layer_number}." in key
                ]  # fmt: skip
                near = 1e-4 * max(1.0, float(found.abs().max()))  # sums round by the size of their terms
                torch.testing.assert_close(parameter.grad, found, rtol=1e-3, atol=near)
    read = load_model(tmp_path / "base")
    said = load_adapter(read, tmp_path / "adapter", base=tmp_path / "base")
    assert (said.layers, said.of) == (len(lora_layers(model)), len(linear_layers(model)))
    torch.testing.assert_close(logits_of(read, tokens), ours)
    for name, layer in lora_layers(model).items():  # a block-diagonal module is divided again
        assert lora_layers(read)[name].adapters["default"].A.shape == layer.adapters["default"].A.shape


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt"])
@pytest.mark.parametrize("trial", range(3))
def test_we_read_pefts_and_compute_the_same(family: str, trial: int, tmp_path: Path) -> None:
    rng = random.Random()
    save_model(build(a_config(rng, family)).eval(), tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    targets = {"llama": ["q_proj", "v_proj", "down_proj"]}.get(family, ["c_attn", "c_fc"])
    config = peft.LoraConfig(
        r=rng.choice([1, 3, 6]), lora_alpha=rng.choice([2, 7]), use_rslora=rng.random() < 0.5,
        use_dora=rng.random() < 0.5, target_modules=rng.choice([targets, targets[:1], "all-linear"]),
        init_lora_weights=False, task_type="CAUSAL_LM", fan_in_fan_out=family != "llama",
        rank_pattern=rng.choice([{}, {targets[0]: 2}]), alpha_pattern=rng.choice([{}, {targets[0]: 5}]),
    )  # fmt: skip
    theirs = peft.get_peft_model(base, config).eval()
    theirs.save_pretrained(tmp_path / "adapter")
    model = load_model(tmp_path / "base")
    said = load_adapter(model, tmp_path / "adapter")
    assert said.line() == f"adapter     default: {said.layers} of {said.of} linear modules"
    tokens = torch.randint(0, V, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(logits_of(model, tokens), logits_of(theirs, tokens), rtol=1e-4, atol=1e-5)
    save_adapter(model, tmp_path / "again")
    again = load_model(tmp_path / "base")
    load_adapter(again, tmp_path / "again")
    with torch.no_grad():
        torch.testing.assert_close(logits_of(again, tokens), logits_of(model, tokens))


@pytest.mark.parametrize(
    "settings",
    [
        *({"init_lora_weights": way} for way in (True, False, "gaussian", "eva", "orthogonal", "mica")),
        {"layers_to_transform": [1]},
        {"layers_to_transform": 0, "layers_pattern": "layers"},
        {"exclude_modules": ["v_proj"]},
        {"velora_config": peft.VeloraConfig()},
        {"lora_dropout": 0.3, "qalora_group_size": 4},
        {"target_modules": "all-linear"},
        {"target_modules": r".*\.1\..*proj"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*eva_config.*")
def test_settings_of_peft_that_matter_in_training_alone_are_accepted(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    save_model(
        build(LlamaConfig(vocab_size=V, dim=12, n_layers=2, n_heads=2, max_seq_len=24)), tmp_path / "base"
    )
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    config = peft.LoraConfig(**{"r": 2, "target_modules": ["q_proj", "v_proj"], **settings})
    trained = peft.get_peft_model(base, config)
    with torch.no_grad():
        for parameter in trained.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    trained.save_pretrained(tmp_path / "adapter")
    theirs = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    ).eval()
    model = load_model(tmp_path / "base")
    load_adapter(model, tmp_path / "adapter")
    tokens = torch.randint(0, V, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(logits_of(model, tokens), logits_of(theirs, tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("trial", range(4))
def test_an_adapter_begins_as_its_base_and_merges_exactly(trial: int, tmp_path: Path) -> None:
    rng = random.Random()
    family = rng.choice(["llama", "gpt2", "lstm"])
    config = (
        RNNConfig(vocab_size=V, dim=9, n_layers=2, cell="lstm") if family == "lstm" else a_config(rng, family)
    )
    model = build(config).eval()
    tokens = torch.randint(0, V, (3, 7))
    before = logits_of(model, tokens)
    add_adapter(model, some_settings(rng), matching_layers(model, DEFAULT_TARGETS))
    torch.testing.assert_close(logits_of(model, tokens), before, rtol=1e-5, atol=1e-6)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained
    assert all(".adapters.default." in name for name in trained)
    shake(model)
    adapted = logits_of(model, tokens)
    assert (adapted - before).abs().max() > 1e-3 * before.abs().max()
    choose_adapter(model, None)
    torch.testing.assert_close(logits_of(model, tokens), before)
    merge_adapter(model, "default")
    assert not lora_layers(model)
    torch.testing.assert_close(logits_of(model, tokens), adapted, rtol=1e-4, atol=1e-5)
    save_model(model, tmp_path / "merged")  # a model like any other


HEADS = ("lm_head", "pooler", "classifier", "mlm_transform", "next_sentence")
SHAPE: dict[str, Any] = {"vocab_size": V, "dim": 15, "n_layers": 2, "n_heads": 3, "max_seq_len": 12}
RECURRENT: dict[str, Any] = {"vocab_size": V, "source_vocab_size": 29, "dim": 7, "n_layers": 2}
OTHERS: dict[str, Any] = {
    "bert": BertConfig(**SHAPE, masked_lm_head=True, next_sentence_head=True, dropout=0.0),
    "roberta": RobertaConfig(**{**SHAPE, "n_heads": 1}, pooler=False, dropout=0.0),
    "longformer": RobertaConfig(
        **SHAPE, attention="band:2+global:1", global_projections=True, pooler=False, dropout=0.0
    ),
    "transformer": TransformerConfig(**SHAPE, hidden_dim=5, positions="learned"),
    "bert_generation": BertGenerationConfig(**SHAPE, source_vocab_size=29, dropout=0.0),
    "luong": Seq2SeqConfig(
        **RECURRENT, hidden_dim=5, attention="dot", input_feeding=True, tie_embeddings=True, cell="gru"
    ),
    "bahdanau": Seq2SeqConfig(
        **RECURRENT, hidden_dim=9, attention="additive", query="previous", bidirectional=True,
        deep_output=True, memory_projection=True, cell="gru_reset_after",
    ),
    "cho": Seq2SeqConfig(**RECURRENT, hidden_dim=9, feed_context=True, cell="rnn_tanh"),
    "projected": RNNConfig(vocab_size=V, dim=7, hidden_dim=9, n_layers=2, cell="lstm", projection=4),
    "rnn_classifier": RNNClassifierConfig(
        vocab_size=V, dim=7, hidden_dim=5, n_layers=2, bidirectional=True, id2label={"0": "a", "1": "b"}
    ),
    "classifier on a BERT": TaskConfig(body=BertConfig(**SHAPE, dropout=0.0), id2label={"0": "a", "1": "b"}),
    "words of a GPT": TaskConfig(
        body=GPTConfig(**SHAPE, dropout=0.0), task="token_classification", id2label={"0": "a", "1": "b"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("rank", [1, 20])
def test_the_default_targets_of_every_family(name: str, rank: int) -> None:
    model = build(OTHERS[name]).eval()
    for head in head_modules(model.config):  # that of a recurrent classifier begins with zeros
        torch.nn.init.normal_(model.get_submodule(head).weight)
    tokens = torch.randint(0, 29, (3, 7))

    def outputs() -> Tensor:
        out = model(tokens, tokens) if translates(model.config) else logits_of(model, tokens)
        return getattr(out, "last_hidden_state", out)

    before, layers = outputs(), matching_layers(model, DEFAULT_TARGETS)
    rest = linear_layers(model).keys() - set(layers)
    assert all(layer.removeprefix("body.").startswith((*HEADS, "bridges")) for layer in rest)
    assert not any(layer.removeprefix("body.").startswith(HEADS) for layer in layers)
    add_adapter(model, some_settings(random.Random(), rank=rank), layers)
    assert not any(module.training for module in model.modules())
    torch.testing.assert_close(outputs(), before, rtol=1e-4, atol=1e-5)
    whole = tuple(f"{head}." for head in head_modules(model.config))
    trained = [key for key, parameter in model.named_parameters() if parameter.requires_grad]
    assert all(".adapters.default." in key or key.startswith(whole) for key in trained)
    shake(model)
    adapted = outputs()
    assert (adapted - before).abs().max() > 1e-4 * before.abs().max()
    adapted.pow(2).sum().backward()
    for layer, adapter in lora_layers(model).items():  # an adapter that nothing calls has no gradient
        assert adapter.adapters["default"].B.grad is not None, layer
    merge_adapter(model, "default")
    torch.testing.assert_close(outputs(), adapted, rtol=1e-3, atol=1e-5)


def test_a_row_of_zeros_stays_one_under_dora() -> None:
    model = build(a_config(random.Random(), "llama")).eval()
    layer = model.blocks[0].feed_forward.up_proj
    with torch.no_grad():
        layer.weight[0] = 0
    tokens = torch.randint(0, V, (1, 5))
    before = logits_of(model, tokens)
    add_adapter(model, LoraSettings(rank=2, dora=True), matching_layers(model, DEFAULT_TARGETS))
    torch.testing.assert_close(logits_of(model, tokens), before, rtol=1e-5, atol=1e-6)
    merge_adapter(model, "default")
    torch.testing.assert_close(logits_of(model, tokens), before, rtol=1e-5, atol=1e-6)


def test_several_adapters_are_chosen_by_name(tmp_path: Path) -> None:
    rng = random.Random()
    model = build(a_config(rng, "llama")).eval()
    tokens = torch.randint(0, V, (1, 5))
    written: dict[str, Tensor] = {}
    save_model(model, tmp_path / "base")
    for name, targets in (("one", ("q_proj",)), ("two", ("v_proj", "up_proj"))):
        add_adapter(model, some_settings(rng), matching_layers(model, targets), name=name)
        shake(model)
    for name in ("one", "two"):
        choose_adapter(model, name)
        written[name] = logits_of(model, tokens)
        save_adapter(model, tmp_path / name, name=name, base=tmp_path / "base")
    other = load_model(tmp_path / "base")
    for name in ("two", "one"):
        load_adapter(other, tmp_path / name, name=name, base=tmp_path / "base")
    assert sorted(adapter_names(other)) == ["one", "two"]
    for name in ("one", "two"):
        choose_adapter(other, name)
        torch.testing.assert_close(logits_of(other, tokens), written[name])
    with pytest.raises(ConfigError, match="the model has no adapter 'tow'; did you mean 'two'"):
        choose_adapter(other, "tow")


@pytest.mark.parametrize("trial", range(4))
def test_gradients_through_a_base_in_8_bits_are_those_of_its_rounded_weights(trial: int) -> None:
    rng = random.Random()
    model = build(a_config(rng, rng.choice(["llama", "gpt2"])))
    quantize_model(model)
    rounded = build(model.config)
    names = dict(rounded.named_modules())
    from wordloom.nn.quantized import Int8Embedding, Int8Linear, dequantize, float_weight

    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, Int8Linear):
                names[name].weight.copy_(float_weight(module))
                if module.bias is not None:
                    names[name].bias.copy_(module.bias)
            elif isinstance(module, Int8Embedding):
                names[name].weight.copy_(
                    dequantize(module.packed, module.num_embeddings, module.embedding_dim)
                )
            else:
                for key, parameter in module.named_parameters(recurse=False):
                    getattr(names[name], key).copy_(parameter)
    settings, tokens = some_settings(rng), torch.randint(0, V, (2, 9))
    gradients = []
    for each in (model, rounded):
        add_adapter(
            each,
            settings,
            matching_layers(each, DEFAULT_TARGETS),
            generator=torch.Generator().manual_seed(trial),
        )
        torch.manual_seed(trial)
        shake(each)
        logits_of(each, tokens).pow(2).sum().backward()
        gradients.append({name: p.grad for name, p in each.named_parameters() if p.requires_grad})
    for name, expected in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], expected, rtol=2e-3, atol=2e-3, msg=name)


@pytest.fixture(scope="module")
def stored_adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a base and its adapter of rank 3."""
    folder = tmp_path_factory.mktemp("stored")
    model = build(LlamaConfig(vocab_size=V, dim=12, n_layers=1, n_heads=2, max_seq_len=24))
    save_model(model, folder / "base")
    add_adapter(model, LoraSettings(rank=3), matching_layers(model, ["q_proj", "v_proj"]))
    save_adapter(model, folder / "adapter", base=folder / "base")
    return folder


def refused(stored: Path, folder: Path, config: str, tensors: dict[str, Tensor] | None = None) -> str:
    """Return the error of loading the adapter of ``stored`` with another config and other tensors."""
    shutil.copytree(stored / "adapter", folder)
    (folder / "adapter_config.json").write_text(config)
    if tensors is not None:
        save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(CheckpointError) as error:
        load_adapter(load_model(stored / "base"), folder)
    return str(error.value)


def stored_config(stored: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((stored / "adapter" / "adapter_config.json").read_text())
    return config


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lora_alpha": None}, "lora_alpha is None: input should be a valid number"),
        ({"lora_alpha": "abc"}, "lora_alpha is 'abc': input should be a valid number"),
        ({"lora_alpha": [1]}, "lora_alpha is [1]: input should be a valid number"),
        ({"lora_alpha": 10**400}, "lora_alpha is 1000"),
        ({"lora_alpha": 1e300}, "lora_alpha is 1e+300: input should be less than or equal to 1000000"),
        ({"lora_alpha": float("nan")}, "lora_alpha is nan: input should be"),
        ({"alpha_pattern": [1]}, "alpha_pattern is [1]: input should be a valid dictionary"),
        ({"alpha_pattern": {"(": 3}}, "alpha_pattern: '(' is no regular expression"),
        ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern.q_proj is 'x': input should be a valid number"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern.q_proj is 0: input should be greater than or equal"),
        ({"lora_dropout": "x"}, "lora_dropout is 'x': input should be a valid number"),
        ({"lora_dropout": 1}, "lora_dropout is 1: input should be less than 1"),
        ({"modules_to_save": 3}, "modules_to_save is 3: input should be a valid list"),
        ({"modules_to_save": "score"}, "modules_to_save is 'score': input should be a valid list"),
        ({"use_rslora": "false"}, "use_rslora is 'false': input should be a valid boolean"),
        ({"use_dora": "false"}, "use_dora is 'false': input should be a valid boolean"),
        ({"base_model_name_or_path": 3}, "base_model_name_or_path is 3: input should be a valid string"),
        ({"r": 999}, "q_proj of [3, 12], and this base with r 999 needs [999, 12]"),
        ({"rank_pattern": {"v_proj": 2}}, "v_proj of [3, 12], and this base with r 2 needs [2, 12]"),
        ({"use_dora": True}, "lacks lora_magnitude_vector of model.layers.0.self_attn.q_proj"),
    ],
)
def test_a_setting_of_peft_that_cannot_be_read_is_refused(
    change: dict[str, Any], says: str, stored_adapter: Path, tmp_path: Path
) -> None:
    config = json.dumps(stored_config(stored_adapter) | change)
    error = refused(stored_adapter, tmp_path / "adapter", config)
    assert says in error
    assert "\n" not in error
    assert len(error) < 400


def test_an_adapter_whose_saving_was_interrupted_is_completed(stored_adapter: Path, tmp_path: Path) -> None:
    ready = shutil.copytree(stored_adapter / "adapter", tmp_path / "adapter" / ".wordloom-ready")
    names = sorted(path.name for path in ready.iterdir())
    (ready / "wordloom-plan.json").write_text(json.dumps({"files": names, "remove": []}))
    load_adapter(load_model(stored_adapter / "base"), tmp_path / "adapter")
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == names


CHANGING: dict[str, Any] = {
    "alora_invocation_tokens": [5], "arrow_config": {"top_k": 2}, "ensure_weight_tying": True,
    "kasa_config": {"gamma": 1}, "layer_replication": [[0, 1], [0, 1]], "lora_bias": True,
    "megatron_config": {"a": 1}, "monteclora_config": {"a": 1}, "target_parameters": ["q_proj.weight"],
    "trainable_token_indices": [1, 2], "use_bdlora": {"a": 1}, "use_qalora": True, "of_a_later_peft": 3,
}  # fmt: skip
WAYS = ("pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "another", ["pissa"])


@pytest.mark.parametrize(
    ("name", "value"), [*CHANGING.items(), *(("init_lora_weights", way) for way in WAYS)], ids=str
)
def test_a_setting_of_peft_that_we_do_not_compute_is_refused(
    name: str, value: Any, stored_adapter: Path, tmp_path: Path
) -> None:
    config = json.dumps(stored_config(stored_adapter) | {name: value})
    error = refused(stored_adapter, tmp_path / "adapter", config)
    assert f"{name} is {value!r}, which changes the model in a way that Wordloom does not compute" in error


def test_every_setting_of_peft_is_read_or_refused_or_changes_nothing(
    stored_adapter: Path, tmp_path: Path
) -> None:
    untrained = peft.LoraConfig().to_dict() | stored_config(stored_adapter)
    folder = shutil.copytree(stored_adapter / "adapter", tmp_path / "adapter")
    (folder / "adapter_config.json").write_text(json.dumps(untrained))
    load_adapter(load_model(stored_adapter / "base"), folder)
    known = PeftConfig.model_fields.keys() | WITHOUT_EFFECT
    assert {field.name for field in fields(peft.LoraConfig)} == (known | CHANGING.keys()) - {
        "of_a_later_peft"
    }


@pytest.mark.parametrize("config", ["[" * 200_000, "[]", "{", ""])
def test_an_adapter_config_that_is_no_json_object_is_refused(
    config: str, stored_adapter: Path, tmp_path: Path
) -> None:
    assert "adapter_config.json" in refused(stored_adapter, tmp_path / "adapter", config)


@pytest.mark.parametrize(
    ("end", "tensor", "says"),
    [
        ("lora_A.weight", torch.tensor(1.0), "has lora_A of model.layers.0.self_attn.q_proj of []"),
        ("lora_A.weight", torch.ones(12), "q_proj of [12], and this base with r 3 needs [3, 12]"),
        ("lora_B.weight", torch.ones(12, 2), "q_proj of [12, 2], and this base with r 3 needs [12, 3]"),
        ("lora_A.weight", torch.ones(3, 12, dtype=torch.int32), "q_proj.lora_A.weight as int32"),
        ("lora_magnitude_vector", torch.ones(12), "and use_dora is false in its adapter_config.json"),
    ],
)
def test_a_tensor_that_does_not_fit_the_settings_is_refused(
    end: str, tensor: Tensor, says: str, stored_adapter: Path, tmp_path: Path
) -> None:
    tensors = load_file(stored_adapter / "adapter" / "adapter_model.safetensors")
    tensors[f"base_model.model.model.layers.0.self_attn.q_proj.{end}"] = tensor
    config = json.dumps(stored_config(stored_adapter))
    assert says in refused(stored_adapter, tmp_path / "adapter", config, tensors)


def test_mistakes_are_named(tmp_path: Path) -> None:
    rng = random.Random(1)
    config = LlamaConfig(vocab_size=V, dim=12, n_layers=2, n_heads=2, max_seq_len=24, tie_embeddings=True)
    model = build(config)
    save_model(model, tmp_path / "base")
    with pytest.raises(
        ConfigError, match="lora target 'q_prj' matches no linear layer; did you mean 'q_proj'"
    ):
        matching_layers(model, ["q_prj"])
    with pytest.raises(ConfigError, match="lm_head shares its weight with token_embedding"):
        add_adapter(model, LoraSettings(), ["lm_head"])
    for wrong, says in (
        ({"rank": 0}, "rank 0"),
        ({"dropout": 1.0}, "dropout 1"),
        ({"alpha": 0.0}, "alpha 0"),
    ):
        with pytest.raises(ConfigError, match=says):
            LoraSettings(**wrong)
    add_adapter(model, LoraSettings(rank=3), matching_layers(model, DEFAULT_TARGETS))
    with pytest.raises(ConfigError, match="has an adapter 'default' already"):
        add_adapter(model, LoraSettings(), ["blocks.0.attention.q_proj"])
    save_adapter(model, tmp_path / "adapter", base=tmp_path / "base")
    with pytest.raises(CheckpointError, match="holds an adapter already"):
        save_adapter(model, tmp_path / "adapter")
    save_model(build(config, generator=torch.Generator().manual_seed(5)), tmp_path / "other")
    with pytest.raises(
        CheckpointError, match=r"was trained on another base than .*other, whose weights differ"
    ):
        load_adapter(load_model(tmp_path / "other"), tmp_path / "adapter", base=tmp_path / "other")
    gpt = build(a_config(rng, "gpt2"))
    with pytest.raises(CheckpointError, match=r"changes 0 of .* modules of this model: its tensors are for"):
        load_adapter(gpt, tmp_path / "adapter")
    narrow = build(LlamaConfig(vocab_size=V, dim=8, n_layers=2, n_heads=2, max_seq_len=24))
    with pytest.raises(CheckpointError, match="it belongs to another base"):
        load_adapter(narrow, tmp_path / "adapter")
    short = build(LlamaConfig(vocab_size=V, dim=12, n_layers=1, n_heads=2, max_seq_len=24))
    with pytest.raises(CheckpointError, match="has tensors that this model has no place for"):
        load_adapter(short, tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=r"holds no adapter: adapter_config.json is missing"):
        load_adapter(model, tmp_path / "base")
    stored = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    for change, says in (
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save names lm_head; only heads can be read"),
    ):
        (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({**stored, **change}))
        with pytest.raises(CheckpointError, match=says):
            load_adapter(load_model(tmp_path / "base"), tmp_path / "adapter")
    whole = build(a_config(rng, "gpt2"))
    add_adapter(whole, LoraSettings(), ["blocks.0.attention.q_proj"])
    with pytest.raises(CheckpointError, match=r"peft adapts transformer.h.0.attn.c_attn as a whole"):
        save_adapter(whole, tmp_path / "part")
