"""The protocol of caches, and the length of each row."""

from __future__ import annotations

from typing import Any, Protocol, Self

import torch
from torch import Tensor

from wordloom.errors import GenerationError


class Cache(Protocol):
    """The protocol of every cache; see :mod:`wordloom.nn.cache`."""

    @property
    def lengths(self) -> Tensor: ...
    @property
    def longest(self) -> int: ...
    def layer(self, index: int) -> Any: ...
    def advance(self, tokens: Tensor, attend: Tensor | None = None) -> None: ...
    def empty(self, batch: int, length: int) -> Self: ...
    def select(self, rows: Tensor) -> None: ...
    def join(self, other: Self) -> None: ...
    def truncate(self, lengths: int | Tensor) -> None: ...


class RowLengths:
    """The length of each row, and how it changes.

    Attributes:
        n_rows: B.
        longest: The largest length.
    """

    def __init__(self, batch: int) -> None:
        self.n_rows, self.longest = batch, 0
        self._different: Tensor | None = None  # the lengths [B] of rows that differ in length

    @property
    def uniform(self) -> bool:
        """Whether all rows have one length."""
        return self._different is None

    @property
    def lengths(self) -> Tensor:
        """The lengths [B], int64, on the CPU."""
        # rows of one length, the usual case, need no tensor, which would cost a step some microseconds
        return torch.full((self.n_rows,), self.longest) if self._different is None else self._different

    def set_lengths(self, lengths: Tensor) -> None:
        least, most = (int(n) for n in lengths.aminmax()) if len(lengths) else (0, 0)
        self.n_rows, self.longest = len(lengths), most
        self._different = lengths if least < most else None

    def select_lengths(self, rows: Tensor) -> None:
        """Keep the lengths of these rows, in this order."""
        if self._different is None and len(rows):
            self.n_rows = len(rows)
        else:
            self.set_lengths(self.lengths[rows.cpu()])

    def advance(self, tokens: Tensor, attend: Tensor | None = None) -> None:
        """Count the new ``tokens`` [B, T]; of a row with padding, those that ``attend`` [B, T] marks."""
        if attend is None:
            self.longest += tokens.shape[1]
            if self._different is not None:
                self._different = self._different + tokens.shape[1]
        else:
            self.set_lengths(self.lengths + attend.sum(dim=1).cpu())

    def checked(self, lengths: int | Tensor) -> Tensor:
        """Return ``lengths`` [B]; raises GenerationError unless each is from 0 to the row's length."""
        lengths = torch.as_tensor(lengths, dtype=torch.int64).cpu().expand(self.n_rows)
        if bool((lengths < 0).any()) or bool((lengths > self.lengths).any()):
            raise GenerationError(
                f"a cache of {self.lengths.tolist()} tokens cannot be truncated to {lengths.tolist()}"
            )
        return lengths


def check_started(first: RowLengths, second: RowLengths) -> None:
    """Raise GenerationError where rows join rows of which nothing is stored yet."""
    if first.n_rows and second.n_rows:
        raise GenerationError("rows join after their first token; pass their prompts through the model first")


def check_unchanged(cache: RowLengths, lengths: Tensor, message: str) -> None:
    """Raise GenerationError with ``message`` unless ``lengths`` [B] are those of ``cache``."""
    if not torch.equal(lengths, cache.lengths):
        raise GenerationError(message)
