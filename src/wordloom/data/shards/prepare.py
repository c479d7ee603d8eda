"""Corpus and tokenizer to token shards: once, in parallel, in bounded memory, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from wordloom.data.cache import cache_folder, lock_path, locked
from wordloom.data.files.stream import Meter
from wordloom.data.rows.labelled_documents import LabelledDocuments
from wordloom.data.shards.accountant import Accountant, Segment
from wordloom.data.shards.ledger import Ledger
from wordloom.data.shards.segments import Cutter, cut_rule
from wordloom.data.shards.storage import VERSION, ShardWriter, TokenShards
from wordloom.data.text.corpus import Corpus, Part, Tally
from wordloom.data.text.sentences import Sentences
from wordloom.errors import DataError, TokenizerError, WordloomError

__all__ = ["Progress", "TokenShards", "prepare"]


SEGMENT = 1 << 16  # characters encoded as one text, small enough that a batch occupies every core
BATCH = 1 << 21  # characters handed to the tokenizer at a time; an encoding takes some 50 times its text
_UNDER_WAY = 2  # batches encoded at a time: one keeps the cores busy while another is turned into arrays
_MANY = 8192  # documents at most in a batch, however short

Specials: TypeAlias = Literal["refuse", "text"]
AnyCorpus: TypeAlias = Corpus | LabelledDocuments | Sentences
End: TypeAlias = Literal["eos", "sep", "none"]


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
    corpus: AnyCorpus,
    tokenizer: Any,
    *,
    part: Part,
    cache: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    specials: Specials = "refuse",
    end: End = "eos",
    progress: Callable[[Progress], None] | None = None,
) -> TokenShards:
    """The token shards of one ``part`` of ``corpus``, made now or reused from an earlier call.

    They lie in a folder of ``cache`` (default: :func:`~wordloom.data.cache.cache_folder`) named by the
    content of corpus and tokenizer, so shards of something else cannot be taken for them.  The folder
    appears under its name only when complete and on disk; a run that is killed leaves a temporary folder
    that the next one sweeps, and of several runs at once one works while the others wait for its result.

    After each document comes the tokenizer's end-of-sequence token, where it has one (not where the split
    cut the document); ``end`` asks for another one or none.  Empty documents are dropped and counted.  Long
    documents are encoded in segments cut where that provably leaves the ids as they are; where a tokenizer
    allows no such cut (one that splits text by a rule we do not know) a document is encoded in one piece,
    which takes memory in proportion to its length.

    Args:
        part: ``"train"``, ``"validation"`` or ``"all"``.
        workers: batches of documents encoded at a time (default: two), and processes that strip Wikipedia
            mark-up (default: one per processor).  Within a batch the tokenizers library uses threads of its
            own, one per processor or ``RAYON_NUM_THREADS``.  The result does not depend on either.
        specials: what a special token's spelling inside a document does: ``"refuse"`` raises an error that
            names the document, ``"text"`` takes it as ordinary characters.
        end: what comes after each document: ``"eos"``, ``"sep"`` or ``"none"``.
        progress: called after each batch.

    Raises:
        DataError: the corpus cannot be read, this part of it is empty, or the cache cannot be written.
        TokenizerError: a document holds a special token, or characters the tokenizer does not know.
    """
    if specials not in ("refuse", "text"):
        raise DataError(f"specials (--specials) {specials!r} is not for a corpus; allowed: refuse, text")
    if workers is not None and workers < 1:
        raise DataError(f"workers (--workers) {workers} is not allowed; at least 1, or leave it out")
    if corpus.encoding_errors == "bytes" and tokenizer.kind != "byte":
        raise DataError(
            "encoding_errors (--encoding-errors) 'bytes' gives raw bytes, which only a byte tokenizer takes, "
            f"not a {tokenizer.kind} one; use 'strict' or 'replace'"
        )
    identity = [VERSION, corpus.part_fingerprint(part), tokenizer.fingerprint, part, specials]
    if end != "eos":
        identity.append(f"end {end}")
    end_id = None if end == "none" else tokenizer.eos_id if end == "eos" else tokenizer.sep_id
    if cut_rule(tokenizer) is None:  # apart from shards of a time when fewer rules were needed to cut
        identity.append("whole documents")
    fingerprint = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    root = cache_folder(cache) / "tokens"
    target = root / fingerprint[:32]
    notes = _notes(corpus, end_id)
    if (ready := _open(target, corpus, notes, part)) is not None:
        return ready
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(target, "preparing the same shards"):
            if (ready := _open(target, corpus, notes, part)) is not None:  # another run made it meanwhile
                return ready
            _sweep(root, target)
            _write(target, fingerprint, corpus, tokenizer, part, workers, specials, end_id, progress)
    except OSError as error:
        raise DataError(
            f"cannot write token shards to '{root}': {error.strerror or error}; "
            "free space there, or choose another folder with WORDLOOM_CACHE"
        ) from error
    return _present(TokenShards(target), corpus, notes, part)


def _open(target: Path, corpus: AnyCorpus, notes: tuple[str, ...], part: Part) -> TokenShards | None:
    """The shards in ``target`` if they are there and sound; damaged ones are made again."""
    if not target.exists():
        return None
    try:
        shards = _present(TokenShards(target), corpus, notes, part)
    except DataError:
        return None
    shards.reused = True
    return shards


def _present(shards: TokenShards, corpus: AnyCorpus, notes: tuple[str, ...], part: Part) -> TokenShards:
    """``shards`` with what ``corpus`` says now: equal content may have been prepared under other names."""
    shards.sources = [source.name for source in corpus.files(part)]
    # What other splits are is part of their identity, and a tail's would take reading the corpus to say.
    split = corpus.describe_split() if corpus.split == "files" else shards.ledger.split
    shards.ledger = replace(shards.ledger, split=split, notes=notes)
    return shards


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.tmp")


def _sweep(root: Path, target: Path) -> None:
    """Removes what killed runs left: temporary folders whose lock nobody holds."""
    shutil.rmtree(target, ignore_errors=True)  # damaged, or _open would have taken it
    for stale in root.glob(".*.tmp"):
        name = root / stale.name[1 : -len(".tmp")]
        if name == target:  # its lock is ours
            shutil.rmtree(stale)
            continue
        try:
            with FileLock(lock_path(name), timeout=0):
                shutil.rmtree(stale, ignore_errors=True)
        except Timeout:
            continue  # somebody is at work there


def _write(
    target: Path,
    fingerprint: str,
    corpus: AnyCorpus,
    tokenizer: CorpusTokenizer,
    part: Part,
    workers: int | None,
    specials: Specials,
    end_id: int | None,
    progress: Callable[[Progress], None] | None,
) -> None:
    tally, meter = Tally(), Meter()
    files = corpus.files(part)
    total = sum(os.path.getsize(source.path) for source in files)
    split = corpus.describe_split()  # a tail split reads the corpus once for its length
    writer = ShardWriter(_temporary(target), vocab_size=tokenizer.vocab_size)
    try:
        accountant = Accountant(writer, end_id, tally)
        batches = _batches(corpus, tokenizer, part, tally, meter, workers)
        for batch, ids in _encoded(batches, tokenizer, specials, files, workers or _UNDER_WAY):
            accountant.add(batch, ids)
            if progress is not None:
                progress(Progress(meter.read, total, writer.documents, writer.tokens))
        if not writer.tokens:
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
            notes=_notes(corpus, end_id),
        )
        meta = {
            "fingerprint": fingerprint,
            "corpus": corpus.part_fingerprint(part),
            "tokenizer": tokenizer.fingerprint,
            "vocab_size": tokenizer.vocab_size,
            "eos_id": end_id,
            "pad_id": tokenizer.pad_id,
            "sources": [source.name for source in files],
            "ledger": ledger.as_dict(),
        }
        writer.finish(target, meta)
    except BaseException:
        writer.discard()
        raise


def _notes(corpus: AnyCorpus, end_id: int | None) -> tuple[str, ...]:
    notes = ["an end-of-document token follows each whole document"] if end_id is not None else []
    if isinstance(corpus, LabelledDocuments | Sentences):
        notes.append(corpus.note)
    if corpus.encoding_errors == "replace":
        notes.append("invalid UTF-8 was replaced by U+FFFD, as asked")
    if corpus.skipped:
        shown = ", ".join(corpus.skipped[:3]) + (", ..." if len(corpus.skipped) > 3 else "")
        notes.append(f"passed over in folders, suffix not known: {len(corpus.skipped)} file(s): {shown}")
    return tuple(notes)


def _nothing(corpus: AnyCorpus, part: Part, tally: Tally) -> str:
    names = ", ".join(source.name for source in corpus.files(part)[:3])
    if part != "all" and corpus.split != "files":
        tally = Tally()  # of the whole, as the part may have been left without even looking
        if any(piece.text for piece in corpus.pieces("all", tally=tally)):
            share = corpus.validation_fraction
            why = f"split '{corpus.split}' with validation_fraction={share:g} leaves it nothing"
            return f"the {part} part of the corpus is empty ({names}): {why}"
    dropped = "; ".join(f"{count:,} {reason}" for reason, count in tally.dropped.items())
    why = f"dropped: {dropped}" if dropped else "the files are empty"
    return f"the {part} part of the corpus is empty ({names}): {why}"


def _batches(
    corpus: AnyCorpus,
    tokenizer: CorpusTokenizer,
    part: Part,
    tally: Tally,
    meter: Meter,
    workers: int | None,
) -> Iterator[list[Segment]]:
    """The part in segments, about :data:`BATCH` characters of them at a time."""
    number: dict[str, int] = {}
    for position, source in enumerate(corpus.files(part)):
        number.setdefault(source.name, position)
    rule = cut_rule(tokenizer)
    cutter = Cutter(SEGMENT, rule)
    batch: list[Segment] = []
    size = start = 0
    for piece in corpus.pieces(part, tally=tally, meter=meter, workers=workers):
        texts = list(cutter.push(piece.text, last=piece.last))
        for position, text in enumerate(texts):
            ends = piece.last and position == len(texts) - 1
            whole = ends and not piece.cut
            marked = rule == "lines" and start > 0
            prefix = "" if start else piece.prefix
            origin = (number[piece.source], piece.index)
            batch.append(Segment(text, origin, start, ends, whole, marked, prefix))
            start = 0 if ends else start + len(text)
            size += len(text)
            if size >= BATCH or len(batch) >= _MANY:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _encoded(
    batches: Iterator[list[Segment]],
    tokenizer: CorpusTokenizer,
    specials: Specials,
    files: list[Any],
    workers: int,
) -> Iterator[tuple[list[Segment], list[NDArray[Any]]]]:
    """Batches with their ids, in order, encoded in threads while the next ones are read.

    ``workers`` + 1 batches are under way at most, which bounds memory.
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
    tokenizer: CorpusTokenizer, batch: list[Segment], specials: Specials, files: list[Any]
) -> list[NDArray[Any]]:
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    texts = [segment.text for segment in batch]
    try:
        encoded = tokenizer.encode_batch(texts, specials=specials)
    except WordloomError:
        for segment in batch:  # which of them was it?
            try:
                tokenizer.encode_ids(segment.text, specials=specials)
            except WordloomError as error:
                file, index = segment.origin
                begun = f", in the text from character {segment.start:,}" if segment.start else ""
                raise TokenizerError(f"{files[file].name}, document {index}{begun}: {error}") from error
        raise
    return [
        np.asarray([*_prefix(segment, tokenizer), *ids] if segment.prefix else ids, dtype)[segment.marked :]
        for segment, ids in zip(batch, encoded, strict=True)
    ]


def _prefix(segment: Segment, tokenizer: CorpusTokenizer) -> list[int]:
    index = tokenizer.token_to_id(segment.prefix)
    assert index is not None, "LabelledDocuments.check() has looked for it"
    return [index]
