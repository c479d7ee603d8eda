"""``wordloom vectors predict``: labels for lines of text, and how far they agree with what stands there."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from wordloom.cli.vectors.output import JSON, print_json, tell, whether_stopped
from wordloom.errors import DataError

__all__ = ["predict"]


def predict(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="The folder of a run of --algorithm fasttext-supervised, or a fastText model (.bin).",
        ),
    ],
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="One text to a line; '-': what is typed.")
    ] = "-",
    top_k: Annotated[int, typer.Option(help="Labels a line at most; -1: all.", min=-1)] = 1,
    threshold: Annotated[
        float, typer.Option(help="Leave out labels that are less probable.", min=0, max=1)
    ] = 0.0,
    labelled: Annotated[
        bool, typer.Option("--labelled", help="Lines hold their labels: print precision and recall.")
    ] = False,
    json: JSON = False,
) -> None:
    """Predict labels for lines of text, best first, with a fastText classifier; or score it."""
    from wordloom.vectors import FastTextClassifier

    with Console(stderr=True).status(f"reading {model}"):  # shown on a terminal alone
        classifier = FastTextClassifier.load(model)
    tell(whether_stopped(model))
    if labelled:
        score = classifier.test(_lines(file), top_k, threshold)
        notes = []
        if score.passed_over:
            notes.append(f"{score.passed_over:,} lines have no known label, or no word to judge by")
        if score.unknown:
            notes.append(f"{score.unknown:,} labels are unknown to the model, and count neither way")
        precision = None if math.isnan(score.precision) else score.precision
        if json:
            figures = {**score._asdict(), "precision": precision}
            print_json(model=str(model), file=file, k=top_k, threshold=threshold, **figures, notes=notes)
            return
        print(f"N\t{score.examples}")
        print(f"P@{top_k}\t" + ("nothing was predicted" if precision is None else f"{precision:.4f}"))
        print(f"R@{top_k}\t{score.recall:.4f}")
        tell(notes)
        return
    for number, line in enumerate(_lines(file), 1):
        answers = classifier.predict(line, top_k, threshold)
        if json:
            print_json(line=number, answers=[{"label": label, "probability": p} for label, p in answers])
        else:
            print(" ".join(f"{label} {p:.4f}" for label, p in answers))


def _lines(file: str) -> Iterator[str]:
    """The lines of a file, or of what is typed: they end with a line feed, whatever else is in them."""
    try:
        with sys.stdin.buffer if file == "-" else open(file, "rb") as found:
            for line in found:
                yield line.decode("utf-8", "surrogateescape").removesuffix("\n")
    except OSError as error:
        raise DataError(f"cannot read '{file}': {error.strerror or error}; give a text file, or -") from None
