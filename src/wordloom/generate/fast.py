"""Fast decoding on a CPU: a model's own tensors, read by compiled programs in place of its modules.

The plain path stays, and is the oracle: in float32 both give the same tokens, and logits within 1e-5.
In bfloat16 the programs keep float32 between the layers where PyTorch rounds, so theirs are the finer
logits.  Nothing of the model is changed or copied but norms and biases, and these anew for each cache, so
a model in training is sampled as it is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wordloom.generate.conditioned import Conditioned
from wordloom.kernels.threads import one_thread
from wordloom.models import MODELS, RNN
from wordloom.nn import Attention, GatedFeedForward, KeyValueCache, Linear
from wordloom.nn.cache import Cache, token_positions
from wordloom.nn.head import Head
from wordloom.nn.linear import has_amx, widens

__all__ = [
    "Accelerated", "FastModel", "Team", "accelerate", "compiling", "one_thread", "stacked", "team_of",
    "whole_vectors",
]  # fmt: skip

log = logging.getLogger(__name__)

_CONDITIONED = ("transformer", "bert_generation")  # families that write from what they have read
ACTIVATIONS = {"relu": 0, "gelu": 1, "gelu_tanh": 2, "silu": 3}  # as numbered in kernels.py

# Rows computed at once up to which the programs are surely the faster: on Zen 4 PyTorch's matrix products
# overtake them between 64 and 96 in float32 and at about 32 in bfloat16, on Zen 3 before.
FLOAT32_ROWS = 32
BFLOAT16_ROWS = 24
AMX_BFLOAT16_ROWS = 8
WIDENED_BFLOAT16_ROWS = 96  # where PyTorch has to widen all weights first
WEIGHTS_PER_THREAD = 2_000_000  # below, meeting costs more than it saves


def accelerate(model: Any) -> Any:
    """``model`` wrapped for fast decoding, or ``model`` itself where that does not apply.

    It applies to GPT, GPT-2, LLaMA, recurrent models, and a Transformer or BertGeneration that has read its
    sources, on a CPU in float32 or bfloat16, as they were built: not to a model with hooks, replaced layers,
    a forced attention backend or rotary scaling that depends on length.
    """
    reason = _unfit(model)
    if reason:
        log.debug("decoding runs the plain modules: %s", reason)
        return model
    if isinstance(model, Conditioned):
        from wordloom.generate.fast_transformer import FastTransformer

        return FastTransformer(model.model, model.memory, kept=model.kept)
    if isinstance(model, RNN):
        from wordloom.generate.fast_rnn import FastRNN

        return FastRNN(model)
    return FastModel(model)


def _unfit(model: Any) -> str:
    written_by = model.model if type(model) is Conditioned else model
    family = next((name for name, family in MODELS.items() if type(written_by) is family.model), None)
    if family not in (_CONDITIONED if written_by is not model else ("gpt", "gpt2", "llama", "rnn")):
        return "no program for this model"
    if find_spec("numba") is None:
        return "numba is not installed"
    config = model.config
    modules = list(model.modules())
    parameters = [p for module in modules for p in module._parameters.values() if p is not None]
    dtype = parameters[0].dtype
    if dtype not in (torch.float32, torch.bfloat16) or any(p.dtype != dtype for p in parameters):
        return "weights are neither all float32 nor all bfloat16"
    if any(p.device.type != "cpu" or not p.is_contiguous() for p in parameters):
        return "weights are not contiguous on the CPU"
    if family != "rnn" and config.activation not in ACTIVATIONS:
        return f"activation {config.activation}"
    if getattr(getattr(model, "rotary", None), "kind", None) == "dynamic":
        return "rotary frequencies depend on the length"
    for module in modules:
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            return "a module is hooked"
        if isinstance(module, nn.Linear) and type(module) not in (Linear, Head):
            return "a layer is replaced"
        if isinstance(module, Attention) and (module.backend != "auto" or module.rotary_layout != "halves"):
            return "attention is set by hand"
    if family in _CONDITIONED:
        from wordloom.generate.fast_transformer import unfit

        return unfit(written_by, model.memory)
    return ""


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


class FastModel(Accelerated):
    """A :class:`wordloom.models.CausalLM` whose new tokens pass through a program, long prompts as before.

    What ``hidden`` and ``lm_head`` return is overwritten by their next call.
    """

    def __init__(self, model: Any) -> None:
        from wordloom.kernels.decoding import causal as programs

        self.model = model
        self.config = model.config
        self.programs = programs
        family = next(name for name, family in MODELS.items() if type(model) is family.model)
        self.program = programs.PROGRAMS[family]
        attention = model.blocks[0].attention
        self.n_kv_heads, self.head_dim = attention.n_kv_heads, attention.head_dim
        self.dtype = model.lm_head.weight.dtype
        self.most_rows = self._most_rows()
        self.rooms: dict[int, Any] = {}
        self.logits = np.empty((0, 0), dtype=np.float32)
        self.bound: Any = None

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

    def new_cache(self, batch: int, length: int) -> KeyValueCache:
        """An empty cache, allocated whole; the programs see the weights as they are now."""
        cache: KeyValueCache = self.model.new_cache(batch, length)
        for layer in cache.layers:
            shape = (batch, self.n_kv_heads, length, self.head_dim)
            layer.keys, layer.values = (
                torch.empty(shape, dtype=self.dtype),
                torch.empty(shape, dtype=self.dtype),
            )
        self.team = self._team()
        self.bound = self._bind(length)
        self.rooms.clear()
        return cache

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
        B, T = tokens.shape
        where: dict[str, Any] = {"positions": positions, "documents": documents, "attend": attend}
        fits = positions is None and documents is None and self._fits(cache, B * T, T, attend)
        if not fits:
            return self.model.hidden(tokens, **where, cache=cache)
        assert isinstance(cache, KeyValueCache)
        return self._run(tokens, attend, cache)

    def lm_head(self, hidden: Tensor) -> Tensor:
        """hidden [.., D], as :meth:`hidden` last gave it, -> logits [.., V]; float32 from the program."""
        x = hidden.reshape(-1, hidden.shape[-1])
        if self.bound is None or self.model.training or len(x) > self.most_rows:
            return self.model.lm_head(hidden)
        head = self.model.lm_head
        if len(x) > len(self.logits):
            self.logits = np.empty((len(x), head.weight.shape[0]), dtype=np.float32)
        out = self.logits[: len(x)]
        bias = np.empty(0, np.float32) if head.bias is None else head.bias.detach().float().numpy()
        ours = np.ascontiguousarray(x.float().numpy())
        self.team.run(
            self.programs.head, self.bound.like, head.weight.data_ptr(), bias, out, ours, self.team.threads
        )
        return torch.from_numpy(out).view(*hidden.shape[:-1], -1)

    def _fits(self, cache: Cache | None, rows: int, T: int, attend: Tensor | None) -> bool:
        if self.bound is None or not isinstance(cache, KeyValueCache) or self.model.training:
            return False
        if rows > self.most_rows:
            return False
        keys = cache.layers[0].keys
        if keys is None or cache.length + T > min(keys.shape[2], self.length):
            return False
        known = [mask for mask in (cache.attend, attend) if mask is not None]
        return all(bool((mask[:, 1:] >= mask[:, :-1]).all()) for mask in known)  # padding on the left only

    def _run(self, tokens: Tensor, attend: Tensor | None, cache: KeyValueCache) -> Tensor:
        B, T = tokens.shape
        positions, _ = token_positions(tokens, attend=attend, cache=cache)  # [1 or B, T]
        if B * T not in self.rooms:
            self.rooms[B * T] = self._make_room(B * T)
        room = self.rooms[B * T]
        x = torch.from_numpy(room.x).view(B, T, -1)
        x.copy_(self._embeddings(tokens, positions))
        rows = np.empty((B, T, 4), dtype=np.int64)
        rows[:, :, 0] = np.arange(B)[:, None]
        rows[:, :, 1] = np.arange(cache.length, cache.length + T)
        rows[:, :, 3] = positions.numpy()
        rows[:, :, 2] = rows[:, :, 1] - rows[:, :, 3]  # what stands before is padding
        places = np.array([(a.keys.data_ptr(), a.values.data_ptr()) for a in cache.layers])  # type: ignore[union-attr]
        capacity = cache.layers[0].keys.shape[2]  # type: ignore[union-attr]
        memory = self.programs.Memory(places, capacity, rows.reshape(B * T, 4))
        with compiling(self.program):
            self.team.run(self.program, self.bound, memory, room)
        cache.advance(T)
        return x

    def _embeddings(self, tokens: Tensor, positions: Tensor) -> Tensor:
        model = self.model
        x = model.token_embedding(tokens).float()
        if hasattr(model, "position_vectors"):
            return x + model.position_vectors(positions).float()
        if hasattr(model, "position_embedding"):
            return x + model.position_embedding(positions).float()
        return x

    def _make_room(self, R: int) -> Any:
        block = self.model.blocks[0]
        D, F = self.config.dim, block.feed_forward.up_proj.weight.shape[0]
        queries, keys = block.attention.q_proj.weight.shape[0], block.attention.k_proj.weight.shape[0]
        gated = isinstance(block.feed_forward, GatedFeedForward)
        widths = {"x": D, "q": queries, "k": keys, "v": keys, "mixed": queries, "gate": F, "up": F * gated}
        arrays = {name: np.zeros((R, width), dtype=np.float32) for name, width in widths.items()}
        normed = np.zeros((self.team.threads, R, D), dtype=np.float32)
        scores = np.zeros((self.team.threads, whole_vectors(self.length)), dtype=np.float32)
        return self.programs.Room(**arrays, normed=normed, scores=scores)

    def _bind(self, length: int) -> Any:
        """The model as the programs see it, for positions below ``length``."""
        self.length = length
        model, blocks = self.model, self.model.blocks
        linears = [_linears(block) for block in blocks]
        norms = [[block.attention_norm, block.ffn_norm] for block in blocks]
        final = getattr(model, "final_norm", norms[0][0])
        norms.append([final, final])
        rotary = torch.zeros(2, 0, self.head_dim // 2)
        if hasattr(model, "rotary"):
            rotary = torch.stack(model.rotary.angles(torch.arange(length)))  # [2, length, E/2]
        return self.programs.Weights(
            like=np.empty(0, dtype=np.float32 if self.dtype == torch.float32 else np.uint16),
            matrices=np.array([[linear.weight.data_ptr() for linear in row] for row in linears]),
            biases=stacked([[linear.bias for linear in row] for row in linears]),
            gains=stacked([[norm.weight for norm in pair] for pair in norms]),
            offsets=stacked([[getattr(norm, "bias", None) for norm in pair] for pair in norms]),
            rotary=rotary.numpy(),
            eps=float(norms[0][0].eps),
            scale=float(blocks[0].attention.scale),
            activation=ACTIVATIONS[self.config.activation],
        )


def _linears(block: Any) -> list[nn.Linear]:
    attention, feed_forward = block.attention, block.feed_forward
    first = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    gate = [feed_forward.gate_proj] if isinstance(feed_forward, GatedFeedForward) else []
    return [*first, *gate, feed_forward.up_proj, feed_forward.down_proj]


def whole_vectors(n: int) -> int:
    """``n``, or so many more that they fill up vector registers, which hold 8 or 16."""
    return -(-n // 16) * 16


def stacked(vectors: list[list[Tensor | None]]) -> np.ndarray:
    """[L, n, widest] float32, narrower vectors filled up with zeros; [L, n, 0] where none has one."""
    widest = max((len(v) for row in vectors for v in row if v is not None), default=0)
    together = np.zeros((len(vectors), len(vectors[0]), widest), dtype=np.float32)
    for i, row in enumerate(vectors):
        for j, vector in enumerate(row):
            if vector is not None:
                together[i, j, : len(vector)] = vector.detach().float().numpy()
    return together
