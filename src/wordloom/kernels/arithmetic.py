"""Arithmetic of kernels in float32: exponentials, norms, rotation, the maximum, hashes and random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from wordloom.kernels.machine_code import exact, leaf, unordered
from wordloom.kernels.memory import bits_of, float_of, load, store

f4 = np.float32


@exact
def exp(x: Any) -> Any:
    """Return e**x to two units in the last place (Cephes' expf), without a branch, so that loops vectorise.

    x is clamped to [-80, 80], so that nothing overflows.  Sigmoids do not change beyond these bounds.
    """
    x = f4(-80.0) if x < f4(-80.0) else x
    x = f4(80.0) if x > f4(80.0) else x
    shifted = x * f4(1.44269504) + f4(12582912.0)  # adding 1.5 * 2^23 rounds: the integer is in the low bits
    n = shifted - f4(12582912.0)
    r = x - n * f4(0.693359375) - n * f4(-2.12194440e-4)
    p = f4(1.9875691500e-4)
    p = p * r + f4(1.3981999507e-3)
    p = p * r + f4(8.3334519073e-3)
    p = p * r + f4(4.1665795894e-2)
    p = p * r + f4(1.6666665459e-1)
    p = p * r + f4(5.0000001201e-1)
    p = p * r * r + r + f4(1.0)
    return p * float_of((bits_of(shifted) << np.uint32(23)) + np.uint32(0x3F800000))  # p * 2^n


@exact
def sigmoid(x: Any) -> Any:
    return f4(1.0) / (f4(1.0) + exp(-x))


@exact
def tanh(x: Any) -> Any:
    """Return tanh x as 2 sigmoid(2 x) - 1."""
    return f4(2.0) / (f4(1.0) + exp(f4(-2.0) * x)) - f4(1.0)


@exact
def silu(x: Any) -> Any:
    """Return x sigmoid(x)."""
    return x / (f4(1.0) + exp(-x))


@unordered
def highest(values: Any, first: int, n: int) -> Any:
    """Return the largest of n elements from ``first`` on; any number where one of them is NaN."""
    largest = load(values, first)
    for i in range(first, first + n):
        value = load(values, i)
        largest = value if value > largest else largest
    return largest


@leaf
def rms_scale(x: Any, first: int, D: int, eps: Any) -> Any:
    """Return 1 / sqrt(mean(x^2) + eps) of D elements (Zhang and Sennrich 2019, arXiv:1910.07467)."""
    total = f4(0.0)
    for i in range(D):
        v = load(x, first + i)
        total += v * v
    return f4(1.0) / np.sqrt(total / f4(D) + eps)


@exact
def rotate(x: Any, first: int, half: int, cos: Any, sin: Any, angle: int, out: Any) -> None:
    """Rotate elements i and i + ``half`` of one head by an angle (Su et al. 2021, arXiv:2104.09864).

    The head begins at ``first`` in x and in ``out``, which may be x; its angles begin at ``angle``.
    """
    for i in range(half):
        a, b = load(x, first + i), load(x, first + half + i)
        c, s = cos[angle + i], sin[angle + i]
        store(out, first + i, a * c - b * s)
        store(out, first + half + i, b * c + a * s)


@exact
def hashed(i: Any, low: Any, high: Any) -> Any:
    """Return 32 bits, a hash of i and the two halves of a seed, all uint32.

    It multiplies and shifts as Wellons's "lowbias32" (2018, "Prospecting for hash functions").  The second
    half of the seed enters between two rounds, so that the hashes of two seeds do not share a sequence.
    """
    h = i ^ low
    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D)) ^ high
    h = np.uint32((h ^ (h >> np.uint32(15))) * np.uint32(0x846CA68B))
    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D))
    return h ^ (h >> np.uint32(15))


@exact
def random(state: Any) -> Any:
    """Return 64 random bits and advance ``state`` [1], by SplitMix64 (Steele, Lea and Flood 2014)."""
    z = state[0] + np.uint64(0x9E3779B97F4A7C15)
    state[0] = z
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@exact
def random_below(bits: Any, n: int) -> int:
    """Return a number of 0 .. n - 1 from the upper half of 64 random bits."""
    number: Any = ((bits >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32)
    return np.int64(number)  # type: ignore[return-value]
