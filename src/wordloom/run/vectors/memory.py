"""Checks that word vectors fit into memory, made before it is allocated."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from wordloom.errors import VectorError


def check_memory(dim: int, rows: int, purpose: str) -> None:
    """Raise VectorError if ``rows`` vectors of ``dim`` float32 exceed the free memory."""
    needed, free = 4 * dim * rows, psutil.virtual_memory().available
    if needed > free:
        raise VectorError(
            f"vectors.dim {dim:,} takes {needed:,} bytes of memory ({purpose}), and {free:,} are free; "
            "lower vectors.dim (--dim)"
        )


@contextmanager
def out_of_memory(dim: int, setting: str) -> Iterator[None]:
    """Turn a failed allocation inside the block into VectorError, which suggests lowering ``setting`` too."""
    try:
        yield
    except (MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        raise VectorError(
            f"there is no memory for training vectors.dim {dim:,} ({error}); lower it, or {setting}"
        ) from None
