"""The order of samples, by arithmetic: hashes keyed by counters, and permutations that are never stored.

The hash is SplitMix64's finalizer (Steele, Lea and Flood 2014).  The permutation is a Feistel network over
the two digits of an index in mixed radix, with walks along cycles that leave the range (Black and Rogaway
2002, "Ciphers with arbitrary finite domains"): a bijection by construction, for every count and key.
"""

from __future__ import annotations

import hashlib
import json
from enum import IntEnum
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.data.shards.storage import TokenShards
from wordloom.errors import DataError

Numbers = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Far apart, so that no two of the eight rounds hash the same number (neighbouring keys would, under xor).
_ROUND_KEYS = np.arange(1, 9, dtype=np.uint64).reshape(4, 2) * np.uint64(0xD1342543DE82EF95)


class Purpose(IntEnum):
    """The purposes of the random numbers drawn from one seed; each purpose has its own sequence.

    The numbers decide the sequences, so they never change, and a new purpose takes a new number.
    """

    PERMUTATION = 1  # order of the samples in an epoch
    PHASE = 2  # offset of the first window in an epoch
    START = 3  # start of a window drawn with replacement
    GROUPS = 4  # order within a bucket of samples of similar length
    MASK = 5  # masked tokens of a row
    SHORT_ROW = 6  # rows of sentence pairs that are shorter than the limit
    SENTENCE_PAIR = 7  # second sentence of a pair
    RESTART = 8  # windows of a stream that begin with an empty state
    WORD_JOB = 11  # windows, subsampling and noise words of one job of word2vec
    WORD_VECTORS = 12  # initial word vectors
    WORD_BATCH = 13  # noise words of one batch of word2vec in PyTorch


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of each element (at least one-dimensional; arithmetic modulo 2**64)."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def keyed(seed: int, purpose: Purpose, counters: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of (``seed``, ``purpose``, counter) for each of ``counters``."""
    root = mix(mix(np.array([seed], np.uint64)) + np.uint64(purpose))
    return mix(root + counters)


def permute(index: NDArray[np.uint64], count: int, key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the place of each ``index`` below ``count`` in the permutation of ``count`` given by its key.

    ``index`` and ``key`` have one shape; equal keys mean the same permutation.
    """
    rows = isqrt(count - 1) + 1
    columns = -(-count // rows)
    result = _network(index, rows, columns, key)
    # rows * columns exceeds count by less than rows, so hardly any index has to walk on.
    while (outside := np.flatnonzero(result >= count)).size:
        result[outside] = _network(result[outside], rows, columns, key[outside])
    return result


def _network(x: NDArray[np.uint64], rows: int, columns: int, key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    left, right = np.divmod(x, np.uint64(columns))
    for round_key in _ROUND_KEYS:
        left = (left + mix((key + round_key[0]) ^ right) % np.uint64(rows)) % np.uint64(rows)
        right = (right + mix((key + round_key[1]) ^ left) % np.uint64(columns)) % np.uint64(columns)
    return left * np.uint64(columns) + right


def check_seed(seed: int) -> None:
    """Raise DataError for a seed out of range."""
    if not 0 <= seed < 1 << 63:
        raise DataError(f"seed={seed} is not allowed; 0 <= seed < 2**63")


def sample_numbers(start: int, count: int) -> Numbers:
    """Return the numbers ``start`` to ``start + count`` (excluded); raises DataError for an empty range."""
    if start < 0 or count < 1:
        raise DataError(f"batch({start}, {count}) is not allowed; start >= 0 and count >= 1")
    return np.arange(start, start + count, dtype=np.uint64)


def in_epochs(samples: Numbers, n: int, seed: int, *, permuted: bool) -> tuple[Numbers, Numbers]:
    """Return the epoch of each sample, and its index among the ``n`` samples of that epoch."""
    epoch, index = np.divmod(samples, np.uint64(n))
    if permuted:
        index = permute(index, n, keyed(seed, Purpose.PERMUTATION, epoch))
    return epoch, index


def settings_fingerprint(shards: str, batches: object, *names: str, **further: object) -> str:
    """Return the SHA-256 of the fingerprint of shards, the settings ``names`` of ``batches``, and others."""
    settings = {"shards": shards, **{name: getattr(batches, name) for name in names}, **further}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def row_samples(batches: Any, start: int, count: int) -> NDArray[np.int64]:
    """Return a number for each row of ``batches.batch(start, count)``, which it has in any batch.

    It is the sample's, unless ``batches`` has a method of this name because samples have several rows.
    """
    own = getattr(batches, "row_samples", None)
    numbers: NDArray[np.int64] = np.arange(start, start + count) if own is None else own(start, count)
    return numbers


def document_names(shards: TokenShards, begins: NDArray[np.int64], lasts: NDArray[np.int64]) -> list[str]:
    """Return ``file#number`` of every document between the positions ``begins`` [B] and ``lasts`` [B]."""
    firsts, stops = (shards.ends.searchsorted(at, "right") for at in (begins, lasts))
    touched = {n for a, b in zip(firsts, stops, strict=True) for n in range(int(a), int(b) + 1)}
    return [shards.document_name(n) for n in sorted(touched) if n < len(shards.ends)]
