"""Recurrent text classifiers: Graves & Schmidhuber 2005, "Framewise phoneme classification with bidirectional
LSTM" (Neural Networks 18), in both directions; Elman 1990 in one.

    x = token_embedding(tokens)
    x = [forward(x), backward(x)]                        n_layers times; the cells are in nn/recurrent.py
    logits = classifier(dropout(pool(x)))

``backward`` reads each row from its last token to its first.  ``pool`` makes one vector of a row: ``last`` is
the final state of each direction, ``mean`` and ``max`` combine the states of all tokens.  A row without a
token gives zeros.

Change from Graves & Schmidhuber: one label for a text, not for each step, hence the pooling.

Rows are padded on the right.  Padding cannot change the states before it, and a row is reversed within its
own length, so the kernels of nn/recurrent.py need no mask.

Parameters, with G gates, D to H components in the first layer and 2 H to H in the next ones (H in one
direction): V D + directions * sum of (G H (in + H) + G H) + C (directions H) + C.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wordloom.errors import ConfigError, did_you_mean
from wordloom.models.checks import check_labels, check_settings, dropout_or, fills_everything
from wordloom.nn.dropout import dropout
from wordloom.nn.linear import Linear
from wordloom.nn.recurrent import Recurrent

POOLINGS = ("last", "mean", "max")


@dataclass(frozen=True, kw_only=True)
class RNNClassifierConfig:
    """Settings; ``vocab_size`` is V, ``id2label`` maps "0", "1", ... to the names of the C classes."""

    vocab_size: int
    id2label: Mapping[str, Any]
    dim: int = 64  # of the token embedding
    hidden_dim: int | None = None  # of a layer, in each direction; None: dim
    n_layers: int = 1
    cell: str = "lstm"  # see wordloom.nn.recurrent.CELLS
    bidirectional: bool = True
    pooling: str = "last"
    bias: bool = True
    forget_bias: float = 1.0  # initial bias of an LSTM's forget gate
    dropout: float = 0.0  # before each layer and before the classifier
    embedding_dropout: float | None = None  # before the first layer; None: dropout
    word_dropout: float = 0.0  # share of tokens read as zeros, each token drawn separately
    weight_drop: float = 0.0  # see wordloom.nn.recurrent

    def __post_init__(self) -> None:
        check_settings(self)
        check_labels(self)
        if self.pooling not in POOLINGS:
            raise ConfigError(f"unknown pooling {self.pooling!r}; {did_you_mean(self.pooling, POOLINGS)}")

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in order."""
        return tuple(str(name) for name in self.id2label.values())


class Layer(nn.Module):
    """One layer: x [B, T, D] -> the states of all steps [B, T, H], or [B, T, 2 H] in both directions."""

    def __init__(self, config: RNNClassifierConfig, dim: int) -> None:
        super().__init__()
        c = config

        def recurrent() -> Recurrent:
            hidden_dim = c.hidden_dim or c.dim
            return Recurrent(
                cell=c.cell, dim=dim, hidden_dim=hidden_dim, bias=c.bias, weight_drop=c.weight_drop
            )

        self.forwards = recurrent()
        self.backwards = recurrent() if c.bidirectional else None

    def forward(self, x: Tensor, reversal: Tensor) -> Tensor:
        """x [B, T, D], reversal [B, T] the order of steps that reverses each row -> [B, T, H or 2 H]."""
        states, _ = self.forwards(x)  # [B, T, H]
        if self.backwards is None:
            return states
        reversed_states, _ = self.backwards(_steps(x, reversal))  # [B, T, H]
        return torch.cat([states, _steps(reversed_states, reversal)], dim=-1)  # [B, T, 2 H]


class RNNClassifier(nn.Module):
    """Logits [B, C] of sequences of tokens; see the module."""

    def __init__(self, config: RNNClassifierConfig) -> None:
        super().__init__()
        self.config = c = config
        width = (c.hidden_dim or c.dim) * (2 if c.bidirectional else 1)
        self.token_embedding = nn.Embedding(c.vocab_size, c.dim)
        self.blocks = nn.ModuleList(Layer(c, width if i else c.dim) for i in range(c.n_layers))
        self.classifier = Linear(width, len(c.id2label))

    def forward(self, tokens: Tensor, attend: Tensor | None = None) -> Tensor:
        """tokens [B, T], attend [B, T] True for tokens, which precede all padding -> [B, C] float32."""
        c = self.config
        if attend is None:
            attend = torch.ones_like(tokens, dtype=torch.bool)
        lengths = attend.sum(1, keepdim=True)  # [B, 1]
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        reversal = torch.where(attend, lengths - 1 - steps, steps)  # [B, T]
        x = self._embedded(tokens)  # [B, T, D]
        for i, block in enumerate(self.blocks):
            p = c.dropout if i else dropout_or(c.embedding_dropout, c.dropout)
            x = block(dropout(x, p, self.training), reversal)
        pooled = self._pooled(x, attend, lengths)
        return self.classifier(dropout(pooled, c.dropout, self.training)).float()  # [B, C]

    def _embedded(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] -> [B, T, D]; in training a share ``word_dropout`` of them is zero."""
        x, p = self.token_embedding(tokens), self.config.word_dropout
        return x * dropout(x.new_ones(*tokens.shape, 1), p, True) if p and self.training else x

    def _pooled(self, x: Tensor, attend: Tensor, lengths: Tensor) -> Tensor:
        """x [B, T, W] -> [B, W]; zeros for a row without a token."""
        padding = ~attend[:, :, None]  # [B, T, 1]
        match self.config.pooling:
            case "mean":
                return x.masked_fill(padding, 0.0).sum(1) / lengths.clamp(min=1)
            case "max":
                pooled = x.masked_fill(padding, -torch.inf).amax(1)
            case _:
                pooled = _steps(x, (lengths - 1).clamp(min=0))[:, 0]
                if self.config.bidirectional:  # the backward direction ends at the first token
                    H = self.config.hidden_dim or self.config.dim
                    pooled = torch.cat([pooled[:, :H], x[:, 0, H:]], dim=-1)
        return pooled.masked_fill(lengths == 0, 0.0)

    @fills_everything
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Embeddings Normal(0, 1); layers uniform from -s to s, s = 1/sqrt(hidden_dim); biases zero.

        An LSTM's forget gate starts at ``forget_bias``.  In a ReLU layer U is the identity and W is normal
        with deviation 0.001 (Le et al. 2015).  The classifier starts at zero, so that all classes are equally
        likely.
        """
        s = 1 / math.sqrt(self.config.hidden_dim or self.config.dim)
        nn.init.normal_(self.token_embedding.weight, generator=generator)
        for name, parameter in self.blocks.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.uniform_(parameter, -s, s, generator=generator)
        for layer in self.blocks.modules():
            if isinstance(layer, Recurrent):
                layer.init_gates(self.config.forget_bias, generator)
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def tie_weights(self) -> None:
        """Do nothing: no weights are tied."""


def _steps(x: Tensor, steps: Tensor) -> Tensor:
    """x [B, T, D], steps [B, S] -> [B, S, D], the named steps of each row."""
    return x.gather(1, steps[:, :, None].expand(-1, -1, x.shape[-1]))
