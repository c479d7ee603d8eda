"""What precision a model is read in, by name."""

from __future__ import annotations

import torch

from wordloom.errors import DeviceError, did_you_mean

__all__ = ["DTYPES", "choose_dtype"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_dtype(name: str) -> torch.dtype | None:
    """The dtype called ``name``; None for ``auto``, as stored.  Raises DeviceError for any other name."""
    if name != "auto" and name not in DTYPES:
        raise DeviceError(f"unknown dtype {name!r}; {did_you_mean(name, ['auto', *DTYPES])}")
    return DTYPES.get(name)
