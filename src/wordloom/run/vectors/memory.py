"""Whether word vectors fit into memory, asked before any of it is taken."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from wordloom.errors import VectorError

__all__ = ["check_memory", "out_of_memory"]


def check_memory(dim: int, rows: int, what: str) -> None:
    """Raise VectorError where ``rows`` vectors of ``dim`` float32 are more than there is memory for."""
    needed, free = 4 * dim * rows, psutil.virtual_memory().available
    if needed > free:
        raise VectorError(
            f"vectors.dim {dim:,} takes {needed:,} bytes of memory ({what}), and {free:,} are free here; "
            "lower vectors.dim (--dim)"
        )


@contextmanager
def out_of_memory(dim: int, beside: str) -> Iterator[None]:
    """What the system refuses to give for what goes beside the vectors, whose size the setting ``beside``
    decides, is the same mistake."""
    try:
        yield
    except (MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        raise VectorError(
            f"there is no memory for training vectors.dim {dim:,} ({error}); lower it, or {beside}"
        ) from None
