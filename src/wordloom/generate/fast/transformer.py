"""Fast decoding of the Transformer and of BertGeneration: one compiled program for a token of all rows, and
one for the likeliest next tokens.

The modules read the sources.  The programs read a copy of the decoder's weights in another layout, made for
each cache, or once where :class:`Conditioned` says that the weights do not change.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wordloom.errors import GenerationError
from wordloom.generate.conditioned import Conditioned
from wordloom.generate.fast.threads import Accelerated, compiling, threads_for
from wordloom.generate.fast.weights import ACTIVATIONS, decoder_weights, stacked, stacked_norms, whole_vectors
from wordloom.kernels.decoding import encoder_decoder as programs
from wordloom.kernels.threads import one_thread
from wordloom.nn.cache import RowLengths
from wordloom.nn.memory import Memory
from wordloom.nn.quantized import float_weight

MOST_CHOSEN = 64  # ids of a row: each is inserted into a sorted list
SLACK = 256  # slots that no row uses, below which looking for free blocks is not worth it


class FastTransformer(Accelerated, Conditioned):
    """``model`` writing from ``memory``, its new tokens through programs.

    The next call of ``hidden`` overwrites the result of the last one.
    """

    def __init__(self, model: Any, memory: Memory, *, kept: dict[str, Any] | None = None) -> None:
        super().__init__(model, memory, kept=kept)
        self.decoder: Decoder = ({} if kept is None else kept).setdefault("decoder", Decoder(model))

    def new_cache(self, batch: int, length: int) -> Any:
        """Return an empty cache; the programs read the weights as they are now, or as they were at first."""
        if self.kept is None or not self.decoder.bound:
            self.decoder.bind()
        self.decoder.reach(length)
        return SlotCache(self.model, self.memory, self.decoder.free)

    def hidden(self, tokens: Tensor, *, attend: None = None, cache: Any = None) -> Tensor:
        """tokens [B, T] -> [B, T, D], float32 where there is a cache, else the model's own dtype."""
        if cache is None:
            return super().hidden(tokens)
        if tokens.shape[1] == 1:
            return self.decoder.step(tokens, cache)[:, None]
        with one_thread():
            return torch.stack([self.decoder.step(some[:, None], cache).clone() for some in tokens.T], dim=1)

    def lm_head(self, hidden: Tensor) -> Tensor:
        """hidden [.., D] -> logits [.., V]; float32 where it was made with a cache."""
        if not self.decoder.bound or hidden.dtype != torch.float32:
            return self.model.lm_head(hidden)
        flat = self.decoder.logits(hidden.reshape(-1, hidden.shape[-1]))
        return flat.view(*hidden.shape[:-1], -1)

    def likeliest(
        self, hidden: Tensor, k: int, *, forbidden_ids: Collection[int], vocab_size: int | None
    ) -> tuple[Tensor, Tensor] | None:
        """hidden [R, D] -> the k largest log-probabilities [R, k] and their ids, in ascending order of ids.

        A row whose logits are NaN or infinite has NaN.  None where fewer than k ids are allowed, or k is so
        large that sorting them one by one is slow.
        """
        return self.decoder.likeliest(hidden, k, forbidden_ids, vocab_size)

    def with_memory(self, memory: Memory) -> FastTransformer:
        """Return the same model writing from other sources, with the programs' copy of the weights."""
        other = FastTransformer(self.model, memory, kept=self.kept)
        other.decoder = self.decoder
        return other


