"""The kernels against their numpy twin; determinism; resume; the jobs that a corpus is cut into."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.vectors.word2vec import twin as plain

from wordloom.errors import NonFiniteError, VectorError
from wordloom.vectors.word2vec.layout import Tables
from wordloom.vectors.word2vec.trainer import JOB, TrainingCorpus, WordTrainer

V = 60
METHODS = {
    "skip-gram, negatives": {},
    "skip-gram, tree": {"negative": 0},
    "CBOW, negatives": {"architecture": "cbow"},
    "CBOW, tree": {"architecture": "cbow", "negative": 0},
    "CBOW of sums": {"architecture": "cbow", "mean": False},
    "fastText's skip-gram": {"units": True},
    "fastText's skip-gram, tree": {"units": True, "negative": 0},
    "fastText's CBOW": {"units": True, "architecture": "cbow"},
    "fastText's CBOW, tree": {"units": True, "architecture": "cbow", "negative": 0},
}


class Shards:
    """A corpus of a few documents in memory."""

    def __init__(self, lengths: list[int], seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        share = 1 / np.arange(1, V + 1)
        self.ids = random.choice(V, size=sum(lengths), p=share / share.sum()).astype(np.uint16)
        self.ids[:V] = np.arange(V)[: len(self.ids)]
        self.ends = np.cumsum(lengths)

    def __len__(self) -> int:
        return len(self.ids)

    def tokens(self, start: int = 0, stop: int | None = None) -> Any:
        return self.ids[start:stop]


def trainer(
    *,
    deterministic: bool = False,
    threads: int = 1,
    lengths: tuple[int, ...] = (700, 3, 1, 900),
    units: bool = False,
    **method: Any,
) -> WordTrainer:
    s = SimpleNamespace(
        architecture="skipgram", negative=5, mean=True, epochs=2, dim=20, window=4, exponent=0.75,
        sample=0.01, alpha=0.05, min_alpha=1e-3, deterministic=deterministic,
    )  # fmt: skip
    vars(s).update(method)
    table = None
    if units:
        random = np.random.default_rng(5)
        starts = np.concatenate([[0], np.cumsum(random.integers(1, 6, V))])
        rows = random.integers(0, V + 30, starts[-1]).astype(np.int32)
        rows[starts[:-1]] = np.arange(V)
        table = (starts, rows)
    shards = Shards(list(lengths))
    counts = np.sort(np.bincount(shards.ids, minlength=V))[::-1].copy()
    corpus = TrainingCorpus.cut(shards)
    rows = V + 30 if units else None
    made = WordTrainer(corpus, counts, s, seed=3, threads=threads, units=table, rows=rows)
    made.outputs[:] = np.random.default_rng(1).normal(0, 0.1, made.outputs.shape)
    return made


def finish(made: WordTrainer) -> None:
    while not made.done:
        made.run()


def twin(of: WordTrainer) -> Tables:
    """The vectors in double precision after the same portions in numpy."""
    tables = Tables(*(table.astype(np.float64) for table in of._tables))
    train = plain.run_deterministic if of.settings.deterministic else plain.run_fast
    job, J = 0, len(of.corpus.jobs) - 1
    while job < of.jobs:
        part = of.portion(job)
        train(tables, of._words, of._method, part)
        job += len(part.rates)
    assert J > 0
    return tables


@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "deterministic"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_the_kernel_follows_its_numpy_twin(method: dict[str, Any], deterministic: bool) -> None:
    made = trainer(deterministic=deterministic, **method)
    began, expected = made.inputs.copy(), twin(made)
    finish(made)
    D = made.inputs.shape[1]
    np.testing.assert_allclose(made.inputs, expected.inputs[:, :D], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(made.outputs, expected.outputs[:, :D], rtol=1e-4, atol=1e-5)
    assert not made._tables.inputs[:, D:].any()
    assert np.abs(made.inputs - began).max() > 0.05  # something was learnt


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_deterministic_training_has_the_same_bits_on_any_number_of_threads(
    method: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "wordloom.vectors.word2vec.trainer._MIN_PARALLEL_BATCH", 0
    )  # else one thread takes such short batches
    monkeypatch.setattr("wordloom.vectors.word2vec.trainer.JOB", 2000)
    lengths = (*[300] * 6, 13_300)  # the last is longer than a job
    results = []
    for threads in (1, 2, 4):
        made = trainer(deterministic=True, threads=threads, lengths=lengths, epochs=1, **method)
        assert made.threads == threads
        while not made.done:
            figures = made.run()
        results.append((made.inputs.tobytes(), made.outputs.tobytes(), figures))
    assert results[0] == results[1] == results[2]
    assert np.isfinite(results[0][2].loss)


def test_fasttexts_skipgram_draws_three_noise_words_for_one_that_each_count_a_third() -> None:
    made = trainer(units=True)
    assert "3 x 5 negatives shared by a window" in made.kernel
    part = made.portion(0)
    counted = 0
    for window in plain.windows(part, 0, made._words, made._method):
        wanted = sum(window.goal)
        noise = [weight for weight, goal in zip(window.weight, window.goal, strict=True) if not goal]
        if not window.rows:
            continue
        assert len(noise) == 3 * 5
        distinct = not set(window.targets[int(wanted) :]) & set(window.targets[: int(wanted)])
        assert sum(noise) == pytest.approx(5 * wanted) if distinct else sum(noise) < 5 * wanted
        counted += distinct
    assert counted
    assert trainer()._method.negative == 5


def test_batches_too_short_to_share_are_one_threads() -> None:
    tree = trainer(deterministic=True, threads=4, negative=0)
    assert tree.threads == 1
    assert "on 1 thread (deterministic" in tree.kernel
    assert trainer(threads=4, negative=0).threads == 4


def test_the_fast_mode_trains_every_word_once_an_epoch() -> None:
    made = trainer(threads=4, lengths=(25_000,) * 8, epochs=2)
    words = 0
    while not made.done:
        words += made.run().words
    assert words == 2 * 200_000


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_a_step_goes_down_the_gradient_of_the_loss(method: dict[str, Any]) -> None:
    made = trainer(**method)
    tables = Tables(*(table.astype(np.float64) for table in made._tables))
    found = plain.windows(made.portion(0), 0, made._words, made._method)
    sliding = (
        made._method.sliding
    )  # there the first window is looked at: later ones read sums gathered before
    window = found[0] if sliding else next(w for w in found if len(w.rows) > 2)
    moved = _moved(found, made, tables) if sliding else plain.step(tables, window, made._method, rate=1.0)
    # of the whole step, how much of it is the gradient's: a row takes what its mean should, a sum's its part
    part = [1.0, 1.0]
    if made._method.joined:
        part[0] = float(len(window.rows)) if made._method.mean else 1 / len(window.rows)
    for side, (table, rows, change) in enumerate(
        zip(tables, (window.rows, window.targets), moved, strict=True)
    ):
        for row in {rows[0], rows[1]}:
            step = sum(c for r, c in zip(rows, change, strict=True) if r == row) / part[side]
            for e in (0, 7):
                losses = []
                for nudge in (1e-5, -1e-5):
                    table[row, e] += nudge
                    losses.append(plain.window_loss(tables, window, made._method))
                    table[row, e] -= nudge
                assert -(losses[0] - losses[1]) / 2e-5 == pytest.approx(step[e], rel=1e-6, abs=1e-9)


def _moved(found: list[plain.Window], made: WordTrainer, tables: Tables) -> tuple[Any, Any]:
    """What the first window of a job of sliding words adds to each of its rows, and to its targets."""
    reader = plain._Reader(found, 1.0, tables, made._words, made._method)
    ((_, targets, change),) = reader.take(0)
    assert targets == found[0].targets
    taken = [reader.pending[p] for p in found[0].places for _ in reader._rows(p)]
    return taken, change


def test_the_loss_reported_is_that_of_the_windows_looked_at() -> None:
    made = trainer(sample=0, epochs=1, lengths=(6400,))
    made._words = made._words._replace(keep=np.full(V, 2**32 - 1, np.uint32))
    made.settings.alpha = made.settings.min_alpha = 0.0
    tables = Tables(*(table.astype(np.float64) for table in made._tables))
    found = list(plain.windows(made.portion(0), 0, made._words, made._method))[::64]
    expected = sum(plain.window_loss(tables, w, made._method) for w in found) / sum(
        len(w.rows) for w in found
    )
    assert made.run().loss == pytest.approx(expected, rel=1e-5)


def test_training_resumes_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wordloom.vectors.word2vec.trainer.PORTION", 16)
    monkeypatch.setattr("wordloom.vectors.word2vec.trainer.JOB", 1000)
    lengths = (900,) * 40
    monkeypatch.setattr("wordloom.vectors.word2vec.trainer._MIN_PARALLEL_BATCH", 0)
    straight = trainer(deterministic=True, threads=2, lengths=lengths)
    stopped = trainer(deterministic=True, threads=2, lengths=lengths)
    for _ in range(2):
        stopped.run()
    state = {name: value.copy() for name, value in stopped.state().items()}
    resumed = trainer(deterministic=True, threads=1, lengths=lengths)
    resumed.restore(state)
    finish(straight)
    finish(resumed)
    assert straight.inputs.tobytes() == resumed.inputs.tobytes()
    assert straight.outputs.tobytes() == resumed.outputs.tobytes()


@pytest.mark.parametrize("deterministic", [False, True])
def test_vectors_that_grow_beyond_bounds_end_the_training(deterministic: bool) -> None:
    made = trainer(deterministic=deterministic, lengths=(9000,) * 30, epochs=50, alpha=1e4)
    with pytest.raises(NonFiniteError, match="alpha 10000 is too high"):
        finish(made)


def test_a_state_of_other_vectors_is_refused() -> None:
    made = trainer()
    state = made.state()
    with pytest.raises(VectorError, match=r"\[60, 19\]"):
        made.restore({**state, "inputs": state["inputs"][:, :19]})


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 2 * JOB + 5), min_size=1, max_size=20))
def test_a_corpus_is_cut_into_pieces_of_documents_and_jobs_of_pieces(lengths: list[int]) -> None:
    corpus = TrainingCorpus.cut(Shards(lengths))
    sizes = np.diff(corpus.ends, prepend=0)
    assert sizes.min() > 0
    assert sizes.max() <= JOB
    assert set(np.cumsum(lengths).tolist()) <= set(corpus.ends.tolist())  # no piece goes across documents
    assert len(corpus.ends) == sum(-(-length // JOB) for length in lengths)
    bounds = np.concatenate([[0], corpus.ends])[corpus.jobs]
    assert (bounds[0], bounds[-1]) == (0, sum(lengths))
    assert np.diff(bounds).max() <= JOB
    assert np.diff(bounds).min() > 0
    for first, last in zip(corpus.jobs[:-2], corpus.jobs[1:-1], strict=True):  # and none could be longer
        assert corpus.ends[last] - (corpus.ends[first - 1] if first else 0) > JOB


def test_no_word_of_the_vocabulary_is_an_error() -> None:
    with pytest.raises(VectorError, match="no word of the vocabulary"):
        TrainingCorpus.cut(Shards([0]))
