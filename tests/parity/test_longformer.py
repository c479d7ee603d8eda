"""Longformer folders, both ways: a RoBERTa with a band, global tokens and projections for these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from wordloom.errors import CheckpointError, ConfigError
from wordloom.models import BertConfig, RobertaConfig, TaskConfig, build
from wordloom.weights import config_from_json, config_to_json, load_config, load_model, save_model

V, T = 31, 37
SHAPE: dict[str, Any] = {"vocab_size": V, "max_seq_len": 60, "dim": 24, "n_layers": 3, "n_heads": 3}
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
PATTERNS = {
    "one window": "band:3+global:1",
    "windows": "band:2+global:2,band:8+global:2,band:4+global:2",
    "global tokens": "band:5+global:4",
}


def a_model(attention: str, **settings: Any) -> Any:
    config = RobertaConfig(attention=attention, global_projections=True, **SHAPE, **settings)
    model = build(config, generator=torch.Generator().manual_seed(0)).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def inputs(lengths: list[int]) -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    attend = torch.arange(T) < torch.tensor(lengths)[:, None]
    return torch.randint(2, V, (len(lengths), T)).masked_fill(~attend, 1), attend


def theirs_of(theirs: Any, tokens: Tensor, attend: Tensor, n_global: int) -> Any:
    first = (torch.arange(T) < n_global).expand_as(attend).long()
    return theirs(tokens, attention_mask=attend.long(), global_attention_mask=first)


@pytest.mark.parametrize("name", PATTERNS)
@torch.no_grad()
def test_transformers_computes_what_we_write(name: str, tmp_path: Path) -> None:
    model = a_model(PATTERNS[name], masked_lm_head=True, pooler=False)
    save_model(model, tmp_path / "m")
    assert load_config(tmp_path / "m") == model.config
    theirs, info = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert type(theirs).__name__ == "LongformerForMaskedLM"
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    n_global = model.blocks[0].attention.tokens
    for lengths in ([T, T], [T, 11, 5]):
        tokens, attend = inputs(lengths)
        logits = model.lm_head(model.mlm_hidden(model.hidden(tokens, attend=attend)))
        found = theirs_of(theirs.eval(), tokens, attend, n_global).logits
        torch.testing.assert_close(logits[attend], found[attend], **TOLERANCE)


def test_we_read_what_transformers_writes(tmp_path: Path) -> None:
    config = transformers.LongformerConfig(
        vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        max_position_embeddings=62, type_vocab_size=1, attention_window=[6, 12], pad_token_id=1,
    )  # fmt: skip
    theirs = transformers.LongformerModel(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path / "m")
    model = load_model(tmp_path / "m").eval()
    assert model.config.attention == "band:3+global:1,band:6+global:1"
    tokens, attend = inputs([T, 20])
    found = model(tokens, attend=attend)
    wanted = theirs_of(theirs, tokens, attend, 1)
    torch.testing.assert_close(found.last_hidden_state[attend], wanted.last_hidden_state[attend], **TOLERANCE)
    torch.testing.assert_close(found.pooler_output, wanted.pooler_output, **TOLERANCE)
    found.pooler_output.square().sum().backward()
    wanted.pooler_output.square().sum().backward()
    grads = model.blocks[0].attention.k_global_proj.weight.grad
    there = theirs.encoder.layer[0].attention.self.key_global.weight.grad
    torch.testing.assert_close(grads, there, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("task", "name", "tokens"),
    [
        ("question_answering", "LongformerForQuestionAnswering", "question"),
        ("multiple_choice", "LongformerForMultipleChoice", "choice"),
    ],
)
def test_heads_with_other_global_tokens_are_refused(
    task: str, name: str, tokens: str, tmp_path: Path
) -> None:
    shape = {"vocab_size": V, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3}
    config = transformers.LongformerConfig(
        **shape, max_position_embeddings=62, type_vocab_size=1, attention_window=[6], pad_token_id=1
    )
    theirs = getattr(transformers, name)(config)
    theirs.save_pretrained(tmp_path / "theirs")
    with pytest.raises(CheckpointError, match=rf"{name} makes all tokens of the {tokens} global"):
        load_model(tmp_path / "theirs")
    theirs.longformer.save_pretrained(tmp_path / "body")  # as the error advises
    assert load_config(tmp_path / "body").attention == "band:3+global:1"

    body = RobertaConfig(
        attention="band:3+global:1", global_projections=True, pooler=task == "multiple_choice", **SHAPE
    )
    written = config_to_json(TaskConfig(body=body, task=task))
    assert config_from_json(written) == TaskConfig(body=body, task=task)
    saved_again = {**written, "transformers_version": "5.0"}  # transformers keeps keys that it does not know
    assert config_from_json(saved_again) == TaskConfig(body=body, task=task)
    # an earlier version of Wordloom stated only the vocabulary of a model that it had trained
    earlier = {key: value for key, value in written.items() if key != "wordloom"}
    trained = {**earlier, "vocabulary": {"size": V, "sha256": ""}}
    assert config_from_json(trained) == TaskConfig(body=body, task=task)
    for other in (earlier, {**trained, "transformers_version": "5.0"}):
        with pytest.raises(CheckpointError, match="makes all tokens"):
            config_from_json(other)


@torch.no_grad()
def test_texts_in_one_row_are_as_alone() -> None:
    model = a_model("band:3+global:2", masked_lm_head=False, pooler=False)
    lengths = [5, 1, 12]
    tokens = torch.randint(2, V, (1, sum(lengths)))
    documents = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    found = model.hidden(tokens, documents=documents, positions=positions)
    for part, text in zip(found.split(lengths, dim=1), tokens.split(lengths, dim=1), strict=True):
        torch.testing.assert_close(part, model.hidden(text), **TOLERANCE)


def test_what_is_no_longformer_has_a_model_type_of_our_own() -> None:
    longformer = {"global_projections": True, **SHAPE}
    for config, model_type in (
        (RobertaConfig(attention="band:3+global:1", **longformer), "longformer"),
        (RobertaConfig(attention="band:3+global:1", **SHAPE), "wordloom-roberta"),
        (RobertaConfig(attention="band:3+global:1+random:2:0", **longformer), "wordloom-roberta"),
        (RobertaConfig(attention="band:3", **SHAPE), "wordloom-roberta"),
        (RobertaConfig(**SHAPE), "roberta"),
        (BertConfig(attention="band:3+global:1", **longformer), "wordloom-bert"),
        (BertConfig(attention="block:3", **SHAPE), "wordloom-bert"),
        (BertConfig(**SHAPE), "bert"),
    ):
        written = config_to_json(config)
        assert written["model_type"] == model_type
        assert config_from_json(written) == config
    with pytest.raises(ConfigError, match=r"are for the tokens of 'global:G', and the attention is 'band:3'"):
        build(RobertaConfig(attention="band:3", **longformer))
    for wrong in (5, [6, 6], "6", [6, 7, 6], [0, 6, 6]):
        theirs = {"model_type": "longformer", "num_hidden_layers": 3, "pad_token_id": 1}
        with pytest.raises(CheckpointError, match="attention_window is an even width for each layer"):
            config_from_json(theirs | {"attention_window": wrong})
