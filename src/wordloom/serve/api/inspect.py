"""``/inspect``: the attention of one token, or the gates of a recurrent model at it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import Field
from torch import nn

from wordloom.inspect import gate_values, last_attention
from wordloom.models.rnn import RNN
from wordloom.run.models.language_model import LanguageModel
from wordloom.serve.api.chat import ChatMessage, chat_prompt
from wordloom.serve.api.completions import check_ids, ids_of
from wordloom.serve.api.computing import ChosenModel, compute
from wordloom.serve.api.fields import Body, Ids, Text
from wordloom.serve.errors import ApiError
from wordloom.serve.logprobs import token_name
from wordloom.serve.models import DEFAULT_ROOM
from wordloom.serve.worker import Job

router = APIRouter()

MOST_VALUES = 500_000  # of an answer
MOST_SCORES = 1 << 27  # of one layer, heads times tokens squared: half a gigabyte


class Inspection(Body):
    """A sequence of tokens, and the position of one of them.

    Give one of ``ids``, ``text`` and ``messages``; ``continue_ids`` are the ids of the answer that follow.
    """

    model: Text
    ids: Ids | None = None
    text: Text | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=10_000)] | None = None
    continue_ids: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(default_factory=list)
    position: int | None = Field(None, ge=0)
    """The token to inspect; None: the last one."""
    layer: int | None = Field(None, ge=0)
    """The layer to report; None: all layers."""

    def sequence(self, lm: Any) -> list[int]:
        """Return the ids from the first one to ``position``."""
        if sum(each is not None for each in (self.ids, self.text, self.messages)) != 1:
            raise ApiError(400, "give one of 'ids', 'text' and 'messages'")
        if self.messages is not None:
            ids, _ = chat_prompt(lm, [message.message() for message in self.messages])
        else:
            ids = ids_of(lm, self.ids or self.text or "")
        check_ids(lm, self.continue_ids, "continue_ids")
        ids = [*ids, *self.continue_ids]
        last = len(ids) - 1 if self.position is None else self.position
        if last >= len(ids):
            raise ApiError(400, f"'position' {last} is beyond the {len(ids)} tokens", param="position")
        return ids[: last + 1]


@router.post("/inspect")
async def inspect(body: Inspection, http: HttpRequest) -> Response:
    """Return the attention weights of a token by layer and head, or the gates of a recurrent model."""

    def call(chosen: ChosenModel, _: Job) -> dict[str, Any]:
        lm: LanguageModel = chosen.model
        ids = body.sequence(lm)
        room = DEFAULT_ROOM if chosen.served.engine is None else chosen.served.engine.room
        if len(ids) > room:
            raise ApiError(400, f"there are {len(ids):,} tokens; the context holds {room:,}", param="ids")
        inside = _gates if isinstance(lm.model, RNN) else _attention
        tokens = [token_name(lm.text_tokenizer, index) for index in ids]
        return {
            "model": body.model, "position": len(ids) - 1, "ids": ids, "tokens": tokens,
            **inside(lm.model, ids, body.layer),
        }  # fmt: skip

    return await compute(http, body.model, LanguageModel, "a causal language model", call)


def _twin(model: nn.Module) -> nn.Module:
    """Return a copy of the modules that shares all tensors; recording in it does not disturb the engine."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def _attention(model: nn.Module, ids: Sequence[int], layer: int | None) -> dict[str, Any]:
    """Return the weights by layer, head and token."""
    heads = int(getattr(model.config, "n_heads", 1))
    if heads * len(ids) ** 2 > MOST_SCORES:
        raise ApiError(400, f"{len(ids):,} tokens are too many to inspect; shorten the text")
    weights = last_attention(_twin(model), ids)  # [layers, H, T]
    layers = _chosen(range(len(weights)), layer)
    _check_size(len(layers) * weights.shape[1] * weights.shape[2])
    return {
        "kind": "attention",
        "layers": layers,
        "weights": [[_rounded(head.tolist()) for head in weights[each]] for each in layers],
    }


def _gates(model: nn.Module, ids: Sequence[int], layer: int | None) -> dict[str, Any]:
    """Return the values of each gate by layer, and the state."""
    gates = gate_values(_twin(model), ids)
    layers = _chosen(range(len(gates)), layer)
    _check_size(sum(len(values) for each in layers for values in gates[each].values()))
    return {
        "kind": "gates",
        "layers": layers,
        "gates": [
            {name: _rounded(values.tolist()) for name, values in gates[each].items()} for each in layers
        ],
    }


def _chosen(layers: Sequence[int], layer: int | None) -> list[int]:
    if layer is not None and layer not in layers:
        raise ApiError(400, f"'layer' {layer} does not exist; there are {len(layers)}", param="layer")
    return list(layers) if layer is None else [layer]


def _check_size(n: int) -> None:
    if n > MOST_VALUES:
        raise ApiError(
            400, f"the answer would have {n:,} numbers, more than {MOST_VALUES:,}; give one 'layer'",
            param="layer",
        )  # fmt: skip


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 5) for value in values]
