"""Kernels for one recurrent step of :mod:`wordloom.nn.recurrent_kernels`, without its matrix products.

Equations are in :mod:`wordloom.nn.recurrent`.  Forward, the sums of gates become the gates in place.
Backward, the gates become the gradients of their sums in place, ``d_sums``.  Threads share the B
rows.  States c and their gradients are float32; other tensors have the dtype that the caller chooses.

Each loop writes to few tensors, so that the compiler can prove, or check at run time, that none overlap.
Only then does it vectorize the loop.
"""

from __future__ import annotations

from typing import Any

from wordloom.kernels.arithmetic import f4, sigmoid, tanh
from wordloom.kernels.machine_code import exact
from wordloom.kernels.memory import is_null, load, store
from wordloom.kernels.parallel import Floats, Stored, parallel


@exact
def _sigmoids(x: Any, first: int, n: int) -> None:
    for i in range(first, first + n):
        store(x, i, sigmoid(load(x, i)))


@exact
def _tanhs(x: Any, first: int, n: int) -> None:
    for i in range(first, first + n):
        store(x, i, tanh(load(x, i)))


@exact
def _add_products(x: Any, first: int, weight: Any, offset: int, c: Any, row: int, H: int) -> None:
    """x [first ..] += weight [offset ..] * c [row ..]."""
    for j in range(H):
        store(x, first + j, load(x, first + j) + weight[offset + j] * c[row + j])


# -- forward ---------------------------------------------------------------------------------------------


@parallel
@exact
def elman(start: int, stop: int, H: int, relu: bool, sums: Stored, h: Stored) -> None:
    """h [B, H] = tanh or ReLU of ``sums`` [B, H]."""
    if relu:
        for i in range(start * H, stop * H):
            x = load(sums, i)
            store(h, i, x if x > f4(0.0) else f4(0.0))
    else:
        for i in range(start * H, stop * H):
            store(h, i, tanh(load(sums, i)))


@parallel
@exact
def lstm(
    start: int, stop: int, H: int, forgets: bool, gates: Stored, before: Floats, c: Floats, h: Stored,
    peephole: Floats,
) -> None:  # fmt: skip
    """gates [B, G, H] and the cell ``before`` the step [B, H] -> c, h [B, H]; peephole [G - 1, H] or null."""
    sees_cell = not is_null(peephole)
    inner = 2 * H if forgets else H  # gates before g: i and f, or i alone
    for row in range(start, stop):
        own, at = row * (inner + 2 * H), row * H
        if sees_cell:
            _add_products(gates, own, peephole, 0, before, at, H)
            if forgets:
                _add_products(gates, own + H, peephole, H, before, at, H)
        _sigmoids(gates, own, inner)
        _tanhs(gates, own + inner, H)
        if forgets:
            for j in range(H):
                kept = load(gates, own + H + j) * before[at + j]
                c[at + j] = kept + load(gates, own + j) * load(gates, own + 2 * H + j)
        else:
            for j in range(H):
                c[at + j] = before[at + j] + load(gates, own + j) * load(gates, own + H + j)
        if sees_cell:
            _add_products(gates, own + inner + H, peephole, inner, c, at, H)
        _sigmoids(gates, own + inner + H, H)
        for j in range(H):
            store(h, at + j, load(gates, own + inner + H + j) * tanh(c[at + j]))


@parallel
@exact
def gru_gates(start: int, stop: int, H: int, gates: Stored, before: Stored, product: Stored) -> None:
    """r and z of their sums [B, 2, H]; ``product`` [B, H] = r * the h ``before`` the step."""
    _sigmoids(gates, start * 2 * H, (stop - start) * 2 * H)
    for row in range(start, stop):
        for j in range(H):
            store(product, row * H + j, load(gates, row * 2 * H + j) * load(before, row * H + j))


@parallel
@exact
def gru_state(start: int, stop: int, H: int, gates: Stored, n: Stored, before: Stored, h: Stored) -> None:
    """r and z [B, 2, H], the sums of n [B, H], h ``before`` [B, H] -> n, h = (1 - z) before + z n."""
    _tanhs(n, start * H, (stop - start) * H)
    for row in range(start, stop):
        for j in range(H):
            z, old = load(gates, row * 2 * H + H + j), load(before, row * H + j)
            store(h, row * H + j, (f4(1.0) - z) * old + z * load(n, row * H + j))


@parallel
@exact
def gru_reset_after(
    start: int, stop: int, H: int, gates: Stored, inner: Stored, before: Stored, h: Stored
) -> None:
    """gates [B, 3, H] from x and ``inner`` from h -> gates, h = z before + (1 - z) n."""
    for row in range(start, stop):
        own, at = row * 3 * H, row * H
        for j in range(own, own + 2 * H):
            store(gates, j, sigmoid(load(gates, j) + load(inner, j)))
        for j in range(own, own + H):
            store(gates, j + 2 * H, tanh(load(gates, j + 2 * H) + load(gates, j) * load(inner, j + 2 * H)))
        for j in range(H):
            z, n = load(gates, own + H + j), load(gates, own + 2 * H + j)
            store(h, at + j, z * load(before, at + j) + (f4(1.0) - z) * n)


