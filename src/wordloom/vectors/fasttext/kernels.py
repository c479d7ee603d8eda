"""The kernels of fastText's supervised mode, compiled by numba: lines of text in, a linear classifier out.

A line is the mean of its rows, those of its words, their n-grams and runs of words, and one step of gradient
descent is taken for each (Joulin et al. 2017, arXiv:1607.01759).  The next line is planned, and its rows
fetched from memory, before the step of this one is worked out.

:func:`apart` is the fast mode, in which threads write to shared rows as they come.  :func:`together` is the
deterministic one: DESKS lines are worked out on rows that stand still, then every thread moves the rows it
owns, in the order of the desks.

:mod:`wordloom.vectors.fasttext.twin` says the same in numpy, slowly.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.kernels.arithmetic import exp, f4
from wordloom.kernels.barrier import barrier
from wordloom.kernels.machine_code import exact, leaf
from wordloom.kernels.memory import pointer, ticket
from wordloom.kernels.rows import add_rows, copy_rows, fetch_rows, spread, sum_rows
from wordloom.kernels.vectors import (
    F4,
    F8,
    I4,
    I8,
    PATIENCE,
    U1,
    U8,
    below,
    negative,
    products,
    program,
    random,
    rows_of,
    whose,
)
from wordloom.vectors.word2vec.layout import DESKS, Part, Tables, aligned

__all__ = ["HS", "NS", "OVA", "SOFTMAX", "Desks", "Known", "Method", "apart", "desks", "most_of", "together"]

HS, NS, SOFTMAX, OVA = range(4)  # in the order of fasttext_model.LOSSES

_NEXT_WORD = np.uint64(116049371)  # as in subwords.word_ngrams
_LOOK = 7  # the loss is taken of one line in 8, and of the first of each job
_NEAR = 64  # rows fetched ahead at most


class Known(NamedTuple):
    """What is known of V words, L labels and R rare words, whose ids follow one another in this order."""

    hashes: Any  # [V + L + R] uint64: of whole words, widened as signed numbers
    unit_starts: Any  # [V + L + R + 1] int64: where the rows that stand for a word begin; a label has none
    units: Any  # [N] int32
    share: Any  # [L] uint32, with ``other`` the table that draws negatives, see sampling.alias_table
    other: Any  # [L] uint32
    path_starts: Any  # [L + 1] int64: where a label's path in the tree begins, see sampling.huffman
    path_nodes: Any  # [N] int32
    path_codes: Any  # [N] uint8


class Method(NamedTuple):
    """How it is learnt, in numbers."""

    words: int  # V, words with a row of their own
    labels: int  # L
    stride: int  # S, dim rounded up to whole vector registers
    units: int  # rows that stand for a word at most, 1 or more
    buckets: int  # rows that n-grams and runs share, behind the words'
    word_ngrams: int  # words in the longest run that has a row
    negative: int  # labels drawn for a line, with the loss NS
    path: int  # nodes that lead to a label at most, with the loss HS
    loss: int  # HS, NS, SOFTMAX or OVA
    longest: int  # words in the longest line


class Desks(NamedTuple):
    """What is laid out for a line: one desk for every thread, or DESKS in the deterministic mode.

    The first axis of each array is the desk.  Compiled code sees one desk's addresses.
    """

    at: Any  # [4] int64: job, next line, end of the job's lines, and 1 where a step waits to be taken
    random: Any  # [1] uint64
    figures: Any  # [4] float64: words read, lines trained on, loss, and lines that the loss is of
    sizes: Any  # [2, 2] int64: inputs and targets of this line and the next, by turns
    inputs: Any  # [2, most inputs] int64: rows
    targets: Any  # [2, most targets] int64: rows
    goal: Any  # [2, most targets] float32: 1 or 0
    hashes: Any  # [longest line] uint64
    labels: Any  # [longest line] int64
    x: Any  # [S] float32: the line
    change: Any  # [S] float32: what each of its rows takes
    t: Any  # [most targets, S] float32, where targets are not all there are
    g: Any  # [most targets] float32: products, then by how much of x each target moves


def most_of(method: Method) -> tuple[int, int]:
    """Inputs and targets that a line has at most."""
    inputs = method.longest * (method.units + max(0, method.word_ngrams - 1))
    targets = {HS: method.path, NS: 1 + method.negative}.get(method.loss, method.labels)
    return inputs, targets


def desks(number: int, method: Method) -> Desks:
    """Room for ``number`` lines at a time."""
    inputs, targets = most_of(method)
    listed = targets if method.loss in (HS, NS) else 1

    def zeros(*shape: int, kind: Any = f4) -> NDArray[Any]:
        return aligned(number, *shape, kind=kind)

    return Desks(
        at=zeros(8, kind=np.int64),
        random=zeros(8, kind=np.uint64),  # a cache line, which no other thread writes to
        figures=zeros(8, kind=np.float64),
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
def _desk(table: Any, d: int) -> Any:
    """Desk d by its addresses."""
    row = pointer(table + d * 8 * 13, I8)
    return Desks(
        row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8], row[9], row[10], row[11],
        row[12],
    )  # fmt: skip


# -- which rows a line takes -------------------------------------------------------------------------------


@exact
def _runs(hashes: Any, T: int, method: Method, inputs: Any, n: int) -> int:
    """Write the rows of all runs of 2 words and more behind the n inputs there are; see word_ngrams."""
    buckets = np.uint64(method.buckets)
    for first in range(T):
        run = hashes[first]
        for last in range(first + 1, min(T, first + method.word_ngrams)):
            run = run * _NEXT_WORD + hashes[last]
            inputs[n] = method.words + np.int64(run % buckets)
            n += 1
    return n


@exact
def _wanted(
    labels: Any, found: int, state: Any, known: Known, method: Method, targets: Any, goal: Any
) -> int:
    """Write what predicts the labels of a line, or one of them by chance; returns how many targets."""
    L = method.labels
    if method.loss == OVA:
        for c in range(L):
            goal[c] = f4(0.0)
        for i in range(found):
            goal[labels[i]] = f4(1.0)
        return L
    label = labels[below(random(state), found)]
    if method.loss == SOFTMAX:
        for c in range(L):
            goal[c] = f4(0.0)
        goal[label] = f4(1.0)
        return L
    k = 0
    if method.loss == HS:
        starts = pointer(known.path_starts, I8)
        nodes, codes = pointer(known.path_nodes, I4), pointer(known.path_codes, U1)
        for i in range(starts[label], starts[label + 1]):
            targets[k], goal[k] = nodes[i], f4(codes[i])  # fastText's codes are word2vec's turned round
            k += 1
        return k
    targets[0], goal[0], k = label, f4(1.0), 1
    if L > 1:
        for _ in range(method.negative):
            drawn = negative(state, known, L)
            while drawn == label:
                drawn = negative(state, known, L)
            targets[k], goal[k] = drawn, f4(0.0)
            k += 1
    return k


@exact
def _plan(
    line: int, desk: Desks, tables: Tables, known: Known, method: Method, most: Any, part: Part
) -> None:
    """Which rows a line takes, and what is wanted of its targets; none without a label or a row."""
    slot, (most_inputs, most_targets), most_listed = line & 1, most, 1
    listed = method.loss == HS or method.loss == NS
    if listed:
        most_listed = most_targets
    at_inputs, at_targets = desk.inputs + 8 * slot * most_inputs, desk.targets + 8 * slot * most_listed
    inputs, targets = pointer(at_inputs, I8), pointer(at_targets, I8)
    goal = pointer(desk.goal + 4 * slot * most_targets, F4)
    hashes, labels, sizes = pointer(desk.hashes, U8), pointer(desk.labels, I8), pointer(desk.sizes, I8)
    ids, ends, of_words = pointer(part.ids, I4), pointer(part.ends, I8), pointer(known.hashes, U8)
    V, L = method.words, method.labels
    n = T = found = k = 0
    for i in range(ends[line - 1] if line else 0, ends[line]):
        word = np.int64(ids[i])
        if V <= word < V + L:
            labels[found] = word - V
            found += 1
        else:
            hashes[T] = of_words[word]
            T += 1
            n = rows_of(word, known, method, inputs, n)
    if found == 0:
        n = 0
    else:
        n = _runs(hashes, T, method, inputs, n)
    if n:
        k = _wanted(labels, found, pointer(desk.random, U8), known, method, targets, goal)
        fetch_rows(tables.inputs, at_inputs, min(n, _NEAR), method.stride)
        if listed:
            fetch_rows(tables.outputs, at_targets, min(k, _NEAR), method.stride)
    sizes[4 * slot], sizes[4 * slot + 1] = n, k


# -- a step ------------------------------------------------------------------------------------------------


@leaf
def _softmax(g: Any, goal: Any, k: int, rate: Any, figures: Any, look: bool) -> None:
    """Scores [k] become rate * (goal - softmax)."""
    largest, total, wanted = g[0], f4(0.0), f4(0.0)
    for c in range(k):
        largest = max(largest, g[c])
        wanted += goal[c] * g[c]
    for c in range(k):
        value = exp(g[c] - largest)
        total += value
        g[c] = value
    if look:
        figures[2] += math.log(total) + largest - wanted
    for c in range(k):
        g[c] = rate * (goal[c] - g[c] / total)


@leaf
def _logistic(g: Any, goal: Any, k: int, rate: Any, figures: Any, look: bool) -> None:
    """Scores [k] become rate * (goal - sigmoid)."""
    if look:
        for c in range(k):
            score = g[c] if goal[c] > f4(0.5) else -g[c]
            figures[2] += math.log1p(math.exp(-abs(score))) + max(-score, f4(0.0))
    for c in range(k):
        g[c] = rate * (goal[c] - f4(1.0) / (f4(1.0) + exp(-g[c])))


@leaf
def _work(line: int, desk: Desks, tables: Tables, method: Method, most: Any, rate: Any, look: bool) -> None:
    """Work out the step of a line that is planned: x, g and change, by the rows as they stand."""
    slot, (most_inputs, most_targets), S = line & 1, most, method.stride
    sizes, figures = pointer(desk.sizes, I8), pointer(desk.figures, F8)
    n, k = sizes[4 * slot], sizes[4 * slot + 1]
    if n == 0:
        return
    x, change, g = pointer(desk.x, F4), pointer(desk.change, F4), pointer(desk.g, F4)
    goal = pointer(desk.goal + 4 * slot * most_targets, F4)
    share = f4(1.0) / f4(n)
    sum_rows(desk.x, tables.inputs, desk.inputs + 8 * slot * most_inputs, n, S)
    for e in range(S):
        x[e] *= share
        change[e] = f4(0.0)
    t = tables.outputs
    if method.loss == HS or method.loss == NS:
        t = desk.t
        copy_rows(t, tables.outputs, desk.targets + 8 * slot * most_targets, k, S)
    products(desk.g, desk.x, 1, t, k, S)
    if method.loss == SOFTMAX:
        _softmax(g, goal, k, rate, figures, look)
    else:
        _logistic(g, goal, k, rate, figures, look)
    add_rows(F4, desk.change, t, k, S, desk.g, 1, S)
    for e in range(S):
        change[e] *= share
    figures[1] += 1
    if look:
        figures[3] += 1


@exact
def _move(desk: Desks, tables: Tables, method: Method, most: Any, thread: int, threads: int) -> None:
    """Take the step that was worked out last, on those rows that are this thread's."""
    at, sizes, S = pointer(desk.at, I8), pointer(desk.sizes, I8), method.stride
    if at[3] == 0:
        return
    slot, (most_inputs, most_targets) = (at[1] - 1) & 1, most
    n, k = sizes[4 * slot], sizes[4 * slot + 1]
    if n == 0:
        return
    listed = method.loss == HS or method.loss == NS
    targets = pointer(desk.targets + 8 * slot * (most_targets if listed else 1), I8)
    for c in range(k):
        row = targets[c] if listed else c
        if whose(row, threads) == thread:
            add_rows(F4, tables.outputs + 4 * S * row, desk.x, 1, S, desk.g + 4 * c, 1, S)
    at_inputs = desk.inputs + 8 * slot * most_inputs
    if threads == 1:
        spread(tables.inputs, at_inputs, n, desk.change, S)
        return
    inputs = pointer(at_inputs, I8)
    for i in range(n):
        if whose(inputs[i], threads) == thread:
            spread(tables.inputs, at_inputs + 8 * i, 1, desk.change, S)


