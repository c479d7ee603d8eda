"""Bodies with a head for a task beside transformers' own: forward, gradients, and on disk both ways."""

from __future__ import annotations

import json
import logging
import re
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
from wordloom.models import (
    BertConfig,
    GPT2Config,
    GPTConfig,
    LlamaConfig,
    RobertaConfig,
    TaskConfig,
    build,
)
from wordloom.models.task_model import SUMMARIES
from wordloom.weights import config_from_json, config_to_json, load_config, load_model, save_model

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
V, T, PAD = 31, 11, 1
SHAPE: dict[str, Any] = {"vocab_size": V, "max_seq_len": 30, "dim": 24, "n_layers": 2, "n_heads": 3}
LABELS = {"0": "bad", "1": "so so", "2": "good"}
CONFIGS = {"Bert": BertConfig, "Roberta": RobertaConfig, "GPT2": GPT2Config, "OpenAIGPT": GPTConfig,
           "Llama": LlamaConfig, "Mistral": LlamaConfig, "Ministral": LlamaConfig,
           "Longformer": RobertaConfig}  # fmt: skip
ATTENTION = {"Mistral": "band:4", "Ministral": "full,band:4", "Longformer": "band:2+global:1"}
ENDS = {
    "classification": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
    "multiple_choice": "ForMultipleChoice",
}
CASES = [(stem, task) for stem in CONFIGS for task in ENDS if hasattr(transformers, stem + ENDS[task])]
EVERY = pytest.mark.parametrize(("stem", "task"), CASES)


def config_of(stem: str, task: str, **settings: Any) -> TaskConfig:
    body = dict(SHAPE)
    if stem in ATTENTION:
        body["attention"] = ATTENTION[stem]
    if stem == "Longformer":
        body["global_projections"] = True
    if stem in ("Bert", "Roberta", "Longformer"):
        body |= {"pooler": task in SUMMARIES, "masked_lm_head": settings.get("language_model", False)}
    if CONFIGS[stem] is LlamaConfig:
        body["tie_embeddings"] = False
    labels = LABELS if task in ("classification", "token_classification") else {}
    return TaskConfig(body=CONFIGS[stem](**body), task=task, id2label=labels, **settings)


def random_model(config: TaskConfig) -> Any:
    model = build(config, generator=torch.Generator().manual_seed(0)).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@EVERY
