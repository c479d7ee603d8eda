"""Checkpoints of a run: complete folders under their names, or none.

``RUN/checkpoints/step-N/`` is a model folder that every tool reads.  Its subfolder ``trainer/`` holds the
optimizer's tensors (``state.safetensors``), and the other state with the sha256 of every other file
(``state.json``).  No file is a pickle.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
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
from wordloom.training.ranks import part_here
from wordloom.training.trainer import Trainer
from wordloom.weights.integrity import advice_if_damaged, check_files, read_values, write_state


def write_checkpoint(
    trainer: Trainer,
    run: Path,
    *,
    write_model: Callable[[Any, Path], None],
    facts: dict[str, Any],
    keep_last: int,
    best_step: int | None,
) -> Path:
    """Write ``run/checkpoints/step-N``, then remove all but the last ``keep_last`` and the best checkpoint.

    ``write_model(model, folder)`` writes the model's own files; ``facts`` goes into ``state.json``.  All
    ranks call this together, and the first one writes.

    Raises CheckpointError when the disk refuses, and NonFiniteError when the weights are not finite; earlier
    checkpoints stay.
    """
    parent = run / "checkpoints"
    final = parent / f"step-{trainer.step}"
    temporary = parent / f".writing-step-{trainer.step}"
    if final.exists():  # stopped right after a resume: the checkpoint is equal to the bit
        trainer.last_checkpoint = str(final)
        return final
    ranks = trainer.ranks
    _refuse_not_finite(trainer)
    tensors, values = trainer.state_dict()
    with trainer.whole_model() as model, ranks.together():
        if ranks.is_first:
            try:
                parent.mkdir(parents=True, exist_ok=True)
                _discard(temporary)
                write_model(model, temporary)
                (temporary / "trainer").mkdir()
                contiguous = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
                save_file(contiguous, temporary / "trainer" / "state.safetensors")
                write_state(temporary, {**values, "environment": environment(trainer), **facts})
                publish_folder(temporary, final)
            except (OSError, SafetensorError, CheckpointError) as error:
                _discard(temporary)
                reason = error.__cause__ or error  # save_model names its folder, which is gone now
                raise CheckpointError(
                    f"could not write checkpoint {final}: {reason}; the last good one is "
                    f"{trainer.last_checkpoint or 'none'}. Free some space and resume"
                ) from None
    trainer.last_checkpoint = str(final)
    if ranks.is_first:
        for step in checkpoint_steps(run)[:-keep_last]:
            if step != best_step:
                _discard(parent / f"step-{step}")
    return final


def _refuse_not_finite(trainer: Trainer) -> None:
    name = not_finite(trainer)
    if trainer.ranks.summed(torch.tensor([name is not None], dtype=torch.int64)).any():
        name = name or "a weight of another rank"
        raise NonFiniteError(
            f"step {trainer.step}: {name} is not finite; no checkpoint of this step was written. Last good "
            f"checkpoint: {trainer.last_checkpoint or 'none yet'}. Lower train.learning_rate or lengthen "
            "train.warmup_steps"
        )


def not_finite(trainer: Trainer) -> str | None:
    """Return the name of a parameter that holds NaN or infinity, in itself or in its average, or None."""
    averages = [] if trainer.average is None else trainer.average.state_tensors().items()
    for name, tensor in (*trainer.model.named_parameters(), *averages):
        if not bool(part_here(tensor).isfinite().all()):
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


def read_state(checkpoint: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the (tensors, values) of :meth:`Trainer.state_dict`; the values include the ``facts`` written.

    Raises CheckpointError, with advice, when a file of the checkpoint is damaged.
    """
    folder = checkpoint / "trainer"
    check_files(checkpoint)
    values = read_values(checkpoint)
    try:
        if re.fullmatch(r"step-\d+", checkpoint.name) and checkpoint.name != f"step-{values['step']}":
            raise ValueError(f"it is of step {values['step']}, and its folder is called {checkpoint.name}")
        return load_file(folder / "state.safetensors"), values
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot read the training state in {folder}: {error}; {advice_if_damaged(checkpoint)}"
        ) from None


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
