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

:mod:`wordloom.vectors.word2vec.twin` says the same in numpy, slowly.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

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
    U4,
    U8,
    below,
    negative,
    products,
    program,
    random,
    rows_of,
    whose,
)
from wordloom.vectors.word2vec.layout import DESKS, Desks, Method, Part, Tables, Words, desk_of

__all__ = ["MOST", "apart", "together"]

MOST = 16  # windows of each that are worked out at most before any row moves

_LOOK = 63  # the loss is taken of one window in 64
_SOON = 12  # changes ahead of the one that is made, whose rows are fetched
_NEAR = 24  # rows fetched ahead at most: beyond, a core's memory requests queue up


# -- a job -----------------------------------------------------------------------------------------------


@exact
def _begin(desk: Desks, part: Part, job: int, words: Words) -> None:
    """Lay job number ``job`` on the desk: its words less those that subsampling passes over."""
    state, at, figures = pointer(desk.random, U8), pointer(desk.at, I8), pointer(desk.figures, F8)
    kept, first, stop = pointer(desk.kept, I4), pointer(desk.first, I4), pointer(desk.stop, I4)
    ids, ends, jobs = pointer(part.ids, I4), pointer(part.ends, I8), pointer(part.jobs, I8)
    keep = pointer(words.keep, U4)
    state[0] = pointer(part.seeds, U8)[job]
    n = 0
    for piece in range(jobs[job], jobs[job + 1]):
        head = n
        begins = ends[piece - 1] if piece else 0
        for i in range(begins, ends[piece]):
            word = ids[i]
            if keep[word] >= np.uint32(random(state) >> np.uint64(32)):
                kept[n] = word
                n += 1
        for i in range(head, n):
            first[i], stop[i] = head, n
        figures[0] += ends[piece] - begins
    figures[1] += n
    at[0], at[1], at[2] = job, 0, n


@exact
def _units_of(word: int, words: Words) -> int:
    """How many rows make ``word``."""
    starts = pointer(words.unit_starts, I8)
    return starts[word + 1] - starts[word]


@exact
def _wanted(word: int, words: Words, method: Method, targets: Any, goal: Any, weight: Any, k: int) -> int:
    """Write what predicts ``word`` behind the k targets there are; returns how many there are then."""
    if method.negative:
        targets[k], goal[k], weight[k] = word, f4(1.0), f4(1.0)
        return k + 1
    starts = pointer(words.path_starts, I8)
    nodes, codes = pointer(words.path_nodes, I4), pointer(words.path_codes, U1)
    for i in range(starts[word], starts[word + 1]):
        targets[k], goal[k], weight[k] = nodes[i], f4(1 - codes[i]), f4(1.0)
        k += 1
    return k


@exact
def _plan(i: int, desk: Desks, tables: Tables, words: Words, method: Method, most: Any) -> None:
    """Which rows window i takes: those that predict, and those predicted with what is wanted of each."""
    slot, (most_inputs, most_targets) = i & 1, most
    state, kept, sizes = pointer(desk.random, U8), pointer(desk.kept, I4), pointer(desk.sizes, I8)
    at_inputs, at_targets = desk.inputs + 8 * slot * most_inputs, desk.targets + 8 * slot * most_targets
    inputs, targets = pointer(at_inputs, I8), pointer(at_targets, I8)
    goal = pointer(desk.goal + 4 * slot * most_targets, F4)
    weight = pointer(desk.weight + 4 * slot * most_targets, F4)
    window = method.window
    less = below(random(state), window)
    lowest = max(np.int64(pointer(desk.first, I4)[i]), i - window + less)
    highest = min(np.int64(pointer(desk.stop, I4)[i]), i + window + 1 - less)
    n = k = divisor = 0
    ring = 2 * window + 2
    if method.sliding:
        _come(i, slot, desk, tables, words, method)
    if highest - lowest > 1:
        if method.from_centre:
            n = rows_of(kept[i], words, method, inputs, 0)
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
                n = rows_of(kept[j], words, method, inputs, n)
        wanted = k
        for _ in range(method.negative):
            drawn = negative(state, words, method.vocabulary)
            against = wanted
            for j in range(wanted):  # a word is no negative of itself
                against -= targets[j] == drawn
            targets[k], goal[k], weight[k] = drawn, f4(0.0), f4(against) / f4(method.times)
            k += 1
    sizes[3 * slot], sizes[3 * slot + 1], sizes[3 * slot + 2] = n, k, divisor if method.sliding else n
    if not method.sliding:
        fetch_rows(tables.inputs, at_inputs, min(n, _NEAR), method.stride)
    fetch_rows(tables.outputs, at_targets, min(k, _NEAR), method.stride)


# Where words have many rows (n-grams) and several words are inputs of a window, each is read when it comes
# into reach of the window and moved when it leaves: between, ``sums`` stands for its rows and ``pending``
# collects what is to be added to each.  Else every row is read and written for each window the word is in.


