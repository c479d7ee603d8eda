"""The compiled kernels of fastText's supervised mode, a linear classifier of lines of text.

A line is the mean of the rows of its words, character n-grams and word n-grams, and takes one step of
gradient descent (Joulin et al. 2017, arXiv:1607.01759).  The next line is planned, and its rows are
prefetched, before the step of the current one.

:func:`run_fast` is the fast mode, in which threads write to shared rows without locks.
:func:`run_deterministic` computes the steps of one line of each of STREAMS streams from fixed rows; then
every thread updates the rows that it owns, in the order of the streams.

The tests compare the kernels with ``tests/vectors/fasttext/twin.py``, which computes the same in NumPy.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.kernels.arithmetic import exp, f4, random, random_below
from wordloom.kernels.barrier import barrier
from wordloom.kernels.machine_code import exact, exact_routine, leaf
from wordloom.kernels.memory import DOUBLE, FLOAT, INT32, INT64, UINT8, UINT64, pointer, ticket
from wordloom.kernels.products import products
from wordloom.kernels.rows import add_rows, copy_rows, fetch_rows, spread, sum_rows
from wordloom.vectors.word2vec.layout import (
    PATIENCE,
    STREAMS,
    Part,
    Tables,
    aligned,
    random_negative,
    rows_of_word,
    thread_of_row,
)

HS, NS, SOFTMAX, OVA = range(4)  # in the order of model.LOSSES

_NEXT_WORD = np.uint64(116049371)  # as in subwords.word_ngrams
_LOSS_MASK = 7  # the loss is computed for one line in 8, and for the first of each job
_MAX_PREFETCH = 64  # most rows prefetched


class Known(NamedTuple):
    """Tables of V words, L labels and R rare words, with consecutive ids in this order."""

    hashes: Any  # [V + L + R] uint64: hashes of words, sign-extended
    unit_starts: Any  # [V + L + R + 1] int64: starts of the rows of words; labels have none
    units: Any  # [N] int32
    share: Any  # [L] uint32: with ``other``, the table of negatives, see sampling.alias_table
    other: Any  # [L] uint32
    path_starts: Any  # [L + 1] int64: starts of labels' paths in the tree, see sampling.huffman
    path_nodes: Any  # [N] int32
    path_codes: Any  # [N] uint8


class Method(NamedTuple):
    """The settings of the kernels, as numbers."""

    words: int  # V, words with a row of their own
    labels: int  # L
    stride: int  # S, dim rounded up to full vector registers
    units: int  # most rows of a word, 1 or more
    buckets: int  # rows of n-grams, after those of words
    word_ngrams: int  # words of the longest word n-gram
    negative: int  # negatives of a line, with the loss NS
    path: int  # nodes of the longest path, with the loss HS
    loss: int  # HS, NS, SOFTMAX or OVA
    longest: int  # words of the longest line


class Scratch(NamedTuple):
    """Scratch memory: the first axis is the thread, or the stream in the deterministic mode.

    Compiled code gets the addresses for one thread or stream.
    """

    at: Any  # [4] int64: job, next line, end of the job's lines, and 1 if a step is computed and not applied
    random: Any  # [1] uint64
    stats: Any  # [4] float64: words, lines, sum of losses, lines in it
    sizes: Any  # [2, 2] int64: inputs and targets of this line and the next
    inputs: Any  # [2, most inputs] int64: rows
    targets: Any  # [2, most targets] int64: rows
    goal: Any  # [2, most targets] float32: 1 or 0
    hashes: Any  # [longest line] uint64
    labels: Any  # [longest line] int64
    x: Any  # [S] float32: the mean of the line's rows
    change: Any  # [S] float32: the update of each of its rows
    t: Any  # [most targets, S] float32, if targets are listed
    g: Any  # [most targets] float32: products, then the factors of x in updates of targets


def max_sizes(method: Method) -> tuple[int, int]:
    """Return the most inputs and targets of a line."""
    inputs = method.longest * (method.units + max(0, method.word_ngrams - 1))
    targets = {HS: method.path, NS: 1 + method.negative}.get(method.loss, method.labels)
    return inputs, targets


def allocate_scratch(number: int, method: Method) -> Scratch:
    """Allocate scratch memory for ``number`` lines at a time."""
    inputs, targets = max_sizes(method)
    listed = targets if method.loss in (HS, NS) else 1

    def zeros(*shape: int, kind: Any = f4) -> NDArray[Any]:
        return aligned(number, *shape, kind=kind)

    return Scratch(
        at=zeros(8, kind=np.int64),
        random=zeros(8, kind=np.uint64),  # a full cache line, so that threads do not share it
        stats=zeros(8, kind=np.float64),
        sizes=zeros(2, 4, kind=np.int64),
        inputs=zeros(2, inputs, kind=np.int64),
        targets=zeros(2, listed, kind=np.int64),
        goal=zeros(2, targets),
        hashes=zeros(method.longest, kind=np.uint64),
        labels=zeros(method.longest, kind=np.int64),
        x=zeros(method.stride),
        change=zeros(method.stride),
        t=zeros(listed, method.stride),
        g=zeros(targets),
    )


@exact
def scratch_at(table: Any, d: int) -> Any:
    """Return the addresses of part d."""
    row = pointer(table + d * 8 * 13, INT64)
    return Scratch(
        row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8], row[9], row[10], row[11],
        row[12],
    )  # fmt: skip


# -- the rows of a line ------------------------------------------------------------------------------------


@exact
def _add_word_ngrams(hashes: Any, T: int, method: Method, inputs: Any, n: int) -> int:
    """Append the rows of word n-grams to n inputs, and return their new number; see word_ngrams."""
    buckets = np.uint64(method.buckets)
    for first in range(T):
        ngram_hash = hashes[first]
        for last in range(first + 1, min(T, first + method.word_ngrams)):
            ngram_hash = ngram_hash * _NEXT_WORD + hashes[last]
            inputs[n] = method.words + np.int64(ngram_hash % buckets)
            n += 1
    return n


@exact
def _add_targets(
    labels: Any, n_labels: int, state: Any, known: Known, method: Method, targets: Any, goal: Any
) -> int:
    """Write the targets for the labels of a line, or for a random one, and return their number."""
    L = method.labels
    if method.loss == OVA:
        for c in range(L):
            goal[c] = f4(0.0)
        for i in range(n_labels):
            goal[labels[i]] = f4(1.0)
        return L
    label = labels[random_below(random(state), n_labels)]
    if method.loss == SOFTMAX:
        for c in range(L):
            goal[c] = f4(0.0)
        goal[label] = f4(1.0)
        return L
    k = 0
    if method.loss == HS:
        starts = pointer(known.path_starts, INT64)
        nodes, codes = pointer(known.path_nodes, INT32), pointer(known.path_codes, UINT8)
        for i in range(starts[label], starts[label + 1]):
            targets[k], goal[k] = nodes[i], f4(codes[i])  # fastText's codes are the opposite of word2vec's
            k += 1
        return k
    targets[0], goal[0], k = label, f4(1.0), 1
    if L > 1:
        for _ in range(method.negative):
            drawn = random_negative(state, known, L)
            while drawn == label:
                drawn = random_negative(state, known, L)
            targets[k], goal[k] = drawn, f4(0.0)
            k += 1
    return k


@exact
def _plan_line(
    line: int, scratch: Scratch, tables: Tables, known: Known, method: Method, limits: Any, part: Part
) -> None:
    """List the input rows and targets of a line; there are none without a label or a row."""
    slot, (max_inputs, max_targets), max_listed = line & 1, limits, 1
    listed = method.loss == HS or method.loss == NS
    if listed:
        max_listed = max_targets
    at_inputs, at_targets = scratch.inputs + 8 * slot * max_inputs, scratch.targets + 8 * slot * max_listed
    inputs, targets = pointer(at_inputs, INT64), pointer(at_targets, INT64)
    goal = pointer(scratch.goal + 4 * slot * max_targets, FLOAT)
    hashes, labels = pointer(scratch.hashes, UINT64), pointer(scratch.labels, INT64)
    sizes = pointer(scratch.sizes, INT64)
    ids, ends, of_words = pointer(part.ids, INT32), pointer(part.ends, INT64), pointer(known.hashes, UINT64)
    V, L = method.words, method.labels
    n = T = n_labels = k = 0
    for i in range(ends[line - 1] if line else 0, ends[line]):
        word = np.int64(ids[i])
        if V <= word < V + L:
            labels[n_labels] = word - V
            n_labels += 1
        else:
            hashes[T] = of_words[word]
            T += 1
            n = rows_of_word(word, known, method, inputs, n)
    if n_labels == 0:
        n = 0
    else:
        n = _add_word_ngrams(hashes, T, method, inputs, n)
    if n:
        k = _add_targets(labels, n_labels, pointer(scratch.random, UINT64), known, method, targets, goal)
        fetch_rows(tables.inputs, at_inputs, min(n, _MAX_PREFETCH), method.stride)
        if listed:
            fetch_rows(tables.outputs, at_targets, min(k, _MAX_PREFETCH), method.stride)
    sizes[4 * slot], sizes[4 * slot + 1] = n, k


# -- a step ------------------------------------------------------------------------------------------------


@leaf
def _softmax(g: Any, goal: Any, k: int, rate: Any, stats: Any, with_loss: bool) -> None:
    """Replace scores [k] with rate * (goal - softmax)."""
    largest, total, expected = g[0], f4(0.0), f4(0.0)
    for c in range(k):
        largest = max(largest, g[c])
        expected += goal[c] * g[c]
    for c in range(k):
        value = exp(g[c] - largest)
        total += value
        g[c] = value
    if with_loss:
        stats[2] += math.log(total) + largest - expected
    for c in range(k):
        g[c] = rate * (goal[c] - g[c] / total)


@leaf
def _logistic(g: Any, goal: Any, k: int, rate: Any, stats: Any, with_loss: bool) -> None:
    """Replace scores [k] with rate * (goal - sigmoid)."""
    if with_loss:
        for c in range(k):
            score = g[c] if goal[c] > f4(0.5) else -g[c]
            stats[2] += math.log1p(math.exp(-abs(score))) + max(-score, f4(0.0))
    for c in range(k):
        g[c] = rate * (goal[c] - f4(1.0) / (f4(1.0) + exp(-g[c])))


@leaf
def _compute_step(
    line: int, scratch: Scratch, tables: Tables, method: Method, limits: Any, rate: Any, with_loss: bool
) -> None:
    """Compute the step of a planned line: x, g and change, from the current rows."""
    slot, (max_inputs, max_targets), S = line & 1, limits, method.stride
    sizes, stats = pointer(scratch.sizes, INT64), pointer(scratch.stats, DOUBLE)
    n, k = sizes[4 * slot], sizes[4 * slot + 1]
    if n == 0:
        return
    x, change, g = pointer(scratch.x, FLOAT), pointer(scratch.change, FLOAT), pointer(scratch.g, FLOAT)
    goal = pointer(scratch.goal + 4 * slot * max_targets, FLOAT)
    share = f4(1.0) / f4(n)
    sum_rows(scratch.x, tables.inputs, scratch.inputs + 8 * slot * max_inputs, n, S)
    for e in range(S):
        x[e] *= share
        change[e] = f4(0.0)
    t = tables.outputs
    if method.loss == HS or method.loss == NS:
        t = scratch.t
        copy_rows(t, tables.outputs, scratch.targets + 8 * slot * max_targets, k, S)
    products(scratch.g, scratch.x, 1, t, k, S)
    if method.loss == SOFTMAX:
        _softmax(g, goal, k, rate, stats, with_loss)
    else:
        _logistic(g, goal, k, rate, stats, with_loss)
    add_rows(FLOAT, scratch.change, t, k, S, scratch.g, 1, S)
    for e in range(S):
        change[e] *= share
    stats[1] += 1
    if with_loss:
        stats[3] += 1


@exact
def _apply_step(
    scratch: Scratch, tables: Tables, method: Method, limits: Any, thread: int, threads: int
) -> None:
    """Apply the last computed step to the rows that this thread owns."""
    at, sizes, S = pointer(scratch.at, INT64), pointer(scratch.sizes, INT64), method.stride
    if at[3] == 0:
        return
    slot, (max_inputs, max_targets) = (at[1] - 1) & 1, limits
    n, k = sizes[4 * slot], sizes[4 * slot + 1]
    if n == 0:
        return
    listed = method.loss == HS or method.loss == NS
    targets = pointer(scratch.targets + 8 * slot * (max_targets if listed else 1), INT64)
    for c in range(k):
        row = targets[c] if listed else c
        if thread_of_row(row, threads) == thread:
            add_rows(FLOAT, tables.outputs + 4 * S * row, scratch.x, 1, S, scratch.g + 4 * c, 1, S)
    at_inputs = scratch.inputs + 8 * slot * max_inputs
    if threads == 1:
        spread(tables.inputs, at_inputs, n, scratch.change, S)
        return
    inputs = pointer(at_inputs, INT64)
    for i in range(n):
        if thread_of_row(inputs[i], threads) == thread:
            spread(tables.inputs, at_inputs + 8 * i, 1, scratch.change, S)


# -- programs ----------------------------------------------------------------------------------------------


@exact
def _start_job(
    job: int, scratch: Scratch, tables: Tables, known: Known, method: Method, limits: Any, part: Part
) -> None:
    """Start job number ``job``, and plan its first line."""
    at, jobs, ends = pointer(scratch.at, INT64), pointer(part.jobs, INT64), pointer(part.ends, INT64)
    first, last = jobs[job], jobs[job + 1]
    pointer(scratch.random, UINT64)[0] = pointer(part.seeds, UINT64)[job]
    pointer(scratch.stats, DOUBLE)[0] += ends[last - 1] - (ends[first - 1] if first else 0)
    at[0], at[1], at[2] = job, first, last
    _plan_line(first, scratch, tables, known, method, limits, part)


@exact
def _advance(scratch: Scratch, tables: Tables, known: Known, method: Method, limits: Any, part: Part) -> None:
    """Plan the line after next, and compute the step of the next one."""
    at = pointer(scratch.at, INT64)
    line, rate = at[1], pointer(part.rates, FLOAT)[at[0]]
    if line + 1 < at[2]:
        _plan_line(line + 1, scratch, tables, known, method, limits, part)
    with_loss = ((line - pointer(part.jobs, INT64)[at[0]]) & _LOSS_MASK) == 0
    _compute_step(line, scratch, tables, method, limits, rate, with_loss)
    at[1], at[3] = line + 1, 1


@exact_routine
def run_fast(
    tables: Tables, known: Known, method: Method, limits: Any, part: Part, jobs: int, table: int, team: Any,
    thread: int,
) -> None:  # fmt: skip
    """Train in the fast mode: each thread takes the next of ``jobs`` until none is left.

    ``table`` is the address of layout.scratch_table's array; ``team`` counts jobs.
    """
    scratch, counter = scratch_at(table, thread), team.ctypes.data
    at = pointer(scratch.at, INT64)
    job = ticket(counter)
    while job < jobs:
        _start_job(job, scratch, tables, known, method, limits, part)
        while at[1] < at[2]:
            _advance(scratch, tables, known, method, limits, part)
            _apply_step(scratch, tables, method, limits, 0, 1)
        job = ticket(counter)


@exact_routine
def run_deterministic(
    tables: Tables, known: Known, method: Method, limits: Any, part: Part, jobs: int, table: int, team: Any,
    thread: int, threads: int,
) -> None:  # fmt: skip
    """Train deterministically: stream d has the jobs d, d + STREAMS, ...; rows change after each line."""
    for d in range(thread, STREAMS, threads):
        at = pointer(scratch_at(table, d).at, INT64)
        at[0], at[1], at[2] = d - STREAMS, 0, 0
    working = True
    while working:
        for d in range(thread, STREAMS, threads):
            scratch = scratch_at(table, d)
            at = pointer(scratch.at, INT64)
            at[3] = 0
            if at[1] >= at[2]:
                at[0] += STREAMS
                if at[0] < jobs:
                    _start_job(at[0], scratch, tables, known, method, limits, part)
            if at[0] < jobs:
                _advance(scratch, tables, known, method, limits, part)
        barrier(team, threads, PATIENCE)
        working = False
        for d in range(STREAMS):
            scratch = scratch_at(table, d)
            _apply_step(scratch, tables, method, limits, thread, threads)
            working = working or pointer(scratch.at, INT64)[0] < jobs
        barrier(team, threads, PATIENCE)
