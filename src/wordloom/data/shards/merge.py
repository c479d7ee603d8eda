"""Join the shares that all tasks wrote to one index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wordloom.data.ledgers import Ledger
from wordloom.data.shards.index import INDEX, Index, JoinedPart, Share, joined_ledger
from wordloom.data.shards.storage import VERSION, read_meta, verify
from wordloom.data.shards.tasks import read_settings, read_share, refuse_other, share_folder
from wordloom.data.text.shares import ShareNumber
from wordloom.errors import DataError
from wordloom.files import write_text

_SHOWN = 12  # most ranges of missing tasks in an error


def merge_shares(out: Path, *, verified: bool = False) -> Index:
    """Write the index of the folder ``out``, in which all tasks are complete, and return it.

    No token is copied.  Merging twice writes the same index.  If ``verified``, all bytes are read and
    compared with their checksums.

    Raises DataError that names the missing tasks, a task with other settings, or a damaged file.
    """
    settings = read_settings(out)
    count, parts = int(settings["number of tasks"]), str(settings["parts"]).split()
    folders, missing, files = [], [], []
    for number in range(1, count + 1):
        folder = share_folder(out, ShareNumber(number, count))
        try:
            share = read_share(folder, parts)
        except DataError:
            missing.append(number)
            continue
        refuse_other(share.identity, settings, str(out))
        folders.append(folder)
        files.append(share.files)
        if verified:
            for name in parts:
                verify(folder / name)
    if missing:
        raise DataError(
            f"{len(missing):,} of {count:,} tasks {'is' if len(missing) == 1 else 'are'} not complete: "
            f"{ranges(missing)}; run wordloom data prepare with --task {missing[0]}/{count} --out {out}, "
            "and merge again"
        )
    metas = {part: [read_meta(f / part / "meta.json", VERSION, "shards") for f in folders] for part in parts}
    joined = {part: _joined(out, folders, files, part, metas[part]) for part in parts}
    for name, part in joined.items():
        if not part.ledger.tokens:
            raise DataError(f"the {name} part of all {count:,} tasks together is empty; give more text")
    first = metas[parts[0]][0]
    index = Index(
        tokenizer=first["tokenizer"],
        vocab_size=first["vocab_size"],
        eos_id=first["eos_id"],
        pad_id=first["pad_id"],
        dtype=first["arrays"]["tokens"]["dtype"],
        parts=joined,
    )
    write_text(out / INDEX, index.as_json())
    return index


def _joined(
    out: Path,
    folders: Sequence[Path],
    facts: Sequence[Sequence[Sequence[Any]]],
    part: str,
    metas: Sequence[dict[str, Any]],
) -> JoinedPart:
    """Return the shares of a part, with the numbers that their files and documents have in the corpus.

    ``facts`` are the name, size, time and span of the files of each share.  Tasks may have seen the files in
    different folders, so that a file which is divided between tasks is known by its name and its spans.
    """
    shares: list[Share] = []
    files = 0  # in all shares so far
    last: tuple[str, int] | None = None  # the last file, and the byte behind its span
    documents = 0  # of the last file so far
    for folder, about, meta in zip(folders, facts, metas, strict=True):
        sources, counts = meta["sources"], meta["source_documents"]
        # those of validation files stand behind those of training files
        own = about[len(about) - len(sources) :] if part == "validation" else about[: len(sources)]
        spans = [(name, span) for name, _, _, span in own]
        continues = last is not None and bool(spans) and last == _begin(*spans[0])
        shares.append(
            Share(
                folder=(folder / part).relative_to(out).as_posix(),
                fingerprint=meta["fingerprint"],
                tokens=meta["arrays"]["tokens"]["count"],
                documents=meta["arrays"]["ends"]["count"],
                checks=meta["checks"],
                first_file=files - continues,
                first_document=documents if continues else 0,
            )
        )
        files += len(sources) - continues
        if sources:
            before = documents if continues and len(sources) == 1 else 0
            name, span = spans[-1]
            last, documents = (name, span[1]) if span else None, before + counts[-1]
    ledger = joined_ledger((Ledger.from_dict(meta["ledger"]) for meta in metas), files=files)
    return JoinedPart(ledger=ledger, shares=shares)


def _begin(name: str, span: Sequence[int] | None) -> tuple[str, int] | None:
    """Return the name and the first byte of a file that is divided between tasks, None for another."""
    return None if span is None else (name, span[0])


def ranges(numbers: Sequence[int]) -> str:
    """Return increasing numbers as text, with consecutive ones as a range.

    >>> ranges([3, 17, 18, 19])
    '3, 17-19'
    """
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in found]
    more = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {more:,} more ranges" if more > 0 else "")
