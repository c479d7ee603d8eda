"""The compiled kernels of word2vec and fastText.

A window is trained in two halves.  :func:`_plan_window` lists its rows and targets and prefetches the rows;
:func:`_step` takes the step of the window planned before.  The negatives of a window are shared by its words,
so that the inner loop is a small matrix product, X [m, S] T [k, S]^T, instead of m * k separate dot products
(Ji et al. 2016, arXiv:1604.04661).

:func:`run_fast` is the fast mode: threads write to shared rows without locks (Niu et al. 2011,
arXiv:1106.5730), so two runs differ.  :func:`run_deterministic` computes the steps of a batch of windows from
fixed rows; then every thread updates the rows that it owns, in the order of the windows.  Batches do not
depend on the number of threads.

The tests compare the kernels with ``tests/vectors/word2vec/twin.py``, which computes the same in NumPy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wordloom.kernels.arithmetic import exp, f4, random, random_below
from wordloom.kernels.barrier import barrier
from wordloom.kernels.machine_code import exact, exact_routine, leaf
from wordloom.kernels.memory import DOUBLE, FLOAT, INT32, INT64, UINT8, UINT32, UINT64, pointer, ticket
from wordloom.kernels.products import products
from wordloom.kernels.rows import add_rows, copy_rows, fetch_rows, spread, sum_rows
from wordloom.vectors.word2vec.layout import (
    PATIENCE,
    STREAMS,
    Method,
    Part,
    Scratch,
    Tables,
    Words,
    max_sizes,
    random_negative,
    rows_of_word,
    scratch_at,
    thread_of_row,
)

__all__ = ["MAX_BATCH", "max_sizes", "run_deterministic", "run_fast"]

MAX_BATCH = 16  # windows of a stream in a deterministic batch, at most

_LOSS_MASK = 63  # the loss is computed for one window in 64
_AHEAD = 12  # rows are prefetched this many updates ahead
_MAX_PREFETCH = 24  # rows prefetched at most; a core queues more memory requests


# -- a job -----------------------------------------------------------------------------------------------


@exact
def _start_job(scratch: Scratch, part: Part, job: int, words: Words) -> None:
    """Copy the words of job number ``job`` to the scratch memory, without those that subsampling skips."""
    state, at = pointer(scratch.random, UINT64), pointer(scratch.at, INT64)
    stats = pointer(scratch.stats, DOUBLE)
    kept, first = pointer(scratch.kept, INT32), pointer(scratch.first, INT32)
    stop = pointer(scratch.stop, INT32)
    ids, ends, jobs = pointer(part.ids, INT32), pointer(part.ends, INT64), pointer(part.jobs, INT64)
    keep = pointer(words.keep, UINT32)
    state[0] = pointer(part.seeds, UINT64)[job]
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
        stats[0] += ends[piece] - begins
    stats[1] += n
    at[0], at[1], at[2] = job, 0, n


@exact
def _row_count(word: int, words: Words) -> int:
    """Return the number of rows of ``word``."""
    starts = pointer(words.unit_starts, INT64)
    return starts[word + 1] - starts[word]


@exact
def _add_targets(
    word: int, words: Words, method: Method, targets: Any, goal: Any, weight: Any, k: int
) -> int:
    """Append the targets that predict ``word`` to k targets, and return their new number."""
    if method.negative:
        targets[k], goal[k], weight[k] = word, f4(1.0), f4(1.0)
        return k + 1
    starts = pointer(words.path_starts, INT64)
    nodes, codes = pointer(words.path_nodes, INT32), pointer(words.path_codes, UINT8)
    for i in range(starts[word], starts[word + 1]):
        targets[k], goal[k], weight[k] = nodes[i], f4(1 - codes[i]), f4(1.0)
        k += 1
    return k


@exact
def _plan_window(i: int, scratch: Scratch, tables: Tables, words: Words, method: Method, limits: Any) -> None:
    """List the input rows of window i, and its target rows with their goals and weights."""
    slot, (max_inputs, max_targets) = i & 1, limits
    state, kept = pointer(scratch.random, UINT64), pointer(scratch.kept, INT32)
    sizes = pointer(scratch.sizes, INT64)
    at_inputs, at_targets = scratch.inputs + 8 * slot * max_inputs, scratch.targets + 8 * slot * max_targets
    inputs, targets = pointer(at_inputs, INT64), pointer(at_targets, INT64)
    goal = pointer(scratch.goal + 4 * slot * max_targets, FLOAT)
    weight = pointer(scratch.weight + 4 * slot * max_targets, FLOAT)
    window = method.window
    less = random_below(random(state), window)
    lowest = max(np.int64(pointer(scratch.first, INT32)[i]), i - window + less)
    highest = min(np.int64(pointer(scratch.stop, INT32)[i]), i + window + 1 - less)
    n = k = divisor = 0
    ring = 2 * window + 2
    if method.sliding:
        _prefetch_entering(i, slot, scratch, tables, words, method)
    if highest - lowest > 1:
        if method.from_centre:
            n = rows_of_word(kept[i], words, method, inputs, 0)
        else:
            k = _add_targets(kept[i], words, method, targets, goal, weight, 0)
        for j in range(lowest, highest):
            if j == i:
                continue
            if method.from_centre:
                k = _add_targets(kept[j], words, method, targets, goal, weight, k)
            elif method.sliding:
                inputs[n] = j % ring
                n += 1
                divisor += _row_count(kept[j], words)
            else:
                n = rows_of_word(kept[j], words, method, inputs, n)
        wanted = k
        for _ in range(method.negative):
            drawn = random_negative(state, words, method.vocabulary)
            against = wanted
            for j in range(wanted):  # a word is not a negative of itself
                against -= targets[j] == drawn
            targets[k], goal[k], weight[k] = drawn, f4(0.0), f4(against) / f4(method.times)
            k += 1
    sizes[3 * slot], sizes[3 * slot + 1], sizes[3 * slot + 2] = n, k, divisor if method.sliding else n
    if not method.sliding:
        fetch_rows(tables.inputs, at_inputs, min(n, _MAX_PREFETCH), method.stride)
    fetch_rows(tables.outputs, at_targets, min(k, _MAX_PREFETCH), method.stride)


# If words have many rows (n-grams) and several words are inputs of a window, each word's rows are read once,
# when the word enters the window, and written once, when it leaves.  In between, ``sums`` holds the sum of
# its rows and ``pending`` their update.  Otherwise rows are read and written for every window of the word.


@exact
def _prefetch_entering(
    i: int, slot: int, scratch: Scratch, tables: Tables, words: Words, method: Method
) -> None:
    """Prefetch the rows of the word that enters with window i."""
    entering = i + method.window
    if entering < pointer(scratch.at, INT64)[2]:
        place = scratch.rows + 8 * slot * method.units
        n = rows_of_word(pointer(scratch.kept, INT32)[entering], words, method, pointer(place, INT64), 0)
        fetch_rows(tables.inputs, place, min(n, _MAX_PREFETCH), method.stride)


@exact
def _sum_word(p: int, place: int, scratch: Scratch, tables: Tables, words: Words, method: Method) -> None:
    """Sum the rows, listed at ``place``, of the word at p, and clear its update."""
    S = method.stride
    slot = p % (2 * method.window + 2)
    n = _row_count(pointer(scratch.kept, INT32)[p], words)
    sum_rows(scratch.sums + 4 * S * slot, tables.inputs, place, n, S)
    pending = pointer(scratch.pending + 4 * S * slot, FLOAT)
    for e in range(S):
        pending[e] = f4(0.0)


@exact
def _sum_entering(i: int, scratch: Scratch, tables: Tables, words: Words, method: Method) -> None:
    """Sum the rows of the word that enters with window i, and of all words in reach of the first window."""
    n = pointer(scratch.at, INT64)[2]
    if i == 0:
        place = scratch.rows + 16 * method.units
        for p in range(min(n, method.window)):
            rows_of_word(pointer(scratch.kept, INT32)[p], words, method, pointer(place, INT64), 0)
            _sum_word(p, place, scratch, tables, words, method)
    if i + method.window < n:
        _sum_word(
            i + method.window, scratch.rows + 8 * (i & 1) * method.units, scratch, tables, words, method
        )


@exact
def _update_leaving(
    p: int, scratch: Scratch, tables: Tables, words: Words, method: Method, deferred: bool
) -> None:
    """Add the update that the windows collected to the rows of the word at p."""
    S = method.stride
    place, change = scratch.rows + 16 * method.units, scratch.pending + 4 * S * (p % (2 * method.window + 2))
    rows = pointer(place, INT64)
    n = rows_of_word(pointer(scratch.kept, INT32)[p], words, method, rows, 0)
    if deferred:
        _defer_rows(scratch, rows, n, change, S)
    else:
        spread(tables.inputs, place, n, change, S)


@leaf
def _add_loss(g: Any, goal: Any, weight: Any, m: int, n: int, stats: Any) -> None:
    """Add -log sigmoid of the products (negated for goals of 0) to the statistics."""
    for r in range(m):
        for k in range(n):
            score = g[r * n + k] if goal[k] > f4(0.5) else -g[r * n + k]
            stats[2] += weight[k] * (math.log1p(math.exp(-abs(score))) + max(-score, f4(0.0)))
    for k in range(n):
        stats[3] += m * goal[k]


@leaf
def _destination(scratch: Scratch, tables: Tables, row: int, table: int, S: int, deferred: bool) -> int:
    """Return the address that takes the update of a row: the row, or a deferred change of zeros."""
    if not deferred:
        return (tables.outputs if table else tables.inputs) + 4 * S * row
    change = _save_change(scratch, 0, S)
    _defer(scratch, row, table, change, f4(1.0))
    return scratch.changes + 4 * S * change


@exact
def _save_change(scratch: Scratch, values: int, S: int) -> int:
    """Save a deferred change, a copy of ``values`` (0: zeros), and return its number."""
    at = pointer(scratch.at, INT64)
    change = at[3]
    at[3] = change + 1
    kept = pointer(scratch.changes + 4 * S * change, FLOAT)
    if values:
        given = pointer(values, FLOAT)
        for e in range(S):
            kept[e] = given[e]
    else:
        for e in range(S):
            kept[e] = f4(0.0)
    return change


@exact
def _defer(scratch: Scratch, row: int, table: int, change: int, factor: Any) -> None:
    """Defer adding ``factor`` times a saved change to ``row``."""
    at, moved = pointer(scratch.at, INT64), pointer(scratch.moved, INT64)
    factors = pointer(scratch.factors, FLOAT)
    n = at[4]
    moved[3 * n], moved[3 * n + 1], moved[3 * n + 2], factors[n] = row, table, change, factor
    at[4] = n + 1


@leaf
def _defer_rows(scratch: Scratch, rows: Any, n: int, values: int, S: int) -> None:
    """Defer adding ``values`` to n input rows."""
    change = _save_change(scratch, values, S)
    for r in range(n):
        _defer(scratch, rows[r], 0, change, f4(1.0))


@leaf
def _step(
    i: int, scratch: Scratch, tables: Tables, method: Method, limits: Any, rate: Any, deferred: bool
) -> None:
    """Take the planned step of window i; if ``deferred``, save the updates for later."""
    slot, (max_inputs, max_targets), S = i & 1, limits, method.stride
    sizes = pointer(scratch.sizes, INT64)
    n, k = sizes[3 * slot], sizes[3 * slot + 1]
    if n == 0:
        return
    read, written = tables.inputs, tables.inputs
    if method.sliding:
        read, written = scratch.sums, scratch.pending
    at_rows, at_targets = scratch.inputs + 8 * slot * max_inputs, scratch.targets + 8 * slot * max_targets
    rows, targets = pointer(at_rows, INT64), pointer(at_targets, INT64)
    goal = pointer(scratch.goal + 4 * slot * max_targets, FLOAT)
    weight = pointer(scratch.weight + 4 * slot * max_targets, FLOAT)
    x, g = pointer(scratch.x, FLOAT), pointer(scratch.g, FLOAT)
    m = n
    share = f4(1.0)
    if method.joined:
        m = 1
        share = f4(1.0) / f4(sizes[3 * slot + 2])
        sum_rows(scratch.x, read, at_rows, n, S)
        if method.mean:
            for e in range(S):
                x[e] *= share
            share = f4(1.0)  # each input gets the full step, as in word2vec.c
    else:
        copy_rows(scratch.x, tables.inputs, at_rows, n, S)
    copy_rows(scratch.t, tables.outputs, at_targets, k, S)
    products(scratch.g, scratch.x, m, scratch.t, k, S)
    if (i & _LOSS_MASK) == 0:
        _add_loss(g, goal, weight, m, k, pointer(scratch.stats, DOUBLE))
    for r in range(m):
        for c in range(k):
            g[r * k + c] = rate * weight[c] * (goal[c] - f4(1.0) / (f4(1.0) + exp(-g[r * k + c])))
    # Targets change by g^T x and inputs by g t, with the values before the step.
    if deferred and method.joined:
        change = _save_change(scratch, scratch.x, S)
        for c in range(k):
            _defer(scratch, targets[c], 1, change, g[c])
    else:
        for c in range(k):
            place = _destination(scratch, tables, targets[c], 1, S, deferred)
            add_rows(FLOAT, place, scratch.x, m, S, scratch.g + 4 * c, k, S)
    if method.joined:
        for e in range(S):
            x[e] = f4(0.0)
        for c in range(k):
            g[c] *= share
        add_rows(FLOAT, scratch.x, scratch.t, k, S, scratch.g, 1, S)
        if deferred and not method.sliding:
            _defer_rows(scratch, rows, n, scratch.x, S)
        else:
            spread(written, at_rows, n, scratch.x, S)
        return
    for r in range(m):
        place = _destination(scratch, tables, rows[r], 0, S, deferred)
        add_rows(FLOAT, place, scratch.t, k, S, scratch.g + 4 * r * k, 1, S)


# -- programs ----------------------------------------------------------------------------------------------


@exact
def _train_windows(
    first: int, last: int, scratch: Scratch, tables: Tables, words: Words, method: Method, limits: Any,
    rate: Any, deferred: bool,
) -> None:  # fmt: skip
    """Train windows ``first`` to ``last`` (excluded); plan each before the step of the previous one."""
    sliding, window, n = method.sliding, method.window, pointer(scratch.at, INT64)[2]
    for i in range(first, last + 1):
        if i < last:
            _plan_window(i, scratch, tables, words, method, limits)
        if i == first:
            continue
        if sliding:
            _sum_entering(i - 1, scratch, tables, words, method)
        _step(i - 1, scratch, tables, method, limits, rate, deferred)
        if sliding and i > window:
            _update_leaving(i - 1 - window, scratch, tables, words, method, deferred)
    if sliding and last == n:
        for p in range(max(0, n - window), n):
            _update_leaving(p, scratch, tables, words, method, deferred)


@exact_routine
def run_fast(
    tables: Tables, words: Words, method: Method, limits: Any, part: Part, jobs: int, table: int, team: Any,
    thread: int,
) -> None:  # fmt: skip
    """Train in the fast mode: each thread takes the next of ``jobs`` until none is left.

    ``table`` is the address of :func:`wordloom.vectors.word2vec.layout.scratch_table`'s array; ``team``
    counts jobs.
    """
    scratch, counter = scratch_at(table, thread), team.ctypes.data
    at = pointer(scratch.at, INT64)
    job = ticket(counter)
    while job < jobs:
        _start_job(scratch, part, job, words)
        rate = pointer(part.rates, FLOAT)[job]
        _train_windows(0, at[2], scratch, tables, words, method, limits, rate, False)
        job = ticket(counter)


@exact_routine
def run_deterministic(
    tables: Tables, words: Words, method: Method, limits: Any, part: Part, jobs: int, table: int, team: Any,
    thread: int, threads: int,
) -> None:  # fmt: skip
    """Train deterministically: stream d has the jobs d, d + STREAMS, ...; rows change after each batch."""
    for d in range(thread, STREAMS, threads):
        at = pointer(scratch_at(table, d).at, INT64)
        at[0], at[1], at[2] = d - STREAMS, 0, 0
    working = True
    while working:
        for d in range(thread, STREAMS, threads):
            _train_batch(scratch_at(table, d), tables, words, method, limits, part, jobs)
        barrier(team, threads, PATIENCE)
        working = False
        for d in range(STREAMS):
            scratch = scratch_at(table, d)
            _apply(scratch, tables, method.stride, thread, threads)
            working = working or pointer(scratch.at, INT64)[0] < jobs
        barrier(team, threads, PATIENCE)


@exact
def _train_batch(
    scratch: Scratch, tables: Tables, words: Words, method: Method, limits: Any, part: Part, jobs: int
) -> None:
    """Compute the next batch of windows of a stream, which may be shorter at the end of a job."""
    at = pointer(scratch.at, INT64)
    at[3] = at[4] = 0
    while at[0] < jobs and at[1] >= at[2]:
        following = at[0] + STREAMS
        at[0] = following
        if following < jobs:
            _start_job(scratch, part, following, words)
    if at[0] < jobs:
        first = at[1]
        last = min(at[2], first + method.batch)
        rate = pointer(part.rates, FLOAT)[at[0]]
        _train_windows(first, last, scratch, tables, words, method, limits, rate, True)
        at[1] = last


@exact
def _apply(scratch: Scratch, tables: Tables, S: int, thread: int, threads: int) -> None:
    """Apply the deferred updates of the rows that this thread owns, in order."""
    n, moved = pointer(scratch.at, INT64)[4], pointer(scratch.moved, INT64)
    for i in range(n):
        soon = i + _AHEAD
        if soon < n and thread_of_row(moved[3 * soon], threads) == thread:
            rows = tables.outputs if moved[3 * soon + 1] else tables.inputs
            fetch_rows(rows, scratch.moved + 24 * soon, 1, S)
        row = moved[3 * i]
        if thread_of_row(row, threads) == thread:
            place = (tables.outputs if moved[3 * i + 1] else tables.inputs) + 4 * S * row
            add_rows(
                FLOAT, place, scratch.changes + 4 * S * moved[3 * i + 2], 1, S, scratch.factors + 4 * i, 1, S
            )