def test_a_head_that_no_architecture_names_is_left_out_under_its_own_name(
    stem: str, task: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_model(random_model(config_of(stem, task)), tmp_path)
    theirs = json.loads((tmp_path / "config.json").read_text())
    named = {"classification": "sequence classification", "regression": "sequence classification"}
    (tmp_path / "config.json").write_text(
        json.dumps({key: value for key, value in theirs.items() if key not in ("architectures", "wordloom")})
    )
    if CONFIGS[stem] is LlamaConfig:  # untied: its language model's own head is gone
        with pytest.raises(CheckpointError, match=r"lacks lm_head\.weight") as caught:
            load_model(tmp_path)
        said = str(caught.value)
    else:
        with caplog.at_level(logging.WARNING):
            assert type(load_model(tmp_path).config) is CONFIGS[stem]
        said = caplog.records[0].message
        assert len(caplog.records) == 1
    name = named.get(task, task.replace("_", " "))
    assert re.search(rf"to load a.*\b{name}\b.* head, name its class as \"architectures\"", said)


def inputs(task: str, stem: str) -> tuple[Tensor, Tensor | None, Tensor]:
    shape = (2, 3, T) if task == "multiple_choice" else (3, T)
    tokens = torch.randint(2, V, shape, generator=torch.Generator().manual_seed(7))
    lengths = torch.tensor([T, 5, 1]).expand(shape[:-1])[..., None]
    attend = torch.arange(T) < lengths
    segments = (torch.arange(T) >= 4).long().expand(shape) if stem == "Bert" else None
    return tokens.masked_fill(~attend, PAD), segments, attend


def theirs_of(model: Any, task: str, stem: str) -> Tensor:
    tokens, segments, attend = inputs(task, stem)
    more = {} if segments is None else {"token_type_ids": segments}
    if stem == "Longformer":
        more["global_attention_mask"] = (torch.arange(T) == 0).long().expand_as(tokens)
    made = model(input_ids=tokens, attention_mask=attend.long(), **more)
    if task == "question_answering":
        return torch.stack([made.start_logits, made.end_logits], dim=-1)[attend]
    return made.logits[attend] if task == "token_classification" else made.logits


def ours_of(model: Any, task: str, stem: str) -> Tensor:
    tokens, segments, attend = inputs(task, stem)
    made = model(tokens, segments, attend)
    if task not in SUMMARIES:
        return made[attend]
    return made[:, None] if task == "regression" else made


@EVERY
def test_both_read_what_the_other_writes(stem: str, task: str, tmp_path: Path) -> None:
    model = random_model(config_of(stem, task))

    class Ids:  # what a tokenizer tells
        vocab_size, bos_id, eos_id, pad_id = V, None, None, PAD

        def save_pretrained(self, folder: Any) -> None: ...

    save_model(model, tmp_path / "ours", tokenizer=Ids())
    assert load_config(tmp_path / "ours") == model.config
    theirs, info = getattr(transformers, stem + ENDS[task]).from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(info.values()), info
    theirs.eval()
    mine, other = ours_of(model, task, stem), theirs_of(theirs, task, stem)
    torch.testing.assert_close(mine, other, **TOLERANCE)
    assert theirs.config.id2label[0] == ("bad" if model.config.id2label else "LABEL_0")

    F.softplus(mine).sum().backward()
    F.softplus(other).sum().backward()
    ours, grads = model.body.token_embedding.weight.grad, theirs.get_input_embeddings().weight.grad
    torch.testing.assert_close(ours, grads, rtol=1e-3, atol=1e-5)

    theirs.save_pretrained(tmp_path / "back")
    again = load_model(tmp_path / "back")
    assert again.config == model.config
    for key, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor), key


