"""The right choice among several: a multiple-choice head, trained on questions with answers (Devlin et al.
2018, section 4.4; of a causal model, Radford et al. 2018, section 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from wordloom.data.batches.causal import IGNORE, to_device
from wordloom.data.batches.choices import ChoiceBatches, choice_tokens
from wordloom.data.batches.framed_rows import MarkedRows
from wordloom.data.rows.choices import ChoiceRow, choice_rows
from wordloom.data.rows.digest import RowDigest
from wordloom.errors import EvaluationError, NonFiniteError
from wordloom.evaluate import RatioStatistics, Score, Scores, signature
from wordloom.evaluate.score import MIN_UNITS, share_interval
from wordloom.nn.evaluating import evaluating
from wordloom.recipe import Recipe
from wordloom.recipe.data import RowLengths
from wordloom.run.models.headed_model import HeadedModel
from wordloom.run.models.text_readers import MarkedReader
from wordloom.run.progress import TrainingProgress
from wordloom.run.tasks.heads.fine_tuning import given_tokenizer, head_config, head_parts
from wordloom.run.tasks.labelled import account_of, divided
from wordloom.run.tasks.task import Task
from wordloom.weights import save_model

__all__ = ["Choice", "ChoiceLedger", "Chooser", "choice_parts", "choosing_task"]


class Choice(NamedTuple):
    """The likeliest choice of a question, by its number from 0, and the probabilities of all; ``cut``: a
    choice was longer with the question than a row, and was cut as asked."""

    number: int
    probability: float
    probabilities: tuple[float, ...]
    cut: bool = False


@dataclass(frozen=True, kw_only=True)
class ChoiceLedger:
    """The account of questions with choices.

    Attributes:
        questions, choices, tokens: read; of each choice the tokens of its row, marks included.
        by_choices: questions by their number of choices.
        unknown: tokens that stand for what the tokenizer lacks.
        cut: choices that were longer with their question than allowed and cut, where that was asked for.
        cut_questions: the numbers of their questions.
        text: a hash of questions, choices and answers as they stand, whatever reads them.
    """

    questions: int
    choices: int
    tokens: int
    by_choices: dict[str, int]
    unknown: int
    cut: int
    cut_questions: tuple[int, ...] = ()
    text: str = ""

    def lines(self) -> list[str]:
        """The ledger as text, one fact per line."""
        kinds = ", ".join(f"{questions:,} of {k}" for k, questions in self.by_choices.items())
        lines = [
            f"{self.questions:,} questions, {self.choices:,} choices, {self.tokens:,} tokens; "
            f"choices: {kinds}"
        ]
        if self.unknown:
            lines.append(f"unknown: {self.unknown:,} tokens stand for what the tokenizer lacks")
        if self.cut:
            lines.append(f"cut: {self.cut:,} choices with their question are longer than a row and were cut")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """The ledger as plain JSON values."""
        return asdict(self)


@dataclass(kw_only=True)
class Chooser(HeadedModel):
    """A multiple-choice model and its tokenizer, as :func:`wordloom.load` gives them.

    Attributes:
        max_seq_len: tokens of a question with one choice at most, marks included; None: what the model reads.
        too_long: what a longer one is.
    """

    max_seq_len: int | None = None
    too_long: Literal["error", "cut"] = "error"

    @property
    def reader(self) -> MarkedReader:
        """What reads texts for the model."""
        return MarkedReader(self.text_tokenizer, self.config, self.max_seq_len, self.too_long)

    def choose(self, rows: Iterable[ChoiceRow]) -> list[Choice]:
        """The likeliest choice of each question; of equals the first."""
        given = list(rows)
        if not given:
            return []
        batches, ledger = _batches(self.reader, given)
        logits, _ = _logits(self.model, batches)
        found = []
        for number, (row, its) in enumerate(zip(given, logits, strict=True)):
            its = its[: len(row.choices)]
            shares = np.exp(its - its.max())
            shares /= shares.sum()
            best = int(shares.argmax())
            found.append(
                Choice(best, float(shares[best]), tuple(shares.tolist()), number in ledger.cut_questions)
            )
        return found

    def ask(self, question: str, choices: Sequence[str]) -> Choice:
        """The likeliest of ``choices`` to follow one question."""
        return self.choose([ChoiceRow(question, "", tuple(choices), None, "the question", 1)])[0]

    def evaluate(self, rows: Sequence[ChoiceRow]) -> Scores:
        """``accuracy`` (Wilson's interval) and ``loss`` (nats per question) of questions with answers; raises
        EvaluationError where none has one."""
        if all(row.answer is None for row in rows):
            raise EvaluationError(
                "no question of these has an answer to score by; give at least one that has"
            )
        batches, ledger = _batches(self.reader, rows)
        settings = {
            "rows": batches.fingerprint[:8],
            **self.reader.signature,
            "dtype": self.dtype,
        }
        nats, right = _judged(self.model, batches)
        n, hits = len(nats), int(right.sum())
        loss = RatioStatistics.of(nats, np.ones(n))
        by = {"accuracy": f"{n}-rows-wilson", "loss": f"{n}-rows" if n >= MIN_UNITS else "no"}
        signed = {name: signature(name, **settings, ci=ci) for name, ci in by.items()}
        scores = (
            Score("accuracy", hits / n, share_interval(hits, n), signed["accuracy"]),
            Score("loss", loss.ratio, loss.interval(), signed["loss"]),
        )
        counts = {"rows": n, "right": hits, "nats": float(nats.sum()), "tokens": ledger.tokens}
        by_chance = float(np.mean([1 / len(row.choices) for row in rows if row.answer is not None]))
        cut = (line for line in ledger.lines() if line.startswith("cut:"))
        return Scores(scores, counts, (f"by chance: {by_chance:.4f} of the questions", *cut))


def _batches(
    reader: MarkedReader, rows: Sequence[ChoiceRow], *, seed: int | None = None
) -> tuple[ChoiceBatches, ChoiceLedger]:
    """Questions permuted by ``seed`` or (None) for one pass, and their account."""
    read: MarkedRows = choice_tokens(
        reader.tokenizer,
        rows,
        reader.frame,
        longest=reader.most_tokens,
        too_long=reader.too_long,
        **reader.told,
    )
    batches = ChoiceBatches(
        rows,
        read,
        segments=reader.segments,
        pad_id=reader.frame.pad,
        seed=seed or 0,
        order="length" if seed is None else "permutation",
    )
    of = np.repeat(np.arange(len(rows)), [len(row.choices) for row in rows])  # of every choice its question
    kinds, often = np.unique([len(row.choices) for row in rows], return_counts=True)
    ledger = ChoiceLedger(
        questions=len(rows),
        choices=len(read.lengths),
        tokens=len(read.ids),
        by_choices={str(k): int(n) for k, n in zip(kinds, often, strict=True)},
        unknown=read.unknown,
        cut=read.cut,
        cut_questions=tuple(np.unique(of[list(read.cut_rows)]).tolist()),
        text=str(RowDigest((row.pairs, row.answer) for row in rows)),
    )
    return batches, ledger


def _logits(model: Any, batches: ChoiceBatches) -> tuple[list[NDArray[np.float64]], NDArray[np.int64]]:
    """Of every question the logits [K or more, -inf behind its own], and the number of the right one; raises
    NonFiniteError for a choice without a number."""
    device = next(model.parameters()).device
    found: list[NDArray[np.float64]] = [np.empty(0)] * batches.samples_per_epoch
    answers = np.full(batches.samples_per_epoch, IGNORE, np.int64)
    with evaluating(model):
        for start, count in batches.passes():
            rows = batches.rows(start, count)
            batch = batches.batch(start, count)
            logits = model(*to_device(batch, device).inputs).cpu().double()  # [B, K]
            there = batch.inputs[2].any(-1)  # type: ignore[union-attr]
            if not torch.isfinite(logits[there]).all():
                raise NonFiniteError("the model gives no finite probability; its weights are damaged")
            answers[rows] = batch.targets.numpy()
            for row, its in zip(rows.tolist(), logits.numpy(), strict=True):
                found[row] = its
    return found, answers


def _judged(model: Any, batches: ChoiceBatches) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Of each of N questions with an answer its nats, and whether it was found."""
    logits, answers = _logits(model, batches)
    known = [(its, right) for its, right in zip(logits, answers.tolist(), strict=True) if right != IGNORE]
    nats = np.array([np.logaddexp.reduce(its) - its[right] for its, right in known])
    return nats, np.array([int(its.argmax()) == right for its, right in known])


# -- training --------------------------------------------------------------------------------------------


def choosing_task(recipe: Recipe, given: Path | None, progress: TrainingProgress) -> Task:
    """The right choices of the recipe's questions; ``given`` is a checkpoint to begin with."""
    s = recipe.train
    questions = choice_parts(recipe)
    texts = (text for row in questions["train"] for pair in row.pairs for text in pair)
    tokenizer = given_tokenizer(recipe, given, texts, progress, "questions and their choices")
    config = head_config(recipe, tokenizer, given, task="multiple_choice")
    reader = MarkedReader(tokenizer, config, s.seq_len, recipe.data_as(RowLengths).too_long)
    parts = {
        part: _batches(reader, rows, seed=recipe.seed if part == "train" else None)
        for part, rows in questions.items()
    }
    for part, (_, ledger) in parts.items():
        progress.say(f"{part}: {line}" for line in ledger.lines())
    batches, account = parts["train"]
    rest = account_of(parts, _evaluator, signature=reader.signature)

    def save(model: Any, folder: Path, overwrite: bool) -> None:
        save_model(model, folder, tokenizer=tokenizer, overwrite=overwrite)

    return Task(
        settings=s,
        batches=batches,
        fingerprints={"data": rest.fingerprint, "tokenizer": tokenizer.fingerprint},
        ledger=rest.ledger,
        evaluate=rest.evaluate,
        scored=rest.scored,
        save=save,
        **head_parts(recipe, config, given, progress, tokens=account.tokens / account.questions),
    )


def choice_parts(recipe: Recipe) -> dict[str, list[ChoiceRow]]:
    """The questions to learn from, "train", and those held out, "validation", if any."""
    errors = recipe.data.row_errors

    def read(sources: Any) -> list[ChoiceRow]:
        return list(choice_rows(sources, answered=True, encoding_errors=errors))

    return divided(recipe, read, "questions")


def _evaluator(validation: ChoiceBatches) -> Callable[[Any], dict[str, float]]:
    """Loss and accuracy over the validation questions."""

    def evaluate(model: Any) -> dict[str, float]:
        nats, right = _judged(model, validation)
        return {"loss": float(nats.mean()), "accuracy": float(right.mean())}

    return evaluate
