"""Batches of preferences: pairs of a preferred and a rejected answer to the same prompt.

A batch is a pure function of (rows, seed, global sample numbers), as in :mod:`wordloom.data.batches.causal`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.conversations import ConversationRows
from wordloom.data.batches.sequences import SequenceLabelBatches, TokenRows
from wordloom.errors import DataError

_PASS_TOKENS = 1 << 14  # of a forward pass over all pairs, padding included


class PreferenceBatch(NamedTuple):
    """B pairs, the preferred answers in the first B rows and the rejected ones in the last B.

    Attributes:
        tokens: ``[2 B, T]`` inputs, padded on the right.
        targets: ``[2 B, T]`` the token after each input; IGNORE where the answer is not.
        reference: ``[B, 2]`` float32, the log-probabilities of both answers under the reference model, in
            nats; NaN where they are not known.
    """

    tokens: Tensor
    targets: Tensor
    reference: Tensor


class PreferenceBatches:
    """An endless sequence of pairs, addressed by index.

    Args:
        preferred, rejected: conversations that end with either answer, row by row.
        pad_id: the token behind the end of a row.
        seed: decides the order; 0 <= seed < 2**63.
        order: ``"permutation"``: each epoch visits all pairs once, in its own order; or ``"sequential"``.
        alike: the size of groups of pairs of similar length.

    Attributes:
        reference: ``[N, 2]`` float32, which :func:`~wordloom.objectives.answer_logprobs` fills.

    Raises:
        DataError: different numbers of rows.
    """

    def __init__(
        self,
        preferred: ConversationRows,
        rejected: ConversationRows,
        *,
        pad_id: int = 0,
        seed: int = 0,
        order: Literal["permutation", "sequential"] = "permutation",
        alike: int = 1,
    ) -> None:
        n = len(preferred.places)
        if n != len(rejected.places):
            raise DataError(
                f"{n} preferred answers have {len(rejected.places)} rejected ones; give one for each"
            )
        self.sides, self.pad_id = (preferred, rejected), pad_id
        longest = np.maximum(preferred.inputs, rejected.inputs)
        offsets = np.concatenate([[0], np.cumsum(longest)])
        lengths = TokenRows(ids=np.zeros(int(offsets[-1]), np.int32), offsets=offsets, unknown=0, cut=0)
        self._order = SequenceLabelBatches(
            lengths, np.zeros(n, np.int64), seed=seed, order=order, alike=alike
        )
        self._longest = longest
        self.samples_per_epoch: int = n
        self.reference = np.full((n, 2), np.nan, np.float32)

    @property
    def tokens_per_sample(self) -> float:
        """The mean number of inputs of both answers of a pair, without padding."""
        return float(sum(side.inputs.sum() for side in self.sides)) / self.samples_per_epoch

    def batch(self, start: int, count: int) -> PreferenceBatch:
        """Return the samples ``start`` to ``start + count`` (excluded) of the endless sequence."""
        return self.pairs(self._order.rows(start, count))

    def row_samples(self, start: int, count: int) -> NDArray[np.int64]:
        """Return a number for each row of these samples: of the preferred answers, then of the others."""
        samples = 2 * np.arange(start, start + count)
        return np.concatenate([samples, samples + 1])

    def pairs(self, rows: NDArray[np.int64]) -> PreferenceBatch:
        """Return the pairs of these numbers as a batch."""
        T, B = int(self._longest[rows].max()), len(rows)
        tokens, targets = np.full((2 * B, T), self.pad_id, np.int64), np.full((2 * B, T), IGNORE, np.int64)
        for s, side in enumerate(self.sides):
            offsets, ids, scored = side.tokens.offsets, side.tokens.ids, side.scored
            for b, row in enumerate(rows):
                first, last = offsets[row], offsets[row + 1]
                here = (s * B + b, slice(0, last - first - 1))
                tokens[here] = ids[first : last - 1]
                targets[here] = np.where(scored[first + 1 : last], ids[first + 1 : last], IGNORE)
        return PreferenceBatch(
            torch.from_numpy(tokens), torch.from_numpy(targets), torch.from_numpy(self.reference[rows])
        )

    def passes(self) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of pairs in batches that cover all once, the shortest first."""
        order = np.argsort(self._longest, kind="stable")
        start = 0
        while start < len(order):
            widths = 2 * np.maximum.accumulate(self._longest[order[start:]])
            count = max(1, int((np.arange(1, len(widths) + 1) * widths <= _PASS_TOKENS).sum()))
            yield order[start : start + count]
            start += count

    def document_ids(self, start: int, count: int) -> list[str]:
        """Return the records in these samples, for error messages."""
        return [self.sides[0].places[row] for row in sorted(set(self._order.rows(start, count).tolist()))]

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of everything that decides the batches but the reference."""
        digest = hashlib.sha256(self._order.fingerprint.encode())
        for side in self.sides:
            for part in (side.tokens.ids, side.tokens.offsets, side.scored):
                digest.update(part.tobytes())
        return digest.hexdigest()
