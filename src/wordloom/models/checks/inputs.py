"""Checks of the position and segment numbers that a model looks up in its tables.

The checks read the values on the CPU only.  Under torch.compile they would break the graph, and on a GPU they
would wait for the device; there the engine and the batches keep to the limits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wordloom.errors import ConfigError, GenerationError

__all__ = ["positions_within", "segments_within"]


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
    return int(numbers.max())
