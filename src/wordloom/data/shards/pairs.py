"""Encode pairs of texts as token shards, once; both sides are memory-mapped.

::

    source/, target/    token shards (:mod:`wordloom.data.shards.storage`); pair n is document n of both
    pairs.json          the ledger of the pairs

The shards hold no start or end tokens, which batches add.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wordloom.data.cache import cache_folder, reused_or_written
from wordloom.data.files.stream import Meter
from wordloom.data.ledgers import Ledger
from wordloom.data.rows.pairs import Pair, PairCorpus
from wordloom.data.shards.prepare import (
    CorpusTokenizer,
    Progress,
    Specials,
    batched,
    check_specials,
    described,
    dropped,
    empty_part,
    encode_all,
    numbered,
)
from wordloom.data.shards.storage import ShardWriter, TokenShards, read_meta
from wordloom.data.text.corpus import Part, Tally
from wordloom.errors import DataError

VERSION = 1
SIDES = ("source", "target")
Overlong: TypeAlias = Literal["drop", "cut"]


class PairShards:
    """The token ids of one part of a corpus of pairs, memory-mapped.

    Attributes:
        fingerprint: sha256 of corpus, both tokenizers, part and settings.
        source, target: the ids of each side; pair i is document i of both.
        ledger: the account of reading and tokenizing.
        reused: True if :func:`prepare_pairs` reused shards of an earlier call.

    Raises DataError if ``folder`` holds no pairs, or pairs that are damaged or of another version.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.reused = False
        meta = read_meta(self.folder / "pairs.json", VERSION, "pairs")
        self.fingerprint: str = meta["fingerprint"]
        self.ledger = Ledger.from_dict(meta["ledger"])
        self.source, self.target = (TokenShards(self.folder / side) for side in SIDES)

    def __len__(self) -> int:
        """Return the number of pairs."""
        return int(self.target.ends.size)

    def __repr__(self) -> str:
        return f"PairShards({str(self.folder)!r}, pairs={len(self)})"

    def source_ids(self, pair: int) -> NDArray[Any]:
        """Return the ids of a pair's source, a read-only view."""
        return self.source.tokens(*self.source.document_span(pair))

    def target_ids(self, pair: int) -> NDArray[Any]:
        """Return the ids of a pair's target, a read-only view."""
        return self.target.tokens(*self.target.document_span(pair))

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each source and each target, [2, pairs]."""
        return np.stack([np.diff(side.ends, prepend=0) for side in (self.source, self.target)])

    def pair_name(self, pair: int) -> str:
        """Return ``file#number`` of a pair's source; the number counts the file's lines from 0."""
        return self.source.document_name(pair)


