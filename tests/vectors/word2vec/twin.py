"""word2vec in NumPy: the readable reference for :mod:`wordloom.vectors.word2vec.kernels`.

One window is one step of gradient descent on the negative log-likelihood of Mikolov et al. 2013
(arXiv:1310.4546, equations 4 and 3)

    -log s(v_w . u_c) - sum over negatives n of log s(-v_w . u_n)         s(x) = 1 / (1 + exp(-x))
    -sum over the nodes p of c's path of log s((1 - 2 code_p) v_w . u_p)  (hierarchical softmax)

with input vectors v and output vectors u, summed over the context words.  In skip-gram each context word
predicts the centre word, as in word2vec.c (the paper's pairs, with the roles swapped).  In CBOW their mean
does (Mikolov et al. 2013, arXiv:1301.3781).  In fastText a word is the mean of its own row and its n-grams'
rows (Bojanowski et al. 2017, arXiv:1607.04606), and it predicts its context.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.vectors.word2vec.layout import STREAMS, Method, Part, Tables, Words

_MASK = (1 << 64) - 1


class Window(NamedTuple):
    middle: int  # the centre word
    rows: list[int]  # of inputs
    targets: list[int]  # of outputs
    goal: list[float]  # 1 or 0 for each target
    weight: list[float]  # for each target
    places: list[int]  # of the context words, in the job


class Random:
    """SplitMix64."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def bits(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & _MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, n: int) -> int:
        return ((self.bits() >> 32) * n) >> 32


def windows(part: Part, job: int, words: Words, method: Method) -> list[Window]:
    """Return the windows of a job, one for each word after subsampling, with the kernels' random numbers."""
    random = Random(int(part.seeds[job]))
    pieces = []
    for piece in range(part.jobs[job], part.jobs[job + 1]):
        begins = part.ends[piece - 1] if piece else 0
        ids = part.ids[begins : part.ends[piece]].tolist()
        pieces.append([word for word in ids if words.keep[word] >= random.bits() >> 32])
    result: list[Window] = []
    for kept in pieces:
        head = len(result)
        for i, middle in enumerate(kept):
            reach = method.window - random.below(method.window)
            near = [j for j in range(max(0, i - reach), min(len(kept), i + reach + 1)) if j != i]
            around = [kept[j] for j in near]
            inputs, predicted = ([middle], around) if method.from_centre else (around, [middle])
            rows = [row for word in inputs if near for row in rows_of(word, words, method)]
            wanted = _targets(predicted, words, method, random) if near else ([], [], [])
            result.append(Window(middle, rows, *wanted, [head + j for j in near]))
    return result


def rows_of(word: int, words: Words, method: Method) -> list[int]:
    if not method.units:
        return [word]
    return words.units[words.unit_starts[word] : words.unit_starts[word + 1]].tolist()


def _targets(
    predicted: list[int], words: Words, method: Method, random: Random
) -> tuple[list[int], list[float], list[float]]:
    if not method.negative:
        spans = [slice(words.path_starts[word], words.path_starts[word + 1]) for word in predicted]
        nodes = [node for span in spans for node in words.path_nodes[span].tolist()]
        goal = [1.0 - code for span in spans for code in words.path_codes[span].tolist()]
        return nodes, goal, [1.0] * len(nodes)
    drawn = [_negative(words, method.vocabulary, random) for _ in range(method.negative)]
    against = [sum(word != negative for word in predicted) / method.times for negative in drawn]
    goal = [1.0] * len(predicted) + [0.0] * len(drawn)
    return predicted + drawn, goal, [1.0] * len(predicted) + against


def _negative(words: Words, V: int, random: Random) -> int:
    bits = random.bits()
    word = ((bits >> 32) * V) >> 32
    return word if bits & 0xFFFFFFFF < words.share[word] else int(words.other[word])


def _predicting(inputs: NDArray[Any], window: Window, method: Method) -> NDArray[Any]:
    """Return [m, S]: one row for each input, or their mean or sum."""
    x = inputs[window.rows]
    if not method.joined:
        return x
    return x.mean(axis=0, keepdims=True) if method.mean else x.sum(axis=0, keepdims=True)


def window_loss(tables: Tables, window: Window, method: Method) -> float:
    """Return the negative log-likelihood of a window in nats."""
    scores = _predicting(tables.inputs, window, method) @ tables.outputs[window.targets].T  # [m, k]
    signed = np.where(np.array(window.goal) > 0.5, scores, -scores)
    return float((np.array(window.weight) * np.logaddexp(0.0, -signed)).sum())


