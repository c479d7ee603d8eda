"""Prepare a corpus in many tasks, on as many machines as a scheduler gives.

Each task encodes its share of the files and writes one folder, which appears under its name when it is
complete and on disk.  Tasks need no connection to one another, and may run in any order and more than once.
The layout of the folder that they share is in :mod:`wordloom.data.shards.index`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from wordloom.data.cache import reused_or_written
from wordloom.data.files.source import Source
from wordloom.data.ledgers import Ledger
from wordloom.data.shards.arrays import check_size
from wordloom.data.shards.prepare import CorpusTokenizer, End, Progress, ShardJob, Specials
from wordloom.data.shards.storage import ARRAYS, read_meta
from wordloom.data.shards.storage import VERSION as SHARDS_VERSION
from wordloom.data.text.corpus import Corpus, Part
from wordloom.data.text.shares import ShareNumber, file_size
from wordloom.errors import DataError
from wordloom.files import publish_folder, write_text

VERSION = 1
TASKS = "tasks.json"
COMPLETE = "complete.json"
TOKENIZER = "tokenizer"


@dataclass
class PreparedShare:
    """The result of a task.

    Attributes:
        folder: the folder of the share.
        identity: the settings of all tasks, see :func:`settings_of`.
        ledgers: the account of each part.
        files: the name, size, time and span of each file that was read.
        reused: True if the task had been completed before.
    """

    folder: Path
    identity: Mapping[str, Any]
    ledgers: Mapping[str, Ledger]
    files: Sequence[Sequence[Any]]
    content: str
    reused: bool = False


def prepare_share(
    corpus: Corpus,
    tokenizer: Any,
    task: ShareNumber,
    *,
    out: Path,
    parts: Sequence[Part],
    workers: int | None = None,
    specials: Specials = "refuse",
    end: End = "eos",
    progress: Callable[[Part], contextlib.AbstractContextManager[Callable[[Progress], None]]] | None = None,
) -> PreparedShare:
    """Encode the share of a ``task`` of ``corpus`` into the folder ``out``, or return the one that is there.

    ``progress(part)`` is entered for each of ``parts``.  Other arguments are those of
    :func:`wordloom.data.prepare`.

    Raises DataError if the folder was begun with another corpus, tokenizer or setting, and if a file of a
    completed share has changed.
    """
    if "all" in parts and corpus.split == "files":
        raise DataError(
            "part (--part) 'all' of files and validation files has no shares; name all of them as sources"
        )
    _refuse_repeated(corpus.files("all"))
    identity = settings_of(corpus, tokenizer, task, parts=parts, specials=specials, end=end)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"the folder '{out}' (--out) cannot be made: {error.strerror}; choose another"
        ) from None
    _begin(out, identity)
    _save_tokenizer(out, tokenizer)
    own = replace(corpus, share=task)
    target = share_folder(out, task)

    def write(folder: Path) -> None:
        folder.mkdir()
        for part in parts:
            with contextlib.nullcontext(None) if progress is None else progress(part) as show:
                job = ShardJob(
                    own, tokenizer, part, workers=workers, specials=specials, end=end, progress=show,
                    may_be_empty=True,
                )  # fmt: skip
                job.write(folder / part)
        content = {"files": _facts(own.files("all")), "content": own.part_fingerprint("all")}
        complete = {"version": VERSION, "task": task.number, "identity": identity, **content}
        write_text(folder / COMPLETE, json.dumps(complete, indent=1) + "\n")

    share = reused_or_written(
        target,
        lambda: read_share(target, parts),
        write,
        name="the share",
        doing=f"preparing task {task.number}/{task.of}",
        elsewhere="--out",
    )
    if share.reused:
        _check_unchanged(share, own)
    return share


def share_folder(out: Path, task: ShareNumber) -> Path:
    """Return the folder of a task's share."""
    return out / "shares" / f"{task.number:05}-of-{task.of:05}"


def settings_of(
    corpus: Corpus,
    tokenizer: CorpusTokenizer,
    task: ShareNumber,
    *,
    parts: Sequence[Part],
    specials: Specials,
    end: End,
) -> dict[str, Any]:
    """Return the settings that all tasks of a folder have in common.

    The corpus is known by the names of its files, without their folders, and by their sizes.
    """
    names = [
        [(os.path.basename(file.name), file_size(file)) for file in corpus.files(each)] for each in parts
    ]
    fields = corpus.field if isinstance(corpus.field, str) else " ".join(corpus.field)
    return {
        "number of tasks": task.of,
        "tokenizer": tokenizer.fingerprint,
        "corpus": hashlib.sha256(json.dumps(names).encode()).hexdigest(),
        "parts": " ".join(parts),
        "field": fields,
        "separator": corpus.separator,
        "encoding errors": corpus.encoding_errors,
        "split": corpus.split,
        "validation fraction": None if corpus.split == "files" else corpus.validation_fraction,
        "special tokens": specials,
        "end of a document": end,
    }