# -- programs ----------------------------------------------------------------------------------------------


@exact
def _begin(
    job: int, desk: Desks, tables: Tables, known: Known, method: Method, most: Any, part: Part
) -> None:
    """Lay job number ``job`` on the desk, and plan its first line."""
    at, jobs, ends = pointer(desk.at, I8), pointer(part.jobs, I8), pointer(part.ends, I8)
    first, last = jobs[job], jobs[job + 1]
    pointer(desk.random, U8)[0] = pointer(part.seeds, U8)[job]
    pointer(desk.figures, F8)[0] += ends[last - 1] - (ends[first - 1] if first else 0)
    at[0], at[1], at[2] = job, first, last
    _plan(first, desk, tables, known, method, most, part)


@exact
def _next(desk: Desks, tables: Tables, known: Known, method: Method, most: Any, part: Part) -> None:
    """Plan the line after next, and work out the next one."""
    at = pointer(desk.at, I8)
    line, rate = at[1], pointer(part.rates, F4)[at[0]]
    if line + 1 < at[2]:
        _plan(line + 1, desk, tables, known, method, most, part)
    look = ((line - pointer(part.jobs, I8)[at[0]]) & _LOOK) == 0
    _work(line, desk, tables, method, most, rate, look)
    at[1], at[3] = line + 1, 1


