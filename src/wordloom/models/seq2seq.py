"""Recurrent encoder-decoders, 2014 and 2015.

- Sutskever, Vinyals & Le 2014, "Sequence to Sequence Learning with Neural Networks" (arXiv:1409.3215): the
  decoder starts from the encoder's last state.
- Cho et al. 2014 (arXiv:1406.1078): the encoder's last h also enters every step of the decoder.
- Bahdanau, Cho & Bengio 2015, "Neural Machine Translation by Jointly Learning to Align and Translate"
  (arXiv:1409.0473): before each step, the previous state attends to the source.
- Luong, Pham & Manning 2015, "Effective Approaches to Attention-based Neural Machine Translation"
  (arXiv:1508.04025): after each step, the new state attends to the source.

    m, state = encoder(source_embedding(source))     m [B, S, M], one vector for each source token
    o = step(token_embedding(prefix), state, m)      the step of one of the four papers, written out below
    logits = lm_head(o)

Choose the step with ``attention`` ("none": Sutskever et al., or Cho et al. with ``feed_context``) and, where
there is attention, with ``query`` ("previous": Bahdanau et al., "current": Luong et al.).  The scores of
attention are in nn/scorers.py, the cells in nn/recurrent.py.

The encoder's layer i passes its state after the last real token to the decoder's layer i.  A
``bidirectional`` encoder joins two directions of ``hidden_dim`` each, so M = 2 H; a bridge then narrows the
joined state: tanh(W [h; h] + b), and W [c; c] + b for an LSTM's c.  ``reverse_source`` encodes the source
from its last token to its first; m stays in the order of the source.

Departures from the papers: Bahdanau et al.'s bridge reads one direction, their deep output has a maxout in
place of tanh, and it reads the state before the step (as printed) instead of the state after it.

Parameters: those of the layers (see models/rnn.py), the embeddings and the matrices named here.  Sutskever
et al.'s four layers of 1,000 with 160,000 and 80,000 words have 384,112,000 (printed: 384 M, 64 M recurrent).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wordloom.errors import ConfigError, did_you_mean
from wordloom.models.checks import check_settings, dropout_or, fills_everything
from wordloom.nn.cache import RecurrentCache
from wordloom.nn.dropout import dropout
from wordloom.nn.head import Head
from wordloom.nn.linear import Linear
from wordloom.nn.memory import Memory
from wordloom.nn.recurrent import Recurrent, State
from wordloom.nn.scorers import SCORERS, AttentionScorer, attend_to


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """Shapes and settings of a recurrent encoder-decoder."""

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
    query: str = "current"  # the state that attends: after the step (Luong et al.), or the "previous" one
    attention_dim: int | None = None  # width of the additive scorer; None: hidden_dim
    memory_projection: bool = False  # narrow m to hidden_dim before the decoder attends to it
    feed_context: bool = False  # without attention: the encoder's last h enters every step (Cho et al.)
    input_feeding: bool = False  # with query "current": o enters the next step (Luong et al., section 3.3)
    deep_output: bool = False  # o = tanh(W [h; context; x]) (Bahdanau et al., section A.2.2)
    forget_bias: float = 1.0  # initial bias of an LSTM's forget gate
    output_bias: bool = True  # of lm_head
    tie_embeddings: bool = False  # lm_head and token_embedding; through an output_proj where H is not dim
    init_scale: float | None = None  # s: all parameters uniform from -s to s; None: see init_weights
    dropout: float = 0.0  # before each layer and before lm_head
    embedding_dropout: float | None = None  # of the embeddings; None: as dropout
    output_dropout: float | None = None  # before lm_head; None: as dropout
    teacher_forcing: float = 1.0  # in training, the share of true tokens in the prefix

    def __post_init__(self) -> None:
        check_settings(self)
        for name, allowed in (("attention", ("none", *SCORERS)), ("query", ("previous", "current"))):
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"unknown {name} {value!r}; {did_you_mean(value, allowed)}")
        if not 0.0 <= self.teacher_forcing <= 1.0:
            raise ConfigError(f"teacher_forcing is a share from 0 to 1, not {self.teacher_forcing!r}")
        self._check_attention()

    def _check_attention(self) -> None:
        """Raise ConfigError for a setting that has no effect with another one, or contradicts it."""
        none, scorers = self.attention == "none", ", ".join(SCORERS)
        for wrong, message in (
            (none and self.memory_projection, f"memory_projection needs attention: choose {scorers}"),
            (none and self.input_feeding, f"input_feeding needs attention: choose {scorers}"),
            (none and self.query != "current", f"query needs attention: choose {scorers}"),
            (self.feed_context and not none,
             f"feed_context feeds one vector to all steps; attention {self.attention!r} has one for each"),
            (self.input_feeding and self.query == "previous",
             "input_feeding needs query 'current'; with 'previous', the context already enters the step"),
            (self.attention_dim is not None and self.attention != "additive",
             f"attention_dim is the width of the additive scorer, and attention is {self.attention!r}"),
        ):  # fmt: skip
            if wrong:
                raise ConfigError(f"{message}; or leave it out")
        if self.attention == "dot" and self.memory_dim != self.state_dim:
            raise ConfigError(
                f"the dot scorer needs equal widths, not a state of {self.state_dim} and a memory of "
                f"{self.memory_dim} (two directions); set memory_projection, or take 'general' or 'additive'"
            )

    @property
    def source_vocab(self) -> int:
        """Size of the encoder's vocabulary: ``source_vocab_size``, or ``vocab_size``."""
        return self.source_vocab_size or self.vocab_size

    @property
    def decoder_layers(self) -> int:
        """Layers of the decoder: as many as the encoder has."""
        return self.n_layers

    @property
    def state_dim(self) -> int:
        """H: width of a layer's h."""
        return self.hidden_dim or self.dim

    @property
    def encoder_dim(self) -> int:
        """Width of the encoder's vector for each token, both directions joined."""
        return self.state_dim * (2 if self.bidirectional else 1)

    @property
    def memory_dim(self) -> int:
        """M: width of the vectors that the decoder attends to, or of the context fed to it."""
        return self.state_dim if self.memory_projection else self.encoder_dim

    @property
    def step(self) -> str:
        """The paper whose step the decoder takes: "sutskever", "cho", "bahdanau" or "luong"."""
        if self.attention == "none":
            return "cho" if self.feed_context else "sutskever"
        return "bahdanau" if self.query == "previous" else "luong"


