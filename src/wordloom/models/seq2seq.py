"""Recurrent sequence-to-sequence models: Sutskever, Vinyals & Le 2014, "Sequence to Sequence Learning with
Neural Networks" (arXiv:1409.3215); Cho et al. 2014 (arXiv:1406.1078); with attention, Bahdanau, Cho & Bengio
2015, "Neural Machine Translation by Jointly Learning to Align and Translate" (arXiv:1409.0473), and Luong,
Pham & Manning 2015 (arXiv:1508.04025).

    m, state = encoder(source_embedding(source))    m [B, S, M]; the decoder begins in the last state
    x = token_embedding(prefix)
    "none"       h = decoder(x)                     Sutskever et al.: one vector for the whole source
                 h = decoder([x; c])                feed_context, Cho et al.: c is the encoder's last top h
    "previous"   h = decoder([x; attend(h before)]) Bahdanau et al.: what was found enters the step
    "current"    h = decoder(x)                     or decoder([x; o before]), with input_feeding
                 o = tanh(W [h; attend(h)])         Luong et al., equation 5
    logits = lm_head(o)                             o is h, where no line says otherwise

attend(q) is the mean of m weighted by softmax(score(q, m)): see nn/scorers.py.  The h that attends is the
last layer's.  With ``deep_output``, o = tanh(W [h; c; x]), c being what was attended to or fed: Bahdanau et
al.'s deep output, a tanh for their maxout and the state after the step where they print the one before.

Layer i of the decoder begins in the last state of the encoder's layer i, that of a row's last real token.  A
``bidirectional`` encoder joins two directions of ``hidden_dim`` each, so M = 2 H, and a bridge narrows what
they end in: tanh(W [h; h] + b), as Bahdanau et al. do with one of them, and W [c; c] + b for an LSTM's c.
``reverse_source`` has the encoder read from behind; m stands in the source's order all the same.

Parameters: the layers' (see models/rnn.py), the embeddings' and the matrices' named here.  Sutskever et al.'s
four layers of 1,000 with 160,000 and 80,000 words have 384,112,000 (printed: 384 M, 64 M of them recurrent).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wordloom.errors import ConfigError, did_you_mean
from wordloom.models.checks.initialisation import fills_everything
from wordloom.models.checks.settings import check_dropout, check_positive, check_recurrence, dropout_or
from wordloom.nn.bidirectional import ReadingLayer
from wordloom.nn.cache import Cache, RecurrentCache
from wordloom.nn.fused import dropout
from wordloom.nn.head import Head
from wordloom.nn.linear import Linear
from wordloom.nn.memory import Memory
from wordloom.nn.recurrent import Recurrent, State
from wordloom.nn.scorers import SCORERS, AttentionScorer, attend_to

__all__ = ["Seq2Seq", "Seq2SeqConfig"]


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """Shapes and settings of a recurrent encoder and decoder."""

    vocab_size: int = 10000  # of the decoder
    source_vocab_size: int | None = None  # of the encoder; None: vocab_size
    dim: int = 256  # of both embeddings
    hidden_dim: int | None = None  # of the layers, H; None: dim
    n_layers: int = 1  # of the encoder, and of the decoder
    cell: str = "lstm"  # see wordloom.nn.recurrent.CELLS
    bias: bool = True  # of the layers and the bridges
    bidirectional: bool = False
    reverse_source: bool = False
    attention: str = "none"  # or "dot", "general", "additive": see wordloom.nn.scorers
    query: str = "current"  # what attends: the state after the step (Luong et al.), or the "previous" one
    attention_dim: int | None = None  # width of the additive scorer; None: hidden_dim
    memory_projection: bool = False  # m is narrowed to hidden_dim before anything attends to it
    feed_context: bool = False  # without attention: the fixed context vector enters every step
    input_feeding: bool = False  # with query "current": o enters the next step
    deep_output: bool = False
    forget_bias: float = 1.0  # what an LSTM's forget gate starts with
    output_bias: bool = True  # of lm_head
    tie_embeddings: bool = False  # lm_head and token_embedding; through an output_proj where H is not dim
    init_scale: float | None = None  # everything uniform from -s to s; None: see init_weights
    dropout: float = 0.0  # before each layer and before lm_head
    embedding_dropout: float | None = None  # of the embeddings; None: as dropout
    output_dropout: float | None = None  # before lm_head; None: as dropout
    teacher_forcing: float = 1.0  # in training, the share of tokens of the prefix that are the true ones

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "source_vocab_size", "dim", "hidden_dim", "n_layers", "attention_dim")
        check_positive(self, *sizes)
        check_dropout(self)
        check_recurrence(self)
        for name, allowed in (("attention", ("none", *SCORERS)), ("query", ("previous", "current"))):
            given = getattr(self, name)
            if given not in allowed:
                raise ConfigError(f"unknown {name} {given!r}; {did_you_mean(given, allowed)}")
        if not 0.0 <= self.teacher_forcing <= 1.0:
            raise ConfigError(f"teacher_forcing is a share from 0 to 1, not {self.teacher_forcing!r}")
        self._check_attention()

    def _check_attention(self) -> None:
        """Raise ConfigError for settings that another one leaves without a meaning, or that cannot meet."""
        none, scorers = self.attention == "none", ", ".join(SCORERS)
        for wrong, says in (
            (none and self.memory_projection, f"memory_projection belongs to attention: choose {scorers}"),
            (none and self.input_feeding, f"input_feeding belongs to attention: choose {scorers}"),
            (none and self.query != "current", f"query belongs to attention: choose {scorers}"),
            (self.feed_context and not none,
             f"feed_context feeds one vector to all steps; attention {self.attention!r} finds one for each"),
            (self.input_feeding and self.query == "previous",
             "input_feeding feeds what query 'current' makes; with 'previous' the context enters the step"),
            (self.attention_dim is not None and self.attention != "additive",
             f"attention_dim is the width of the additive scorer, and attention is {self.attention!r}"),
        ):  # fmt: skip
            if wrong:
                raise ConfigError(f"{says}; or leave it out")
        if self.attention == "dot" and self.memory_dim != self.state_dim:
            raise ConfigError(
                f"the dot scorer needs equal widths, not a state of {self.state_dim} and a memory of "
                f"{self.memory_dim} (two directions); set memory_projection, or take 'general' or 'additive'"
            )

    @property
    def source_vocab(self) -> int:
        """Tokens that are read: ``source_vocab_size``, or as many as are written."""
        return self.source_vocab_size or self.vocab_size

    @property
    def decoder_layers(self) -> int:
        """As many as the encoder has."""
        return self.n_layers

    @property
    def state_dim(self) -> int:
        """H: components of a layer's h."""
        return self.hidden_dim or self.dim

    @property
    def encoder_dim(self) -> int:
        """Components of what the encoder finds at each token, its directions joined."""
        return self.state_dim * (2 if self.bidirectional else 1)

    @property
    def memory_dim(self) -> int:
        """M: components of what the decoder attends to, or is fed."""
        return self.state_dim if self.memory_projection else self.encoder_dim


