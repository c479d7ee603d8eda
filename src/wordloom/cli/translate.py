"""``wordloom translate CHECKPOINT [FILE|-]``."""

from __future__ import annotations

import json as json_module
import sys
from itertools import tee
from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["command"]


def command(
    checkpoint: Annotated[Path, typer.Argument(help="The folder of a trained translation model.")],
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="A file with one text per line.  [default: stdin]")
    ] = "-",
    beams: Annotated[int, typer.Option(help="Hypotheses kept at a time; 1 is greedy.", min=1)] = 5,
    length_penalty: Annotated[
        float, typer.Option(help="Scores are divided by length to this power; above 1 favours long texts.")
    ] = 1.0,
    n_best: Annotated[int, typer.Option(help="How many translations of each text.", min=1)] = 1,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Stop after this many.  [default: by the source's length]", min=1)
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Texts translated at once.", min=1)] = 32,
    encoding_errors: Annotated[
        Literal["strict", "replace"], typer.Option(help="What to do with text that is not UTF-8.")
    ] = "strict",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per text, with every translation's score.")
    ] = False,
) -> None:
    """Translate line by line, in order; an empty line stays empty.  With --n-best each has as many lines."""
    from wordloom.data import documents
    from wordloom.run import load_translator

    translator = load_translator(checkpoint, device=device)
    read = documents([source], separator="line", encoding_errors=encoding_errors)
    lines, texts = tee(str(document.text) for document in read)
    found = translator.translate(
        texts,
        read_ahead=1 if source == "-" and sys.stdin.isatty() else None,  # a person waits for an answer
        beams=beams,
        length_penalty=length_penalty,
        max_new_tokens=max_new_tokens,
        n_best=n_best,
        batch_size=batch_size,
    )
    for translations, line in zip(found, lines, strict=False):  # in this order none is taken in vain
        if json:
            made = [one._asdict() for one in translations]
            print(json_module.dumps({"source": line, "translations": made}, ensure_ascii=False))
        else:
            for one in translations:
                print(one.text.replace("\n", " "), flush=True)
