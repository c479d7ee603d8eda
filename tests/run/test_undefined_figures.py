"""Undefined scores are NaN among the metrics of a run, whatever the task."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wordloom.evaluate import Score, Scores
from wordloom.run.models.heads import question_answering, regression
from wordloom.run.models.heads.head import Head
from wordloom.run.models.heads.question_answering import QuestionAnswerer
from wordloom.run.models.heads.regression import TextRegressor

UNDEFINED = Scores(
    tuple(
        Score(name, None, None, name, f"{name} is not defined")
        for name in ("mean_squared_error", "pearson", "spearman", "exact_match", "f1")
    ),
    {},
)


def regressor(monkeypatch: pytest.MonkeyPatch) -> type[Head[Any]]:
    monkeypatch.setattr(TextRegressor, "_numbers", lambda *_: (np.zeros(1), np.zeros(1)))
    monkeypatch.setattr(regression, "number_agreement", lambda *_, **__: UNDEFINED)
    return TextRegressor


def answerer(monkeypatch: pytest.MonkeyPatch) -> type[Head[Any]]:
    monkeypatch.setattr(QuestionAnswerer, "_logits", lambda *_: ([], math.nan))
    monkeypatch.setattr(question_answering, "find_answers", lambda *_, **__: [])
    monkeypatch.setattr(question_answering, "answer_scores", lambda *_, **__: UNDEFINED)
    return QuestionAnswerer


@pytest.mark.parametrize("kind", [regressor, answerer])
def test_undefined_scores_are_nan(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    head: Any = kind(monkeypatch)(model=None, tokenizer=None, config=None)
    metrics = head.metrics(SimpleNamespace(source=SimpleNamespace(questions=[])))
    assert len(metrics) == 3
    assert all(math.isnan(value) for value in metrics.values()), metrics
