"""``wordloom predict CHECKPOINT [FILE...]``."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wordloom.cli.heads import THRESHOLD, predict_headed, refuse_windows, tell_cut
from wordloom.cli.usage import UsageError, refuse
from wordloom.errors import DataError

if TYPE_CHECKING:
    from wordloom.data.files.lines import PlacedText
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
    text_column: Annotated[
        list[str] | None,
        typer.Option(help="classifiers: the column of a table, by name or number from 1; twice for pairs."),
    ] = None,
    encoding_errors: Annotated[
        Literal["strict", "replace"], typer.Option(help="What to do with text that is not UTF-8.")
    ] = "strict",
    top: Annotated[
        int, typer.Option(help="encoders: tokens for each mask; answers: spans of each, with --json.", min=1)
    ] = 5,
    too_long: Annotated[
        Literal["error", "cut", "window"],
        typer.Option(help="What to do with longer texts; window: labels of words, in several rows."),
    ] = "error",
    threshold: Annotated[float | None, THRESHOLD] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per text, with every label's probability.")
    ] = False,
) -> None:
    """Tell the class of each text: its label and probability, one line per line of the FILE, in order.

    Of an encoder: the likeliest tokens for each mask in it.  Of a model with a head: each text's number, its
    words with their labels, or for each question the likeliest choice, or the answer, its first character and
    the one behind its last, and its probability."""
    from wordloom.data.files.lines import placed_texts
    from wordloom.run import is_encoder, load_classifier
    from wordloom.run.checkpoint.headed import is_headed, task_in
    from wordloom.run.models.text_readers import cutting

    if text_column is not None:
        refuse(ctx, "--text-column says where the texts are", "field")
    reading: dict[str, Any] = {"columns": text_column, "field": field, "encoding_errors": encoding_errors}
    if is_headed(checkpoint):
        task = task_in(checkpoint)
        if task != "question_answering":
            refuse(ctx, f"{checkpoint} answers no questions, and fills in no masks", "top")
            refuse(ctx, f"{checkpoint} answers no questions out of texts", "threshold")
        if task in ("question_answering", "multiple_choice"):
            refuse(ctx, f"{checkpoint} reads questions", "field", "encoding_errors", "text_column")
        if task == "token_classification" and len(text_column or ()) > 1:
            raise UsageError(f"--text-column: {checkpoint} labels the words of one text; give it once")
        if task == "token_classification" and text_column is None:
            texts = _tagged_or_texts(sources or ["-"], field, encoding_errors)
        else:
            texts = placed_texts(sources or ["-"], **reading)
        if too_long == "window" and task != "token_classification":
            refuse_windows(checkpoint)
        settings: dict[str, Any] = {"top": top, "too_long": too_long, "threshold": threshold}
        predict_headed(checkpoint, sources or [], texts, **settings, device=device, json=json)
        return
    refuse(ctx, f"{checkpoint} answers no questions out of texts", "threshold")
    fills = is_encoder(checkpoint)
    if fills:
        refuse(ctx, f"{checkpoint} fills in masks, of texts that it reads whole", "too_long")
        if text_column is not None:
            raise UsageError("--text-column: an encoder fills masks in texts, one a line; leave it out")
    else:
        refuse(ctx, f"{checkpoint} fills in no masks", "top")
        classifier = load_classifier(checkpoint, device=device)
        if len(text_column or ()) > classifier.reader.most_texts:
            raise UsageError(f"--text-column: {checkpoint} reads rows of one text; give it once")
        if too_long == "window":
            refuse_windows(checkpoint)
        if too_long == "cut":
            classifier.reader = cutting(classifier.reader)
    texts = placed_texts(sources or ["-"], **reading, tables=not fills)
    if fills:
        _fill(checkpoint, texts, top, device, json=json)
        return
    _classes(classifier, texts, json=json)


def _classes(classifier: TextClassifier, texts: Iterator[PlacedText], *, json: bool) -> None:
    """The label of each text and its probability."""
    before, shortened = 0, list[int]()
    while some := list(islice(texts, _AT_ONCE)):
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


def _tagged_or_texts(sources: list[str], field: str, encoding_errors: Any) -> Iterator[PlacedText]:
    """Texts; of files whose ending says that they have a word on each line, lists of words."""
    from wordloom.data.files.lines import PlacedText, placed_texts
    from wordloom.data.rows.tagged import has_words, tagged_texts

    for source in sources:
        if has_words(source):
            for text in tagged_texts([source], labels=False, encoding_errors=encoding_errors):
                yield PlacedText(list(text.words), text.place())
        else:
            yield from placed_texts([source], field=field, encoding_errors=encoding_errors)


def _fill(checkpoint: Path, texts: Iterator[PlacedText], top: int, device: str, *, json: bool) -> None:
    """A line for each mask of each text: ``token probability`` of the likeliest, the best first; in JSON, an
    object for each text."""
    from wordloom.run import load_encoder

    encoder = load_encoder(checkpoint, device=device)
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
