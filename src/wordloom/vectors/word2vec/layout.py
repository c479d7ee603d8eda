"""What training word vectors lays out in memory, and how compiled code finds it.

Compiled code is given addresses: to pass an array on is to count its users, which costs more than a window.
Each class below names arrays; :func:`addresses` makes the same tuple of where they lie.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.kernels.arithmetic import f4
from wordloom.kernels.machine_code import exact
from wordloom.kernels.memory import pointer

__all__ = [
    "DESKS", "Desks", "Method", "Part", "Tables", "Words", "addresses", "aligned", "desk_of", "desk_table",
    "desks", "most_of",
]  # fmt: skip

DESKS = 16  # parts of the corpus that the deterministic mode reads side by side: more threads than that idle
LARGE = 4 << 20  # bytes


class Tables(NamedTuple):
    """What is learnt.  S is dim rounded up to whole vector registers; what is beyond dim is zero."""

    inputs: Any  # [V (+ buckets), S] float32
    outputs: Any  # [V or V - 1, S] float32: of words, or of the inner nodes of the tree


class Words(NamedTuple):
    """What is known of the vocabulary; arrays that a method does not use are empty."""

    keep: Any  # [V] uint32: an occurrence is trained on unless a random number of 32 bits is above
    share: Any  # [V] uint32, with ``other`` the table that draws negatives, see sampling.alias_table
    other: Any  # [V] uint32
    path_starts: Any  # [V + 1] int64: where a word's path in the tree begins, see sampling.huffman
    path_nodes: Any  # [N] int32
    path_codes: Any  # [N] uint8
    unit_starts: Any  # [V + 1] int64: where the rows that a word is the mean of begin
    units: Any  # [N] int32


class Method(NamedTuple):
    """How it is learnt, in numbers."""

    vocabulary: int  # V
    stride: int  # S
    window: int
    negative: int  # noise words drawn for a window; 0: hierarchical softmax
    times: int  # as many as are asked for, that often: each counts that part
    units: int  # rows that make a word at most; 0: a word has a row of its own and no more
    path: int  # nodes that lead to a word at most
    joined: int  # 1: inputs are taken together (CBOW; a word's n-grams); 0: each by itself
    mean: int  # 1: ... by their mean; 0: by their sum
    from_centre: int  # 1: the word in the middle predicts those around it (fastText's skip-gram)
    sliding: (
        int  # 1: words of several rows are read once and moved once, not once for each window they are in
    )
    batch: int  # windows of a desk that are worked out before any row moves; 0: the fast mode


class Part(NamedTuple):
    """A part of the corpus, cut into jobs of some thousand words; a window never leaves its piece."""

    ids: Any  # [N] int32
    ends: Any  # [P] int64: where each piece ends in ``ids``
    jobs: Any  # [J + 1] int64: which pieces are whose
    rates: Any  # [J] float32: learning rates
    seeds: Any  # [J] uint64


class Desks(NamedTuple):
    """What is laid out for a job: one desk for every thread, or DESKS in the deterministic mode.

    The first axis of each array is the desk.  Compiled code sees one desk's addresses.
    """

    at: Any  # [5] int64: job, next window, windows; changes kept back, rows that take one
    random: Any  # [1] uint64
    figures: Any  # [4] float64: words read, windows, loss, words predicted that the loss is of
    kept: Any  # [words of a job] int32: its words, less those passed over
    first: Any  # [words of a job] int32: where the piece of a word begins in ``kept``
    stop: Any  # [words of a job] int32: ... and ends
    sizes: Any  # [2, 3] int64: inputs and targets of this window and the next, and what a mean divides by
    inputs: Any  # [2, most inputs] int64: rows; of ``sums`` where words are sliding
    targets: Any  # [2, most targets] int64: rows
    goal: Any  # [2, most targets] float32: 1 or 0
    weight: Any  # [2, most targets] float32: how often a target counts
    x: Any  # [inputs worked on at once, S] float32
    t: Any  # [most targets, S] float32
    g: Any  # [inputs worked on at once * most targets] float32
    rows: Any  # [3, most rows of a word] int64: of the words entering now and next, and of one leaving
    sums: Any  # [2 window + 2, S] float32: of the rows of each word within reach, by its place in turn
    pending: Any  # [2 window + 2, S] float32: what is to be added to each of its rows when it leaves
    changes: Any  # [most changes, S] float32
    moved: Any  # [most rows moved, 3] int64: a row, of inputs 0 or outputs 1, and the change it takes
    factors: Any  # [most rows moved] float32: ... so many times


def addresses(arrays: Any) -> Any:
    """The same tuple with every array replaced by its address."""
    return type(arrays)(*(int(array.ctypes.data) for array in arrays))


def aligned(*shape: int, kind: Any = f4) -> NDArray[Any]:
    """Zeros that begin at a cache line: else every other load of a vector touches two.

    Large ones lie in pages of 2 MiB where the system has them: rows are met in random order, and the
    processor knows the places of few pages at a time.
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


def most_of(method: Method) -> tuple[int, int, int]:
    """Inputs and targets that a window has at most, and inputs worked on at once."""
    around, units = 2 * method.window, max(1, method.units)
    inputs = units if method.from_centre else around if method.sliding else around * units
    words = around if method.from_centre else 1
    targets = words + method.negative if method.negative else words * method.path
    return inputs, targets, 1 if method.joined else around


def desks(number: int, method: Method, *, job: int) -> Desks:
    """Room for ``number`` jobs of ``job`` words each."""
    inputs, targets, at_once = most_of(method)
    # what is joined keeps back x, which moves every target, and what moves x
    changes = method.batch * (2 if method.joined else at_once + targets)
    moved = method.batch * (inputs + targets)
    ring, units = 2 * method.window + 2, max(1, method.units)
    if method.batch and method.sliding:  # the last words of a job leave together
        changes += method.window
        moved = method.batch * targets + (method.batch + method.window) * units

    def zeros(*shape: int, kind: Any = f4) -> NDArray[Any]:
        return aligned(number, *shape, kind=kind)

    return Desks(
        at=zeros(8, kind=np.int64),
        random=zeros(8, kind=np.uint64),  # a cache line, which no other thread writes to
        figures=zeros(8, kind=np.float64),
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


def desk_table(desks: Desks) -> NDArray[np.int64]:
    """[desks, arrays] the address of each desk's part of each array."""
    number = desks.at.shape[0]
    return np.array(
        [[array.ctypes.data + d * array.strides[0] for array in desks] for d in range(number)], np.int64
    )


@exact
def desk_of(table: Any, d: int) -> Any:
    """Desk d by its addresses."""
    row = pointer(table + d * 8 * 20, np.int64(0))
    return Desks(
        row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8], row[9], row[10], row[11],
        row[12], row[13], row[14], row[15], row[16], row[17], row[18], row[19],
    )  # fmt: skip
