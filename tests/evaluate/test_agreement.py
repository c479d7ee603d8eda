"""Scores of classes and numbers against scikit-learn and scipy, and their intervals against the truth."""

from __future__ import annotations

import doctest
import io
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, mean_squared_error

from wordloom.cli.evaluate import print_scores
from wordloom.data import DATASETS
from wordloom.errors import EvaluationError
from wordloom.evaluate import GLUE, agreement, glue_task
from wordloom.evaluate.agreement import (
    CLASS_METRICS,
    NUMBER_METRICS,
    class_agreement,
    class_values,
    confusion_of,
    mean_ranks,
    number_agreement,
)

LABELS = ("a", "b", "c", "d")
number = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6, allow_subnormal=False))


def classes(targets, predicted, labels, **given):
    return class_agreement(confusion_of(targets, predicted, len(labels)), labels=labels, settings={}, **given)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 4), st.data())
def test_classes_are_scored_as_by_scikit_learn(n_classes, data):
    label = st.integers(0, n_classes - 1)
    pairs = data.draw(st.lists(st.tuples(label, label), min_size=1, max_size=15))
    targets, predicted = zip(*pairs, strict=True)
    which = data.draw(label)
    scores = classes(targets, predicted, LABELS[:n_classes], positive=LABELS[which])
    assert scores["accuracy"].value == pytest.approx(accuracy_score(targets, predicted))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of labels that nowhere occur, and one-sided confusions
        f1 = f1_score(targets, predicted, labels=[which], average=None)[0]
        matthews = matthews_corrcoef(targets, predicted)
    assert scores["f1"].value == pytest.approx(f1)
    assert scores["matthews"].value == pytest.approx(matthews, abs=1e-12)
    by_convention = "matthews is 0 by convention: every row" in scores["matthews"].note
    assert by_convention == (len(set(targets)) == 1 or len(set(predicted)) == 1)
    of_a_run = class_values(confusion_of(targets, predicted, n_classes), LABELS[:n_classes], LABELS[which])
    assert of_a_run["matthews"] == scores["matthews"].value
    assert of_a_run.get("f1", f1) == pytest.approx(f1)


@pytest.mark.parametrize("targets", [[0, 1, 1, 0] * 6, [0] * 24, [1] * 24])
@pytest.mark.parametrize("predicted", [[0] * 24, [1] * 24])
@pytest.mark.filterwarnings("ignore")  # scikit-learn's of such rows
def test_what_takes_all_for_one_is_scored_as_by_scikit_learn(targets, predicted):
    """Such a model is no better than chance, and beats one that is worse."""
    confusion = confusion_of(targets, predicted, 2)
    found = class_values(confusion, ("no", "yes"))
    assert found["matthews"] == matthews_corrcoef(targets, predicted) == 0.0
    assert found["f1"] == f1_score(targets, predicted)
    scores = class_agreement(confusion, labels=("no", "yes"), settings={})
    assert (scores["matthews"].value, scores["matthews"].interval) == (0.0, None)
    assert "|ci:no|" in scores["matthews"].signature


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(number, number), min_size=1, max_size=15))
def test_numbers_are_scored_as_by_scipy(pairs):
    x, y = np.array(pairs).T
    scores = number_agreement(x, y, settings={})
    assert scores["mean_squared_error"].value == pytest.approx(mean_squared_error(x, y))
    assert mean_ranks(x).tolist() == stats.rankdata(x).tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant sides, and those nearly so
        rank = stats.spearmanr(x, y).statistic if len(x) > 1 else math.nan
        plain = stats.pearsonr(x, y) if len(x) > 1 else None
    for name, truth in (("pearson", plain.statistic if plain else math.nan), ("spearman", rank)):
        if len(set(x)) == 1 or len(set(y)) == 1:
            assert scores[name].value is None
            assert scores[name].note.startswith(f"{name} is undefined")
        else:
            assert scores[name].value == pytest.approx(truth, abs=1e-7)
    if plain and scores["pearson"].interval and abs(plain.statistic) < 0.999:
        assert scores["pearson"].interval == pytest.approx(tuple(plain.confidence_interval()), abs=1e-6)


def test_perfect_and_opposite():
    x = np.arange(30.0)
    same, opposite = number_agreement(x, 3 * x - 7, settings={}), number_agreement(x, -(x**3), settings={})
    assert (same["spearman"].value, same["spearman"].interval) == (1.0, (1.0, 1.0))
    assert same["pearson"].value == pytest.approx(
        1.0, abs=1e-15
    )  # a sum, in an order that is the processor's
    assert same["pearson"].interval == pytest.approx((1.0, 1.0), abs=1e-15)
    assert (opposite["spearman"].value, opposite["spearman"].interval) == (-1.0, (-1.0, -1.0))
    assert -1.0 < opposite["pearson"].value < -0.8
    tiny = number_agreement(x * 1e-300, x * 1e300, metrics=("pearson",), settings={})
    assert tiny["pearson"].value == pytest.approx(1.0)


