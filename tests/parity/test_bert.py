"""BERT and RoBERTa beside transformers' own classes, forward, gradients and on disk, both ways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from wordloom.errors import CheckpointError
from wordloom.models import BertConfig, RobertaConfig, build
from wordloom.weights import (
    config_from_json,
    config_to_json,
    load_config,
    load_model,
    save_model,
    start_from,
)

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
V, T = 31, 13
SHAPE: dict[str, Any] = {"vocab_size": V, "max_seq_len": 40, "dim": 24, "n_layers": 2, "n_heads": 3}
OURS = {
    "BertModel": BertConfig(**SHAPE, type_vocab_size=4, hidden_dim=17, activation="relu"),
    "BertForMaskedLM": BertConfig(**SHAPE, pooler=False, masked_lm_head=True, attention_dropout=0.2),
    "BertForPreTraining": BertConfig(**SHAPE, masked_lm_head=True, next_sentence_head=True),
    "BertForNextSentencePrediction": BertConfig(**SHAPE, next_sentence_head=True, dropout=0.05),
    "RobertaModel": RobertaConfig(**SHAPE),
    "RobertaForMaskedLM": RobertaConfig(**SHAPE, pooler=False, masked_lm_head=True),
    "relu BertForMaskedLM": BertConfig(**SHAPE, pooler=False, masked_lm_head=True, activation="relu"),
    "relu RobertaForMaskedLM": RobertaConfig(**SHAPE, pooler=False, masked_lm_head=True, activation="relu"),
    "untied BertForMaskedLM": BertConfig(**SHAPE, pooler=False, masked_lm_head=True, tie_embeddings=False),
}
EVERY = pytest.mark.parametrize("name", OURS)


def class_of(name: str) -> Any:
    return getattr(transformers, name.split()[-1])


def inputs(seed: int = 7, types: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [3, T] without padding's own id, segments 0 to ``types`` - 1 one after another, and where there
    are tokens."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, V, (3, T), generator=generator)
    attend = torch.arange(T) < torch.tensor([[T], [5], [1]])
    segments = (torch.arange(T) * types // T).expand(3, T)
    return tokens.masked_fill(~attend, 1), segments, attend


def random_model(config: BertConfig) -> Any:
    model = build(config, generator=torch.Generator().manual_seed(0)).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def outputs(model: Any, segments: Tensor | None) -> dict[str, Tensor]:
    """What ours makes of :func:`inputs`, by transformers' names."""
    tokens, _, attend = inputs()
    encoded = model(tokens, segments=segments, attend=attend)
    c = model.config
    made = {"last_hidden_state": encoded.last_hidden_state[attend], "pooler_output": encoded.pooler_output}
    if c.masked_lm_head:
        made["prediction_logits"] = model.lm_head(model.mlm_hidden(encoded.last_hidden_state))[attend]
    if c.next_sentence_head:
        made["seq_relationship_logits"] = model.next_sentence(encoded.pooler_output)
    return {name: tensor for name, tensor in made.items() if tensor is not None}


def their_outputs(model: Any, segments: Tensor | None) -> dict[str, Tensor]:
    tokens, _, attend = inputs()
    made = model(input_ids=tokens, token_type_ids=segments, attention_mask=attend.long())
    renamed = {"logits": "seq_relationship_logits" if "NextSentence" in type(model).__name__ else
               "prediction_logits"}  # fmt: skip
    named = {renamed.get(key, key): made[key] for key in made if "loss" not in key}
    return {
        key: tensor[attend] if key in ("last_hidden_state", "prediction_logits") else tensor
        for key, tensor in named.items()
    }


def compare(ours: Any, theirs: Any) -> None:
    types = ours.config.type_vocab_size
    segments = inputs(types=types)[1] if types > 1 else None
    mine, other = outputs(ours, segments), their_outputs(theirs, segments)
    assert set(other) <= set(mine)
    assert other
    for key, tensor in other.items():
        torch.testing.assert_close(mine[key], tensor, **TOLERANCE, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("kind", [BertConfig, RobertaConfig])
def test_a_head_that_transformers_cannot_express_has_a_model_type_of_our_own(
    kind: Any, tmp_path: Path
) -> None:
    shape = {**SHAPE, "pooler": False, "masked_lm_head": True, "activation": "silu"}
    config = kind(**shape, mlm_activation="relu")
    model = random_model(config)
    save_model(model, tmp_path)
    assert config_to_json(config)["model_type"].startswith("wordloom-")
    again = load_model(tmp_path)
    assert again.config == config
    assert torch.equal(outputs(again, None)["prediction_logits"], outputs(model, None)["prediction_logits"])
    same = kind(**shape, mlm_activation="gelu" if kind is RobertaConfig else "silu")
    assert not config_to_json(same)["model_type"].startswith("wordloom-")
    assert config_from_json(config_to_json(same)) == same
    headless = replace(config, masked_lm_head=False)
    assert config_from_json(config_to_json(headless)) == headless
    started = build(replace(config, mlm_activation=None, masked_lm_head=False, pooler=True))
    assert "mlm_transform" in start_from(started, tmp_path).dropped
    with pytest.raises(CheckpointError, match="'relu', the model has"):
        start_from(build(kind(**shape)), tmp_path)


@EVERY
@torch.no_grad()
def test_transformers_reads_what_we_write(name: str, tmp_path: Path) -> None:
    model = random_model(OURS[name])
    save_model(model, tmp_path / "out")
    assert load_config(tmp_path / "out") == model.config
    theirs, info = class_of(name).from_pretrained(tmp_path / "out", output_loading_info=True)
    unread = set() if model.config.tie_embeddings else {"cls.predictions.bias"}  # by them as by us
    assert set(info["missing_keys"]) <= unread
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    compare(model, theirs.eval())
    theirs.save_pretrained(tmp_path / "back")
    again = load_model(tmp_path / "back")
    for key, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor), key
    assert again.config == model.config


