"""The precisions in which a model can be loaded, by name."""

from __future__ import annotations

import torch

from wordloom.errors import DeviceError, did_you_mean

__all__ = ["DTYPES", "choose_dtype"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_dtype(name: str) -> torch.dtype | None:
    """Return the dtype called ``name``, or None for ``auto`` (as stored).

    Raises DeviceError for other names.
    """
    if name != "auto" and name not in DTYPES:
        raise DeviceError(f"unknown dtype {name!r}; {did_you_mean(name, ['auto', *DTYPES])}")
    return DTYPES.get(name)
