"""Average the weights of several checkpoints into a new model (Vaswani et al. 2017, section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wordloom.errors import CheckpointError
from wordloom.models import family_of
from wordloom.run.checkpoint.derived import save_derived
from wordloom.training.checkpoint import checkpoint_steps
from wordloom.weights import load_config, load_model

# The files that decide the meaning of ids; they must be equal in all checkpoints.
_VOCABULARIES = ("tokenizer.json", "vocabulary.json", "source_tokenizer/tokenizer.json")


def average(
    sources: Sequence[str | Path], out: str | Path, *, last: int | None = None, overwrite: bool = False
) -> list[Path]:
    """Write the mean of checkpoints into the folder ``out``, with their tokenizer; return the checkpoints.

    ``sources`` are checkpoint folders, or the folders of runs.  A run stands for all checkpoints that it
    keeps (the newest ``train.keep_last``), or for its newest ``last``.  The weights are summed in float32
    and rounded once, to their own dtype.  ``average.json`` names the checkpoints, and ``recipe.toml`` is
    copied.

    Raises CheckpointError for fewer than two checkpoints, for fewer than ``last``, for different models or
    vocabularies, and for an ``out`` that holds a checkpoint, unless ``overwrite``.
    """
    checkpoints = _checkpoints(list(map(Path, sources)), last)
    if Path(out).parent.name == "checkpoints" and Path(out).name.startswith("step-"):
        raise CheckpointError(f"{out} has the name of a checkpoint of the run; name another folder")
    config, state = mean_weights(checkpoints)
    newest = checkpoints[-1]
    steps = [int(path.name.removeprefix("step-")) for path in checkpoints if path.name.startswith("step-")]
    facts = {"average": "mean", "checkpoints": list(map(str, checkpoints)), "steps": steps}
    save_derived(
        (config, state), Path(out), source=newest, facts=facts, name="average.json", overwrite=overwrite
    )
    return checkpoints


def mean_weights(folders: Sequence[Path]) -> tuple[Any, dict[str, Tensor]]:
    """Return the config and the mean state of checkpoints; raises CheckpointError for different models."""
    first = folders[0]
    config = load_config(first)
    for folder in folders[1:]:
        _require_alike(folder, first, config)
    types: dict[str, torch.dtype] = {}
    total: dict[str, Tensor] = {}
    for folder in folders:
        for name, tensor in load_model(folder).state_dict().items():
            wide = torch.promote_types(tensor.dtype, torch.float32)
            total[name] = total[name].to(wide).add_(tensor) if name in total else tensor.to(wide, copy=True)
            types[name] = torch.promote_types(tensor.dtype, types.get(name, tensor.dtype))
    return config, {name: (sums / len(folders)).to(types[name]) for name, sums in total.items()}


def _checkpoints(sources: list[Path], last: int | None) -> list[Path]:
    folders: list[Path] = []
    for source in sources:
        steps = checkpoint_steps(source)
        if last is not None and last > len(steps):
            has = f"keeps {len(steps)} checkpoints" if steps else "is not a run with checkpoints"
            raise CheckpointError(
                f"{source} {has}, and --last asks for {last}: ask for fewer, or train with train.save_every "
                f"and train.keep_last={last}"
            )
        names = [f"checkpoints/step-{step}" for step in steps[-last if last else 0 :]]
        folders += [source / name for name in names] or [source]
    if len({path.resolve() for path in folders}) < max(2, len(folders)):
        named = ", ".join(map(str, folders))
        raise CheckpointError(
            f"an average needs at least two different checkpoints, not {named}; name more, or train with "
            "train.save_every and train.keep_last"
        )
    return folders


def _require_alike(folder: Path, first: Path, config: Any) -> None:
    """Raise CheckpointError unless ``folder`` has the config and vocabulary of ``first``."""
    other = load_config(folder)
    differs = ""
    if type(other) is not type(config):
        differs = f"holds a {family_of(other)} and {first} a {family_of(config)}"
    elif other != config:
        name = next(f.name for f in fields(other) if getattr(other, f.name) != getattr(config, f.name))
        differs = f"has {name} {getattr(other, name)!r} and {first} {getattr(config, name)!r}"
    else:
        for file in _VOCABULARIES:
            if _bytes(folder / file) != _bytes(first / file):
                differs = f"has another {file} than {first}"
    if differs:
        raise CheckpointError(
            f"{folder} {differs}; only checkpoints of one model and one vocabulary can be averaged"
        )


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
