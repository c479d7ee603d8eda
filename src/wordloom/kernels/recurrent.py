"""The programs behind :mod:`wordloom.nn.recurrent_kernels`: what a step does between its matrix products.

Gates become what they let through in place, forward, and in place again their gradients, backward.  Every
loop writes so little that the compiler can prove, or ask at run time, that nothing overlaps: then it makes
vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wordloom.kernels.arithmetic import f4, sigmoid, tanh
from wordloom.kernels.machine_code import exact
from wordloom.kernels.memory import load, pointer, store, ticket
from wordloom.kernels.packets import bounds

__all__ = ["PROGRAMS"]

TANH, RELU, LSTM, LSTM_1997, GRU_GATES, GRU_STATE, GRU_AFTER = range(7)  # as in recurrent_kernels.Kind

# A packet is: ticket counter, number of shares, how tensors are stored, rows B, kind, H, then tensors as
# addresses.  States c and their gradients are float32, all else as ``like``.


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


@exact
def _elman(packet: Any, like: Any, share: int) -> None:
    """sums [B, H] -> h [B, H]."""
    H = packet[5]
    sums, h = pointer(packet[6], like), pointer(packet[7], like)
    start, stop = bounds(packet, share)
    if packet[4] == TANH:
        for i in range(start * H, stop * H):
            store(h, i, tanh(load(sums, i)))
    else:
        for i in range(start * H, stop * H):
            x = load(sums, i)
            store(h, i, x if x > f4(0.0) else f4(0.0))


@exact
def _lstm(packet: Any, like: Any, share: int) -> None:
    """gates [B, G, H], c before [B, H] -> gates, c [B, H], h [B, H]; peephole [G - 1, H] float32 or 0."""
    H = packet[5]
    gates, h = pointer(packet[6], like), pointer(packet[9], like)
    before, c = pointer(packet[7], f4(0.0)), pointer(packet[8], f4(0.0))
    peephole = pointer(packet[10], f4(0.0))
    forgets = packet[4] == LSTM
    inner = 2 * H if forgets else H  # i and f, or i alone
    start, stop = bounds(packet, share)
    for row in range(start, stop):
        own, at = row * (inner + 2 * H), row * H
        if packet[10]:
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
        if packet[10]:
            _add_products(gates, own + inner + H, peephole, inner, c, at, H)
        _sigmoids(gates, own + inner + H, H)
        for j in range(H):
            store(h, at + j, load(gates, own + inner + H + j) * tanh(c[at + j]))


@exact
def _gru_gates(packet: Any, like: Any, share: int) -> None:
    """r and z [B, 2, H], h before [B, H] -> r and z, r h [B, H]."""
    H = packet[5]
    gates, before, product = pointer(packet[6], like), pointer(packet[7], like), pointer(packet[8], like)
    start, stop = bounds(packet, share)
    _sigmoids(gates, start * 2 * H, (stop - start) * 2 * H)
    for row in range(start, stop):
        for j in range(H):
            store(product, row * H + j, load(gates, row * 2 * H + j) * load(before, row * H + j))


@exact
def _gru_state(packet: Any, like: Any, share: int) -> None:
    """r and z [B, 2, H], n [B, H], h before [B, H] -> n, h = (1 - z) h + z n."""
    H = packet[5]
    gates, n = pointer(packet[6], like), pointer(packet[7], like)
    before, h = pointer(packet[8], like), pointer(packet[9], like)
    start, stop = bounds(packet, share)
    _tanhs(n, start * H, (stop - start) * H)
    for row in range(start, stop):
        for j in range(H):
            z, old = load(gates, row * 2 * H + H + j), load(before, row * H + j)
            store(h, row * H + j, (f4(1.0) - z) * old + z * load(n, row * H + j))


@exact
def _gru_after(packet: Any, like: Any, share: int) -> None:
    """gates [B, 3, H] of x, and of h [B, 3, H], h before [B, H] -> gates, h = z h + (1 - z) n."""
    H = packet[5]
    gates, inner = pointer(packet[6], like), pointer(packet[7], like)
    before, h = pointer(packet[8], like), pointer(packet[9], like)
    start, stop = bounds(packet, share)
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
# d_h [B, H] float32 is of the loss with respect to h; gates' sums take the place of what they let through.


@exact
def _elman_back(packet: Any, like: Any, share: int) -> None:
    """h [B, H], d_h -> d_sums [B, H]."""
    H = packet[5]
    h, d_h, d_sums = pointer(packet[6], like), pointer(packet[7], f4(0.0)), pointer(packet[8], like)
    start, stop = bounds(packet, share)
    if packet[4] == TANH:
        for i in range(start * H, stop * H):
            value = load(h, i)
            store(d_sums, i, d_h[i] * (f4(1.0) - value * value))
    else:
        for i in range(start * H, stop * H):
            store(d_sums, i, d_h[i] if load(h, i) > f4(0.0) else f4(0.0))


@exact
def _lstm_back(packet: Any, like: Any, share: int) -> None:
    """gates [B, G, H], c before, c, d_h, d_c [B, H] float32, peephole or 0 -> gates, d_c of c before."""
    H = packet[5]
    gates, before, c = pointer(packet[6], like), pointer(packet[7], f4(0.0)), pointer(packet[8], f4(0.0))
    d_h, d_c = pointer(packet[9], f4(0.0)), pointer(packet[10], f4(0.0))
    peephole = pointer(packet[11], f4(0.0))
    forgets = packet[4] == LSTM
    inner = 2 * H if forgets else H
    start, stop = bounds(packet, share)
    for row in range(start, stop):
        i, at = row * (inner + 2 * H), row * H
        g, o = i + inner, i + inner + H
        for j in range(H):
            shown = tanh(c[at + j])
            d_c[at + j] += d_h[at + j] * load(gates, o + j) * (f4(1.0) - shown * shown)
        for j in range(H):
            open_ = load(gates, o + j)
            store(gates, o + j, d_h[at + j] * tanh(c[at + j]) * open_ * (f4(1.0) - open_))
        if packet[11]:
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
        if packet[11]:
            for j in range(H):
                d_c[at + j] += load(gates, i + j) * peephole[j]
            if forgets:
                for j in range(H):
                    d_c[at + j] += load(gates, i + H + j) * peephole[H + j]


@exact
def _gru_state_back(packet: Any, like: Any, share: int) -> None:
    """r and z, n, h before, d_h -> z and n become d_sums, d_before [B, H] float32."""
    H = packet[5]
    gates, n, before = pointer(packet[6], like), pointer(packet[7], like), pointer(packet[8], like)
    d_h, d_before = pointer(packet[9], f4(0.0)), pointer(packet[10], f4(0.0))
    start, stop = bounds(packet, share)
    for row in range(start, stop):
        z, at = row * 2 * H + H, row * H
        for j in range(H):
            d_before[at + j] = d_h[at + j] * (f4(1.0) - load(gates, z + j))
        for j in range(H):
            open_, new, d = load(gates, z + j), load(n, at + j), d_h[at + j]
            store(gates, z + j, d * (new - load(before, at + j)) * open_ * (f4(1.0) - open_))
            store(n, at + j, d * open_ * (f4(1.0) - new * new))


@exact
def _gru_gates_back(packet: Any, like: Any, share: int) -> None:
    """r and z, h before, d of r h [B, H] -> r becomes d_sums, d_before has its part added."""
    H = packet[5]
    gates, before, d_product = pointer(packet[6], like), pointer(packet[7], like), pointer(packet[8], like)
    d_before = pointer(packet[9], f4(0.0))
    start, stop = bounds(packet, share)
    for row in range(start, stop):
        r, at = row * 2 * H, row * H
        for j in range(H):
            open_, d = load(gates, r + j), load(d_product, at + j)
            d_before[at + j] += d * open_
            store(gates, r + j, d * load(before, at + j) * open_ * (f4(1.0) - open_))


@exact
def _gru_after_back(packet: Any, like: Any, share: int) -> None:
    """gates of x and of h, h before, d_h -> both become d_sums, d_before [B, H] float32."""
    H = packet[5]
    gates, inner = pointer(packet[6], like), pointer(packet[7], like)
    before, d_h, d_before = (
        pointer(packet[8], like),
        pointer(packet[9], f4(0.0)),
        pointer(packet[10], f4(0.0)),
    )
    start, stop = bounds(packet, share)
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


# -- packets ---------------------------------------------------------------------------------------------


@exact
def _step(packet: Any, like: Any, share: int) -> None:
    kind = packet[4]
    if kind <= RELU:
        _elman(packet, like, share)
    elif kind <= LSTM_1997:
        _lstm(packet, like, share)
    elif kind == GRU_GATES:
        _gru_gates(packet, like, share)
    elif kind == GRU_STATE:
        _gru_state(packet, like, share)
    else:
        _gru_after(packet, like, share)


@exact
def _step_back(packet: Any, like: Any, share: int) -> None:
    kind = packet[4]
    if kind <= RELU:
        _elman_back(packet, like, share)
    elif kind <= LSTM_1997:
        _lstm_back(packet, like, share)
    elif kind == GRU_GATES:
        _gru_gates_back(packet, like, share)
    elif kind == GRU_STATE:
        _gru_state_back(packet, like, share)
    else:
        _gru_after_back(packet, like, share)


def recurrent_step(packet: Any) -> None:
    share = ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _step(packet, np.uint16(0), share)
        else:
            _step(packet, f4(0), share)
        share = ticket(packet)


def recurrent_step_back(packet: Any) -> None:
    share = ticket(packet)
    while share < packet[1]:
        if packet[2]:
            _step_back(packet, np.uint16(0), share)
        else:
            _step_back(packet, f4(0), share)
        share = ticket(packet)


PROGRAMS = {program.__name__: program for program in (recurrent_step, recurrent_step_back)}