@program
def apart(
    tables: Tables, known: Known, method: Method, most: Any, part: Part, jobs: int, table: int, team: Any,
    thread: int,
) -> None:  # fmt: skip
    """The fast mode: take one of ``jobs`` after another until none is left; every row is everybody's.

    ``table`` is the address of layout.desk_table's array; ``team`` counts jobs.
    """
    desk, counter = _desk(table, thread), team.ctypes.data
    at = pointer(desk.at, I8)
    job = ticket(counter)
    while job < jobs:
        _begin(job, desk, tables, known, method, most, part)
        while at[1] < at[2]:
            _next(desk, tables, known, method, most, part)
            _move(desk, tables, method, most, 0, 1)
        job = ticket(counter)


@program
def together(
    tables: Tables, known: Known, method: Method, most: Any, part: Part, jobs: int, table: int, team: Any,
    thread: int, threads: int,
) -> None:  # fmt: skip
    """The deterministic mode: desk d has jobs d, d + DESKS, ...; all work out a line, then rows move."""
    for d in range(thread, DESKS, threads):
        at = pointer(_desk(table, d).at, I8)
        at[0], at[1], at[2] = d - DESKS, 0, 0
    working = True
    while working:
        for d in range(thread, DESKS, threads):
            desk = _desk(table, d)
            at = pointer(desk.at, I8)
            at[3] = 0
            if at[1] >= at[2]:
                at[0] += DESKS
                if at[0] < jobs:
                    _begin(at[0], desk, tables, known, method, most, part)
            if at[0] < jobs:
                _next(desk, tables, known, method, most, part)
        barrier(team, threads, PATIENCE)
        working = False
        for d in range(DESKS):
            desk = _desk(table, d)
            _move(desk, tables, method, most, thread, threads)
            working = working or pointer(desk.at, I8)[0] < jobs
        barrier(team, threads, PATIENCE)
