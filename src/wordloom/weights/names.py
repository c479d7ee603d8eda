"""The table of stored names for one model, from its family's table and its config."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from wordloom.models import TaskConfig, skeleton
from wordloom.weights.configs import format_of
from wordloom.weights.families.task_heads import renaming_of_head
from wordloom.weights.renaming import Renaming, Row


def renaming_of(config: Any, *, own: bool | None = None) -> Renaming:
    """Return the table of the model of ``config``.

    ``own`` chooses our names (True) or transformers' (False); None: those that ``config`` is saved under.
    """
    form = format_of(config)
    names = skeleton(config).state_dict().keys()
    if isinstance(config, TaskConfig):
        own = form.config_to(config.body) is None if own is None else own
        body = renaming_of(config.body, own=own)
        return renaming_of_head(config, names, body, None if own else form.model_type)
    tied = ("lm_head.weight", "token_embedding.weight") if getattr(config, "tie_embeddings", False) else None
    n_layers = getattr(config, "n_layers", 0)
    if form.config_to(config) is None if own is None else own:
        rows = [Row(name, (name,)) for name in names]
        return Renaming.of(rows, names=names, n_layers=n_layers, tied=tied)
    if form.renaming is not None:
        return form.renaming(config, names)
    return Renaming.of(
        form.table, names=names, n_layers=n_layers, tied=tied, prefixes=form.prefixes, ignored=form.ignored
    )


def stored_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of ``model`` under the names and in the layout that :func:`save_model` writes."""
    return renaming_of(model.config).to_theirs(model.state_dict())
