"""Elementwise and row-wise kernels behind :mod:`wordloom.nn.fused`: one pass over memory each.

Arithmetic is in float32.  A kernel is compiled when it is first called (about a second) and kept on disk.
"""

from __future__ import annotations

import math

import numpy as np

from wordloom.kernels import arithmetic
from wordloom.kernels.arithmetic import exp, f4, hashed, highest, rms_scale, silu
from wordloom.kernels.machine_code import exact, leaf
from wordloom.kernels.memory import FLOAT, load, pointer, store
from wordloom.kernels.parallel import Floats, Integers, Share, Stored, parallel

# GELU(x) = x * sigmoid(z), z = 2 * sqrt(2 / pi) * (x + 0.044715 x^3): 0.5 * (1 + tanh(y)) = sigmoid(2 y)
# (Hendrycks and Gimpel 2016, arXiv:1606.08415)
_Z = f4(2.0 * math.sqrt(2.0 / math.pi))
_CUBE = f4(0.044715)


@parallel
@exact
def gelu_tanh(start: int, stop: int, x: Stored, y: Stored, slope: Stored) -> None:
    """y [n] = GELU(x [n]) by tanh, and its slope at x."""
    for i in range(start, stop):
        v = load(x, i)
        square = v * v
        e = exp(-_Z * v * (f4(1.0) + _CUBE * square))
        s = f4(1.0) / (f4(1.0) + e)
        store(y, i, v * s)
        # z' s (1 - s); e s is 1 - s without the cancellation
        store(slope, i, s + v * _Z * (f4(1.0) + f4(3.0) * _CUBE * square) * s * (e * s))


@parallel
@exact
def swiglu(start: int, stop: int, gate: Stored, up: Stored, y: Stored) -> None:
    """y [n] = silu(gate [n]) * up [n] (Shazeer 2020, arXiv:2002.05202)."""
    for i in range(start, stop):
        store(y, i, silu(load(gate, i)) * load(up, i))


@parallel
@exact
def swiglu_backward(
    start: int, stop: int, gate: Stored, up: Stored, d_y: Stored, d_gate: Stored, d_up: Stored
) -> None:
    """d_gate, d_up [n] of the loss whose gradient at y is d_y [n]."""
    for i in range(start, stop):
        g, d = load(gate, i), load(d_y, i)
        e = exp(-g)
        s = f4(1.0) / (f4(1.0) + e)
        store(d_up, i, d * g * s)
        store(d_gate, i, d * load(up, i) * (s + g * s * (e * s)))


@parallel
@leaf
def rms_norm(
    start: int, stop: int, D: int, eps: float, x: Stored, weight: Floats, y: Stored, scale: Floats
) -> None:
    """y [N, D] = x [N, D] * scale [N] * weight [D], where scale is 1 / sqrt(mean(x^2) + eps)."""
    for row in range(start, stop):
        first = row * D
        r = rms_scale(x, first, D, eps)
        scale[row] = r
        for i in range(D):
            store(y, first + i, load(x, first + i) * r * weight[i])


@parallel
@leaf
def rms_norm_backward(
    start: int, stop: int, share: Share, D: int, x: Stored, weight: Floats, scale: Floats, d_y: Stored,
    d_x: Stored, d_weights: int,
) -> None:  # fmt: skip
    """d_x [N, D] and, as one row for each share, d_weights [shares, D], which must be zeros.

    The share, not the thread, selects the row, so that the sum of the rows repeats its bits.
    """
    d_weight = pointer(d_weights + 4 * share * D, FLOAT)
    for row in range(start, stop):
        first, r = row * D, scale[row]
        total = f4(0.0)
        for i in range(D):
            v, d = load(x, first + i), load(d_y, first + i)
            total += d * weight[i] * v
            d_weight[i] += d * v * r
        back = total * r * r * r / f4(D)
        for i in range(D):
            store(d_x, first + i, load(d_y, first + i) * weight[i] * r - load(x, first + i) * back)


