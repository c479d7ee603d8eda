"""Co-occurrence counts X_ij of GloVe: how often word j occurs near word i, counted in bounded memory.

The corpus is divided into portions that fit into memory.  Each is indexed by word and counted row by row.  If
there are several, their counts are written to disk as sorted runs and then added up.  The records (i, j, x)
are shuffled and written to one file, which training memory-maps.  Counts and order do not depend on the
memory or the number of threads.

A folder holds ``records.bin`` (int32 i, int32 j, float32 x, little-endian) and ``meta.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.data.cache import cache_folder, reused_or_written
from wordloom.data.shards.storage import TokenShards
from wordloom.errors import VectorError
from wordloom.threads import cores

VERSION = 2
RECORD = np.dtype([("i", "<i4"), ("j", "<i4"), ("x", "<f4")])


class CooccurrenceProgress(NamedTuple):
    """The progress of counting.

    Attributes:
        stage: ``"count"`` (in tokens), ``"merge"`` (in words, if there are several portions) or ``"shuffle"``
            (in records).
        done, total: the progress of the stage.
    """

    stage: str
    done: int
    total: int


class CooccurrenceReport(NamedTuple):
    """Statistics of counting.

    Attributes:
        tokens: tokens of the corpus.
        records: pairs of words that co-occur.
        runs: portions of the corpus; 1 if it fitted into memory.
        spilled: bytes written to temporary files.
    """

    tokens: int
    records: int
    runs: int
    spilled: int


class Cooccurrences:
    """Shuffled records (i, j, x), memory-mapped.

    Attributes:
        folder: their folder.
        fingerprint: sha256 of the tokens and settings.
        records: [n] of i (int32), j (int32) and x (float32): word j has the count x > 0 near word i.
        vocab_size: the number of words; i and j are below it.
        window, symmetric, distance_weighting, seed: the arguments of :func:`count_cooccurrences`.
        report: statistics of counting.
        reused: :func:`count_cooccurrences` read them from the cache.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Open ``folder``.

        Raises VectorError if the folder holds no co-occurrences, or they have another version or are damaged.
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
                    f"'{path}' is damaged: it has {size:,} bytes instead of {expected:,}; count them again"
                )
            self.records: NDArray[Any] = np.memmap(path, dtype=RECORD, mode="r").view(np.ndarray)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise VectorError(f"'{folder}' holds no co-occurrences ({error}); count them again") from error

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.records)

    def __repr__(self) -> str:
        return f"Cooccurrences({str(self.folder)!r}, words={self.vocab_size}, records={len(self)})"

    @property
    def cells(self) -> NDArray[np.uint32]:
        """The records for the kernels: [n, 3] uint32, with the bits of x."""
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
    """Count how often words co-occur (Pennington et al. 2014, sections 3 and 4.2).

    A word at distance d counts 1/d.  Distances are between words of the vocabulary; other words do not count.
    Windows end at the boundaries of documents.

    The result is cached in a folder of ``cache`` (default: :func:`~wordloom.data.cache.cache_folder`) named
    after tokens and settings.

    Args:
        shards: the corpus as ids, for example of a :class:`wordloom.vectors.WordVocabulary`.
        window: words on either side.  The authors' tool has 15 by default; the paper's tables use 10.
        symmetric: count words on both sides.  Otherwise word j counts if it is to the left of i, as in the
            paper.  (The authors' tool then swaps i and j.)
        distance_weighting: count 1/d.  Otherwise each word of the window counts 1.
        memory_mb: memory in MiB, without memory maps; the rest goes through temporary files.
        workers: threads; by default one per processor.
        seed: the seed of the shuffle.
        progress: called now and then with :class:`CooccurrenceProgress`.

    Raises:
        VectorError: a setting is out of range, the memory cannot hold a row of X, no two words co-occur, or
            the disk cannot be written.
    """
    from wordloom.vectors.glove.cooccurrence_counting import Counting

    _check_settings(window, workers, memory_mb)
    settings = {
        "vocab_size": shards.vocab_size,
        "window": window,
        "symmetric": bool(symmetric),
        "distance_weighting": bool(distance_weighting),
        "seed": seed,
    }
    identity = json.dumps([VERSION, shards.fingerprint, settings])
    fingerprint = hashlib.sha256(identity.encode()).hexdigest()
    target = cache_folder(cache) / "cooccurrences" / fingerprint[:32]
    report_progress = progress or (lambda _: None)

    def write(folder: Path) -> None:
        folder.mkdir()
        counting = Counting(
            shards, folder, window=window, both=symmetric, weigh=distance_weighting,
            memory=memory_mb * 2**20, workers=workers or cores(), seed=seed,
            report_progress=lambda *step: report_progress(CooccurrenceProgress(*step)),
        )  # fmt: skip
        records = counting.run(folder / "records.bin")
        for left in folder.glob("*.tmp"):
            left.unlink()
        report = CooccurrenceReport(counting.n_tokens, records, counting.n_runs, counting.spilled)
        meta = {"version": VERSION, "fingerprint": fingerprint, **settings, "report": report._asdict()}
        (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")

    return reused_or_written(
        target, lambda: Cooccurrences(target), write,
        name="co-occurrences", doing="counting the same co-occurrences", error=VectorError,
    )  # fmt: skip


def _check_settings(window: int, workers: int | None, memory_mb: float) -> None:
    if window < 1:
        raise VectorError(f"window {window} holds no words; give 1 or more")
    if workers is not None and workers < 1:
        raise VectorError(f"workers {workers} is not allowed; give 1 or more, or leave it out")
    if not 0 < memory_mb < float("inf"):
        raise VectorError(f"memory_mb {memory_mb} is not an amount of memory; give MiB, 1024 for a GiB")
