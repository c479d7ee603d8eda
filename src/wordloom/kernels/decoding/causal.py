"""A few tokens through a whole model, one compiled program per family: read beside ``models/*.py``.

Every thread runs a program from its first line to its last.  It writes only its own share of columns or
heads, and ``barrier`` stands wherever one thread reads what another wrote.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wordloom.kernels.barrier import barrier
from wordloom.kernels.decoding.leaves import (
    activate,
    attend,
    layer_norm,
    project,
    remember,
    rms_norm,
    rotate,
    share,
)
from wordloom.kernels.machine_code import program

__all__ = ["PROGRAMS", "Memory", "Room", "Weights", "head"]

PATIENCE = 200  # polls of a barrier before other programs get the core: some microseconds


class Weights(NamedTuple):
    """A model as the programs see it: where its matrices lie, and small float32 copies of the rest.

    The order of matrices and biases is q, k, v, o, up, down and, in a LLaMA, gate.  Each kind of bias is an
    array of its own, as wide as the layer's output.
    """

    like: np.ndarray  # [0]: float32, or uint16 for bfloat16
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


class Memory(NamedTuple):
    """Where the new tokens go: the cache, and each token's place in it."""

    layers: np.ndarray  # [L, 2] addresses of keys and values [B, K, S, E]
    capacity: int  # S
    rows: np.ndarray  # [R, 2]: cache row, and position in it


class Room(NamedTuple):
    """Arrays to work in, for R tokens; ``x`` comes in as embeddings and leaves as what the head reads."""

    x: np.ndarray  # [R, D]
    q: np.ndarray  # [R, H*E]
    k: np.ndarray  # [R, K*E]
    v: np.ndarray  # [R, K*E]
    mixed: np.ndarray  # [R, H*E]
    wide: np.ndarray  # [R, F]
    gate: np.ndarray  # [R, F], gated feed-forwards only
    normed: np.ndarray  # [threads, R, D]
    scores: np.ndarray  # [threads, S]


