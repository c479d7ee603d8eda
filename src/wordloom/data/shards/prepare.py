"""Encode a corpus as token shards: once, in parallel, in bounded memory."""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from wordloom.data.cache import cache_folder, reused_or_written
from wordloom.data.files.source import Source
from wordloom.data.files.stream import Meter
from wordloom.data.ledgers import Ledger
from wordloom.data.rows.labelled_documents import LabelledDocuments
from wordloom.data.shards.prepared import PreparedCorpus
from wordloom.data.shards.segments import Accountant, Cutter, Segment, cut_rule
from wordloom.data.shards.storage import VERSION, ShardWriter, TokenShards
from wordloom.data.text.corpus import Corpus, Part, Tally
from wordloom.data.text.sentences import Sentences
from wordloom.errors import DataError, TokenizerError, WordloomError

SEGMENT = 1 << 16  # characters encoded as one text; a batch then occupies every core
BATCH = 1 << 21  # characters handed to the tokenizer at a time; an encoding takes some 50 times its text
_UNDER_WAY = 2  # batches encoded at a time: one keeps the cores busy while another is turned into arrays
MANY = 8192  # most documents in a batch

Specials: TypeAlias = Literal["refuse", "text"]
AnyCorpus: TypeAlias = Corpus | LabelledDocuments | Sentences
End: TypeAlias = Literal["eos", "sep", "none"]
Item = TypeVar("Item")


class CorpusTokenizer(Protocol):
    """The methods of a tokenizer that preparing needs, as :class:`wordloom.text.Tokenizer` has them."""

    kind: str
    vocab_size: int
    fingerprint: str
    special_ids: frozenset[int]
    eos_id: int | None
    sep_id: int | None
    pad_id: int | None

    def encode_ids(self, text: Any, *, specials: Any = ...) -> Any: ...
    def encode_batch(self, texts: Any, *, specials: Any = ...) -> Any: ...
    def id_to_token(self, id: int, /) -> str | None: ...
    def token_to_id(self, token: str, /) -> int | None: ...


class Progress(NamedTuple):
    """The progress of preparing: bytes read, bytes in all, and the counts so far."""

    bytes_read: int
    bytes_total: int
    documents: int
    tokens: int


def prepare(
    corpus: AnyCorpus | PreparedCorpus,
    tokenizer: Any,
    *,
    part: Part,
    cache: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    specials: Specials = "refuse",
    end: End = "eos",
    progress: Callable[[Progress], None] | None = None,
) -> TokenShards:
    """Return the token shards of one ``part`` of ``corpus``, written now or reused from an earlier call.

    They lie in a folder of ``cache`` (default: :func:`~wordloom.data.cache.cache_folder`) that is named by
    the content of corpus and tokenizer.  The folder appears under its name when it is complete and on disk.
    If several runs need it at once, one writes it and the others wait.  A :class:`PreparedCorpus` is opened
    where it lies.

    The tokenizer's end-of-sequence token follows each document, except where the split cuts a document;
    ``end`` chooses another token or none.  Empty documents are dropped and counted.  Long documents are
    encoded in segments where that provably does not change the ids.  If no such rule is known for the
    tokenizer, a document is encoded in one piece, which takes memory in proportion to its length.

    Args:
        part: ``"train"``, ``"validation"`` or ``"all"``.
        workers: batches of documents encoded at a time (default: two), and processes that strip Wikipedia
            mark-up (default: one per processor).  The tokenizers library uses its own threads within a batch,
            one per processor or ``RAYON_NUM_THREADS``.  The result does not depend on these numbers.
        specials: treatment of a special token written in a document: ``"refuse"`` raises an error that names
            the document, ``"text"`` reads it as ordinary characters.
        end: the token after each document: ``"eos"``, ``"sep"`` or ``"none"``.
        progress: called after each batch.

    Raises DataError if the corpus cannot be read, this part of it is empty, or the cache cannot be written,
    and TokenizerError for special tokens and characters unknown to the tokenizer.
    """
    if isinstance(corpus, PreparedCorpus):
        end_id = end_of_document(tokenizer, end)
        return corpus.shards(part, tokenizer, end_id=end_id, any_end=end == "eos")
    job = ShardJob(corpus, tokenizer, part, workers=workers, specials=specials, end=end, progress=progress)
    target = cache_folder(cache) / "tokens" / job.fingerprint[:32]
    return reused_or_written(
        target, lambda: _open(target, corpus, _notes(corpus, job.end_id), part), job.write
    )


