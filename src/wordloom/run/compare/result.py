"""The result of a comparison: a row for each entry, with differences that are paired by text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from wordloom.run.compare.budget import Budget
from wordloom.run.compare.entries import Entry
from wordloom.run.compare.held_out import Floats, HeldOut
from wordloom.run.compare.measuring import Measured
from wordloom.run.compare.runs import Run

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Point:
    """The score of an entry after a share of the budget; see :class:`Row`."""

    share: float
    tokens: int
    flops: float
    minutes: float
    score: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One entry of the table.

    Attributes:
        name, title: the name in files and in tables.
        score: bits per byte, the mean over the seeds; the pseudo-perplexity of an encoder.
        interval: its 95 % interval over units of the text.
        seeds: the score of each seed that did not diverge.
        seed_numbers: these seeds.
        difference: the bits per byte above those of the best trained model, negative for a better baseline.
        difference_interval: the 95 % interval of the difference, paired by unit.
        parameters, weights: with and without embeddings.
        rate: the learning rate that was chosen.
        trials: each learning rate, and its validation loss at a tenth of the budget; None if it diverged.
        tokens, flops, minutes: of one training run; minutes are the mean over the seeds.
        memory: the peak memory of a training step in bytes: weights, gradients, optimizer and activations;
            measured on CUDA, planned elsewhere.
        decoded_per_second: tokens of greedy decoding at batch 1.
        points: the scores after smaller budgets, and after the whole.
        positions: groups of positions, first and last + 1, with their bits per byte.
        tasks: accuracies of the first seed on other tasks; None where the model cannot be scored.
        sample: the continuation of the prompt.
        folder: the folder of the first seed's model.
    """

    name: str
    title: str
    encodes: bool = False
    score: float
    interval: Interval | None = None
    seeds: Sequence[float] = ()
    seed_numbers: Sequence[int] = ()
    difference: float | None = None
    difference_interval: Interval | None = None
    parameters: int | None = None
    weights: int | None = None
    rate: float | None = None
    trials: Sequence[tuple[float, float | None]] = ()
    tokens: int | None = None
    flops: float | None = None
    minutes: float | None = None
    memory: int | None = None
    decoded_per_second: float | None = None
    points: Sequence[Point] = ()
    positions: Sequence[tuple[int, int, float]] = ()
    tasks: dict[str, float | None] = field(default_factory=dict)
    sample: str = ""
    folder: str | None = None

    @property
    def edge(self) -> str | None:
        """ "lowest" or "highest" if the chosen learning rate is at the edge of those that were tried."""
        rates = [rate for rate, _ in self.trials]
        if len(rates) < 3 or self.rate is None:
            return None
        return {min(rates): "lowest", max(rates): "highest"}.get(self.rate)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """How many bits per byte ``second`` needs above ``first``, with its 95 % interval, paired by unit."""

    first: str
    second: str
    difference: float
    interval: Interval

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval[0] > 0 or self.interval[1] < 0


@dataclass(frozen=True, kw_only=True)
class Result:
    """A comparison; ``rows`` are in the order of their scores, encoders behind.

    ``pairs`` holds the difference of each two rows with bits for every unit, the better one first.
    ``runs`` and ``flops`` count all training runs, also those that chose learning rates.
    """

    folder: Path
    budget: Budget
    text: str
    prompt: str
    unit: str
    units: int
    held_out_bytes: int
    tokenizer: str
    seeds: int
    runs: int
    flops: float
    rows: Sequence[Row]
    pairs: Sequence[Pair] = ()
    signature: str
    notes: Sequence[str] = ()
    stopped: bool = False

    @property
    def causal(self) -> list[Row]:
        """The rows that have bits per byte."""
        return [row for row in self.rows if not row.encodes]

    @property
    def encoders(self) -> list[Row]:
        """The rows of encoders, which have a pseudo-perplexity."""
        return [row for row in self.rows if row.encodes]

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks that a row has a score of."""
        return list(dict.fromkeys(name for row in self.rows for name in row.tasks))

    def as_dict(self) -> dict[str, Any]:
        values = asdict(self)
        del values["folder"]
        return {**values, "budget": {"kind": self.budget.kind, "amount": self.budget.amount}}


def entry_row(
    entry: Entry,
    finals: Sequence[tuple[Run, Measured]],
    points: Sequence[tuple[Run, Measured]],
    trials: Sequence[tuple[float, float | None]],
    held_out: HeldOut,
) -> tuple[Row, Floats]:
    """Return the row of ``entry`` and its bits for each unit, the means over the seeds."""
    run, first = finals[0]
    scores = [found.score for _, found in finals]
    bits = np.mean([found.bits for _, found in finals], axis=0)
    steps = run.recipe.train.steps or 0
    tokens = steps * entry.tokens_per_step
    row = Row(
        name=entry.name,
        title=entry.title,
        encodes=entry.encodes,
        score=mean(scores),
        seeds=scores,
        seed_numbers=[run.seed for run, _ in finals],
        interval=None if entry.encodes else held_out.statistics(bits).interval(),
        parameters=entry.parameters,
        weights=entry.weights,
        rate=run.rate,
        trials=trials,
        tokens=tokens,
        flops=float(tokens * entry.flops_per_token),
        minutes=mean(found.seconds for _, found in finals) / 60,
        memory=max((found.memory for _, found in finals if found.memory), default=None),
        decoded_per_second=first.decoded_per_second,
        points=[_point(*pair) for pair in (*points, finals[0])],
        positions=first.positions,
        sample=first.sample,
        folder=str(run.folder),
    )
    return row, bits


def _point(run: Run, found: Measured) -> Point:
    tokens = (run.recipe.train.steps or 0) * run.entry.tokens_per_step
    return Point(
        share=run.share,
        tokens=tokens,
        flops=float(tokens * run.entry.flops_per_token),
        minutes=found.seconds / 60,
        score=found.score,
    )


def in_order(rows: Sequence[tuple[Row, Floats | None]], held_out: HeldOut) -> list[Row]:
    """Return the rows from the best to the worst, encoders behind, with their differences to one row.

    That row is the best trained model, or the best baseline where no model is trained.  A row without bits
    for each unit has a difference without an interval.
    """
    causal = sorted((pair for pair in rows if not pair[0].encodes), key=lambda pair: pair[0].score)
    encoders = sorted((row for row, _ in rows if row.encodes), key=lambda row: row.score)
    if not causal:
        return encoders
    best, best_bits = next((pair for pair in causal if pair[0].parameters is not None), causal[0])
    found = []
    for row, bits in causal:
        if row is best:
            found.append(row)
            continue
        interval = None
        if bits is not None and best_bits is not None:
            interval = held_out.statistics(bits - best_bits).interval()
        found.append(replace(row, difference=row.score - best.score, difference_interval=interval))
    return [*found, *encoders]


def paired(rows: Sequence[tuple[Row, Floats | None]], held_out: HeldOut) -> list[Pair]:
    """Return the difference of each two rows that have bits for every unit; none without intervals."""
    known = [(row, bits) for row, bits in rows if bits is not None and not row.encodes]
    known.sort(key=lambda pair: pair[0].score)
    found = []
    for i, (first, less) in enumerate(known):
        for second, more in known[i + 1 :]:
            interval = held_out.statistics(more - less).interval()
            if interval is not None:
                difference = second.score - first.score
                found.append(
                    Pair(first=first.title, second=second.title, difference=difference, interval=interval)
                )
    return found
