"""Two baselines for a language model's bits per byte, measured on the same bytes.

- :func:`lzma_bits_per_byte`: the size of the held-out bytes after the training bytes, compressed with the
  strongest compressor of the standard library.
- :class:`KneserNey`: an interpolated n-gram model over bytes with modified Kneser-Ney smoothing, the best of
  its kind (Chen and Goodman 1998, "An Empirical Study of Smoothing Techniques for Language Modeling", Harvard
  TR-10-98, section 3).

Both read a corpus as one byte string.  :func:`join_documents` makes it: UTF-8, with one zero byte, which
English text never holds, after each document.  The zero bytes are scored like any other byte, as a language
model's end-of-text tokens are, and the bits are divided by all bytes.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import DataError

_BYTES = 256
_MAX_ORDER = 8  # an n-gram of bytes is held in one 64-bit integer
_LZMA_MAX_DICTIONARY = 1536 * 2**20

Codes = NDArray[np.uint64]
Floats = NDArray[np.float64]


def join_documents(texts: Iterable[str]) -> bytes:
    """Return the UTF-8 bytes of the documents, with one zero byte after each document."""
    return b"".join(text.encode() + b"\0" for text in texts)


def lzma_bits_per_byte(train: bytes, heldout: bytes) -> float:
    """Return bits per held-out byte: 8 (|lzma(train + heldout)| - |lzma(train)|) / |heldout|.

    The preset is ``9 | EXTREME`` with a dictionary that spans all bytes, and the stream is raw, so that no
    header, block size or checksum counts.  It takes two seconds for 2 MB, and 12 bytes of memory per byte.

    Raises DataError if ``heldout`` is empty, or if both together exceed LZMA's largest dictionary, 1.5 GiB.
    """
    _require_heldout(heldout)
    size = len(train) + len(heldout)
    if size > _LZMA_MAX_DICTIONARY:
        raise DataError(
            f"training and held-out text have {size:,} bytes, and lzma looks back at most "
            f"{_LZMA_MAX_DICTIONARY:,}; give less training text"
        )
    options = {
        "id": lzma.FILTER_LZMA1,
        "preset": 9 | lzma.PRESET_EXTREME,
        "dict_size": max(size, 4096),  # 4096 is the smallest size that lzma takes
    }

    def compressed(data: bytes) -> int:
        return len(lzma.compress(data, format=lzma.FORMAT_RAW, filters=[options]))

    return 8 * (compressed(train + heldout) - compressed(train)) / len(heldout)


@dataclass(frozen=True)
class _Level:
    """The n-grams of one order k.  All codes are sorted.

    At the highest order a count is the number of occurrences of a k-gram. Below it, a count is the number of
    different bytes that stand before the k-gram (continuation count).
    """

    grams: Codes  # [k-grams], the bytes of each as one big-endian integer
    discounted: Floats  # [k-grams], (count - D(count)) / the context's total
    contexts: Codes  # [contexts], the first k - 1 bytes of those k-grams
    backoff: Floats  # [contexts], the share of the next lower order: discounts taken / total


class KneserNey:
    """Interpolated modified Kneser-Ney over bytes.

    A model of order 5 predicts a byte from the four before it; the order is 1 to 8.  With c_k the counts of
    order k and h' the context h without its first byte::

        p_k(w | h) = max(c_k(h w) - D_k(c_k(h w)), 0) / c_k(h .) + gamma_k(h) p_{k-1}(w | h')
        gamma_k(h) = sum over i = 1, 2, 3+ of D_k(i) N_i(h .) / c_k(h .)

    and p_0 uniform over the 256 byte values, so that every byte has a probability above zero.  A context that
    does not occur at order k takes p_{k-1} unchanged.  The discounts D1, D2 and D3+ of each order come from
    its counts of counts (Chen and Goodman, equation 26). If a count of counts is zero or a discount falls
    outside 0 < D_i <= i, they are 0.5, 1 and 1.5, as with KenLM's ``--discount_fallback``.

    Training text and held-out text are one stream each, without padding. The first n - 1 held-out bytes are
    predicted from the shorter contexts.
    """

    def __init__(self, order: int = 5) -> None:
        if not 1 <= order <= _MAX_ORDER:
            raise DataError(f"an n-gram order of {order} is not allowed; allowed: 1 to {_MAX_ORDER}")
        self.order = order
        self._levels: list[_Level] = []

    def fit(self, train: bytes) -> KneserNey:
        """Count the n-grams of ``train``, replacing earlier counts, and return the model.

        For 2 MB this takes 0.2 s at order 5 and 1.2 s at order 8, and up to 80 bytes of memory per byte.
        Raises DataError if ``train`` is shorter than the order.
        """
        if len(train) < self.order:
            raise DataError(
                f"the training text has {len(train)} bytes; an n-gram model of order {self.order} "
                f"takes at least {self.order}"
            )
        symbols = np.frombuffer(train, dtype=np.uint8).astype(np.uint64)
        codes = symbols
        for k in range(2, self.order + 1):
            codes = (codes[:-1] << np.uint64(8)) | symbols[k - 1 :]
        grams, counts = np.unique(codes, return_counts=True)
        levels = [_level(grams, counts)]
        for k in range(self.order - 1, 0, -1):
            # Every type of k + 1 bytes adds one byte before its last k.  The first k + 1 bytes of the
            # stream may have no byte before them, and are then not a type of `grams`.
            types = np.union1d(grams, np.uint64(int.from_bytes(train[: k + 1], "big")))
            grams, counts = np.unique(_last(types, k), return_counts=True)
            levels.append(_level(grams, counts))
        self._levels = levels[::-1]
        return self

    def bits_per_byte(self, heldout: bytes) -> float:
        """Return the mean of -log2 p(byte | the order - 1 bytes before it) over ``heldout``."""
        return float(self.bits(heldout).mean())

    def bits(self, heldout: bytes) -> Floats:
        """Return -log2 p(byte | the order - 1 bytes before it) of every byte of ``heldout``."""
        _require_heldout(heldout)
        symbols = np.frombuffer(heldout, dtype=np.uint8).astype(np.uint64)
        history = np.zeros_like(symbols)  # the bytes before each position, the nearest lowest
        for distance in range(1, min(self.order, len(symbols))):
            history[distance:] |= symbols[:-distance] << np.uint64(8 * (distance - 1))
        known = np.minimum(np.arange(len(symbols)), self.order - 1)
        return -np.log2(self._probabilities(history, known, symbols))

    def distribution(self, context: bytes) -> Floats:
        """Return p(byte | context) of all 256 byte values, from the last order - 1 bytes of ``context``."""
        known = min(len(context), self.order - 1)
        history = int.from_bytes(context[len(context) - known :], "big")
        symbols = np.arange(_BYTES, dtype=np.uint64)
        return self._probabilities(np.full_like(symbols, history), np.full(_BYTES, known), symbols)

    def _probabilities(self, history: Codes, known: NDArray[np.int64], symbols: Codes) -> Floats:
        """Return p of each symbol after the last ``known`` bytes of its history; all arguments are [N]."""
        if not self._levels:
            raise DataError("the n-gram model has seen no text; call fit(train) first")
        p = np.full(len(symbols), 1 / _BYTES)
        for k, level in enumerate(self._levels, start=1):
            context = _last(history, k - 1)
            gram = (context << np.uint64(8)) | symbols
            backoff = _look_up(level.contexts, level.backoff, context, absent=1.0)
            discounted = _look_up(level.grams, level.discounted, gram, absent=0.0)
            p = np.where(known >= k - 1, discounted + backoff * p, p)
        return p


def _level(grams: Codes, counts: NDArray[np.int64]) -> _Level:
    discounts = _discounts(counts)[np.minimum(counts, 3)]
    contexts, first = np.unique(grams >> np.uint64(8), return_index=True)
    totals = np.add.reduceat(counts, first)  # the k-grams of one context lie side by side
    lengths = np.diff(np.append(first, len(grams)))
    return _Level(
        grams=grams,
        discounted=(counts - discounts) / np.repeat(totals, lengths),
        contexts=contexts,
        backoff=np.add.reduceat(discounts, first) / totals,
    )


def _discounts(counts: NDArray[np.int64]) -> Floats:
    """Return [0, D1, D2, D3+] from the number of n-grams with the counts 1, 2, 3 and 4."""
    n1, n2, n3, n4 = (int((counts == i).sum()) for i in (1, 2, 3, 4))
    if n1 and n2 and n3 and n4:
        y = n1 / (n1 + 2 * n2)
        d = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        if all(0 < d[i] <= i + 1 for i in range(3)):
            return np.array([0.0, *d])
    return np.array([0.0, 0.5, 1.0, 1.5])


def _last(codes: Codes, k: int) -> Codes:
    """Return the codes of the last ``k`` bytes of each, 0 <= k < 8."""
    return codes & np.uint64((1 << (8 * k)) - 1)


def _look_up(keys: Codes, values: Floats, wanted: Codes, *, absent: float) -> Floats:
    """Return ``values`` where ``wanted`` is among the sorted ``keys``, else ``absent``."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], absent)


def _require_heldout(heldout: bytes) -> None:
    if not heldout:
        raise DataError("the held-out text is empty; bits per byte need at least one byte")
