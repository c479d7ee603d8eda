"""A few tokens through a whole model, one compiled program per family, to be read beside ``models/*.py``.

Every thread runs a program from its first line to its last and writes only its own share of columns or heads.
A ``barrier`` stands wherever a thread reads what another thread wrote.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wordloom.kernels.barrier import barrier
from wordloom.kernels.decoding.integers import project_integers
from wordloom.kernels.decoding.leaves import (
    activate,
    add_low_rank,
    attend,
    attend_by_position,
    layer_norm,
    project,
    project_bfloat16,
    rms_norm,
    rotate,
    share,
    store_row,
)
from wordloom.kernels.machine_code import program

PATIENCE = 200  # polls of a barrier, some microseconds, before a thread yields its core to other programs


class Weights(NamedTuple):
    """A model as the programs see it: the addresses of its matrices, and float32 copies of small weights.

    The order of matrices and biases is q, k, v, o, up, down and, in a LLaMA, gate.  Each kind of bias has an
    array of its own, as wide as the layer's output.
    """

    like: np.ndarray  # [0], of matrices: float32, uint16 for bfloat16, or int8
    cached: np.ndarray  # [0], of keys and values: float32 or uint16
    heads: int  # H
    kv_heads: int  # K
    head_dim: int  # E
    matrices: np.ndarray  # [L, 6 or 7] addresses
    biases: tuple[np.ndarray, ...]  # 6 or 7 of [L, N], or [L, 0] without a bias
    gains: np.ndarray  # [L + 1, 2, D], the last layer's first is the final norm
    offsets: np.ndarray  # [L + 1, 2, D], or [.., 0]
    rotary: np.ndarray  # cosine and sine [2, positions, E/2], or [2, 0, E/2]
    eps: float
    scale: float
    activation: int


class NewTokens(NamedTuple):
    """The cache of B rows, which may lie anywhere in memory, and the place of each new token in it."""

    layers: np.ndarray  # [B, L, 2] addresses of keys and values [K, S, E]
    places: np.ndarray  # [B, L, 3]: S, and where a ring begins and its size; without one, 0 and 0
    kinds: np.ndarray  # [L, P, 3]: those of a pattern, as attend_by_position reads them; P = 0: all are full
    rows: np.ndarray  # [R, 2]: cache row, and position in it
    adapters: np.ndarray  # [R]: the number of each token's adapter, or -1
    updates: np.ndarray  # [A, L, 6 or 7, 3]: those of each matrix, as add_low_rank reads them


class Buffers(NamedTuple):
    """Working arrays for R tokens.  A program reads the embeddings from ``x`` and leaves the head's input."""

    x: np.ndarray  # [R, D]
    q: np.ndarray  # [R, H*E]
    k: np.ndarray  # [R, K*E]
    v: np.ndarray  # [R, K*E]
    mixed: np.ndarray  # [R, H*E]
    wide: np.ndarray  # [R, F]
    gate: np.ndarray  # [R, F], gated feed-forwards only
    normed: np.ndarray  # [threads, R, D]
    scores: np.ndarray  # [threads, S]
    narrowed: np.ndarray | None  # [threads, integers_room of the widest input] for weights in 8 bits
    shortened: np.ndarray | None  # [threads, bytes of the widest input in bfloat16] for products of bfloat16


@program
def _project(
    out: Any, x: Any, matrix: int, bias: Any, add: bool, like: Any, narrowed: Any, shortened: Any,
    thread: int, threads: int,
) -> None:  # fmt: skip
    """out [R, N] (+)= x [R, K] @ matrix [N, K]^T + bias [N or 0].

    Whether ``narrowed`` and ``shortened`` are None is known from their types, so only one branch is compiled.
    """
    if narrowed is not None:
        project_integers(out, x, matrix, bias, add, narrowed[thread], thread, threads)
    elif shortened is not None:
        project_bfloat16(out, x, matrix, bias, add, shortened[thread], thread, threads)
    else:
        project(out, x, matrix, bias, add, like, thread, threads)


