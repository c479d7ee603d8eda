"""Where word vectors are trained: on the cores by numba, or on a GPU by torch."""

from __future__ import annotations

from typing import Any

import torch

from wordloom.errors import VectorError
from wordloom.training.precision import choose_device
from wordloom.vectors.word2vec.torch_trainer import what_is_missing

__all__ = ["vector_device"]


def vector_device(settings: Any) -> tuple[torch.device | None, str]:
    """The device that ``settings`` (:class:`wordloom.recipe.vectors.VectorSettings`) asks for, and a remark.

    None stands for the processor's cores: the numba kernels are many times faster there than torch.  The
    remark says why a GPU that is there is not used, if so.

    Raises DeviceError for a device that is not there, VectorError for what has no kernel on it.
    """
    missing = what_is_missing(settings)
    if settings.device == "auto":
        if not torch.cuda.is_available():
            return None, ""
        if missing:
            return None, f"; the GPU stands idle: {missing} is not trained on it"
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
