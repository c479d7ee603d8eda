"""One token of every row through the whole decoder of a Transformer, to be read beside
``models/transformer.py``.

No row depends on another row, so each thread takes a share of the rows from the first layer to the last
without a barrier.  Many rows are computed at once (the beams of a batch), so arithmetic costs more than
memory: :func:`pack` copies the weights into panels, and each panel is fetched once for all rows of a thread.
The sums of a row are computed in one order, whatever the number of rows, so a batch computes each row bit for
bit as it is computed alone.

Keys and values stay where they were written.  Beams that change slots exchange the addresses of their
tokens' slots, ``Step.slots``, and the beams of a source share its keys.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from wordloom.kernels.arithmetic import exp, highest
from wordloom.kernels.decoding.leaves import activate, attend, layer_norm, rotate, share, softmax, store_row
from wordloom.kernels.machine_code import compiled, exact_routine, leaf, program, routine
from wordloom.kernels.memory import FLOAT, load, pointer, prefetch_far
from wordloom.kernels.products import panel
from wordloom.kernels.registers import LANES
from wordloom.kernels.rows import dot_at, mix_at

VECTORS = 4 if LANES == 16 else 2  # of a panel: as many as fit into registers beside 4 rows
PANEL = VECTORS * LANES  # columns
LINE = 64  # bytes that come from memory at once
LOWEST = np.float32(-3e38)

_four_wide, _one_wide = panel(4, VECTORS), panel(1, VECTORS)
_four_narrow, _one_narrow = panel(4, 1), panel(1, 1)


def _width(N: int) -> int:
    return PANEL if N % PANEL == 0 else LANES


_panel_width: Any = compiled(nogil=True)(_width)


def pack(weight: Tensor) -> Tensor:
    """weight [N, K], N a multiple of LANES, as float32 panels [N / width, K, width]: what a product reads."""
    N, K = weight.shape
    width = _width(N)
    return weight.detach().view(N // width, width, K).transpose(1, 2).float().contiguous()


class Weights(NamedTuple):
    """A decoder as the program sees it; all float32."""

    matrices: np.ndarray  # [L, 6] addresses of packed q k v, o, cross q, cross o, up, down
    biases: tuple[np.ndarray, ...]  # 6 of [L, N], as wide as the layer's output, or [L, 0] without a bias
    gains: np.ndarray  # [L + 1, 3, D]: of attention, cross-attention, feed-forward; then the final norm's
    offsets: np.ndarray  # [L + 1, 3, D]
    rotary: np.ndarray  # cosine and sine [2, positions, E/2], or [2, 0, E/2]
    heads: int  # H
    head_dim: int  # E
    scale: float
    eps: float
    activation: int
    pre_norm: bool


class Step(NamedTuple):
    """The position of each row."""

    slots: np.ndarray  # [R, T] addresses of each token's keys and values [L, 2, D]
    lengths: np.ndarray  # [R] number of the row's new token, whose slot is still empty
    sources: np.ndarray  # [R, 3] address of the row's source, keys and values [L, 2, H, S, E]; S; real tokens


class Buffers(NamedTuple):
    """Working arrays for R rows.  A program reads the embeddings from ``x`` and leaves the head's input."""

    x: np.ndarray  # [R, D]
    normed: np.ndarray  # [R, D]
    qkv: np.ndarray  # [R, 3 * D]
    queries: np.ndarray  # [R, D]
    mixed: np.ndarray  # [R, D]
    wide: np.ndarray  # [R, F]
    weights: np.ndarray  # [threads, H, longest], whole vectors of them


# -- products ------------------------------------------------------------------------------------------------


@routine
def _multiply(out: int, out_row: int, x: int, R: int, K: int, matrix: int, N: int) -> None:
    """out [R, N] += x [R, K] times panels of N columns; by address.  Prefetches the next panel."""
    one, width = np.float32(1), _panel_width(N)
    whole = R - R % 4
    lines = 4 * K * width // LINE
    share_of = lines // max(R // 4, 1) + 1
    for n in range(0, N, width):
        here, to = matrix + 4 * n * K, out + 4 * n
        ahead = here + 4 * K * width
        for r in range(0, whole, 4):
            at = x + 4 * r * K, to + 4 * r * out_row
            first = r // 4 * share_of
            for line in range(first, min(first + share_of, lines)):
                prefetch_far(ahead + LINE * line)
            if width == PANEL:
                _four_wide(at[0], K, 1, here, width, K, one, True, at[1], out_row)
            else:
                _four_narrow(at[0], K, 1, here, width, K, one, True, at[1], out_row)
        for r in range(whole, R):
            at = x + 4 * r * K, to + 4 * r * out_row
            if width == PANEL:
                _one_wide(at[0], K, 1, here, width, K, one, True, at[1], out_row)
            else:
                _one_narrow(at[0], K, 1, here, width, K, one, True, at[1], out_row)


