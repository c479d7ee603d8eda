"""``wordloom vectors predict MODEL [FILE]``."""

from __future__ import annotations

import math
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from typer import Argument

from wordloom.cli import options
from wordloom.cli.options import argument, option
from wordloom.cli.vectors.output import print_json, print_notes, stopped_notes
from wordloom.data.files.source import Source, suffixes
from wordloom.data.files.stream import blocks, split_lines

if TYPE_CHECKING:
    from wordloom.vectors.use.classifier import LabelScore


def predict(
    model: Annotated[
        Path,
        Argument(
            metavar="MODEL",
            help="The folder of a run with --algorithm fasttext-supervised, or a fastText model (.bin).",
        ),
    ],
    file: str = argument("-", "One text a line; '-' is standard input.", metavar="[FILE]"),
    top_k: int = option(1, "Highest number of labels a line; -1: all.", min=-1),
    threshold: float = option(0.0, "Lowest probability of a label.", min=0, max=1),
    labelled: bool = option(False, "The lines have labels: print precision and recall.", "--labelled"),
    json: options.JSON = False,
) -> None:
    """Predict labels with a fastText classifier, or score it."""
    from wordloom.vectors import FastTextClassifier

    with Console(stderr=True).status(f"reading {model}"):  # shown on a terminal only
        classifier = FastTextClassifier.load(model)
    print_notes(stopped_notes(model))
    if labelled:
        score = classifier.test(_lines(file), top_k, threshold)
        precision = None if math.isnan(score.precision) else score.precision
        notes = _notes(score)
        if json:
            facts = {**score._asdict(), "precision": precision}
            print_json(model=str(model), file=file, k=top_k, threshold=threshold, **facts, notes=notes)
            return
        print(f"N\t{score.examples}")
        print(f"P@{top_k}\t" + ("nothing was predicted" if precision is None else f"{precision:.4f}"))
        print(f"R@{top_k}\t{score.recall:.4f}")
        print_notes(notes)
        return
    for number, line in enumerate(_lines(file), 1):
        answers = classifier.predict(line, top_k, threshold)
        if json:
            print_json(line=number, answers=[{"label": label, "probability": p} for label, p in answers])
        else:
            print(" ".join(f"{label} {p:.4f}" for label, p in answers))


def _notes(score: LabelScore) -> list[str]:
    notes = []
    if score.passed_over:
        notes.append(f"{score.passed_over:,} lines without a known label or a known word are not scored")
    if score.unknown:
        notes.append(f"{score.unknown:,} labels are unknown to the model and are not scored")
    return notes


def _lines(file: str) -> Iterator[str]:
    """Yield the lines of a file or of standard input, which end at line feeds only."""
    source = Source(path=file, name=file, format="text", compression=suffixes(file)[1])
    for number, line in enumerate(split_lines(blocks(source), b"", b"\n", keep_empty_end=False)):
        text = line if number else line.removeprefix(BOM_UTF8)
        yield text.decode("utf-8", "surrogateescape")
