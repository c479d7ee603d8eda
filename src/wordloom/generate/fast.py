"""Fast decoding on a CPU: a model's own tensors, read by compiled programs in place of its modules.

The plain path stays, and is the oracle: in float32 both give the same tokens, and logits within 1e-5.
In bfloat16 the programs keep float32 between the layers where PyTorch rounds, so theirs are the finer
logits.  Nothing of the model is changed or copied but norms and biases, and these anew for each cache, so
a model in training is sampled as it is.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from wordloom.generate.accepts import ACTIVATIONS, accepts
from wordloom.generate.conditioned import Conditioned
from wordloom.kernels.threads import one_thread
from wordloom.models import MODELS, RNN, GPTConfig, LlamaConfig
from wordloom.models.checks.inputs import positions_within
from wordloom.nn import GatedFeedForward, KeyValueCache
from wordloom.nn.cache import Cache
from wordloom.nn.linear import has_amx, widens

__all__ = [
    "Accelerated", "FastModel", "Team", "accelerate", "compiling", "one_thread", "stacked", "stacked_norms",
    "team_of", "whole_vectors",
]  # fmt: skip

log = logging.getLogger(__name__)

# Rows computed at once up to which the programs are surely the faster: on Zen 4 PyTorch's matrix products
# overtake them between 64 and 96 in float32 and at about 32 in bfloat16, on Zen 3 before.
FLOAT32_ROWS = 32
BFLOAT16_ROWS = 24
AMX_BFLOAT16_ROWS = 8
WIDENED_BFLOAT16_ROWS = 96  # where PyTorch has to widen all weights first
WEIGHTS_PER_THREAD = 2_000_000  # below, meeting costs more than it saves


def accelerate(model: Any) -> Any:
    """Return ``model`` wrapped for fast decoding, or ``model`` itself if no program may stand in for it.

    It applies to what :func:`wordloom.generate.accepts.accepts` accepts: GPT, GPT-2, LLaMA, recurrent models,
    and a Transformer or BertGeneration that has read its sources, on a CPU in float32 or bfloat16.
    """
    if not accepts(model):
        return model
    if isinstance(model, Conditioned):
        from wordloom.generate.fast_transformer import FastTransformer

        return FastTransformer(model.model, model.memory, kept=model.kept)
    if isinstance(model, RNN):
        from wordloom.generate.fast_rnn import FastRNN

        return FastRNN(model)
    return FastModel(model)


class Team:
    """Threads that run one program together; the caller is one of them."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.counters = np.zeros(16, dtype=np.int64)
        self.others = ThreadPoolExecutor(threads - 1, "wordloom-decode") if threads > 1 else None
        self.lock = threading.Lock()

    def run(self, program: Any, *arguments: Any) -> None:
        """``program(*arguments, counters, thread)`` on every thread; returns when all have ended."""
        shared = (*arguments, self.counters)
        with self.lock:
            others = []
            try:
                for thread in range(1, self.threads):
                    assert self.others is not None
                    others.append(self.others.submit(partial(program, *shared, thread)))
                program(*shared, 0)
                for other in others:
                    other.result()
            except BaseException:
                # an interrupt between two starts would leave some waiting for the rest
                self.counters[8] = 1
                for other in others:
                    other.exception()
                self.counters[:] = 0
                raise


_teams: dict[int, Team] = {}


