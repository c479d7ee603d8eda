"""Fast decoding of the Transformer and of BertGeneration on a CPU: one compiled program for a token of all
rows and one for their likeliest continuations, as :mod:`wordloom.generate.fast` has for models that only
continue text.

Sources are read by the modules as before.  The weights are laid out anew for each cache, so a model in
training is searched as it is; once for all where :class:`Conditioned` says that they stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wordloom.errors import GenerationError
from wordloom.generate.accepts import ACTIVATIONS
from wordloom.generate.conditioned import Conditioned
from wordloom.generate.fast import (
    Accelerated,
    Team,
    compiling,
    one_thread,
    stacked,
    stacked_norms,
    team_of,
    whole_vectors,
)
from wordloom.kernels.decoding.encoder_decoder import (
    LANES,
    PANEL,
    Choice,
    Head,
    Room,
    Step,
    Weights,
    decode,
    likeliest,
    logits,
    pack,
)
from wordloom.nn.cache import RowLengths
from wordloom.nn.memory import Memory

__all__ = ["FastTransformer", "unfit"]

MOST_WEIGHTS = 1 << 26  # of decoder and head: they are laid out a second time, and larger ones gain little
MOST_CHOSEN = 64  # ids of a row: each is put in its place among the others


def unfit(model: Any, memory: Memory) -> str:
    """Why the programs do not apply to this model and what it has read; "" where they do."""
    c = model.config
    if c.dim % LANES or c.ffn_dim % LANES:
        return f"dim and hidden_dim are no multiples of {LANES}"
    if _weights(model) > MOST_WEIGHTS:
        return "a model of this size has its time in products anyway"
    if memory.attend is not None:
        _, first, last = _spans(memory)
        if not np.array_equal(last - first, memory.attend.sum(dim=1).numpy()):
            return "a source has gaps"
    return ""


def _weights(model: Any) -> int:
    parameters = [*model.decoder_blocks.parameters(), *model.lm_head.parameters()]
    return sum(p.numel() for p in parameters)


def _spans(memory: Memory) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The number of each source [N], its first real token and the one after its last."""
    N, S = memory.values.shape[:2]
    number, first, last = np.arange(N), np.zeros(N, np.int64), np.full(N, S)
    if memory.attend is not None:
        real = memory.attend.numpy()
        first, last = real.argmax(axis=1), S - real[:, ::-1].argmax(axis=1)
        last = np.where(real.any(axis=1), last, first)
    return number, first, last


class FastTransformer(Accelerated, Conditioned):
    """``model`` writing from ``memory``, its new tokens through programs.

    What ``hidden`` returns is overwritten by its next call.
    """

    def __init__(self, model: Any, memory: Memory, *, kept: dict[str, Any] | None = None) -> None:
        super().__init__(model, memory, kept=kept)
        self.decoder: Decoder = ({} if kept is None else kept).setdefault("decoder", Decoder(model))

    def new_cache(self, batch: int, length: int) -> Any:
        """An empty cache; the programs see the weights as they are now, or as they were for the first."""
        if self.kept is None or not self.decoder.bound:
            self.decoder.bind()
        self.decoder.reach(length)
        return DecoderPlaces(self.model, self.memory, self.decoder.blocks)

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
        """The k largest log-probabilities of each row [B, k] and their ids, ids ascending.

        A row whose logits are NaN or infinite has NaN.  None where there are no k ids that may be chosen, or
        so many are asked for that looking for them one by one takes long.
        """
        return self.decoder.likeliest(hidden, k, forbidden_ids, vocab_size)

    def select(self, rows: Tensor) -> FastTransformer:
        """The same model writing from these sources, in this order."""
        chosen = FastTransformer(self.model, self.memory.select(rows), kept=self.kept)
        chosen.decoder = self.decoder  # which goes on with caches of ours
        return chosen


class DecoderPlaces(RowLengths):
    """The cache of a decoder, none of whose keys ever moves: rows know where theirs lie.

    ``places`` [R, length] are the addresses of each token's keys and values, ``sources`` [R, 3] as in
    :class:`wordloom.kernels.decoding.encoder_decoder.Step`.
    """

    def __init__(self, model: Any, memory: Memory, spare: list[np.ndarray]) -> None:
        super().__init__(len(memory.values))
        self.spare = spare
        self.sources = np.stack(_spans(memory), axis=1).astype(np.int64)
        self.source_length = memory.values.shape[1]
        self.places = np.empty((len(self.sources), 0), dtype=np.int64)
        self.blocks: list[np.ndarray] = []  # one for each token so far
        self.block_shape = (model.config.decoder_layers, 2, model.config.dim)
        # [N, H, S, E] of every layer
        read = [block.cross_attention.keys_values(memory.values) for block in model.decoder_blocks]
        self.read = [(keys.float().contiguous(), values.float().contiguous()) for keys, values in read]
        self.crossing = np.array([(keys.data_ptr(), values.data_ptr()) for keys, values in self.read])

    def append(self) -> None:
        """Make room for the keys and values of a token more of every row."""
        rows = len(self.sources)
        block = self.spare.pop() if self.spare else None
        if block is None or len(block) < rows:
            block = np.empty((rows, *self.block_shape), dtype=np.float32)
        self.blocks.append(block)
        new = block.ctypes.data + block.strides[0] * np.arange(rows)
        self.places = np.concatenate([self.places, new[:, None]], axis=1)

    def __del__(self) -> None:
        self.spare.extend(self.blocks)  # memory that was written to is quicker than new memory

    def layer(self, index: int) -> Any:
        return self.read[index]

    def select(self, rows: Tensor) -> None:
        kept = rows.numpy()
        self.places, self.sources = self.places[kept], self.sources[kept]
        self.set_lengths(self.lengths[rows])