@program
def _adapt(out: Any, x: Any, new: NewTokens, i: int, matrix: int, thread: int, threads: int) -> None:
    """Add the updates of the adapters to the product of x with a matrix of layer i."""
    if new.updates.shape[0]:
        add_low_rank(out, x, new.adapters, new.updates[:, i, matrix], thread, threads)


@program
def _self_attention(
    buffers: Buffers, h: Any, w: Weights, i: int, new: NewTokens, counters: Any, thread: int
) -> None:
    """x += attention(h) in layer i; ends with a barrier."""
    threads, H, K, E = buffers.normed.shape[0], w.heads, w.kv_heads, w.head_dim
    q, k, v, rows = buffers.q, buffers.k, buffers.v, new.rows
    matrix, bias, room = w.matrices[i], w.biases, (buffers.narrowed, buffers.shortened)
    projected = (q, k, v)
    for m in range(3):  # in a loop the product is compiled once
        _project(projected[m], h, matrix[m], bias[m][i], False, w.like, *room, thread, threads)
        _adapt(projected[m], h, new, i, m, thread, threads)
    barrier(counters, threads, PATIENCE)

    for item in range(thread, rows.shape[0] * K, threads):
        r, group = item // K, item % K
        keys, values = new.layers[rows[r, 0], i, 0], new.layers[rows[r, 0], i, 1]
        places = new.places[rows[r, 0], i]
        capacity, first_place, ring = places[0], places[1], places[2]
        if w.rotary.shape[1]:
            rotate(k, r, group * E, w.rotary[0, rows[r, 1]], w.rotary[1, rows[r, 1]])
        place = rows[r, 1]
        if ring and place >= first_place + ring:
            place = first_place + (place - first_place) % ring
        place = (group * capacity + place) * E
        store_row(w.cached, keys, place, k, r, group * E, E)
        store_row(w.cached, values, place, v, r, group * E, E)
    barrier(counters, threads, PATIENCE)

    for item in range(thread, rows.shape[0] * H, threads):
        r, head = item // H, item % H
        if w.rotary.shape[1]:
            rotate(q, r, head * E, w.rotary[0, rows[r, 1]], w.rotary[1, rows[r, 1]])
        keys, values = new.layers[rows[r, 0], i, 0], new.layers[rows[r, 0], i, 1]
        places = new.places[rows[r, 0], i]
        capacity, first_place, ring = places[0], places[1], places[2]
        first = head // (H // K) * capacity * E * w.cached.itemsize
        if new.kinds.shape[1] == 0:
            attend(
                buffers.mixed, q, r, head, E, keys + first, values + first, 0, rows[r, 1] + 1, w.scale,
                buffers.scores[thread], w.cached,
            )  # fmt: skip
        else:
            attend_by_position(
                buffers.mixed, q, r, head, E, keys + first, values + first, rows[r, 1], first_place, ring,
                new.kinds[i], w.scale, buffers.scores[thread], w.cached,
            )  # fmt: skip
    barrier(counters, threads, PATIENCE)
    _project(buffers.x, buffers.mixed, matrix[3], bias[3][i], True, w.like, *room, thread, threads)
    _adapt(buffers.x, buffers.mixed, new, i, 3, thread, threads)
    barrier(counters, threads, PATIENCE)


@program
def _llama(w: Weights, new: NewTokens, buffers: Buffers, counters: Any, thread: int) -> None:
    x, h, gate, up = buffers.x, buffers.normed[thread], buffers.gate, buffers.wide
    threads, room = buffers.normed.shape[0], (buffers.narrowed, buffers.shortened)
    first, last = share(gate.shape[1], thread, threads)
    widened, L = (up, gate), new.layers.shape[1]
    for i in range(L):
        rms_norm(h, x, w.gains[i, 0], w.eps)
        _self_attention(buffers, h, w, i, new, counters, thread)
        rms_norm(h, x, w.gains[i, 1], w.eps)
        for j in range(2):
            m = (4, 6)[j]
            _project(widened[j], h, w.matrices[i, m], w.biases[m][i], False, w.like, *room, thread, threads)
            _adapt(widened[j], h, new, i, m, thread, threads)
        activate(gate, w.activation, first, last)
        for r in range(x.shape[0]):
            g, u = gate[r, first:last], up[r, first:last]
            for f in range(last - first):
                g[f] *= u[f]
        barrier(counters, threads, PATIENCE)
        _project(x, gate, w.matrices[i, 5], w.biases[5][i], True, w.like, *room, thread, threads)
        _adapt(x, gate, new, i, 5, thread, threads)
        barrier(counters, threads, PATIENCE)
    rms_norm(h, x, w.gains[L, 0], w.eps)
    _replace_x(buffers, h, counters, thread)


