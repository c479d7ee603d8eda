"""Recurrent language models.

- Elman 1990, "Finding Structure in Time"; as a language model Mikolov et al. 2010, "Recurrent neural network
  based language model".
- With LSTM layers Zaremba, Sutskever & Vinyals 2014, "Recurrent Neural Network Regularization"
  (arXiv:1409.2329).

    x = token_embedding(tokens)
    x, state = recurrent(dropout(x), state)              n_layers times; the cells are in nn/recurrent.py
    logits = lm_head(output_proj(dropout(x)))            tied to token_embedding with ``tie_embeddings``

One vector for each layer carries all previous text: no positions, no attention, no ``max_seq_len``.

Zaremba et al. apply dropout between layers and never between steps (section 3.2).  Later additions, each a
setting: ``variational`` drops the same components at every step of a window (Gal & Ghahramani 2016,
arXiv:1512.05287); ``word_dropout`` drops all occurrences of a word in a window; ``weight_drop`` drops weights
between steps (Merity, Keskar & Socher 2018, arXiv:1708.02182).

Departures from the papers: one bias for each gate; the default initialisation is today's (``init_weights``).

Parameters, with G gates, D to H components in the first layer and R to H in the next ones (R is H, or
``projection``): V D + sum of (G H (in + R) + G H + R H if projected) + V R + V.  Zaremba et al.'s small model
has 4,651,600, the medium one 19,775,200 and the large one 66,022,000.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wordloom.errors import ConfigError
from wordloom.models.checks import check_settings, dropout_or, fills_everything
from wordloom.nn.cache import RecurrentCache
from wordloom.nn.dropout import dropout
from wordloom.nn.head import Head
from wordloom.nn.linear import Linear
from wordloom.nn.recurrent import Recurrent


@dataclass(frozen=True, kw_only=True)
class RNNConfig:
    """Shapes and settings of a recurrent language model.

    The defaults are Zaremba et al.'s small LSTM, with today's ``forget_bias`` and ``init_scale``.
    """

    vocab_size: int = 10000
    dim: int = 200  # of the token embedding
    hidden_dim: int | None = None  # of the layers; None: dim
    n_layers: int = 2
    cell: str = "lstm"  # see wordloom.nn.recurrent.CELLS
    bias: bool = True
    peephole: bool = False  # an LSTM's gates read its cell
    projection: int | None = None  # width of an LSTM's h, if below hidden_dim
    forget_bias: float = 1.0  # initial bias of an LSTM's forget gate
    output_bias: bool = True  # of lm_head
    tie_embeddings: bool = False  # through an output_proj if the last layer's width is not dim
    init_scale: float | None = None  # s: all parameters uniform from -s to s; None: see init_weights
    dropout: float = 0.0  # before each layer and before the output
    embedding_dropout: float | None = None  # before the first layer; None: dropout
    output_dropout: float | None = None  # before the output; None: dropout
    word_dropout: float = 0.0
    variational: bool = False
    weight_drop: float = 0.0

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("peephole", "projection"):
            if getattr(self, name) and not self.cell.startswith("lstm"):
                raise ConfigError(f"{name} belongs to an LSTM; cell {self.cell!r} has none")

    @property
    def state_dim(self) -> int:
        """R: width of a layer's h."""
        return self.projection or self.hidden_dim or self.dim

    @property
    def output_dim(self) -> int:
        """Width of the vectors that ``lm_head`` reads: ``dim`` if tied to the embedding."""
        return self.dim if self.tie_embeddings else self.state_dim


