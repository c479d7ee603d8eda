"""Compiled loops over the n-grams of many words; :class:`Subwords` does the same for one word in Python.

Each kernel is compiled for one set of types.  Vectors may be read-only and unaligned, as in a mapped file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from wordloom.kernels.machine_code import compiled


def _array(dtype: Any, dims: int) -> Any:
    return types.Array(dtype, dims, "C", readonly=True, aligned=False)


_bytes, _numbers = _array(types.uint8, 1), _array(types.int64, 1)


def _kernel(*arguments: Any) -> Any:
    return compiled(types.void(*arguments), nogil=True, error_model="numpy")


@_kernel(_bytes, _numbers, types.uint32[::1])
def hash_words(raw: Any, places: Any, hashes: Any) -> None:
    """Compute the hashes [V] of the words in ``raw``, which start at ``places`` [V + 1]."""
    for word in range(len(places) - 1):
        value = np.uint32(2166136261)
        for place in range(places[word], places[word + 1]):
            value = np.uint32((value ^ np.uint32(np.int8(raw[place]))) * np.uint32(16777619))
        hashes[word] = value


@_kernel(_bytes, _numbers, types.int64, types.int64, types.int64, _numbers, types.int32[::1])
def hash_ngrams(raw: Any, places: Any, min_n: int, max_n: int, buckets: int, starts: Any, ids: Any) -> None:
    """Compute the buckets ids [N] of the n-grams of the bracketed words in ``raw``, see Subwords.table."""
    for word in range(len(places) - 1):
        begin, end = places[word], places[word + 1]
        out = starts[word]
        for first in range(begin, end):
            if raw[first] & 0xC0 == 0x80:  # not the first byte of a character
                continue
            value = np.uint32(2166136261)
            place, n = first, 1
            while place < end and n <= max_n:
                value = np.uint32((value ^ np.uint32(np.int8(raw[place]))) * np.uint32(16777619))
                place += 1
                while place < end and raw[place] & 0xC0 == 0x80:
                    value = np.uint32((value ^ np.uint32(np.int8(raw[place]))) * np.uint32(16777619))
                    place += 1
                if n >= min_n and not (n == 1 and (first == begin or place == end)):
                    ids[out] = np.int64(value) % buckets
                    out += 1
                n += 1


@_kernel(
    _array(types.float32, 2),
    _array(types.float32, 2),
    _numbers,
    _array(types.int32, 1),
    types.float32[:, ::1],
)
def average(own: Any, ngrams: Any, starts: Any, ids: Any, out: Any) -> None:
    """Compute out [n, D]: the mean of each word's row in own [n, D] and of its rows of ``ngrams``."""
    n, D = out.shape
    for word in range(n):
        for d in range(D):
            out[word, d] = own[word, d]
        for place in range(starts[word], starts[word + 1]):
            row = ids[place]
            for d in range(D):
                out[word, d] += ngrams[row, d]
        count = np.float32(1 + starts[word + 1] - starts[word])
        for d in range(D):
            out[word, d] /= count