class Seq2Seq(nn.Module):
    """Sequence to sequence; see :class:`wordloom.models.SequenceToSequence` for the protocol.

    ``Memory.state`` holds what each layer of the decoder begins with, then c [B, M] where it is fed, or the
    keys [B, S, A] of m where there is attention.

    Attributes:
        teacher_forcing: the config's; a schedule may change it.  In training each token of a prefix but the
            first is the true one with this probability (Bengio et al. 2015, arXiv:1506.03099), else the
            likeliest after the step before, ``output_dropout`` aside.  torch's default generator draws.
    """

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = c = config
        H, attends = c.state_dim, c.attention != "none"
        layer: dict[str, Any] = {"cell": c.cell, "hidden_dim": H, "bias": c.bias}
        self.source_embedding = nn.Embedding(c.source_vocab, c.dim)
        self.token_embedding = nn.Embedding(c.vocab_size, c.dim)
        self.encoder_blocks = nn.ModuleList(
            ReadingLayer(dim=c.encoder_dim if i else c.dim, bidirectional=c.bidirectional, **layer)
            for i in range(c.n_layers)
        )
        self.bridges = nn.ModuleList(
            nn.ModuleList(Linear(c.encoder_dim, H, bias=c.bias) for _ in ("hc" if "lstm" in c.cell else "h"))
            for _ in range(c.n_layers if c.bidirectional else 0)
        )
        self.memory_proj = Linear(c.encoder_dim, H, bias=False) if c.memory_projection else None
        self.scorer = _scorer(c) if attends else None
        self.enters = c.feed_context or (attends and c.query == "previous")  # a context, the step
        width = c.dim + c.memory_dim * self.enters + H * c.input_feeding
        self.decoder_blocks = nn.ModuleList(
            Recurrent(dim=H if i else width, **layer) for i in range(c.n_layers)
        )
        width = H + c.memory_dim * (attends or c.feed_context) + c.dim * c.deep_output
        reads = c.deep_output or (attends and c.query == "current")
        self.readout_proj = Linear(width, H, bias=False) if reads else None
        narrows = c.tie_embeddings and c.dim != H
        self.output_proj = Linear(H, c.dim, bias=False) if narrows else None
        self.lm_head = Head(c.dim if narrows else H, c.vocab_size, bias=c.output_bias)
        self.embedding_dropout = dropout_or(c.embedding_dropout, c.dropout)
        self.output_dropout = dropout_or(c.output_dropout, c.dropout)
        self.teacher_forcing = c.teacher_forcing
        self.tie_weights()

    @property
    def blocks(self) -> list[Recurrent]:
        """All recurrent layers, the encoder's first."""
        return [layer for layer in self.modules() if isinstance(layer, Recurrent)]

    def tie_weights(self) -> None:
        """Let ``lm_head`` use the decoder's embedding [V, D], where the config says so."""
        if self.config.tie_embeddings:
            self.lm_head.weight = self.token_embedding.weight

    @fills_everything
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Uniform from -s to s, biases zero, an LSTM's forget gate at ``forget_bias``.

        s is 0.1 in embeddings and head and 1/sqrt(hidden_dim) elsewhere; in a layer of ReLUs U is the
        identity and W normal with deviation 0.001 (Le et al. 2015).  With ``init_scale`` it is that
        everywhere, biases included, to which ``forget_bias`` is added (Sutskever et al. draw from 0.08, Luong
        et al. from 0.1).
        """
        scale = self.config.init_scale
        for name, parameter in self.named_parameters():
            outer = name.startswith(("source_embedding.", "token_embedding.", "lm_head."))
            s = scale or (0.1 if outer else 1 / math.sqrt(self.config.state_dim))
            if scale is None and name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.uniform_(parameter, -s, s, generator=generator)
        for layer in self.blocks:
            if scale is None and layer.cell == "rnn_relu":
                layer.begin_as_identity(generator)
            if "f" in layer.gates and layer.input_proj.bias is not None:
                layer.input_proj.bias[layer.rows("f")] += self.config.forget_bias

    def encode(self, source: Tensor, *, attend: Tensor | None = None) -> Memory:
        """source [B, S] -> what the decoder needs of it; ``attend`` [B, S] is True for real tokens."""
        behind = self.config.reverse_source
        real = attend.flip(1) if behind and attend is not None else attend
        x = self.source_embedding(source.flip(1) if behind else source)  # [B, S, D]
        states: list[State] = []
        for i, layer in enumerate(self.encoder_blocks):
            p = self.config.dropout if i else self.embedding_dropout
            x, state = layer(dropout(x, p, self.training), attend=real)
            states.append(state)
        m = x.flip(1) if behind else x  # [B, S, M], each where its token stands
        m = m if self.memory_proj is None else self.memory_proj(m)
        beside: State = (states[-1][0],) if self.config.feed_context else ()
        if self.scorer is not None:
            beside = (self.scorer.keys(m),)
        if self.bridges:
            states = [_bridged(*pair) for pair in zip(self.bridges, states, strict=True)]
        return Memory(m, attend, (*(part for state in states for part in state), *beside))

    def hidden(self, prefix: Tensor, memory: Memory, *, cache: Cache | None = None) -> Tensor:
        """prefix [B, T] after what the cache has seen -> [B, T, H], the vectors ``lm_head`` takes."""
        forced = None
        if self.training and self.teacher_forcing < 1.0 and cache is None:
            forced = torch.rand(prefix.shape, device=prefix.device) < self.teacher_forcing
        o, _, states = self._run(prefix, memory, cache, forced)
        if cache is not None:
            for i, state in enumerate([*states, (o[:, -1:],)] if self.config.input_feeding else states):
                cache.layer(i).state = state
            cache.advance(prefix.shape[1])
        return self._narrowed(dropout(o, self.output_dropout, self.training))

    def _run(
        self,
        prefix: Tensor,
        memory: Memory,
        cache: Cache | None = None,
        forced: Tensor | None = None,
        exact: bool = False,
    ) -> tuple[Tensor, Tensor | None, list[State]]:
        """prefix [B, T] -> (o [B, T, H], weights of attention [B, T, S], the states after the last step).

        All steps at once where none depends on what comes out of the one before.
        """
        states, o = self._begin(memory, cache)
        x = self._embedded(prefix)  # [B, T, D]
        feeds = self.config.input_feeding
        returns = feeds or (self.scorer is not None and self.enters)
        found: list[Tensor] = []
        seen: list[Tensor] = []
        for t, piece in enumerate(
            torch.split(x, 1, dim=1) if returns or exact or forced is not None else [x]
        ):
            if forced is not None and t:
                piece = torch.where(forced[:, t, None, None], piece, self._embedded(self._likeliest(o)))
            o, weights, states = self._pass(piece, memory, states, o if feeds else None, exact)
            found.append(o)
            seen += [] if weights is None else [weights]
        return torch.cat(found, dim=1), torch.cat(seen, dim=1) if seen else None, states

    def _begin(self, memory: Memory, cache: Cache | None) -> tuple[list[State], Tensor]:
        """The state of each layer before the first step, and the o [B, 1, H] that is fed to it."""
        n = self.config.n_layers
        fed = memory.values.new_zeros(len(memory.values), 1, self.config.state_dim)
        if cache is not None and cache.length:
            fed = cache.layer(n).state[0] if self.config.input_feeding else fed
            return [cache.layer(i).state for i in range(n)], fed
        parts = len(self.blocks[0].state_dims)
        return [memory.state[i * parts : (i + 1) * parts] for i in range(n)], fed

    def _pass(
        self, x: Tensor, memory: Memory, states: list[State], fed: Tensor | None, exact: bool
    ) -> tuple[Tensor, Tensor | None, list[State]]:
        """x [B, T, D], T being 1 where something returns to the next step -> as :meth:`_run`."""
        c = self.config
        context: Tensor | None = None  # [B, T, M]
        weights: Tensor | None = None
        if c.feed_context:
            context = memory.state[-1][:, None].expand(-1, x.shape[1], -1)
        elif self.enters:
            context, weights = self._attended(states[-1][0][:, None], memory, exact)
        further = [dropout(part, c.dropout, self.training) for part in (context, fed) if part is not None]
        h = torch.cat([x, *further], dim=-1)
        after: list[State] = []
        for i, (block, state) in enumerate(zip(self.decoder_blocks, states, strict=True)):
            h, state = block(dropout(h, c.dropout, self.training) if i else h, state, exact=exact)
            after.append(state)
        if self.scorer is not None and not self.enters:
            context, weights = self._attended(h, memory, exact)
        if self.readout_proj is None:
            return h, weights, after
        parts = [part for part in (h, context, x if c.deep_output else None) if part is not None]
        return torch.tanh(self.readout_proj(torch.cat(parts, dim=-1))), weights, after

    def _attended(self, queries: Tensor, memory: Memory, exact: bool) -> tuple[Tensor, Tensor]:
        """queries [B, T, H] -> (what they attend to [B, T, M], weights [B, T, S])."""
        assert self.scorer is not None
        keys, attend = memory.state[-1], memory.attend
        return attend_to(memory.values, queries, self.scorer, keys=keys, attend=attend, exact=exact)

    def _embedded(self, tokens: Tensor) -> Tensor:
        return dropout(self.token_embedding(tokens), self.embedding_dropout, self.training)

    def _narrowed(self, o: Tensor) -> Tensor:
        return o if self.output_proj is None else self.output_proj(o)

    @torch.no_grad()
    def _likeliest(self, o: Tensor) -> Tensor:
        return self.lm_head(self._narrowed(o)).argmax(dim=-1)

    def forward(self, source: Tensor, prefix: Tensor, *, attend: Tensor | None = None) -> Tensor:
        """source [B, S] and prefix [B, T] -> logits [B, T, V]."""
        return self.lm_head(self.hidden(prefix, self.encode(source, attend=attend)))

    @torch.no_grad()
    def alignment(self, source: Tensor, prefix: Tensor, attend: Tensor | None = None) -> Tensor:
        """What each step attends to: weights [B, T, S] float32, by the equations one step after another.

        Raises ConfigError for a model without attention.
        """
        _, weights, _ = self._run(prefix, self.encode(source, attend=attend), exact=True)
        if weights is None:
            raise ConfigError("attention is 'none': the source is one vector, and no step attends to a part")
        return weights

    def new_cache(self, batch: int, length: int) -> RecurrentCache:
        """An empty cache, as large as it stays: each layer's state and, with input feeding, one for o."""
        return RecurrentCache(n_layers=self.config.n_layers + self.config.input_feeding)


def _scorer(c: Seq2SeqConfig) -> AttentionScorer:
    width = {} if c.attention_dim is None else {"score_dim": c.attention_dim}
    return SCORERS[c.attention](dim=c.state_dim, memory_dim=c.memory_dim, **width)


def _bridged(bridge: Any, state: State) -> State:
    """What two directions ended in, joined [B, 2 H] -> what the decoder begins with [B, H]."""
    h, *c = (proj(part) for proj, part in zip(bridge, state, strict=True))
    return torch.tanh(h), *c
