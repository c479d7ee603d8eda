"""The layers of the decoding programs at random, mostly odd sizes, against plain NumPy in float64."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.kernels.cases import size

from wordloom.generate.fast.causal import kinds_of_layers
from wordloom.kernels.bfloat16_products import has_bfloat16_products, shortened_bytes
from wordloom.kernels.decoding import integers, leaves
from wordloom.kernels.registers import LANES
from wordloom.nn.attention import Pattern
from wordloom.nn.quantized import dequantize, narrowed, quantize

Floats = NDArray[Any]
FLOATS, BITS = np.zeros(0, np.float32), np.zeros(0, np.uint16)
ROUNDS = 20


class Draw:
    """Random sizes and arrays; ``stored`` rounds an array to the type in which weights and caches lie."""

    def __init__(self, seed: int) -> None:
        self.rng, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.like = self.rng.choice([FLOATS, BITS])

    def size(self, most: int) -> int:
        return size(self.rng, most)

    def array(self, *shape: int) -> Floats:
        return self.numbers.standard_normal(shape).astype(np.float32)

    def stored(self, values: Floats) -> tuple[Floats, Floats]:
        """Return the array as the kernel reads it and its values in float64."""
        if self.like is FLOATS:
            return values, values.astype(np.float64)
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        return bits, widened(bits)


def widened(bits: Floats) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def close(found: Floats, expected: Floats) -> None:
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


def project(draw: Draw) -> None:
    R, K, N, threads = draw.size(19), draw.size(130), draw.size(130), draw.size(5)
    x, out, add = draw.array(R, K), draw.array(R, N), draw.rng.random() < 0.5
    weight, exact = draw.stored(draw.array(N, K))
    bias = draw.array(draw.rng.choice([0, N]))
    expected = x @ exact.T + (bias if len(bias) else 0.0) + (out if add else 0.0)
    for thread in range(threads):
        leaves.project(out, x, weight.ctypes.data, bias, add, draw.like, thread, threads)
    close(out, expected)


def add_low_rank(draw: Draw) -> None:
    R, K, N, threads, A = draw.size(19), draw.size(130), draw.size(130), draw.size(5), draw.size(4)
    x, out = draw.array(R, K), draw.array(R, N)
    adapters = np.array([draw.rng.randint(-1, A - 1) for _ in range(R)])
    ranks = [draw.rng.choice([0, 1, draw.size(9)]) for _ in range(A)]
    into, outof = [draw.array(n, K) for n in ranks], [draw.array(n, N) for n in ranks]
    updates = np.array(
        [(a.ctypes.data, b.ctypes.data, n) for a, b, n in zip(into, outof, ranks, strict=True)]
    )
    expected, alone = out.astype(np.float64), out.copy()
    for r, number in enumerate(adapters):
        if number >= 0:
            expected[r] += x[r].astype(np.float64) @ into[number].T @ outof[number]
    for thread in range(threads):
        leaves.add_low_rank(out, x, adapters, updates, thread, threads)
    close(out, expected)
    r = draw.rng.randrange(R)  # a row has the same bits beside any others
    row = alone[r : r + 1].copy()
    leaves.add_low_rank(row, x[r : r + 1].copy(), adapters[r : r + 1].copy(), updates, 0, 1)
    assert np.array_equal(row[0], out[r]) or threads > 1


def project_bfloat16(draw: Draw) -> None:
    if not has_bfloat16_products():
        pytest.skip("the processor has no products of bfloat16")
    R, K, N, threads = draw.size(19), draw.size(200), draw.size(130), draw.size(5)
    x, out, add = draw.array(R, K), draw.array(R, N), draw.rng.random() < 0.5
    weight = torch.from_numpy(draw.array(N, K)).bfloat16()
    bias = draw.array(draw.rng.choice([0, N]))
    near = torch.from_numpy(x).bfloat16().double()
    more = (bias if len(bias) else 0.0) + (out if add else 0.0)
    expected, alone = (near @ weight.double().T).numpy() + more, out.copy()
    for thread in range(threads):
        room = np.full(R * shortened_bytes(K) + 64, 255, np.uint8)
        leaves.project_bfloat16(out, x, weight.data_ptr(), bias, add, room, thread, threads)
    close(out, expected)
    r = draw.rng.randrange(R)  # a row has the same bits beside any others
    one, row = np.ascontiguousarray(x[r : r + 1]), alone[r : r + 1].copy()
    leaves.project_bfloat16(row, one, weight.data_ptr(), bias, add, room, 0, 1)
    assert np.array_equal(row[0], out[r])


def project_integers(draw: Draw) -> None:
    R, K, N, threads = draw.size(29), draw.size(600), draw.size(130), draw.size(5)
    x, out, add = draw.array(R, K), draw.array(R, N), draw.rng.random() < 0.5
    x *= 10.0 ** draw.numbers.integers(-3, 3, size=K)
    packed = quantize(torch.from_numpy(draw.array(N, K)))
    bias = draw.array(draw.rng.choice([0, N]))
    near, wide = narrowed(torch.from_numpy(x)).double(), dequantize(packed, N, K).double()
    more = (bias if len(bias) else 0.0) + (out if add else 0.0)
    expected = (near @ wide.T).numpy() + more
    for thread in range(threads):
        room = np.full(integers.integers_room(R, K), 255, np.uint8)
        integers.project_integers(out, x, packed.data_ptr(), bias, add, room, thread, threads)
    # a number between two steps of 16 bits may be rounded to either
    step = (near.abs().amax() / 32767 * wide.abs().amax()).item()
    np.testing.assert_array_less(
        np.abs(out - expected), 1e-5 * (near.abs() @ wide.abs().T).numpy() + step + 1e-4
    )


def rms_norm(draw: Draw) -> None:
    x = draw.array(draw.size(5), draw.size(130))
    out, gain = np.empty_like(x), draw.array(x.shape[1])
    leaves.rms_norm(out, x, gain, 1e-5)
    exact = x.astype(np.float64)
    close(out, exact / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-5) * gain)


def layer_norm(draw: Draw) -> None:
    x = draw.array(draw.size(5), draw.size(130))
    gain, offset = draw.array(x.shape[1]), draw.array(draw.rng.choice([0, x.shape[1]]))
    exact = x.astype(np.float64)
    expected = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5) * gain
    out = x if draw.rng.random() < 0.5 else np.empty_like(x)
    leaves.layer_norm(out, x, gain, offset, 1e-5)
    close(out, expected + offset if len(offset) else expected)


ACTIVATIONS: dict[int, Callable[[Floats], Floats]] = {
    leaves.RELU: lambda x: np.maximum(x, 0.0),
    leaves.GELU: lambda x: x * (1.0 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2.0))) / 2.0,
    leaves.GELU_TANH: lambda x: x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))) / 2.0,
    leaves.SILU: lambda x: x / (1.0 + np.exp(-x)),
}


def activate(draw: Draw) -> None:
    x = 3 * draw.array(draw.size(5), draw.size(130))
    first, last = sorted(draw.rng.choices(range(x.shape[1] + 1), k=2))
    kind, expected = draw.rng.choice(list(ACTIVATIONS)), x.astype(np.float64)
    expected[:, first:last] = ACTIVATIONS[kind](expected[:, first:last])
    leaves.activate(x, kind, first, last)
    close(x, expected)


def rotate(draw: Draw) -> None:
    half, heads, R = draw.size(40), draw.size(5), draw.size(4)
    x, angles = draw.array(R, heads * 2 * half), draw.array(half)
    r, head = draw.rng.randrange(R), draw.rng.randrange(heads)
    cos, sin, expected = np.cos(angles), np.sin(angles), x.astype(np.float64)
    turned = expected[r, head * 2 * half :][: 2 * half]
    a, b = turned[:half].copy(), turned[half:].copy()
    turned[:half], turned[half:] = a * cos - b * sin, b * cos + a * sin
    leaves.rotate(x, r, head * 2 * half, cos, sin)
    close(x, expected)


def store_row(draw: Draw) -> None:
    E, before, offset, R = draw.size(67), draw.size(20), draw.size(20), draw.size(4)
    x, r = draw.array(R, offset + E), draw.rng.randrange(R)
    cache, _ = draw.stored(draw.array(before + E + 3))
    untouched = cache.copy()
    leaves.store_row(draw.like, cache.ctypes.data, before, x, r, offset, E)
    row = cache[before : before + E]
    exact = row.astype(np.float64) if draw.like is FLOATS else widened(row)
    np.testing.assert_allclose(exact, x[r, offset:], rtol=0 if draw.like is FLOATS else 2**-8)
    untouched[before : before + E] = row
    np.testing.assert_array_equal(cache, untouched)


def softmax(draw: Draw) -> None:
    n = draw.size(131)
    weights = draw.array(-(-n // LANES) * LANES)
    exact = np.exp(0.3 * (weights[:n].astype(np.float64) - weights[:n].max()))
    leaves.softmax(weights, n, 0.3)
    close(weights[:n], exact / exact.sum())
    assert (weights[n:] < 1e-30).all()


def attend(draw: Draw) -> None:
    S, E, heads, R = draw.size(70), draw.size(67), draw.size(4), draw.size(4)
    start, stop = sorted(draw.rng.choices(range(S + 1), k=2))
    r, head = draw.rng.randrange(R), draw.rng.randrange(heads)
    (keys, k), (values, v) = draw.stored(draw.array(S, E)), draw.stored(draw.array(S, E))
    q, out = draw.array(R, heads * E), draw.array(R, heads * E)
    expected, columns = out.astype(np.float64), slice(head * E, (head + 1) * E)
    weights = np.exp(0.2 * (k[start:stop] @ q[r, columns]))
    expected[r, columns] = weights @ v[start:stop] / weights.sum() if stop > start else 0.0
    buffer = draw.array(-(-S // LANES) * LANES)
    leaves.attend(
        out, q, r, head, E, keys.ctypes.data, values.ctypes.data, start, stop, 0.2, buffer, draw.like
    )
    close(out, expected)


PATTERNS = ("band:4", "dilated:3:2", "global:2+band:1", "block:5", "random:3:7", "full", "band:2+random:2:1")


def attend_by_position(draw: Draw) -> None:
    pattern = Pattern.parse(draw.rng.choice(PATTERNS), causal=True)
    kinds = kinds_of_layers([pattern, Pattern.parse("band:1", causal=True)])[0]
    position, E, heads = draw.size(60) - 1, draw.size(67), draw.size(4)
    first, ring, places = 0, 0, position + 1
    if pattern.remembered is not None:
        first, ring = pattern.remembered[0], pattern.remembered[1] + draw.size(9)
        places = min(places, first + ring)
    (keys, k), (values, v) = draw.stored(draw.array(places, E)), draw.stored(draw.array(places, E))
    q, out, head = draw.array(2, heads * E), draw.array(2, heads * E), draw.rng.randrange(heads)
    stored = np.arange(places)  # the position of the key in each place
    if ring and position >= first + ring:
        for p in range(first + ring, position + 1):
            stored[first + (p - first) % ring] = p
    seen = pattern.allowed(torch.tensor(position), torch.from_numpy(stored), position + 1).numpy()
    expected, columns = out.astype(np.float64), slice(head * E, (head + 1) * E)
    weights = np.exp(0.2 * (k[seen] @ q[1, columns]))
    expected[1, columns] = weights @ v[seen] / weights.sum()
    buffer = draw.array(-(-places // LANES) * LANES)
    leaves.attend_by_position(
        out, q, 1, head, E, keys.ctypes.data, values.ctypes.data, position, first, ring, kinds, 0.2, buffer,
        draw.like,
    )  # fmt: skip
    close(out, expected)


CASES = (
    project, project_bfloat16, add_low_rank, project_integers, rms_norm, layer_norm, activate, rotate,
    store_row, softmax, attend, attend_by_position,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_decoding_layers_agree_with_numpy_at_random_sizes(case):
    for _ in range(ROUNDS):
        seed = random.SystemRandom().getrandbits(40)
        try:
            case(Draw(seed))
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


def test_shares_of_threads_cover_every_row_once():
    for n in range(1, 40):
        for threads in range(1, 7):
            bounds = [leaves.share(n, thread, threads) for thread in range(threads)]
            rows = [row for first, last in bounds for row in range(first, last)]
            assert rows == list(range(n))
            assert all(first % 4 == 0 or first == n for first, _ in bounds)


def test_every_layer_has_a_case():
    defined = {
        name
        for module in (leaves, integers)
        for name, value in vars(module).items()
        if hasattr(value, "py_func") and value.py_func.__module__ == module.__name__
    }
    layers = {name for name in defined if not name.startswith("_")} - {"share", "integers_room"}
    assert layers == {case.__name__ for case in CASES}