def prepare_pairs(
    corpus: PairCorpus,
    source_tokenizer: Any,
    target_tokenizer: Any,
    *,
    part: Part,
    max_source_tokens: int | None = None,
    max_target_tokens: int | None = None,
    overlong: Overlong = "drop",
    specials: Specials = "refuse",
    cache: str | os.PathLike[str] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> PairShards:
    """Return the token shards of one ``part`` of ``corpus``, written now or reused from an earlier call.

    Like those of :func:`wordloom.data.prepare`, they lie in a folder of ``cache`` that is named by the
    content of corpus and tokenizers.  Source and target share a vocabulary if one tokenizer is given twice.
    Pairs with an empty side (white space alone, or text without a token) are dropped and counted.

    Args:
        part: ``"train"``, ``"validation"`` or ``"all"``.
        max_source_tokens, max_target_tokens: the most tokens of a side, with the end token that batches add.
        overlong: ``"drop"`` leaves out pairs with a longer side, and ``"cut"`` truncates the side before its
            end token; both are counted.
        specials: treatment of a special token written in a text: ``"refuse"`` raises an error that names the
            line, ``"text"`` reads it as ordinary characters.
        progress: called after each batch.

    Raises DataError if the corpus cannot be read, this part of it is empty, or the cache cannot be written,
    and TokenizerError for special tokens and characters unknown to the tokenizer.
    """
    limits = (max_source_tokens, max_target_tokens)
    _check(limits, overlong, specials)
    tokenizers = (source_tokenizer, target_tokenizer)
    settings = [part, specials, *limits, overlong if any(limits) else None]
    prints = [corpus.part_fingerprint(part), *(tokenizer.fingerprint for tokenizer in tokenizers)]
    fingerprint = hashlib.sha256(json.dumps([VERSION, *prints, *settings]).encode()).hexdigest()
    target = cache_folder(cache) / "pairs" / fingerprint[:32]

    def write(folder: Path) -> None:
        with ExitStack() as opened:
            writer = _PairWriter(folder, tokenizers, limits, overlong, specials, opened)
            writer.write(fingerprint, corpus, part, progress)

    return reused_or_written(target, lambda: _open(target, corpus, part), write)


def _check(limits: tuple[int | None, int | None], overlong: str, specials: str) -> None:
    check_specials(specials)
    if overlong not in ("drop", "cut"):
        raise DataError(f"overlong={overlong!r} is not known; allowed: drop, cut")
    for side, limit in zip(SIDES, limits, strict=True):
        if limit is not None and limit < 2:
            raise DataError(f"max_{side}_tokens={limit} is not allowed; at least 2, a token and the end")


def _open(target: Path, corpus: PairCorpus, part: Part) -> PairShards:
    """Return the shards in ``target``, with the names that ``corpus`` has now for equal content."""
    shards = PairShards(target)
    for side, files in zip((shards.source, shards.target), corpus.sides(part), strict=True):
        side.sources = [file.name for file in files]
    shards.ledger = replace(shards.ledger, split=corpus.describe_split())
    return shards


class _PairWriter:
    """Encodes both sides of pairs and writes them into one temporary folder."""

    def __init__(
        self,
        folder: Path,
        tokenizers: tuple[CorpusTokenizer, CorpusTokenizer],
        limits: tuple[int | None, int | None],
        overlong: Overlong,
        specials: Specials,
        opened: ExitStack,
    ) -> None:
        self._folder = folder
        self._tokenizers, self._limits = tokenizers, limits
        self._overlong, self._specials = overlong, specials
        self._tally = Tally()
        self._sides = [
            opened.enter_context(closing(ShardWriter(folder / side, vocab_size=tokenizer.vocab_size)))
            for side, tokenizer in zip(SIDES, tokenizers, strict=True)
        ]

    def write(
        self, fingerprint: str, corpus: PairCorpus, part: Part, progress: Callable[[Progress], None] | None
    ) -> None:
        meter, files = Meter(), corpus.files(part)
        total = sum(os.path.getsize(source.path) for source in files)
        number = numbered(corpus.sides(part)[0])
        pairs = corpus.pairs(part, meter=meter)
        for batch in batched(pairs, lambda pair: len(pair.source) + len(pair.target)):
            self._add(batch, number)
            if progress is not None:
                progress(Progress(meter.read, total, self._sides[0].documents, self._tokens))
        if not self._sides[0].documents:
            raise DataError(_nothing(corpus, part, self._tally))
        self._finish(fingerprint, corpus, part, len(files))

    @property
    def _tokens(self) -> int:
        return sum(side.tokens for side in self._sides)

    def _add(self, batch: list[Pair], number: dict[str, int]) -> None:
        """Encode the pairs that have two sides, and append those that are kept."""
        filled = [pair for pair in batch if not self._empty(pair)]
        encoded = [_encode(each, side, filled, self._specials) for side, each in enumerate(self._tokenizers)]
        kept = [n for n in range(len(filled)) if self._stays(encoded[0][n].size, encoded[1][n].size)]
        if not kept:
            return
        origins = [(number[filled[n].file], filled[n].line - 1) for n in kept]
        for side, writer in enumerate(self._sides):
            limit = self._limits[side]
            ids = [encoded[side][n][: None if limit is None else limit - 1] for n in kept]
            ends = writer.tokens + np.cumsum([some.size for some in ids])
            sizes = [len(filled[n][:2][side].encode()) for n in kept]
            writer.add(np.concatenate(ids), ends.tolist(), sizes, origins)

    def _empty(self, pair: Pair) -> bool:
        source, target = (not text.strip() for text in (pair.source, pair.target))
        if not (source or target):
            return False
        fault = "empty on both sides" if source and target else f"with an empty {SIDES[target]}"
        self._tally.dropped[f"pair(s) {fault}"] += 1
        return True

    def _stays(self, *sizes: int) -> bool:
        """Return whether a pair of these lengths is kept, and count pairs that are dropped or truncated."""
        if 0 in sizes:
            self._tally.dropped["pair(s) with a side that gives no token"] += 1
            return False
        over = [
            f"{limit} {side} tokens"
            for side, size, limit in zip(SIDES, sizes, self._limits, strict=True)
            if limit is not None and size >= limit
        ]
        if over and self._overlong == "drop":
            self._tally.dropped[f"pair(s) of more than {' and '.join(over)}"] += 1
            return False
        for limit in over:
            self._tally.cut[f"text(s) to {limit}"] += 1
        return True

    def _vocabularies(self) -> str:
        source, target = self._tokenizers
        if source.fingerprint == target.fingerprint:
            return f"vocabulary: one for both sides, {target.vocab_size:,} tokens"
        return f"vocabularies: {source.vocab_size:,} tokens of sources, {target.vocab_size:,} of targets"

    def _finish(self, fingerprint: str, corpus: PairCorpus, part: Part, files: int) -> None:
        ledger = Ledger(
            part=part,
            split=corpus.describe_split(),
            files=files,
            documents=self._sides[0].documents,
            tokens=self._tokens,
            bytes=sum(side.bytes for side in self._sides),
            dropped=dict(self._tally.dropped),
            cut=dict(self._tally.cut),
            notes=(
                self._vocabularies(),
                *(
                    f"{name}: {side.tokens:,} tokens, {side.bytes:,} bytes"
                    for name, side in zip(SIDES, self._sides, strict=True)
                ),
                *(["invalid UTF-8 was replaced by U+FFFD, as asked"] * (corpus.encoding_errors == "replace")),
            ),
            unit="pair",
        )
        for name, side, tokenizer, sources in zip(
            SIDES, self._sides, self._tokenizers, corpus.sides(part), strict=True
        ):
            own = replace(ledger, files=len(sources), tokens=side.tokens, bytes=side.bytes, notes=())
            content = corpus.part_fingerprint(part)
            side.finish(
                described(f"{fingerprint}/{name}", content, tokenizer, tokenizer.eos_id, sources, own)
            )
        meta = {"version": VERSION, "fingerprint": fingerprint, "ledger": ledger.as_dict()}
        (self._folder / "pairs.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _encode(
    tokenizer: CorpusTokenizer, side: int, pairs: list[Pair], specials: Specials
) -> list[NDArray[Any]]:
    texts = [pair[:2][side] for pair in pairs]
    found = encode_all(tokenizer, texts, specials, lambda n: f"{pairs[n].place}, {SIDES[side]}")
    return [np.asarray(ids) for ids in found]


def _nothing(corpus: PairCorpus, part: Part, tally: Tally) -> str:
    split = f"split 'hash' with validation_fraction={corpus.validation_fraction:g} leaves it nothing"
    divided = part != "all" and corpus.split == "hash" and next(corpus.pairs("all"), None) is not None
    why = dropped(tally) or (split if divided else "the files are empty")
    return empty_part(part, "pairs", corpus.files(part), why)