class SlotCache(RowLengths):
    """The cache of a decoder whose keys and values never move: each row stores the addresses of its slots.

    A slot holds one token's keys and values [L, 2, D].  ``slots`` [R, longest] are addresses, and ``sources``
    [R, 3] are as in :class:`wordloom.kernels.decoding.encoder_decoder.Step`.
    """

    def __init__(self, model: Any, memory: Memory, free: list[np.ndarray]) -> None:
        super().__init__(len(memory.values))
        c = model.config
        self.free = free
        self.blocks: list[np.ndarray] = []  # of slots, one block for each step
        self.allocated = 0  # slots in all blocks
        self.block_shape = (c.decoder_layers, 2, c.dim)
        self.slots = np.empty((len(memory.values), 0), dtype=np.int64)
        memory = _without_gaps(memory)
        N, S = memory.values.shape[:2]
        keys_values = torch.empty(N, c.decoder_layers, 2, c.n_heads, S, c.dim // c.n_heads)
        for i, block in enumerate(model.decoder_blocks):
            keys_values[:, i, 0], keys_values[:, i, 1] = block.cross_attention.keys_values(memory.values)
        self.set_sources(keys_values, memory.attend)

    def set_sources(self, keys_values: Tensor, attend: Tensor | None) -> None:
        """Let row r read source r of the keys and values [N, L, 2, H, S, E] by layer."""
        N, S = len(keys_values), keys_values.shape[4]
        self.keys_values = [keys_values]
        size = keys_values.stride(0) * keys_values.element_size()
        real = np.full(N, S) if attend is None else attend.sum(dim=1).numpy()
        self.sources = np.stack([keys_values.data_ptr() + size * np.arange(N), np.full(N, S), real], axis=1)
        self.longest_source = S

    def append(self) -> None:
        """Add a slot for one more token of every row."""
        rows = len(self.slots)
        block = self.free.pop() if self.free else None
        if block is None or len(block) < rows:
            block = np.empty((rows, *self.block_shape), dtype=np.float32)
        self.blocks.append(block)
        self.allocated += len(block)
        new = block.ctypes.data + block.strides[0] * np.arange(rows)
        full = self.longest == self.slots.shape[1]
        if full:
            self.slots = np.concatenate([self.slots, new[:, None]], axis=1)
        if not (full and self.uniform):
            self.slots[np.arange(rows), self.lengths.numpy()] = new

    def __del__(self) -> None:
        self.free.extend(self.blocks)  # writing to used memory is faster than to new memory

    def layer(self, index: int) -> Any:
        raise NotImplementedError("the programs read the slots of all layers at once")

    def select(self, rows: Tensor) -> None:
        kept = rows.numpy()
        self.slots, self.sources = self.slots[kept], self.sources[kept]
        self.select_lengths(rows)
        if self.allocated > 2 * self.slots.size + SLACK:
            self._free_unused()

    def _free_unused(self) -> None:
        """Put blocks aside of which no row uses a slot, and sources that no row reads."""
        used = self.slots[np.arange(self.slots.shape[1]) < self.lengths.numpy()[:, None]]
        parts = [(used, block.ctypes.data, block.nbytes) for block in self.blocks]
        in_use = [bool(((at <= where) & (where < at + size)).any()) for where, at, size in parts]
        self.free.extend(block for block, is_used in zip(self.blocks, in_use, strict=True) if not is_used)
        self.blocks = [block for block, is_used in zip(self.blocks, in_use, strict=True) if is_used]
        self.allocated = sum(map(len, self.blocks))
        read = self.sources[:, 0]
        self.keys_values = [
            part
            for part in self.keys_values
            if bool(((part.data_ptr() <= read) & (read < part.data_ptr() + part.nbytes)).any())
        ]

    def join(self, other: Self) -> None:
        """Add the rows of ``other``, whose model is this cache's, behind these rows."""
        width = max(self.longest, other.longest)
        slots = [np.pad(c.slots[:, : c.longest], ((0, 0), (0, width - c.longest))) for c in (self, other)]
        self.slots, self.sources = np.concatenate(slots), np.concatenate([self.sources, other.sources])
        self.blocks += other.blocks
        self.allocated += other.allocated
        self.keys_values += other.keys_values
        self.longest_source = max(self.longest_source, other.longest_source)
        other.blocks, other.allocated = [], 0
        self.set_lengths(torch.cat([self.lengths, other.lengths]))

    def truncate(self, lengths: int | Tensor) -> None:
        """Keep the first ``lengths`` tokens of each row: one number, or [R]."""
        self.set_lengths(self.checked(lengths))
        self.slots = np.ascontiguousarray(self.slots[:, : self.longest])  # as programs are compiled for


def _without_gaps(memory: Memory) -> Memory:
    """Return ``memory`` with each source's real tokens in front of its padding."""
    attend = memory.attend
    if attend is None or not bool((attend[:, 1:] > attend[:, :-1]).any()):
        return memory
    order = attend.logical_not().to(torch.uint8).argsort(dim=1, stable=True)  # [B, S]
    values = memory.values.gather(1, order[:, :, None].expand_as(memory.values))  # [B, S, D]
    return Memory(values, attend.gather(1, order))


class Decoder:
    """A decoder and its head as the programs read them."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.bound = False
        self.length = 0
        self.free: list[np.ndarray] = []  # blocks of slots that no cache uses
        self.buffers: programs.Buffers | None = None
        self.choice: programs.Choice | None = None

    def bind(self) -> None:
        """Copy the weights as they are now."""
        model, c = self.model, self.model.config
        if not self.bound:
            self.threads = threads_for(decoder_weights(model))
        self.length = 0
        layers = [_linears(block) for block in model.decoder_blocks]
        self.packed = [
            [programs.pack(_joined([float_weight(linear) for linear in some])) for some in layer]
            for layer in layers
        ]
        norms = [
            [block.attention_norm, block.cross_attention_norm, block.ffn_norm]
            for block in model.decoder_blocks
        ]
        norms.append([model.final_norm or norms[0][0]] * 3)
        self.weights = programs.Weights(
            matrices=np.array([[matrix.data_ptr() for matrix in layer] for layer in self.packed]),
            biases=tuple(stacked([_bias(some) for some in kind]) for kind in zip(*layers, strict=True)),
            gains=stacked_norms(norms, "weight"),
            offsets=stacked_norms(norms, "bias"),
            rotary=np.zeros((2, 0, c.dim // c.n_heads // 2), dtype=np.float32),
            heads=c.n_heads,
            head_dim=c.dim // c.n_heads,
            scale=float(model.decoder_blocks[0].attention.scale),
            eps=float(c.norm_eps),
            activation=ACTIVATIONS[c.activation],
            pre_norm=c.norm_place == "pre",
        )
        head, weight = model.lm_head, float_weight(model.lm_head)
        missing = -len(weight) % programs.PANEL
        bias = torch.zeros(len(weight)) if head.bias is None else head.bias.detach().float()
        self.head = programs.Head(
            matrix=programs.pack(F.pad(weight, (0, 0, 0, missing)) if missing else weight).numpy(),
            bias=F.pad(bias, (0, missing), value=-torch.inf).numpy(),
            forbidden=np.zeros(len(bias) + missing, dtype=bool),
        )
        self.bound = True

    def reach(self, length: int) -> None:
        """Prepare for ``length`` tokens of a row."""
        if length <= self.length:
            return
        self.length = length
        if self.model.rotary is not None:
            angles = torch.stack(self.model.rotary.angles(torch.arange(length)))  # [2, length, E/2]
            self.weights = self.weights._replace(rotary=angles.numpy())

    def step(self, tokens: Tensor, cache: SlotCache) -> Tensor:
        """tokens [R, 1] -> [R, D] float32."""
        R = len(tokens)
        if len(cache.slots) != R:
            raise GenerationError(f"{R} rows of new tokens do not fit a cache of {len(cache.slots)} rows")
        if cache.longest >= self.length:
            self.reach(max(2 * self.length, cache.longest + 1))
        buffers = self._buffers(R, max(self.length, cache.longest_source))
        x = torch.from_numpy(buffers.x[:R])
        with one_thread():
            positions = torch.tensor([[cache.longest]]) if cache.uniform else cache.lengths[:, None]
            x.copy_(self.model.embedded(tokens, positions, is_source=False)[:, 0])
        cache.append()
        lengths = np.full(R, cache.longest) if cache.uniform else cache.lengths.numpy()
        step = programs.Step(cache.slots, lengths, cache.sources)
        with compiling(programs.decode):
            self.threads.run(programs.decode, self.weights, step, buffers)
        cache.advance(tokens)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, D] -> logits [R, V]."""
        out = np.empty((len(hidden), len(self.head.bias)), dtype=np.float32)
        with compiling(programs.logits):
            self.threads.run(programs.logits, self.head, hidden.contiguous().numpy(), out, self.threads.count)
        return torch.from_numpy(out)[:, : self.model.config.vocab_size]

    def likeliest(
        self, hidden: Tensor, k: int, forbidden_ids: Collection[int], vocab_size: int | None
    ) -> tuple[Tensor, Tensor] | None:
        """See :meth:`FastTransformer.likeliest`."""
        forbidden = self.head.forbidden
        forbidden[:] = False
        forbidden[list(forbidden_ids)] = True
        forbidden[self.model.config.vocab_size if vocab_size is None else vocab_size :] = True
        if k > MOST_CHOSEN or k > len(forbidden) - forbidden.sum():
            return None
        R = len(hidden)
        choice = self._choice(R, k)
        with compiling(programs.likeliest):
            self.threads.run(programs.likeliest, self.head, hidden.contiguous().numpy(), choice)
        return torch.from_numpy(choice.values[:R]), torch.from_numpy(choice.ids[:R])

    def _buffers(self, R: int, longest: int) -> programs.Buffers:
        """Return arrays for R rows whose queries see up to ``longest`` tokens."""
        if self.buffers is None or len(self.buffers.x) < R or self.buffers.weights.shape[2] < longest:
            c = self.model.config
            widths = {"x": c.dim, "normed": c.dim, "qkv": 3 * c.dim, "queries": c.dim, "mixed": c.dim,
                      "wide": c.ffn_dim}  # fmt: skip
            arrays = {name: np.zeros((R, width), dtype=np.float32) for name, width in widths.items()}
            weights = np.zeros((self.threads.count, c.n_heads, whole_vectors(longest)), dtype=np.float32)
            self.buffers = programs.Buffers(**arrays, weights=weights)
        return self.buffers

    def _choice(self, R: int, k: int) -> programs.Choice:
        if self.choice is None or len(self.choice.total) < R or self.choice.ids.shape[1] != k:
            self.choice = programs.Choice(
                values=np.empty((R, k), dtype=np.float32),
                ids=np.empty((R, k), dtype=np.int64),
                largest=np.empty(R, dtype=np.float32),
                total=np.empty(R, dtype=np.float32),
                tiles=np.empty((self.threads.count, R, programs.PANEL), dtype=np.float32),
            )
        return self.choice


def _linears(block: Any) -> list[list[nn.Linear]]:
    """Return the layers of a block in the order of ``Weights.matrices``; those of one input together."""
    own, other, feed_forward = block.attention, block.cross_attention, block.feed_forward
    return [
        [own.q_proj, own.k_proj, own.v_proj],
        [own.o_proj],
        [other.q_proj],
        [other.o_proj],
        [feed_forward.up_proj],
        [feed_forward.down_proj],
    ]


def _bias(linears: list[nn.Linear]) -> Tensor | None:
    biases: list[Tensor] = [linear.bias for linear in linears if linear.bias is not None]
    return _joined(biases) if biases else None


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]
