"""Compare families of models on one text, with one tokenizer and one budget: ``wordloom compare``."""

from __future__ import annotations

import gc
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from wordloom.errors import CheckpointError, DataError, DeviceError, WordloomError
from wordloom.inspect.figures import load_matplotlib
from wordloom.progress import TrainingProgress
from wordloom.recipe.data import CausalData
from wordloom.run.compare.baselines import LZMA, baseline, ngram_task
from wordloom.run.compare.cautions import cautions
from wordloom.run.compare.entries import NGRAM, Entry
from wordloom.run.compare.folder import SETTINGS, continued, has_begun, keep, kept
from wordloom.run.compare.held_out import Floats
from wordloom.run.compare.measuring import Measured, measured, task_score
from wordloom.run.compare.report import write_report
from wordloom.run.compare.result import Result, Row, entry_row, in_order, paired
from wordloom.run.compare.runs import Run, train_run
from wordloom.run.compare.schedule import Schedule
from wordloom.run.compare.settings import Settings, base_recipe
from wordloom.run.compare.shared import Shared
from wordloom.run.compare.tables import write_tables
from wordloom.run.folder import locked
from wordloom.training.stopping import sigterm_interrupts

log = logging.getLogger(__name__)


def compare(
    settings: Settings,
    *,
    out: str | Path | None = None,
    dry_run: bool = False,
    progress: TrainingProgress | None = None,
) -> Result | list[Run]:
    """Train all entries and return the comparison; with ``dry_run``, return the runs.

    The folder ``out``, by default ``runs/NAME-compare``, holds ``table.txt``, ``table.json``, ``table.csv``,
    ``compare.png``, ``report.html`` and the models.  An equal call continues a comparison that was stopped,
    and trains nothing twice.  A dry run writes nothing; for a budget in minutes, it times each model.

    Raises WordloomError for mistakes of the user.
    """
    progress = progress or TrainingProgress()
    base = base_recipe(settings, progress)
    folder = Path(out) if out is not None else Path("runs") / f"{base.name}-compare"
    file = folder / SETTINGS
    if dry_run and not (file.exists() and has_begun(folder)):
        with tempfile.TemporaryDirectory() as temporary:
            shared = Shared(settings=settings, base=base, folder=Path(temporary), progress=progress)
            shared.check_text()
            return list(Comparison(shared).schedule.planned())
    with locked(folder, "compares"), sigterm_interrupts():
        settings = continued(folder, settings)
        if not file.exists():
            keep(file, settings.as_dict())
        shared = Shared(settings=settings, base=base, folder=folder, progress=progress)
        shared.check_text()
        comparison = Comparison(shared)
        if dry_run:
            return list(comparison.schedule.planned())
        list(shared.entries)  # raises for mistakes, which are not kept
        shared.check_prompt()
        load_matplotlib()  # raises before the training, not after it
        keep(file, settings.as_dict())
        shared.keep_recipes()
        try:
            comparison.train()
            return comparison.result()
        except KeyboardInterrupt:
            progress.say("stopped; the same command continues")
            comparison.stopped = True
            return comparison.result()


class RunProgress(TrainingProgress):
    """The progress of a run of a comparison: what it says about its data is for the log (``--verbose``)."""

    def say(self, lines: str | Iterable[str]) -> None:
        for line in [lines] if isinstance(lines, str) else lines:
            log.info("%s", line)