class RNN(nn.Module):
    """A causal language model; see :class:`wordloom.models.CausalLM` for the protocol."""

    def __init__(self, config: RNNConfig) -> None:
        super().__init__()
        self.config = c = config
        self.token_embedding = nn.Embedding(c.vocab_size, c.dim)
        self.blocks = nn.ModuleList(
            Recurrent(
                cell=c.cell,
                dim=c.state_dim if i else c.dim,
                hidden_dim=c.hidden_dim or c.dim,
                bias=c.bias,
                projection=c.projection,
                peephole=c.peephole,
                weight_drop=c.weight_drop,
            )
            for i in range(c.n_layers)
        )
        narrows = c.tie_embeddings and c.state_dim != c.dim
        self.output_proj = Linear(c.state_dim, c.dim, bias=False) if narrows else None
        self.lm_head = Head(c.output_dim, c.vocab_size, bias=c.output_bias)
        self.dropouts = [
            dropout_or(c.embedding_dropout, c.dropout),
            *[c.dropout] * (c.n_layers - 1),
            dropout_or(c.output_dropout, c.dropout),
        ]
        self.tie_weights()

    def tie_weights(self) -> None:
        """Share the embedding's weights [V, D] with ``lm_head`` if ``tie_embeddings`` is set."""
        if self.config.tie_embeddings:
            self.lm_head.weight = self.token_embedding.weight

    @fills_everything
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Uniform from -s to s, biases zero, an LSTM's forget gate at ``forget_bias``.

        s is 1/sqrt(hidden_dim) in the layers and 0.1 in the embedding and the head.  In a ReLU layer U is the
        identity and W is normal with deviation 0.001 (Le et al. 2015), so that it sums up its inputs.
        ``init_scale`` sets s everywhere and draws the biases too, before ``forget_bias`` is added (Zaremba et
        al. use 0.1 in their small model and 0.05 in the medium one).
        """
        scale, tied = self.config.init_scale, self.config.tie_embeddings
        for name, parameter in self.named_parameters():
            inner = name.startswith("blocks.")
            s = scale or (1 / math.sqrt(self.config.hidden_dim or self.config.dim) if inner else 0.1)
            if scale is None and name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif not (tied and name == "lm_head.weight"):
                nn.init.uniform_(parameter, -s, s, generator=generator)
        for block in self.blocks:
            assert isinstance(block, Recurrent)
            block.init_gates(self.config.forget_bias, generator, identity=scale is None)

    def hidden(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        attend: Tensor | None = None,
        cache: RecurrentCache | None = None,
    ) -> Tensor:
        """tokens [B, T] -> [B, T, R], the vectors that ``lm_head`` reads.

        ``attend`` [B, T] is False for padding, which leaves the state unchanged.  With ``documents``, the
        state restarts at zero where ``positions`` is 0; without positions, where the document number changes.
        """
        starts = None if documents is None else _starts(documents, positions)
        x = self._embedded(tokens)  # [B, T, D]
        for i, block in enumerate(self.blocks):
            kept = None if cache is None else cache.layer(i)
            state = None if kept is None else kept.state
            x, state = block(self._dropped(x, self.dropouts[i]), state, attend=attend, starts=starts)
            if kept is not None:
                kept.state = state
        if cache is not None:
            cache.advance(tokens, attend)
        x = self._dropped(x, self.dropouts[-1])
        return x if self.output_proj is None else self.output_proj(x)  # [B, T, R] -> [B, T, D]

    def _embedded(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] -> [B, T, D]; in training ``word_dropout`` drops all occurrences of a word."""
        p, x = self.config.word_dropout, self.token_embedding(tokens)
        if not (p and self.training):
            return x
        kept = dropout(x.new_ones(self.config.vocab_size, 1), p, True, shared=True)
        return x * kept[tokens]  # [B, T, D] * [B, T, 1]

    def _dropped(self, x: Tensor, p: float) -> Tensor:
        """x [B, T, D] with dropout ``p`` in training; the same components at all steps if ``variational``."""
        if self.config.variational and self.training and p:
            return x * dropout(x.new_ones(x.shape[0], 1, x.shape[2]), p, True)  # [B, T, D] * [B, 1, D]
        return dropout(x, p, self.training)

    def forward(self, tokens: Tensor, **keywords: Tensor | RecurrentCache | None) -> Tensor:
        """tokens [B, T] -> logits [B, T, V]; keywords as in :meth:`hidden`."""
        return self.lm_head(self.hidden(tokens, **keywords))  # type: ignore[arg-type]

    def new_cache(self, batch: int, length: int) -> RecurrentCache:
        """Return an empty cache for ``batch`` rows; its size does not depend on their ``length``."""
        return RecurrentCache(n_layers=self.config.n_layers, batch=batch)


def _starts(documents: Tensor, positions: Tensor | None) -> Tensor:
    """[B, T], True in the first column of a document."""
    if positions is not None:
        return (positions == 0).expand_as(documents)
    first = torch.ones_like(documents[:, :1], dtype=torch.bool)
    return torch.cat([first, documents[:, 1:] != documents[:, :-1]], dim=1)


PRESETS = {  # for the words of the Penn Treebank, Zaremba et al. 2014, section 4.1
    "lstm-ptb-small": RNNConfig(dim=200, forget_bias=0.0, init_scale=0.1),
    "lstm-ptb-medium": RNNConfig(dim=650, forget_bias=0.0, init_scale=0.05, dropout=0.5),
    "lstm-ptb-large": RNNConfig(dim=1500, forget_bias=0.0, init_scale=0.04, dropout=0.65),
    # from no paper: these sizes and settings with other cells
    "gru-ptb-small": RNNConfig(cell="gru", dim=200, init_scale=0.1),
    "gru-ptb-medium": RNNConfig(cell="gru", dim=650, init_scale=0.05, dropout=0.5),
    "rnn-ptb-small": RNNConfig(cell="rnn_tanh", dim=200, init_scale=0.1),
    "rnn-ptb-medium": RNNConfig(cell="rnn_tanh", dim=650, init_scale=0.05, dropout=0.5),
}
