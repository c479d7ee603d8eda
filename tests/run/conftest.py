"""A small corpus on disk and a recipe that trains on it in a second or two."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import pytest

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "ran",
    "on",
    "under",
    "mat",
    "tree",
    "and",
    "then",
    "it",
    "was",
    "seen",
    "by",
    "two",
    "old",
    "men",
    "who",
    "spoke",
    "of",
    "rain",
]


def write_corpus(folder: Path) -> Path:
    """Forty documents of made-up sentences, one JSON object a line."""
    draw = random.Random(7)
    path = folder / "corpus.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for _ in range(40):
            text = " ".join(draw.choice(WORDS) for _ in range(60)).capitalize() + "."
            file.write(json.dumps({"text": text}) + "\n")
    return path


RECIPE = """
description = "tests"
seed = 5
[data]
train = "{corpus}"
split = "hash"
validation_fraction = 0.2
document_mask = {document_mask}
[tokenizer]
kind = "bpe"
vocab_size = 300
[model]
family = "{family}"
dim = 16
n_layers = 2
n_heads = 2
dropout = 0.1
[train]
steps = 24
seq_len = 16
batch_size = 6
micro_batch_size = 4
learning_rate = 1e-2
warmup_steps = 3
ema = 0.9
device = "cpu"
precision = "fp32"
log_every = 3
evaluate_every = 8
sample_every = 12
sample_prompt = "The cat"
sample_tokens = 8
save_every = 5
"""


def write_recipe(folder: Path, corpus: Path, family: str = "llama", document_mask: bool = False) -> Path:
    path = folder / f"{family}.toml"
    text = RECIPE.format(corpus=corpus, family=family, document_mask=str(document_mask).lower())
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path)


@pytest.fixture
def recipe(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that writes the recipe of a family and returns its path."""
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))
    return partial(write_recipe, tmp_path, corpus)
