"""Give a model another kind of attention; its weights stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wordloom.errors import ConfigError
from wordloom.models.building.build import config_from, skeleton
from wordloom.models.checks import dropout_or
from wordloom.models.families import MODELS, body_config, family_of
from wordloom.models.task_model import TaskConfig
from wordloom.nn import Attention
from wordloom.nn.attention import Approximation
from wordloom.nn.attention.low_rank import Projection


def with_attention(config: Any, attention: str | list[str]) -> Any:
    """Return ``config`` with other patterns of attention; see :mod:`wordloom.nn.attention.setting`.

    Raises ConfigError for a family without such patterns, and for an unknown one.
    """
    if isinstance(config, TaskConfig):
        return replace(config, body=with_attention(config.body, attention))
    if not hasattr(config, "patterns"):
        able = [name for name, family in MODELS.items() if hasattr(family.config, "patterns")]
        raise ConfigError(
            f"attention {attention!r}: a model of family '{family_of(config)}' has no attention by position; "
            f"these have: {', '.join(able)}"
        )
    return config_from(family_of(config), **{**vars(config), "attention": attention})


def check_attention_dropout(config: Any) -> None:
    """Raise ConfigError for dropout of attention weights in a model with layers that compute none."""
    body = body_config(config)
    share = dropout_or(getattr(body, "attention_dropout", None), getattr(body, "dropout", 0.0))
    for kind in getattr(body, "patterns", ()):
        if isinstance(kind, Approximation) and share and not kind.drops_weights:
            raise ConfigError(
                f"attention '{kind}' has no attention weights for a dropout of {share:g}; set "
                "model.attention_dropout = 0"
            )


def set_attention(model: Any, attention: str) -> None:
    """Give ``model`` and its config other attention.

    Raises ConfigError as :func:`with_attention`, and for a Linformer whose weights the model lacks or has in
    another shape.
    """
    config = with_attention(model.config, attention)
    fresh, there = dict(skeleton(config).named_modules()), dict(model.named_modules())
    missing = set(fresh) - set(there)
    if missing:
        raise ConfigError(
            f"attention {attention!r} has weights that this model lacks, such as {min(missing)}; train it "
            "with them: wordloom train RECIPE --from CHECKPOINT model.attention=..."
        )
    for name, kind in fresh.items():
        if isinstance(kind, Projection) and there[name].weight.shape != kind.weight.shape:
            raise ConfigError(
                f"attention {attention!r} has weights of another shape than this model's {name}; train a "
                "model with it: wordloom train RECIPE model.attention=..."
            )
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            module.pattern = fresh[name].pattern
        elif hasattr(module, "config"):
            module.config = fresh[name].config
