"""One token through a whole recurrent model, to be read beside ``nn/recurrent.py``.

As in :mod:`wordloom.kernels.decoding.causal`, every thread runs the program from its first line to its last
and writes only its own share of columns.  A ``barrier`` stands where a thread reads what another wrote.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wordloom.kernels.arithmetic import sigmoid, tanh
from wordloom.kernels.barrier import barrier
from wordloom.kernels.decoding.leaves import project, share
from wordloom.kernels.machine_code import exact_routine, program

PATIENCE = 200  # as in wordloom.kernels.decoding.causal

RNN_TANH, RNN_RELU, LSTM, LSTM_1997, GRU, GRU_RESET_AFTER = range(6)  # in the order of nn.recurrent.CELLS


class Weights(NamedTuple):
    """A model as the program sees it: the addresses of its matrices, and float32 copies of small weights."""

    like: np.ndarray  # [0]: float32, or uint16 for bfloat16
    cell: int
    hidden_dim: int  # H
    matrices: np.ndarray  # [L, 3] addresses: W, U, and P or 0
    biases: np.ndarray  # [L, G * H], or [L, 0]
    candidates: np.ndarray  # [L, H], or [L, 0]: the bias of n inside the reset gate's product
    peepholes: np.ndarray  # [L, G - 1, H], or [L, 0, 0]


class State(NamedTuple):
    """The states of B rows before and after a step, and working arrays.

    ``h`` and ``c`` are read, ``new_h`` and ``new_c`` written.
    """

    x: np.ndarray  # [B, D] the embeddings
    h: np.ndarray  # [L, B, R]
    c: np.ndarray  # [L, B, H], or [L, B, 0]
    new_h: np.ndarray  # as h
    new_c: np.ndarray  # as c
    gates: np.ndarray  # [B, G * H]; a GRU's r and z alone [B, 2 * H]
    inner: np.ndarray  # [B, G * H] or [B, 0]: U h, where it is not simply added
    n: np.ndarray  # [B, H] or [B, 0]: a GRU's candidate
    wide: np.ndarray  # [B, H] the input of the projection to h, or r * h


@program
def step(w: Weights, s: State, threads: int, counters: Any, thread: int) -> None:
    """Pass x through every layer and write the next states to new_h and new_c."""
    for layer in range(s.h.shape[0]):
        if w.cell == GRU:
            _gru(w, s, layer, threads, counters, thread)
        elif w.cell == GRU_RESET_AFTER:
            _gru_reset_after(w, s, layer, threads, counters, thread)
        else:
            _one_product(w, s, layer, threads, counters, thread)
        barrier(counters, threads, PATIENCE)


@program
def _input(out: Any, w: Weights, s: State, layer: int, first: int, thread: int, threads: int) -> None:
    """out [B, N] = W x + b, for the gates' rows from ``first`` on; this thread's share."""
    bias = w.biases[layer]
    if bias.shape[0]:
        bias = bias[first : first + out.shape[1]]
    if layer == 0:
        row = first * s.x.shape[1] * w.like.itemsize
        project(out, s.x, w.matrices[layer, 0] + row, bias, False, w.like, thread, threads)
    else:
        row = first * s.new_h.shape[2] * w.like.itemsize
        project(out, s.new_h[layer - 1], w.matrices[layer, 0] + row, bias, False, w.like, thread, threads)


@program
def _one_product(w: Weights, s: State, layer: int, threads: int, counters: Any, thread: int) -> None:
    """Elman's network and LSTMs, whose sums are W x + U h + b."""
    none = w.biases[layer, :0]
    _input(s.gates, w, s, layer, 0, thread, threads)
    project(s.gates, s.h[layer], w.matrices[layer, 1], none, True, w.like, thread, threads)
    barrier(counters, threads, PATIENCE)
    if w.cell == RNN_TANH or w.cell == RNN_RELU:
        first, last = share(s.gates.shape[1], thread, threads)
        for b in range(s.gates.shape[0]):
            for j in range(first, last):
                x = s.gates[b, j]
                s.new_h[layer, b, j] = tanh(x) if w.cell == RNN_TANH else max(x, np.float32(0))
        return
    out = s.wide if w.matrices[layer, 2] else s.new_h[layer]
    _lstm(w, s, layer, out, threads, thread)
    if w.matrices[layer, 2]:
        barrier(counters, threads, PATIENCE)
        project(s.new_h[layer], s.wide, w.matrices[layer, 2], none, False, w.like, thread, threads)