class ShardJob:
    """Encodes one part of a corpus; the arguments are those of :func:`prepare`.

    Attributes:
        end_id: the token after each document, or None.
        may_be_empty: write shards without a document too, instead of raising DataError.
    """

    def __init__(
        self,
        corpus: AnyCorpus,
        tokenizer: Any,
        part: Part,
        *,
        workers: int | None = None,
        specials: Specials = "refuse",
        end: End = "eos",
        progress: Callable[[Progress], None] | None = None,
        may_be_empty: bool = False,
    ) -> None:
        check_specials(specials)
        if workers is not None and workers < 1:
            raise DataError(f"workers (--workers) {workers} is not allowed; at least 1, or leave it out")
        if corpus.encoding_errors == "bytes" and tokenizer.kind != "byte":
            raise DataError(
                "encoding_errors (--encoding-errors) 'bytes' gives raw bytes, which only a byte tokenizer "
                f"takes, not a {tokenizer.kind} one; use 'strict' or 'replace'"
            )
        self._corpus, self._tokenizer, self._part = corpus, tokenizer, part
        self._workers, self._specials, self._end, self._progress = workers, specials, end, progress
        self._may_be_empty = may_be_empty
        self.end_id = end_of_document(tokenizer, end)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of corpus, tokenizer, part and settings; the corpus is read once for it."""
        corpus, tokenizer = self._corpus.part_fingerprint(self._part), self._tokenizer
        identity = [VERSION, corpus, tokenizer.fingerprint, self._part, self._specials]
        if self._end != "eos":
            identity.append(f"end {self._end}")
        if cut_rule(tokenizer) is None:  # earlier versions cut under fewer rules; their shards differ
            identity.append("whole documents")
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """Write the shards into a new ``folder``."""
        with closing(ShardWriter(folder, vocab_size=self._tokenizer.vocab_size)) as writer:
            self._write(writer)

    def _write(self, writer: ShardWriter) -> None:
        corpus, tokenizer, part, progress = self._corpus, self._tokenizer, self._part, self._progress
        tally, meter, files = Tally(), Meter(), corpus.files(part)
        total = sum(_bytes_of(source) for source in files)
        split = corpus.describe_split()  # a tail split reads the corpus once for its length
        accountant = Accountant(writer, self.end_id, tally)
        segments = _segments(corpus, tokenizer, part, tally, meter, self._workers)
        batches = batched(segments, lambda segment: len(segment.text))
        workers = self._workers or _UNDER_WAY
        for batch, ids in _encoded(batches, tokenizer, self._specials, files, workers):
            accountant.add(batch, ids)
            if progress is not None:
                progress(Progress(meter.read, total, writer.documents, writer.tokens))
        if not (writer.tokens or self._may_be_empty):
            raise DataError(_nothing(corpus, part, tally))
        if progress is not None:
            progress(Progress(total, total, writer.documents, writer.tokens))
        ledger = Ledger(
            part=part,
            split=split,
            files=len(files),
            documents=writer.documents,
            tokens=writer.tokens,
            bytes=writer.bytes,
            dropped=dict(tally.dropped),
            cut=dict(tally.cut),
            notes=_notes(corpus, self.end_id),
        )
        prepared = corpus.part_fingerprint(part)
        meta = described(self.fingerprint, prepared, tokenizer, self.end_id, files, ledger)
        writer.finish({**meta, "source_documents": [meter.documents.get(each.name, 0) for each in files]})


def _bytes_of(source: Source) -> int:
    """Return the bytes that are read of a file."""
    start, stop = source.span or (0, os.path.getsize(source.path))
    return stop - start


def end_of_document(tokenizer: CorpusTokenizer, end: End) -> int | None:
    """Return the id that follows each document."""
    return None if end == "none" else tokenizer.eos_id if end == "eos" else tokenizer.sep_id


def check_specials(specials: str) -> None:
    if specials not in ("refuse", "text"):
        raise DataError(f"specials (--specials) {specials!r} is not for a corpus; allowed: refuse, text")


def _open(target: Path, corpus: AnyCorpus, notes: tuple[str, ...], part: Part) -> TokenShards:
    """Return the shards in ``target``, with the names and notes that ``corpus`` has now for equal content."""
    shards = TokenShards(target)
    shards.sources = [source.name for source in corpus.files(part)]
    # Other splits are part of the shards' identity, and describing a tail split would read the corpus.
    split = corpus.describe_split() if corpus.split == "files" else shards.ledger.split
    shards.ledger = replace(shards.ledger, split=split, notes=notes)
    return shards


def described(
    fingerprint: str,
    corpus: str,
    tokenizer: CorpusTokenizer,
    end_id: int | None,
    files: list[Source],
    ledger: Ledger,
) -> dict[str, Any]:
    """Return the description of shards that :class:`TokenShards` reads; ``corpus`` is its fingerprint."""
    return {
        "fingerprint": fingerprint,
        "corpus": corpus,
        "tokenizer": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "eos_id": end_id,
        "pad_id": tokenizer.pad_id,
        "sources": [source.name for source in files],
        "ledger": ledger.as_dict(),
    }


def _notes(corpus: AnyCorpus, end_id: int | None) -> tuple[str, ...]:
    notes = ["an end-of-document token follows each whole document"] if end_id is not None else []
    if isinstance(corpus, LabelledDocuments | Sentences):
        notes.append(corpus.note)
    if corpus.encoding_errors == "replace":
        notes.append("invalid UTF-8 was replaced by U+FFFD, as asked")
    if corpus.skipped:
        shown = ", ".join(corpus.skipped[:3]) + (", ..." if len(corpus.skipped) > 3 else "")
        notes.append(f"skipped in folders, unknown suffix: {len(corpus.skipped)} file(s): {shown}")
    return tuple(notes)


def _nothing(corpus: AnyCorpus, part: Part, tally: Tally) -> str:
    if part != "all" and corpus.split != "files":
        tally = Tally()  # of all documents: this part may not have been read at all
        if any(piece.text for piece in corpus.pieces("all", tally=tally)):
            share = corpus.validation_fraction
            why = f"split '{corpus.split}' with validation_fraction={share:g} leaves it nothing"
            return empty_part(part, "corpus", corpus.files(part), why)
    return empty_part(part, "corpus", corpus.files(part), dropped(tally) or "the files are empty")


def empty_part(part: Part, noun: str, files: list[Source], why: str) -> str:
    """Return the error message for a part without documents."""
    names = ", ".join(source.name for source in files[:3])
    return f"the {part} part of the {noun} is empty ({names}): {why}"


def dropped(tally: Tally) -> str:
    """Return what was left out, for :func:`empty_part`; empty if nothing was."""
    reasons = "; ".join(f"{count:,} {reason}" for reason, count in tally.dropped.items())
    return reasons and f"dropped: {reasons}"


def numbered(files: list[Source]) -> dict[str, int]:
    """Return the number of each file by its name, the first of those with one name."""
    return {source.name: n for n, source in reversed(list(enumerate(files)))}


def batched(items: Iterable[Item], size_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield ``items`` in batches of about :data:`BATCH` characters and at most :data:`MANY` items."""
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= BATCH or len(batch) >= MANY:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _segments(
    corpus: AnyCorpus, tokenizer: CorpusTokenizer, part: Part, tally: Tally, meter: Meter, workers: int | None
) -> Iterator[Segment]:
    """Yield the segments of the part, in order."""
    number = numbered(corpus.files(part))
    rule = cut_rule(tokenizer)
    cutter = Cutter(SEGMENT, rule)
    start = 0
    for piece in corpus.pieces(part, tally=tally, meter=meter, workers=workers):
        texts = list(cutter.push(piece.text, last=piece.last))
        for position, text in enumerate(texts):
            ends = piece.last and position == len(texts) - 1
            whole = ends and not piece.cut
            marked = rule == "lines" and start > 0
            prefix = "" if start else piece.prefix
            origin = (number[piece.source], piece.index)
            yield Segment(text, origin, start, ends, whole, marked, prefix)
            start = 0 if ends else start + len(text)


