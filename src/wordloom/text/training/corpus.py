"""The training text of a tokenizer, read once as a stream and sampled to a limited size."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from wordloom.errors import TokenizerError
from wordloom.text.arguments import check_texts
from wordloom.text.encoding import cut_at_spaces

Progress = Callable[[str, int, int | None], None]

_STRETCH = 1 << 16  # bytes: the unit of sampling, and about the longest text passed to a trainer


class Corpus:
    """A uniform sample of at most ``sample_bytes`` (UTF-8) of documents that are read once.

    The unit of sampling is a stretch of about 64 KB: part of a long document, or several short ones.  Each
    stretch draws a random number, and those with the smallest numbers are kept.  The choice therefore does
    not depend on the place in the corpus.  A corpus within the limit is kept completely.

    Attributes:
        n_texts, bytes_seen: the documents and bytes read.
        bytes_used: the bytes kept.
        characters: the count of each character in all documents, if ``count`` is true.
    """

    def __init__(
        self, texts: Iterable[str], *, sample_bytes: int, seed: int, count: bool, progress: Progress | None
    ) -> None:
        texts = check_texts(texts)
        if sample_bytes < _STRETCH:
            raise TokenizerError(f"sample_bytes={sample_bytes} is too small: give at least {_STRETCH}")
        self.n_texts = self.bytes_seen = self.bytes_used = 0
        self.characters: Counter[str] = Counter()
        self._progress = progress
        self._kept: list[tuple[float, int, list[bytes]]] = []  # a heap: the largest draw first
        self._sample_bytes = sample_bytes
        self._random = random.Random(seed)
        stretch: list[bytes] = []
        size = 0
        for text in texts:
            self.n_texts += 1
            for piece in cut_at_spaces(text, _STRETCH):
                if count:
                    self.characters.update(piece)
                stretch.append(_utf8(piece))
                size += len(stretch[-1])
                if size >= _STRETCH:
                    self._keep(stretch, size)
                    stretch, size = [], 0
        self._keep(stretch, size)
        self._kept.sort(key=lambda kept: kept[1])
        if not self.bytes_seen:
            raise TokenizerError(
                f"the corpus is empty ({self.n_texts} texts, none with a character): give text to train on"
            )

    def _keep(self, stretch: list[bytes], size: int) -> None:
        self.bytes_seen += size
        self.bytes_used += size
        heapq.heappush(self._kept, (-self._random.random(), self.bytes_seen, stretch))
        while self.bytes_used > self._sample_bytes and len(self._kept) > 1:
            self.bytes_used -= sum(map(len, heapq.heappop(self._kept)[2]))
        if self._progress:
            self._progress("reading", self.bytes_seen, None)

    def texts(self) -> Iterator[str]:
        """Yield the kept text, in the order of the corpus."""
        done = 0
        for _, _, stretch in self._kept:
            yield from (piece.decode() for piece in stretch)
            done += sum(map(len, stretch))
            if self._progress:
                self._progress("counting", done, self.bytes_used)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the corpus has a lone surrogate (U+{ord(text[error.start]):04X}), which no encoding can carry: "
            "read its files as UTF-8"
        ) from None
