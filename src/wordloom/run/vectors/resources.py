"""The resources of a run of word vectors: the device that trains them, and the memory that they take."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch

from wordloom.errors import VectorError
from wordloom.training.precision import choose_device
from wordloom.vectors.word2vec.torch_trainer import unsupported


def vector_device(settings: Any) -> tuple[torch.device | None, str]:
    """Return the device for ``settings`` (:class:`wordloom.recipe.vectors.VectorSettings`), and a remark.

    None means the CPU's cores, where the numba kernels are many times faster than torch.  The remark says why
    an available GPU is not used.

    Raises DeviceError for a device that is not available, VectorError for settings that it does not support.
    """
    missing = unsupported(settings)
    if settings.device == "auto":
        if not torch.cuda.is_available():
            return None, ""
        if missing:
            return None, f"; the GPU is idle: {missing} is not trained on it"
        return torch.device("cuda"), ""
    device = choose_device(settings.device)
    if device.type == "cpu":
        return None, ""
    if missing:
        raise VectorError(
            f"vectors.device is {settings.device!r}, but {missing} is not trained on a GPU; set "
            "vectors.device=cpu"
        )
    return device, ""


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
