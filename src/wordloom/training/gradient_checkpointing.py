"""Keep only each block's input and compute the block again in the backward pass.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.utils.checkpoint import checkpoint


def checkpoint_blocks(model: Any) -> None:
    """Make the blocks of ``model`` recompute their activations in training; the gradients stay equal.

    The random state is restored for the second pass, so that dropout drops equal elements.
    """
    for block in model.blocks:
        block.forward = partial(_forward, block, block.forward)


def _forward(block: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not block.training:
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