def _refuse_repeated(files: Iterable[Source]) -> None:
    seen: set[str] = set()
    for file in files:
        if file.name in seen:
            raise DataError(f"{file.name}: is named more than once, which tasks do not take; name it once")
        seen.add(file.name)


def _begin(out: Path, identity: Mapping[str, Any]) -> None:
    """Write the settings of the first task of a folder; raise DataError if it was begun with others."""
    path = out / TASKS
    if not path.exists():
        with tempfile.TemporaryDirectory(prefix=".wordloom-", dir=out) as folder:
            written = Path(folder) / TASKS
            write_text(written, json.dumps({"version": VERSION, "settings": identity}, indent=1) + "\n")
            try:
                os.link(written, path)
            except FileExistsError:
                pass  # another task was first
            except OSError:  # a file system without links
                os.replace(written, path)
    refuse_other(identity, read_settings(out), str(out))


def read_settings(out: Path) -> Mapping[str, Any]:
    """Return the settings of the tasks of a folder; raise DataError if no task has begun there."""
    try:
        values: Mapping[str, Any] = json.loads((out / TASKS).read_text(encoding="utf-8"))
        if values["version"] != VERSION:
            raise DataError(f"'{out}' holds tasks of version {values['version']}, not {VERSION}")
        settings: Mapping[str, Any] = values["settings"]
        if type(settings["number of tasks"]) is not int or not isinstance(settings["parts"], str):
            raise ValueError("its settings are damaged")
        return settings
    except FileNotFoundError:
        raise DataError(
            f"'{out}' holds no tasks of preparing; start with wordloom data prepare --task 1/64 --out {out}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"'{out / TASKS}' cannot be read ({error}); delete the folder to start again, or choose another "
            "--out"
        ) from None


def refuse_other(identity: Mapping[str, Any], begun: Mapping[str, Any], out: str) -> None:
    """Raise DataError if the settings of a task differ from those with which its folder was begun."""
    for name, value in identity.items():
        if name in begun and begun[name] == value:
            continue
        shown = f": {begun.get(name)!r}, not {value!r}" if name not in ("tokenizer", "corpus") else ""
        raise DataError(
            f"'{out}' was begun with another {name}{shown}; delete it to start again, or choose another --out"
        )


def _save_tokenizer(out: Path, tokenizer: Any) -> None:
    """Save the tokenizer into the folder, unless another task has done so."""
    if (out / TOKENIZER).exists():
        return
    folder = Path(tempfile.mkdtemp(prefix=".wordloom-", dir=out))
    try:
        tokenizer.save_pretrained(folder / TOKENIZER)
        with contextlib.suppress(OSError):  # another task was first
            publish_folder(folder / TOKENIZER, out / TOKENIZER)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read_share(folder: Path, parts: Sequence[str]) -> PreparedShare:
    """Return the completed share in ``folder``; raise DataError if it is missing or damaged."""
    try:
        complete = json.loads((folder / COMPLETE).read_text(encoding="utf-8"))
        if complete["version"] != VERSION:
            raise DataError(f"'{folder}' is of version {complete['version']}, not {VERSION}")
        identity, files, content = complete["identity"], complete["files"], complete["content"]
        named = share_folder(Path(), ShareNumber(complete["task"], identity["number of tasks"])).name
        if folder.name != named:
            raise DataError(f"'{folder}' holds the share '{named}' of another task")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"'{folder}' is not complete ({error})") from error
    ledgers = {}
    for part in parts:
        meta = read_meta(folder / part / "meta.json", SHARDS_VERSION, "token shards")
        for name in ARRAYS:
            about = meta["arrays"][name]
            check_size(folder / part / f"{name}.bin", np.dtype(about["dtype"]), about["count"])
        ledgers[part] = Ledger.from_dict(meta["ledger"])
    return PreparedShare(folder, identity, ledgers, files, content)


def _facts(files: Iterable[Source]) -> list[list[Any]]:
    """Return what tells whether files have changed: name, size, time and span."""
    return [
        [
            os.path.basename(file.name),
            file_size(file),
            os.stat(file.path).st_mtime_ns,
            list(file.span) if file.span else None,
        ]
        for file in files
    ]


def _check_unchanged(share: PreparedShare, corpus: Corpus) -> None:
    """Raise DataError if the files of a completed share have changed; files of another time are read."""
    now = _facts(corpus.files("all"))
    if now != list(map(list, share.files)) and corpus.part_fingerprint("all") != share.content:
        raise DataError(
            f"the files of '{share.folder}' have changed since the task was completed; choose another --out, "
            "or remove that folder and run the task again"
        )
