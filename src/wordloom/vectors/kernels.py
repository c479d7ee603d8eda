"""The kernels of word2vec and fastText, compiled by numba: a stretch of the corpus on every thread.

A window is trained on in two halves.  :func:`_plan` says which rows take part and what is wanted of them,
and has them fetched from memory; :func:`_act` takes the step planned one window before.  What is shared:
negatives are drawn once for a window and stand against each of its words, so that the inner loop is a small
product of matrices, X [m, S] T [k, S]^T, and not m * k dot products of rows met one by one (Ji et al. 2016,
arXiv:1604.04661).

:func:`apart` is the fast mode: threads write to shared rows as they come (Niu et al. 2011, arXiv:1106.5730),
so two runs differ.  :func:`together` is the deterministic one: a batch of windows is worked out on rows that
stand still, then every thread adds what belongs to the rows it owns, in the order of the windows.  A batch is
cut the same way for any number of threads.

:mod:`wordloom.vectors.plain` says the same in numpy, slowly.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wordloom.nn.meeting import add_atomically, meet
from wordloom.nn.program_parts import exp, f4, pointer
from wordloom.nn.vector_registers import add_rows, copy_rows, fetch_rows, spread, sum_rows, tile

__all__ = [
    "DESKS", "Desks", "Method", "Part", "Tables", "Words", "addresses",
    "aligned", "apart", "desk_table",
    "desks", "most_of", "together",
]  # fmt: skip

DESKS = 16  # parts of the corpus that the deterministic mode reads side by side: more threads than that idle
PATIENCE = 20_000  # looks for the other threads, some 100 microseconds: a batch takes about as long
MOST = 16  # windows of each that are worked out at most before any row moves

_SUMS = {"contract", "reassoc", "nsz", "arcp"}
_leaf: Any = njit(fastmath=_SUMS, error_model="numpy", forceinline=True)
_exact: Any = njit(fastmath={"contract"}, error_model="numpy", forceinline=True)
_program: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")

_i4, _i8, _u1, _u4, _u8, _f8 = (
    np.int32(0),
    np.int64(0),
    np.uint8(0),
    np.uint32(0),
    np.uint64(0),
    np.float64(0),
)
_f4 = f4(0)

_LARGE = 4 << 20  # bytes
_LOOK = 63  # the loss is taken of one window in 64
_NEAR = 24  # rows fetched ahead at most: beyond, a core's memory requests queue up


# Compiled code is given addresses: to pass an array on is to count its users, which costs more than a window.
# Each class below names arrays; :func:`addresses` makes the same tuple of where they lie.


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
    negative: int  # drawn for a window; 0: hierarchical softmax
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


def addresses(arrays: Any) -> Any:
    """The same tuple with every array replaced by its address."""
    return type(arrays)(*(int(array.ctypes.data) for array in arrays))


def aligned(*shape: int, kind: Any = f4) -> NDArray[Any]:
    """Zeros that begin at a cache line: else every other load of a vector touches two.

    Large ones lie in pages of 2 MiB where the system has them: rows are met in random order, and the
    processor knows the places of few pages at a time.
    """
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    if size >= _LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
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
    changes, moved = method.batch * (at_once + targets), method.batch * (inputs + targets)
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
    )


def desk_table(desks: Desks) -> NDArray[np.int64]:
    """[desks, arrays] the address of each desk's part of each array."""
    number = desks.at.shape[0]
    return np.array(
        [[array.ctypes.data + d * array.strides[0] for array in desks] for d in range(number)], np.int64
    )


@_exact
def _desk(table: Any, d: int) -> Any:
    """Desk d by its addresses."""
    row = pointer(table + d * 8 * 19, _i8)
    return Desks(
        row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8], row[9], row[10], row[11],
        row[12], row[13], row[14], row[15], row[16], row[17], row[18],
    )  # fmt: skip


# -- random numbers: SplitMix64 (Steele, Lea and Flood 2014) ----------------------------------------------


