"""``wordloom evaluate`` on rows: classes of labelled ones, and vectors beside the scores of pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wordloom.cli.columns import refuse_columns, report_columns
from wordloom.errors import CheckpointError

if TYPE_CHECKING:
    from wordloom.evaluate.score import Scores
    from wordloom.run import TextClassifier

__all__ = ["classification", "similarity"]


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
    from wordloom.recipe.data import RowLengths
    from wordloom.run.models.text_readers import MarkedReader
    from wordloom.run.prepare import labelled_corpus
    from wordloom.run.tasks.labelled import recipe_of, training_columns

    folder = Path(str(classifier.folder))
    recipe = recipe_of(folder)
    if (
        recipe is not None
        and recipe.train.objective == "classification"  # not one that another model left here
        and isinstance(classifier.reader, MarkedReader)
    ):  # its rows are those of training
        reader = replace(
            classifier.reader, longest=recipe.train.seq_len, too_long=recipe.data_as(RowLengths).too_long
        )
        classifier = replace(classifier, reader=reader)
    if too_long is not None:
        classifier.too_long = too_long
    refuse_columns(folder, columns["text"], classifier.reader.most_texts)
    if sources:
        default = training_columns(recipe, "classification")
        corpus = LabelledCorpus(sources=sources, encoding_errors=errors, default=default, **columns)
        if default is not None:
            report_columns(corpus.columns_read(), folder / "recipe.toml")
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
    from wordloom.run.tasks.labelled import recipe_of, training_columns

    if not sources:
        raise CheckpointError("--task similarity needs scored pairs; give a file or a set: glue-stsb/dev")
    default = training_columns(recipe_of(checkpoint), "cosine_similarity", "contrastive")
    pairs = ScoredCorpus(sources=sources, encoding_errors=errors, default=default, **columns)
    if default is not None:
        report_columns(pairs.columns_read(), checkpoint / "recipe.toml")
    settings = {} if too_long is None else {"too_long": too_long}
    return similarity_scores(text_embedder(checkpoint, loading["device"], loading["dtype"], settings), pairs)