@exact_routine
def project(out: Any, x: Any, matrix: int, bias: Any, add: bool) -> None:
    """out [R, N] = (out +) x [R, K] @ weight^T + bias, the weight as :func:`pack` lays it out."""
    R, N = out.shape
    biased = bias.shape[0] > 0
    for r in range(R):
        if not add:
            for n in range(N):
                out[r, n] = bias[n] if biased else np.float32(0)
        elif biased:
            for n in range(N):
                out[r, n] += bias[n]
    _multiply(out.ctypes.data, N, x.ctypes.data, R, x.shape[1], matrix, N)


# -- the decoder ---------------------------------------------------------------------------------------------


@routine
def _self_attention(
    mixed: Any, qkv: Any, slots: Any, lengths: Any, offset: int, w: Weights, weights: Any
) -> None:
    """Write every row's new keys and values, and attend with its new query to all its tokens."""
    R, D = mixed.shape
    H, E, like = w.heads, w.head_dim, mixed[0, :0]
    whole = E - E % LANES
    for r in range(R):
        T = lengths[r] + 1
        if w.rotary.shape[1]:
            for head in range(2 * H):  # of queries and keys
                rotate(qkv, r, head * E, w.rotary[0, T - 1], w.rotary[1, T - 1])
        store_row(like, slots[r, T - 1] + offset, 0, qkv, r, D, 2 * D)
        query, out, there = qkv[r].ctypes.data, mixed[r].ctypes.data, slots[r].ctypes.data
        for h in range(H):
            head = weights[h]
            at, factors = 4 * h * E, head.ctypes.data
            dot_at(factors, there, T, offset + at, query + at, whole)
            for e in range(h * E + whole, (h + 1) * E):
                for t in range(T):
                    head[t] += qkv[r, e] * load(pointer(slots[r, t] + offset, like), e)
            softmax(head, T, w.scale)
            mix_at(out + at, there, T, offset + 4 * D + at, factors, whole)
            for e in range(h * E + whole, (h + 1) * E):
                mixed[r, e] = np.float32(0)
                for t in range(T):
                    mixed[r, e] += head[t] * load(pointer(slots[r, t] + offset + 4 * D, like), e)


@program
def _cross_attention(mixed: Any, queries: Any, sources: Any, i: int, w: Weights, weights: Any) -> None:
    """Attend with every row's query to the keys of its source in layer i."""
    H, E, like = w.heads, w.head_dim, mixed[0, :0]
    for r in range(mixed.shape[0]):
        head_size = 4 * sources[r, 1] * E  # bytes
        keys = sources[r, 0] + 2 * i * H * head_size
        for h in range(H):
            at = keys + h * head_size
            attend(
                mixed, queries, r, h, E, at, at + H * head_size, 0, sources[r, 2], w.scale, weights[h], like
            )


@program
def decode(w: Weights, step: Step, buffers: Buffers, counters: Any, thread: int) -> None:
    """x [R, D] through all layers; this thread's share of the rows."""
    first, last = share(step.slots.shape[0], thread, buffers.weights.shape[0])
    if first == last:
        return
    x, normed, qkv = buffers.x[first:last], buffers.normed[first:last], buffers.qkv[first:last]
    queries, mixed, wide = buffers.queries[first:last], buffers.mixed[first:last], buffers.wide[first:last]
    slots, lengths, weights = step.slots[first:last], step.lengths[first:last], buffers.weights[thread]
    sources = step.sources[first:last]
    D, L, pre = x.shape[1], w.matrices.shape[0], w.pre_norm
    inputs = normed if pre else x  # of a layer: its norm comes before it, or after the layer before it
    for i in range(L):
        matrix, bias, gains, offsets = w.matrices[i], w.biases, w.gains[i], w.offsets[i]
        if pre:
            layer_norm(inputs, x, gains[0], offsets[0], w.eps)
        project(qkv, inputs, matrix[0], bias[0][i], False)
        _self_attention(mixed, qkv, slots, lengths, 8 * i * D, w, weights)
        project(x, mixed, matrix[1], bias[1][i], True)
        norm = 1 if pre else 0
        layer_norm(inputs, x, gains[norm], offsets[norm], w.eps)
        project(queries, inputs, matrix[2], bias[2][i], False)
        _cross_attention(mixed, queries, sources, i, w, weights)
        project(x, mixed, matrix[3], bias[3][i], True)
        norm += 1
        layer_norm(inputs, x, gains[norm], offsets[norm], w.eps)
        project(wide, inputs, matrix[4], bias[4][i], False)
        activate(wide, w.activation, 0, wide.shape[1])
        project(x, wide, matrix[5], bias[5][i], True)
        if not pre:
            layer_norm(x, x, gains[2], offsets[2], w.eps)
    if pre:
        layer_norm(x, x, w.gains[L, 0], w.offsets[L, 0], w.eps)


