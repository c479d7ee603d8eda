"""Keep only each block's input and compute the block again in the backward pass.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from wordloom.nn.dropout import current_samples, samples_of_rows


def checkpoint_blocks(model: Any) -> None:
    """Make the blocks of ``model`` recompute their activations in training; the gradients stay equal.

    The random state and the numbers of the samples are those of the first pass, so that dropout drops equal
    elements.
    """
    for block in model.blocks:
        block.forward = partial(_forward, block, block.forward)


def _forward(block: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not block.training:
        return forward(*args, **kwargs)
    if torch.compiler.is_compiling():  # dropout is then PyTorch's, which knows no samples
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    numbers = current_samples()

    def passed(*args: Any, **kwargs: Any) -> Any:
        with samples_of_rows(numbers):  # the second pass is made elsewhere, perhaps for rows of another batch
            return forward(*args, **kwargs)

    return checkpoint(passed, *args, use_reentrant=False, **kwargs)
