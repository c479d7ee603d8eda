"""Parts that all batches share: sample numbers, the order of an epoch, fingerprints, names of documents."""

from __future__ import annotations

import hashlib
import json

import numpy as np
from numpy.typing import NDArray

from wordloom.data.batches.order import Purpose, keyed, permute
from wordloom.data.shards.storage import TokenShards
from wordloom.errors import DataError

Numbers = NDArray[np.uint64]


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


def document_names(shards: TokenShards, begins: NDArray[np.int64], lasts: NDArray[np.int64]) -> list[str]:
    """Return ``file#number`` of every document between the positions ``begins`` [B] and ``lasts`` [B]."""
    firsts, stops = (np.searchsorted(shards.ends, at, side="right") for at in (begins, lasts))
    touched = {n for a, b in zip(firsts, stops, strict=True) for n in range(int(a), int(b) + 1)}
    return [shards.document_name(n) for n in sorted(touched) if n < len(shards.ends)]
