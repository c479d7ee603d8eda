"""Tiny translators of numbers, with weights that know nothing, and pairs to ask them."""

from __future__ import annotations

from pathlib import Path

import torch

from wordloom.models import build, config_from
from wordloom.text import Tokenizer
from wordloom.weights import save_model

GERMAN = ["null", "eins", "zwei", "drei", "vier", "Fünf", "sechs"]
ENGLISH = ["zero", "one", "two", "three", "four", "Five"]  # fewer: the vocabularies differ in size
PAIRS = [
    (
        " ".join(GERMAN[(i + j) % 7] for j in range(1 + i % 9)),
        " ".join(ENGLISH[(i + j) % 6] for j in range(1 + i % 9)),
    )
    for i in range(30)
]
SHAPES = {
    "transformer": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 16, "max_seq_len": 16},
    "seq2seq": {"dim": 8, "hidden_dim": 8, "attention": "general", "cell": "gru"},
}
RECIPE = """
name = "numbers"
[data]
train = "{place}/train.tsv"
validation = "{place}/val.tsv"
source_column = "de"
target_column = "en"
[tokenizer]
kind = "word"
separate = {separate}
[model]
family = "{family}"
[train]
objective = "translation"
steps = 1
batch_size = 1
"""


def tokenizers() -> tuple[Tokenizer, Tokenizer]:
    """Of German and of English numbers, by words."""
    return Tokenizer.train(GERMAN, kind="word"), Tokenizer.train(ENGLISH, kind="word")


def write_pairs(place: Path) -> None:
    """A table with a header, and the same pairs in two files."""
    rows = "".join(f"{source}\t{target}\n" for source, target in PAIRS)
    (place / "val.tsv").write_text(f"de\ten\n{rows}")
    (place / "train.tsv").write_text(f"de\ten\n{rows}eins\tone\n")
    (place / "val.de").write_text("".join(f"{source}\n" for source, _ in PAIRS))
    (place / "val.en").write_text("".join(f"{target}\n" for _, target in PAIRS))


def write_translator(
    folder: Path, family: str = "transformer", *, separate: bool = True, seed: int = 0
) -> None:
    """A folder as a run leaves it; ``separate``: each side has a tokenizer of its own."""
    german, english = tokenizers()
    joint = Tokenizer.train([*GERMAN, *ENGLISH], kind="word")
    sizes = {"vocab_size": joint.vocab_size}
    if separate:
        sizes = {"vocab_size": english.vocab_size, "source_vocab_size": german.vocab_size}
    shared = {"share_embeddings": False} if separate and family == "transformer" else {}
    config = config_from(family, **SHAPES[family], **sizes, **shared)
    model = build(config, generator=torch.Generator().manual_seed(seed))
    save_model(
        model,
        folder,
        tokenizer=english if separate else joint,
        source_tokenizer=german if separate else None,
    )