@_exact
def _random(state: Any) -> Any:
    """64 random bits; ``state`` [1] moves on."""
    z = state[0] + np.uint64(0x9E3779B97F4A7C15)
    state[0] = z
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@_exact
def _below(bits: Any, n: int) -> int:
    """A number of 0 .. n - 1 from the upper half of 64 random bits."""
    number: Any = ((bits >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32)
    return np.int64(number)  # type: ignore[return-value]


@_exact
def _negative(state: Any, words: Words, V: int) -> int:
    """A word, drawn by the table."""
    bits = _random(state)
    word = _below(bits, V)
    if np.uint32(bits & np.uint64(0xFFFFFFFF)) < pointer(words.share, _u4)[word]:
        return word
    return np.int64(pointer(words.other, _u4)[word])  # type: ignore[return-value]


# -- a job -----------------------------------------------------------------------------------------------


@_exact
def _begin(desk: Desks, part: Part, job: int, words: Words) -> None:
    """Lay job number ``job`` on the desk: its words less those that subsampling passes over."""
    state, at, figures = pointer(desk.random, _u8), pointer(desk.at, _i8), pointer(desk.figures, _f8)
    kept, first, stop = pointer(desk.kept, _i4), pointer(desk.first, _i4), pointer(desk.stop, _i4)
    ids, ends, jobs = pointer(part.ids, _i4), pointer(part.ends, _i8), pointer(part.jobs, _i8)
    keep = pointer(words.keep, _u4)
    state[0] = pointer(part.seeds, _u8)[job]
    n = 0
    for piece in range(jobs[job], jobs[job + 1]):
        head = n
        begins = ends[piece - 1] if piece else 0
        for i in range(begins, ends[piece]):
            word = ids[i]
            if keep[word] >= np.uint32(_random(state) >> np.uint64(32)):
                kept[n] = word
                n += 1
        for i in range(head, n):
            first[i], stop[i] = head, n
        figures[0] += ends[piece] - begins
    figures[1] += n
    at[0], at[1], at[2] = job, 0, n


@_exact
def _rows_of(word: int, words: Words, method: Method, rows: Any, n: int) -> int:
    """Write the rows that make ``word`` behind the n that ``rows`` has; returns how many it has then."""
    if method.units == 0:
        rows[n] = word
        return n + 1
    starts, units = pointer(words.unit_starts, _i8), pointer(words.units, _i4)
    for i in range(starts[word], starts[word + 1]):
        rows[n] = units[i]
        n += 1
    return n


@_exact
def _units_of(word: int, words: Words) -> int:
    """How many rows make ``word``."""
    starts = pointer(words.unit_starts, _i8)
    return starts[word + 1] - starts[word]


@_exact
def _wanted(word: int, words: Words, method: Method, targets: Any, goal: Any, weight: Any, k: int) -> int:
    """Write what predicts ``word`` behind the k targets there are; returns how many there are then."""
    if method.negative:
        targets[k], goal[k], weight[k] = word, f4(1.0), f4(1.0)
        return k + 1
    starts = pointer(words.path_starts, _i8)
    nodes, codes = pointer(words.path_nodes, _i4), pointer(words.path_codes, _u1)
    for i in range(starts[word], starts[word + 1]):
        targets[k], goal[k], weight[k] = nodes[i], f4(1 - codes[i]), f4(1.0)
        k += 1
    return k


@_exact
def _plan(i: int, desk: Desks, tables: Tables, words: Words, method: Method, most: Any) -> None:
    """Which rows window i takes: those that predict, and those predicted with what is wanted of each."""
    slot, (most_inputs, most_targets) = i & 1, most
    state, kept, sizes = pointer(desk.random, _u8), pointer(desk.kept, _i4), pointer(desk.sizes, _i8)
    at_inputs, at_targets = desk.inputs + 8 * slot * most_inputs, desk.targets + 8 * slot * most_targets
    inputs, targets = pointer(at_inputs, _i8), pointer(at_targets, _i8)
    goal = pointer(desk.goal + 4 * slot * most_targets, _f4)
    weight = pointer(desk.weight + 4 * slot * most_targets, _f4)
    window = method.window
    less = _below(_random(state), window)
    lowest = max(np.int64(pointer(desk.first, _i4)[i]), i - window + less)
    highest = min(np.int64(pointer(desk.stop, _i4)[i]), i + window + 1 - less)
    n = k = divisor = 0
    ring = 2 * window + 2
    if method.sliding:
        _come(i, slot, desk, tables, words, method)
    if highest - lowest > 1:
        if method.from_centre:
            n = _rows_of(kept[i], words, method, inputs, 0)
        else:
            k = _wanted(kept[i], words, method, targets, goal, weight, 0)
        for j in range(lowest, highest):
            if j == i:
                continue
            if method.from_centre:
                k = _wanted(kept[j], words, method, targets, goal, weight, k)
            elif method.sliding:
                inputs[n] = j % ring
                n += 1
                divisor += _units_of(kept[j], words)
            else:
                n = _rows_of(kept[j], words, method, inputs, n)
        wanted = k
        for _ in range(method.negative):
            drawn = _negative(state, words, method.vocabulary)
            against = wanted
            for j in range(wanted):  # a word is no negative of itself
                against -= targets[j] == drawn
            targets[k], goal[k], weight[k] = drawn, f4(0.0), f4(against)
            k += 1
    sizes[3 * slot], sizes[3 * slot + 1], sizes[3 * slot + 2] = n, k, divisor if method.sliding else n
    if not method.sliding:
        fetch_rows(tables.inputs, at_inputs, min(n, _NEAR), method.stride)
    fetch_rows(tables.outputs, at_targets, min(k, _NEAR), method.stride)


# Where words have many rows (n-grams) and several words are inputs of a window, each is read when it comes
# into reach of the window and moved when it leaves: between, ``sums`` stands for its rows and ``pending``
# collects what is to be added to each.  Else every row is read and written for each window the word is in.


@_exact
def _come(i: int, slot: int, desk: Desks, tables: Tables, words: Words, method: Method) -> None:
    """Have the rows of the word fetched that comes into reach with window i."""
    entering = i + method.window
    if entering < pointer(desk.at, _i8)[2]:
        place = desk.rows + 8 * slot * method.units
        n = _rows_of(pointer(desk.kept, _i4)[entering], words, method, pointer(place, _i8), 0)
        fetch_rows(tables.inputs, place, min(n, _NEAR), method.stride)


@_exact
def _enter(p: int, place: int, desk: Desks, tables: Tables, words: Words, method: Method) -> None:
    """Sum the rows, listed at ``place``, of the word at p."""
    S = method.stride
    slot = p % (2 * method.window + 2)
    n = _units_of(pointer(desk.kept, _i4)[p], words)
    sum_rows(desk.sums + 4 * S * slot, tables.inputs, place, n, S)
    pending = pointer(desk.pending + 4 * S * slot, _f4)
    for e in range(S):
        pending[e] = f4(0.0)


@_exact
def _come_in(i: int, desk: Desks, tables: Tables, words: Words, method: Method) -> None:
    """Sum the rows of the word that comes into reach with window i; at the first, of all within reach."""
    n = pointer(desk.at, _i8)[2]
    if i == 0:
        place = desk.rows + 16 * method.units
        for p in range(min(n, method.window)):
            _rows_of(pointer(desk.kept, _i4)[p], words, method, pointer(place, _i8), 0)
            _enter(p, place, desk, tables, words, method)
    if i + method.window < n:
        _enter(i + method.window, desk.rows + 8 * (i & 1) * method.units, desk, tables, words, method)


@_exact
def _leave(p: int, desk: Desks, tables: Tables, words: Words, method: Method, held: bool) -> None:
    """Add to the rows of the word at p what its windows have come to."""
    S = method.stride
    place, change = desk.rows + 16 * method.units, desk.pending + 4 * S * (p % (2 * method.window + 2))
    rows = pointer(place, _i8)
    n = _rows_of(pointer(desk.kept, _i4)[p], words, method, rows, 0)
    if held:
        _hold(desk, rows, n, change, S)
    else:
        spread(tables.inputs, place, n, change, S)


_four_by_two, _two_by_four, _one_by_four = tile(4, 2), tile(2, 4), tile(1, 4)
_like = np.zeros(1, dtype=np.float32)


@_leaf
def _products(g: int, x: int, m: int, t: int, n: int, S: int) -> None:
    """g [m, n] = x [m, S] t [n, S]^T, all by address."""
    r = 0
    while r + 4 <= m:
        for c in range(0, n, 2):
            place = g + 4 * (r * n + c)
            _four_by_two(_like, t + 4 * c * S, min(2, n - c), 0, x + 4 * r * S, S, place, n, False)
        r += 4
    if r + 2 <= m:
        for c in range(0, n, 4):
            place = g + 4 * (r * n + c)
            _two_by_four(_like, t + 4 * c * S, min(4, n - c), 0, x + 4 * r * S, S, place, n, False)
        r += 2
    if r < m:
        for c in range(0, n, 4):
            place = g + 4 * (r * n + c)
            _one_by_four(_like, t + 4 * c * S, min(4, n - c), 0, x + 4 * r * S, S, place, n, False)


@_leaf
def _look(g: Any, goal: Any, weight: Any, m: int, n: int, figures: Any) -> None:
    """Add -log sigmoid of the products, negated where they should be low, to the figures."""
    for r in range(m):
        for k in range(n):
            score = g[r * n + k] if goal[k] > f4(0.5) else -g[r * n + k]
            figures[2] += weight[k] * (math.log1p(math.exp(-abs(score))) + max(-score, f4(0.0)))
    for k in range(n):
        figures[3] += m * goal[k]


@_leaf
def _moving(desk: Desks, tables: Tables, row: int, table: int, S: int, held: bool) -> int:
    """Where what is to be added to a row goes: the row itself, or a change kept back, of zeros yet."""
    if not held:
        return (tables.outputs if table else tables.inputs) + 4 * S * row
    at, moved = pointer(desk.at, _i8), pointer(desk.moved, _i8)
    change, item = at[3], 3 * at[4]
    moved[item], moved[item + 1], moved[item + 2] = row, table, change
    at[3], at[4] = change + 1, at[4] + 1
    place = desk.changes + 4 * S * change
    values = pointer(place, _f4)
    for e in range(S):
        values[e] = f4(0.0)
    return place


@_leaf
def _hold(desk: Desks, rows: Any, n: int, values: int, S: int) -> None:
    """Keep back one change, which lies at ``values``, for n rows of inputs."""
    at, moved, given = pointer(desk.at, _i8), pointer(desk.moved, _i8), pointer(values, _f4)
    change, item = at[3], 3 * at[4]
    kept = pointer(desk.changes + 4 * S * change, _f4)
    for e in range(S):
        kept[e] = given[e]
    for r in range(n):
        moved[item], moved[item + 1], moved[item + 2] = rows[r], 0, change
        item += 3
    at[3], at[4] = change + 1, at[4] + n


@_leaf
def _act(i: int, desk: Desks, tables: Tables, method: Method, most: Any, rate: Any, held: bool) -> None:
    """Take the step of window i, which is planned; where ``held``, keep the changes back."""
    slot, (most_inputs, most_targets), S = i & 1, most, method.stride
    sizes = pointer(desk.sizes, _i8)
    n, k = sizes[3 * slot], sizes[3 * slot + 1]
    if n == 0:
        return
    read, written = tables.inputs, tables.inputs
    if method.sliding:
        read, written = desk.sums, desk.pending
    at_rows, at_targets = desk.inputs + 8 * slot * most_inputs, desk.targets + 8 * slot * most_targets
    rows, targets = pointer(at_rows, _i8), pointer(at_targets, _i8)
    goal = pointer(desk.goal + 4 * slot * most_targets, _f4)
    weight = pointer(desk.weight + 4 * slot * most_targets, _f4)
    x, g = pointer(desk.x, _f4), pointer(desk.g, _f4)
    m = n
    share = f4(1.0)
    if method.joined:
        m = 1
        share = f4(1.0) / f4(sizes[3 * slot + 2])
        sum_rows(desk.x, read, at_rows, n, S)
        if method.mean:
            for e in range(S):
                x[e] *= share
            share = f4(1.0)  # each takes the whole step, as in word2vec.c
    else:
        copy_rows(desk.x, tables.inputs, at_rows, n, S)
    copy_rows(desk.t, tables.outputs, at_targets, k, S)
    _products(desk.g, desk.x, m, desk.t, k, S)
    if (i & _LOOK) == 0:
        _look(g, goal, weight, m, k, pointer(desk.figures, _f8))
    for r in range(m):
        for c in range(k):
            g[r * k + c] = rate * weight[c] * (goal[c] - f4(1.0) / (f4(1.0) + exp(-g[r * k + c])))
    # Targets move by g^T x and inputs by g t: both by what stood there before.
    for c in range(k):
        place = _moving(desk, tables, targets[c], 1, S, held)
        add_rows(place, desk.x, m, S, desk.g + 4 * c, k, S)
    if method.joined:
        for e in range(S):
            x[e] = f4(0.0)
        for c in range(k):
            g[c] *= share
        add_rows(desk.x, desk.t, k, S, desk.g, 1, S)
        if held and not method.sliding:
            _hold(desk, rows, n, desk.x, S)
        else:
            spread(written, at_rows, n, desk.x, S)
        return
    for r in range(m):
        place = _moving(desk, tables, rows[r], 0, S, held)
        add_rows(place, desk.t, k, S, desk.g + 4 * r * k, 1, S)


# -- programs ----------------------------------------------------------------------------------------------


@_exact
def _windows(
    first: int, last: int, desk: Desks, tables: Tables, words: Words, method: Method, most: Any, rate: Any,
    held: bool,
) -> None:  # fmt: skip
    """Windows ``first`` to ``last`` (excluded), each planned while the one before is worked on."""
    sliding, window, n = method.sliding, method.window, pointer(desk.at, _i8)[2]
    for i in range(first, last + 1):
        if i < last:
            _plan(i, desk, tables, words, method, most)
        if i == first:
            continue
        if sliding:
            _come_in(i - 1, desk, tables, words, method)
        _act(i - 1, desk, tables, method, most, rate, held)
        if sliding and i > window:
            _leave(i - 1 - window, desk, tables, words, method, held)
    if sliding and last == n:
        for p in range(max(0, n - window), n):
            _leave(p, desk, tables, words, method, held)


@_program
def apart(
    tables: Tables, words: Words, method: Method, most: Any, part: Part, jobs: int, table: int, team: Any,
    thread: int,
) -> None:  # fmt: skip
    """The fast mode: take one of ``jobs`` after another until none is left; every row is everybody's.

    ``table`` is the address of :func:`desk_table`'s array; ``team`` counts jobs.
    """
    desk, counter = _desk(table, thread), team.ctypes.data
    at = pointer(desk.at, _i8)
    job = add_atomically(counter, 1)
    while job < jobs:
        _begin(desk, part, job, words)
        rate = pointer(part.rates, _f4)[job]
        _windows(0, at[2], desk, tables, words, method, most, rate, False)
        job = add_atomically(counter, 1)


@_program
def together(
    tables: Tables, words: Words, method: Method, most: Any, part: Part, jobs: int, table: int, team: Any,
    thread: int, threads: int,
) -> None:  # fmt: skip
    """The deterministic mode: desk d has jobs d, d + DESKS, ...; all work out a batch, then rows move."""
    for d in range(thread, DESKS, threads):
        at = pointer(_desk(table, d).at, _i8)
        at[0], at[1], at[2] = d - DESKS, 0, 0
    working = True
    while working:
        for d in range(thread, DESKS, threads):
            _batch(_desk(table, d), tables, words, method, most, part, jobs)
        meet(team, threads, PATIENCE)
        working = False
        for d in range(DESKS):
            desk = _desk(table, d)
            _move(desk, tables, method.stride, thread, threads)
            working = working or pointer(desk.at, _i8)[0] < jobs
        meet(team, threads, PATIENCE)


@_exact
def _batch(
    desk: Desks, tables: Tables, words: Words, method: Method, most: Any, part: Part, jobs: int
) -> None:
    """Work out the desk's next windows, fewer than a batch where its job ends."""
    at = pointer(desk.at, _i8)
    at[3] = at[4] = 0
    while at[0] < jobs and at[1] >= at[2]:
        following = at[0] + DESKS
        at[0] = following
        if following < jobs:
            _begin(desk, part, following, words)
    if at[0] < jobs:
        first = at[1]
        last = min(at[2], first + method.batch)
        rate = pointer(part.rates, _f4)[at[0]]
        _windows(first, last, desk, tables, words, method, most, rate, True)
        at[1] = last


@_exact
def _move(desk: Desks, tables: Tables, S: int, thread: int, threads: int) -> None:
    """Add the changes kept on the desk to those rows that are this thread's."""
    moved = pointer(desk.moved, _i8)
    for i in range(pointer(desk.at, _i8)[4]):
        if moved[3 * i] % threads == thread:
            rows = tables.outputs if moved[3 * i + 1] else tables.inputs
            spread(rows, desk.moved + 24 * i, 1, desk.changes + 4 * S * moved[3 * i + 2], S)