def test_ranks_of_resamples_are_those_of_the_rows_drawn():
    rng = np.random.default_rng(3)
    x = rng.integers(0, 5, 12).astype(float)
    drawn = rng.integers(0, 12, 12)
    often = np.bincount(drawn, minlength=12)[None].astype(float)
    ranks = agreement._ranks_of_resamples(x, often)[0]
    assert ranks[drawn].tolist() == stats.rankdata(x[drawn]).tolist()


def test_intervals_of_resamples_hold_the_truth_as_often_as_they_say(monkeypatch):
    monkeypatch.setattr(agreement, "RESAMPLES", 300)
    rng = np.random.default_rng(1)
    spearman = 6 / math.pi * math.asin(0.6 / 2)  # of a normal distribution with Pearson's 0.6
    population = np.array([[40, 12], [9, 39]]) / 100
    matthews, f1 = (
        float(agreement._matthews(population[None])[0]),
        float(agreement._f1(population[None], 1)[0]),
    )
    held = dict.fromkeys(("pearson", "spearman", "matthews", "f1"), 0)
    for _ in range(100):
        x, noise = rng.normal(size=(2, 120))
        numbers = number_agreement(x, 0.6 * x + 0.8 * noise, settings={})
        counts = rng.multinomial(150, population.ravel()).reshape(2, 2)
        found = {**numbers, **class_agreement(counts, labels=("n", "y"), settings={})}
        for name, truth in (("pearson", 0.6), ("spearman", spearman), ("matthews", matthews), ("f1", f1)):
            low, high = found[name].interval
            held[name] += low <= truth <= high
    assert all(88 <= count <= 100 for count in held.values()), held


def test_what_a_score_says_of_itself():
    scores = classes([0, 1, 1, 0] * 6, [0, 1, 0, 0] * 6, ("no", "yes"))
    assert scores["f1"].signature.startswith("f1|labels:2|positive:yes|ci:24-rows-bootstrap2000|v:")
    assert scores["f1"].value == pytest.approx(2 / 3)
    assert scores.counts == {"rows": 24, "right": 18}
    assert classes([0, 1], [1, 1], ("no", "yes"))["f1"].interval is None
    assert classes([0, 0], [1, 1], ("no", "yes"))["matthews"].note.endswith("every row is 'no'")
    assert classes([0, 1], [1, 1], ("no", "yes"))["matthews"].note.endswith("predicted as 'yes'")
    assert classes([0, 0], [0, 0], ("no", "yes"))["f1"].note.endswith(
        "no row has the label 'yes', and none was predicted so"
    )
    few = number_agreement([1, 2, 3], [1, 2, 2], settings={"rows": "x"})
    assert [score.interval for score in few.values()] == [None] * 3
    assert few["pearson"].signature.startswith("pearson|rows:x|ci:no|")
    assert (
        number_agreement([1], [2], settings={})["spearman"].note
        == "spearman is undefined: there is only one row"
    )
    assert list(number_agreement([1, 2], [1, 2], metrics=("spearman",), settings={})) == ["spearman"]


def test_what_cannot_be_scored():
    for call, says in [
        (lambda: confusion_of([0, 1], [0], 2), "2 rows have 1 predictions"),
        (lambda: confusion_of([0, 2], [0, 1], 2), "a class is 0 or 2; 2 are numbered from 0"),
        (lambda: classes([], [], ("a", "b")), "no row to score"),
        (lambda: classes([0], [1], ("a", "b", "c")), "F1 scores one of the 3 labels; name it"),
        (lambda: classes([0], [1], ("good", "bad"), positive="god"), "did you mean 'good'"),
        (lambda: classes([0], [1], ("a", "b"), metrics=("mathews",)), "did you mean 'matthews'"),
        (lambda: number_agreement([], [], settings={}), "no row to score"),
        (lambda: number_agreement([1], [1, 2], settings={}), "1 rows have 2 predictions"),
        (lambda: number_agreement([1, 2], [1, math.nan], settings={}), "prediction of row 2 is not a finite"),
    ]:
        with pytest.raises(EvaluationError, match=says):
            call()


def test_every_set_of_glue_has_its_metrics():
    assert {name for name in DATASETS if name.startswith("glue-")} == set(GLUE)
    for name, task in GLUE.items():
        scored = DATASETS[name].columns.score is not None
        assert set(task.metrics) <= set(NUMBER_METRICS if scored else CLASS_METRICS)
        assert glue_task(f"{name}/dev") is task
    assert glue_task("sst2/dev") is None
    assert glue_task("glue-mrpc") == (("f1", "accuracy"), "1")


def test_a_score_that_is_0_by_convention_is_shown_with_its_reason():
    console = Console(record=True, width=200, file=io.StringIO())
    print_scores(console, classes([0, 1] * 12, [1, 1] * 12, ("no", "yes")), 0.1)
    assert "note: matthews is 0 by convention: every row was predicted as 'yes'" in console.export_text()


def test_the_documented_calls_give_the_documented_scores():
    page = Path(__file__).parents[2] / "docs/evaluation.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried >= 5
    assert not failed
