"""The evaluations of checkpoints: of fine-tuned models by their rows, and of each other kind of checkpoint.

Each function takes a request and the loaded model.  Without files it scores the validation data that the
recipe in the folder names, as they were read in training.  The keyword arguments are options of
``wordloom evaluate``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from wordloom.data import ScoredCorpus, ScoredRow, documents, questions
from wordloom.data.files.stream import EncodingErrors
from wordloom.data.rows.choices import choice_rows
from wordloom.data.rows.labelled import Column, LabelledCorpus, refuse_empty
from wordloom.data.rows.labelled_documents import LabelledDocuments, label_token
from wordloom.data.rows.squad import Question
from wordloom.data.rows.tagged import TaggedText, tagged_texts, word_columns
from wordloom.data.rows.texts import holds_rows
from wordloom.errors import CheckpointError, DataError, EvaluationError
from wordloom.evaluate import Scores, number_agreement, perplexity
from wordloom.evaluate.forward import dtype_name
from wordloom.evaluate.reading import tokenizer_name
from wordloom.evaluate.score import perplexity_of
from wordloom.files import link_target, write_text
from wordloom.inspect.score_plots import draw_confusion
from wordloom.models import body_config
from wordloom.models.building.attention import set_attention
from wordloom.recipe.data import CausalData, QuestionData, TextData, TranslationData
from wordloom.run.checkpoint.loaders import ColumnNames, Request, report_columns
from wordloom.run.models.embedder import Embedder
from wordloom.run.models.language_model import LanguageModel
from wordloom.run.models.sentence_folder import pooling_of
from wordloom.run.models.text_encoder import TextEncoder
from wordloom.run.models.translator import Translator
from wordloom.run.prepare import corpus_of, recipe_corpus, training_columns
from wordloom.run.tasks.masked import validation_scores
from wordloom.run.tasks.translation.scores import pairs_to_score, translation_scores
from wordloom.text import Specials

Corpus = TypeVar("Corpus", bound=LabelledCorpus)

PAIRS_HINT = "; pairs of texts and their scores take --task similarity"


def evaluate_with_attention(model: Any, attention: str) -> str:
    """Make a loaded model attend by other patterns; return the note that its scores carry.

    Raises ConfigError for a model without attention by position, and for an unknown pattern.
    """
    network = getattr(model, "model", None)
    before = getattr(body_config(getattr(network, "config", None)), "attention", None)
    set_attention(network, attention)
    return f"attention {attention}, and {before} in training"


# -- running text ------------------------------------------------------------------------------------------


def evaluate_text(
    request: Request,
    lm: LanguageModel,
    *,
    first: int | None = None,
    field: str | None = None,
    separator: str | None = None,
    encoding_errors: EncodingErrors = "strict",
    specials: Specials = "refuse",
    per_word: bool = False,
    joined: bool = False,
    **windows: Any,
) -> Scores:
    """Return loss, perplexity and bits per byte.

    ``windows`` are settings of :func:`wordloom.evaluate.perplexity`.  A model trained on texts behind their
    labels is scored on each text given its label.
    """
    if request.sources:
        field = field or request.checkpoint.field or "text"
        texts = documents(request.sources, field=field, separator=separator, encoding_errors=encoding_errors)
    else:
        recipe = request.checkpoint.validation_recipe
        if isinstance(recipe.data, CausalData) and recipe.data.label_prefix:
            if per_word or joined or first is not None:
                raise EvaluationError(
                    "the model scores each text given its label: leave out --per-word, --joined and --first"
                )
            return _scores_after_labels(lm, LabelledDocuments(corpus_of(recipe, LabelledCorpus)), **windows)
        texts, specials = recipe_corpus(recipe).documents("validation"), recipe.data_as(TextData).specials
    tokenizer, read = lm.text_tokenizer, list(islice(texts, first))
    size = sum(len(d.text if isinstance(d.text, bytes) else d.text.encode()) for d in read)
    tokens, nats, began = 0, 0.0, time.perf_counter()
    with request.reporter.progress(size) as advance:

        def progress(n_bytes: float, n_tokens: int, more_nats: float) -> None:
            nonlocal tokens, nats
            tokens, nats = tokens + n_tokens, nats + more_nats
            rate = tokens / (time.perf_counter() - began)
            advance(n_bytes, f"perplexity {perplexity_of(nats / max(1, tokens)):,.2f}  {rate:,.0f} tokens/s")

        settings = {**windows, "per_word": per_word, "joined": joined, "specials": specials}
        return perplexity(lm.model, tokenizer, read, progress=progress, **settings)


def _scores_after_labels(lm: LanguageModel, corpus: LabelledDocuments, **settings: Any) -> Scores:
    """Return the perplexity of the validation texts after their labels, which are neither scored nor counted.

    The notes, and ``labels`` in the details, hold the loss and the number of texts of each label.
    """
    if (start := settings.pop("start", "auto")) not in ("auto", "label", "none"):
        raise EvaluationError(f"start '{start}': a label has no token before it; leave it out")
    pieces = list(corpus.pieces("validation"))
    overall = perplexity(lm.model, lm.text_tokenizer, pieces, start="label", **settings)
    notes, by_label = [], {}
    for label in corpus.labels:
        labelled = [piece for piece in pieces if piece.prefix == label_token(label)]
        if not labelled:
            continue
        scores = perplexity(lm.model, lm.text_tokenizer, labelled, start="label", **settings)
        loss, n = scores["loss"].value, len(labelled)
        by_label[label] = {"loss": loss, "texts": n}
        notes.append(f"{label}: loss {loss:.4f} a token, {n:,} {'text' if n == 1 else 'texts'}")
    return Scores(
        overall.scores, overall.counts, (*overall.notes, *notes), {**overall.details, "labels": by_label}
    )


def evaluate_masked(
    request: Request,
    encoder: TextEncoder,
    *,
    first: int | None = None,
    field: str | None = None,
    separator: str | None = None,
    encoding_errors: EncodingErrors = "strict",
    **settings: Any,
) -> Scores:
    """Return the pseudo-perplexity of files, or the validation scores of the recipe's masked tokens."""
    if not request.sources:
        return validation_scores(encoder, request.checkpoint.validation_recipe)
    folder = request.checkpoint.folder
    for source in request.sources:
        if holds_rows(source):
            raise DataError(f"'{source}' holds rows, and {folder} is scored on running text{PAIRS_HINT}")
    try:
        field = field or request.checkpoint.field or "text"
        read = documents(request.sources, field=field, separator=separator, encoding_errors=encoding_errors)
        texts = list(islice(read, first))
    except DataError as error:
        if pooling_of(folder) is None:
            raise
        raise DataError(f"{error}{PAIRS_HINT}") from None
    ids = encoder.text_tokenizer.encode_batch([t.text for t in texts], specials="text")
    began, before = time.perf_counter(), 0
    with request.reporter.progress(sum(map(len, ids))) as advance:

        def progress(done: int) -> None:
            nonlocal before
            advance(done - before, f"{done / (time.perf_counter() - began):,.0f} tokens/s")
            before = done

        return encoder.pseudo_perplexity(texts, progress=progress, **settings)