@EVERY
def test_gradients_are_theirs(name: str, tmp_path: Path) -> None:
    model = random_model(OURS[name])
    save_model(model, tmp_path)
    theirs = class_of(name).from_pretrained(tmp_path).eval()
    types = model.config.type_vocab_size
    segments = inputs(types=types)[1] if types > 1 else None
    wanted = their_outputs(theirs, segments)
    made = outputs(model, segments)
    for some, keys in ((made, wanted), (wanted, wanted)):
        torch.stack([F.softplus(some[key]).sum() for key in keys]).sum().backward()
    from_theirs = {key: p.grad for key, p in theirs.named_parameters() if p.grad is not None}
    grads = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    assert len(grads) == len(from_theirs)
    total = sum(float(g.double().square().sum()) for g in grads.values())
    assert total == pytest.approx(sum(float(g.double().square().sum()) for g in from_theirs.values()), 1e-4)
    for ours, suffix in (
        ("token_embedding", "word_embeddings"),
        ("blocks.0.attention.k_proj", "0.attention.self.key"),
        ("blocks.1.ffn_norm", "1.output.LayerNorm"),
    ):
        other = next(g for key, g in from_theirs.items() if key.endswith(f"{suffix}.weight"))
        torch.testing.assert_close(grads[f"{ours}.weight"], other, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_an_old_release_is_read_as_what_it_holds(tmp_path: Path) -> None:
    """As bert-base-uncased lies on the hub: named BertForMaskedLM, with pooler and next sentence, norms with
    gamma and beta, tied tensors stored twice and positions by number."""
    model = random_model(OURS["BertForPreTraining"])
    save_model(model, tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    old = {}
    for key, tensor in state.items():
        if "LayerNorm" in key:
            key = key.replace(".weight", ".gamma").replace(".bias", ".beta")
        old[key] = tensor
    old["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"].clone()
    old["bert.embeddings.position_ids"] = torch.arange(40)[None]
    save_file(old, tmp_path / "model.safetensors", metadata={"format": "pt"})
    facts = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(facts.replace("BertForPreTraining", "BertForMaskedLM"))
    again = load_model(tmp_path)
    assert again.config == model.config
    for key, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor), key


@torch.no_grad()
def test_a_body_by_itself_has_no_prefix_and_perhaps_no_pooler(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20
    )
    for pooler in (True, False):
        theirs = transformers.BertModel(config, add_pooling_layer=pooler).eval()
        theirs.save_pretrained(tmp_path / str(pooler))
        ours = load_model(tmp_path / str(pooler))
        assert ours.config.pooler is pooler
        compare(ours, theirs)


def test_texts_in_one_row_do_not_see_one_another() -> None:
    model = random_model(OURS["BertModel"])
    first, second = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[9, 3, 11]])
    row = torch.cat([first, second], dim=1)
    documents, positions = torch.tensor([[0, 0, 0, 0, 1, 1, 1]]), torch.tensor([[0, 1, 2, 3, 0, 1, 2]])
    with torch.no_grad():
        together = model(row, documents=documents, positions=positions).last_hidden_state
        apart = torch.cat([model(x).last_hidden_state for x in (first, second)], dim=1)
    torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-5)


def test_a_large_bert_has_the_settings_of_theirs() -> None:
    theirs = config_to_json(BertConfig(dim=1024, n_layers=24, n_heads=16))
    large = transformers.BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    for key in ("hidden_size", "intermediate_size", "hidden_act", "layer_norm_eps", "type_vocab_size",
                "max_position_embeddings", "vocab_size", "attention_probs_dropout_prob"):  # fmt: skip
        assert theirs[key] == getattr(large, key), key
