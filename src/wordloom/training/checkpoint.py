"""Checkpoints of a run under way: written beside, fsynced, renamed; so one is there whole or not at all.

``RUN/checkpoints/step-N/`` is a model folder that every tool reads, and in it ``trainer/``: the optimizer's
tensors (``state.safetensors``) and the rest as JSON (``state.json``), with the sha256 of every other file.
No pickle.
"""

from __future__ import annotations

import contextlib
import json
import platform
import re
import shutil
from collections.abc import Callable, Collection
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from wordloom.errors import CheckpointError, NonFiniteError
from wordloom.files import sync, sync_tree
from wordloom.nn.linear import processor
from wordloom.training.trainer import Trainer
from wordloom.weights.integrity import STATE, advice_if_damaged, check_files, hash_files

__all__ = [
    "checkpoint_steps",
    "environment",
    "environment_changes",
    "latest_checkpoint",
    "not_finite",
    "read_state",
    "write_checkpoint",
]

_STATE = ("step", "samples", "total_steps", "seed", "hooks", "environment")  # of every state.json


def write_checkpoint(
    trainer: Trainer,
    run: Path,
    *,
    write_model: Callable[[Path], None],
    facts: dict[str, Any],
    keep_last: int,
    best_step: int | None,
) -> Path:
    """Write ``run/checkpoints/step-N`` and then drop the oldest beyond ``keep_last``; the best one stays.

    ``write_model(folder)`` writes the model's own files; ``facts`` goes into ``state.json``.  Raises
    CheckpointError when the disk refuses, and NonFiniteError when the weights are not finite; what was saved
    before is still there.
    """
    parent = run / "checkpoints"
    final = parent / f"step-{trainer.step}"
    temporary = parent / f".writing-step-{trainer.step}"
    if final.exists():  # stopped right after a resume: what is there is equal to the bit
        trainer.last_checkpoint = str(final)
        return final
    if (name := not_finite(trainer)) is not None:
        raise NonFiniteError(
            f"step {trainer.step}: {name} is not finite; no checkpoint of this step was written. Last good "
            f"checkpoint: {trainer.last_checkpoint or 'none yet'}. Lower train.learning_rate or lengthen "
            "train.warmup_steps"
        )
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _discard(temporary)
        write_model(temporary)
        (temporary / "trainer").mkdir()
        tensors, values = trainer.state_dict()
        save_file({key: t.detach().cpu().contiguous() for key, t in tensors.items()},
                  temporary / "trainer" / "state.safetensors")  # fmt: skip
        state = {
            **values,
            "environment": environment(trainer),
            **facts,
            "tensors": _shapes(tensors),
            "files": hash_files(temporary),
        }
        (temporary / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
        sync_tree(temporary)
        temporary.rename(final)
        sync(parent)
    except (OSError, SafetensorError, CheckpointError) as error:
        _discard(temporary)
        reason = error.__cause__ or error  # save_model has said where; here that is a folder now gone
        raise CheckpointError(
            f"could not write checkpoint {final}: {reason}; the last good one is "
            f"{trainer.last_checkpoint or 'none'}. Free some space and resume"
        ) from None
    trainer.last_checkpoint = str(final)
    steps = checkpoint_steps(run)
    for step in steps[:-keep_last]:
        if step != best_step:
            _discard(parent / f"step-{step}")
    return final


def not_finite(trainer: Trainer) -> str | None:
    """Return the name of a parameter that holds NaN or infinity, in itself or in its average, or None."""
    averages = [] if trainer.average is None else trainer.average.state_tensors().items()
    for name, tensor in (*trainer.model.named_parameters(), *averages):
        if not bool(tensor.isfinite().all()):
            return name
    return None


def checkpoint_steps(run: Path) -> list[int]:
    """The steps whose checkpoints are whole, ascending."""
    found = (re.fullmatch(r"step-(\d+)", path.name) for path in (run / "checkpoints").glob("step-*"))
    return sorted(int(match[1]) for match in found if match)


def latest_checkpoint(run: Path) -> Path | None:
    """The newest whole checkpoint of ``run``; half-written ones, left by a kill, are removed."""
    for left_over in (run / "checkpoints").glob(".writing-*"):
        _discard(left_over)
    steps = checkpoint_steps(run)
    return run / "checkpoints" / f"step-{steps[-1]}" if steps else None


def read_state(
    checkpoint: Path, *, facts: Collection[str] = ()
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """(tensors, values) as :meth:`Trainer.state_dict` gave them, with what :func:`write_checkpoint` was given
    as ``facts``.

    Raises CheckpointError when a file of the checkpoint is damaged, and says how to go on.
    """
    folder = checkpoint / "trainer"
    try:
        values = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
        if missing := [name for name in (*_STATE, *facts) if name not in values]:
            raise ValueError(f"state.json lacks {', '.join(missing)}")
        _check_values(checkpoint, values)
        check_files(checkpoint)
        tensors = load_file(folder / "state.safetensors")
        found = _shapes(tensors)
        written = values.get("tensors", found)  # older checkpoints do not say
        for name in sorted({*written, *found}):
            if found.get(name) != written.get(name):
                raise ValueError(
                    f"'{name}' in state.safetensors is {found.get(name, 'missing')}, and was written as "
                    f"{written.get(name, 'nothing')}"
                )
        return tensors, values
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot read the training state in {folder}: {error}; {advice_if_damaged(checkpoint)}"
        ) from None


def _check_values(checkpoint: Path, values: dict[str, Any]) -> None:
    """Raise ValueError for a number or table of ``state.json`` that no run can have written."""
    for name in ("step", "samples", "total_steps", "seed"):
        value = values[name]
        if type(value) is not int or value < 0:
            raise ValueError(f"{name} in state.json is {value!r}, not a whole number of at least 0")
    if re.fullmatch(r"step-\d+", checkpoint.name) and checkpoint.name != f"step-{values['step']}":
        raise ValueError(
            f"step in state.json is {values['step']}, and the folder is called {checkpoint.name}"
        )
    if values["step"] > values["total_steps"]:
        raise ValueError(f"step in state.json is {values['step']} of {values['total_steps']}")
    for name in ("hooks", "environment"):
        if not isinstance(values[name], dict):
            raise ValueError(f"{name} in state.json is no table")


def _shapes(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Return the shape of every tensor, such as ``8 x 32``."""
    return {name: " x ".join(map(str, tensor.shape)) or "a number" for name, tensor in tensors.items()}


def environment(trainer: Trainer) -> dict[str, Any]:
    """Return the facts that decide a run's results besides its recipe: machine, versions, threads."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": trainer.device.type,
        "precision": trainer.precision.mode,
        "numba": version("numba") if find_spec("numba") else None,
        "processor": processor(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
    }


def environment_changes(trainer: Trainer, saved: dict[str, Any]) -> str | None:
    """One line naming what differs from when the checkpoint was written, or None."""
    now = environment(trainer)
    changed = [f"{key} {saved.get(key)} -> {now[key]}" for key in now if saved.get(key) != now[key]]
    return (
        f"resuming with {', '.join(changed)}: the run goes on, but not to the same bits" if changed else None
    )


def _discard(folder: Path) -> None:
    """Remove ``folder`` in a way that a kill cannot leave it half there under its own name."""
    if not folder.exists():
        return
    doomed = folder.with_name(f".writing-discarded-{folder.name.lstrip('.')}")
    with contextlib.suppress(OSError):
        shutil.rmtree(doomed)
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