def step(tables: Tables, window: Window, method: Method, rate: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the updates of a window's input rows [n, S] and output rows [k, S].

    They are rate times minus the gradient of :func:`window_loss`, with one exception, as in word2vec.c and
    gensim: with a mean of inputs each gets the full step, and with a sum each gets the step divided by n.
    """
    x, t = _predicting(tables.inputs, window, method), tables.outputs[window.targets]
    error = np.array(window.goal) - 1.0 / (1.0 + np.exp(-(x @ t.T)))  # [m, k]
    g = (rate * np.array(window.weight) * error).astype(x.dtype)
    change = g @ t  # [m, S]
    if method.joined:
        change = np.repeat(change if method.mean else change / len(window.rows), len(window.rows), axis=0)
    return change, g.T @ x


Change = tuple[int, list[int], Any]  # table, rows, and their update


def _add(tables: Tables, changes: list[Change]) -> None:
    for table, rows, change in changes:
        np.add.at(tables[table], rows, change)  # a repeated row is updated twice


class _Reader:
    """Computes the updates of the windows of a job in order.

    If words are ``sliding``, their rows are read when the word enters the window and updated when it leaves.
    In between, ``sums`` holds the sum of the rows and ``pending`` their update.
    """

    def __init__(self, job: list[Window], rate: float, tables: Tables, words: Words, method: Method) -> None:
        self.job, self.rate, self.tables, self.words, self.method = job, rate, tables, words, method
        self.sums: dict[int, NDArray[Any]] = {}
        self.pending: dict[int, NDArray[Any]] = {}

    def take(self, i: int) -> list[Change]:
        """Return the updates of window i, and with the last one all that are pending."""
        window, sliding = self.job[i], self.method.sliding
        if sliding:
            self._come_in(i)
        changes: list[Change] = []
        if window.rows and sliding:
            x = np.sum([self.sums[p] for p in window.places], axis=0) / len(window.rows)
            g = self._error(window, x)
            changes.append((1, window.targets, np.outer(g, x)))
            for p in window.places:
                self.pending[p] = self.pending[p] + g @ self.tables.outputs[window.targets]
        elif window.rows:
            inputs, outputs = step(self.tables, window, self.method, self.rate)
            changes += [(1, window.targets, outputs), (0, window.rows, inputs)]
        last = i == len(self.job) - 1
        for p in sorted(p for p in self.pending if p <= i - self.method.window or last):
            changes.append((0, self._rows(p), self.pending.pop(p)))
        return changes

    def _come_in(self, i: int) -> None:
        for p in range(0 if i == 0 else i + self.method.window, i + self.method.window + 1):
            if p < len(self.job):
                self.sums[p] = self.tables.inputs[self._rows(p)].sum(axis=0)
                self.pending[p] = np.zeros_like(self.sums[p])

    def _rows(self, p: int) -> list[int]:
        return rows_of(self.job[p].middle, self.words, self.method)

    def _error(self, window: Window, x: NDArray[Any]) -> NDArray[Any]:
        scores = self.tables.outputs[window.targets] @ x
        return self.rate * np.array(window.weight) * (np.array(window.goal) - 1.0 / (1.0 + np.exp(-scores)))


def run_fast(tables: Tables, words: Words, method: Method, part: Part) -> None:
    """Train in the fast mode on one thread."""
    jobs = range(len(part.rates))
    for changes in _batches(jobs, tables, words, method._replace(batch=1), part):
        _add(tables, changes)


def run_deterministic(tables: Tables, words: Words, method: Method, part: Part) -> None:
    """Train deterministically: rows change after a batch of windows of every stream."""
    J = len(part.rates)
    streams = [_batches(range(d, J, STREAMS), tables, words, method, part) for d in range(STREAMS)]
    for batches in zip_longest(*streams, fillvalue=[]):
        for changes in batches:
            _add(tables, changes)


def _batches(jobs: range, tables: Tables, words: Words, method: Method, part: Part) -> Iterator[list[Change]]:
    for job in jobs:
        result = windows(part, job, words, method)
        reader = _Reader(result, float(part.rates[job]), tables, words, method)
        for start in range(0, len(result), method.batch):
            batch = range(start, min(start + method.batch, len(result)))
            yield [change for i in batch for change in reader.take(i)]
