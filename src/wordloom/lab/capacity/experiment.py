"""Train one model on facts, and measure the bits that it stores; a run that is killed can resume.

The folder of a run holds ``settings.json``, ``metrics.jsonl``, checkpoints and at the end the model and
``result.json``.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from wordloom.errors import CheckpointError, NonFiniteError
from wordloom.files import sync_tree, write_text
from wordloom.lab.capacity.measuring import ROUNDINGS, measure, rounded, used_parameters
from wordloom.lab.capacity.models import config_of, new_model, read_model, save_weights
from wordloom.lab.capacity.result import RESULT, Knowledge, Result, read_result
from wordloom.lab.capacity.settings import Settings
from wordloom.models.building.cost import flops_per_token
from wordloom.objectives import objective
from wordloom.progress import TrainingProgress
from wordloom.run.folder import locked
from wordloom.training.checkpoint import (
    environment_changes,
    latest_checkpoint,
    read_state,
    write_checkpoint,
)
from wordloom.training.hooks import Evaluate, Log, cut_metrics
from wordloom.training.plan import Costs
from wordloom.training.precision import choose_device
from wordloom.training.ranks import Ranks
from wordloom.training.trainer import Hook, StepRecord, Trainer

SETTINGS = "settings.json"
SAVE_SECONDS = 60.0  # between two checkpoints
_MEASUREMENTS = 10  # of the stored bits, in the course of a run
_LOG_EVERY = 100  # steps


def run(
    out: Path,
    given: Mapping[str, Any],
    *,
    resume: bool = False,
    device: str = "cpu",
    save_seconds: float = SAVE_SECONDS,
    progress: TrainingProgress | None = None,
) -> Result | None:
    """Train into the folder ``out`` and return the result, or None if a signal stopped the run.

    Args:
        out: the folder of the run, empty or new unless ``resume``.
        given: values of :class:`Settings`; a run that resumes takes the other ones from the folder.
        resume: continue the run in the folder; the result is the same as without the interruption.
        device: the device to train on.
        save_seconds: the seconds between two checkpoints.
        progress: shows the progress.

    Raises ConfigError for impossible settings, DeviceError for a device that is not here, and CheckpointError
    for a folder that cannot be used.
    """
    progress = progress or TrainingProgress()
    settings = _resumed_settings(out, given) if resume else _new_settings(out, given)
    choose_device(device)  # raises for one that is not here, before there is a folder
    with locked(out, "is training"):
        if resume and (out / RESULT).exists():
            progress.say(f"{out} is finished")
            return read_result(out)
        write_text(out / SETTINGS, json.dumps(settings.as_dict(), indent=1) + "\n")
        trainer = _trainer(out, settings, device, save_seconds, progress)
        progress.start(total=trainer.total_steps, done=trainer.step)
        try:
            ended = trainer.run()
        finally:
            progress.stop()
        if ended == "stopped":
            progress.say(f"stopped at step {trainer.step:,} of {trainer.total_steps:,}")
            return None
        result = _result(trainer.model, settings)
        try:
            save_weights(trainer.model, out)
            write_text(out / RESULT, json.dumps(result.as_dict(), indent=1) + "\n")
            sync_tree(out)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"could not write the result into {out}: {error}; free some space and run again with --resume"
            ) from None
        return result


def _new_settings(out: Path, given: Mapping[str, Any]) -> Settings:
    settings = Settings(**given)
    config_of(settings)  # raises ConfigError for an impossible shape
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        what = "holds a run: continue it with --resume, or" if (out / SETTINGS).exists() else "is in use;"
        raise CheckpointError(f"{out} {what} choose another --out")
    return settings


def _resumed_settings(out: Path, given: Mapping[str, Any]) -> Settings:
    """Return the settings of the run in ``out``; raise CheckpointError if ``given`` ones differ."""
    try:
        settings = Settings(**json.loads((out / SETTINGS).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise CheckpointError(f"{out} holds no run of this experiment; leave out --resume") from None
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"cannot read {out / SETTINGS}: {error}; choose another --out") from None
    saved = settings.as_dict()
    for name, value in given.items():
        if saved[name] != value:
            raise CheckpointError(
                f"{out} was begun with {name} {saved[name]}, not {value}; leave {name} out, or choose "
                "another --out"
            )
    return settings


def _trainer(
    out: Path, settings: Settings, device: str, save_seconds: float, progress: TrainingProgress
) -> Trainer:
    """Return the trainer of the run, at the last checkpoint in ``out`` if there is one."""
    checkpoint, s = latest_checkpoint(out), settings.training(device)
    model = new_model(settings) if checkpoint is None else read_model(settings, checkpoint)
    facts = settings.facts
    trainer = Trainer(
        model,
        objective("causal_lm"),
        facts.training(),
        s,
        total_steps=settings.steps,
        seed=settings.seed,
    )
    parameters = used_parameters(model, facts)

    def evaluate(model: Any, _: Ranks) -> dict[str, float]:
        nats = measure(model, facts, orders=1).nats
        if not math.isfinite(sum(nats)):
            raise NonFiniteError("the losses are not finite; lower --learning-rate, and choose another --out")
        return {"bits_per_parameter": facts.space.stored(facts.people, nats).total / parameters}

    each = flops_per_token(model, context=facts.window).training
    costs = Costs(flops_per_token=each, tokens_per_sample=facts.window, dense=True)
    trainer.hooks = [
        Evaluate(evaluate, every=max(1, settings.steps // _MEASUREMENTS)),
        Log(
            out / "metrics.jsonl",
            every=_LOG_EVERY,
            report=lambda line: _report(line, progress),
            work=lambda steps: costs.of_step(settings.rows * steps),
            peak_flops=None,
        ),
        SaveByTime(out, save_seconds),
    ]
    if checkpoint is not None:
        tensors, values = read_state(checkpoint)
        trainer.load_state_dict(tensors, values)
        trainer.last_checkpoint = str(checkpoint)
        if (changes := environment_changes(trainer, values["environment"])) is not None:
            progress.say(changes)
        progress.say(f"resuming at step {trainer.step:,} of {trainer.total_steps:,}")
    cut_metrics(out / "metrics.jsonl", trainer.step if checkpoint is not None else -1)
    return trainer


def _report(line: dict[str, Any], progress: TrainingProgress) -> None:
    if line["kind"] == "evaluate":
        progress.say(f"step {line['step']:,}: {line['bits_per_parameter']:.3f} bits per parameter")
    else:
        progress.update(line)


class SaveByTime(Hook):
    """A hook that writes a checkpoint every ``seconds`` seconds, when stopped and at the end."""

    def __init__(self, run: Path, seconds: float) -> None:
        self.run = run
        self.seconds = seconds
        self._last = time.monotonic()

    def after_step(self, trainer: Trainer, record: StepRecord) -> None:
        if trainer.stopping or time.monotonic() - self._last >= self.seconds:
            self._save(trainer)

    def on_end(self, trainer: Trainer) -> None:
        self._save(trainer)  # a stop may arrive between after_step and here

    def _save(self, trainer: Trainer) -> None:
        for hook in trainer.hooks:
            if isinstance(hook, Log):
                hook.sync()
        write_checkpoint(
            trainer,
            self.run,
            write_model=save_weights,
            facts={},
            keep_last=2,
            best_step=None,
        )
        self._last = time.monotonic()


def _result(model: Any, settings: Settings) -> Result:
    """Measure the finished ``model``, also with its weights rounded."""
    facts = settings.facts
    kinds = {"fp32": Knowledge.of(facts, measure(model, facts))}
    for to in ROUNDINGS:
        with rounded(model, to):
            kinds[to] = Knowledge.of(facts, measure(model, facts))
    return Result(settings=settings, parameters=used_parameters(model, facts), **kinds)
