"""The three kinds of network: causal language models, encoder-decoders and encoders, as protocols."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from wordloom.models.bert import Encoded
from wordloom.nn.cache import Cache
from wordloom.nn.memory import Memory


class Network(Protocol):
    """The part of the interface that every model shares."""

    config: Any

    def init_weights(self, generator: torch.Generator | None = None) -> None: ...
    def tie_weights(self) -> None: ...


class CausalLM(Network, Protocol):
    """A model that predicts the next token."""

    lm_head: nn.Linear

    def hidden(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        attend: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor: ...
    def forward(self, tokens: Tensor, **keywords: Any) -> Tensor: ...
    def new_cache(self, batch: int, length: int) -> Cache: ...


class SequenceToSequence(Network, Protocol):
    """A model that reads one sequence and writes another.

    ``config.source_vocab_size`` is the size of the encoder's vocabulary (None: the decoder's size), and
    ``config.vocab_size`` that of the decoder's.
    """

    lm_head: nn.Linear

    def encode(self, source: Tensor, *, attend: Tensor | None = None) -> Memory: ...
    def hidden(self, prefix: Tensor, memory: Memory, *, cache: Cache | None = None) -> Tensor: ...
    def forward(self, source: Tensor, prefix: Tensor, *, attend: Tensor | None = None) -> Tensor: ...
    def new_cache(self, batch: int, length: int) -> Cache: ...


class Encoder(Network, Protocol):
    """A model that reads texts in both directions."""

    def forward(
        self,
        tokens: Tensor,
        *,
        segments: Tensor | None = None,
        attend: Tensor | None = None,
        documents: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Encoded: ...
