"""Notes on what the numbers of a comparison cannot tell, and on models unlike in more than their kind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from statistics import median

from wordloom.evaluate.score import MIN_UNITS
from wordloom.run.compare.result import Pair, Row
from wordloom.run.compare.schedule import Schedule
from wordloom.run.sweep.scores import metric_lines

_UNEQUAL = 0.02  # a difference in parameters that is reported
_FEW_STEPS = 30  # of a trial of a learning rate
_WORSE = 1.02  # a factor by which a longer run is worse that is reported
_LAST = 5  # lines at the end of a log, whose median loss is taken
_MISSED = 1.25  # a factor between the time taken and a budget in minutes that is reported


def cautions(schedule: Schedule, rows: Sequence[Row], pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield notes on what the numbers cannot tell, and on models that differ in more than their kind."""
    shared = schedule.shared
    undecided = {(pair.first, pair.second) for pair in pairs if not pair.excludes_zero}
    for first, second in combinations(rows, 2):  # the better one first
        if (first.title, second.title) in undecided:
            yield f"{first.title} and {second.title}: the interval of their difference includes 0"
        elif first.encodes == second.encodes and max(first.seeds, default=0.0) > min(
            second.seeds, default=math.inf
        ):
            yield f"{first.title} and {second.title}: the scores of their seeds overlap"
    steps = [run.recipe.train.steps or 0 for entry in shared.entries for run in schedule.trials(entry)]
    if steps and min(steps) < _FEW_STEPS:
        yield (
            f"learning rates were tried for as few as {min(steps)} steps, which tell little; "
            "give a larger budget"
        )
    for row in rows:
        if row.edge is not None:
            yield f"{row.title}: the best learning rate, {row.rate:g}, is the {row.edge} that was tried"
        yield from _worse_with_more(row, _training_losses(schedule, row))
    for entry in shared.entries:
        if entry.aimed_at is not None and abs(entry.weights / entry.aimed_at - 1) > _UNEQUAL:
            yield (
                f"{entry.title} has {entry.weights:,} parameters without embeddings, and "
                f"{entry.aimed_at:,} were aimed at: no hidden_dim comes nearer"
            )
    budget = shared.settings.budget
    if budget.kind == "minutes":
        yield from _missed_minutes(rows, budget.amount)
    if shared.settings.seeds == 1 and any(row.seeds for row in rows):
        yield "each model has one seed, so how much seeds differ is not known"
    if not shared.held_out.has_intervals:
        yield f"there are no intervals: {shared.held_out.counted()}, and {MIN_UNITS} are needed"


def _training_losses(schedule: Schedule, row: Row) -> dict[int, float]:
    """Return the loss on the training text at the end of each point of ``row``, by its tokens."""
    entry = next((entry for entry in schedule.shared.entries if entry.name == row.name), None)
    if entry is None or row.rate is None:
        return {}
    found = {}
    for run in (*schedule.points(entry, row.rate), schedule.final(entry, row.rate, 0)):
        lines = metric_lines(run.folder / "metrics.jsonl")
        if logged := [line["loss"] for line in lines if line["kind"] == "train"]:
            found[(run.recipe.train.steps or 0) * entry.tokens_per_step] = median(logged[-_LAST:])
    return found


def _worse_with_more(row: Row, losses: Mapping[int, float]) -> Iterator[str]:
    """Yield a note if a run of the entry is worse than a shorter one, and why."""
    points = sorted(row.points, key=lambda point: point.share)
    measure = "pseudo-perplexity" if row.encodes else "bits per byte"
    for less, more in pairwise(points):
        if more.score > _WORSE * less.score:
            why = f"with a learning rate of {row.rate:g}, some runs hardly learn"
            if losses.get(more.tokens, math.inf) < losses.get(less.tokens, -math.inf):
                why = "its loss on the training text is lower, so it overfits"
            yield (
                f"{row.title}: {more.score:.3f} {measure} after {more.tokens:,} tokens, and "
                f"{less.score:.3f} after {less.tokens:,}; {why}"
            )


def _missed_minutes(rows: Sequence[Row], wanted: float) -> Iterator[str]:
    """Yield a note if models took other times than the minutes that they were planned for."""
    taken = [(row.title, row.minutes) for row in rows if row.minutes is not None]
    missed = [
        f"{title} {minutes:.1f}" for title, minutes in taken if not 1 / _MISSED < minutes / wanted < _MISSED
    ]
    if missed:
        yield (
            f"planned for {wanted:g} minutes each, these models took {', '.join(missed)}: the machine was "
            "busier, or less busy, than when their steps were timed"
        )
