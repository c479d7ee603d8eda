"""Compare families of models on one text, with one tokenizer and one budget: ``wordloom compare``."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from wordloom.data import Document
from wordloom.errors import CheckpointError, RecipeError, WordloomError
from wordloom.evaluate.reading import tokenizer_name
from wordloom.evaluate.score import signature
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe, load_recipe
from wordloom.recipe.data import CausalData
from wordloom.run.compare.budget import Cost, short
from wordloom.run.compare.entries import (
    FAMILIES,
    NGRAM,
    Entry,
    family_entry,
    own_entry,
    shape_for,
    shape_of,
)
from wordloom.run.compare.held_out import Floats, HeldOut, byte_stream
from wordloom.run.compare.kept import keep, kept
from wordloom.run.compare.measuring import Measured, measured, prompt_of, task_score
from wordloom.run.compare.references import LZMA, ngram_task, reference
from wordloom.run.compare.report import write_report
from wordloom.run.compare.result import Result, Row, entry_row, in_order
from wordloom.run.compare.runs import CURVE, TENTH, Run, run_of, time_step, train_run
from wordloom.run.compare.settings import Settings, base_recipe, with_marks
from wordloom.run.compare.tables import write_tables
from wordloom.run.folder import locked
from wordloom.run.prepare import AnyCorpus, corpus_tokenizer, recipe_corpus
from wordloom.text import Tokenizer
from wordloom.training.stopping import sigterm_interrupts

log = logging.getLogger(__name__)

SETTINGS = "compare.json"
_TIMING_SHARE, _LONGEST_TIMING = 0.02, 0.5  # of the budget, and minutes


def compare(
    settings: Settings,
    *,
    out: str | Path | None = None,
    dry_run: bool = False,
    progress: TrainingProgress | None = None,
) -> Result | list[Run]:
    """Train all entries and return the comparison; with ``dry_run``, return the runs and train nothing.

    The folder ``out``, by default ``runs/NAME-compare``, holds ``table.txt``, ``table.json``, ``table.csv``,
    ``compare.png``, ``report.html`` and the models.  An equal call continues a comparison that was stopped,
    and trains nothing twice.

    Raises WordloomError for mistakes of the user.
    """
    progress = progress or TrainingProgress()
    base = base_recipe(settings, progress)
    folder = Path(out) if out is not None else Path("runs") / f"{base.name}-compare"
    if dry_run and not (folder / SETTINGS).exists():
        with tempfile.TemporaryDirectory() as temporary:
            comparison = Comparison(settings=settings, base=base, folder=Path(temporary), progress=progress)
            comparison.held_out  # noqa: B018  # mistakes in the text show
            return list(comparison.planned())
    with locked(folder, "compares"), sigterm_interrupts():
        _check_folder(folder, settings)
        comparison = Comparison(settings=settings, base=base, folder=folder, progress=progress)
        if dry_run:
            return list(comparison.planned())
        try:
            comparison.train()
        except KeyboardInterrupt:
            progress.say("stopped; the same command continues")
            comparison.stopped = True
            return comparison.result()
        result = comparison.result()
    return result


def _check_folder(folder: Path, settings: Settings) -> None:
    """Write the settings into a new folder; raise CheckpointError for a folder with others."""
    file = folder / SETTINGS
    wanted = json.loads(json.dumps(settings.as_dict()))
    if not file.exists():
        if any(path.name != ".lock" for path in folder.iterdir()):
            raise CheckpointError(f"{folder} is not empty and holds no comparison; choose another --out")
        keep(file, wanted)
        return
    known = kept(file)
    if not any((folder / name).exists() for name in ("trials", "models")):  # it stopped before the first run
        shutil.rmtree(folder / "tokenizer", ignore_errors=True)
        keep(file, wanted)
        return
    changed = [key for key in wanted if known.get(key) != wanted[key] and key not in _FREE]
    if changed:
        shown = ", ".join(f"{key} {known.get(key)!r} -> {wanted[key]!r}" for key in changed)
        raise CheckpointError(
            f"{folder} holds a comparison with other settings ({shown}); give the same ones, or choose "
            "another --out"
        )
    keep(file, wanted)


# Settings that may change when a comparison is continued: they add entries, seeds and tasks.
_FREE = ("families", "recipes", "seeds", "tasks")


class RunProgress(TrainingProgress):
    """The progress of a run of a comparison: what it says about its data is for the log (``--verbose``)."""

    def say(self, lines: str | Iterable[str]) -> None:
        for line in [lines] if isinstance(lines, str) else lines:
            log.info("%s", line)


@dataclass(kw_only=True)
class Comparison:
    """A comparison in its folder."""

    settings: Settings
    base: Recipe
    folder: Path
    progress: TrainingProgress
    stopped: bool = False  # then nothing more is trained or measured
    left_out: list[str] = field(default_factory=list)

    @cached_property
    def corpus(self) -> AnyCorpus:
        return recipe_corpus(self.base)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of all entries, in the folder ``tokenizer``; trained if it is not there."""
        folder = self.folder / "tokenizer"
        if not (folder / "tokenizer.json").exists():
            recipe = self.base
            objectives = {FAMILIES[name].objective for name in self.trained_families}
            objectives |= {load_recipe(path).train.objective for path in self.settings.recipes}
            if "masked_lm" in objectives:
                recipe = with_marks(recipe)
            corpus_tokenizer(recipe, self.corpus, self.progress).save_pretrained(folder)
        return Tokenizer.from_pretrained(folder)

    @property
    def trained_families(self) -> list[str]:
        return [name for name in self.settings.families if name != NGRAM]

    @cached_property
    def shared(self) -> Recipe:
        """The recipe of the comparison with the tokenizer in its folder."""
        self.tokenizer  # noqa: B018  # it is trained before recipes name it
        path = {"path": str(self.folder / "tokenizer")}
        return Recipe.model_validate({**self.base.as_dict(), "tokenizer": path})

    @cached_property
    def entries(self) -> list[Entry]:
        """The entries that are trained."""
        size = self.tokenizer.vocab_size
        shapes = {parameters: shape_for(parameters, size) for parameters in self.settings.parameters}
        found = []
        if not shapes and self.trained_families:
            found += [
                family_entry(name, self.shared, shape_of(self.base, size), size)
                for name in self.trained_families
            ]
        for parameters, shape in shapes.items():
            suffix = f"-{short(parameters)}" if len(shapes) > 1 else ""
            found += [family_entry(name, self.shared, shape, size, suffix) for name in self.trained_families]
        found += [own_entry(path, self.shared, size) for path in self.settings.recipes]
        if any(entry.encodes for entry in found) and self.tokenizer.mask_id is None:
            raise RecipeError(
                f"the tokenizer in {self.folder} has no mask token, which encoders need; leave out bert, or "
                "begin with it in another --out"
            )
        names = [entry.name for entry in found]
        for name in names:
            if names.count(name) > 1:
                raise RecipeError(
                    f"two entries are called {name!r}; give sizes that differ more, or one of the recipes "
                    "another name"
                )
        return found

    @cached_property
    def documents(self) -> list[Document]:
        return list(self.corpus.documents("validation"))

    @cached_property
    def held_out(self) -> HeldOut:
        return HeldOut(self.documents, self.tokenizer, self.base.data_as(CausalData).specials)

    @cached_property
    def prompt(self) -> str:
        return self.settings.prompt or prompt_of(self.documents)

    # -- runs ----------------------------------------------------------------------------------------------

    def cost(self, entry: Entry) -> Cost:
        """Return the cost of a step; its seconds are measured once, and kept in the folder."""
        cost = Cost(entry.tokens_per_step, float(entry.tokens_per_step * entry.flops_per_token))
        budget = self.settings.budget
        if budget.kind != "minutes":
            return cost
        file = self.folder / "trials" / f"{entry.name}-timing.json"
        if not file.exists():
            self.progress.say(f"\ntiming: {entry.title}")
            minutes = min(_LONGEST_TIMING, _TIMING_SHARE * budget.amount)
            seconds = time_step(entry, minutes, file.with_suffix(""), RunProgress(self.progress.console))
            keep(file, {"seconds_per_step": seconds})
        return cost._replace(seconds=kept(file)["seconds_per_step"])

    def run(self, entry: Entry, purpose: Any, *, share: float, rate: float, seed: int) -> Run:
        return run_of(
            entry,
            purpose,
            share=share,
            rate=rate,
            seed=seed,
            budget=self.settings.budget,
            cost=self.cost(entry),
            out=self.folder,
        )

    def trials(self, entry: Entry) -> list[Run]:
        """Return the runs that choose the learning rate of ``entry``."""
        spare = len(entry.rates) - self.settings.rates
        rates = entry.rates[spare // 2 : spare // 2 + self.settings.rates]
        return [self.run(entry, "rate", share=TENTH, rate=rate, seed=self.base.seed) for rate in rates]

    def smaller(self, entry: Entry, rate: float) -> list[Run]:
        """Return the runs with smaller budgets whose scores make the line of ``entry``."""
        if entry.encodes:
            return []
        tenth = [run for run in self.trials(entry) if run.rate == rate]
        return sorted([*self.curve(entry, rate), *tenth], key=lambda run: run.share)

    def curve(self, entry: Entry, rate: float) -> list[Run]:
        """Return the runs that are trained for the line of ``entry`` alone."""
        if entry.encodes:
            return []
        return [self.run(entry, "curve", share=share, rate=rate, seed=self.base.seed) for share in CURVE]

    def final(self, entry: Entry, rate: float, number: int) -> Run:
        """Return the run with the whole budget and the seed ``number``, from 0."""
        return self.run(entry, "final", share=1.0, rate=rate, seed=self.base.seed + number)

    def best_rate(self, entry: Entry) -> float | None:
        """Return the learning rate with the lowest validation loss; None if all runs diverged."""
        losses = {run.rate: run.state().metrics.get("loss") for run in self.trials(entry)}
        known = {rate: loss for rate, loss in losses.items() if loss is not None and loss == loss}
        return min(known, key=lambda rate: known[rate]) if known else None

    def planned(self) -> Iterator[Run]:
        """Yield all runs, in order; where the learning rate is not chosen yet, with the middle one."""
        rates: dict[str, float] = {}
        for entry in self.entries:
            trials = self.trials(entry)
            yield from trials
            done = all(run.state().state in ("done", "failed") for run in trials)
            rates[entry.name] = (self.best_rate(entry) if done else None) or trials[len(trials) // 2].rate
        for entry in self.entries:
            yield from self.curve(entry, rates[entry.name])
        for number in range(self.settings.seeds):
            yield from (self.final(entry, rates[entry.name], number) for entry in self.entries)

    def train(self) -> None:
        """Train what is not trained yet; raises KeyboardInterrupt when a signal asks to stop."""
        self._check_text()
        self._say_plan()
        for entry in self.entries:
            for run in self.trials(entry):
                self._train(run)
        chosen = {entry.name: self.best_rate(entry) for entry in self.entries}
        for entry in self.entries:
            rate = chosen[entry.name]
            if rate is None:
                self.left_out.append(f"{entry.title} diverged with every learning rate, and is left out")
                continue
            for run in self.smaller(entry, rate):
                self._train(run)
                self._measure(run)
        for number in range(self.settings.seeds):
            for entry in self.entries:
                if (rate := chosen[entry.name]) is not None:
                    run = self.final(entry, rate, number)
                    self._train(run)
                    self._measure(run)

    def _check_text(self) -> None:
        """Raise CheckpointError if the held-out text is not that of earlier scores."""
        file = self.folder / "text.json"
        if not file.exists():
            keep(file, {"held_out": self.held_out_hash})
        elif kept(file)["held_out"] != self.held_out_hash:
            raise CheckpointError(
                f"the held-out text has changed since {self.folder} was begun, so scores would not compare; "
                "choose another --out"
            )

    def _train(self, run: Run) -> None:
        if run.state().state in ("done", "failed"):
            return
        every = list(self.planned())
        done = sum(other.state().state in ("done", "failed") for other in every)
        self.progress.say(
            f"\nrun {done + 1} of {len(every)}: {run.entry.title}, {_purpose(run)}{self._time_left(every)}"
        )
        threads = torch.get_num_threads()
        if "torch._dynamo" in sys.modules:  # its kernels have the shapes of the runs before
            torch.compiler.reset()
        try:
            if train_run(run, RunProgress(self.progress.console)):
                raise KeyboardInterrupt
        finally:
            torch.set_num_threads(threads)
            gc.collect()  # the trainer and its hooks hold the model in a reference cycle

    def _time_left(self, every: Sequence[Run]) -> str:
        """Return an estimate of the time left from the finished runs of each entry, or ""."""
        seconds: dict[str, float] = {}
        work: dict[str, float] = {}
        left: dict[str, float] = {}
        for run in every:
            state, name = run.state(), run.entry.name
            if state.state == "done":
                seconds[name] = seconds.get(name, 0.0) + run.seconds()
                work[name] = work.get(name, 0.0) + run.work
            else:
                left[name] = left.get(name, 0.0) + run.work
        if not work:
            return ""
        overall = sum(seconds.values()) / sum(work.values())
        rates = {name: seconds[name] / work[name] for name in work}
        total = sum(amount * rates.get(name, overall) for name, amount in left.items())
        return f"; about {timedelta(seconds=round(total))} left"

    def _say_plan(self) -> None:
        every = list(self.planned())
        states = [run.state().state for run in every]
        work = sum(run.work for run in every)
        self.progress.say(
            f"comparison  {len(every)} runs of {len(self.entries)} entries in {self.folder}: "
            f"{states.count('done')} done; {work:.3g} FLOPs in all; budget {self.settings.budget}"
        )
        self.progress.say(
            f"held out    {self.held_out.n_bytes:,} bytes, {len(self.held_out.sizes):,} {self.held_out.unit}"
        )
        self.progress.say(
            f"{entry.title}: {entry.parameters:,} parameters, {entry.weights:,} without embeddings"
            for entry in self.entries
        )

    # -- scores --------------------------------------------------------------------------------------------

    def _measure(self, run: Run) -> Measured | None:
        """Return what is measured of a finished run; None for one that diverged."""
        if run.state().state != "done":
            return None
        first = run.purpose == "final" and run.seed == self.base.seed
        if not (self.folder / "scores" / f"{run.name}.json").exists():
            if self.stopped:
                return None
            self.progress.say(f"measuring   {run.name}")
        return measured(run, self.held_out, self.prompt, self.folder / "scores", first=first)

    def _tasks(self, name: str, measure: Callable[[str], float | None]) -> dict[str, float | None]:
        """Return the score on each task of the run ``name``; each is measured once, and kept.

        A task that the model cannot read, such as texts longer than its context, is left out with a note.
        """
        found: dict[str, float | None] = {}
        for task in self.settings.tasks:
            file = self.folder / "scores" / f"{name}-{task.replace('/', '-')}.json"
            if not file.exists():
                if self.stopped:
                    continue
                self.progress.say(f"measuring   {name} on {task}")
                try:
                    score: dict[str, Any] = {"accuracy": measure(task)}
                except WordloomError as error:
                    score = {"accuracy": None, "left_out": f"{name} is not scored on {task}: {error}"}
                keep(file, score)
            score = kept(file)
            found[task] = score["accuracy"]
            if "left_out" in score:
                self.left_out.append(score["left_out"])
        return found

    def _reference(self, name: str) -> tuple[Row, Floats | None] | None:
        """Return the row of a reference and its bits for each unit; None if it is left out."""
        if name == NGRAM and NGRAM not in self.settings.families:
            return None
        folder = self.folder / "scores"
        if not (folder / f"{name}.json").exists():
            self.progress.say(f"measuring   {name}")
        found = reference(name, lambda: self.corpus.documents("train"), self.held_out, self.prompt, folder)
        if isinstance(found, str):
            self.left_out.append(found)
            return None
        row, bits = found
        if name == NGRAM:
            scores = self._tasks(NGRAM, lambda task: ngram_task(task, lambda: self.corpus.documents("train")))
            row = replace(row, tasks=scores)
        return row, bits

    def result(self) -> Result:
        """Return the result of what is trained, and write it into the folder."""
        rows: list[tuple[Row, Floats | None]] = []
        for entry in self.entries:
            if (found := self._row(entry)) is not None:
                rows.append(found)
        if not self.stopped:
            rows += [row for name in (NGRAM, LZMA) if (row := self._reference(name)) is not None]
        ordered = in_order(rows, self.held_out)
        notes = self.left_out + [
            f"{row.title}: the best learning rate, {row.rate:g}, is the {row.edge} that was tried"
            for row in ordered
            if row.edge is not None
        ]
        result = Result(
            folder=self.folder,
            budget=self.settings.budget,
            text=_named(self.base.data.validation or f"the last part of {_named(self.base.data.train)}"),
            prompt=self.prompt,
            unit=self.held_out.unit,
            units=len(self.held_out.sizes),
            held_out_bytes=self.held_out.n_bytes,
            tokenizer=f"{self.tokenizer.kind}, {self.tokenizer.vocab_size:,} tokens",
            seeds=self.settings.seeds,
            rows=ordered,
            signature=self._signature(),
            notes=notes,
            stopped=self.stopped,
        )
        if ordered:
            write_tables(result, self.folder)
            write_report(result, self.folder)
        return result

    def _row(self, entry: Entry) -> tuple[Row, Floats | None] | None:
        """Return the row of an entry and its bits for each unit; None before its first seed is trained."""
        trials = {f"{run.rate:g}": run.state().metrics.get("loss") for run in self.trials(entry)}
        rate = self.best_rate(entry)
        if rate is None:
            return None
        runs = [self.final(entry, rate, number) for number in range(self.settings.seeds)]
        finals = [(run, found) for run in runs if (found := self._measure(run)) is not None]
        if not finals:
            return None
        smaller = self.smaller(entry, rate)
        points = [(run, found) for run in smaller if (found := self._measure(run)) is not None]
        row, bits = entry_row(entry, finals, points, trials, self.held_out)
        first = finals[0][0]
        row = replace(row, tasks=self._tasks(first.name, lambda task: task_score(first.folder, task)))
        return row, None if entry.encodes else bits

    def _signature(self) -> str:
        return signature(
            "bits_per_byte",
            text=self.held_out_hash,
            tok=tokenizer_name(self.tokenizer),
            documents="independent",
            budget=str(self.settings.budget),
            seeds=self.settings.seeds,
            ci=f"{len(self.held_out.sizes)}-{self.held_out.unit}",
        )

    @cached_property
    def held_out_hash(self) -> str:
        return hashlib.sha256(byte_stream(self.documents)).hexdigest()[:8]


def _purpose(run: Run) -> str:
    amount = f"{run.share:g} of the budget"
    return {
        "rate": f"learning rate {run.rate:g} at {amount}",
        "curve": amount,
        "final": f"seed {run.seed}",
    }[run.purpose]


def _named(sources: str | Sequence[str]) -> str:
    return sources if isinstance(sources, str) else ", ".join(sources)
