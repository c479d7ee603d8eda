"""``wordloom evaluate`` on rows: classes of labelled ones, and vectors beside the scores of pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wordloom.cli.usage import UsageError
from wordloom.errors import CheckpointError

if TYPE_CHECKING:
    from wordloom.evaluate.score import Scores
    from wordloom.run import TextClassifier

__all__ = ["classification", "column_of", "columns_of", "similarity"]


def column_of(given: str | None) -> str | int | None:
    """A column by name, or by number where only digits are given."""
    return int(given) if given is not None and given.isdecimal() else given


def columns_of(given: str | None) -> str | int | list[str | int] | None:
    """As :func:`column_of`, or two columns with a comma between."""
    if given is None or "," not in given:
        return column_of(given)
    columns = [column for name in given.split(",") if (column := column_of(name)) is not None]
    if len(columns) != 2 or "" in columns:
        raise UsageError(f"--text-column names one column, or two with a comma between, not {given!r}")
    return columns


def classification(
    classifier: TextClassifier,
    sources: list[str],
    columns: dict[str, Any],
    errors: Any,
    too_long: Literal["error", "cut"] | None,
) -> Scores:
    """Of ``sources``, whose ``columns`` are text, label and header, read as in training unless ``too_long``
    says otherwise; without any, of the validation rows that the recipe in the folder names."""
    from wordloom.data.rows.labelled import LabelledCorpus
    from wordloom.recipe import load_recipe
    from wordloom.run.models.text_readers import MarkedReader
    from wordloom.run.tasks.labelled import cut_or_error, labelled_corpus

    path = Path(str(classifier.folder)) / "recipe.toml"
    recipe = load_recipe(str(path)) if path.exists() else None
    if (
        recipe is not None
        and recipe.train.objective == "classification"  # not one that another model left here
        and isinstance(classifier.reader, MarkedReader)
    ):  # its rows are those of training
        reader = replace(classifier.reader, longest=recipe.train.seq_len, too_long=cut_or_error(recipe))
        classifier = replace(classifier, reader=reader)
    if too_long is not None:
        classifier.too_long = too_long
    if sources:
        corpus = LabelledCorpus(sources=sources, encoding_errors=errors, **columns)
        return classifier.evaluate(corpus)
    if recipe is None:
        raise CheckpointError(
            f"{classifier.folder} has no recipe.toml that names validation rows; give a file"
        )
    return classifier.evaluate(labelled_corpus(recipe), part="validation")


def similarity(
    checkpoint: Path,
    sources: list[str],
    columns: dict[str, Any],
    errors: Any,
    loading: dict[str, str],
    too_long: str | None,
) -> Scores:
    """Cosines of the vectors of pairs beside the scores of ``sources``."""
    from wordloom.cli.embed.model import text_embedder
    from wordloom.data import ScoredCorpus
    from wordloom.run.models.similarity import similarity_scores

    if not sources:
        raise CheckpointError("--task similarity needs scored pairs; give a file or a set: glue-stsb/dev")
    pairs = ScoredCorpus(
        sources=sources,
        text=columns_of(columns["text"]),
        label=column_of(columns["label"]),
        header=columns["header"],
        encoding_errors=errors,
    )
    settings = {} if too_long is None else {"too_long": too_long}
    return similarity_scores(text_embedder(checkpoint, loading["device"], loading["dtype"], settings), pairs)
