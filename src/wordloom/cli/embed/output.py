"""Where ``wordloom embed`` writes the rows of texts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from wordloom.cli.vectors.output import print_notes
from wordloom.errors import VectorError, did_you_mean

if TYPE_CHECKING:
    from wordloom.cli.embed.clusters import Grouping

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Output:
    """The file for the rows of texts (None: standard output), or the clusters that take the rows."""

    file: Path | None
    clusters: Grouping | None

    def check_ending(self, allowed: Sequence[str], rows: str) -> None:
        """Raise VectorError if the ending of the file is not one of those ``allowed`` for ``rows``."""
        if self.file is not None and self.clusters is None and self.file.suffix not in allowed:
            hint = did_you_mean(self.file.suffix, allowed)
            raise VectorError(f"'{self.file}' has an ending that cannot hold {rows}; {hint}")

    def take(
        self,
        batches: Iterable[Batch],
        write: Callable[[Path | None, Iterable[Batch]], int],
        rows: str,
        notes: Callable[[], list[str]],
    ) -> None:
        """Cluster the texts of ``batches``, or ``write`` their ``rows``; then print the notes."""
        if self.clusters is not None:
            clustered: Iterable[Any] = batches
            self.clusters.take(clustered)
            print_notes(notes())
            return
        n = write(self.file, batches)
        print_notes([*notes(), *([] if self.file is None else [f"{n:,} {rows} written to {self.file}"])])


@contextmanager
def output_file(path: Path | None) -> Iterator[IO[bytes]]:
    """Open ``path`` to write it as a whole, or (None) standard output."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    from wordloom.vectors.whole_files import new_file

    with new_file(path) as file:
        yield file