@exact
def _come(i: int, slot: int, desk: Desks, tables: Tables, words: Words, method: Method) -> None:
    """Have the rows of the word fetched that comes into reach with window i."""
    entering = i + method.window
    if entering < pointer(desk.at, I8)[2]:
        place = desk.rows + 8 * slot * method.units
        n = rows_of(pointer(desk.kept, I4)[entering], words, method, pointer(place, I8), 0)
        fetch_rows(tables.inputs, place, min(n, _NEAR), method.stride)


@exact
def _enter(p: int, place: int, desk: Desks, tables: Tables, words: Words, method: Method) -> None:
    """Sum the rows, listed at ``place``, of the word at p."""
    S = method.stride
    slot = p % (2 * method.window + 2)
    n = _units_of(pointer(desk.kept, I4)[p], words)
    sum_rows(desk.sums + 4 * S * slot, tables.inputs, place, n, S)
    pending = pointer(desk.pending + 4 * S * slot, F4)
    for e in range(S):
        pending[e] = f4(0.0)


@exact
def _come_in(i: int, desk: Desks, tables: Tables, words: Words, method: Method) -> None:
    """Sum the rows of the word that comes into reach with window i; at the first, of all within reach."""
    n = pointer(desk.at, I8)[2]
    if i == 0:
        place = desk.rows + 16 * method.units
        for p in range(min(n, method.window)):
            rows_of(pointer(desk.kept, I4)[p], words, method, pointer(place, I8), 0)
            _enter(p, place, desk, tables, words, method)
    if i + method.window < n:
        _enter(i + method.window, desk.rows + 8 * (i & 1) * method.units, desk, tables, words, method)


@exact
def _leave(p: int, desk: Desks, tables: Tables, words: Words, method: Method, held: bool) -> None:
    """Add to the rows of the word at p what its windows have come to."""
    S = method.stride
    place, change = desk.rows + 16 * method.units, desk.pending + 4 * S * (p % (2 * method.window + 2))
    rows = pointer(place, I8)
    n = rows_of(pointer(desk.kept, I4)[p], words, method, rows, 0)
    if held:
        _hold(desk, rows, n, change, S)
    else:
        spread(tables.inputs, place, n, change, S)


@leaf
def _look(g: Any, goal: Any, weight: Any, m: int, n: int, figures: Any) -> None:
    """Add -log sigmoid of the products, negated where they should be low, to the figures."""
    for r in range(m):
        for k in range(n):
            score = g[r * n + k] if goal[k] > f4(0.5) else -g[r * n + k]
            figures[2] += weight[k] * (math.log1p(math.exp(-abs(score))) + max(-score, f4(0.0)))
    for k in range(n):
        figures[3] += m * goal[k]


@leaf
def _moving(desk: Desks, tables: Tables, row: int, table: int, S: int, held: bool) -> int:
    """Where what is to be added to a row goes: the row itself, or a change kept back, of zeros yet."""
    if not held:
        return (tables.outputs if table else tables.inputs) + 4 * S * row
    change = _keep(desk, 0, S)
    _note(desk, row, table, change, f4(1.0))
    return desk.changes + 4 * S * change


@exact
def _keep(desk: Desks, values: int, S: int) -> int:
    """The number of a change kept back, which is what lies at ``values``; at 0: zeros."""
    at = pointer(desk.at, I8)
    change = at[3]
    at[3] = change + 1
    kept = pointer(desk.changes + 4 * S * change, F4)
    if values:
        given = pointer(values, F4)
        for e in range(S):
            kept[e] = given[e]
    else:
        for e in range(S):
            kept[e] = f4(0.0)
    return change


@exact
def _note(desk: Desks, row: int, table: int, change: int, factor: Any) -> None:
    """Have ``row`` take ``factor`` times a change that is kept back."""
    at, moved, factors = pointer(desk.at, I8), pointer(desk.moved, I8), pointer(desk.factors, F4)
    n = at[4]
    moved[3 * n], moved[3 * n + 1], moved[3 * n + 2], factors[n] = row, table, change, factor
    at[4] = n + 1


@leaf
def _hold(desk: Desks, rows: Any, n: int, values: int, S: int) -> None:
    """Keep back one change, which lies at ``values``, for n rows of inputs."""
    change = _keep(desk, values, S)
    for r in range(n):
        _note(desk, rows[r], 0, change, f4(1.0))


