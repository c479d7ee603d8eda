"""Regression: a number for a text or a pair of texts, such as how similar two sentences are.

The head of Devlin et al. 2018, section 4.1; for a causal model, pairs may be read in both orders (Radford et
al. 2018, section 3.3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.data.rows.labelled import CorpusPart, LabelledCorpus
from wordloom.data.rows.scored import ScoredCorpus
from wordloom.evaluate import RatioStatistics, Scores, number_agreement
from wordloom.evaluate.forward import check_finite, row_outputs
from wordloom.recipe import Recipe
from wordloom.run.models.heads.head import Place, ReadRows, TokenizedHead, read_part, read_texts, values_in
from wordloom.run.prepare import parts_of

_METRICS = ("pearson", "spearman")


class ScoredText(NamedTuple):
    """The number that the model gives a text, and whether the text was truncated."""

    score: float
    truncated: bool = False


@dataclass(kw_only=True)
class TextRegressor(TokenizedHead[ScoredText]):
    """A regression model and its tokenizer, as :func:`wordloom.load` returns them."""

    task = "regression"

    @classmethod
    def rows_of(cls, recipe: Recipe, counts: Counter[str]) -> dict[str, CorpusPart]:
        return parts_of(recipe, ScoredCorpus)

    @classmethod
    def texts_of(cls, rows: CorpusPart) -> Iterator[str]:
        return (text for row in rows for text in row.texts)

    def read(self, rows: LabelledCorpus | CorpusPart, *, part: str = "", seed: int | None = None) -> ReadRows:
        return read_part(self.reader, rows, (), seed=seed)

    def read_inputs(self, inputs: list[Any], place: Place) -> ReadRows:
        return read_texts(self.reader, inputs, place, np.float32)

    def answers(self, read: ReadRows) -> list[ScoredText]:
        _, numbers = self._numbers(read)
        return [ScoredText(number, row in read.source) for row, number in enumerate(numbers.tolist())]

    def score(self, texts: Iterable[str | tuple[str, str]]) -> NDArray[np.float32]:
        """Return the numbers of N texts or pairs: [N] float32; the log says how many were truncated."""
        answers = self.predict(texts)
        self._warn_truncated(sum(answer.truncated for answer in answers), len(answers))
        return np.array([answer.score for answer in answers], np.float32)

    def scores(self, read: ReadRows, settings: dict[str, object]) -> Scores:
        """Return ``loss`` (the mean squared error) and the correlations with the scores of the rows."""
        targets, numbers = self._numbers(read)
        errors = RatioStatistics.of((targets - numbers).astype(np.float64) ** 2, np.ones(len(numbers)))
        loss = errors.score("loss", settings, "rows")
        agreement = number_agreement(targets, numbers, metrics=_METRICS, settings=settings)
        counts = {**agreement.counts, "tokens": read.ledger.terms, "unknown_tokens": read.ledger.unknown}
        return replace(agreement, scores=(loss, *agreement.scores), counts=counts)

    def metrics(self, read: ReadRows) -> dict[str, float]:
        names = ("mean_squared_error", *_METRICS)
        values = values_in(number_agreement(*self._numbers(read), metrics=names), names)
        return {"loss": values.pop("mean_squared_error"), **values}

    def _numbers(self, read: ReadRows) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the targets and the model's numbers for all rows: [N] each."""
        targets, numbers = (np.empty(read.batches.samples_per_epoch, np.float32) for _ in range(2))
        for rows, batch, output in row_outputs(self.model, read.batches):
            targets[rows], numbers[rows] = batch.targets.numpy(), output.numpy()
        check_finite(numbers, "number")
        return targets, numbers
