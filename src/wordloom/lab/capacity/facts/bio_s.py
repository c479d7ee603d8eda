"""bioS, facts in English prose: the biographies as tokens of a byte-level BPE of 1,024 tokens.

The biographies of all exposures follow each other, separated by END.  A row of training is a window of 512
predictions, so it holds several people.  A row of measuring is one biography.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from wordloom.data.batches.causal import IGNORE, CausalBatch
from wordloom.lab.capacity.bits import BIOGRAPHIES, KnowledgeSpace
from wordloom.lab.capacity.facts import NAME, REST, VALUE, Rows
from wordloom.lab.capacity.facts import biographies as texts
from wordloom.lab.capacity.facts.biographies import PIECES, Biographies
from wordloom.text import Tokenizer

WINDOW = 512
VOCAB_SIZE = 1_024
_END = "<|endoftext|>"


class BioS:
    """The biographies of ``people`` people; raises as :class:`Biographies`."""

    window = WINDOW
    vocab_size = VOCAB_SIZE
    space: KnowledgeSpace = BIOGRAPHIES

    def __init__(self, *, people: int, seed: int = 0) -> None:
        self.people = people
        self.source = Biographies(people, seed=seed)
        self.vocabulary = Vocabulary()

    @cached_property
    def used_tokens(self) -> int:
        """The number of tokens that occur in the biographies."""
        names, pronouns, values = self.source.fact_pieces(np.arange(self.people))
        templates = np.arange(PIECES.before, len(PIECES.texts))
        used = np.unique(np.concatenate([names.ravel(), pronouns, values.ravel(), templates]))
        return 1 + len(np.unique(self.vocabulary.tokens(used)))  # and END

    def rows(self, exposures: int) -> int:
        """Return the number of windows that show each person ``exposures`` times.

        The last window ends a little behind the last of these exposures.
        """
        return -(-self.training().start_of(exposures) // WINDOW)

    def training(self) -> Windows:
        """Return the endless sequence of windows of training."""
        return Windows(self)

    def measuring(self, orders: int, rows: int) -> Iterator[Rows]:
        """Yield one biography of each person in each of ``orders`` exposures that training does not use."""
        for number in range(orders):
            exposure = self.source.exposure(number, measuring=True)
            for first in range(0, self.people, rows):
                yield self._rows(exposure.pieces(first, min(first + rows, self.people)))

    def _rows(self, pieces: NDArray[np.int64]) -> Rows:
        """Return the biographies with ``pieces`` [B, 6, 8] as rows."""
        parts = np.full(pieces.shape[1:], REST, dtype=np.uint8)
        parts[:, texts.VALUE] = VALUE
        parts[0, texts.WHO] = NAME
        parts[1, texts.WHO] = VALUE  # the first pronoun
        tokens, lengths = self.vocabulary.rows(pieces)
        each = torch.from_numpy(lengths.sum(axis=1))  # [B], the tokens of each row
        real = torch.arange(int(each.max())) < each[:, None]
        rows = torch.full(real.shape, IGNORE)
        rows[real] = torch.from_numpy(tokens)
        labels = torch.full(real.shape, REST, dtype=torch.uint8)
        columns = np.concatenate([[REST], parts.ravel()]).astype(np.uint8)  # END and the pieces
        labels[real] = torch.from_numpy(np.tile(columns, len(pieces)).repeat(lengths.ravel()))
        inputs = rows.masked_fill(~real, self.vocabulary.end)[:, :-1]
        return Rows(inputs, rows[:, 1:], labels[:, 1:])


class Vocabulary:
    """The tokens of all pieces."""

    def __init__(self) -> None:
        self.tokenizer = _tokenizer()
        self.end = self.tokenizer.encode_ids(_END, specials="interpret")[0]
        encoded = [*self.tokenizer.encode_batch(PIECES.texts), np.array([self.end])]
        self.lengths = np.array([len(tokens) for tokens in encoded])  # of each piece, and of END
        self._starts = np.cumsum(self.lengths) - self.lengths
        self._tokens = np.concatenate(encoded).astype(np.int64)

    def rows(self, pieces: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the tokens of biographies with ``pieces`` [B, 6, 8], each behind an END.

        The second array [B, 1 + 6 * 8] has the number of tokens of END, which is 1, and of each piece.
        """
        ends = np.full((len(pieces), 1), len(self.lengths) - 1)
        pieces = np.concatenate([ends, pieces.reshape(len(pieces), -1)], axis=1)
        return self.tokens(pieces), self.lengths[pieces]

    def tokens(self, pieces: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens of ``pieces`` [..] behind each other."""
        lengths, starts = self.lengths[pieces.ravel()], self._starts[pieces.ravel()]
        before = np.cumsum(lengths) - lengths
        return self._tokens[np.arange(lengths.sum()) + (starts - before).repeat(lengths)]


@lru_cache(maxsize=1)
def _tokenizer() -> Tokenizer:
    """Train the tokenizer on biographies of other people; it is the same for all numbers of people."""
    lives = Biographies(2_000, seed=2**32).exposure(0).biographies()
    return Tokenizer.train(
        (life.text for life in lives), kind="bpe", vocab_size=VOCAB_SIZE, special_tokens=(_END,)
    )


class Windows:
    """An endless sequence of windows over the biographies of all exposures, addressed by index.

    The windows are a function of (seed, index).  Attention may cross from one person to the next, as in the
    paper.
    """

    def __init__(self, facts: BioS) -> None:
        self.facts = facts
        self._starts = [0]  # the first token of each exposure
        self._exposure = lru_cache(maxsize=1)(self._read)
        self.samples_per_epoch = max(1, self.start_of(1) // WINDOW)

    def batch(self, start: int, count: int) -> CausalBatch:
        """Return windows ``start`` to ``start + count`` as tokens and targets [count, 512]."""
        tokens = torch.from_numpy(self._slice(start * WINDOW, (start + count) * WINDOW + 1))
        return CausalBatch(tokens[:-1].view(count, WINDOW), tokens[1:].view(count, WINDOW))

    def document_ids(self, start: int, count: int) -> list[str]:
        """Return the names of windows for error messages."""
        return [f"window {i}" for i in range(start, start + count)]

    def start_of(self, exposure: int) -> int:
        """Return the number of tokens before an exposure."""
        lengths = self.facts.vocabulary.lengths
        while len(self._starts) <= exposure:
            counts = self.facts.source.exposure(len(self._starts) - 1).templates().ravel()
            templates = np.arange(counts.size)
            each = lengths[PIECES.before + templates] + lengths[PIECES.after + templates]
            self._starts.append(self._starts[-1] + self._tokens_of_facts + int(counts @ each))
        return self._starts[exposure]

    @cached_property
    def _tokens_of_facts(self) -> int:
        """The tokens of an exposure beside those of templates, which are the same in all exposures."""
        facts, lengths = self.facts, self.facts.vocabulary.lengths
        names, pronouns, values = facts.source.fact_pieces(np.arange(facts.people))
        subjects = lengths[names].sum() + (texts.SENTENCES - 1) * lengths[pronouns].sum()
        return int(subjects + lengths[values].sum()) + facts.people  # an END for each person

    def _slice(self, first: int, last: int) -> NDArray[np.int64]:
        """Return tokens ``first`` to ``last``, exclusive, of all exposures."""
        parts = []
        while first < last:
            while self._starts[-1] <= first:
                self.start_of(len(self._starts))
            exposure = bisect_right(self._starts, first) - 1
            start = self._starts[exposure]
            parts.append(self._exposure(exposure)[first - start : last - start])
            first += len(parts[-1])
        return np.concatenate(parts).astype(np.int64)

    def _read(self, number: int) -> NDArray[np.int16]:
        """Return the tokens of an exposure; each biography follows an END."""
        facts = self.facts
        exposure, parts = facts.source.exposure(number), []
        for first in range(0, facts.people, texts.BLOCK):
            pieces = exposure.pieces(first, min(first + texts.BLOCK, facts.people))
            parts.append(facts.vocabulary.rows(pieces)[0].astype(np.int16))
        return np.concatenate(parts)
