"""The two baselines of a comparison: an n-gram model of bytes, and lzma."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from wordloom.data import Document
from wordloom.data.rows.minimal_pairs import MinimalPair, minimal_pairs
from wordloom.data.sets.fetch import files_of
from wordloom.errors import CheckpointError, DataError
from wordloom.evaluate.baselines import KneserNey
from wordloom.run.compare.entries import NGRAM
from wordloom.run.compare.folder import keep, kept
from wordloom.run.compare.held_out import Floats, HeldOut, byte_stream
from wordloom.run.compare.result import Row

LZMA = "lzma"
_ORDER = 5
_TITLES = {NGRAM: f"order-{_ORDER} Kneser-Ney n-gram of bytes", LZMA: "lzma"}
# Bytes of memory for each byte of training text, and the most that a baseline may take.
_MEMORY, _MOST_MEMORY = {NGRAM: 80, LZMA: 13}, 16 << 30
_SAMPLE_BYTES = 400
_ROUNDING = 1e-6  # bits by which equal sentences can differ


def baseline(
    name: str,
    train: Callable[[], Iterable[Document]],
    held_out: HeldOut,
    prompt: str,
    folder: Path,
) -> tuple[Row, Floats | None] | str:
    """Return the row of a baseline and its bits for each unit, or why it is left out.

    Both baselines read the whole training text, whatever the budget.  What is measured stays in ``folder``.
    """
    file = folder / f"{name}.json"
    if not file.exists():
        try:
            keep(file, _measured(name, byte_stream(train()), held_out, prompt))
        except DataError as error:
            return f"{_TITLES[name]} is left out: {error}"
    found = kept(file)
    if name == LZMA:
        return Row(name=LZMA, title=f"{_TITLES[LZMA]}, given the training text", score=found["score"]), None
    bits = np.array(found["bits"])
    if len(bits) != len(held_out.sizes):
        raise CheckpointError(
            f"{file} is of another held-out text; remove it, and the same command makes it again"
        )
    row = Row(
        name=NGRAM,
        title=_TITLES[NGRAM],
        score=found["score"],
        interval=held_out.statistics(bits).interval(),
        sample=found["sample"],
    )
    return row, bits


def ngram_task(name: str, train: Callable[[], Iterable[Document]]) -> float | None:
    """Return the accuracy of the n-gram model on a set of minimal pairs; None for other tasks."""
    if files_of(name)[0].task != "minimal pairs":
        return None
    ngram = KneserNey(order=_ORDER).fit(byte_stream(train()))
    return ngram_acceptability(ngram, list(minimal_pairs([name])))


def ngram_acceptability(ngram: KneserNey, pairs: Sequence[MinimalPair]) -> float:
    """Return the share of pairs whose acceptable sentence is likelier, the mean over paradigms.

    A sentence has zero bytes before it, as at the beginning of a document, so many that the model does not
    see the sentence before.
    """
    sentences = [text.encode() for pair in pairs for text in (pair.good, pair.bad)]
    before = b"\0" * max(1, ngram.order - 1)
    bits = ngram.bits(before + before.join(sentences))
    sums = np.concatenate([[0.0], np.cumsum(bits)])
    sizes = np.array([len(sentence) for sentence in sentences])
    ends = np.cumsum(sizes + len(before))
    totals = (sums[ends] - sums[ends - sizes]).reshape(-1, 2)  # [pairs, good and bad]
    right: dict[str, list[bool]] = {}
    for pair, (good, bad) in zip(pairs, totals, strict=True):
        right.setdefault(pair.paradigm, []).append(bool(bad - good > _ROUNDING))
    return float(np.mean([np.mean(each) for each in right.values()]))


def _measured(name: str, train: bytes, held_out: HeldOut, prompt: str) -> dict[str, Any]:
    """Return what is kept of a baseline; raises DataError if the text does not suit it or the memory."""
    needed, free = _MEMORY[name] * len(train), psutil.virtual_memory().available
    if needed > min(free, _MOST_MEMORY):
        raise DataError(
            f"{len(train):,} bytes of training text would take about {needed / 2**30:.0f} GiB of memory, and "
            f"{free / 2**30:.0f} GiB are free"
        )
    if name == LZMA:
        return {"score": held_out.lzma_bits_per_byte(train)}
    ngram = KneserNey(order=_ORDER).fit(train)
    bits = held_out.ngram_bits(ngram)
    return {
        "score": float(bits.sum() / held_out.n_bytes),
        "bits": bits.tolist(),
        "sample": ngram_sample(ngram, prompt),
    }


def ngram_sample(ngram: KneserNey, prompt: str) -> str:
    """Return the continuation of ``prompt`` that the n-gram model writes, drawn with seed 1."""
    rng = np.random.default_rng(1)
    written = bytearray(prompt.encode())
    start = len(written)
    while len(written) < start + _SAMPLE_BYTES:
        p = ngram.distribution(bytes(written))
        byte = int(rng.choice(256, p=p / p.sum()))
        if byte == 0:  # the end of a document
            break
        written.append(byte)
    return bytes(written[start:]).decode("utf-8", "replace")
