"""``wordloom predict CHECKPOINT [FILE...]``."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wordloom.cli.columns import HEADER, TEXT_COLUMN, columns_of, refuse_columns
from wordloom.cli.heads import THRESHOLD, predict_headed, refuse_windows, tell_cut
from wordloom.cli.usage import UsageError, refuse
from wordloom.errors import DataError

if TYPE_CHECKING:
    from wordloom.data.rows.lines import PlacedText
    from wordloom.run import TextClassifier

__all__ = ["command"]

_AT_ONCE = 1 << 12  # texts held at a time


def command(
    ctx: typer.Context,
    checkpoint: Annotated[
        Path, typer.Argument(help="The folder of a trained classifier, encoder, or model that answers.")
    ],
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Files with one text per line, or .jsonl.  [default: stdin]"),
    ] = None,
    field: Annotated[str, typer.Option(help="Where .jsonl and .parquet rows keep their text.")] = "text",
    text_column: Annotated[list[str] | None, TEXT_COLUMN] = None,
    header: Annotated[bool | None, HEADER] = None,
    encoding_errors: Annotated[
        Literal["strict", "replace"], typer.Option(help="What to do with text that is not UTF-8.")
    ] = "strict",
    top_k: Annotated[
        int, typer.Option(help="encoders: tokens for each mask; answers: spans of each, with --json.", min=1)
    ] = 5,
    too_long: Annotated[
        Literal["error", "cut", "window"],
        typer.Option(help="What to do with longer texts; window: labels of words, in several rows."),
    ] = "error",
    threshold: Annotated[float | None, THRESHOLD] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Texts or questions read at a time; fewer take less memory.  [default: 4,096 for a "
            "classifier, else 1,024]",
            min=1,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto (as stored), fp32, bf16, fp16.")] = "auto",
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per text, with every label's probability.")
    ] = False,
) -> None:
    """Predict the label of each text and its probability, one line for each text, in order.

    A regression model gives a number for each text, and token classification gives each word with its label.
    Multiple choice gives the likeliest choice for each question.  Question answering gives the answer, the
    offsets of its first character and behind its last, and its probability.  An encoder gives the likeliest
    tokens for each mask.
    """
    from wordloom.data.rows.lines import is_table, placed_texts
    from wordloom.run import is_encoder, load_classifier
    from wordloom.run.checkpoint.headed import is_headed, task_in
    from wordloom.run.models.text_readers import cutting

    loading: dict[str, Any] = {"device": device, "dtype": dtype}
    if text_column is not None:
        refuse(ctx, "--text-column says where the texts are", "field")
    columns = columns_of(text_column)
    if columns is None and sources and all(map(is_table, sources)):
        columns, trained = _trained_columns(checkpoint)
        header = trained if header is None else header
    if columns is None:
        refuse(ctx, "without --text-column no table is read", "header")
    reading: dict[str, Any] = {"field": field, "encoding_errors": encoding_errors}
    if columns is not None:
        reading |= {"columns": columns, "header": header}
    if is_headed(checkpoint):
        task = task_in(checkpoint)
        if task != "question_answering":
            refuse(ctx, f"{checkpoint} answers no questions, and fills in no masks", "top_k")
            refuse(ctx, f"{checkpoint} answers no questions out of texts", "threshold")
        if task in ("question_answering", "multiple_choice"):
            refuse(ctx, f"{checkpoint} reads questions", "field", "encoding_errors", "text_column")
        refuse_columns(checkpoint, columns, 1 if task == "token_classification" else 2)
        if task == "token_classification" and columns is None:
            texts = _tagged_or_texts(checkpoint, sources or ["-"], reading)
        else:
            texts = placed_texts(sources or ["-"], **reading)
        if too_long == "window" and task != "token_classification":
            refuse_windows(checkpoint)
        settings: dict[str, Any] = {"top": top_k, "too_long": too_long, "threshold": threshold}
        settings |= {"batch_size": batch_size, "loading": loading}
        predict_headed(checkpoint, sources or [], texts, **settings, json=json)
        return
    refuse(ctx, f"{checkpoint} answers no questions out of texts", "threshold")
    fills = is_encoder(checkpoint)
    if fills:
        refuse(ctx, f"{checkpoint} fills in masks, of texts that it reads whole", "too_long")
        refuse(ctx, f"{checkpoint} fills in masks text by text", "batch_size")
        if text_column is not None:
            raise UsageError("--text-column: an encoder fills masks in texts, one a line; leave it out")
    else:
        refuse(ctx, f"{checkpoint} fills in no masks", "top_k")
        classifier = load_classifier(checkpoint, **loading)
        refuse_columns(checkpoint, columns, classifier.reader.most_texts)
        if too_long == "window":
            refuse_windows(checkpoint)
        if too_long == "cut":
            classifier.reader = cutting(classifier.reader)
    texts = placed_texts(sources or ["-"], **reading, tables=not fills)
    if fills:
        _fill(checkpoint, texts, top_k, loading, json=json)
        return
    _classes(classifier, texts, batch_size or _AT_ONCE, json=json)


def _classes(classifier: TextClassifier, texts: Iterator[PlacedText], batch_size: int, *, json: bool) -> None:
    """Print the label of each text and its probability."""
    before, shortened = 0, list[int]()
    while some := list(islice(texts, batch_size)):
        if classifier.reader.whole:
            for given in some:
                given.refuse_empty()
        told = iter(some)
        texts_only = [given.text for given in some]
        for probabilities, cut in classifier.parts(texts_only, place=lambda row: some[row].place):
            shortened += sorted(before + 1 + row for row in cut)
            for at, row in enumerate(probabilities):
                text, best = next(told).text, int(row.argmax())
                label, share = classifier.labels[best], float(row[best])
                if json:
                    every = dict(zip(classifier.labels, row.tolist(), strict=True))
                    fact = {"text": text, "label": label, "probability": share, "probabilities": every}
                    fact |= {"cut": True} if at in cut else {}
                    print(json_module.dumps(fact, ensure_ascii=False))
                else:
                    print(f"{label}\t{share:.4f}")
            before += len(probabilities)
    tell_cut("texts", shortened)
    sys.stdout.flush()


def _trained_columns(checkpoint: Path) -> tuple[list[str | int] | None, bool | None]:
    """The columns of the texts in the recipe of the run, if it names any, and whether there is a header."""
    from wordloom.data.rows.labelled import columns_in
    from wordloom.run.tasks.labelled import recipe_of, training_columns

    named = training_columns(recipe_of(checkpoint), "classification", "regression")
    if named is None or named.text is None:
        return None, None
    columns = list(columns_in(named.text))
    shown = ", ".join(map(repr, columns))
    typer.echo(f"columns: text {shown} (by default those in {checkpoint / 'recipe.toml'})", err=True)
    return columns, named.header


def _tagged_or_texts(checkpoint: Path, sources: list[str], reading: dict[str, Any]) -> Iterator[PlacedText]:
    """Texts, or lists of words: those of files whose ending says that each line is a word, and of JSON
    objects that have such a list and no text.  The recipe of the run names their columns, as for training."""
    from wordloom.data.rows.lines import PlacedText, placed_texts
    from wordloom.data.rows.tagged import has_words, tagged_texts
    from wordloom.run.tasks.labelled import recipe_of, training_columns

    default = training_columns(recipe_of(checkpoint), "token_classification")
    named = None if default is None else default.text
    words = named if isinstance(named, str) else "tokens"
    for source in sources:
        if has_words(source):
            errors = reading["encoding_errors"]
            for text in tagged_texts([source], labels=False, encoding_errors=errors, default=default):
                yield PlacedText(list(text.words), text.place())
        else:
            yield from placed_texts([source], words=words, **reading)


def _fill(
    checkpoint: Path, texts: Iterator[PlacedText], top: int, loading: dict[str, Any], *, json: bool
) -> None:
    """A line for each mask of each text: ``token probability`` of the likeliest, the best first; in JSON, an
    object for each text."""
    from wordloom.run import load_encoder

    encoder = load_encoder(checkpoint, **loading)
    for text, place, _ in texts:
        try:
            found = encoder.fill(str(text), top)
        except DataError as error:
            raise DataError(f"{place}: {error}") from None
        if json:
            masks = [[{"token": f.token, "probability": f.probability} for f in mask] for mask in found]
            print(json_module.dumps({"text": text, "masks": masks}, ensure_ascii=False))
        else:
            for mask in found:
                print("\t".join(f"{f.token} {f.probability:.4f}" for f in mask))
    sys.stdout.flush()
