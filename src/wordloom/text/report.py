"""Compare tokenizers on the same text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wordloom.errors import DataError, TokenizerError
from wordloom.text.encoding import cut_at_spaces

if TYPE_CHECKING:
    from wordloom.text.tokenizer import Tokenizer

_BATCH = 1 << 22  # characters encoded at a time


class TokenizerReport(NamedTuple):
    """Statistics of one tokenizer on one text.

    ``bytes_per_token`` and ``tokens_per_word`` count UTF-8 bytes and words between white space.
    ``unknown_rate`` is the share of tokens that are the unknown token.  ``unused_share`` is the share
    of the vocabulary, without special tokens, that does not occur in the text.  ``round_trip_failures``
    counts the lines, out of ``lines``, that decoding does not reproduce.
    """

    name: str
    kind: str
    lossless: bool
    vocab_size: int
    tokens: int
    bytes_per_token: float
    tokens_per_word: float
    unknown_rate: float
    unused_share: float
    lines: int
    round_trip_failures: int
    first_failure: str | None  # the first line that decoding does not reproduce


def compare_tokenizers(
    tokenizers: Mapping[str, Tokenizer], documents: Iterable[str]
) -> list[TokenizerReport]:
    """Measure each tokenizer on the same documents, in one pass that holds a few MB at a time.

    Special tokens in the text are taken as text.  Raises DataError if there is no text, and
    TokenizerError if a tokenizer cannot encode it.
    """
    tallies = {name: _Tally(name, tokenizer) for name, tokenizer in tokenizers.items()}
    n_bytes = n_words = 0
    for batch in _batches(documents):
        n_bytes += sum(len(text.encode(errors="surrogatepass")) for text in batch)
        n_words += sum(len(text.split()) for text in batch)
        lines = [line for text in batch for line in text.splitlines(keepends=True)]
        for tally in tallies.values():
            tally.add(batch, lines)
    if not n_bytes:
        raise DataError("there is no text to compare tokenizers on: give a file that has some")
    return [tally.report(n_bytes, n_words) for tally in tallies.values()]


class _Tally:
    def __init__(self, name: str, tokenizer: Tokenizer) -> None:
        self.name, self.tokenizer = name, tokenizer
        self.uses = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        self.lines = self.failures = 0
        self.first_failure: str | None = None

    def add(self, texts: list[str], lines: list[str]) -> None:
        """Count the tokens of ``texts``, and the ``lines`` that decoding does not reproduce."""
        try:
            for ids in self.tokenizer.encode_batch(texts, specials="text"):
                self.uses += np.bincount(ids, minlength=len(self.uses))
            encoded = self.tokenizer.encode_batch(lines, specials="text")
        except TokenizerError as error:
            raise TokenizerError(f"{self.name}: {error}") from error
        self.lines += len(lines)
        for line, ids in zip(lines, encoded, strict=True):
            if self.tokenizer.decode(ids) != line:
                self.failures += 1
                self.first_failure = self.first_failure or line

    def report(self, n_bytes: int, n_words: int) -> TokenizerReport:
        """Return the report on the text, which has this many bytes and words."""
        tokens = int(self.uses.sum())
        unknown = 0 if self.tokenizer.unk_id is None else int(self.uses[self.tokenizer.unk_id])
        ordinary = [i for i in range(len(self.uses)) if i not in self.tokenizer.special_ids]
        return TokenizerReport(
            name=self.name,
            kind=self.tokenizer.kind,
            lossless=self.tokenizer.lossless,
            vocab_size=self.tokenizer.vocab_size,
            tokens=tokens,
            bytes_per_token=n_bytes / tokens if tokens else 0.0,
            tokens_per_word=tokens / n_words if n_words else 0.0,
            unknown_rate=unknown / tokens if tokens else 0.0,
            unused_share=float((self.uses[ordinary] == 0).mean()) if ordinary else 0.0,
            lines=self.lines,
            round_trip_failures=self.failures,
            first_failure=self.first_failure,
        )


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    """Yield batches of about :data:`_BATCH` characters; long documents are split."""
    batch: list[str] = []
    size = 0
    for document in documents:
        for part in cut_at_spaces(document, _BATCH):
            batch.append(part)
            size += len(part)
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch
