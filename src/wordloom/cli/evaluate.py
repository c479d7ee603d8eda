"""``wordloom evaluate CHECKPOINT [FILE...|DATASET]``."""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from rich.console import Console

from wordloom.cli import options
from wordloom.cli.options import argument, option
from wordloom.cli.tables import plain_table, print_unwrapped
from wordloom.cli.usage import check_options, refuse, refuse_existing
from wordloom.errors import WordloomError
from wordloom.progress import TerminalReporter

if TYPE_CHECKING:
    from wordloom.evaluate import Scores
    from wordloom.run.checkpoint.loaders import Checkpoint


def command(
    ctx: typer.Context,
    checkpoint: options.CHECKPOINT,
    sources: list[str] | None = argument(
        None,
        "Files, folders, globs, '-' for standard input, or data sets such as gutenberg/valid.  "
        "[default: the validation data of the recipe in the folder]",
        metavar="FILE|DATASET",
    ),
    task: Literal["text", "answers", "instructions", "lambada", "minimal_pairs", "choices", "similarity"]
    | None = option(
        None,
        "What to score. text: running text, or the rows of a fine-tuned model. answers: the answers in "
        "conversations. instructions: whether the model's answers have the form that a question asks for. "
        "lambada: the last words of passages. minimal_pairs: whether the acceptable sentence of two is "
        "likelier, as in blimp. choices: multiple-choice questions, answered by likelihood. similarity: "
        "cosines of sentence embeddings, against the scores of pairs such as glue-stsb/dev.  [default: what "
        "the data set was made for, else what the model was trained on]",
    ),
    window: int | None = option(
        None, "How many tokens the model reads at once.  [default: the model's max_seq_len]"
    ),
    stride: int | None = option(
        None, "How many tokens the window moves at a time.  [default: half the window]"
    ),
    start: Literal["auto", "bos", "eos", "none"] = option(
        "auto", "The token in front of each document; auto: as in training."
    ),
    end: Literal["auto", "eos", "none"] = option(
        "auto", "The token to predict after each document; auto: as in training."
    ),
    per_word: bool = option(
        False, "Also report perplexity and bits per byte per word, as PTB and WikiText do.", "--per-word"
    ),
    joined: bool = option(
        False, "Read each document as the continuation of the one before, as for PTB.", "--joined"
    ),
    first: int | None = option(
        None,
        "Score only the first N documents, passages, questions or pairs, and of minimal pairs N of each "
        "paradigm.",
        min=1,
    ),
    field: options.RUN_FIELD = None,
    separator: options.SEPARATOR = None,
    encoding_errors: options.ENCODING_ERRORS_OR_BYTES = "strict",
    specials: options.SPECIALS = "refuse",
    text_column: options.TEXT_COLUMN = None,
    label_column: options.LABEL_COLUMN = None,
    header: options.HEADER = None,
    plot: Path | None = option(
        None, "Draw the confusion matrix of a classifier into this .png, .svg or .pdf file.", metavar="FILE"
    ),
    targets: list[str] | None = option(
        None, "The reference translations, line by line, of each FILE.", metavar="FILE|DATASET"
    ),
    source_column: str | None = option(
        None,
        "The column or language of the source texts.  [default: as in training]",
        callback=options.parse_column,
    ),
    target_column: str | None = option(
        None,
        "The column or language of the reference translations.  [default: as in training]",
        callback=options.parse_column,
    ),
    beams: options.BEAMS = 5,
    length_penalty: options.LENGTH_PENALTY = 1.0,
    max_new_tokens: int | None = option(
        None,
        "Stop a translation or an answer after this many tokens.  [default: by the source's length; 128 for "
        "answers]",
        min=1,
    ),
    template: str | None = option(
        None,
        "The chat template: alpaca, chatml, llama2, plain or a .jinja file.  [default: the tokenizer's own]",
        metavar="NAME|FILE",
    ),
    answers: Path | None = option(
        None, "Write the questions and the model's answers into this .jsonl file.", metavar="FILE"
    ),
    tokenize: str = option("13a", "The tokenizer that sacrebleu uses for BLEU."),
    translations: Path | None = option(
        None, "Write the translations into this file, one a line.", metavar="FILE"
    ),
    force: options.FORCE = False,
    threshold: options.THRESHOLD = None,
    attention: str | None = option(
        None,
        "Which keys each token attends to, such as band:256+global:4.  [default: as in training]",
        metavar="PATTERN",
    ),
    too_long: Literal["error", "cut", "drop", "window"] | None = option(
        None,
        "Rows with more tokens than the model reads: report an error, truncate them (cut), leave them out "
        "(drop; conversations), or read them in windows (token classification, similarity).  [default: as in "
        "training, else error]",
    ),
    batch_size: int | None = option(
        None,
        "How many windows or texts to compute at once.  [default: about 8,192 tokens; 32 texts to translate]",
        min=1,
    ),
    device: options.DEVICE = "auto",
    dtype: options.DTYPE = "auto",
    json: options.JSON = False,
) -> None:
    """Score a model on its task, with 95 % intervals.

    The kind of model decides what is scored. Language models read running text, and so do encoders, whose
    tokens are masked one by one. Models that were tuned on conversations read conversations, and answer
    their questions. Classifiers and the other fine-tuned models read labelled rows (.tsv, .csv,
    .jsonl, .parquet, .txt). Translation models read pairs of texts. Each score has a signature
    of its settings.
    """
    from wordloom.run.checkpoint.evaluate import evaluate_with_attention
    from wordloom.run.checkpoint.kinds import KINDS, kind_of
    from wordloom.run.checkpoint.loaders import Request, read_checkpoint

    contents = read_checkpoint(checkpoint)
    kind = kind_of(contents)
    evaluation = kind.evaluations.get(task or kind.task_of(contents, sources or ()))
    if evaluation is None:
        raise WordloomError(
            f"{checkpoint} holds {kind.description}, which has no --task {task}; allowed: "
            f"{', '.join(kind.evaluations)}"
        )
    uses = [use for one in KINDS.values() for use in one.evaluations.values()]
    check_options(ctx, contents, kind, evaluation, uses, files=bool(sources))
    if plot is None and translations is None and answers is None:
        refuse(ctx, "without --plot, --translations or --answers no file is written", "force")
    for name, path in (("answers", answers), ("translations", translations)):
        if path is not None and not path.parent.is_dir():
            raise WordloomError(f"--{name} {path}: there is no folder '{path.parent}'; make it first")
    read = [*(sources or ()), *(targets or ()), template, *_recipe_files(contents)]
    models = (contents.folder, contents.base)
    refuse_existing(translations, answers, plot=plot, force=force, inputs=read, models=models)
    model = kind.load(contents, device, dtype)
    notes = () if attention is None else (evaluate_with_attention(model, attention),)
    paths = {"plot": plot, "translations": translations, "answers": answers}
    given = {**ctx.params, **paths}  # ctx.params holds paths as text
    settings = {name: given[name] for name in evaluation.all_options}
    began = time.perf_counter()
    request = Request(contents, sources or [], TerminalReporter(), unwritten=[])
    scores = evaluation.run(request, model, **settings)
    if attention is not None:
        scores = scores.with_setting("attention", attention)
    scores = replace(scores, notes=(*notes, *scores.notes))
    seconds = time.perf_counter() - began
    if json:
        facts = {
            "checkpoint": str(checkpoint),
            "task": evaluation.name,
            "data": sources or [],
            "seconds": round(seconds, 3),
        }
        print(json_module.dumps({**facts, **scores.as_dict()}, ensure_ascii=False))
    else:
        print_scores(Console(), scores, seconds)
    if request.unwritten:
        raise WordloomError("; ".join(request.unwritten))