def team_of(weights: int) -> Team:
    """As many threads as PyTorch uses, fewer for a model too small to share; kept for the next cache."""
    threads = min(torch.get_num_threads(), max(1, weights // WEIGHTS_PER_THREAD))
    if threads == 1:
        return Team(1)  # a team runs one program at a time, and several models may run beside one another
    if threads not in _teams:
        _teams[threads] = Team(threads)
    return _teams[threads]


@contextmanager
def compiling(program: Any) -> Iterator[None]:
    """Inside, a line tells who waits for ``program`` to be compiled why."""
    if program.overloads:
        yield
        return
    notice = threading.Timer(2.0, log.warning, ["compiling the decoding programs, once on this machine ..."])
    notice.start()
    yield
    notice.cancel()


class Accelerated:
    """A model that :func:`accelerate` has given programs."""


class Shape(NamedTuple):
    """The sizes of a model's layers, as its config gives them."""

    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden_dim: int

    @classmethod
    def of(cls, config: Any) -> Shape:
        """The sizes of a GPT, a GPT-2 or a LLaMA."""
        c = config
        if isinstance(c, LlamaConfig):
            return cls(c.dim, c.n_heads, c.kv_heads, c.head_width, c.ffn_dim)
        return cls(c.dim, c.n_heads, c.n_heads, c.dim // c.n_heads, c.hidden_dim or 4 * c.dim)


class FastModel(Accelerated):
    """A :class:`wordloom.models.CausalLM` that passes new tokens through a program and long prompts through
    the modules.

    The next call of ``hidden`` or ``lm_head`` overwrites what the last one returned.
    """

    def __init__(self, model: Any) -> None:
        from wordloom.kernels.decoding import causal as programs

        self.model = model
        self.config = model.config
        self.programs = programs
        family = next(name for name, family in MODELS.items() if type(model) is family.model)
        self.program = programs.PROGRAMS[family]
        self.shape = Shape.of(model.config)
        self.rooms: dict[int, Any] = {}
        self._prepare()

    unchanged = True  # since accelerate() made this: the next cache need not look at every module again

    def _prepare(self) -> None:
        """Forget the weights and the cache that the programs read."""
        self.dtype = self.model.lm_head.weight.dtype
        self.most_rows = self._most_rows()
        self.logits = np.empty((0, 0), dtype=np.float32)
        self.bound: Any = None
        self.checked: list[weakref.ref[Tensor]] = []  # keys and values that `addresses` are of
        self.addresses = np.empty((0, 2), dtype=np.int64)

    def _most_rows(self) -> int:
        """Rows computed at once up to which a program is the faster."""
        if self.dtype == torch.float32:
            return FLOAT32_ROWS
        if widens(torch.device("cpu"), self.dtype):
            return WIDENED_BFLOAT16_ROWS
        return AMX_BFLOAT16_ROWS if has_amx() else BFLOAT16_ROWS

    def _team(self) -> Team:
        """Threads for what a token reads: all weights, but of an untied embedding a single row."""
        embedding = self.model.token_embedding.weight
        unread = 0 if embedding is self.model.lm_head.weight else embedding.numel()
        return team_of(sum(p.numel() for p in self.model.parameters()) - unread)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)  # parameters(), modules(), training, eval(), ...

    def new_cache(self, batch: int, length: int) -> Any:
        """Return an empty cache, allocated whole; the program sees the weights as they are now."""
        cache = self.model.new_cache(batch, length)
        changed, self.unchanged = not (self.unchanged or accepts(self.model)), False
        self._prepare()
        if not changed:
            self.team = self._team()
            self.bound = self._bind(length)
            head = self.model.lm_head
            self.head, self.head_bias = head.weight.detach(), stacked([head.bias])[0]
            self._allocate(cache, batch, length)
        return cache

    def _allocate(self, cache: Any, batch: int, length: int) -> None:
        self.rooms.clear()
        for layer in cache.layers:
            shape = (batch, self.shape.kv_heads, length, self.shape.head_dim)
            layer.keys, layer.values = _zeros(shape, self.dtype), _zeros(shape, self.dtype)

    def hidden(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        attend: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """tokens [B, T] -> [B, T, D], float32 from a program, else the model's own dtype."""
        places = None
        if positions is None and documents is None:
            places = self._places(cache, tokens.shape)
        if places is None:
            where: dict[str, Any] = {"positions": positions, "documents": documents, "attend": attend}
            return self.model.hidden(tokens, **where, cache=cache)
        assert isinstance(cache, KeyValueCache)
        return self._run(tokens, attend, cache, places)

    def lm_head(self, hidden: Tensor) -> Tensor:
        """hidden [.., D], as :meth:`hidden` last gave it, -> logits [.., V]; float32 from the program."""
        x = hidden.reshape(-1, hidden.shape[-1])
        fits = self.bound is not None and not self.model.training and len(x) <= self.most_rows
        if not fits or x.shape[1] != self.head.shape[1]:
            return self.model.lm_head(hidden)
        if len(x) > len(self.logits):
            self.logits = np.empty((len(x), self.head.shape[0]), dtype=np.float32)
        out = self.logits[: len(x)]
        ours = np.ascontiguousarray(x.float().numpy())
        self.team.run(
            self.programs.head, self.bound.like, self.head.data_ptr(), self.head_bias, out, ours,
            self.team.threads,
        )  # fmt: skip
        return torch.from_numpy(out).view(*hidden.shape[:-1], -1)

    def _places(self, cache: Cache | None, shape: tuple[int, ...]) -> np.ndarray | None:
        """Return the addresses [L, 2] of the keys and values in ``cache``.

        None if the program may not take new tokens of this ``shape``; the modules say what is wrong.
        """
        B, T = shape
        if self.bound is None or not isinstance(cache, KeyValueCache) or self.model.training:
            return None
        if self.most_rows < B * T or cache.longest + T > self.length or len(cache.lengths) != B:
            return None
        stored = [kept for layer in cache.layers for kept in (layer.keys, layer.values)]
        first = stored[0] if len(stored) == 2 * self.config.n_layers else None
        if first is None or len(first) != B or first.shape[2] < cache.longest + T:
            return None
        seen = len(self.checked) == len(stored)
        if not seen or any(kept is not ref() for kept, ref in zip(stored, self.checked, strict=True)):
            wanted = (B, self.shape.kv_heads, first.shape[2], self.shape.head_dim)
            tensors = [kept for kept in stored if kept is not None]
            if len(tensors) < len(stored) or any(
                kept.shape != wanted or kept.dtype != self.dtype or not kept.is_contiguous()
                for kept in tensors
            ):
                return None
            self.checked = [weakref.ref(kept) for kept in tensors]
            self.addresses = np.array([kept.data_ptr() for kept in tensors]).reshape(-1, 2)
        return self.addresses

    def _run(self, tokens: Tensor, attend: Tensor | None, cache: KeyValueCache, places: np.ndarray) -> Tensor:
        B, T = tokens.shape
        if B * T not in self.rooms:
            self.rooms[B * T] = self._make_room(B * T)
        room = self.rooms[B * T]
        x = torch.from_numpy(room.x).view(B, T, -1)
        rows = np.empty((B, T, 2), dtype=np.int64)
        rows[:, :, 0] = np.arange(B)[:, None]
        rows[:, :, 1] = cache.lengths.numpy()[:, None] + np.arange(T)
        x.copy_(self._embeddings(tokens, torch.from_numpy(rows[:, :, 1]), cache.longest + T - 1))
        capacity = cache.layers[0].keys.shape[2]  # type: ignore[union-attr]
        memory = self.programs.Memory(places, capacity, rows.reshape(B * T, 2))
        with compiling(self.program):
            self.team.run(self.program, self.bound, memory, room)
        cache.advance(tokens, attend)
        return x

    def _embeddings(self, tokens: Tensor, positions: Tensor, highest: int) -> Tensor:
        model = self.model
        x = model.token_embedding(tokens).float()
        if isinstance(self.config, LlamaConfig):
            return x
        if highest >= self.config.max_seq_len:
            positions = positions_within(positions, self.config.max_seq_len)
        if isinstance(self.config, GPTConfig):
            return x + model.position_vectors(positions).float()
        return x + model.position_embedding(positions).float()

    def _make_room(self, R: int) -> Any:
        s, gated = self.shape, isinstance(self.config, LlamaConfig)
        queries, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
        widths = {
            "x": s.dim, "q": queries, "k": keys, "v": keys, "mixed": queries,
            "wide": s.hidden_dim, "gate": s.hidden_dim * gated,
        }  # fmt: skip
        arrays = {name: np.zeros((R, width), dtype=np.float32) for name, width in widths.items()}
        normed = np.zeros((self.team.threads, R, s.dim), dtype=np.float32)
        scores = np.zeros((self.team.threads, whole_vectors(self.length)), dtype=np.float32)
        return self.programs.Room(**arrays, normed=normed, scores=scores)

    def _bind(self, length: int) -> Any:
        """The model as the programs see it, for positions below ``length``."""
        self.length = length
        model, blocks, s = self.model, self.model.blocks, self.shape
        linears = [_linears(block) for block in blocks]
        final = getattr(model, "final_norm", blocks[0].attention_norm)  # a GPT has none, nor reads it
        norms = [[block.attention_norm, block.ffn_norm] for block in blocks] + [[final, final]]
        rotary = torch.zeros(2, 0, s.head_dim // 2)
        if isinstance(self.config, LlamaConfig):
            rotary = torch.stack(model.rotary.angles(torch.arange(length)))  # [2, length, E/2]
        return self.programs.Weights(
            like=np.empty(0, dtype=np.float32 if self.dtype == torch.float32 else np.uint16),
            heads=s.heads,
            kv_heads=s.kv_heads,
            head_dim=s.head_dim,
            matrices=self._addresses([[linear.weight for linear in row] for row in linears]),
            biases=tuple(stacked([linear.bias for linear in kind]) for kind in zip(*linears, strict=True)),
            gains=stacked_norms(norms, "weight"),
            offsets=stacked_norms(norms, "bias"),
            rotary=rotary.numpy(),
            eps=float(self.config.norm_eps),
            scale=float(blocks[0].attention.scale),
            activation=ACTIVATIONS[self.config.activation],
        )

    def _addresses(self, weights: list[list[Tensor | None]]) -> np.ndarray:
        """The addresses of ``weights``, 0 for None; they stay valid if the model is given other weights."""
        self.read = [[None if weight is None else weight.detach() for weight in row] for row in weights]
        return np.array([[0 if weight is None else weight.data_ptr() for weight in row] for row in self.read])


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros whose memory is taken page by page, when it is first written to."""
    if dtype == torch.float32:
        return torch.from_numpy(np.zeros(shape, np.float32))
    return torch.from_numpy(np.zeros(shape, np.int16)).view(dtype)


def _linears(block: Any) -> list[nn.Linear]:
    """The layers of a block in the order of ``Weights.matrices``."""
    attention, feed_forward = block.attention, block.feed_forward
    first = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    gate = [feed_forward.gate_proj] if isinstance(feed_forward, GatedFeedForward) else []
    return [*first, feed_forward.up_proj, feed_forward.down_proj, *gate]


def whole_vectors(n: int) -> int:
    """``n``, or so many more that they fill up vector registers, which hold 8 or 16."""
    return -(-n // 16) * 16


def stacked(parts: Sequence[Tensor | None], dims: int = 1) -> np.ndarray:
    """Return the parts of all layers, each of ``dims`` dimensions or None, as float32 [L, ..] or [L, 0, ..].

    Raises RuntimeError unless all have one shape: a program takes the shape of an array for that of its rows.
    """
    given = [part for part in parts if part is not None]
    if not given:
        return np.zeros((len(parts), *[0] * dims), dtype=np.float32)
    if len(given) < len(parts):
        raise RuntimeError(f"{len(given)} of {len(parts)} layers have a tensor that the others lack")
    return torch.stack(given).detach().float().numpy()


def stacked_norms(norms: list[list[nn.Module]], name: str) -> np.ndarray:
    """Return the parameters ``name`` of the norms [L, n] as [L, n, D] float32, or [L, n, 0] without them."""
    flat = stacked([getattr(norm, name, None) for layer in norms for norm in layer])
    return flat.reshape(len(norms), len(norms[0]), flat.shape[1])
