"""The device that trains word vectors: the CPU's cores with numba kernels, or a GPU with torch."""

from __future__ import annotations

from typing import Any

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