@parallel
@leaf
def log_sum_exp(start: int, stop: int, V: int, logits: Stored, out: Floats) -> None:
    """out [N] = log sum exp(logits [N, V])."""
    for row in range(start, stop):
        first, total = row * V, f4(0.0)
        most = highest(logits, first, V)
        for i in range(first, first + V):
            total += exp(load(logits, i) - most)
        out[row] = most + np.log(total)


@parallel
@leaf
def token_scores(
    start: int,
    stop: int,
    V: int,
    logits: Stored,
    targets: Integers,
    chosen: Integers,
    nats: Floats,
    larger: Floats,
    best: Floats,
) -> None:
    """Scores of two tokens of each row of logits [N, V].

    nats [N] = -log softmax at ``targets``; larger [N] = the number of larger logits, as a float; best [N] = 1
    where the logit of ``chosen`` is the largest, else 0.
    """
    for row in range(start, stop):
        first = row * V
        most, scored = highest(logits, first, V), load(logits, first + targets[row])
        total, count = f4(0.0), f4(0.0)
        for i in range(first, first + V):
            value = load(logits, i)
            total += exp(value - most)
            count += f4(1.0) if value > scored else f4(0.0)
        nats[row] = np.log(total) - (scored - most)
        larger[row] = count
        best[row] = f4(1.0) if load(logits, first + chosen[row]) == most else f4(0.0)


@parallel
@leaf
def softmax_error(
    start: int, stop: int, V: int, smoothing: float, logits: Stored, targets: Integers, losses: Floats
) -> None:
    """losses [N] = the cross-entropies of logits [N, V] with targets [N]; logits become their gradient.

    The gradient is softmax minus the target distribution, which is 1 - smoothing at the target, and
    smoothing / V everywhere.
    A target below 0 is not scored: its row and its loss are zero.
    """
    own, other = f4(1.0) - smoothing, smoothing / f4(V)
    for row in range(start, stop):
        first, target = row * V, targets[row]
        if target < 0:
            losses[row] = f4(0.0)
            for i in range(first, first + V):
                store(logits, i, f4(0.0))
            continue
        most, scored = highest(logits, first, V), load(logits, first + target)
        total = f4(0.0)
        lower = f4(0.0)  # the sum of all logits' distances from the highest
        for i in range(first, first + V):
            below = load(logits, i) - most
            total += exp(below)
            lower += below
        losses[row] = np.log(total) - own * (scored - most)
        if smoothing > f4(0.0):  # without smoothing, a logit of -inf would become 0 * inf here
            losses[row] -= other * lower
        # recomputing exponentials is cheaper than storing them, and bfloat16 is rounded once
        scale = f4(1.0) / total
        for i in range(first, first + V):
            store(logits, i, exp(load(logits, i) - most) * scale - other)
        store(logits, first + target, exp(scored - most) * scale - other - own)


@parallel
@exact
def rotate(
    start: int, stop: int, T: int, H: int, half: int, rows: int, x: Stored, cos: Floats, sin: Floats,
    y: Stored,
) -> None:  # fmt: skip
    """y [B * T, H, E] = the heads of x rotated by angles cos and sin [rows, E / 2]; rows is T or B * T."""
    for row in range(start, stop):
        angle = (row if rows != T else row % T) * half
        for head in range(H):
            arithmetic.rotate(x, (row * H + head) * 2 * half, half, cos, sin, angle, y)


@parallel
@exact
def dropout(
    start: int, stop: int, size: int, seeds: Integers, chance: int, scale: float, x: Stored, y: Stored
) -> None:
    """y [R, size] = x * scale, or 0 where 32 bits, a hash of the place in a row, are below ``chance``.

    Each row has a seed of the hash.  The same seeds drop the same elements again, so no mask is kept.
    """
    least, i = np.uint32(chance), start
    while i < stop:
        row = i // size
        first, end = row * size, min(stop, (row + 1) * size)
        low, high = np.uint32(seeds[row]), np.uint32(seeds[row] >> 32)
        for at in range(i, end):
            h = hashed(np.uint32(at - first), low, high)
            store(y, at, load(x, at) * scale if h >= least else f4(0.0))
        i = end