@pytest.mark.parametrize(
    ("stem", "task", "settings"),
    [
        ("GPT2", "multiple_choice", {}),  # to transformers a regression
        ("Llama", "classification", {"language_model": True, "head_dropout": 0.3}),
        ("OpenAIGPT", "token_classification", {}),
        ("Bert", "classification", {"head_dropout": 0.25}),
        ("Roberta", "token_classification", {"language_model": True}),
    ],
)
def test_what_transformers_has_no_word_for_comes_back(
    stem: str, task: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    model = random_model(config_of(stem, task, **settings))
    save_model(model, tmp_path)
    assert load_config(tmp_path) == model.config
    again = load_model(tmp_path)
    assert torch.equal(ours_of(again, task, stem), ours_of(model, task, stem))


@pytest.mark.parametrize("stem", ["Bert", "Roberta"])
def test_an_encoder_that_keeps_its_old_head_is_the_same_to_transformers(stem: str, tmp_path: Path) -> None:
    model = random_model(config_of(stem, "classification", language_model=True))
    save_model(model, tmp_path / "ours")
    assert load_config(tmp_path / "ours") == model.config
    for key, tensor in load_model(tmp_path / "ours").state_dict().items():
        assert torch.equal(model.state_dict()[key], tensor), key
    theirs = (
        getattr(transformers, f"{stem}ForSequenceClassification").from_pretrained(tmp_path / "ours").eval()
    )
    mine, other = (of(which, "classification", stem) for of, which in ((ours_of, model), (theirs_of, theirs)))
    torch.testing.assert_close(mine, other, **TOLERANCE)
    theirs.save_pretrained(tmp_path / "back")  # which leaves out what it does not know
    assert load_config(tmp_path / "back") == config_of(stem, "classification")
    torch.testing.assert_close(ours_of(load_model(tmp_path / "back"), "classification", stem), mine)


def test_a_body_of_our_own_keeps_its_head(tmp_path: Path) -> None:
    body = GPTConfig(**SHAPE, positions="sinusoidal")
    model = random_model(TaskConfig(body=body, task="classification", id2label=LABELS))
    save_model(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "wordloom-gpt"
    assert load_config(tmp_path) == model.config
    assert torch.equal(ours_of(load_model(tmp_path), "classification", "GPT"),
                       ours_of(model, "classification", "GPT"))  # fmt: skip


@pytest.mark.parametrize(
    "attention", ["full", "band:3+global:2", "dilated:2:3", "linformer:4", "nystrom:3", "performer:5"]
)
def test_choices_that_are_none_are_never_chosen(attention: str) -> None:
    """No token of an empty choice sees a key."""
    for stem in ("Bert", "Longformer", "GPT2"):
        config = config_of(stem, "multiple_choice")
        if stem == "Bert":
            config = replace(config, body=replace(config.body, attention=attention, attention_dropout=0.0))
        model = random_model(config)
        tokens, segments, attend = inputs("multiple_choice", stem)
        attend = attend.clone()
        attend[0, 1] = False
        scores = model(tokens, segments, attend)
        assert scores[0].tolist()[1] == -torch.inf
        assert torch.isfinite(scores[1]).all()
        scores[0].softmax(0)[0].backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_two_orders_are_added() -> None:
    model = random_model(config_of("GPT2", "regression"))
    tokens, _, attend = inputs("regression", "GPT2")
    pair = torch.stack([tokens, tokens.flip(0)], dim=1)  # [3, 2, T]
    seen = torch.stack([attend, attend.flip(0)], dim=1)
    one, other = model(tokens, None, attend), model(tokens.flip(0), None, attend.flip(0))
    torch.testing.assert_close(model(pair, None, seen), one + other, **TOLERANCE)  # its head has no bias


def test_what_is_no_head_is_refused() -> None:
    theirs = config_to_json(config_of("Bert", "classification"))
    for wrong, says in (
        ({"id2label": ["a", "b"]}, "id2label must be a table"),
        ({"problem_type": "multi_label_classification"}, "multi_label_classification"),
        ({"wordloom": {"head": {"tusk": 1}}}, "tusk"),
        ({"wordloom": {"head": {"task": "poetry"}}}, "poetry"),
        ({"id2label": {"0": "a", "1": "a"}}, "one name"),
    ):
        with pytest.raises(CheckpointError, match=says):
            config_from_json({**theirs, **wrong})


@pytest.mark.parametrize(
    ("stem", "task"),
    [("Bert", "token_classification"), ("Bert", "question_answering"), ("Roberta", "classification")],
)
def test_a_pooler_that_the_head_does_not_read_is_passed_over(stem: str, task: str, tmp_path: Path) -> None:
    """Releases from before there was a choice hold one; transformers leaves it out, too."""
    model = random_model(config_of(stem, task))
    save_model(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name, shape in (("weight", (24, 24)), ("bias", (24,))):
        tensors[f"{stem.lower()}.pooler.dense.{name}"] = torch.ones(shape)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = load_model(tmp_path)
    torch.testing.assert_close(ours_of(again, task, stem), ours_of(model, task, stem))


def test_labels_are_numbered_in_any_order(tmp_path: Path) -> None:
    """JSON whose keys are sorted has 10 before 2."""
    labels = {str(number): f"L{number}" for number in range(12)}
    body = BertConfig(**SHAPE, pooler=True)
    theirs = config_to_json(TaskConfig(body=body, task="classification", id2label=labels))
    theirs["id2label"] = dict(sorted(theirs["id2label"].items()))
    assert list(theirs["id2label"])[2] == "10"
    assert config_from_json(theirs).labels == tuple(labels.values())