# -- rows --------------------------------------------------------------------------------------------------


def evaluate_head(
    request: Request,
    head: Any,
    *,
    too_long: Literal["error", "cut", "window"] | None = None,
    threshold: float | None = None,
    plot: Path | None = None,
    **reading: Any,
) -> Scores:
    """Return the scores of a :class:`~wordloom.run.models.heads.head.Head` on rows with answers.

    The length of rows, and ``too_long`` by default, are those of training.  With a ``threshold`` a question
    may have no answer.  The confusion matrix of a classifier is drawn into ``plot``.
    """
    recipe = request.checkpoint.recipe
    if recipe is not None and recipe.train.objective == head.task:
        head = head.with_settings(recipe)
    if too_long is not None:
        head.too_long = too_long
    if threshold is not None:
        head.no_answer, head.threshold = True, threshold
    if request.sources:
        rows = _ROWS[head.task](request, **reading)
    else:
        recipe, rows = request.checkpoint.validation_recipe, None
        if recipe.train.objective == head.task:
            rows = head.rows_of(recipe, Counter()).get("validation")
        if rows is None:
            raise CheckpointError(
                f"the recipe of {request.checkpoint.folder} holds out no validation data; give a file"
            )
    scores: Scores = head.evaluate(rows)
    if plot is not None:
        column = reading["label_column"]
        kind = column if isinstance(column, str) and column != "file" else "label"
        matrix = scores.details["confusion"]
        request.write(plot, lambda path: draw_confusion(**matrix, path=path, kind=kind))
    return scores


def evaluate_similarity(
    request: Request,
    model: TextEncoder | LanguageModel,
    *,
    too_long: Literal["error", "cut", "window"] | None = None,
    **reading: Any,
) -> Scores:
    """Return how well the cosines of pairs of texts correlate with the scores of the pairs."""
    if not request.sources:
        raise CheckpointError("--task similarity needs scored pairs; give a file or a set: glue-stsb/dev")
    objectives = ("cosine_similarity", "contrastive")
    corpus = _labelled_rows(ScoredCorpus, objectives, request, **reading)
    settings = {} if too_long is None else {"too_long": too_long}
    return similarity_scores(model.embedder(**settings), corpus)


