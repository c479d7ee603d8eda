"""Batches of conversations for a causal model: the loss covers the answers alone.

A batch is a pure function of (rows, seed, global sample numbers), as in :mod:`wordloom.data.batches.causal`.
Conversations that are packed into one window do not see one another, so their gradients are those of the same
conversations one by one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from wordloom.data.batches.causal import IGNORE, CausalBatch
from wordloom.data.batches.order import in_epochs, sample_numbers
from wordloom.data.batches.sequences import SequenceLabelBatches, TokenRows, padded_passes, stacked_rows
from wordloom.data.rows.conversations import Conversation
from wordloom.errors import DataError
from wordloom.text.chat import ChatIds

TooLong = Literal["error", "drop", "cut"]


class LengthNames(NamedTuple):
    """How errors name the longest row (``limit``) and the settings for longer ones (``drop``, ``cut``).

    ``advice`` begins what errors tell the user to do.
    """

    limit: str = "train.seq_len allows"
    drop: str = 'data.too_long = "drop"'
    cut: str = '"cut"'
    advice: str = "raise it, or say"


_RECIPE = LengthNames()


@dataclass(frozen=True, kw_only=True)
class ConversationRows:
    """Conversations as rows of tokens.

    Attributes:
        tokens: the ids of all rows.
        scored: [n] bool, True for each id that an assistant writes.
        places: the record of each row, for errors.
        dropped: conversations left out because they are too long.
        empty: answers without a text.
    """

    tokens: TokenRows
    scored: NDArray[np.bool_]
    places: tuple[str, ...]
    dropped: int
    empty: int

    @property
    def inputs(self) -> NDArray[np.int64]:
        """The inputs of each row, [N]: all its tokens but the last."""
        return self.tokens.lengths - 1


def conversation_rows(
    encode: Callable[[Conversation], ChatIds],
    conversations: Iterable[Conversation],
    *,
    longest: int,
    too_long: TooLong = "error",
    names: LengthNames = _RECIPE,
    unknown: int | None = None,
) -> ConversationRows:
    """Encode ``conversations``.

    Args:
        encode: returns the ids of one.
        longest: inputs of a row at most, one less than its tokens.
        too_long: what happens to a longer one: an error, it is left out ("drop"), or truncated ("cut").
        names: how errors name the limit and ``too_long``.
        unknown: the id of the unknown token, to count it.

    Raises DataError, which names the record: it is too long, no token of an answer is left, or it has none.
    """
    ids: list[NDArray[np.int32]] = []
    scored: list[NDArray[np.bool_]] = []
    places: list[str] = []
    dropped = cut = empty = 0
    for conversation in conversations:
        row = encode(conversation)
        if len(row.ids) - 1 > longest:
            if too_long == "error":
                raise DataError(
                    f"{conversation.place}: has {len(row.ids) - 1:,} tokens and {names.limit} {longest:,}; "
                    f"{names.advice} {names.drop} to leave such records out, or {names.cut} to truncate them"
                )
            if too_long == "drop":
                dropped += 1
                continue
            row = ChatIds(row.ids[: longest + 1], row.scored[: longest + 1])
            cut += 1
            if not any(row.scored[1:]):
                raise DataError(
                    f"{conversation.place}: its answer lies behind the first {longest:,} tokens, and "
                    f"{names.limit} no more; {names.advice} {names.drop} to leave such records out"
                )
        if not any(row.scored[1:]):
            raise DataError(f"{conversation.place}: has no token of an answer; the template writes none")
        empty += sum(message.role == "assistant" and not message.content for message in conversation.messages)
        ids.append(np.array(row.ids, np.int32))
        scored.append(np.array(row.scored, np.bool_))
        places.append(conversation.place)
    if not ids:
        raise nothing_left("conversation", dropped, longest, names)
    joined, offsets = stacked_rows(ids)
    count = 0 if unknown is None else int((joined == unknown).sum())
    return ConversationRows(
        tokens=TokenRows(ids=joined, offsets=offsets, unknown=count, cut=cut),
        scored=np.concatenate(scored),
        places=tuple(places),
        dropped=dropped,
        empty=empty,
    )


def nothing_left(noun: str, dropped: int, longest: int, names: LengthNames = _RECIPE) -> DataError:
    """Return the error for data without a ``noun`` of at most ``longest`` tokens."""
    if not dropped:
        return DataError(f"there is no {noun}; give at least one")
    longer = f"all {dropped:,} {noun}s are longer" if dropped > 1 else f"the only {noun} is longer"
    return DataError(f"{longer} than the {longest:,} tokens that {names.limit}, and would be left out")


class ConversationBatches:
    """An endless sequence of windows of packed conversations, or of single ones, addressed by index.

    Args:
        rows: the conversations.
        seq_len: inputs of a packed window; None: each conversation is a sample of its own.
        pad_id: the token behind the last conversation of a window.
        seed: decides the order of the samples; 0 <= seed < 2**63.
        order: ``"permutation"``: each epoch visits all samples once, in its own order. ``"sequential"``: in
            their own order.
        alike: without packing, the size of groups of samples of similar length.

    Raises:
        DataError: a seed out of range, a row that is longer than ``seq_len``.
    """

    def __init__(
        self,
        rows: ConversationRows,
        *,
        seq_len: int | None,
        pad_id: int = 0,
        seed: int = 0,
        order: Literal["permutation", "sequential"] = "permutation",
        alike: int = 1,
    ) -> None:
        self.rows, self.seq_len, self.pad_id, self.seed, self.order = rows, seq_len, pad_id, seed, order
        lengths = rows.inputs
        self._single = SequenceLabelBatches(
            rows.tokens, np.zeros(len(lengths), np.int64), pad_id=pad_id, seed=seed, order=order, alike=alike
        )
        windows = [[row] for row in range(len(lengths))] if seq_len is None else packed(lengths, seq_len)
        self._members, self._ends = stacked_rows([np.array(window, np.int32) for window in windows])
        self.samples_per_epoch: int = len(windows)

    @property
    def tokens_per_sample(self) -> float:
        """The mean number of inputs of a sample, without padding."""
        return float(self.rows.inputs.sum()) / self.samples_per_epoch

    @property
    def packed_share(self) -> float:
        """The share of the positions of all windows that hold a token; 1 without packing."""
        return 1.0 if self.seq_len is None else self.tokens_per_sample / self.seq_len

    def batch(self, start: int, count: int) -> CausalBatch:
        """Return the samples ``start`` to ``start + count`` (excluded) of the endless sequence."""
        windows = self._windows(start, count)
        T = self.seq_len or int(self.rows.inputs[windows].max())
        shape = (count, T)
        tokens, targets = np.full(shape, self.pad_id, np.int64), np.full(shape, IGNORE, np.int64)
        positions, documents = np.zeros(shape, np.int64), np.full(shape, -1, np.int64)
        offsets, ids, scored = self.rows.tokens.offsets, self.rows.tokens.ids, self.rows.scored
        several = False
        for b, window in enumerate(windows):
            at = 0
            members = self._members[self._ends[window] : self._ends[window + 1]]
            several |= len(members) > 1
            for number, row in enumerate(members):
                first, last = offsets[row], offsets[row + 1]
                n = last - first - 1
                here = slice(at, at + n)
                tokens[b, here] = ids[first : last - 1]
                targets[b, here] = np.where(scored[first + 1 : last], ids[first + 1 : last], IGNORE)
                positions[b, here] = np.arange(n)
                documents[b, here] = number
                at += n
        both = torch.from_numpy(tokens), torch.from_numpy(targets)
        if not several:  # padding stands behind the text, where no token sees it
            return CausalBatch(*both)
        return CausalBatch(*both, torch.from_numpy(positions), torch.from_numpy(documents))

    def _windows(self, start: int, count: int) -> NDArray[np.int64]:
        """Return the window of each sample: [count]."""
        if self.seq_len is None:
            return self._single.rows(start, count)
        permuted = self.order == "permutation"
        samples = sample_numbers(start, count)
        return in_epochs(samples, self.samples_per_epoch, self.seed, permuted=permuted)[1].astype(np.int64)

    def passes(self) -> Iterator[tuple[int, int]]:
        """Yield ``start, count`` of batches that cover all samples once, as large as a pass may be."""
        length = self.seq_len
        lengths = self.rows.inputs
        if length is None:
            return padded_passes(self._single, lambda rows: np.maximum.accumulate(lengths[rows]))
        n, most = self.samples_per_epoch, max(1, (1 << 14) // length)
        return ((start, min(most, n - start)) for start in range(0, n, most))

    def document_ids(self, start: int, count: int) -> list[str]:
        """Return the records in these samples, for error messages."""
        members = [self._members[self._ends[w] : self._ends[w + 1]] for w in self._windows(start, count)]
        return [self.rows.places[row] for row in np.unique(np.concatenate(members))]

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of everything that decides the batches."""
        settings: list[Any] = [self.seq_len, self.pad_id, self.seed, self.order, self._single.alike]
        digest = hashlib.sha256(json.dumps(settings).encode())
        for part in (self.rows.tokens.ids, self.rows.tokens.offsets, self.rows.scored):
            digest.update(part.tobytes())
        return digest.hexdigest()


def packed(lengths: Sequence[int] | NDArray[np.int64], size: int) -> list[list[int]]:
    """Pack rows of ``lengths`` into as few windows of ``size`` as best-fit decreasing finds.

    Each row goes, the longest first, into the fullest window that has room for it (Johnson 1973).  The
    windows are in the order of their first rows.

    Raises DataError for a row that is longer than ``size``.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    windows: list[list[int]] = []
    open_windows: dict[int, list[int]] = {}  # by the room that they have left
    rooms = 0  # bit r is set if a window has room r
    for row in order.tolist():
        length = int(lengths[row])
        if length > size:
            raise DataError(f"a row of {length:,} tokens does not fit a window of {size:,}")
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            window = open_windows[room].pop()
            if not open_windows[room]:
                rooms &= ~(1 << room)
        else:
            room, window = size, len(windows)
            windows.append([])
        windows[window].append(row)
        left = room - length
        if left:
            open_windows.setdefault(left, []).append(window)
            rooms |= 1 << left
    return sorted((sorted(window) for window in windows), key=lambda window: window[0])