@program
def _self_attention(room: Room, h: Any, w: Weights, i: int, memory: Memory, team: Any, thread: int) -> None:
    """x += attention(h) in layer i; ends with all threads together."""
    threads, H, K, E = room.normed.shape[0], w.heads, w.kv_heads, w.head_dim
    q, k, v, rows = room.q, room.k, room.v, memory.rows
    matrix, bias = w.matrices[i], w.biases
    project(q, h, matrix[0], bias[0][i], False, w.like, thread, threads)
    project(k, h, matrix[1], bias[1][i], False, w.like, thread, threads)
    project(v, h, matrix[2], bias[2][i], False, w.like, thread, threads)
    barrier(team, threads, PATIENCE)

    keys, values = memory.layers[i, 0], memory.layers[i, 1]
    for item in range(thread, rows.shape[0] * K, threads):
        r, group = item // K, item % K
        if w.rotary.shape[1]:
            rotate(k, r, group * E, w.rotary[0, rows[r, 1]], w.rotary[1, rows[r, 1]])
        place = ((rows[r, 0] * K + group) * memory.capacity + rows[r, 1]) * E
        remember(w.like, keys, place, k, r, group * E, E)
        remember(w.like, values, place, v, r, group * E, E)
    barrier(team, threads, PATIENCE)

    for item in range(thread, rows.shape[0] * H, threads):
        r, head = item // H, item % H
        if w.rotary.shape[1]:
            rotate(q, r, head * E, w.rotary[0, rows[r, 1]], w.rotary[1, rows[r, 1]])
        first = (rows[r, 0] * K + head // (H // K)) * memory.capacity * E * w.like.itemsize
        attend(
            room.mixed, q, r, head, E, keys + first, values + first, 0, rows[r, 1] + 1, w.scale,
            room.scores[thread], w.like,
        )  # fmt: skip
    barrier(team, threads, PATIENCE)
    project(room.x, room.mixed, matrix[3], bias[3][i], True, w.like, thread, threads)
    barrier(team, threads, PATIENCE)


@program
def _llama(w: Weights, memory: Memory, room: Room, team: Any, thread: int) -> None:
    x, h, gate, up = room.x, room.normed[thread], room.gate, room.wide
    threads = room.normed.shape[0]
    first, last = share(gate.shape[1], thread, threads)
    L = memory.layers.shape[0]
    for i in range(L):
        rms_norm(h, x, w.gains[i, 0], w.eps)
        _self_attention(room, h, w, i, memory, team, thread)
        rms_norm(h, x, w.gains[i, 1], w.eps)
        project(gate, h, w.matrices[i, 6], w.biases[6][i], False, w.like, thread, threads)
        project(up, h, w.matrices[i, 4], w.biases[4][i], False, w.like, thread, threads)
        activate(gate, w.activation, first, last)
        for r in range(x.shape[0]):
            mine, other = gate[r, first:last], up[r, first:last]
            for f in range(last - first):
                mine[f] *= other[f]
        barrier(team, threads, PATIENCE)
        project(x, gate, w.matrices[i, 5], w.biases[5][i], True, w.like, thread, threads)
        barrier(team, threads, PATIENCE)
    rms_norm(h, x, w.gains[L, 0], w.eps)
    _replace_x(room, h, team, thread)


@program
def _gpt2(w: Weights, memory: Memory, room: Room, team: Any, thread: int) -> None:
    x, h, wide = room.x, room.normed[thread], room.wide
    threads = room.normed.shape[0]
    first, last = share(wide.shape[1], thread, threads)
    L = memory.layers.shape[0]
    for i in range(L):
        layer_norm(h, x, w.gains[i, 0], w.offsets[i, 0], w.eps)
        _self_attention(room, h, w, i, memory, team, thread)
        layer_norm(h, x, w.gains[i, 1], w.offsets[i, 1], w.eps)
        project(wide, h, w.matrices[i, 4], w.biases[4][i], False, w.like, thread, threads)
        activate(wide, w.activation, first, last)
        barrier(team, threads, PATIENCE)
        project(x, wide, w.matrices[i, 5], w.biases[5][i], True, w.like, thread, threads)
        barrier(team, threads, PATIENCE)
    layer_norm(h, x, w.gains[L, 0], w.offsets[L, 0], w.eps)
    _replace_x(room, h, team, thread)


@program
def _gpt(w: Weights, memory: Memory, room: Room, team: Any, thread: int) -> None:
    x, h, wide = room.x, room.normed[thread], room.wide
    threads = room.normed.shape[0]
    first, last = share(wide.shape[1], thread, threads)
    for r in range(x.shape[0]):
        for d in range(x.shape[1]):
            h[r, d] = x[r, d]
    for i in range(memory.layers.shape[0]):
        _self_attention(room, h, w, i, memory, team, thread)
        layer_norm(h, x, w.gains[i, 0], w.offsets[i, 0], w.eps)
        _replace_x(room, h, team, thread)
        project(wide, h, w.matrices[i, 4], w.biases[4][i], False, w.like, thread, threads)
        activate(wide, w.activation, first, last)
        barrier(team, threads, PATIENCE)
        project(x, wide, w.matrices[i, 5], w.biases[5][i], True, w.like, thread, threads)
        barrier(team, threads, PATIENCE)
        layer_norm(h, x, w.gains[i, 1], w.offsets[i, 1], w.eps)
        _replace_x(room, h, team, thread)


@program
def _replace_x(room: Room, h: Any, team: Any, thread: int) -> None:
    """x = h, once every thread has read the old x; each writes the columns that it alone adds to."""
    threads = room.normed.shape[0]
    barrier(team, threads, PATIENCE)
    first, last = share(h.shape[1], thread, threads)
    for r in range(h.shape[0]):
        for d in range(first, last):
            room.x[r, d] = h[r, d]


@program
def head(like: Any, address: int, bias: Any, out: Any, x: Any, threads: int, team: Any, thread: int) -> None:
    """out [R, V] = x [R, D] @ lm_head^T + bias."""
    project(out, x, address, bias, False, like, thread, threads)


PROGRAMS = {"gpt": _gpt, "gpt2": _gpt2, "llama": _llama}