# -- backward --------------------------------------------------------------------------------------------
# d_h [B, H] float32 is the gradient of the loss with respect to h


@parallel
@exact
def elman_backward(start: int, stop: int, H: int, relu: bool, h: Stored, d_h: Floats, d_sums: Stored) -> None:
    """h [B, H], d_h -> d_sums [B, H]."""
    if relu:
        for i in range(start * H, stop * H):
            store(d_sums, i, d_h[i] if load(h, i) > f4(0.0) else f4(0.0))
    else:
        for i in range(start * H, stop * H):
            value = load(h, i)
            store(d_sums, i, d_h[i] * (f4(1.0) - value * value))


@parallel
@exact
def lstm_backward(
    start: int, stop: int, H: int, forgets: bool, gates: Stored, before: Floats, c: Floats, d_h: Floats,
    d_c: Floats, peephole: Floats,
) -> None:  # fmt: skip
    """gates [B, G, H] become d_sums; d_c [B, H] of c becomes that of the cell ``before`` the step."""
    sees_cell = not is_null(peephole)
    inner = 2 * H if forgets else H  # gates before g: i and f, or i alone
    for row in range(start, stop):
        i, at = row * (inner + 2 * H), row * H
        g, o = i + inner, i + inner + H
        for j in range(H):
            shown = tanh(c[at + j])
            d_c[at + j] += d_h[at + j] * load(gates, o + j) * (f4(1.0) - shown * shown)
        for j in range(H):
            open_ = load(gates, o + j)
            store(gates, o + j, d_h[at + j] * tanh(c[at + j]) * open_ * (f4(1.0) - open_))
        if sees_cell:
            for j in range(H):
                d_c[at + j] += load(gates, o + j) * peephole[inner + j]
        for j in range(H):
            open_, new, d = load(gates, i + j), load(gates, g + j), d_c[at + j]
            store(gates, i + j, d * new * open_ * (f4(1.0) - open_))
            store(gates, g + j, d * open_ * (f4(1.0) - new * new))
        if forgets:
            for j in range(H):
                open_, d = load(gates, i + H + j), d_c[at + j]
                store(gates, i + H + j, d * before[at + j] * open_ * (f4(1.0) - open_))
                d_c[at + j] = d * open_
        if sees_cell:
            for j in range(H):
                d_c[at + j] += load(gates, i + j) * peephole[j]
            if forgets:
                for j in range(H):
                    d_c[at + j] += load(gates, i + H + j) * peephole[H + j]


@parallel
@exact
def gru_state_backward(
    start: int, stop: int, H: int, gates: Stored, n: Stored, before: Stored, d_h: Floats, d_before: Floats
) -> None:
    """z and n become d_sums; d_before [B, H] = d_h (1 - z)."""
    for row in range(start, stop):
        z, at = row * 2 * H + H, row * H
        for j in range(H):
            d_before[at + j] = d_h[at + j] * (f4(1.0) - load(gates, z + j))
        for j in range(H):
            open_, new, d = load(gates, z + j), load(n, at + j), d_h[at + j]
            store(gates, z + j, d * (new - load(before, at + j)) * open_ * (f4(1.0) - open_))
            store(n, at + j, d * open_ * (f4(1.0) - new * new))


@parallel
@exact
def gru_gates_backward(
    start: int, stop: int, H: int, gates: Stored, before: Stored, d_product: Stored, d_before: Floats
) -> None:
    """r becomes its d_sums; d_before [B, H] has its part through r h added."""
    for row in range(start, stop):
        r, at = row * 2 * H, row * H
        for j in range(H):
            open_, d = load(gates, r + j), load(d_product, at + j)
            d_before[at + j] += d * open_
            store(gates, r + j, d * load(before, at + j) * open_ * (f4(1.0) - open_))


@parallel
@exact
def gru_reset_after_backward(
    start: int, stop: int, H: int, gates: Stored, inner: Stored, before: Stored, d_h: Floats, d_before: Floats
) -> None:
    """gates of x and ``inner`` of h become d_sums; d_before [B, H] = d_h z."""
    for row in range(start, stop):
        r, at = row * 3 * H, row * H
        z, n = r + H, r + 2 * H
        for j in range(H):
            d_before[at + j] = d_h[at + j] * load(gates, z + j)
        for j in range(H):
            open_, new, d = load(gates, z + j), load(gates, n + j), d_h[at + j]
            store(gates, z + j, d * (load(before, at + j) - new) * open_ * (f4(1.0) - open_))
            store(gates, n + j, d * (f4(1.0) - open_) * (f4(1.0) - new * new))
        for j in range(H):
            open_, d = load(gates, r + j), load(gates, n + j)
            store(gates, r + j, d * load(inner, n + j) * open_ * (f4(1.0) - open_))
            store(inner, n + j, d * open_)
        for j in range(r, r + 2 * H):
            store(inner, j, load(gates, j))
