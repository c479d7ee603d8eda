"""Scores that are not defined are NaN among a run's figures, whatever the task."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wordloom.evaluate import Score, Scores
from wordloom.run.tasks.heads import question_answering as answering
from wordloom.run.tasks.heads import regression

UNDEFINED = Scores(
    tuple(
        Score(name, None, None, name, f"{name} is not defined")
        for name in ("mean_squared_error", "pearson", "spearman", "exact_match", "f1")
    ),
    {},
)


def scored_numbers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], dict[str, float]]:
    monkeypatch.setattr(regression, "_answers", lambda *_: (np.zeros(1), np.zeros(1)))
    monkeypatch.setattr(regression, "number_agreement", lambda *_, **__: UNDEFINED)
    return regression._evaluator(SimpleNamespace())


def answered_questions(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], dict[str, float]]:
    monkeypatch.setattr(answering, "_logits", lambda *_: ([], math.nan))
    monkeypatch.setattr(answering, "find_answers", lambda *_, **__: [])
    monkeypatch.setattr(answering, "answer_scores", lambda *_, **__: UNDEFINED)
    return answering._evaluator(SimpleNamespace(questions=[]), SimpleNamespace(), False)


@pytest.mark.parametrize("evaluator", [scored_numbers, answered_questions])
def test_undefined_scores_are_nan(monkeypatch: pytest.MonkeyPatch, evaluator: Callable[..., Any]) -> None:
    figures = evaluator(monkeypatch)(None)
    assert len(figures) == 3
    assert all(math.isnan(value) for value in figures.values()), figures