# -- the head ------------------------------------------------------------------------------------------------


class Head(NamedTuple):
    """The head, whose ids are padded to whole panels."""

    matrix: np.ndarray  # [V / PANEL, D, PANEL]
    bias: np.ndarray  # [V], -inf for padding
    forbidden: np.ndarray  # [V] bool: ids that are never chosen


class Choice(NamedTuple):
    """The k likeliest ids of each row, and working arrays."""

    values: np.ndarray  # [R, k] log-probabilities
    ids: np.ndarray  # [R, k] ascending
    largest: np.ndarray  # [R] the largest logit
    total: np.ndarray  # [R] the sum of exp(logit - largest); NaN where a logit is, or the largest is infinite
    tiles: np.ndarray  # [threads, R, PANEL] logits


@program
def logits(head: Head, hidden: Any, out: Any, threads: int, counters: Any, thread: int) -> None:
    """out [R, V] = the logits of hidden [R, D]; this thread's share of the rows."""
    first, last = share(out.shape[0], thread, threads)
    R, K = last - first, hidden.shape[1]
    for r in range(first, last):
        out[r] = head.bias
    for p in range(head.matrix.shape[0]):
        to = out.ctypes.data + 4 * (first * out.shape[1] + p * PANEL)
        here = hidden.ctypes.data + 4 * first * K
        _multiply(to, out.shape[1], here, R, K, head.matrix[p].ctypes.data, PANEL)


@program
def likeliest(head: Head, hidden: Any, choice: Choice, counters: Any, thread: int) -> None:
    """Find the k largest log-probabilities in one pass over the panels; this thread's share of the rows."""
    first, last = share(hidden.shape[0], thread, choice.tiles.shape[0])
    R, K, k, tile = last - first, hidden.shape[1], choice.values.shape[1], choice.tiles[thread]
    values, ids = choice.values[first:last], choice.ids[first:last]
    largest, total = choice.largest[first:last], choice.total[first:last]
    values[:], ids[:], largest[:], total[:] = -np.inf, 0, LOWEST, 0
    here = hidden.ctypes.data + 4 * first * K
    for p in range(head.matrix.shape[0]):
        bias = head.bias[p * PANEL : (p + 1) * PANEL]
        for r in range(R):
            for c in range(PANEL):
                tile[r, c] = bias[c]
        _multiply(tile.ctypes.data, PANEL, here, R, K, head.matrix[p].ctypes.data, PANEL)
        for r in range(R):
            top = highest(pointer(tile[r].ctypes.data, FLOAT), 0, PANEL)
            _add_exponentials(tile[r], top, largest, total, r)
            if top > values[r, k - 1]:
                _choose(tile[r], p * PANEL, head.forbidden, values[r], ids[r])
    for r in range(R):
        _finish(values[r], ids[r], largest[r], total[r])


@leaf
def _add_exponentials(logits: Any, top: Any, largest: Any, total: Any, r: int) -> None:
    if top > largest[r]:
        total[r] *= exp(largest[r] - top)
        largest[r] = top
    base, more = largest[r], np.float32(0)
    for c in range(PANEL):
        more += exp(logits[c] - base)
    total[r] += more


@program
def _choose(logits: Any, before: int, forbidden: Any, values: Any, ids: Any) -> None:
    """Insert larger logits into ``values``, the largest first; of equal ones the lowest id comes first."""
    k = values.shape[0]
    for c in range(PANEL):
        value = logits[c]
        if value > values[k - 1] and not forbidden[before + c]:
            place = k - 1
            while place > 0 and values[place - 1] < value:
                values[place], ids[place] = values[place - 1], ids[place - 1]
                place -= 1
            values[place], ids[place] = value, before + c


@program
def _finish(values: Any, ids: Any, largest: Any, total: Any) -> None:
    """Turn logits into log-probabilities, NaN where none is finite, and sort them by id."""
    base = largest + np.float32(math.log(total))
    if largest == LOWEST:
        base = np.float32(np.nan)
    for i in range(values.shape[0]):
        value, token = values[i] - base, ids[i]
        place = i
        while place > 0 and ids[place - 1] > token:
            values[place], ids[place] = values[place - 1], ids[place - 1]
            place -= 1
        values[place], ids[place] = value, token
