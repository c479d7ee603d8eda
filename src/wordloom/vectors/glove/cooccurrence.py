"""Co-occurrence counts: how often word j stands near word i, X_ij of GloVe, counted in bounded memory.

A portion of the corpus at a time is indexed by word and counted row by row; portions after the first wait
on disk as sorted runs, which are then added up row by row.  The records (i, j, x) are put in a random order
and written to one file, which training reads through a memory map.  Counts and order are the same whatever
the memory and the number of threads.

A folder holds ``records.bin`` (int32 i, int32 j, float32 x, little-endian) and ``meta.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.data.cache import cache_folder, locked
from wordloom.data.shards.storage import TokenShards
from wordloom.errors import VectorError
from wordloom.files import sync
from wordloom.text.cores import cores

__all__ = ["CooccurrenceProgress", "CooccurrenceReport", "Cooccurrences", "count_cooccurrences"]


VERSION = 1
RECORD = np.dtype([("i", "<i4"), ("j", "<i4"), ("x", "<f4")])


class CooccurrenceProgress(NamedTuple):
    """How far counting is.

    Attributes:
        stage: ``"count"``, which goes by tokens, ``"merge"``, by words, where the corpus was counted in
            portions, and ``"shuffle"``, by records.
        done, total: of the stage.
    """

    stage: str
    done: int
    total: int


class CooccurrenceReport(NamedTuple):
    """What counting did.

    Attributes:
        tokens: of the corpus.
        records: pairs of words that stand near one another somewhere.
        runs: portions of the corpus that were counted apart and added up; 1 where all fitted in memory.
        spilled: bytes of runs and unordered records that went through temporary files.
        count_seconds, shuffle_seconds: time taken up to the last count, and from then on.
    """

    tokens: int
    records: int
    runs: int
    spilled: int
    count_seconds: float
    shuffle_seconds: float


class Cooccurrences:
    """Records (i, j, x) in a random order, memory-mapped.

    Attributes:
        folder: where they lie.
        fingerprint: sha256 of what they were made from: tokens and settings.
        records: [n] of i (int32), j (int32) and x (float32): word j counted x > 0 near word i.
        vocab_size: number of words; i and j are below it.
        window, symmetric, distance_weighting, seed: as :func:`count_cooccurrences` was given them.
        report: what counting did.
        reused: whether :func:`count_cooccurrences` found them ready.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Opens ``folder``.

        Raises:
            VectorError: the folder holds no co-occurrences, or they are of another version or damaged.
        """
        self.folder, self.reused = Path(folder), False
        try:
            meta: dict[str, Any] = json.loads((self.folder / "meta.json").read_text(encoding="utf-8"))
            if meta["version"] != VERSION:
                raise VectorError(
                    f"'{folder}' has co-occurrences of version {meta['version']}, not {VERSION}; "
                    "count them again"
                )
            self.fingerprint: str = meta["fingerprint"]
            self.vocab_size, self.window, self.seed = meta["vocab_size"], meta["window"], meta["seed"]
            self.symmetric: bool = meta["symmetric"]
            self.distance_weighting: bool = meta["distance_weighting"]
            self.report = CooccurrenceReport(**meta["report"])
            path = self.folder / "records.bin"
            size, expected = path.stat().st_size, self.report.records * RECORD.itemsize
            if size != expected:
                raise VectorError(
                    f"'{path}' is damaged: {size:,} bytes where {expected:,} belong; count them again"
                )
            self.records: NDArray[Any] = np.memmap(path, dtype=RECORD, mode="r").view(np.ndarray)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise VectorError(f"'{folder}' holds no co-occurrences ({error}); count them again") from error

    def __len__(self) -> int:
        """Number of records."""
        return len(self.records)

    def __repr__(self) -> str:
        return f"Cooccurrences({str(self.folder)!r}, words={self.vocab_size}, records={len(self)})"

    @property
    def cells(self) -> NDArray[np.uint32]:
        """The records as the kernels take them: [n, 3], x by its bits."""
        return self.records.view(np.uint32).reshape(-1, 3)


def count_cooccurrences(
    shards: TokenShards,
    *,
    window: int = 15,
    symmetric: bool = True,
    distance_weighting: bool = True,
    memory_mb: float = 1024,
    workers: int | None = None,
    seed: int = 1,
    cache: str | os.PathLike[str] | None = None,
    progress: Callable[[CooccurrenceProgress], None] | None = None,
) -> Cooccurrences:
    """Count how often words stand near one another (Pennington et al. 2014, section 3 and 4.2).

    A word at distance d counts 1/d.  Words that were left out of the vocabulary are not there: distances
    are between the words that were kept.  No window reaches into another document.

    The result lies in a folder of ``cache`` (default: :func:`~wordloom.data.cache.cache_folder`) named
    by tokens and settings; it is made once, and appears there when it is complete.

    Args:
        shards: the corpus as ids, by a :class:`wordloom.vectors.WordVocabulary` for one.
        window: words looked at on a side.  15 is the default of the authors' tool; the paper's tables use 10.
        symmetric: whether words on the right count as well as those on the left.  If not, word j counts
            near i where it stands to the left of i, as in the paper.  (The authors' tool then writes the
            pair the other way round.)
        distance_weighting: whether to weigh by 1/d; else each word of the window counts 1.
        memory_mb: memory to work in, in MiB, memory maps aside; what does not fit goes through temporary
            files beside the result.
        workers: threads; by default one per processor.
        seed: of the order of records.
        progress: told now and then, see :class:`CooccurrenceProgress`.

    Raises:
        VectorError: a setting is out of range, memory does not suffice for a row of X, no two words stand
            near one another, or the disk cannot be written.
    """
    from wordloom.vectors.glove.cooccurrence_counting import Counting

    workers = _checked(window, workers, memory_mb)
    settings = {
        "vocab_size": shards.vocab_size,
        "window": window,
        "symmetric": bool(symmetric),
        "distance_weighting": bool(distance_weighting),
        "seed": seed,
    }
    identity = json.dumps([VERSION, shards.fingerprint, settings])
    fingerprint = hashlib.sha256(identity.encode()).hexdigest()
    root = cache_folder(cache) / "cooccurrences"
    target = root / fingerprint[:32]
    tell = progress or (lambda _: None)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(target, "counting the same co-occurrences"):
            if (ready := _ready(target)) is not None:
                return ready
            with _made_whole(target) as temporary:
                counting = Counting(
                    shards, temporary, window=window, both=symmetric, weigh=distance_weighting,
                    memory=memory_mb * 2**20, workers=workers, seed=seed,
                    tell=lambda *step: tell(CooccurrenceProgress(*step)),
                )  # fmt: skip
                report = _run(counting, temporary)
                meta = {"version": VERSION, "fingerprint": fingerprint, **settings}
                with (temporary / "meta.json").open("w", encoding="utf-8") as file:
                    json.dump({**meta, "report": report._asdict()}, file, indent=1)
                    file.flush()
                    os.fsync(file.fileno())
    except OSError as error:
        raise VectorError(
            f"cannot write co-occurrences to '{root}': {error.strerror or error}; "
            "free space there, or choose another folder with WORDLOOM_CACHE"
        ) from error
    return Cooccurrences(target)


def _checked(window: int, workers: int | None, memory_mb: float) -> int:
    """The number of threads, when all settings are in order."""
    if window < 1:
        raise VectorError(f"window {window} holds no words; give 1 or more")
    if workers is not None and workers < 1:
        raise VectorError(f"workers {workers} is not allowed; give 1 or more, or leave it out")
    if not 0 < memory_mb < float("inf"):
        raise VectorError(f"memory_mb {memory_mb} is no amount of memory; give MiB, 1024 for a gigabyte")
    return workers or cores()


def _run(counting: Any, folder: Path) -> CooccurrenceReport:
    times = [time.perf_counter()]
    records = counting.run(folder / "records.bin", lambda: times.append(time.perf_counter()))
    times.append(time.perf_counter())
    for left in folder.glob("*.tmp"):
        left.unlink()
    return CooccurrenceReport(
        tokens=counting.n_tokens,
        records=records,
        runs=counting.n_runs,
        spilled=counting.spilled,
        count_seconds=times[1] - times[0],
        shuffle_seconds=times[2] - times[1],
    )


def _ready(target: Path) -> Cooccurrences | None:
    """The co-occurrences in ``target`` if they are there and sound; damaged ones are counted again."""
    if not target.exists():
        return None
    try:
        found = Cooccurrences(target)
    except VectorError:
        return None
    found.reused = True
    return found


@contextmanager
def _made_whole(target: Path) -> Iterator[Path]:
    """A new folder that takes the name ``target`` when all went well, and else is gone."""
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # of a run that was killed
    temporary.mkdir()
    try:
        yield temporary
        sync(temporary)
        shutil.rmtree(target, ignore_errors=True)  # damaged, or it would have been taken
        temporary.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
