"""Measure a trained entry: bits, bits by position, speed of decoding, a sample; and other tasks."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wordloom.data import Document
from wordloom.errors import CheckpointError, EvaluationError
from wordloom.evaluate.positions import bits_by_position
from wordloom.generate import Sampling
from wordloom.generate.text import stream_ids
from wordloom.progress import TerminalReporter
from wordloom.run.checkpoint.kinds import kind_of
from wordloom.run.checkpoint.loaders import Checkpoint, Request, read_checkpoint
from wordloom.run.compare.folder import keep, kept
from wordloom.run.compare.held_out import HeldOut
from wordloom.run.compare.runs import Run
from wordloom.run.models.language_model import LanguageModel
from wordloom.run.models.text_encoder import TextEncoder
from wordloom.text import Specials

_DECIMALS = 3  # of the bits of a unit, of which there are thousands in a file
_DECODED = 128  # tokens
_ROUNDS = 5
_SAMPLE_TOKENS = 160
_PROMPT = 40  # characters
_PSEUDO_TOKENS = 4096  # of the held-out text, each of which costs a pass of an encoder


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measurements of one trained run.

    Attributes:
        bits: of each unit of the held-out text; empty for an encoder.
        score: the bits per byte; the pseudo-perplexity of an encoder.
        seconds: of training.
        memory: the peak memory of a training step, in bytes.
        positions: groups of positions and their bits per byte, of the first seed.
        decoded_per_second: tokens of greedy decoding at batch 1, of the first seed.
        sample: a text that the model writes, of the first seed.
    """

    bits: Sequence[float]
    score: float
    seconds: float
    memory: int | None
    positions: Sequence[tuple[int, int, float]] = ()
    decoded_per_second: float | None = None
    sample: str = ""


def measured(run: Run, held_out: HeldOut, prompt: str, folder: Path, *, first: bool) -> Measured:
    """Return the measurements of ``run``; they are kept in a file in ``folder``, and made once.

    Positions, speed and sample are measured for the ``first`` seed.

    Raises CheckpointError for a damaged file, and for a run that is not measured and whose weights have been
    removed.
    """
    file = folder / f"{run.name}.json"
    if file.exists():
        try:
            return Measured(**kept(file))
        except TypeError as error:
            raise CheckpointError(
                f"cannot read {file}: {error}; remove it, and the same command makes it again"
            ) from None
    file_of_memory = run.folder / "memory.json"  # missing if the process was killed right after the training
    memory = kept(file_of_memory)["bytes"] if file_of_memory.exists() else None
    common: dict[str, Any] = {"seconds": run.seconds(), "memory": memory}
    checkpoint = _trained(run.folder)
    model = kind_of(checkpoint).load(checkpoint, run.recipe.train.device, "auto")
    if isinstance(model, TextEncoder):
        score = _pseudo_perplexity(model, held_out)
        found = Measured(bits=[], score=score, **common)
    else:
        found = _measured_causal(model, run, held_out, prompt, first=first, common=common)
    keep(file, vars(found))
    return found


def _trained(folder: Path) -> Checkpoint:
    """Return the checkpoint in ``folder``; raises CheckpointError if its weights have been removed."""
    if not any(folder.glob("model*.safetensors")):
        raise CheckpointError(
            f"{folder} has no weights to measure; remove this folder, and the same command trains it again"
        )
    return read_checkpoint(folder)


def _measured_causal(
    lm: LanguageModel, run: Run, held_out: HeldOut, prompt: str, *, first: bool, common: dict[str, Any]
) -> Measured:
    bits = held_out.model_bits(lm.model)
    if first:
        positions = bits_by_position(
            lm.model,
            lm.text_tokenizer,
            held_out.documents,
            window=run.recipe.train.seq_len,
            specials=held_out.specials,
        )
        common |= {
            "positions": [(group.first, group.stop, group.bits_per_byte) for group in positions],
            "decoded_per_second": decoded_per_second(lm, prompt, held_out.specials),
            "sample": sample(lm, prompt, held_out.specials),
        }
    return Measured(bits=bits.round(_DECIMALS).tolist(), score=float(bits.sum() / held_out.n_bytes), **common)


def decoded_per_second(lm: LanguageModel, prompt: str, specials: Specials) -> float:
    """Return the tokens a second of greedy decoding at batch 1, the median of a few rounds."""
    limit = getattr(lm.model.config, "max_seq_len", None) or 2 * _DECODED
    new = min(_DECODED, max(1, limit // 2))
    ids = lm.text_tokenizer.prompt_ids(prompt, specials=specials)[: limit - new] or [0]
    sampling = Sampling(max_new_tokens=new, temperature=0.0)
    rates = []
    for _ in range(1 + _ROUNDS):  # programs are compiled in the first one
        began = time.perf_counter()
        count = sum(1 for _ in stream_ids(lm.model, lm.tokenizer, ids, sampling, eos_ids=()))
        rates.append(count / (time.perf_counter() - began))
    return float(np.median(rates[1:]))


def sample(lm: LanguageModel, prompt: str, specials: Specials) -> str:
    """Return the continuation of ``prompt`` with seed 1 and the default temperature."""
    return str(lm.generate(prompt, specials=specials, max_new_tokens=_SAMPLE_TOKENS, seed=1, past="slide"))


def task_score(folder: Path, name: str) -> float | None:
    """Return the accuracy of the model in ``folder`` on the set ``name``; None where it has no such task.

    Raises CheckpointError if its weights have been removed.
    """
    checkpoint = _trained(folder)
    kind = kind_of(checkpoint)
    task = kind.task_of(checkpoint, [name])
    if task not in ("minimal_pairs", "lambada", "choices"):
        return None
    evaluation = kind.evaluations[task]
    model = kind.load(checkpoint, "auto", "auto")
    scores = evaluation.run(Request(checkpoint, [name], TerminalReporter(), unwritten=[]), model)
    return scores["accuracy"].value


def _pseudo_perplexity(encoder: TextEncoder, held_out: HeldOut) -> float:
    """Return the pseudo-perplexity of the first tokens of the held-out text."""
    texts, left = list[str | bytes](), _PSEUDO_TOKENS
    for document in held_out.documents:
        ids = held_out.tokenizer.encode_ids(document.text, specials=held_out.specials)
        if len(ids) <= left:
            texts.append(document.text)
        elif isinstance(document.text, bytes):
            texts.append(held_out.tokenizer.decode_bytes(ids[:left]))
        else:  # without the bytes of a character that is cut
            texts.append(held_out.tokenizer.decode(ids[:left]).rstrip("\ufffd"))
        left -= len(ids)
        if left <= 0:
            break
    score = encoder.pseudo_perplexity(texts, specials=held_out.specials)["pseudo_perplexity"].value
    if score is None:
        raise EvaluationError("the pseudo-perplexity of the encoder is undefined")
    return score


def prompt_of(documents: Sequence[Document]) -> str:
    """Return the beginning of the first document, from its first word with letters: about 40 characters."""
    text = documents[0].text
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    words = [word for word in re.finditer(r"\S+", text) if any(map(str.isalpha, word[0]))]
    if not words:
        return text[:_PROMPT]
    begin = words[0].start()
    last = next((word for word in words if word.end() - begin > _PROMPT), words[-1])
    return text[begin : min(last.end(), begin + 2 * _PROMPT)]
