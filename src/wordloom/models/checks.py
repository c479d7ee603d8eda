"""The checks that every model file makes of its settings, its inputs and its initialisation.

The checks of inputs read values on the CPU only.  Under torch.compile they would break the graph, and on a
GPU they would wait for the device; there the engine and the batches keep to the limits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from wordloom.errors import ConfigError, GenerationError
from wordloom.nn.recurrent import CELLS, unknown_cell

# The largest allowed sizes.  Beyond them, building a model would hang or overflow.
_LARGEST = {
    **dict.fromkeys(("vocab_size", "source_vocab_size", "max_seq_len"), 2**31 - 1),
    **dict.fromkeys(("n_layers", "n_decoder_layers"), 2_000),
    **dict.fromkeys(
        ("type_vocab_size", "dim", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "projection",
         "attention_dim", "max_ngram", "window"),
        2**20,
    ),
}  # fmt: skip


def check_settings(config: Any) -> None:
    """Raise ConfigError unless the fields that families share have sensible values.

    Checked are sizes, dropouts, ``norm_eps``, numbers of heads, and the settings of recurrent layers.
    """
    kind, values = type(config).__name__, vars(config)
    for name, value in values.items():
        largest = _LARGEST.get(name)
        if largest is None or value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{kind}.{name} must be a whole number above 0, not {value!r}")
        if value > largest:
            raise ConfigError(f"{kind}.{name} can be {largest:,} at most, not {value:,}")
    for name, value in values.items():
        share = name.endswith("dropout") or name == "weight_drop"
        if share and value is not None and not 0.0 <= value < 1.0:
            raise ConfigError(f"{kind}.{name} is a share from 0 up to, not including, 1; not {value!r}")
    if not 0.0 < values.get("norm_eps", 0.5) < 1.0:
        raise ConfigError(
            f"{kind}.norm_eps must be a number above 0 and below 1, such as 1e-5; not {config.norm_eps!r}"
        )
    if "n_heads" in values:
        _check_heads(config)
    if "cell" in values:
        _check_recurrence(config)


def _check_heads(config: Any) -> None:
    """Raise ConfigError unless heads divide into key/value heads, and ``dim`` into heads."""
    n_kv_heads = getattr(config, "n_kv_heads", None) or config.n_heads
    if config.n_heads % n_kv_heads:
        raise ConfigError(f"n_heads {config.n_heads} is not a multiple of n_kv_heads {n_kv_heads}")
    if config.dim % config.n_heads and getattr(config, "head_dim", None) is None:
        advice = "; give head_dim" if hasattr(config, "head_dim") else ""
        raise ConfigError(f"dim {config.dim} does not divide into {config.n_heads} heads{advice}")


def check_labels(config: Any) -> None:
    """Raise ConfigError unless ``id2label`` numbers two classes or more, each with a name of its own."""
    names = [str(name) for name in config.id2label.values()]
    if list(config.id2label) != [str(number) for number in range(len(names))] or len(names) < 2:
        raise ConfigError(
            f'id2label names two classes or more, numbered "0", "1", ...; not {dict(config.id2label)!r}'
        )
    if len(set(names)) != len(names):
        raise ConfigError(f"id2label gives two classes one name: {', '.join(names)}")


def _check_recurrence(config: Any) -> None:
    """Raise ConfigError unless ``cell`` is known and the settings of its layers fit it."""
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
    """Return ``value``, or ``default`` if the config leaves it open."""
    return default if value is None else value


def positions_within(positions: Tensor, max_seq_len: int) -> Tensor:
    """Return ``positions``; raise GenerationError if a table of ``max_seq_len`` rows lacks one of them."""
    highest = _highest(positions)
    if highest >= max_seq_len:
        raise GenerationError(
            f"position {highest} lies past max_seq_len {max_seq_len}; shorten the input, or in "
            "generation ask for the sliding window"
        )
    return positions


def segments_within(segments: Tensor, type_vocab_size: int) -> Tensor:
    """Return ``segments``; raise ConfigError if a table of ``type_vocab_size`` rows lacks one of them."""
    highest = _highest(segments)
    if highest >= type_vocab_size:
        raise ConfigError(
            f"segment {highest} is given and the model has {type_vocab_size}, numbered from 0; renumber the "
            "segments, or build the model with a larger type_vocab_size"
        )
    return segments


def _highest(numbers: Tensor) -> int:
    """Return the largest of ``numbers``; -1 if there are none or their values are not read here."""
    if torch.compiler.is_compiling() or numbers.device.type != "cpu" or not numbers.numel():
        return -1
    return int(numbers if numbers.numel() == 1 else numbers.max())


def fills_everything(init_weights: Callable[..., None]) -> Callable[..., None]:
    """Decorate ``init_weights`` to run without gradients and to raise ConfigError if it skips a tensor.

    Every parameter and buffer must be written.  Inference tensors do not count writes and meta tensors hold
    nothing, so neither is checked.
    """

    @functools.wraps(init_weights)
    @torch.no_grad()
    def checked(model: Any, generator: torch.Generator | None = None) -> None:
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        before = {name: t._version for name, t in tensors.items() if not (t.is_inference() or t.is_meta)}
        init_weights(model, generator)
        skipped = [name for name, version in before.items() if tensors[name]._version == version]
        if skipped:
            raise ConfigError(
                f"init_weights of {type(model).__name__} has no rule for {', '.join(skipped)}; fill what was "
                "added to the model, or add it after initialisation"
            )

    return checked
