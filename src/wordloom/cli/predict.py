"""``wordloom predict CHECKPOINT [FILE...]``."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["command"]

_AT_ONCE = 1 << 12  # texts held at a time


def command(
    checkpoint: Annotated[Path, typer.Argument(help="The folder of a trained classifier.")],
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Files with one text per line, or .jsonl.  [default: stdin]"),
    ] = None,
    field: Annotated[str, typer.Option(help="Where .jsonl and .parquet rows keep their text.")] = "text",
    encoding_errors: Annotated[
        Literal["strict", "replace"], typer.Option(help="What to do with text that is not UTF-8.")
    ] = "strict",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per text, with every label's probability.")
    ] = False,
) -> None:
    """Tell the class of each text: its label and probability, one line per line of the FILE, in order."""
    from wordloom.data import documents
    from wordloom.run import load_classifier

    classifier = load_classifier(checkpoint, device=device)
    texts: Iterator[str] = (
        str(document.text)
        for document in documents(
            sources or ["-"], field=field, separator="line", encoding_errors=encoding_errors
        )
    )
    while some := list(islice(texts, _AT_ONCE)):
        for text, row in zip(some, classifier.probabilities(some), strict=True):
            best = int(row.argmax())
            label = classifier.labels[best]
            if json:
                every = dict(zip(classifier.labels, row.tolist(), strict=True))
                fact = {"text": text, "label": label, "probability": float(row[best]), "probabilities": every}
                print(json_module.dumps(fact, ensure_ascii=False))
            else:
                print(f"{label}\t{row[best]:.4f}")
    sys.stdout.flush()