def similarity_scores(embedder: Embedder, corpus: ScoredCorpus) -> Scores:
    """Return Pearson's and Spearman's correlation of the cosines of pairs in ``corpus`` with their scores.

    Raises DataError for a row of one text, an empty text, and a text that is too long.
    """
    rows: list[Any] = list(corpus.undivided().rows("train"))
    for row in rows:
        if len(row.texts) != 2:
            raise DataError(f"{row.place}: has {len(row.texts)} text(s); similarity needs two")
        refuse_empty(row)
    different = list(dict.fromkeys(text for row in rows for text in row.texts))
    vectors, ledger = embedder(different, place=lambda number: _place_of(rows, different[number]))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    numbers = {text: number for number, text in enumerate(different)}
    pairs: Any = np.array([[numbers[text] for text in row.texts] for row in rows])
    cosines = (unit[pairs[:, 0]] * unit[pairs[:, 1]]).sum(axis=1)
    settings: dict[str, object] = {
        "by": "cosine",
        "pooling": embedder.pooling,
        "layer": "last" if embedder.layer is None else embedder.layer,
        "tok": tokenizer_name(embedder.tokenizer),
        "dtype": dtype_name(embedder.model),
    }
    scores = number_agreement(
        [row.score for row in rows], cosines, metrics=("pearson", "spearman"), settings=settings
    )
    counts = {**scores.counts, "texts": len(different)}
    return Scores(scores.scores, counts, tuple(ledger.lines()[1:]))


def _place_of(rows: Iterable[ScoredRow], text: str) -> str:
    """Return the file, line and column of the first row with ``text``."""
    row = next(row for row in rows if text in row.texts)
    return f"{row.place}, column {row.columns[row.texts.index(text)]!r}"


def _labelled_rows(
    kind: type[Corpus],
    objectives: Sequence[str],
    request: Request,
    *,
    text_column: ColumnNames = None,
    label_column: Column | None = None,
    **settings: Any,
) -> Corpus:
    """Return the rows of files; a recipe for one of ``objectives`` names the columns that are not given."""
    default = training_columns(request.checkpoint.recipe, *objectives)
    corpus = kind(sources=request.sources, text=text_column, label=label_column, default=default, **settings)
    if default is not None:
        report_columns(request, corpus.columns_read())
    return corpus


def _tagged_rows(
    request: Request,
    *,
    text_column: ColumnNames = None,
    label_column: Column | None = None,
    encoding_errors: EncodingErrors = "strict",
) -> list[TaggedText]:
    default = training_columns(request.checkpoint.recipe, "token_classification")
    columns: dict[str, Any] = {
        "word": text_column[0] if text_column else None,
        "label": label_column,
        "default": default,
    }
    texts = list(tagged_texts(request.sources, encoding_errors=encoding_errors, **columns))
    if default is not None:
        report_columns(request, word_columns(request.sources, **columns))
    return texts


def _questions(request: Request, **settings: Any) -> list[Question]:
    data = request.checkpoint.recipe and request.checkpoint.recipe.data
    misplaced = data.misplaced if isinstance(data, QuestionData) else "error"
    return list(questions(list(request.sources), misplaced=misplaced, **settings))


# The readers of the rows in files, by the task of the head.
_ROWS: dict[str, Callable[..., Any]] = {
    "classification": partial(_labelled_rows, LabelledCorpus, ["classification"]),
    "regression": partial(_labelled_rows, ScoredCorpus, ["regression"]),
    "multiple_choice": lambda request, **reading: list(
        choice_rows(request.sources, answered=True, **reading)
    ),
    "token_classification": _tagged_rows,
    "question_answering": _questions,
}


# -- pairs of texts ----------------------------------------------------------------------------------------

_PAIRS = ("targets", "source_column", "target_column", "header", "encoding_errors")


def evaluate_translation(
    request: Request,
    translator: Translator,
    *,
    first: int | None = None,
    translations: Path | None = None,
    batch_size: int | None = None,
    **options: Any,
) -> Scores:
    """Return BLEU and chrF of translations and the loss of the references.

    ``options`` are settings of :class:`~wordloom.data.PairCorpus`, and of the beam search and the scores.
    The file ``translations`` receives a line for each text.
    """
    reading = {name: value for name in _PAIRS if (value := options.pop(name, None)) is not None}
    if request.sources and "targets" not in reading:
        _report_pair_columns(request, reading)
    # all pairs are read, also beyond ``first``: the counts of both sides must agree
    pairs = list(pairs_to_score(request.checkpoint.folder, request.sources, **reading))[:first]
    with request.reporter.progress(len(pairs)) as advance:
        done = count(1)
        scores, written = translation_scores(
            translator,
            pairs,
            batch_size=batch_size or 32,
            progress=lambda: advance(1, f"{next(done):,} of {len(pairs):,} texts translated"),
            **options,
        )
    if translations is not None:
        text = "".join(f"{line}\n" for line in written)
        request.write(translations, lambda path: write_text(link_target(path), text))
    return scores


def _report_pair_columns(request: Request, given: dict[str, Any]) -> None:
    data = None if request.checkpoint.recipe is None else request.checkpoint.recipe.data
    if not isinstance(data, TranslationData) or (data.source_column is None and data.target_column is None):
        return
    source = given.get("source_column") or data.source_column or "source"
    target = given.get("target_column") or data.target_column or "target"
    request.report_columns(f"source {source!r}; target {target!r}")
