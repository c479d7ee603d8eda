"""The beginnings of texts that were read before: keys and values, or states, in a bounded number of bytes."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from wordloom.generate.exact_rows import Saved


@dataclass(eq=False)
class _Entry:
    ids: np.ndarray  # int64
    saved: Saved
    keys: list[bytes]


class PrefixCache:
    """Texts and what the model remembers of them; the least recently used ones leave first.

    ``most_bytes`` bounds the tensors of all texts.  One that truncates can be cut at multiples of ``every``.
    """

    def __init__(self, most_bytes: int, every: int) -> None:
        self.most_bytes, self.every = most_bytes, every
        self.n_bytes = 0
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._lengths = Counter[int]()  # how many texts have each length
        self._places: dict[bytes, tuple[_Entry, int]] = {}  # by the hash of a beginning: where it is stored

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, ids: Sequence[int], most: int) -> tuple[Saved, int] | None:
        """Return what holds the longest known beginning of ``ids``, and its length, at most ``most``."""
        best: tuple[_Entry, int] | None = None
        array = np.asarray(ids, dtype=np.int64)
        lengths = sorted({*self._cuts(most), *(n for n in self._lengths if n <= most)})
        for length, key in _keys(array, lengths):
            found = self._places.get(key)
            if found is not None and np.array_equal(found[0].ids[:length], array[:length]):
                best = found
        if best is None:
            return None
        entry, length = best
        self._entries.move_to_end(id(entry))
        return entry.saved, length

    def add(self, ids: Sequence[int], saved: Saved) -> None:
        """Remember ``saved``, which holds the tokens ``ids``; shorter texts within it are forgotten."""
        if saved.n_bytes > self.most_bytes or not saved.length:
            return
        array = np.array(ids[: saved.length], dtype=np.int64)
        lengths = [*self._cuts(saved.length - 1), saved.length] if saved.truncates else [saved.length]
        hashed = dict(_keys(array, lengths))
        whole = self._places.get(hashed[saved.length])
        if whole is not None and len(whole[0].ids) >= saved.length and whole[1] == saved.length:
            self._entries.move_to_end(id(whole[0]))  # known already
            return
        entry = _Entry(array, saved, list(hashed.values()))
        for length, key in hashed.items():
            old = self._places.get(key)
            if old is not None and len(old[0].ids) == length and old[0] is not entry:
                self._remove(old[0])
            self._places[key] = (entry, length)
        self._entries[id(entry)] = entry
        self._lengths[len(array)] += 1
        self.n_bytes += saved.n_bytes
        while self.n_bytes > self.most_bytes:
            self._remove(next(iter(self._entries.values())))

    def clear(self) -> None:
        """Forget all texts."""
        self._entries.clear()
        self._places.clear()
        self._lengths.clear()
        self.n_bytes = 0

    def _cuts(self, length: int) -> range:
        return range(self.every, length + 1, self.every)

    def _remove(self, entry: _Entry) -> None:
        del self._entries[id(entry)]
        self._lengths[len(entry.ids)] -= 1
        if not self._lengths[len(entry.ids)]:
            del self._lengths[len(entry.ids)]
        self.n_bytes -= entry.saved.n_bytes
        for key in entry.keys:
            if self._places.get(key, (None, 0))[0] is entry:
                del self._places[key]


def _keys(ids: np.ndarray, lengths: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yield each length, in rising order, with the hash of so many first ids."""
    digest, before = hashlib.blake2b(digest_size=16), 0
    for length in lengths:
        digest.update(ids[before:length].tobytes())
        before = length
        yield length, digest.digest()
