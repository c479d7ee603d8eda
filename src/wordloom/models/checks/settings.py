"""Checks of a model's config, each with a one-line error."""

from __future__ import annotations

import math
from typing import Any

from wordloom.errors import ConfigError
from wordloom.nn.recurrent import CELLS, unknown_cell

__all__ = [
    "check_dropout",
    "check_eps",
    "check_heads",
    "check_labels",
    "check_positive",
    "check_recurrence",
    "dropout_or",
]

# No model comes near.  Beyond, building one would hang or overflow before anything could refuse it.
_MOST = {
    **dict.fromkeys(("vocab_size", "source_vocab_size", "max_seq_len"), 2**31 - 1),
    **dict.fromkeys(("n_layers", "n_decoder_layers"), 2_000),
}
_WIDEST = 2**20  # all other settings: widths, and numbers of heads


def check_positive(config: Any, *names: str) -> None:
    """Raise ConfigError unless each named field is a whole number above zero (or None) of sensible size."""
    for name in names:
        value = getattr(config, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ConfigError(f"{type(config).__name__}.{name} must be a whole number above 0, not {value!r}")
        most = _MOST.get(name, _WIDEST)
        if value is not None and value > most:
            raise ConfigError(f"{type(config).__name__}.{name} can be {most:,} at most, not {value:,}")


def check_eps(config: Any) -> None:
    """Raise ConfigError unless ``norm_eps`` keeps a norm from dividing by zero, and no more than that."""
    if not 0.0 < config.norm_eps < 1.0:
        raise ConfigError(
            f"{type(config).__name__}.norm_eps must be a number above 0 and below 1, such as 1e-5; "
            f"not {config.norm_eps!r}"
        )


def check_dropout(config: Any) -> None:
    """Raise ConfigError unless every field whose name ends in ``dropout`` lies in [0, 1)."""
    for name in vars(config):
        value = getattr(config, name)
        if name.endswith("dropout") and value is not None and not 0.0 <= value < 1.0:
            kind = type(config).__name__
            raise ConfigError(f"{kind}.{name} is a share from 0 up to, not including, 1; not {value!r}")


def check_heads(config: Any) -> None:
    """Raise ConfigError unless ``dim`` divides into ``n_heads``."""
    if config.dim % config.n_heads:
        raise ConfigError(f"dim {config.dim} does not divide into {config.n_heads} heads")


def check_labels(config: Any) -> None:
    """Raise ConfigError unless ``id2label`` numbers two classes or more, each with a name of its own."""
    names = [str(name) for name in config.id2label.values()]
    if list(config.id2label) != [str(number) for number in range(len(names))] or len(names) < 2:
        raise ConfigError(
            f'id2label names two classes or more, numbered "0", "1", ...; not {dict(config.id2label)!r}'
        )
    if len(set(names)) != len(names):
        raise ConfigError(f"id2label gives two classes one name: {', '.join(names)}")


def check_recurrence(config: Any) -> None:
    """Raise ConfigError unless ``cell`` is one of CELLS, and ``init_scale``, ``projection`` and
    ``forget_bias`` are for it."""
    kind = type(config).__name__
    if config.cell not in CELLS:
        raise ConfigError(unknown_cell(config.cell))
    scale = getattr(config, "init_scale", None)
    if scale is not None and not 0.0 < scale <= 10.0:
        raise ConfigError(f"{kind}.init_scale must be above 0 and at most 10, not {scale!r}")
    if not math.isfinite(config.forget_bias):
        raise ConfigError(f"{kind}.forget_bias must be a finite number, not {config.forget_bias!r}")
    if config.forget_bias != type(config).forget_bias:
        if "f" not in CELLS[config.cell]:
            raise ConfigError(f"forget_bias belongs to an LSTM; cell {config.cell!r} has no forget gate")
        if not config.bias:
            raise ConfigError("forget_bias is a bias, and bias is false; leave out either")
    projection, width = getattr(config, "projection", None), config.hidden_dim or config.dim
    if projection is not None and projection >= width:
        raise ConfigError(
            f"{kind}.projection narrows hidden_dim {width}, so it is below that, not {projection}"
        )


def dropout_or(value: float | None, default: float) -> float:
    """``value``, or ``default`` where the config leaves it open."""
    return default if value is None else value
