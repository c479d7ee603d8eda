"""Numbers of texts and of pairs, such as how alike two sentences are: a regression head, trained on scored
rows (Devlin et al. 2018, section 4.1; in both orders for a causal model, Radford et al. 2018, 3.3)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.data.batches.bags import LabelBatches, ScoreLedger
from wordloom.data.batches.causal import to_device
from wordloom.data.rows.labelled import REPEATED
from wordloom.data.rows.scored import ScoredCorpus
from wordloom.errors import DataError, NonFiniteError
from wordloom.evaluate import RatioStatistics, Score, Scores, number_agreement, signature
from wordloom.evaluate.score import MIN_UNITS
from wordloom.nn.evaluating import evaluating
from wordloom.recipe import Recipe
from wordloom.recipe.data import RowLengths
from wordloom.run.models.headed_model import HeadedModel
from wordloom.run.models.labelled_rows import Rows
from wordloom.run.models.text_readers import MarkedReader
from wordloom.run.prepare import corpus_of
from wordloom.run.progress import TrainingProgress
from wordloom.run.tasks.heads.fine_tuning import given_tokenizer, head_config, head_parts
from wordloom.run.tasks.labelled import account_of, saver
from wordloom.run.tasks.task import Task, figures_in

__all__ = ["ScoredText", "TextScorer", "regression_task"]

log = logging.getLogger(__name__)

_METRICS = ("pearson", "spearman")


class ScoredText(NamedTuple):
    """The number of a text; ``cut``: it was longer than a row, and was cut as asked."""

    score: float
    cut: bool = False


@dataclass(kw_only=True)
class TextScorer(HeadedModel):
    """A regression model and its tokenizer, as :func:`wordloom.load` gives them.

    Attributes:
        max_seq_len: tokens of a row at most, marks included; None: what the model reads.
        too_long: what a longer one is.
    """

    max_seq_len: int | None = None
    too_long: Literal["error", "cut"] = "error"

    @property
    def reader(self) -> MarkedReader:
        """What reads texts for the model."""
        return MarkedReader(self.text_tokenizer, self.config, self.max_seq_len, self.too_long)

    def predict(
        self, texts: Iterable[str | tuple[str, str]], *, place: Callable[[int], str] | None = None
    ) -> list[ScoredText]:
        """The number of each text, or pair of them, and whether it was cut; ``place`` names a text by its
        number in an error.

        Raises DataError for an empty text, and one that is too long.
        """
        if isinstance(texts, str):
            raise DataError("one text was given where a list of texts is expected; write [text]")
        given = list(texts)
        if not given:
            return []
        read = self.reader.read(given, place)
        _, found = _answers(self.model, self.reader.batches(read, np.zeros(len(given), np.float32)))
        cut = set(read.cut_rows)
        return [ScoredText(number, row in cut) for row, number in enumerate(found.tolist())]

    def score(self, texts: Iterable[str | tuple[str, str]]) -> NDArray[np.float32]:
        """The numbers of :meth:`predict`: [N] float32.  Which texts were cut, that says; here a line of the
        log says how many."""
        found = self.predict(texts)
        if cut := sum(one.cut for one in found):
            log.warning("%s of %s texts are longer than a row and were cut", f"{cut:,}", f"{len(found):,}")
        return np.array([one.score for one in found], np.float32)

    def evaluate(self, corpus: ScoredCorpus, *, part: Literal["train", "validation"] | None = None) -> Scores:
        """``loss`` (the mean squared error) and the correlations with the scores of all rows of ``corpus``,
        or of one ``part``; see :func:`wordloom.evaluate.number_agreement`."""
        whole = corpus.undivided() if part is None else corpus
        batches, ledger = _scored_batches(self.reader, whole, part or "train")
        settings = {
            "rows": batches.fingerprint[:8],
            **self.reader.signature,
            "dtype": self.dtype,
        }
        targets, found = _answers(self.model, batches)
        n = len(found)
        errors = RatioStatistics.of((targets - found).astype(np.float64) ** 2, np.ones(n))
        signed = signature("loss", **settings, ci=f"{n}-rows" if n >= MIN_UNITS else "no")
        agreement = number_agreement(targets, found, metrics=_METRICS, settings=settings)
        loss = Score("loss", errors.ratio, errors.interval(), signed)
        counts = {**agreement.counts, "tokens": ledger.terms, "unknown_tokens": ledger.unknown}
        notes = tuple(line for line in ledger.lines() if line.startswith("cut:"))
        return replace(agreement, scores=(loss, *agreement.scores), counts=counts, notes=notes)


def _answers(model: Any, batches: LabelBatches) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The targets of all rows, and what ``model`` says: [N] each; raises NonFiniteError for what is none."""
    device = next(model.parameters()).device
    targets, found = (np.empty(batches.samples_per_epoch, np.float32) for _ in range(2))
    with evaluating(model):
        for start, count in batches.passes():
            rows = batches.rows(start, count)
            batch = batches.batch(start, count)
            targets[rows] = batch.targets.numpy()
            found[rows] = model(*to_device(batch, device).inputs).float().cpu().numpy()
    if not np.isfinite(found).all():
        raise NonFiniteError("the model gives no finite number; its weights are damaged")
    return targets, found


