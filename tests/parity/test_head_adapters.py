"""Adapters of models with a head beside peft's own: ours read by peft, and peft's read by us."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from tests.parity.test_task_heads import CASES, ENDS, LABELS, PAD, TOLERANCE, config_of, ours_of, theirs_of
from tests.weights.test_adapters import shake, some_settings

from wordloom.models import BertConfig, LlamaConfig, TransformerConfig, build
from wordloom.models.building.lora import DEFAULT_TARGETS, add_adapter, head_modules, matching_layers
from wordloom.models.task_model import SUMMARIES
from wordloom.weights import load_model, save_model, start_from
from wordloom.weights.adapted import load_adapted_model
from wordloom.weights.adapters import save_adapter

TARGETS = {"Bert": ["query", "value"], "Roberta": ["key", "value"], "Longformer": ["query"],
           "GPT2": ["c_attn"], "OpenAIGPT": ["c_attn"]}  # fmt: skip
TYPES = {"classification": "SEQ_CLS", "regression": "SEQ_CLS", "token_classification": "TOKEN_CLS",
         "question_answering": "QUESTION_ANS"}  # fmt: skip


def write_base(stem: str, task: str, folder: Path, *, pooler: bool) -> Any:
    """Write a body without a head, and return the config of a model with the head."""
    config = config_of(stem, task)
    body = replace(config.body, pooler=pooler) if isinstance(config.body, BertConfig) else config.body
    save_model(build(body), folder)
    return config


def computed(adapted: Any) -> Any:
    """Return the model below peft's class; that of question answering drops the segments."""
    return adapted.base_model.model


def labels_of(task: str) -> dict[str, Any]:
    if task == "question_answering":
        return {}
    return {"num_labels": len(LABELS) if "classification" in task else 1}


@pytest.mark.parametrize(("stem", "task"), CASES)
def test_peft_reads_our_adapter_and_head(stem: str, task: str, tmp_path: Path) -> None:
    rng = random.Random()
    base = tmp_path / "base"
    config = write_base(stem, task, base, pooler=rng.random() < 0.5)
    model = build(config)
    start_from(model, base)
    transformers_base = base
    if isinstance(config.body, LlamaConfig) and task == "question_answering":
        # LlamaForQuestionAnswering calls its body "transformer": it does not find that of a language model
        transformers_base = tmp_path / "headed"
        save_model(model, transformers_base)
    add_adapter(model, some_settings(rng), matching_layers(model, DEFAULT_TARGETS))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    heads = tuple(f"{name}." for name in head_modules(config))
    assert {name for name in trained if not name.startswith(heads)} == {
        name for name in trained if ".adapters.default." in name
    }
    assert ("body.pooler.weight" in trained) == (hasattr(config.body, "pooler") and task in SUMMARIES)
    shake(model)
    with torch.no_grad():
        for name in heads:
            for parameter in model.get_submodule(name[:-1]).parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.eval()
    save_adapter(model, tmp_path / "adapter", base=base)
    kind = getattr(transformers, stem + ENDS[task])
    theirs = kind.from_pretrained(transformers_base, pad_token_id=PAD, **labels_of(task))
    adapted = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    with torch.no_grad():
        expected = theirs_of(computed(adapted), task, stem)
        torch.testing.assert_close(ours_of(model, task, stem), expected, **TOLERANCE)
        read, said = load_adapted_model(base, tmp_path / "adapter")
        torch.testing.assert_close(ours_of(read, task, stem), ours_of(model, task, stem))
    assert read.config == config
    assert set(said.head) == set(head_modules(config))


@pytest.mark.parametrize(("stem", "task"), [case for case in CASES if case[1] in TYPES])
def test_we_read_pefts_adapter_and_head(stem: str, task: str, tmp_path: Path) -> None:
    model = build(config_of(stem, task))
    save_model(model, tmp_path / "base")  # with a head that peft trains on
    kind = getattr(transformers, stem + ENDS[task])
    base = kind.from_pretrained(tmp_path / "base", pad_token_id=PAD)
    settings = peft.LoraConfig(
        r=3, lora_alpha=5, task_type=TYPES[task], target_modules=TARGETS.get(stem, ["q_proj", "down_proj"]),
        init_lora_weights=False, fan_in_fan_out=stem in ("GPT2", "OpenAIGPT"),
    )  # fmt: skip
    theirs = peft.get_peft_model(base, settings).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if re.search(r"\.modules_to_save\.", name):
                parameter.add_(torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path / "adapter")
    read, said = load_adapted_model(tmp_path / "base", tmp_path / "adapter")
    assert "classifier" in said.head
    with torch.no_grad():
        torch.testing.assert_close(
            ours_of(read, task, stem), theirs_of(computed(theirs), task, stem), **TOLERANCE
        )


@pytest.mark.parametrize("kind", ["masked", "vectors"])
def test_peft_reads_the_adapter_of_an_encoder(kind: str, tmp_path: Path) -> None:
    shape: dict[str, Any] = {"vocab_size": 31, "max_seq_len": 12, "dim": 15, "n_layers": 2, "n_heads": 3}
    model = build(BertConfig(**shape, pooler=kind == "vectors", masked_lm_head=kind == "masked")).eval()
    save_model(model, tmp_path / "base")
    bare = build(replace(model.config, pooler=False)).eval()
    start_from(bare, tmp_path / "base")
    add_adapter(bare, some_settings(random.Random()), matching_layers(bare, DEFAULT_TARGETS))
    shake(bare)
    save_adapter(bare, tmp_path / "adapter", base=tmp_path / "base")
    auto = transformers.AutoModelForMaskedLM if kind == "masked" else transformers.AutoModel
    theirs = peft.PeftModel.from_pretrained(
        auto.from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    ).eval()
    tokens = torch.randint(0, 31, (2, 9))
    with torch.no_grad():
        made, out = bare(tokens).last_hidden_state, theirs(input_ids=tokens)
        if kind == "masked":
            made = bare.lm_head(bare.mlm_hidden(made))
        expected = out.logits if kind == "masked" else out.last_hidden_state
        torch.testing.assert_close(made, expected, **TOLERANCE)
        read, _ = load_adapted_model(tmp_path / "base", tmp_path / "adapter")
        torch.testing.assert_close(read(tokens).last_hidden_state, bare(tokens).last_hidden_state)
    assert not any("pooler" in name for name, _ in theirs.named_modules() if "lora" in name)


def test_peft_reads_the_adapter_of_a_translation_model(tmp_path: Path) -> None:
    config = TransformerConfig(vocab_size=31, dim=18, n_layers=1, n_heads=3, hidden_dim=7, max_seq_len=14,
                               scale_embeddings=True)  # fmt: skip
    model = build(config).eval()
    save_model(model, tmp_path / "base")
    add_adapter(model, some_settings(random.Random()), matching_layers(model, DEFAULT_TARGETS))
    shake(model)
    save_adapter(model, tmp_path / "adapter", base=tmp_path / "base")
    base = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    source, prefix = torch.randint(0, 31, (2, 9)), torch.randint(0, 31, (2, 5))
    with torch.no_grad():
        expected = theirs(input_ids=source, decoder_input_ids=prefix).logits
        torch.testing.assert_close(model(source, prefix), expected, **TOLERANCE)
    assert load_model(tmp_path / "base").config == config