@dataclass
class Comparison:
    """A comparison that is trained and measured.

    Attributes:
        shared: what all entries share.
        stopped: True if a signal asked to stop; then nothing more is trained or measured.
    """

    shared: Shared
    stopped: bool = False
    _notes: dict[str, None] = field(default_factory=dict)  # in order, each once
    _too_large: dict[str, DeviceError] = field(default_factory=dict)  # entries that the memory does not hold
    _taken: float = 0.0  # seconds of the runs of this process, with their evaluations and measurements
    _trained: float = 0.0  # seconds of their training steps

    def __post_init__(self) -> None:
        self._say = self.shared.progress.say
        self._progress = RunProgress(self.shared.progress.console)

    @cached_property
    def schedule(self) -> Schedule:
        """The runs."""
        return Schedule(shared=self.shared, progress=self._progress)

    @property
    def _scores(self) -> Path:
        """The folder of the measurements."""
        return self.shared.folder / "scores"

    # -- training ------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Train and measure what is missing; raises KeyboardInterrupt when a signal asks to stop."""
        schedule, entries = self.schedule, self.shared.entries
        self._say_plan()
        for entry in entries:
            self._train(schedule.trials(entry))
        rates = {entry.name: schedule.best_rate(entry) for entry in entries}
        for entry in entries:
            if (rate := rates[entry.name]) is not None:
                self._train(schedule.points(entry, rate), measure=True)
            elif entry.name not in self._too_large:
                self._notes[f"{entry.title} diverged with every learning rate, and is left out"] = None
        for number in range(self.shared.settings.seeds):
            for entry in entries:
                if (rate := rates[entry.name]) is not None:
                    self._train([schedule.final(entry, rate, number)], measure=True)
        if entries and len(self._too_large) == len(entries):
            raise next(iter(self._too_large.values()))

    def _train(self, runs: Sequence[Run], *, measure: bool = False) -> None:
        """Train the runs that have not ended, and measure them.

        An entry that needs more memory than there is gets a note, and its other runs are left out.
        """
        for run in runs:
            if run.entry.name in self._too_large:
                return
            began, ended = time.monotonic(), self.schedule.has_ended(run)
            if not ended:
                try:
                    self._train_one(run)
                except DeviceError as error:
                    self._too_large[run.entry.name] = error
                    reason = str(error).partition(";")[0]
                    self._notes[f"{run.entry.title} is left out: {reason}"] = None
                    return
            if measure:
                self._measured(run)
            if not ended:
                self._taken += time.monotonic() - began
                self._trained += run.seconds()

    def _train_one(self, run: Run) -> None:
        every = list(self.schedule.planned())
        number = sum(map(self.schedule.has_ended, every)) + 1
        self._say(f"\nrun {number} of {len(every)}: {_described(run)}{self._time_left()}")
        threads = torch.get_num_threads()
        if "torch._dynamo" in sys.modules:  # its kernels have the shapes of the runs before
            torch.compiler.reset()
        try:
            if train_run(run, self._progress):
                raise KeyboardInterrupt
        finally:
            torch.set_num_threads(threads)
            gc.collect()  # the trainer and its hooks hold the model in a reference cycle

    def _time_left(self) -> str:
        """Return an estimate of the time left, with evaluations as long as those of this process, or ""."""
        left = self.schedule.training_left()
        if left is None:
            return ""
        if self._trained:
            left *= max(1.0, self._taken / self._trained)  # below 1 after a run that another process began
        return f"; about {timedelta(seconds=round(left))} left"

    def _say_plan(self) -> None:
        shared, every = self.shared, list(self.schedule.planned())
        ended = sum(map(self.schedule.has_ended, every))
        work = sum(run.work for run in every)
        self._say(
            f"comparison  {len(every)} runs of {len(shared.entries)} entries in {shared.folder}: {ended} "
            f"done; {work:.3g} FLOPs in all; budget {shared.settings.budget}"
        )
        self._say(f"held out    {shared.held_out.n_bytes:,} bytes, {shared.held_out.counted()}")
        self._say(
            f"{entry.title}: {entry.parameters:,} parameters, {entry.weights:,} without embeddings"
            for entry in shared.entries
        )

    # -- scores --------------------------------------------------------------------------------------------

    def _measured(self, run: Run) -> Measured | None:
        """Return the measurements of a finished run; None for one that diverged."""
        if self.schedule.state(run).state != "done":
            return None
        if not (self._scores / f"{run.name}.json").exists():
            if self.stopped:
                return None
            self._say(f"measuring   {run.name}")
        first = self._is_first(run)
        found = measured(run, self.shared.held_out, self.shared.prompt, self._scores, first=first)
        if not run.entry.encodes and len(found.bits) != len(self.shared.held_out.sizes):
            raise CheckpointError(
                f"{self._scores / run.name}.json is of another held-out text; remove it, and the same "
                "command makes it again"
            )
        return found

    def _is_first(self, run: Run) -> bool:
        """Return whether ``run`` has the whole budget, and the lowest seed that did not diverge."""
        if run.purpose != "final":
            return False
        lower = range(run.seed - self.shared.base.seed)
        before = (self.schedule.final(run.entry, run.rate, number) for number in lower)
        return not any(self.schedule.state(other).state == "done" for other in before)

    def _tasks(self, name: str, measure: Callable[[str], float | None]) -> dict[str, float | None]:
        """Return the score of ``name`` on each task; each is measured once, and kept.

        A task that the model cannot read, such as texts longer than its context, is left out with a note.
        """
        found: dict[str, float | None] = {}
        for task in self.shared.settings.tasks:
            file = self._scores / f"{name}-{task.replace('/', '-')}.json"
            if not file.exists():
                if self.stopped:
                    continue
                self._say(f"measuring   {name} on {task}")
                try:
                    keep(file, {"accuracy": measure(task)})
                except WordloomError as error:
                    reason = f"{name} is not scored on {task}: {error}"
                    # a failed download may work next time, and removed weights be trained again
                    if isinstance(error, DataError | CheckpointError):
                        self._notes[reason], found[task] = None, None
                        continue
                    keep(file, {"accuracy": None, "left_out": reason})
            score = kept(file)
            found[task] = score["accuracy"]
            if "left_out" in score:
                self._notes[score["left_out"]] = None
            elif score["accuracy"] is None:
                self._notes[f"{name} is not scored on {task}, which a model of its kind does not answer"] = (
                    None
                )
        return found

    def _baselines(self) -> Iterator[tuple[Row, Floats | None]]:
        """Yield the rows of the n-gram model and of lzma, and their bits for each unit."""
        shared = self.shared

        def train() -> Any:
            return shared.corpus.documents("train")

        for name in (NGRAM, LZMA):
            if name == NGRAM and NGRAM not in shared.settings.families:
                continue
            if not (self._scores / f"{name}.json").exists():
                if self.stopped:
                    continue
                self._say(f"measuring   {name}")
            found = baseline(name, train, shared.held_out, shared.prompt, self._scores)
            if isinstance(found, str):
                self._notes[found] = None
                continue
            row, bits = found
            if name == NGRAM:
                row = replace(row, tasks=self._tasks(NGRAM, lambda task: ngram_task(task, train)))
            yield row, bits

    def _row(self, entry: Entry) -> tuple[Row, Floats | None] | None:
        """Return the row of an entry and its bits for each unit; None before its first seed is trained."""
        schedule = self.schedule
        if (rate := schedule.best_rate(entry)) is None:
            return None
        runs = [schedule.final(entry, rate, number) for number in range(self.shared.settings.seeds)]
        finals = [(run, found) for run in runs if (found := self._measured(run)) is not None]
        diverged = [run.seed for run in runs if schedule.state(run).state == "failed"]
        if diverged:
            seeds = f"seed{'s' * (len(diverged) > 1)} {', '.join(map(str, diverged))}"
            which = "its score is that of the others" if finals else "it is left out"
            self._notes[f"{entry.title} diverged with {seeds} of {len(runs)}: {which}"] = None
        if not finals:
            return None
        if len(finals) + len(diverged) < len(runs):
            self._notes[f"{entry.title}: {len(finals)} of {len(runs)} seeds are trained so far"] = None
        smaller = schedule.points(entry, rate)
        points = [(run, found) for run in smaller if (found := self._measured(run)) is not None]
        trials = [(run.rate, schedule.state(run).metrics.get("loss")) for run in schedule.trials(entry)]
        row, bits = entry_row(entry, finals, points, trials, self.shared.held_out)
        first = finals[0][0]
        tasks = self._tasks(first.name, lambda task: task_score(first.folder, task))
        return replace(row, tasks=tasks), None if entry.encodes else bits

    def result(self) -> Result:
        """Return the result of what is trained, and write it into the folder."""
        shared = self.shared
        entries = shared.entries if self.schedule.is_timed else []
        rows = [row for entry in entries if (row := self._row(entry)) is not None]
        rows += self._baselines()
        ordered, pairs = in_order(rows, shared.held_out), paired(rows, shared.held_out)
        planned = list(self.schedule.planned()) if self.schedule.is_timed else []
        part = "a part" if shared.base.data_as(CausalData).split == "hash" else "the last part"
        held_out = shared.base.data.validation or f"{part} of {_named(shared.base.data.train)}"
        result = Result(
            folder=shared.folder,
            budget=shared.settings.budget,
            text=_named(held_out),
            prompt=shared.prompt,
            unit=shared.held_out.unit,
            units=len(shared.held_out.sizes),
            held_out_bytes=shared.held_out.n_bytes,
            tokenizer=f"{shared.tokenizer.kind}, {shared.tokenizer.vocab_size:,} tokens",
            seeds=shared.settings.seeds,
            runs=sum(map(self.schedule.has_ended, planned)),
            flops=sum(run.work for run in planned if self.schedule.has_ended(run)),
            rows=ordered,
            pairs=pairs,
            signature=shared.signature(),
            notes=[*self._notes, *(cautions(self.schedule, ordered, pairs) if ordered else ())],
            stopped=self.stopped,
        )
        if ordered:
            write_tables(result, shared.folder)
            write_report(result, shared.folder)
        return result


def _described(run: Run) -> str:
    """Return the title of the entry, and what the run is for."""
    amount = f"{run.share:g} of the budget"
    purpose = {
        "rate": f"learning rate {run.rate:g} at {amount}",
        "curve": amount,
        "final": f"seed {run.seed}",
    }[run.purpose]
    return f"{run.entry.title}, {purpose}"


def _named(sources: str | Sequence[str]) -> str:
    return sources if isinstance(sources, str) else ", ".join(sources)