def _recipe_files(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the files, folders, globs and data sets that the recipe of the checkpoint names."""
    if checkpoint.recipe is None:
        return
    for part in (checkpoint.recipe.data.train, checkpoint.recipe.data.validation):
        yield from [part] if isinstance(part, str) else part or ()


def print_scores(console: Console, scores: Scores, seconds: float) -> None:
    """Print the values with their intervals, then the counts, the signatures and the notes."""
    table = plain_table(None, "score", "value", "95 % interval")
    notes = []
    for score in scores.scores:
        interval = "" if score.interval is None else " to ".join(map(_number, score.interval))
        table.add_row(score.name, "undefined" if score.value is None else _number(score.value), interval)
        if score.value is None:
            notes.append(f"{score.name} is undefined: {score.note}")
        elif score.note:
            notes.append(score.note)
    print_unwrapped(table, console)
    counts = {name.replace("_", " "): n for name, n in scores.counts.items() if n and name != "nats"}
    counted = [f"{n:,} {_singular(name) if n == 1 else name}" for name, n in counts.items()]
    signatures = dict.fromkeys(score.signature.partition("|")[2] for score in scores.scores)
    note_lines = [f"note: {note}" for note in dict.fromkeys([*notes, *scores.notes])]
    console.print()
    for text in [", ".join([*counted, f"{seconds:.1f} s"]), *signatures, *note_lines]:
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def _singular(name: str) -> str:
    if name.endswith("ies") and name != "ties":
        return f"{name.removesuffix('ies')}y"
    return name.removesuffix("s")


def _number(value: float) -> str:
    return f"{value:.4f}" if value < 1000 else f"{value:,.1f}"