@program
def _gpt2(w: Weights, new: NewTokens, buffers: Buffers, counters: Any, thread: int) -> None:
    x, h = buffers.x, buffers.normed[thread]
    L = new.layers.shape[1]
    for i in range(L):
        layer_norm(h, x, w.gains[i, 0], w.offsets[i, 0], w.eps)
        _self_attention(buffers, h, w, i, new, counters, thread)
        layer_norm(h, x, w.gains[i, 1], w.offsets[i, 1], w.eps)
        _feed_forward(buffers, h, w, i, new, counters, thread)
    layer_norm(h, x, w.gains[L, 0], w.offsets[L, 0], w.eps)
    _replace_x(buffers, h, counters, thread)


@program
def _gpt(w: Weights, new: NewTokens, buffers: Buffers, counters: Any, thread: int) -> None:
    x, h = buffers.x, buffers.normed[thread]
    for r in range(x.shape[0]):
        for d in range(x.shape[1]):
            h[r, d] = x[r, d]
    for i in range(new.layers.shape[1]):
        _self_attention(buffers, h, w, i, new, counters, thread)
        layer_norm(h, x, w.gains[i, 0], w.offsets[i, 0], w.eps)
        _replace_x(buffers, h, counters, thread)
        _feed_forward(buffers, h, w, i, new, counters, thread)
        layer_norm(h, x, w.gains[i, 1], w.offsets[i, 1], w.eps)
        _replace_x(buffers, h, counters, thread)


@program
def _feed_forward(
    buffers: Buffers, h: Any, w: Weights, i: int, new: NewTokens, counters: Any, thread: int
) -> None:
    """x += feed_forward(h) in layer i, without a gate; ends with a barrier."""
    threads, wide, room = buffers.normed.shape[0], buffers.wide, (buffers.narrowed, buffers.shortened)
    first, last = share(wide.shape[1], thread, threads)
    _project(wide, h, w.matrices[i, 4], w.biases[4][i], False, w.like, *room, thread, threads)
    _adapt(wide, h, new, i, 4, thread, threads)
    activate(wide, w.activation, first, last)
    barrier(counters, threads, PATIENCE)
    _project(buffers.x, wide, w.matrices[i, 5], w.biases[5][i], True, w.like, *room, thread, threads)
    _adapt(buffers.x, wide, new, i, 5, thread, threads)
    barrier(counters, threads, PATIENCE)


@program
def _replace_x(buffers: Buffers, h: Any, counters: Any, thread: int) -> None:
    """x = h, after every thread has read the old x; each writes the columns that it alone adds to."""
    threads = buffers.normed.shape[0]
    barrier(counters, threads, PATIENCE)
    first, last = share(h.shape[1], thread, threads)
    for r in range(h.shape[0]):
        for d in range(first, last):
            buffers.x[r, d] = h[r, d]


@program
def head(
    like: Any, address: int, bias: Any, out: Any, x: Any, narrowed: Any, shortened: Any, threads: int,
    counters: Any, thread: int,
) -> None:  # fmt: skip
    """out [R, V] = x [R, D] @ lm_head^T + bias."""
    _project(out, x, address, bias, False, like, narrowed, shortened, thread, threads)


PROGRAMS = {"gpt": _gpt, "gpt2": _gpt2, "llama": _llama}