@leaf
def _act(i: int, desk: Desks, tables: Tables, method: Method, most: Any, rate: Any, held: bool) -> None:
    """Take the step of window i, which is planned; where ``held``, keep the changes back."""
    slot, (most_inputs, most_targets), S = i & 1, most, method.stride
    sizes = pointer(desk.sizes, I8)
    n, k = sizes[3 * slot], sizes[3 * slot + 1]
    if n == 0:
        return
    read, written = tables.inputs, tables.inputs
    if method.sliding:
        read, written = desk.sums, desk.pending
    at_rows, at_targets = desk.inputs + 8 * slot * most_inputs, desk.targets + 8 * slot * most_targets
    rows, targets = pointer(at_rows, I8), pointer(at_targets, I8)
    goal = pointer(desk.goal + 4 * slot * most_targets, F4)
    weight = pointer(desk.weight + 4 * slot * most_targets, F4)
    x, g = pointer(desk.x, F4), pointer(desk.g, F4)
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
    products(desk.g, desk.x, m, desk.t, k, S)
    if (i & _LOOK) == 0:
        _look(g, goal, weight, m, k, pointer(desk.figures, F8))
    for r in range(m):
        for c in range(k):
            g[r * k + c] = rate * weight[c] * (goal[c] - f4(1.0) / (f4(1.0) + exp(-g[r * k + c])))
    # Targets move by g^T x and inputs by g t: both by what stood there before.
    if held and method.joined:
        change = _keep(desk, desk.x, S)
        for c in range(k):
            _note(desk, targets[c], 1, change, g[c])
    else:
        for c in range(k):
            place = _moving(desk, tables, targets[c], 1, S, held)
            add_rows(F4, place, desk.x, m, S, desk.g + 4 * c, k, S)
    if method.joined:
        for e in range(S):
            x[e] = f4(0.0)
        for c in range(k):
            g[c] *= share
        add_rows(F4, desk.x, desk.t, k, S, desk.g, 1, S)
        if held and not method.sliding:
            _hold(desk, rows, n, desk.x, S)
        else:
            spread(written, at_rows, n, desk.x, S)
        return
    for r in range(m):
        place = _moving(desk, tables, rows[r], 0, S, held)
        add_rows(F4, place, desk.t, k, S, desk.g + 4 * r * k, 1, S)


# -- programs ----------------------------------------------------------------------------------------------


@exact
def _windows(
    first: int, last: int, desk: Desks, tables: Tables, words: Words, method: Method, most: Any, rate: Any,
    held: bool,
) -> None:  # fmt: skip
    """Windows ``first`` to ``last`` (excluded), each planned while the one before is worked on."""
    sliding, window, n = method.sliding, method.window, pointer(desk.at, I8)[2]
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


@program
def apart(
    tables: Tables, words: Words, method: Method, most: Any, part: Part, jobs: int, table: int, team: Any,
    thread: int,
) -> None:  # fmt: skip
    """The fast mode: take one of ``jobs`` after another until none is left; every row is everybody's.

    ``table`` is the address of :func:`wordloom.vectors.word2vec.layout.desk_table`'s array; ``team`` counts
    jobs.
    """
    desk, counter = desk_of(table, thread), team.ctypes.data
    at = pointer(desk.at, I8)
    job = ticket(counter)
    while job < jobs:
        _begin(desk, part, job, words)
        rate = pointer(part.rates, F4)[job]
        _windows(0, at[2], desk, tables, words, method, most, rate, False)
        job = ticket(counter)


@program
def together(
    tables: Tables, words: Words, method: Method, most: Any, part: Part, jobs: int, table: int, team: Any,
    thread: int, threads: int,
) -> None:  # fmt: skip
    """The deterministic mode: desk d has jobs d, d + DESKS, ...; all work out a batch, then rows move."""
    for d in range(thread, DESKS, threads):
        at = pointer(desk_of(table, d).at, I8)
        at[0], at[1], at[2] = d - DESKS, 0, 0
    working = True
    while working:
        for d in range(thread, DESKS, threads):
            _batch(desk_of(table, d), tables, words, method, most, part, jobs)
        barrier(team, threads, PATIENCE)
        working = False
        for d in range(DESKS):
            desk = desk_of(table, d)
            _move(desk, tables, method.stride, thread, threads)
            working = working or pointer(desk.at, I8)[0] < jobs
        barrier(team, threads, PATIENCE)


@exact
def _batch(
    desk: Desks, tables: Tables, words: Words, method: Method, most: Any, part: Part, jobs: int
) -> None:
    """Work out the desk's next windows, fewer than a batch where its job ends."""
    at = pointer(desk.at, I8)
    at[3] = at[4] = 0
    while at[0] < jobs and at[1] >= at[2]:
        following = at[0] + DESKS
        at[0] = following
        if following < jobs:
            _begin(desk, part, following, words)
    if at[0] < jobs:
        first = at[1]
        last = min(at[2], first + method.batch)
        rate = pointer(part.rates, F4)[at[0]]
        _windows(first, last, desk, tables, words, method, most, rate, True)
        at[1] = last


@exact
def _move(desk: Desks, tables: Tables, S: int, thread: int, threads: int) -> None:
    """Add the changes kept on the desk to those rows that are this thread's, in the order they came in."""
    n, moved = pointer(desk.at, I8)[4], pointer(desk.moved, I8)
    for i in range(n):
        soon = i + _SOON
        if soon < n and whose(moved[3 * soon], threads) == thread:
            rows = tables.outputs if moved[3 * soon + 1] else tables.inputs
            fetch_rows(rows, desk.moved + 24 * soon, 1, S)
        row = moved[3 * i]
        if whose(row, threads) == thread:
            place = (tables.outputs if moved[3 * i + 1] else tables.inputs) + 4 * S * row
            add_rows(F4, place, desk.changes + 4 * S * moved[3 * i + 2], 1, S, desk.factors + 4 * i, 1, S)
