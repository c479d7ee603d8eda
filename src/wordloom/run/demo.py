"""The demonstration: train, evaluate and generate with text that comes with Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wordloom.data.sets.python_docs import embedded_documents
from wordloom.evaluate import perplexity
from wordloom.evaluate.baselines import KneserNey
from wordloom.progress import TrainingProgress
from wordloom.run.compare.held_out import HeldOut, byte_stream
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
    documents = list(embedded_documents("validation"))
    score = perplexity(lm.model, lm.text_tokenizer, documents)["bits_per_byte"]
    assert score.value is not None, "its tokenizer is lossless"
    yield Contender("this model", score.value, score.signature)
    held_out = HeldOut(documents, lm.text_tokenizer, "refuse")
    train_bytes = byte_stream(embedded_documents("train"))
    bits = held_out.ngram_bits(KneserNey(order=5).fit(train_bytes))
    yield Contender("order-5 Kneser-Ney byte n-gram", float(bits.sum() / held_out.n_bytes))
    yield Contender("lzma, given the training bytes", held_out.lzma_bits_per_byte(train_bytes))