class EncoderLayer(nn.Module):
    """x [B, S, D] -> h of every token [B, S, H], or the concatenation of both directions [B, S, 2 H].

    Schuster & Paliwal 1997, "Bidirectional Recurrent Neural Networks".
    """

    def __init__(self, *, cell: str, dim: int, hidden_dim: int, bias: bool, bidirectional: bool) -> None:
        super().__init__()
        self.forwards = Recurrent(cell=cell, dim=dim, hidden_dim=hidden_dim, bias=bias)
        backwards = Recurrent(cell=cell, dim=dim, hidden_dim=hidden_dim, bias=bias) if bidirectional else None
        self.backwards = backwards

    def forward(self, x: Tensor, *, attend: Tensor | None = None) -> tuple[Tensor, State]:
        """Return h and the last state of each direction for x [B, S, D].

        ``attend`` [B, S] is True for real tokens.  Padding is skipped: one direction ends at the last real
        token, and the other begins there.
        """
        h, state = self.forwards(x, attend=attend)  # [B, S, H]
        if self.backwards is None:
            return h, state
        h_back, state_back = self.backwards(x.flip(1), attend=None if attend is None else attend.flip(1))
        joined = tuple(torch.cat(parts, dim=-1) for parts in zip(state, state_back, strict=True))  # [B, 2 H]
        return torch.cat([h, h_back.flip(1)], dim=-1), joined  # [B, S, 2 H]


class Step(NamedTuple):
    """The result of T consecutive steps of the decoder."""

    o: Tensor  # [B, T, H], read by lm_head
    states: list[State]  # of each layer, after the last step
    weights: Tensor | None = None  # [B, T, S] of attention