class Decoder:
    """A decoder and its head as the programs read them."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.bound = False
        self.length = 0
        self.blocks: list[np.ndarray] = []  # those of caches that are done with
        self.room: Room | None = None
        self.choice: Choice | None = None

    def bind(self) -> None:
        """See the weights as they are now."""
        model, c = self.model, self.model.config
        if not self.bound:
            self.team: Team = team_of(_weights(model))
        self.length = 0
        layers = [_linears(block) for block in model.decoder_blocks]
        self.packed = [
            [pack(_together([linear.weight for linear in some])) for some in layer] for layer in layers
        ]
        norms = [
            [block.attention_norm, block.cross_attention_norm, block.ffn_norm]
            for block in model.decoder_blocks
        ]
        norms.append([model.final_norm or norms[0][0]] * 3)
        self.weights = Weights(
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
        head = model.lm_head
        missing = -len(head.weight) % PANEL
        bias = torch.zeros(len(head.weight)) if head.bias is None else head.bias.detach().float()
        self.head = Head(
            matrix=pack(F.pad(head.weight, (0, 0, 0, missing)) if missing else head.weight).numpy(),
            bias=F.pad(bias, (0, missing), value=-torch.inf).numpy(),
            forbidden=np.zeros(len(bias) + missing, dtype=bool),
        )
        self.bound = True

    def reach(self, length: int) -> None:
        """Be ready for ``length`` tokens of a row."""
        if length <= self.length:
            return
        self.length = length
        if self.model.rotary is not None:
            angles = torch.stack(self.model.rotary.angles(torch.arange(length)))  # [2, length, E/2]
            self.weights = self.weights._replace(rotary=angles.numpy())

    def step(self, tokens: Tensor, cache: DecoderPlaces) -> Tensor:
        """tokens [R, 1] -> [R, D] float32."""
        R = len(tokens)
        if len(cache.places) != R:
            raise GenerationError(f"{R} rows of new tokens do not fit a cache of {len(cache.places)} rows")
        if cache.longest >= self.length:
            self.reach(max(2 * self.length, cache.longest + 1))
        room = self._room(R, max(self.length, cache.source_length))
        x = torch.from_numpy(room.x[:R])
        with one_thread():
            positions = torch.tensor([[cache.longest]])
            x.copy_(self.model.embedded(tokens, positions, is_source=False)[:, 0])
        cache.append()
        step = Step(cache.places, cache.sources, cache.crossing, cache.source_length)
        with compiling(decode):
            self.team.run(decode, self.weights, step, room)
        cache.advance(tokens)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, D] -> logits [R, V]."""
        out = np.empty((len(hidden), len(self.head.bias)), dtype=np.float32)
        with compiling(logits):
            self.team.run(logits, self.head, hidden.contiguous().numpy(), out, self.team.threads)
        return torch.from_numpy(out)[:, : self.model.config.vocab_size]

    def likeliest(
        self, hidden: Tensor, k: int, forbidden_ids: Collection[int], vocab_size: int | None
    ) -> tuple[Tensor, Tensor] | None:
        """As :meth:`FastTransformer.likeliest`; hidden [R, D]."""
        forbidden = self.head.forbidden
        forbidden[:] = False
        forbidden[list(forbidden_ids)] = True
        forbidden[self.model.config.vocab_size if vocab_size is None else vocab_size :] = True
        if k > MOST_CHOSEN or k > len(forbidden) - forbidden.sum():
            return None
        R = len(hidden)
        choice = self._choice(R, k)
        with compiling(likeliest):
            self.team.run(likeliest, self.head, hidden.contiguous().numpy(), choice)
        return torch.from_numpy(choice.values[:R]), torch.from_numpy(choice.ids[:R])

    def _room(self, R: int, longest: int) -> Room:
        """Arrays for R rows that look at up to ``longest`` tokens."""
        if self.room is None or len(self.room.x) < R or self.room.weights.shape[2] < longest:
            c = self.model.config
            widths = {"x": c.dim, "normed": c.dim, "qkv": 3 * c.dim, "queries": c.dim, "mixed": c.dim,
                      "wide": c.ffn_dim}  # fmt: skip
            arrays = {name: np.zeros((R, width), dtype=np.float32) for name, width in widths.items()}
            weights = np.zeros((self.team.threads, c.n_heads, whole_vectors(longest)), dtype=np.float32)
            self.room = Room(**arrays, weights=weights)
        return self.room

    def _choice(self, R: int, k: int) -> Choice:
        if self.choice is None or len(self.choice.total) < R or self.choice.ids.shape[1] != k:
            self.choice = Choice(
                values=np.empty((R, k), dtype=np.float32),
                ids=np.empty((R, k), dtype=np.int64),
                largest=np.empty(R, dtype=np.float32),
                total=np.empty(R, dtype=np.float32),
                tiles=np.empty((self.team.threads, R, PANEL), dtype=np.float32),
            )
        return self.choice


def _linears(block: Any) -> list[list[nn.Linear]]:
    """The layers of a block in the order of ``Weights.matrices``; those of one input are one product."""
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
    return _together(biases) if biases else None


def _together(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]
