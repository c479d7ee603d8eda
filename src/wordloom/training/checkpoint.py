"""Checkpoints of a run: complete folders under their names, or none.

``RUN/checkpoints/step-N/`` is a model folder that every tool reads.  Its subfolder ``trainer/`` holds the
optimizer's tensors (``state.safetensors``), and the other state with the sha256 of every other file
(``state.json``).  No file is a pickle.

Several ranks write ``trainer/ranks/`` instead of the weights and ``state.safetensors``, while training goes
on: each rank a file with its parts of all tensors.  Wordloom reads such a folder as any other.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from wordloom.errors import CheckpointError, NonFiniteError
from wordloom.files import publish_folder, remove_folder
from wordloom.nn.linear import processor
from wordloom.training.ranks import Ranks, part_here
from wordloom.training.trainer import Trainer
from wordloom.weights.integrity import advice_if_damaged, check_files, read_values, write_state
from wordloom.weights.tensors import RANKS, WEIGHT, RankFiles

if TYPE_CHECKING:
    from wordloom.training.background_save import PartFiles


def write_checkpoint(
    trainer: Trainer,
    run: Path,
    *,
    write_model: Callable[[Any, Path], None],
    facts: dict[str, Any],
    keep_last: int,
    best_step: int | None,
    consolidate: bool = True,
) -> None:
    """Write ``run/checkpoints/step-N``, then remove all but the last ``keep_last`` and the best checkpoint.

    ``write_model(model, folder)`` writes the model's own files; ``facts`` goes into ``state.json``.  All
    ranks call this together, and the first one writes.  Unless they ``consolidate``, several ranks write
    their parts in the background, and ``trainer.finish_saving`` waits for them.

    Raises CheckpointError when the disk refuses, and NonFiniteError when the weights are not finite; earlier
    checkpoints stay.
    """
    trainer.finish_saving()
    saving = _Saving(
        trainer, run, write_model=write_model, facts=facts, keep_last=keep_last, best_step=best_step
    )
    if saving.final.exists():  # stopped right after a resume: the checkpoint is equal to the bit
        trainer.last_checkpoint = str(saving.final)
        return
    _refuse_not_finite(trainer)
    if consolidate or trainer.ranks.size == 1:
        saving.write_whole()
    else:
        saving.write_parts()


@dataclass
class _Saving:
    """The writing of one checkpoint: into a temporary folder, which gets its name when it is complete.

    The arguments are those of :func:`write_checkpoint`.
    """

    trainer: Trainer
    run: Path
    _: KW_ONLY
    write_model: Callable[[Any, Path], None]
    facts: dict[str, Any]
    keep_last: int
    best_step: int | None

    def __post_init__(self) -> None:
        self.final = self.run / "checkpoints" / f"step-{self.trainer.step}"
        self._temporary = self.final.with_name(f".writing-{self.final.name}")

    def write_whole(self) -> None:
        """Write an ordinary model folder on the first rank."""
        ranks = self.trainer.ranks
        tensors, values = self.trainer.state_dict()
        with self.trainer.whole_model() as model, ranks.together():
            if ranks.is_first:
                with self._refused():
                    self._begin(model)
                    contiguous = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
                    save_file(contiguous, self._temporary / "trainer" / "state.safetensors")
                    self._publish(values)
        self._end(ranks)

    def write_parts(self) -> None:
        """Copy the parts of all ranks, and start to write them."""
        trainer, ranks = self.trainer, self.trainer.ranks
        weights = {f"{WEIGHT}{name}": tensor for name, tensor in trainer.weight_tensors().items()}
        tensors, values = weights | trainer.state_tensors(), trainer.state_values()
        with ranks.together():
            if ranks.is_first:
                with self._refused():
                    self._begin(trainer.model_without_weights)
                    (self._temporary / RANKS).mkdir()

        def finish(files: PartFiles) -> None:
            with self._refused():
                hashes = {f"{RANKS}/{name}": digest for name, digest in files.hashes().items()}
            with files.ranks.together():
                if ranks.is_first:
                    with self._refused():
                        self._publish(values, hashes)
            self._end(files.ranks)

        trainer.background.start(tensors, self._temporary / RANKS, finish)

    def _begin(self, model: Any) -> None:
        self._temporary.parent.mkdir(parents=True, exist_ok=True)
        _discard(self._temporary)
        self.write_model(model, self._temporary)
        (self._temporary / "trainer").mkdir()

    def _publish(self, values: dict[str, Any], hashes: Mapping[str, str] | None = None) -> None:
        values = {**values, "environment": environment(self.trainer), **self.facts}
        write_state(self._temporary, values, hashes)
        publish_folder(self._temporary, self.final)

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Discard what was written, and say so in one line, if the block cannot write."""
        try:
            yield
        except (OSError, SafetensorError, CheckpointError) as error:
            _discard(self._temporary)
            reason = error.__cause__ or error  # save_model names its folder, which is gone now
            raise CheckpointError(
                f"could not write checkpoint {self.final}: {reason}; the last good one is "
                f"{self.trainer.last_checkpoint or 'none'}. Free some space and resume"
            ) from None

    def _end(self, ranks: Ranks) -> None:
        self.trainer.last_checkpoint = str(self.final)
        if ranks.is_first:
            for step in checkpoint_steps(self.run)[: -self.keep_last]:
                if step != self.best_step:
                    _discard(self.final.with_name(f"step-{step}"))


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


def read_state(checkpoint: Path) -> tuple[Mapping[str, torch.Tensor], dict[str, Any]]:
    """Return the (tensors, values) of :meth:`Trainer.state_dict`; the values include the ``facts`` written.

    Tensors that ranks wrote are read one by one, when they are asked for.

    Raises CheckpointError, with advice, when a file of the checkpoint is damaged.
    """
    folder = checkpoint / "trainer"
    check_files(checkpoint)
    values = read_values(checkpoint)
    try:
        if re.fullmatch(r"step-\d+", checkpoint.name) and checkpoint.name != f"step-{values['step']}":
            raise ValueError(f"it is of step {values['step']}, and its folder is called {checkpoint.name}")
        if (checkpoint / RANKS).is_dir():
            return RankFiles(checkpoint / RANKS), values
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
