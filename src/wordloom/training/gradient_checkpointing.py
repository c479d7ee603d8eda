"""Keep only each block's input and compute the block again in the backward pass.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.utils.checkpoint import checkpoint

__all__ = ["checkpoint_blocks"]


def checkpoint_blocks(model: Any) -> None:
    """Surgery on ``model``: each block's activations are not kept in training; the gradients are the same.

    The random state is saved and restored around the second pass, so dropout drops the same elements.
    """
    for block in model.blocks:
        block.forward = partial(_forward, block, block.forward)


def _forward(block: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not block.training:
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
