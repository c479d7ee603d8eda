"""fastText's supervised mode in NumPy: the readable reference for :mod:`wordloom.vectors.fasttext.kernels`.

A line with the rows R and the label l, or labels, is one step of gradient descent on

    softmax    -log p_l                p = softmax(U x), x = the mean of rows R of the inputs
    hs         -sum over the nodes p of l's path of log s((2 code_p - 1) x . u_p)
    ns         -log s(x . u_l) - sum over negatives n of log s(-x . u_n)
    ova        -sum over the line's labels of log s(x . u) - sum over all others of log s(-x . u)

with u rows of the outputs U and s(x) = 1 / (1 + exp(-x)) (Joulin et al. 2017, arXiv:1607.01759).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tests.vectors.word2vec.twin import Random

from wordloom.vectors.fasttext.kernels import HS, OVA, SOFTMAX, Known, Method
from wordloom.vectors.fasttext.subwords import word_ngrams
from wordloom.vectors.word2vec.layout import STREAMS, Part, Tables


class Example(NamedTuple):
    rows: list[int]  # of inputs, whose mean is the line; none if it is skipped
    targets: list[int]  # of outputs
    goal: list[float]  # 1 or 0 for each


def examples(part: Part, job: int, known: Known, method: Method) -> list[Example]:
    """Return the lines of a job, with the kernels' random numbers."""
    random = Random(int(part.seeds[job]))
    V, L = method.words, method.labels
    result = []
    for line in range(part.jobs[job], part.jobs[job + 1]):
        ids = part.ids[part.ends[line - 1] if line else 0 : part.ends[line]].tolist()
        labels = [word - V for word in ids if V <= word < V + L]
        words = [word for word in ids if not V <= word < V + L]
        rows = [row for w in words for row in known.units[known.unit_starts[w] : known.unit_starts[w + 1]]]
        if method.word_ngrams > 1:
            hashes = known.hashes[words].astype(np.uint32)
            rows += (V + word_ngrams(hashes, method.word_ngrams, method.buckets)).tolist()
        if not labels or not rows:
            result.append(Example([], [], []))
            continue
        result.append(Example([int(row) for row in rows], *_targets(labels, random, known, method)))
    return result


def _targets(
    labels: list[int], random: Random, known: Known, method: Method
) -> tuple[list[int], list[float]]:
    every = list(range(method.labels))
    if method.loss == OVA:
        return every, [float(label in labels) for label in every]
    chosen = labels[random.below(len(labels))]
    if method.loss == SOFTMAX:
        return every, [float(label == chosen) for label in every]
    if method.loss == HS:
        path = slice(known.path_starts[chosen], known.path_starts[chosen + 1])
        return known.path_nodes[path].tolist(), known.path_codes[path].astype(float).tolist()
    drawn: list[int] = []
    while method.labels > 1 and len(drawn) < method.negative:
        bits = random.bits()
        label = ((bits >> 32) * method.labels) >> 32
        label = label if bits & 0xFFFFFFFF < known.share[label] else int(known.other[label])
        drawn += [label] if label != chosen else []
    return [chosen, *drawn], [1.0] + [0.0] * len(drawn)


def line_loss(tables: Tables, example: Example, method: Method) -> float:
    """Return the negative log-likelihood of a line in nats."""
    scores = tables.outputs[example.targets] @ tables.inputs[example.rows].mean(axis=0)  # [k]
    goal = np.array(example.goal)
    if method.loss == SOFTMAX:
        return float(np.logaddexp.reduce(scores) - goal @ scores)
    return float(np.logaddexp(0.0, np.where(goal > 0.5, -scores, scores)).sum())


def step(tables: Tables, example: Example, method: Method, rate: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the updates of a line's input rows [S] and targets [k, S]: rate times minus the gradient of
    :func:`line_loss`."""
    x, t = tables.inputs[example.rows].mean(axis=0), tables.outputs[example.targets]
    scores = t @ x
    if method.loss == SOFTMAX:
        weights = np.exp(scores - scores.max())
        p = weights / weights.sum()
    else:
        p = 1.0 / (1.0 + np.exp(-scores))
    g = rate * (np.array(example.goal) - p)
    return g @ t / len(example.rows), np.outer(g, x)


def _move(tables: Tables, example: Example, changes: tuple[NDArray[Any], NDArray[Any]]) -> None:
    np.add.at(tables.inputs, example.rows, changes[0])  # a repeated row is updated twice
    np.add.at(tables.outputs, example.targets, changes[1])


def run_fast(tables: Tables, known: Known, method: Method, part: Part) -> None:
    """Train in the fast mode on one thread."""
    for example, rate in _lines(range(len(part.rates)), known, method, part):
        if example.rows:
            _move(tables, example, step(tables, example, method, rate))


def run_deterministic(tables: Tables, known: Known, method: Method, part: Part) -> None:
    """Train deterministically: rows change after one line of every stream."""
    J = len(part.rates)
    streams = [_lines(range(d, J, STREAMS), known, method, part) for d in range(STREAMS)]
    for turn in zip_longest(*streams):
        lines = [line for line in turn if line is not None and line[0].rows]
        steps = [step(tables, example, method, rate) for example, rate in lines]
        for (example, _), changes in zip(lines, steps, strict=True):
            _move(tables, example, changes)


def _lines(jobs: range, known: Known, method: Method, part: Part) -> Iterator[tuple[Example, float]]:
    for job in jobs:
        for example in examples(part, job, known, method):
            yield example, float(part.rates[job])
