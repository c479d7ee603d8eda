"""Start a model from the weights of a checkpoint whose heads or vocabulary may differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from wordloom.errors import CheckpointError
from wordloom.models import TaskConfig, body_config
from wordloom.weights.configs import require_equal_settings
from wordloom.weights.loading import load_model

# Settings that may differ: optional parts, and sizes that show in the shapes.
_MAY_DIFFER = (
    "pooler", "masked_lm_head", "next_sentence_head",
    "vocab_size", "max_seq_len", "type_vocab_size", "hidden_dim", "empty_id",
)  # fmt: skip


class PretrainedStart(NamedTuple):
    """The modules that were not copied.

    Attributes:
        fresh: modules of the model, or rows of them, that the checkpoint lacks.
        dropped: modules of the checkpoint that the model lacks.
    """

    fresh: tuple[str, ...]
    dropped: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the report, a line for each kind of module."""
        kinds = (("fresh", self.fresh), ("left out", self.dropped))
        return [f"start       {kind}: {', '.join(names)}" for kind, names in kinds if names]


@torch.no_grad()
def start_from(model: Any, folder: str | Path, *, extra_tokens: bool = False) -> PretrainedStart:
    """Copy the weights of ``folder`` into ``model``, of the same family.

    The heads may differ.  A model with a task head takes only the body of a checkpoint without that head.
    ``extra_tokens`` allows the model's vocabulary to be longer; its further rows stay as they are.

    Raises CheckpointError for another family, for other settings of the shared parts, and for another shape.
    """
    folder = Path(folder)
    stored: Any = load_model(folder, dtype=torch.float32)
    ours, theirs = model.config, stored.config
    has_head, stored_head = isinstance(ours, TaskConfig), isinstance(theirs, TaskConfig)
    if has_head and stored_head and (ours.task, ours.labels) == (theirs.task, theirs.labels):
        return _copy(model, stored, folder, extra_tokens)
    body, stored_body = model.body if has_head else model, stored.body if stored_head else stored
    start = _copy(body, stored_body, folder, extra_tokens)
    head = ("classifier",)
    return PretrainedStart(start.fresh + head * has_head, start.dropped + head * stored_head)


def _copy(model: Any, stored: Any, folder: Path, extra_tokens: bool) -> PretrainedStart:
    """Copy the weights of ``stored``, which was read from ``folder``, into ``model``."""
    ours, theirs = body_config(model.config), body_config(stored.config)
    heads = type(ours) is type(theirs) and all(getattr(c, "masked_lm_head", False) for c in (ours, theirs))
    may_differ = _MAY_DIFFER if heads else (*_MAY_DIFFER, "mlm_activation")
    require_equal_settings(theirs, ours, folder, may_differ=may_differ)
    state, stored_state = model.state_dict(), stored.state_dict()
    extra: dict[int, str] = {}  # by address, since lm_head may share the embedding's
    for name in sorted(state.keys() & stored_state.keys(), reverse=True):  # token_embedding before lm_head
        target, source = state[name], stored_state[name]
        rows = source.shape[0] if source.dim() else 0
        if extra_tokens and rows == theirs.vocab_size < ours.vocab_size == target.shape[0]:
            extra.setdefault(target.data_ptr(), f"{name.rpartition('.')[0]}[{rows}:{ours.vocab_size}]")
            target[:rows] = source
            continue
        if target.shape != source.shape:
            raise CheckpointError(
                f"{folder} has {name} of {list(source.shape)}, the model of {list(target.shape)}"
            )
        target.copy_(source)
    fresh = _modules(state.keys() - stored_state.keys())
    return PretrainedStart((*extra.values(), *fresh), _modules(stored_state.keys() - state.keys()))


def _modules(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted({name.rpartition(".")[0] for name in names}))