@exact_routine
def _lstm(w: Weights, s: State, layer: int, out: Any, threads: int, thread: int) -> None:
    H = w.hidden_dim
    forgets, peephole = w.cell == LSTM, w.peepholes.shape[2] > 0
    at_g = 2 * H if forgets else H
    first, last = share(H, thread, threads)
    for b in range(s.gates.shape[0]):
        gates, c, new_c = s.gates[b], s.c[layer, b], s.new_c[layer, b]
        for j in range(first, last):
            i, old = gates[j], c[j]
            kept = old
            if peephole:
                i += w.peepholes[layer, 0, j] * old
            if forgets:
                f = gates[H + j]
                if peephole:
                    f += w.peepholes[layer, 1, j] * old
                kept = sigmoid(f) * old
            new = kept + sigmoid(i) * tanh(gates[at_g + j])
            o = gates[at_g + H + j]
            if peephole:
                o += w.peepholes[layer, w.peepholes.shape[1] - 1, j] * new
            new_c[j] = new
            out[b, j] = sigmoid(o) * tanh(new)


@program
def _gru(w: Weights, s: State, layer: int, threads: int, counters: Any, thread: int) -> None:
    """The reset gate before the product: r and z first, then n."""
    none, H = w.biases[layer, :0], w.hidden_dim
    h, new_h = s.h[layer], s.new_h[layer]
    _input(s.gates, w, s, layer, 0, thread, threads)
    project(s.gates, h, w.matrices[layer, 1], none, True, w.like, thread, threads)
    _input(s.n, w, s, layer, 2 * H, thread, threads)
    barrier(counters, threads, PATIENCE)
    first, last = share(H, thread, threads)
    for b in range(h.shape[0]):
        for j in range(first, last):
            s.wide[b, j] = sigmoid(s.gates[b, j]) * h[b, j]
    barrier(counters, threads, PATIENCE)
    of_n = w.matrices[layer, 1] + 2 * H * H * w.like.itemsize
    project(s.n, s.wide, of_n, none, True, w.like, thread, threads)
    for b in range(h.shape[0]):
        for j in range(first, last):
            z = sigmoid(s.gates[b, H + j])
            new_h[b, j] = (np.float32(1) - z) * h[b, j] + z * tanh(s.n[b, j])


@program
def _gru_reset_after(w: Weights, s: State, layer: int, threads: int, counters: Any, thread: int) -> None:
    none, H = w.biases[layer, :0], w.hidden_dim
    h, new_h = s.h[layer], s.new_h[layer]
    _input(s.gates, w, s, layer, 0, thread, threads)
    project(s.inner, h, w.matrices[layer, 1], none, False, w.like, thread, threads)
    barrier(counters, threads, PATIENCE)
    first, last = share(H, thread, threads)
    for b in range(h.shape[0]):
        gates, inner = s.gates[b], s.inner[b]
        for j in range(first, last):
            r, z = sigmoid(gates[j] + inner[j]), sigmoid(gates[H + j] + inner[H + j])
            candidate = inner[2 * H + j]
            if w.candidates.shape[1]:
                candidate += w.candidates[layer, j]
            n = tanh(gates[2 * H + j] + r * candidate)
            new_h[b, j] = z * h[b, j] + (np.float32(1) - z) * n
