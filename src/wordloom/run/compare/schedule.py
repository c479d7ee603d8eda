"""The runs of a comparison in their order, their states, and the time that they still take."""

from __future__ import annotations

import glob
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

from wordloom.errors import CheckpointError
from wordloom.progress import TrainingProgress
from wordloom.recipe import load_recipe
from wordloom.run.compare.budget import Cost
from wordloom.run.compare.entries import Entry
from wordloom.run.compare.folder import keep, kept
from wordloom.run.compare.runs import CURVE, TENTH, Purpose, Run, run_of, time_step
from wordloom.run.compare.shared import Shared
from wordloom.run.sweep.scores import SweepRun

_TIMING_SHARE = 0.01  # of the budget
_TIMING = 0.1, 0.25  # the fewest and the most minutes: programs are compiled in the first seconds
_TIMING_ROUNDS = 3  # in turn over all entries, because other work slows the machine down for a while


@dataclass(kw_only=True)
class Schedule:
    """The runs of a comparison: trials of learning rates, runs with smaller budgets, and final runs.

    ``progress`` shows the runs that time a step.
    """

    shared: Shared
    progress: TrainingProgress
    _runs: dict[tuple[str, Purpose, float, float, int], Run] = field(default_factory=dict)
    _ended: dict[str, SweepRun] = field(default_factory=dict)

    def cost(self, entry: Entry) -> Cost:
        """Return the cost of a step; the seconds of all entries are measured once, and kept in the folder."""
        cost = Cost(entry.tokens_per_step, float(entry.tokens_per_step * entry.flops_per_token))
        budget = self.shared.settings.budget
        if budget.kind != "minutes":
            return cost
        if not self._timing(entry).exists():
            self._time_steps([each for each in self.shared.entries if not self._timing(each).exists()])
        return cost._replace(seconds=kept(self._timing(entry))["seconds_per_step"])

    @property
    def is_timed(self) -> bool:
        """Whether the steps of every run are known; for a budget in minutes, they are timed first."""
        timed = (self._timing(entry).exists() for entry in self.shared.entries)
        return self.shared.settings.budget.kind != "minutes" or all(timed)

    def _timing(self, entry: Entry) -> Path:
        return self.shared.folder / "trials" / f"{entry.name}-timing.json"

    def _time_steps(self, entries: list[Entry]) -> None:
        """Measure the seconds of a step of each of ``entries`` in a few rounds; the fastest counts."""
        budget = self.shared.settings.budget.amount
        minutes = min(max(_TIMING[0], _TIMING_SHARE * budget), _TIMING[1], budget)
        found: dict[str, list[float]] = {entry.name: [] for entry in entries}
        for number in range(1, _TIMING_ROUNDS + 1):
            for entry in entries:
                self.shared.progress.say(f"\ntiming {number} of {_TIMING_ROUNDS}: {entry.title}")
                folder = self._timing(entry).with_name(f"{entry.name}-timing-{number}")
                found[entry.name].append(time_step(entry, minutes, folder, self.progress))
        for entry in entries:
            keep(self._timing(entry), {"seconds_per_step": min(found[entry.name])})

    def state(self, run: Run) -> SweepRun:
        """Return the state and the validation scores of ``run``; those of a run that has ended are read once.

        Raises CheckpointError for a finished run without a validation loss.
        """
        if run.name in self._ended:
            return self._ended[run.name]
        state = run.state()
        if state.state not in ("done", "failed"):
            return state
        if state.state == "done" and "loss" not in state.metrics:
            raise CheckpointError(
                f"{run.folder} has no validation loss in its log; remove this folder, and the same command "
                "trains it again"
            )
        self._ended[run.name] = state
        return state

    def has_ended(self, run: Run) -> bool:
        """Return whether ``run`` is trained, or has diverged."""
        return self.state(run).state in ("done", "failed")

    def trials(self, entry: Entry) -> list[Run]:
        """Return the runs that choose the learning rate of ``entry``."""
        count = self.shared.settings.rates
        first = (len(entry.rates) - count) // 2
        rates = entry.rates[first : first + count]
        return [self._run(entry, "rate", TENTH, rate) for rate in rates]

    def curve(self, entry: Entry, rate: float) -> list[Run]:
        """Return the runs with smaller budgets, for the line of ``entry`` in the picture."""
        runs = [self._run(entry, "curve", share, rate) for share in CURVE]
        others = [self._run(entry, "rate", TENTH, rate), self._run(entry, "final", 1.0, rate)]
        steps = [run.recipe.train.steps for run in others]
        return [run for run in runs if run.recipe.train.steps not in steps]  # equal in a small budget

    def points(self, entry: Entry, rate: float) -> list[Run]:
        """Return all runs of ``entry`` with a smaller budget and this learning rate, by budget."""
        trials = [run for run in self.trials(entry) if run.rate == rate]
        return sorted([*self.curve(entry, rate), *trials], key=lambda run: run.share)

    def final(self, entry: Entry, rate: float, number: int) -> Run:
        """Return the run with the whole budget and the seed ``number``, from 0."""
        return self._run(entry, "final", 1.0, rate, number)

    def best_rate(self, entry: Entry) -> float | None:
        """Return the learning rate with the lowest validation loss; None if all trials diverged.

        While a trial is missing, it is that of the runs that follow the trials, and None if there are none.
        """
        trials = self.trials(entry)
        if not all(map(self.has_ended, trials)):
            return self._begun_rate(entry)
        losses = {run.rate: self.state(run).metrics.get("loss") for run in trials}
        known = {rate: loss for rate, loss in losses.items() if loss is not None and isfinite(loss)}
        return min(known, key=lambda rate: known[rate]) if known else None

    def _begun_rate(self, entry: Entry) -> float | None:
        """Return the learning rate of a run of ``entry`` that follows the trials, if one has begun."""
        for purpose, folders in (("budget", "trials"), ("seed", "models")):
            pattern = f"{glob.escape(entry.name)}-{purpose}-*/recipe.toml"
            for path in (self.shared.folder / folders).glob(pattern):
                name = path.parent.name.removeprefix(f"{entry.name}-{purpose}-")
                if re.fullmatch(r"[\d.]+", name):  # of this entry, not of one with a longer name
                    return load_recipe(path).train.learning_rate
        return None

    def planned(self) -> Iterator[Run]:
        """Yield all runs, in order; where the learning rate is not chosen yet, with the middle one.

        An entry whose trials all diverged has no other runs.
        """
        rates: dict[str, float] = {}
        entries: list[Entry] = []
        for entry in self.shared.entries:
            trials = self.trials(entry)
            yield from trials
            chosen = self.best_rate(entry)
            if chosen is not None or not all(map(self.has_ended, trials)):
                entries.append(entry)
                rates[entry.name] = trials[len(trials) // 2].rate if chosen is None else chosen
        for entry in entries:
            yield from self.curve(entry, rates[entry.name])
        for number in range(self.shared.settings.seeds):
            yield from (self.final(entry, rates[entry.name], number) for entry in entries)

    def training_left(self) -> float | None:
        """Return the seconds of training left, estimated from the finished runs of each entry; or None."""
        seconds, work, left = (defaultdict[str, float](float) for _ in range(3))
        for run in self.planned():
            if self.state(run).state == "done":
                seconds[run.entry.name] += run.seconds()
                work[run.entry.name] += run.work
            elif not self.has_ended(run):
                left[run.entry.name] += run.work
        if not work:
            return None
        overall = sum(seconds.values()) / sum(work.values())
        return sum(
            amount * (seconds[name] / work[name] if work[name] else overall) for name, amount in left.items()
        )

    def _run(self, entry: Entry, purpose: Purpose, share: float, rate: float, number: int = 0) -> Run:
        key = entry.name, purpose, share, rate, number
        if key not in self._runs:
            self._runs[key] = run_of(
                entry,
                purpose,
                share=share,
                rate=rate,
                seed=self.shared.base.seed + number,
                budget=self.shared.settings.budget,
                cost=self.cost(entry),
                out=self.shared.folder,
            )
        return self._runs[key]
