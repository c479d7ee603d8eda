"""The vectors of a text between the layers of a model, and the logits that the head would read from them.

x_0 is the input of the first block, and x_l the output of block l, counted from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from wordloom.errors import GenerationError, WordloomError
from wordloom.models import context_limit
from wordloom.models.bert import Bert
from wordloom.models.cbow import CBOW
from wordloom.models.gpt import GPT
from wordloom.models.gpt2 import GPT2
from wordloom.models.llama import Llama

Readout = Callable[[Tensor], Tensor]


def layer_name(layer: int, first: str = "embedding") -> str:
    """Return the name of x_l; layers are counted from 0, as everywhere in the command line."""
    return f"layer {layer - 1}" if layer else first


def input_name(model: Any) -> str:
    """Return the name of x_0: in a CBOW model it is a mean over the last tokens."""
    return "mean embedding" if isinstance(model, CBOW) else "embedding"


@contextmanager
def recorded_states(model: Any) -> Iterator[list[Tensor]]:
    """Record x_0 to x_L of each forward pass inside the block; a new pass clears the list."""
    states: list[Tensor] = []

    def first(_: Any, args: tuple[Any, ...]) -> None:
        states[:] = [args[0]]

    def after(_: Any, args: Any, output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)  # a recurrent block adds its state

    hooks = [model.blocks[0].register_forward_pre_hook(first)]
    hooks += [block.register_forward_hook(after) for block in model.blocks]
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


def layer_states(model: Any, tokens: Tensor, **settings: Any) -> list[Tensor]:
    """Return x_0 to x_L, each [B, T, D], of ``tokens`` [B, T]; a recurrent layer has its own width.

    The caller sets evaluation mode; ``settings`` are those of ``model.hidden``.
    """
    with recorded_states(model) as states:
        model.hidden(tokens, **settings)
    return list(states)


def readout(model: Any, view: str) -> Readout:
    """Return the function from x_l [.., D] to logits [.., V] that the model applies to x_L.

    GPT-2 and LLaMA have a final norm, GPT has none, and BERT transforms the vector first.

    Raises WordloomError for a family whose layers do not share one space, or without a head; ``view`` is the
    name in the message.
    """
    if isinstance(model, GPT2 | Llama):
        return lambda x: model.lm_head(model.final_norm(x))
    if isinstance(model, GPT):
        return model.lm_head
    if isinstance(model, Bert):
        if not model.config.masked_lm_head:
            raise WordloomError(
                f"the view '{view}' reads logits, and this model has no head to fill in masked tokens"
            )
        return lambda x: model.lm_head(model.mlm_hidden(x))
    raise WordloomError(
        f"the view '{view}' is defined for models whose layers add to one vector per token, such as gpt, "
        f"gpt2 and llama; this model, of type {type(model).__name__}, has none"
    )


def row_of(model: Any, ids: Sequence[int]) -> Tensor:
    """Return ``ids`` as a batch of one row [1, T] on the model's device.

    Raises GenerationError for no ids, and for more than the model reads.
    """
    limit = context_limit(model.config)
    if not ids:
        raise GenerationError("there is no token to look at; give a text that is not empty")
    if limit is not None and len(ids) > limit:
        raise GenerationError(f"the text has {len(ids)} tokens and the model takes {limit}; shorten it")
    return torch.tensor([list(ids)], device=next(model.parameters()).device)
