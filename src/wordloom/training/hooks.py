"""Hooks that evaluate, sample, log and save, in this order, after each step.

Evaluation and samples use the averaged weights if there is an average, run in evaluation mode, and leave the
random numbers of training untouched.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from wordloom.errors import CheckpointError, NonFiniteError
from wordloom.files import write_text
from wordloom.nn.evaluating import evaluating
from wordloom.recipe.training import HIGHER
from wordloom.training.plan import Work
from wordloom.training.ranks import Ranks
from wordloom.training.trainer import Hook, StepRecord, Trainer


@contextmanager
def finished_weights(trainer: Trainer) -> Iterator[Any]:
    """Yield the model with the weights that would be saved now, in evaluation mode.

    They are the average if there is one, and under L-BFGS the best point of its search.
    """
    model, lbfgs = trainer.model, trainer.optimizer.lbfgs
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        if trainer.average is not None:
            stack.enter_context(trainer.average.applied(model))
        elif lbfgs is not None:
            stack.enter_context(lbfgs.at_point())
        stack.enter_context(trainer.gathered())
        yield model


@contextmanager
def saved_weights(trainer: Trainer) -> Iterator[Any]:
    """Yield the model with the weights of :func:`finished_weights`, which only the first rank may read."""
    if trainer.ranks.size == 1:
        with finished_weights(trainer) as model:
            yield model
        return
    with ExitStack() as stack:
        if trainer.average is not None:
            stack.enter_context(trainer.average.applied(trainer.model))
        model = stack.enter_context(trainer.whole_model())
        stack.enter_context(evaluating(model))
        yield model


@dataclass(eq=False)
class Evaluate(Hook):
    """A hook that evaluates every ``every`` steps and at the end.

    It puts the metrics that ``function(model, ranks)`` returns, except undefined (NaN) ones, and their
    ``signature`` into the step's record. ``metrics`` are those of the last evaluation.
    Raises NonFiniteError for a loss that is not finite.
    """

    function: Callable[[Any, Ranks], dict[str, float]]
    _: KW_ONLY
    every: int
    signature: str = ""
    metrics: dict[str, float] = field(default_factory=dict, init=False)

    def after_step(self, trainer: Trainer, record: StepRecord) -> None:
        last = trainer.step >= trainer.total_steps
        if not last and (not self.every or trainer.step % self.every):
            return
        began = time.perf_counter()
        with finished_weights(trainer) as model, trainer.precision.autocast():
            evaluated = self.function(model, trainer.ranks)
        metrics = {
            name: value for name, value in evaluated.items() if name == "loss" or not math.isnan(value)
        }
        record["evaluation"] = self.metrics = metrics
        if not math.isfinite(metrics.get("loss", 0.0)):
            grows = getattr(trainer.model.config, "cell", None) == "rnn_relu"
            raise NonFiniteError(
                f"step {trainer.step}: the validation loss is {metrics['loss']:g}. Last good checkpoint: "
                f"{trainer.last_checkpoint or 'none yet'}. Lower train.learning_rate or train.clip"
                + (", or take another model.cell: the state of rnn_relu can grow without end" * grows)
            )
        record["evaluation_seconds"] = time.perf_counter() - began
        record["evaluation_signature"] = self.signature


@dataclass(eq=False)
class Sample(Hook):
    """A hook that puts a generated text into the record of every ``every``-th step."""

    function: Callable[[Any], str]
    _: KW_ONLY
    every: int

    def after_step(self, trainer: Trainer, record: StepRecord) -> None:
        if self.every and trainer.step % self.every == 0:
            with finished_weights(trainer) as model, trainer.precision.autocast():
                record["sample"] = self.function(model)


@dataclass(eq=False)
class Log(Hook):
    """A hook that writes ``metrics.jsonl`` and passes each line to ``report``.

    A train line holds the mean loss (nats) since the line before, without trial steps of L-BFGS whose loss is
    not finite.  ``old_loss`` is the mean over the steps that rehearse an old task.  Evaluations and samples
    have lines of their own.  Equal runs differ only in the fields of time, memory and throughput.
    """

    path: Path | None  # None: of a rank that writes no log
    _: KW_ONLY
    every: int
    report: Callable[[dict[str, Any]], None]
    work: Callable[[int], Work]  # of a number of steps
    peak_flops: float | None
    writer: Any = None  # a TensorBoard SummaryWriter

    def __post_init__(self) -> None:
        self.total, self.count = 0.0, 0
        self.old_total, self.old_count = 0.0, 0
        self._seconds = self._data_seconds = 0.0
        self._since = 0  # the step of the line before
        self._file: Any = None

    def on_start(self, trainer: Trainer) -> None:
        self._since = trainer.step
        self._file = None if self.path is None else self.path.open("a", encoding="utf-8")

    def after_step(self, trainer: Trainer, record: StepRecord) -> None:
        if record["rehearsed"]:
            self.old_total += record["loss_total"]
            self.old_count += record["loss_count"]
        elif record["loss_total"] is not None:
            self.total += record["loss_total"]
            self.count += record["loss_count"]
        self._seconds += record["seconds"]
        self._data_seconds += record["data_seconds"]
        step = record["step"]
        if step % self.every == 0 or step == trainer.total_steps:
            self.write(trainer, self._train_line(trainer, record))
        if "evaluation" in record:
            self.write(trainer, {"kind": "evaluate", "step": step, **record["evaluation"],
                                 "seconds": round(record["evaluation_seconds"], 3),
                                 "signature": record["evaluation_signature"]})  # fmt: skip
        if "sample" in record:
            self.write(trainer, {"kind": "sample", "step": step, "text": record["sample"]})

    def _train_line(self, trainer: Trainer, record: StepRecord) -> dict[str, Any]:
        done, before, whole = map(self.work, (trainer.step, self._since, trainer.total_steps))
        seconds = self._seconds
        speed = (done.flops - before.flops) / seconds if seconds else 0.0
        unknown = not self.count and (self.old_count > 0 or record["loss_total"] is None)
        line = {
            "kind": "train",
            "step": record["step"],
            "loss": None if unknown else self.total / max(1, self.count),
            "learning_rate": record["learning_rate"],
            "gradient_norm": record["gradient_norm"],
            "tokens": done.tokens,
            "tokens_per_second": round((done.tokens - before.tokens) / seconds, 1) if seconds else 0.0,
            "seconds": round(seconds, 3),
            "data_wait_share": round(self._data_seconds / seconds, 5) if seconds else 0.0,
            "memory_mb": round(_memory_bytes(trainer.device) / 2**20),
            "seconds_left": round((whole.flops - done.flops) / speed, 1) if speed else None,
        }
        if self.peak_flops:
            line["flop_utilisation"] = round(speed / self.peak_flops, 4)
        if self.old_count:
            line["old_loss"] = self.old_total / self.old_count
        self.total, self.count, self._seconds, self._data_seconds = 0.0, 0, 0.0, 0.0
        self._since = trainer.step
        self.old_total, self.old_count = 0.0, 0
        return line

    def write(self, trainer: Trainer, line: dict[str, Any]) -> None:
        """Write and report one line; raises CheckpointError where it cannot be written."""
        if self.path is None:
            return
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            self._file = None  # its buffer cannot be written either
            raise CheckpointError(
                f"could not write {self.path}: {error.strerror}; the last good checkpoint is "
                f"{trainer.last_checkpoint or 'none'}. Free some space and resume"
            ) from None
        if self.writer is not None:
            for key, value in line.items():
                if isinstance(value, int | float) and key != "step":
                    self.writer.add_scalar(f"{line['kind']}/{key}", value, line["step"])
        self.report(line)

    def sync(self) -> None:
        """Write buffered lines to the disk."""
        if self._file is not None and not self._file.closed:
            os.fsync(self._file.fileno())

    def on_end(self, trainer: Trainer) -> None:
        self.sync()
        if self._file is not None:
            self._file.close()
        if self.writer is not None:
            self.writer.close()

    def state_dict(self) -> dict[str, Any]:
        old = {"old_total": self.old_total, "old_count": self.old_count} if self.old_count else {}
        return {"total": self.total, "count": self.count, **old}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total, self.count = state["total"], state["count"]
        self.old_total, self.old_count = state.get("old_total", 0.0), state.get("old_count", 0)


@dataclass(eq=False)
class Save(Hook):
    """A hook that saves every ``every`` steps, at a new best metric, when stopped and at the end.

    It calls ``function(trainer, best)``.  ``best`` is the first step with the best ``best_metric`` so far, or
    None if none is kept.
    """

    function: Callable[[Trainer, int | None], None]
    _: KW_ONLY
    every: int
    keep_best: bool
    best_metric: str = "loss"

    def __post_init__(self) -> None:
        self.best_step: int | None = None
        self.best_value: float | None = None
        self._saved: int | None = None

    def after_step(self, trainer: Trainer, record: StepRecord) -> None:
        due = trainer.stopping or (self.every and trainer.step % self.every == 0)
        value = record.get("evaluation", {}).get(self.best_metric)
        if self.keep_best and value is not None and self._better(value):
            self.best_step, self.best_value, due = trainer.step, value, True
        if due:
            self._save(trainer)

    def on_error(self, trainer: Trainer) -> None:
        self.on_end(trainer)

    def on_end(self, trainer: Trainer) -> None:
        # a stop may arrive between after_step and here
        if self._saved != trainer.step and trainer.step > 0:
            self._save(trainer)

    def _better(self, value: float) -> bool:
        if self.best_value is None or math.isnan(self.best_value):
            return True
        return value > self.best_value if self.best_metric in HIGHER else value < self.best_value

    def _save(self, trainer: Trainer) -> None:
        for hook in trainer.hooks:
            if isinstance(hook, Log):
                hook.sync()
        self.function(trainer, self.best_step)
        self._saved = trainer.step

    def state_dict(self) -> dict[str, Any]:
        return {"best_step": self.best_step, "best_value": self.best_value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best_step, self.best_value = state["best_step"], state["best_value"]


def cut_metrics(path: Path, step: int, *, key: str = "step") -> None:
    """Drop the lines of ``metrics.jsonl`` whose ``key`` is past ``step``.

    A line that cannot be read, which a power cut may leave, is dropped with all that follow it.
    """
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            if json.loads(line)[key] <= step:
                kept.append(line)
        except (json.JSONDecodeError, KeyError, TypeError):
            break
    write_text(path, "".join(line + "\n" for line in kept))


def _memory_bytes(device: torch.device) -> int:
    """Peak bytes allocated on CUDA; bytes resident now elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return psutil.Process().memory_info().rss