class Seq2Seq(nn.Module):
    """Sequence to sequence; see :class:`wordloom.models.SequenceToSequence` for the protocol.

    ``Memory.state`` holds the initial state of each layer of the decoder, followed by the fed context c
    [B, M] (Cho et al.) or by the attention keys [B, S, A] of m.

    Attributes:
        teacher_forcing: the value of the config, which a schedule may change.  In training, each prefix token
            except the first is the true token with this probability (Bengio et al. 2015, arXiv:1506.03099).
            Otherwise it is the most probable token of the previous step, computed without
            ``output_dropout``.  The random numbers come from torch's default generator.
    """

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = c = config
        H, attends = c.state_dim, c.attention != "none"
        layer: dict[str, Any] = {"cell": c.cell, "hidden_dim": H, "bias": c.bias}
        self.source_embedding = nn.Embedding(c.source_vocab, c.dim)
        self.token_embedding = nn.Embedding(c.vocab_size, c.dim)
        self.encoder_blocks = nn.ModuleList(
            EncoderLayer(dim=c.encoder_dim if i else c.dim, bidirectional=c.bidirectional, **layer)
            for i in range(c.n_layers)
        )
        self.bridges = nn.ModuleList(
            nn.ModuleList(Linear(c.encoder_dim, H, bias=c.bias) for _ in ("hc" if "lstm" in c.cell else "h"))
            for _ in range(c.n_layers if c.bidirectional else 0)
        )
        self.memory_proj = Linear(c.encoder_dim, H, bias=False) if c.memory_projection else None
        self.scorer = _scorer(c) if attends else None
        context_width = 0 if c.step == "sutskever" else c.memory_dim
        input_width = c.dim + H * c.input_feeding + (context_width if c.step in ("cho", "bahdanau") else 0)
        self.decoder_blocks = nn.ModuleList(
            Recurrent(dim=H if i else input_width, **layer) for i in range(c.n_layers)
        )
        has_readout = c.deep_output or c.step == "luong"
        readout_width = H + context_width + c.dim * c.deep_output
        self.readout_proj = Linear(readout_width, H, bias=False) if has_readout else None
        narrows = c.tie_embeddings and c.dim != H
        self.output_proj = Linear(H, c.dim, bias=False) if narrows else None
        self.lm_head = Head(c.dim if narrows else H, c.vocab_size, bias=c.output_bias)
        self.embedding_dropout = dropout_or(c.embedding_dropout, c.dropout)
        self.output_dropout = dropout_or(c.output_dropout, c.dropout)
        self.teacher_forcing = c.teacher_forcing
        self.tie_weights()

    @property
    def blocks(self) -> list[Recurrent]:
        """All recurrent layers, those of the encoder first."""
        return [layer for layer in self.modules() if isinstance(layer, Recurrent)]

    def tie_weights(self) -> None:
        """Share the decoder's embedding [V, D] with ``lm_head`` if ``tie_embeddings`` is set."""
        if self.config.tie_embeddings:
            self.lm_head.weight = self.token_embedding.weight

    @fills_everything
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Uniform from -s to s, biases zero, an LSTM's forget gate at ``forget_bias``.

        s is 0.1 in the embeddings and the head, and 1/sqrt(hidden_dim) elsewhere.  In a ReLU layer U is the
        identity and W is normal with deviation 0.001 (Le et al. 2015).  ``init_scale`` sets s everywhere and
        draws the biases too, before ``forget_bias`` is added (Sutskever et al. use 0.08, Luong et al. 0.1).
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
            layer.init_gates(self.config.forget_bias, generator, identity=scale is None)

    def encode(self, source: Tensor, *, attend: Tensor | None = None) -> Memory:
        """source [B, S], ``attend`` [B, S] True for real tokens -> the memory that the decoder reads."""
        reverse = self.config.reverse_source
        real = attend.flip(1) if reverse and attend is not None else attend
        x = self.source_embedding(source.flip(1) if reverse else source)  # [B, S, D]
        states: list[State] = []
        for i, layer in enumerate(self.encoder_blocks):
            p = self.config.dropout if i else self.embedding_dropout
            x, state = layer(dropout(x, p, self.training), attend=real)  # [B, S, H or 2 H]
            states.append(state)
        m = x.flip(1) if reverse else x  # in the order of the source
        m = m if self.memory_proj is None else self.memory_proj(m)  # [B, S, M]
        extra: State = ()
        if self.scorer is not None:
            extra = (self.scorer.keys(m),)  # [B, S, A]
        elif self.config.feed_context:
            extra = (states[-1][0],)  # [B, M]
        if self.bridges:
            states = [_bridged(*pair) for pair in zip(self.bridges, states, strict=True)]
        return Memory(m, attend, (*(part for state in states for part in state), *extra))

    def hidden(self, prefix: Tensor, memory: Memory, *, cache: RecurrentCache | None = None) -> Tensor:
        """prefix [B, T], which continues the cached tokens -> [B, T, H], the vectors for ``lm_head``."""
        forced = None
        if self.training and self.teacher_forcing < 1.0 and cache is None:
            ones = torch.ones(prefix.shape, device=prefix.device)
            forced = dropout(ones, 1.0 - self.teacher_forcing, True) > 0  # drawn by sample and place
        o, states, _ = self._decode(prefix, memory, cache, forced)
        if cache is not None:
            for i, state in enumerate([*states, (o[:, -1:],)] if self.config.input_feeding else states):
                cache.layer(i).state = state
            cache.advance(prefix)
        return self._narrowed(dropout(o, self.output_dropout, self.training))

    # -- one step of each paper --------------------------------------------------------------------------
    #
    # x [B, T, D] embeds the previous tokens.  T is 1 where a step needs the result of the one before it.
    # ``exact`` computes the equations as written, without the fast kernels.

    def sutskever_step(self, x: Tensor, states: list[State], exact: bool) -> Step:
        """Sutskever et al. 2014, section 2: h_t = LSTM(x_t, h_{t-1})."""
        h, states = self._recur(x, states, exact)  # [B, T, H]
        return Step(self._deep_output(h, x), states)

    def cho_step(self, x: Tensor, states: list[State], memory: Memory, exact: bool) -> Step:
        """Cho et al. 2014, section 2.2: h_t = f(h_{t-1}, x_t, c), c the encoder's last h."""
        c = memory.state[-1][:, None].expand(-1, x.shape[1], -1)  # [B, T, M]
        h, states = self._recur(torch.cat([x, self._dropped(c)], -1), states, exact)  # [B, T, H]
        return Step(self._deep_output(h, c, x), states)

    def bahdanau_step(self, x: Tensor, states: list[State], memory: Memory, exact: bool) -> Step:
        """Bahdanau et al. 2015, sections A.1.2 and A.2.2: the state before the step attends.

        e_ij = a(s_{i-1}, m_j);  alpha_i = softmax(e_i);  c_i = sum_j alpha_ij m_j
        s_i = f(s_{i-1}, y_{i-1}, c_i);  o_i = s_i, or tanh(W [s_i; c_i; y_{i-1}]) with ``deep_output``
        """
        before = states[-1][0][:, None]  # s_{i-1} of the last layer, [B, 1, H]
        c, alpha = self._attention(before, memory, exact)  # [B, 1, M], [B, 1, S]
        s, states = self._recur(torch.cat([x, self._dropped(c)], -1), states, exact)  # [B, 1, H]
        return Step(self._deep_output(s, c, x), states, alpha)

    def luong_step(
        self, x: Tensor, states: list[State], memory: Memory, fed: Tensor | None, exact: bool
    ) -> Step:
        """Luong et al. 2015, section 3: the state after the step attends.

        h_t = LSTM(x_t, h_{t-1}), or of [x_t; o_{t-1}] with ``input_feeding`` (section 3.3), o_{t-1} = ``fed``
        a_t = softmax(score(h_t, m));  c_t = sum_s a_t(s) m_s;  o_t = tanh(W [h_t; c_t])       (equation 5)
        """
        inputs = x if fed is None else torch.cat([x, self._dropped(fed)], -1)  # [B, T, D or D + H]
        h, states = self._recur(inputs, states, exact)  # [B, T, H]
        c, a = self._attention(h, memory, exact)  # [B, T, M], [B, T, S]
        parts = [h, c, x] if self.config.deep_output else [h, c]
        assert self.readout_proj is not None
        return Step(torch.tanh(self.readout_proj(torch.cat(parts, -1))), states, a)  # [B, T, H]

    def _step(self, x: Tensor, states: list[State], memory: Memory, fed: Tensor | None, exact: bool) -> Step:
        match self.config.step:
            case "sutskever":
                return self.sutskever_step(x, states, exact)
            case "cho":
                return self.cho_step(x, states, memory, exact)
            case "bahdanau":
                return self.bahdanau_step(x, states, memory, exact)
            case _:
                return self.luong_step(x, states, memory, fed, exact)

    def _recur(self, x: Tensor, states: list[State], exact: bool) -> tuple[Tensor, list[State]]:
        """x [B, T, input] through all layers -> (the last layer's h [B, T, H], each layer's last state)."""
        after: list[State] = []
        x = x.contiguous()  # a slice of one step is strided, and products may round it differently
        for i, (block, state) in enumerate(zip(self.decoder_blocks, states, strict=True)):
            x, state = block(self._dropped(x) if i else x, state, exact=exact)
            after.append(state)
        return x, after

    def _attention(self, queries: Tensor, memory: Memory, exact: bool) -> tuple[Tensor, Tensor]:
        """queries [B, T, H] -> (contexts [B, T, M], weights [B, T, S])."""
        assert self.scorer is not None
        keys, attend = memory.state[-1], memory.attend
        return attend_to(memory.values, queries, self.scorer, keys=keys, attend=attend, exact=exact)

    def _deep_output(self, h: Tensor, *others: Tensor) -> Tensor:
        """h [B, T, H] and vectors of the same steps -> tanh(W [h; ...]), or h without ``deep_output``."""
        if self.readout_proj is None:
            return h
        return torch.tanh(self.readout_proj(torch.cat([h, *others], -1)))  # [B, T, H]

    # -- all steps ---------------------------------------------------------------------------------------

    def _decode(
        self,
        prefix: Tensor,
        memory: Memory,
        cache: RecurrentCache | None = None,
        forced: Tensor | None = None,
        exact: bool = False,
    ) -> Step:
        """prefix [B, T] -> o [B, T, H], the states after the last step, weights of attention [B, T, S].

        All steps run at once unless one needs the result of the step before it.  ``forced`` [B, T] is False
        where the most probable token of the previous step replaces that of the prefix.
        """
        feeds = self.config.input_feeding
        one_by_one = exact or feeds or forced is not None or self.config.step == "bahdanau"
        states, o = self._initial(memory, cache)
        embedded = self._embedded(prefix)  # [B, T, D]
        outputs: list[Tensor] = []
        weights: list[Tensor] = []
        for t, x in enumerate(torch.split(embedded, 1, dim=1) if one_by_one else [embedded]):
            if forced is not None and t:
                x = torch.where(forced[:, t, None, None], x, self._embedded(self._likeliest(o)))  # [B, 1, D]
            o, states, attention = self._step(x, states, memory, o if feeds else None, exact)
            outputs.append(o)
            if attention is not None:
                weights.append(attention)
        return Step(torch.cat(outputs, dim=1), states, torch.cat(weights, dim=1) if weights else None)

    def _initial(self, memory: Memory, cache: RecurrentCache | None) -> tuple[list[State], Tensor]:
        """Return the state of each layer before the first step, and the o [B, 1, H] fed to that step."""
        n = self.config.n_layers
        fed = memory.values.new_zeros(len(memory.values), 1, self.config.state_dim)
        stored = [] if cache is None else [layer.state for layer in cache.layers if layer.state is not None]
        if stored:
            return stored[:n], stored[n][0] if self.config.input_feeding else fed
        parts = len(self.blocks[0].state_dims)
        return [memory.state[i * parts : (i + 1) * parts] for i in range(n)], fed

    def _embedded(self, tokens: Tensor) -> Tensor:
        return dropout(self.token_embedding(tokens), self.embedding_dropout, self.training)

    def _dropped(self, x: Tensor) -> Tensor:
        return dropout(x, self.config.dropout, self.training)

    def _narrowed(self, o: Tensor) -> Tensor:
        return o if self.output_proj is None else self.output_proj(o)  # [B, T, H] -> [B, T, D]

    @torch.no_grad()
    def _likeliest(self, o: Tensor) -> Tensor:
        return self.lm_head(self._narrowed(o)).argmax(dim=-1)

    def forward(self, source: Tensor, prefix: Tensor, *, attend: Tensor | None = None) -> Tensor:
        """source [B, S] and prefix [B, T] -> logits [B, T, V]."""
        return self.lm_head(self.hidden(prefix, self.encode(source, attend=attend)))

    @torch.no_grad()
    def alignment(self, source: Tensor, prefix: Tensor, attend: Tensor | None = None) -> Tensor:
        """Return the attention weights of each step, [B, T, S] float32, computed step by step.

        Raises ConfigError for a model without attention.
        """
        weights = self._decode(prefix, self.encode(source, attend=attend), exact=True).weights
        if weights is None:
            raise ConfigError("attention is 'none': the decoder reads one vector and attends to no token")
        return weights

    def new_cache(self, batch: int, length: int) -> RecurrentCache:
        """Return an empty cache: a state for each layer and, with input feeding, the last o."""
        return RecurrentCache(n_layers=self.config.n_layers + self.config.input_feeding, batch=batch)


def _scorer(c: Seq2SeqConfig) -> AttentionScorer:
    width = {} if c.attention_dim is None else {"score_dim": c.attention_dim}
    return SCORERS[c.attention](dim=c.state_dim, memory_dim=c.memory_dim, **width)


def _bridged(bridge: Any, state: State) -> State:
    """The joined last state of both directions [B, 2 H] -> the decoder's initial state [B, H]."""
    # a fused kernel returns c in float32 beside h in bfloat16, the dtype of the weights
    h, *c = (proj(part.to(state[0].dtype)) for proj, part in zip(bridge, state, strict=True))
    return torch.tanh(h), *c
