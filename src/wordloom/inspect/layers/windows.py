"""Batches of windows over a text.  A window is a list of ids, of which the model reads all but the last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

BATCH_TOKENS = 4096


def batches_of(windows: Iterable[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Yield windows in batches of about BATCH_TOKENS, padding included; those of one id are left out."""
    batch: list[Sequence[int]] = []
    longest = 0
    for window in windows:
        if len(window) < 2:
            continue
        if batch and max(longest, len(window)) * (len(batch) + 1) > BATCH_TOKENS:
            yield batch
            batch, longest = [], 0
        batch.append(window)
        longest = max(longest, len(window))
    if batch:
        yield batch


def padded(windows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens to read [B, T], which of them are real [B, T], and the N tokens that follow these."""
    lengths = [len(window) - 1 for window in windows]
    tokens = np.zeros((len(windows), max(lengths)), dtype=np.int64)
    real = np.zeros(tokens.shape, dtype=bool)
    for row, (window, n) in enumerate(zip(windows, lengths, strict=True)):
        tokens[row, :n], real[row, :n] = window[:-1], True
    followers = np.concatenate([np.asarray(window[1:], dtype=np.int64) for window in windows])
    return torch.from_numpy(tokens), torch.from_numpy(real), torch.from_numpy(followers)
