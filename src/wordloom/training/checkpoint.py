"""Checkpoints of a run: complete folders under their names, or none.

``RUN/checkpoints/step-N/`` is a model folder that every tool reads.  Its subfolder ``trainer/`` holds the
optimizer's tensors (``state.safetensors``), and the other state with the sha256 of every other file
(``state.json``).  No file is a pickle.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Collection
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from wordloom.errors import CheckpointError, NonFiniteError
from wordloom.files import publish_folder, remove_folder
from wordloom.nn.linear import processor
from wordloom.training.trainer import Trainer
from wordloom.weights.integrity import STATE, advice_if_damaged, check_files, hash_files

_STATE = ("step", "samples", "total_steps", "seed", "hooks", "environment", "tensors")  # of state.json


def write_checkpoint(
    trainer: Trainer,
    run: Path,
    *,
    write_model: Callable[[Path], None],
    facts: dict[str, Any],
    keep_last: int,
    best_step: int | None,
) -> Path:
    """Write ``run/checkpoints/step-N``, then remove all but the last ``keep_last`` and the best checkpoint.

    ``write_model(folder)`` writes the model's own files; ``facts`` goes into ``state.json``.

    Raises CheckpointError when the disk refuses, and NonFiniteError when the weights are not finite; earlier
    checkpoints stay.
    """
    parent = run / "checkpoints"
    final = parent / f"step-{trainer.step}"
    temporary = parent / f".writing-step-{trainer.step}"
    if final.exists():  # stopped right after a resume: the checkpoint is equal to the bit
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
        contiguous = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        save_file(contiguous, temporary / "trainer" / "state.safetensors")
        state = {**values, "environment": environment(trainer), **facts, "tensors": _shapes(tensors)}
        state["files"] = hash_files(temporary)
        (temporary / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
        publish_folder(temporary, final)
    except (OSError, SafetensorError, CheckpointError) as error:
        _discard(temporary)
        reason = error.__cause__ or error  # save_model names its folder, which is gone now
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
    """Return the steps of the complete checkpoints of ``run``, ascending."""
    names = (re.fullmatch(r"step-(\d+)", path.name) for path in (run / "checkpoints").glob("step-*"))
    return sorted(int(name[1]) for name in names if name)


def latest_checkpoint(run: Path) -> Path | None:
    """Return the newest complete checkpoint of ``run``; remove incomplete ones, which a kill leaves."""
    for left_over in (run / "checkpoints").glob(".writing-*"):
        _discard(left_over)
    steps = checkpoint_steps(run)
    return run / "checkpoints" / f"step-{steps[-1]}" if steps else None


def read_state(
    checkpoint: Path, *, facts: Collection[str] = ()
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the (tensors, values) of :meth:`Trainer.state_dict`; the values include the ``facts`` written.

    Raises CheckpointError, with advice, when a file of the checkpoint is damaged.
    """
    folder = checkpoint / "trainer"
    try:
        values = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
        if missing := [name for name in (*_STATE, *facts) if name not in values]:
            raise ValueError(f"state.json lacks {', '.join(missing)}")
        _check_values(checkpoint, values)
        check_files(checkpoint)
        tensors = load_file(folder / "state.safetensors")
        shapes, written = _shapes(tensors), values["tensors"]
        for name in sorted({*written, *shapes}):
            if shapes.get(name) != written.get(name):
                raise ValueError(
                    f"'{name}' in state.safetensors is {shapes.get(name, 'missing')}, and was written as "
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
    for name in ("hooks", "environment", "tensors"):
        if not isinstance(values[name], dict):
            raise ValueError(f"{name} in state.json is not a table")


def _shapes(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Return the shape of every tensor, such as ``8 x 32``."""
    return {name: " x ".join(map(str, tensor.shape)) or "a number" for name, tensor in tensors.items()}


def environment(trainer: Trainer) -> dict[str, Any]:
    """Return the machine, versions and threads, which affect a run's results beside its recipe."""
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
    """Return a line with the differences from the environment of the checkpoint, or None."""
    now = environment(trainer)
    changed = [f"{key} {saved.get(key)} -> {now[key]}" for key in now if saved.get(key) != now[key]]
    line = f"resuming with {', '.join(changed)}: the run continues, but its bits will differ"
    return line if changed else None


def _discard(folder: Path) -> None:
    remove_folder(folder, folder.with_name(f".writing-discarded-{folder.name.lstrip('.')}"))