def _encoded(
    batches: Iterator[list[Segment]],
    tokenizer: CorpusTokenizer,
    specials: Specials,
    files: list[Source],
    workers: int,
) -> Iterator[tuple[list[Segment], list[NDArray[Any]]]]:
    """Yield batches with their ids, in order, encoded in threads while the next ones are read.

    At most ``workers`` + 1 batches are in memory.
    """
    pending: deque[tuple[list[Segment], Future[list[NDArray[Any]]]]] = deque()
    threads = ThreadPoolExecutor(workers, thread_name_prefix="tokenize")
    try:
        for batch in batches:
            pending.append((batch, threads.submit(_encode, tokenizer, batch, specials, files)))
            if len(pending) > workers:
                done, future = pending.popleft()
                yield done, future.result()
        while pending:
            done, future = pending.popleft()
            yield done, future.result()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def _encode(
    tokenizer: CorpusTokenizer, batch: list[Segment], specials: Specials, files: list[Source]
) -> list[NDArray[Any]]:
    def place(n: int) -> str:
        (file, index), start = batch[n].origin, batch[n].start
        begun = f", in the text from character {start:,}" if start else ""
        span = files[file].span
        counted = f" from byte {span[0]:,} on" if span else ""
        return f"{files[file].name}, document {index}{counted}{begun}"

    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    encoded = encode_all(tokenizer, [segment.text for segment in batch], specials, place)
    return [
        np.asarray([*_prefix(segment, tokenizer), *ids] if segment.prefix else ids, dtype)[segment.marked :]
        for segment, ids in zip(batch, encoded, strict=True)
    ]


def encode_all(
    tokenizer: CorpusTokenizer, texts: Sequence[str | bytes], specials: Specials, place: Callable[[int], str]
) -> Any:
    """Return the ids of each text; a TokenizerError names the ``place`` of the failing text."""
    try:
        return tokenizer.encode_batch(texts, specials=specials)
    except WordloomError:
        for n, text in enumerate(texts):  # find the one that fails
            try:
                tokenizer.encode_ids(text, specials=specials)
            except WordloomError as error:
                raise TokenizerError(f"{place(n)}: {error}") from error
        raise


def _prefix(segment: Segment, tokenizer: CorpusTokenizer) -> list[int]:
    index = tokenizer.token_to_id(segment.prefix)
    assert index is not None, "checked by LabelledDocuments.check()"
    return [index]
