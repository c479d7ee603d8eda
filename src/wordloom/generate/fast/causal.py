"""Fast decoding of GPT, GPT-2 and LLaMA: one compiled program for a few tokens through all layers."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wordloom.generate.fast.threads import Accelerated, compiling, threads_for
from wordloom.generate.fast.weights import (
    ACTIVATIONS,
    accepts,
    kept_dtype,
    n_weights,
    stacked,
    stacked_norms,
    whole_vectors,
    zeros,
)
from wordloom.kernels.bfloat16_products import has_bfloat16_products, shortened_bytes
from wordloom.kernels.decoding import causal as programs
from wordloom.kernels.decoding import leaves
from wordloom.kernels.decoding.integers import integers_room
from wordloom.kernels.threads import one_thread
from wordloom.models import MODELS, GPTConfig, LlamaConfig
from wordloom.models.building import quantized
from wordloom.models.checks import positions_within
from wordloom.nn import GatedFeedForward, KeyValueCache
from wordloom.nn.attention.kinds import Block, Dilated, Full, Global
from wordloom.nn.cache import SPARE_PLACES, Cache, LayerKeyValues
from wordloom.nn.linear import has_amx, has_fast_bf16, widens
from wordloom.nn.quantized import MOST_EXACT_ROWS, stored_weight

# The largest number of tokens computed at once for which the programs are faster than PyTorch's products.  On
# Zen 4, PyTorch is faster from 64 to 96 tokens in float32; on Zen 3 from fewer.
FLOAT32_ROWS = 32
BFLOAT16_ROWS = 24
AMX_BFLOAT16_ROWS = 24  # as fast as the modules at a dim of 768, and 1.5 times as fast at 288
BFLOAT16_PRODUCTS_ROWS = 128  # where the programs multiply bfloat16 with bfloat16
WIDENED_BFLOAT16_ROWS = 96  # where PyTorch first converts all weights to float32
NARROWEST = 16
INT8_ROWS = 256  # without fast bfloat16 the modules widen all weights to float32, and are faster from 384


class FastModel(Accelerated):
    """A :class:`wordloom.models.CausalLM` whose new tokens pass through a program, and long prompts through
    the modules.

    The next call of ``hidden`` or ``lm_head`` overwrites the result of the last one.
    """

    unchanged = True  # since accelerate() checked the model; a later cache checks it again

    def __init__(self, model: Any) -> None:
        self.model = model
        self.config = model.config
        self._forget_weights()

    def _forget_weights(self) -> None:
        self.dtype = kept_dtype(self.model)
        self.cache_dtype = quantized.KEPT_DTYPE if self.dtype == torch.int8 else self.dtype
        self.most_rows = self._most_rows()
        # a norm of a narrow row is computed for several rows at once
        self.most_alike = self.most_rows if self.config.dim >= NARROWEST else 1
        self.length = 0  # positions for which there are rotary angles and buffers
        self.buffers: dict[int, Any] = {}  # by the number of tokens computed at once
        self.logits = np.empty((0, 0), dtype=np.float32)
        self.weights: Any = None
        self.checked: list[weakref.ref[Tensor]] = []  # the keys and values that `addresses` belong to
        self.addresses = np.empty((0, 0, 2), dtype=np.int64)  # see kernels.decoding.causal.NewTokens
        self.places = np.empty((0, 0, 3), dtype=np.int64)
        self.kinds = np.empty((0, 0, 3), dtype=np.int64)

    def _most_rows(self) -> int:
        """Return the largest number of tokens computed at once for which a program is faster."""
        if self.dtype == torch.int8:
            return MOST_EXACT_ROWS if has_fast_bf16(torch.device("cpu")) else INT8_ROWS
        if self.dtype == torch.float32:
            return FLOAT32_ROWS
        if widens(torch.device("cpu"), self.dtype):
            return WIDENED_BFLOAT16_ROWS
        if has_amx():
            return AMX_BFLOAT16_ROWS
        return BFLOAT16_PRODUCTS_ROWS if has_bfloat16_products() else BFLOAT16_ROWS

    def _weights_read(self) -> int:
        """Return how many weights a token reads: all, but of an untied embedding a single row."""
        embedding = stored_weight(self.model.token_embedding)
        unread = 0 if embedding is stored_weight(self.model.lm_head) else embedding.numel()
        return n_weights(self.model) - unread

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)  # parameters(), modules(), training, eval(), ...

    def new_cache(self, batch: int, length: int) -> Any:
        """Return an empty cache of ``length`` tokens; the programs read the weights as they are now."""
        cache = self.model.new_cache(batch, length)
        changed, self.unchanged = not (self.unchanged or accepts(self.model)), False
        self._forget_weights()
        if not changed:
            self.threads = threads_for(self._weights_read())
            self.weights = self._read_weights()
            head = self.model.lm_head
            self.head, self.head_bias = stored_weight(head).detach(), stacked([head.bias])[0]
            self._reach(length)
        return cache

    def _reach(self, length: int) -> None:
        """Prepare for positions below ``length``."""
        if length <= self.length:
            return
        self.length = length
        self.buffers.clear()
        if isinstance(self.config, LlamaConfig):
            angles = torch.stack(self.model.rotary.angles(torch.arange(length)))  # [2, length, E/2]
            self.weights = self.weights._replace(rotary=angles.numpy())

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
        plain = positions is None and documents is None
        hidden = None if cache is None else self._by_program(tokens, attend, cache, plain)
        if hidden is not None:
            return hidden
        where: dict[str, Any] = {"positions": positions, "documents": documents, "attend": attend}
        return self.model.hidden(tokens, **where, cache=cache)

    def _by_program(self, tokens: Tensor, attend: Tensor | None, cache: Cache, plain: bool) -> Tensor | None:
        """Return :meth:`hidden` from a program; None if none applies, as with positions (not ``plain``)."""
        if not plain or not isinstance(cache, KeyValueCache):
            return None
        addresses = self._cached(cache, tokens.shape)
        return None if addresses is None else self._run(tokens, attend, cache, addresses)

    def lm_head(self, hidden: Tensor) -> Tensor:
        """hidden [.., D], as :meth:`hidden` last returned it -> logits [.., V]; float32 from the program."""
        x = hidden.reshape(-1, hidden.shape[-1])
        fits = self.weights is not None and not self.model.training and len(x) <= self.most_rows
        V, D = self.model.lm_head.out_features, self.model.lm_head.in_features
        if not fits or x.shape[1] != D:
            if self.dtype == torch.bfloat16 and hidden.dtype == torch.float32:
                hidden = hidden.to(torch.bfloat16)  # vectors of a program, of more rows than one takes
            return self.model.lm_head(hidden)
        if len(x) > len(self.logits):
            self.logits = np.empty((len(x), V), dtype=np.float32)
        out = self.logits[: len(x)]
        self.threads.run(
            programs.head, self.weights.like, self.head.data_ptr(), self.head_bias, out,
            np.ascontiguousarray(x.float().numpy()), *self._rounded(len(x), D), self.threads.count,
        )  # fmt: skip
        return torch.from_numpy(out).view(*hidden.shape[:-1], -1)

    def _cached(self, cache: KeyValueCache, shape: tuple[int, ...]) -> np.ndarray | None:
        """Return the addresses [B, L, 2] of the keys and values in ``cache``.

        None if a program does not apply to new tokens of this ``shape``; the modules raise if they are wrong.
        """
        B, T = shape
        if self.weights is None or self.model.training or self.most_rows < B * T:
            return None
        if cache.n_rows != B or len(cache.layers) != self.config.n_layers:
            return None
        layers = cache.key_values
        if any(layer.bound is not None for layer in layers) and T > SPARE_PLACES + 1:
            return None
        needed, stored = cache.longest + T, list[Tensor]()
        for layer in layers:
            stored += self._with_room(cache, layer, needed)
        known = len(self.checked) == len(stored)
        if not known or any(part is not ref() for part, ref in zip(stored, self.checked, strict=True)):
            K, E = self.weights.kv_heads, self.weights.head_dim
            for part in stored:
                fits = part.dtype == self.cache_dtype and part.is_contiguous()
                if not fits or part.shape != (B, K, part.shape[2], E):
                    return None
            self.checked = [weakref.ref(part) for part in stored]
            self.addresses, self.places = places_of(layers)
        return self.addresses

    def with_room(self, cache: KeyValueCache, needed: int) -> tuple[np.ndarray, np.ndarray]:
        """Give all layers of ``cache`` room for ``needed`` tokens; return the addresses and places."""
        for layer in cache.key_values:
            self._with_room(cache, layer, needed)
        return places_of(cache.key_values)

    def _with_room(self, cache: KeyValueCache, layer: LayerKeyValues, needed: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a layer with room for ``needed`` tokens, or all that it keeps."""
        if layer.bound is not None:
            needed = min(needed, layer.bound)
        if layer.keys is None:
            capacity = max(cache.capacity, needed)
            capacity = capacity if layer.bound is None else min(capacity, layer.bound)
            shape = (cache.n_rows, self.weights.kv_heads, capacity, self.weights.head_dim)
            layer.keys, layer.values = zeros(shape, self.cache_dtype), zeros(shape, self.cache_dtype)
        elif layer.keys.shape[2] < needed:
            layer.grow(layer.keys, needed)
        assert layer.values is not None
        return layer.keys, layer.values

    def _run(
        self, tokens: Tensor, attend: Tensor | None, cache: KeyValueCache, addresses: np.ndarray
    ) -> Tensor:
        B, T = tokens.shape
        if cache.longest + T > self.length:
            self._reach(max(cache.longest + T, 2 * self.length, int(self.places[:, :, 0].max())))
        rows = np.empty((B, T, 2), dtype=np.int64)
        rows[:, :, 0] = np.arange(B)[:, None]
        starts = cache.longest if cache.uniform else cache.lengths.numpy()[:, None]
        rows[:, :, 1] = starts + np.arange(T)
        x = self.pass_tokens(tokens.reshape(-1), rows.reshape(-1, 2), addresses, self.places)
        if attend is not None:  # the program stores padding too
            cache.mark_written(T)
        cache.advance(tokens, attend)
        return x.view(B, T, -1)

    def pass_tokens(
        self,
        tokens: Tensor,
        rows: np.ndarray,
        addresses: np.ndarray,
        places: np.ndarray,
        adapters: np.ndarray | None = None,
        updates: np.ndarray | None = None,
    ) -> Tensor:
        """Pass R tokens through all layers: [R] -> [R, D], which the next call overwrites.

        The other arguments are those of :class:`wordloom.kernels.decoding.causal.NewTokens`; without
        ``adapters``, all tokens pass through the model alone.
        """
        R = len(tokens)
        if R not in self.buffers:
            self.buffers[R] = self._new_buffers(R)
        buffers = self.buffers[R]
        x = torch.from_numpy(buffers.x)
        with one_thread():
            x.copy_(self._embeddings(tokens, torch.from_numpy(rows[:, 1]), int(rows[:, 1].max())))
        if adapters is None or updates is None:
            adapters, updates = np.full(R, -1), np.empty((0, *self.weights.matrices.shape, 3), dtype=np.int64)
        new = programs.NewTokens(addresses, places, self.kinds, rows, adapters, updates)
        with compiling(self.program):
            self.threads.run(self.program, self.weights, new, buffers)
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

    def _new_buffers(self, R: int) -> Any:
        w, gated = self.weights, isinstance(self.config, LlamaConfig)
        dim, hidden_dim = self.config.dim, self.model.blocks[0].feed_forward.up_proj.out_features
        queries, keys = w.heads * w.head_dim, w.kv_heads * w.head_dim
        widths = {"x": dim, "q": queries, "k": keys, "v": keys, "mixed": queries,
                  "wide": hidden_dim, "gate": hidden_dim * gated}  # fmt: skip
        arrays = {name: np.zeros((R, width), dtype=np.float32) for name, width in widths.items()}
        normed = np.zeros((self.threads.count, R, dim), dtype=np.float32)
        scores = np.zeros((self.threads.count, whole_vectors(self.length)), dtype=np.float32)
        narrowed, shortened = self._rounded(R, max(widths.values()))
        return programs.Buffers(
            **arrays, normed=normed, scores=scores, narrowed=narrowed, shortened=shortened
        )

    def _rounded(self, R: int, K: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Return room for each thread's inputs [R, K] to weights in 8 bits, and to weights in bfloat16."""
        if self.dtype == torch.int8:
            return np.zeros((self.threads.count, integers_room(R, K)), dtype=np.uint8), None
        if self.dtype == torch.bfloat16 and has_bfloat16_products():
            return None, np.zeros((self.threads.count, R * shortened_bytes(K) + 64), dtype=np.uint8)
        return None, None

    def _read_weights(self) -> Any:
        """Return the model as the programs see it."""
        family = next(name for name, family in MODELS.items() if type(self.model) is family.model)
        self.program = programs.PROGRAMS[family]
        self.kinds = kinds_of_layers(self.config.patterns)
        model, blocks = self.model, self.model.blocks
        attention = blocks[0].attention  # its sizes are those of the config, as accepts() has checked
        linears = [linears_of(block) for block in blocks]
        final = getattr(model, "final_norm", blocks[0].attention_norm)  # a GPT has none, nor reads it
        norms = [[block.attention_norm, block.ffn_norm] for block in blocks] + [[final, final]]
        return programs.Weights(
            like=self._like(),
            cached=np.empty(0, np.float32 if self.cache_dtype == torch.float32 else np.uint16),
            heads=attention.n_heads,
            kv_heads=attention.n_kv_heads,
            head_dim=attention.head_dim,
            matrices=self._addresses([[stored_weight(linear) for linear in row] for row in linears]),
            biases=tuple(stacked([linear.bias for linear in kind]) for kind in zip(*linears, strict=True)),
            gains=stacked_norms(norms, "weight"),
            offsets=stacked_norms(norms, "bias"),
            rotary=np.zeros((2, 0, attention.head_dim // 2), dtype=np.float32),
            eps=float(self.config.norm_eps),
            scale=float(attention.scale),
            activation=ACTIVATIONS[self.config.activation],
        )

    def _like(self) -> np.ndarray:
        """Return an empty array of the type in which the programs read the weights."""
        return np.empty(0, dtype={torch.float32: np.float32, torch.int8: np.int8}.get(self.dtype, np.uint16))

    def _addresses(self, weights: list[list[Tensor | None]]) -> np.ndarray:
        """Return the addresses of ``weights``, 0 for None; they stay valid if the model gets others."""
        self.held = [[None if weight is None else weight.detach() for weight in row] for row in weights]
        return np.array([[0 if weight is None else weight.data_ptr() for weight in row] for row in self.held])


def places_of(layers: Sequence[LayerKeyValues]) -> tuple[np.ndarray, np.ndarray]:
    """Return where the rows of a cache lie: the addresses and places of ``NewTokens``."""
    stored = [part for layer in layers for part in (layer.keys, layer.values) if part is not None]
    B = len(stored[0])
    first = np.array([part.data_ptr() for part in stored])  # [2 L]
    row = np.array([part.stride(0) * part.itemsize for part in stored])
    places = np.array([(part.shape[2], layer.first, layer.ring)
                       for part, layer in zip(stored[::2], layers, strict=True)])  # fmt: skip
    return (first + np.arange(B)[:, None] * row).reshape(B, -1, 2), places[None].repeat(B, axis=0)


def kinds_of_layers(patterns: Sequence[Any]) -> np.ndarray:
    """Return the kinds [L, P, 3] of each layer's pattern; P is 0 if all layers have full attention."""
    if all(pattern.is_full for pattern in patterns):
        return np.empty((len(patterns), 0, 3), dtype=np.int64)
    rows: list[list[tuple[int, int, int]]] = []
    for pattern in patterns:
        rows.append([])
        for kind in pattern.kinds:
            if isinstance(kind, Full):
                rows[-1].append((leaves.FULL, 0, 0))
            elif isinstance(kind, Dilated):
                rows[-1].append((leaves.DILATED, kind.width, kind.step))
            elif isinstance(kind, Global):
                rows[-1].append((leaves.GLOBAL, kind.tokens, 0))
            elif isinstance(kind, Block):
                rows[-1].append((leaves.BLOCK, kind.size, 0))
            else:
                rows[-1].append((leaves.RANDOM, kind.keys, kind.seed))
    most = max(map(len, rows))
    return np.array([[*row, *[(leaves.UNUSED, 0, 0)] * (most - len(row))] for row in rows])


def linears_of(block: Any) -> list[Any]:
    """Return the layers of a block in the order of ``Weights.matrices``."""
    attention, feed_forward = block.attention, block.feed_forward
    projections = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    gate = [feed_forward.gate_proj] if isinstance(feed_forward, GatedFeedForward) else []
    return [*projections, feed_forward.up_proj, feed_forward.down_proj, *gate]
