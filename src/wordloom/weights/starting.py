"""Beginning with the weights of another model: what both have is taken, and the rest is said."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wordloom.errors import CheckpointError
from wordloom.models import family_of
from wordloom.weights.folders import load_model

__all__ = ["Started", "start_from"]

# What may differ, beside dropouts: parts that a model has or has not, and what the weights know nothing of.
_PARTS = ("pooler", "masked_lm_head", "next_sentence_head")
_SIZES = ("vocab_size", "max_seq_len", "type_vocab_size")  # they show in the shapes


class Started(NamedTuple):
    """Modules whose weights were not in the checkpoint (``fresh``), or are not in the model (``dropped``)."""

    fresh: tuple[str, ...]
    dropped: tuple[str, ...]

    def lines(self) -> list[str]:
        """What a person is told."""
        told = (("fresh", self.fresh), ("left out", self.dropped))
        return [f"start       {what}: {', '.join(names)}" for what, names in told if names]


@torch.no_grad()
def start_from(model: Any, folder: str | Path) -> Started:
    """Copy the weights of ``folder`` into ``model``, of the same family, which may have other heads.

    Raises CheckpointError for another family, other settings of what both have, and another shape.
    """
    folder = Path(folder)
    other: Any = load_model(folder, dtype=torch.float32)
    ours, theirs = model.config, other.config
    if type(ours) is not type(theirs):
        raise CheckpointError(f"{folder} holds a {family_of(theirs)}, the model is a {family_of(ours)}")
    for field in fields(ours):
        if field.name.endswith("dropout") or field.name in (*_PARTS, *_SIZES, "hidden_dim"):
            continue
        wanted, given = getattr(ours, field.name), getattr(theirs, field.name)
        if wanted != given:
            raise CheckpointError(f"{folder} has {field.name} {given!r}, the model has {wanted!r}")
    state, stored = model.state_dict(), other.state_dict()
    for name in state.keys() & stored.keys():
        if state[name].shape != stored[name].shape:
            raise CheckpointError(
                f"{folder} has {name} of {list(stored[name].shape)}, the model of {list(state[name].shape)}"
            )
        state[name].copy_(stored[name])
    return Started(_modules(state.keys() - stored.keys()), _modules(stored.keys() - state.keys()))


def _modules(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted({name.rpartition(".")[0] for name in names}))
