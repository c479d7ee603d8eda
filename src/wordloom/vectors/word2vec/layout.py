"""The memory layout of training word vectors.

Compiled code gets addresses, because the reference counts of arrays cost more time than a window.  Each class
below names arrays; :func:`addresses` returns the same tuple with their addresses.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.kernels.arithmetic import f4, random, random_below
from wordloom.kernels.machine_code import exact
from wordloom.kernels.memory import INT32, INT64, UINT32, pointer

STREAMS = 16  # streams of jobs in the deterministic mode, which limits its threads
LARGE = 4 << 20  # bytes


class Tables(NamedTuple):
    """The parameters.  S is dim rounded up to full vector registers, padded with zeros."""

    inputs: Any  # [V (+ buckets), S] float32
    outputs: Any  # [V or V - 1, S] float32: of words, or of the inner nodes of the tree


class Words(NamedTuple):
    """Tables of the vocabulary; arrays that a method does not use are empty."""

    keep: Any  # [V] uint32: an occurrence is skipped if 32 random bits exceed it
    share: Any  # [V] uint32: with ``other``, the table of negatives, see sampling.alias_table
    other: Any  # [V] uint32
    path_starts: Any  # [V + 1] int64: starts of paths in the tree, see sampling.huffman
    path_nodes: Any  # [N] int32
    path_codes: Any  # [N] uint8
    unit_starts: Any  # [V + 1] int64: starts of the rows whose mean is a word's vector
    units: Any  # [N] int32


class Method(NamedTuple):
    """The settings of the kernels, as numbers."""

    vocabulary: int  # V
    stride: int  # S
    window: int
    negative: int  # negatives of a window; 0: hierarchical softmax
    times: int  # the factor by which more negatives are drawn; each has weight 1 / times
    units: int  # most rows of a word; 0: only its own row
    path: int  # nodes of the longest path
    joined: int  # 1: inputs are combined (CBOW, or n-grams of a word); 0: separate
    mean: int  # 1: combined by their mean; 0: by their sum
    from_centre: int  # 1: the centre word predicts its context (fastText's skip-gram)
    sliding: int  # 1: rows of a word are read and written once, not once for each window
    batch: int  # windows of a stream before rows change; 0: the fast mode


class Part(NamedTuple):
    """A part of the corpus, in jobs of some thousand words; windows stay within a piece."""

    ids: Any  # [N] int32
    ends: Any  # [P] int64: ends of pieces in ``ids``
    jobs: Any  # [J + 1] int64: the first piece of each job
    rates: Any  # [J] float32: learning rates
    seeds: Any  # [J] uint64


class Scratch(NamedTuple):
    """Scratch memory: the first axis is the thread, or the stream in the deterministic mode.

    Compiled code gets the addresses for one thread or stream.
    """

    at: Any  # [5] int64: job, next window, windows, deferred changes, deferred rows
    random: Any  # [1] uint64
    stats: Any  # [4] float64: words, windows, sum of losses, predictions in it
    kept: Any  # [words of a job] int32: the words after subsampling
    first: Any  # [words of a job] int32: the start of the word's piece in ``kept``
    stop: Any  # [words of a job] int32: its end
    sizes: Any  # [2, 3] int64: inputs, targets and divisor of this window and the next
    inputs: Any  # [2, most inputs] int64: rows, of ``sums`` if sliding
    targets: Any  # [2, most targets] int64: rows
    goal: Any  # [2, most targets] float32: 1 or 0
    weight: Any  # [2, most targets] float32: weights of targets
    x: Any  # [inputs at a time, S] float32
    t: Any  # [most targets, S] float32
    g: Any  # [inputs at a time * most targets] float32
    rows: Any  # [3, most rows of a word] int64: of the words entering now and next, and of one leaving
    sums: Any  # [2 window + 2, S] float32: sums of the rows of words in the window, a ring buffer
    pending: Any  # [2 window + 2, S] float32: updates of the rows of these words
    changes: Any  # [most changes, S] float32: deferred changes
    moved: Any  # [most updates, 3] int64: row, table (0: inputs, 1: outputs), change
    factors: Any  # [most updates] float32: factors of the changes


def addresses(arrays: Any) -> Any:
    """Return the same tuple with the addresses of the arrays."""
    return type(arrays)(*(int(array.ctypes.data) for array in arrays))


def aligned(*shape: int, kind: Any = f4) -> NDArray[Any]:
    """Return zeros aligned to a cache line, so that a vector register is loaded from one line.

    Large arrays use pages of 2 MiB if the system has them: rows are read in random order, and the processor
    caches the addresses of few pages.
    """
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    if size >= LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without them
            room.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(room, dtype=kind).reshape(shape)
    bytes_ = np.zeros(size + 64, dtype=np.uint8)
    start = -bytes_.ctypes.data % 64
    return bytes_[start : start + size].view(kind).reshape(shape)


def max_sizes(method: Method) -> tuple[int, int]:
    """Return the most inputs and targets of a window."""
    around, units = 2 * method.window, max(1, method.units)
    inputs = units if method.from_centre else around if method.sliding else around * units
    words = around if method.from_centre else 1
    targets = words + method.negative if method.negative else words * method.path
    return inputs, targets


def allocate_scratch(number: int, method: Method, *, job: int) -> Scratch:
    """Allocate scratch memory for ``number`` jobs of ``job`` words each."""
    (inputs, targets), at_once = max_sizes(method), 1 if method.joined else 2 * method.window
    # combined inputs defer two changes: x, which updates targets, and its own update
    changes = method.batch * (2 if method.joined else at_once + targets)
    moved = method.batch * (inputs + targets)
    ring, units = 2 * method.window + 2, max(1, method.units)
    if method.batch and method.sliding:  # the last words of a job leave at the same time
        changes += method.window
        moved = method.batch * targets + (method.batch + method.window) * units

    def zeros(*shape: int, kind: Any = f4) -> NDArray[Any]:
        return aligned(number, *shape, kind=kind)

    return Scratch(
        at=zeros(8, kind=np.int64),
        random=zeros(8, kind=np.uint64),  # a full cache line, so that threads do not share it
        stats=zeros(8, kind=np.float64),
        kept=zeros(job, kind=np.int32),
        first=zeros(job, kind=np.int32),
        stop=zeros(job, kind=np.int32),
        sizes=zeros(2, 3, kind=np.int64),
        inputs=zeros(2, inputs, kind=np.int64),
        targets=zeros(2, targets, kind=np.int64),
        goal=zeros(2, targets),
        weight=zeros(2, targets),
        x=zeros(at_once, method.stride),
        t=zeros(targets, method.stride),
        g=zeros(at_once * targets),
        rows=zeros(3, units, kind=np.int64),
        sums=zeros(ring, method.stride),
        pending=zeros(ring, method.stride),
        changes=zeros(changes, method.stride),
        moved=zeros(moved, 3, kind=np.int64),
        factors=zeros(moved),
    )


def scratch_table(scratch: Scratch) -> NDArray[np.int64]:
    """Return the addresses [threads or streams, arrays] of each part of each array."""
    number = scratch.at.shape[0]
    rows = [[array.ctypes.data + d * array.strides[0] for array in scratch] for d in range(number)]
    return np.array(rows, np.int64)


@exact
def scratch_at(table: Any, d: int) -> Any:
    """Return the addresses of part d."""
    row = pointer(table + d * 8 * 20, np.int64(0))
    return Scratch(
        row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8], row[9], row[10], row[11],
        row[12], row[13], row[14], row[15], row[16], row[17], row[18], row[19],
    )  # fmt: skip


PATIENCE = 20_000  # polls of a barrier: about 100 microseconds, the time of a batch


@exact
def random_negative(state: Any, words: Any, V: int) -> int:
    """Return a negative example, drawn from the alias table of ``words`` (Walker 1977)."""
    bits = random(state)
    word = random_below(bits, V)
    if np.uint32(bits & np.uint64(0xFFFFFFFF)) < pointer(words.share, UINT32)[word]:
        return word
    return np.int64(pointer(words.other, UINT32)[word])  # type: ignore[return-value]


@exact
def rows_of_word(word: int, words: Any, method: Any, rows: Any, n: int) -> int:
    """Append the rows whose sum is ``word`` to the n in ``rows``, and return their new number."""
    if method.units == 0:
        rows[n] = word
        return n + 1
    starts, units = pointer(words.unit_starts, INT64), pointer(words.units, INT32)
    for i in range(starts[word], starts[word + 1]):
        rows[n] = units[i]
        n += 1
    return n


@exact
def thread_of_row(row: int, threads: int) -> int:
    """Return the thread that updates ``row``, without a division, which would cost as much as the update."""
    mixed = (np.uint64(row) * np.uint64(0x9E3779B9)) & np.uint64(0xFFFFFFFF)
    return np.int64((mixed * np.uint64(threads)) >> np.uint64(32))  # type: ignore[return-value]
