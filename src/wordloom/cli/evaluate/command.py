"""``wordloom evaluate CHECKPOINT [FILE...|DATASET]``."""

from __future__ import annotations

import json as json_module
import time
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from wordloom.cli.evaluate.scores import print_scores
from wordloom.cli.options import (
    BEAMS,
    CHECKPOINT,
    DEVICE,
    DTYPE,
    FIELD,
    FORCE,
    HEADER,
    JSON,
    LABEL_COLUMN,
    LENGTH_PENALTY,
    SEPARATOR,
    SPECIALS,
    TEXT_COLUMN,
    THRESHOLD,
    parse_column,
)
from wordloom.cli.usage import check_options, refuse, refuse_existing
from wordloom.errors import WordloomError
from wordloom.progress import TerminalReporter

__all__ = ["command"]


def command(
    ctx: typer.Context,
    checkpoint: CHECKPOINT,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|DATASET",
            help="Files, folders, globs, '-' for standard input, or data sets such as gutenberg/valid.  "
            "[default: the validation data of the recipe in the folder]",
        ),
    ] = None,
    task: Annotated[
        Literal["text", "lambada", "similarity"],
        typer.Option(
            help="What to score. text: the model's own task. lambada: the last words of passages. "
            "similarity: cosines of sentence embeddings, against the scores of pairs such as glue-stsb/dev."
        ),
    ] = "text",
    window: Annotated[
        int | None,
        typer.Option(help="How many tokens the model reads at once.  [default: the model's max_seq_len]"),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(help="How many tokens the window moves at a time.  [default: half the window]"),
    ] = None,
    start: Annotated[
        Literal["auto", "bos", "eos", "none"],
        typer.Option(help="The token in front of each document; auto: as in training."),
    ] = "auto",
    end: Annotated[
        Literal["auto", "eos", "none"],
        typer.Option(help="The token to predict after each document; auto: as in training."),
    ] = "auto",
    per_word: Annotated[
        bool,
        typer.Option(
            "--per-word", help="Also report perplexity and bits per byte per word, as PTB and WikiText do."
        ),
    ] = False,
    joined: Annotated[
        bool,
        typer.Option(
            "--joined", help="Read each document as the continuation of the one before, as for PTB."
        ),
    ] = False,
    first: Annotated[
        int | None, typer.Option(help="Score only the first N documents, passages or pairs.", min=1)
    ] = None,
    field: FIELD = "text",
    separator: SEPARATOR = None,
    encoding_errors: Annotated[
        Literal["strict", "replace", "bytes"],
        typer.Option(
            help="Text that is not UTF-8: report an error, replace the wrong bytes, or read bytes (byte "
            "tokenizers)."
        ),
    ] = "strict",
    specials: SPECIALS = "refuse",
    text_column: TEXT_COLUMN = None,
    label_column: LABEL_COLUMN = None,
    header: HEADER = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw the confusion matrix of a classifier into this .png, .svg or .pdf file.",
        ),
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE|DATASET", help="The reference translations, line by line, of each FILE."),
    ] = None,
    source_column: Annotated[
        str | None,
        typer.Option(
            callback=parse_column,
            help="The column or language of the source texts.  [default: as in training]",
        ),
    ] = None,
    target_column: Annotated[
        str | None,
        typer.Option(
            callback=parse_column,
            help="The column or language of the reference translations.  [default: as in training]",
        ),
    ] = None,
    beams: BEAMS = 5,
    length_penalty: LENGTH_PENALTY = 1.0,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            help="Stop each translation after this many tokens.  [default: by the source's length]", min=1
        ),
    ] = None,
    tokenize: Annotated[str, typer.Option(help="The tokenizer that sacrebleu uses for BLEU.")] = "13a",
    translations: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the translations into this file, one a line.")
    ] = None,
    force: Annotated[bool, FORCE] = False,
    threshold: THRESHOLD = None,
    too_long: Annotated[
        Literal["error", "cut", "window"] | None,
        typer.Option(
            help="Rows with more tokens than the model reads: report an error, truncate them (cut), or read "
            "them in windows (token classification, similarity).  [default: as in training, else error]"
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="How many windows or texts to compute at once.  [default: about 8,192 tokens; 32 texts to "
            "translate]",
            min=1,
        ),
    ] = None,
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    json: JSON = False,
) -> None:
    """Score a model on text, labelled rows or pairs of texts, with 95 % intervals.

    The kind of model decides what is scored. Language models read running text, and so do encoders, whose
    tokens are masked one by one. Classifiers and the other fine-tuned models read labelled rows (.tsv, .csv,
    .jsonl, .parquet, .txt). Translation models read pairs of texts. Each score has a signature
    of its settings.
    """
    from wordloom.run.checkpoint.contents import read_checkpoint
    from wordloom.run.checkpoint.kinds import KINDS, kind_of

    contents = read_checkpoint(checkpoint)
    kind = kind_of(contents)
    evaluation = kind.evaluations.get(task)
    if evaluation is None:
        raise WordloomError(
            f"{checkpoint} holds {kind.description}, which has no --task {task}; allowed: "
            f"{', '.join(kind.evaluations)}"
        )
    uses = [use for one in KINDS.values() for use in one.evaluations.values()]
    check_options(ctx, contents, kind, evaluation, uses, files=bool(sources))
    if plot is None and translations is None:
        refuse(ctx, "without --plot or --translations no file is written", "force")
    refuse_existing(translations, plot=plot, force=force)
    model = kind.load(contents, device, dtype)
    options = {name: ctx.params[name] for name in evaluation.all_options}
    options |= {
        name: path for name, path in (("plot", plot), ("translations", translations)) if name in options
    }
    began = time.perf_counter()
    scores = evaluation.run(contents, model, sources or [], TerminalReporter(), **options)
    seconds = time.perf_counter() - began
    if json:
        facts = {"checkpoint": str(checkpoint), "task": evaluation.name, "seconds": round(seconds, 3)}
        print(json_module.dumps({**facts, **scores.as_dict()}, ensure_ascii=False))
    else:
        print_scores(Console(), scores, seconds)
