"""Beginning with the weights of another model: what both have is taken, and the rest is said."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wordloom.errors import CheckpointError
from wordloom.models import TaskConfig, body_config, family_of
from wordloom.weights.folders import RESOLVED, load_model

__all__ = ["Started", "start_from"]

# What may differ, beside dropouts: parts that a model has or has not, and what the weights know nothing of.
_PARTS = ("pooler", "masked_lm_head", "next_sentence_head")
_SIZES = ("vocab_size", "max_seq_len", "type_vocab_size")  # they show in the shapes


class Started(NamedTuple):
    """Modules whose weights, or rows of them, were not in the checkpoint (``fresh``), or are not in the model
    (``dropped``)."""

    fresh: tuple[str, ...]
    dropped: tuple[str, ...]

    def lines(self) -> list[str]:
        """What a person is told."""
        told = (("fresh", self.fresh), ("left out", self.dropped))
        return [f"start       {what}: {', '.join(names)}" for what, names in told if names]


@torch.no_grad()
def start_from(model: Any, folder: str | Path, *, more_tokens: bool = False) -> Started:
    """Copy the weights of ``folder`` into ``model``, of the same family, which may have other heads.

    A model with a head for a task takes the body of one that has none, or another; the same head, too.
    ``more_tokens``: its vocabulary may go on behind that of ``folder``, with rows that stay as they are.

    Raises CheckpointError for another family, other settings of what both have, and another shape.
    """
    folder = Path(folder)
    other: Any = load_model(folder, dtype=torch.float32)
    ours, theirs = model.config, other.config
    own_head, other_head = isinstance(ours, TaskConfig), isinstance(theirs, TaskConfig)
    same_head = own_head and other_head and _head_of(ours) == _head_of(theirs)
    if not same_head and (own_head or other_head):
        mine, its = model.body if own_head else model, other.body if other_head else other
        body = start_body(mine, its, folder, more_tokens=more_tokens)
        return Started(
            (*body.fresh, *["classifier"] * own_head), (*body.dropped, *["classifier"] * other_head)
        )
    return start_body(model, other, folder, more_tokens=more_tokens)


def _head_of(config: TaskConfig) -> tuple[Any, ...]:
    return config.task, config.labels


def start_body(model: Any, other: Any, folder: Path, *, more_tokens: bool = False) -> Started:
    """As :func:`start_from`, of the model ``other`` that was read from ``folder``."""
    ours, theirs = body_config(model.config), body_config(other.config)
    if type(ours) is not type(theirs):
        raise CheckpointError(f"{folder} holds a {family_of(theirs)}, the model is a {family_of(ours)}")
    for field in fields(ours):
        name = RESOLVED.get(field.name, field.name)
        if name.endswith("dropout") or name in (*_PARTS, *_SIZES, "hidden_dim", "empty_id"):
            continue
        if name == "mlm_head_activation" and not (ours.masked_lm_head and theirs.masked_lm_head):
            continue
        wanted, given = getattr(ours, name), getattr(theirs, name)
        if wanted != given:
            raise CheckpointError(f"{folder} has {field.name} {given!r}, the model has {wanted!r}")
    state, stored = model.state_dict(), other.state_dict()
    more: dict[int, str] = {}  # by their address, since an output may be the embedding
    for name in sorted(state.keys() & stored.keys(), reverse=True):  # token_embedding before lm_head
        known = stored[name].shape[0] if stored[name].dim() else 0
        if more_tokens and known == theirs.vocab_size < ours.vocab_size == state[name].shape[0]:
            more.setdefault(state[name].data_ptr(), f"{name.rpartition('.')[0]}[{known}:{ours.vocab_size}]")
            state[name][:known] = stored[name]
            continue
        if state[name].shape != stored[name].shape:
            raise CheckpointError(
                f"{folder} has {name} of {list(stored[name].shape)}, the model of {list(state[name].shape)}"
            )
        state[name].copy_(stored[name])
    fresh = _modules(state.keys() - stored.keys())
    return Started((*more.values(), *fresh), _modules(stored.keys() - state.keys()))


def _modules(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted({name.rpartition(".")[0] for name in names}))
