"""Accuracy, macro-F1 and loss against scikit-learn, and their intervals against what they promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, log_loss, matthews_corrcoef

from wordloom.data.batches.labelled import BagBatches
from wordloom.errors import EvaluationError, NonFiniteError
from wordloom.evaluate.agreement import class_agreement, macro_f1
from wordloom.evaluate.classification import classification, judge
from wordloom.models import BagOfWordsConfig, build

N, V, C = 230, 12, 4
LABELS = ("a", "b", "c", "never")


@pytest.fixture(scope="module")
def case():
    """A model, batches, targets, and its probabilities; the last class occurs nowhere."""
    rng = np.random.default_rng(0)
    counts = csr_matrix(rng.poisson(0.8, (N, V)).astype(np.int32))
    config = BagOfWordsConfig(
        vocab_size=V, id2label={str(n): name for n, name in enumerate(LABELS)}, features="counts"
    )
    model = build(config).eval()
    with torch.no_grad():
        model.classifier.weight.copy_(torch.from_numpy(rng.normal(size=(C, V)) * 0.7))
        model.classifier.bias[3] = -99.0
    targets = rng.integers(0, 3, N)
    batches = BagBatches(counts, targets, order="sequential")
    with torch.no_grad():
        found = torch.softmax(model(*batches.batch(0, N).inputs).double(), 1).numpy()
    return model, batches, targets, found


def cut(batches, size):
    return (batches.batch(at, min(size, N - at)) for at in range(0, N, size))


@pytest.mark.parametrize("size", [N, 64])
def test_scores_are_scikit_learns(case, size):
    model, batches, targets, found = case
    scores = classification(model, cut(batches, size), labels=LABELS, settings={"rows": "x"})
    predicted = found.argmax(1)
    assert scores["accuracy"].value == pytest.approx(accuracy_score(targets, predicted))
    assert scores["macro_f1"].value == pytest.approx(f1_score(targets, predicted, average="macro"))
    assert scores["matthews"].value == pytest.approx(matthews_corrcoef(targets, predicted))
    assert scores["loss"].value == pytest.approx(log_loss(targets, found, labels=range(C)), rel=1e-6)
    assert scores.counts == {"rows": N, "right": int((targets == predicted).sum()),
                             "nats": pytest.approx(N * scores["loss"].value)}  # fmt: skip
    judged = judge(model, cut(batches, size))
    assert (judged.confusion == confusion_matrix(targets, predicted, labels=range(C))).all()
    for score in scores.scores:
        low, high = score.interval
        assert low < score.value < high
        assert score.signature.startswith(f"{score.name}|rows:x|labels:4|ci:{N}-rows")
    assert len(scores.notes) == C
    assert scores.notes[3] == "never: 0 of 0 found, 0 predicted"


def test_the_interval_of_macro_f1_holds_the_truth_as_often_as_it_says():
    """Of 200 samples from one population, about 95 % of the intervals must hold the population's value."""
    population = np.array([[30, 10, 2], [8, 40, 7], [3, 6, 20]], float)
    truth = macro_f1((population * 1000).astype(np.int64))
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        sample = rng.multinomial(300, (population / population.sum()).ravel()).reshape(3, 3)
        low, high = class_agreement(sample, labels="abc", metrics=["macro_f1"])["macro_f1"].interval
        held += low <= truth <= high
    assert 180 <= held <= 199


def test_macro_f1_of_edge_cases():
    assert macro_f1(np.array([[5, 0], [0, 5]])) == 1.0
    assert macro_f1(np.array([[0, 5], [5, 0]])) == 0.0
    assert macro_f1(np.array([[5, 0], [0, 0]])) == 1.0  # a class that nobody saw is not averaged over
    assert macro_f1(np.array([[5, 0], [5, 0]])) == pytest.approx((2 * 5 / 15 + 0) / 2)


def test_few_rows_have_no_interval_that_needs_many(case):
    model, batches, _, _ = case
    scores = classification(model, [batches.batch(0, 5)], labels=LABELS, settings={})
    assert scores["macro_f1"].interval is None
    assert scores["loss"].interval is None
    assert scores["accuracy"].interval is not None
    assert "ci:no" in scores["macro_f1"].signature


def test_what_cannot_be_judged(case):
    model, batches, _, _ = case
    with pytest.raises(EvaluationError, match="no row has a label to score"):
        judge(model, [])
    batch = batches.batch(0, 3)
    with pytest.raises(EvaluationError, match="no row has a label to score"):
        judge(model, [batch._replace(targets=torch.full((3,), -100))])
    broken = build(model.config)
    with torch.no_grad():
        broken.classifier.bias.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="no finite probability"):
        judge(broken, [batch])