def _scored_batches(
    reader: MarkedReader,
    corpus: ScoredCorpus,
    part: Literal["train", "validation"],
    *,
    seed: int | None = None,
) -> tuple[LabelBatches, ScoreLedger]:
    """The rows of ``part``, permuted by ``seed`` or (None) for one pass, and their account."""
    rows = Rows()
    given = rows.rows(corpus, part, most_texts=reader.most_texts, whole=reader.whole)
    read = reader.read(given, lambda row: rows.places[row])
    targets = np.array([float(score) for score in rows.labels], np.float32)
    batches = reader.batches(read, targets, places=rows.places, seed=seed)
    ledger = ScoreLedger(
        part=part,
        split=corpus.describe_split(),
        rows=len(targets),
        terms=read.terms,
        unknown=read.unknown,
        empty=read.empty,
        unit=reader.unit,
        cut=read.cut,
        repeated=rows.dropped[REPEATED],
        text=str(rows.digest),
        lowest=float(targets.min()),
        highest=float(targets.max()),
        mean=float(targets.mean(dtype=np.float64)),
    )
    return batches, ledger


# -- training --------------------------------------------------------------------------------------------


def regression_task(recipe: Recipe, given: Path | None, progress: TrainingProgress) -> Task:
    """Numbers of the recipe's rows of one text or two; ``given`` is a checkpoint to begin with."""
    s, d = recipe.train, recipe.data
    corpus = corpus_of(recipe, ScoredCorpus)
    texts = (text for row in corpus.rows("train") for text in row.texts)
    tokenizer = given_tokenizer(recipe, given, texts, progress, "rows")
    config = head_config(recipe, tokenizer, given, task="regression")
    reader = MarkedReader(
        tokenizer, config, s.seq_len, recipe.data_as(RowLengths).too_long, alike=s.batch_size
    )
    parts = {"train": _scored_batches(reader, corpus, "train", seed=recipe.seed)}
    if d.holds_out:
        parts["validation"] = _scored_batches(reader, corpus, "validation")
    for _, ledger in parts.values():
        progress.say(ledger.lines())
    batches, account = parts["train"]
    rest = account_of(parts, _evaluator, signature=reader.signature)
    return Task(
        settings=s,
        batches=batches,
        fingerprints={"data": rest.fingerprint, "tokenizer": tokenizer.fingerprint},
        ledger=rest.ledger,
        evaluate=rest.evaluate,
        scored=rest.scored,
        save=saver(reader),
        **head_parts(recipe, config, given, progress, tokens=account.terms / account.rows),
    )


def _evaluator(validation: LabelBatches) -> Callable[[Any], dict[str, float]]:
    """Loss and correlations over the validation rows."""

    def evaluate(model: Any) -> dict[str, float]:
        targets, found = _answers(model, validation)
        scores = number_agreement(targets, found, metrics=("mean_squared_error", *_METRICS), settings={})
        figures = figures_in(scores, ("mean_squared_error", *_METRICS))
        return {"loss": figures.pop("mean_squared_error"), **figures}

    return evaluate
