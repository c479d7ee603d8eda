"""The demonstration: train, evaluate and generate with text that comes with Python."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wordloom.data.sets.python_docs import embedded_documents
from wordloom.evaluate import perplexity
from wordloom.evaluate.references import KneserNey, join_documents, lzma_bits_per_byte
from wordloom.progress import TrainingProgress
from wordloom.run.models.language_model import LanguageModel
from wordloom.run.train import TrainResult, train

DEMO_PROMPT = "The function returns"


class Contender(NamedTuple):
    """One line of the comparison; ``signature`` is that of the model's score."""

    name: str
    bits_per_byte: float
    signature: str = ""


def train_demo(minutes: float, *, force: bool, progress: TrainingProgress) -> tuple[TrainResult | None, Path]:
    """Train ``quickstart`` for ``minutes``; skip a finished run, and resume a stopped one."""
    folder = Path("runs") / f"demo-{minutes:g}min"
    if (folder / "model.safetensors").exists() and not force:
        return None, folder
    resume = (folder / "recipe.toml").exists() and not force
    overrides = [f"train.minutes={minutes:g}"]
    return train("quickstart", overrides, out=folder, resume=resume, force=force, progress=progress), folder


def compare(lm: LanguageModel) -> Iterator[Contender]:
    """Yield the results of the model and of two baselines on the held-out documents."""
    held_out = list(embedded_documents("validation"))
    scores = perplexity(lm.model, lm.text_tokenizer, held_out)
    counts = scores.counts
    # as for the baselines, the end of a document is a symbol to predict and a byte to divide by
    bits = counts["nats"] / math.log(2) / (counts["bytes"] + counts["documents"])
    yield Contender("this model", bits, scores["loss"].signature)
    train_bytes = join_documents(str(document.text) for document in embedded_documents("train"))
    held_out_bytes = join_documents(str(document.text) for document in held_out)
    bits = KneserNey(order=5).fit(train_bytes).bits_per_byte(held_out_bytes)
    yield Contender("order-5 Kneser-Ney byte n-gram", bits)
    yield Contender("lzma, given the training bytes", lzma_bits_per_byte(train_bytes, held_out_bytes))
