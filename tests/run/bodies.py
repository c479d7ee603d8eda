"""Tiny pretrained bodies for heads to go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.models import BertConfig, GPT2Config, RobertaConfig, build
from wordloom.run import train
from wordloom.text import Tokenizer
from wordloom.weights import load_model, save_model

SHAPE: dict[str, Any] = {"dim": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 16}


def tokenizer_of(texts: Sequence[str], kind: str = "bert") -> Tokenizer:
    if kind == "gpt2":
        return Tokenizer.train(texts, kind="bpe", vocab_size=300)
    if kind == "roberta":
        marks = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        return Tokenizer.train(texts, kind="bpe", vocab_size=300, special_tokens=marks)
    return Tokenizer.train(texts, kind="wordpiece", vocab_size=90)


def write_body(folder: Path, texts: Sequence[str], kind: str = "bert", **shape: Any) -> None:
    """A model of ``kind`` without a head, and a tokenizer learnt from ``texts``."""
    tokenizer = tokenizer_of(texts, kind)
    size = {"vocab_size": tokenizer.vocab_size, **SHAPE, **shape}
    config = {
        "bert": lambda: BertConfig(**size, pooler=False, masked_lm_head=True),
        "roberta": lambda: RobertaConfig(**size, pooler=False, masked_lm_head=True),
        "gpt2": lambda: GPT2Config(**size),
    }[kind]()
    save_model(build(config, generator=torch.Generator().manual_seed(1)), folder, tokenizer=tokenizer)


def loaded(kind: Any, folder: Path) -> Any:
    """The ``kind`` of object that :func:`wordloom.load` makes of ``folder``."""
    model: Any = load_model(folder)
    return kind.of(folder, model.eval(), Tokenizer.from_pretrained(folder))


def scored_at_the_command(run: Path, *arguments: object) -> dict[str, float]:
    """What ``wordloom evaluate`` says of the model in ``run``, by name."""
    done = CliRunner().invoke(app, ["evaluate", str(run), *map(str, arguments), "--json"])
    assert done.exit_code == 0, done.exception
    return {score["name"]: score["value"] for score in json.loads(done.stdout)["scores"]}


def ends_alike_when_cut_short(recipe: str, place: Path, whole: Path) -> bool:
    """Whether a run like ``whole`` (6 steps, saved every 3), cut after the third, ends with its very bits."""
    cut = place / "cut"
    train(recipe, ["train.keep_last=9"], out=cut, start_from=place / "body")
    for name in ("config.json", "model.safetensors"):
        (cut / name).unlink()
    shutil.rmtree(cut / "checkpoints/step-6")
    train(recipe, ["train.keep_last=9"], out=cut, resume=True, start_from=place / "body")
    one, other = (load_file(folder / "model.safetensors") for folder in (whole, cut))
    return all(torch.equal(one[name], other[name]) for name in one)
