"""``wordloom evaluate CHECKPOINT [FILE...|DATASET]``."""

from __future__ import annotations

import json as json_module
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from wordloom.cli.columns import HEADER, TEXT_COLUMN, column_of, columns_of
from wordloom.cli.evaluate.rows import classification, similarity
from wordloom.cli.evaluate.text import documents_of, labelled_texts, lambada_scores, text_scores
from wordloom.cli.heads import THRESHOLD, evaluate_headed, refuse_windows
from wordloom.cli.usage import refuse
from wordloom.cli.written import FORCE, refuse_existing
from wordloom.errors import CheckpointError

if TYPE_CHECKING:
    from wordloom.evaluate import Scores

__all__ = ["command", "print_scores"]

_READING = ("field", "separator", "encoding_errors", "specials")  # options that say how files are read
_ROWS = ("text_column", "label_column")  # the same for labelled rows
_PAIRS = ("targets", "source_column", "target_column")  # for pairs of texts
_SEARCH = ("beams", "length_penalty", "max_new_tokens", "tokenize", "translations")
_TEXT = (
    "task",
    "window",
    "stride",
    "start",
    "end",
    "per_word",
    "joined",
    "field",
    "separator",
    "specials",
    "batch_size",
)


def command(
    ctx: typer.Context,
    checkpoint: Annotated[Path, typer.Argument(help="The folder of a trained model.")],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|DATASET",
            help="Files, folders, globs, '-', or data sets such as gutenberg/valid.  "
            "[default: what the checkpoint's recipe validates on]",
        ),
    ] = None,
    task: Annotated[
        Literal["text", "lambada", "similarity"],
        typer.Option(
            help="text: loss, perplexity, bits per byte.  lambada: last words ('context', 'continuation').  "
            "similarity: cosines of vectors beside scores of pairs, such as glue-stsb/dev."
        ),
    ] = "text",
    window: Annotated[
        int | None,
        typer.Option(help="Tokens read at once.  [default: the model's max_seq_len, if any]"),
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="Tokens a window moves on.  [default: half of it]")
    ] = None,
    start: Annotated[
        Literal["auto", "bos", "eos", "none"], typer.Option(help="What stands before a document.")
    ] = "auto",
    end: Annotated[
        Literal["auto", "eos", "none"], typer.Option(help="What is predicted after a document.")
    ] = "auto",
    per_word: Annotated[
        bool,
        typer.Option(
            "--per-word", help="Also perplexity and bits per byte of words, as PTB and WikiText are stated."
        ),
    ] = False,
    joined: Annotated[
        bool,
        typer.Option("--joined", help="Read documents on from one another, as PTB's lines are."),
    ] = False,
    first: Annotated[
        int | None, typer.Option(help="Only the first so many documents (or passages).", min=1)
    ] = None,
    field: Annotated[str, typer.Option(help="Where .jsonl and .parquet rows keep their text.")] = "text",
    separator: Annotated[
        str | None,
        typer.Option(help="The line between documents of a .txt: 'line', 'blank-line' or its text."),
    ] = None,
    encoding_errors: Annotated[
        Literal["strict", "replace", "bytes"], typer.Option(help="What to do with text that is not UTF-8.")
    ] = "strict",
    specials: Annotated[
        Literal["refuse", "text", "interpret"], typer.Option(help="Special tokens written in the text.")
    ] = "refuse",
    text_column: Annotated[list[str] | None, TEXT_COLUMN] = None,
    label_column: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="tables: the column of the label or score, by name or by number from 1; 'file': the name of "
            "a .txt file of one text per line.  [default: the recipe's, else 'label' or 'score']",
        ),
    ] = None,
    header: Annotated[bool | None, HEADER] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="classifiers: draw the confusion matrix into this .png, .svg or .pdf file."
        ),
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE|DATASET", help="The references, line by line beside each FILE."),
    ] = None,
    source_column: Annotated[
        str | None,
        typer.Option(help="A table's column, or a set's language.  [default: the recipe's]"),
    ] = None,
    target_column: Annotated[
        str | None, typer.Option(help="The column or language of the references.  [default: the recipe's]")
    ] = None,
    beams: Annotated[int, typer.Option(help="Hypotheses kept at a time; 1 is greedy.", min=1)] = 5,
    length_penalty: Annotated[float, typer.Option(help="Scores are divided by length to this power.")] = 1.0,
    max_new_tokens: Annotated[int | None, typer.Option(help="Stop after this many tokens.", min=1)] = None,
    tokenize: Annotated[str, typer.Option(help="How sacrebleu splits words for BLEU.")] = "13a",
    translations: Annotated[
        Path | None, typer.Option(help="Write the translations into this file, a line each.")
    ] = None,
    force: Annotated[bool, FORCE] = False,
    threshold: Annotated[float | None, THRESHOLD] = None,
    too_long: Annotated[
        Literal["error", "cut", "window"] | None,
        typer.Option(
            help="rows, --task similarity: texts longer than a row.  [default: as in training, else error]"
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Windows per forward pass, or texts translated at once.  [default: about 8,192 tokens; 32]",
            min=1,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto (as stored), fp32, bf16, fp16.")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a model on a text or on labelled rows, with 95 % intervals.

    Language models are scored on running text, classifiers and models with other heads on labelled rows
    (.tsv, .csv, .jsonl, .parquet, .txt), translation models on pairs of texts, and encoders on text whose
    tokens are masked one by one.  Each score has a signature of its settings.
    """
    from wordloom.run import is_classifier, is_encoder, is_translator, load_classifier, load_language_model
    from wordloom.run.checkpoint.headed import is_headed, task_in

    loading: dict[str, Any] = {"device": device, "dtype": dtype}
    if plot is None and translations is None:
        refuse(ctx, "without --plot or --translations no file is written", "force")
    refuse_existing(translations, plot=plot, force=force)
    columns = {"text": columns_of(text_column), "label": column_of(label_column), "header": header}
    if task == "similarity":
        every = (*(name for name in _TEXT if name != "task"), "first", "plot", "threshold")
        refuse(ctx, "similarity compares vectors of texts", *every, *_PAIRS, *_SEARCH)
        began = time.perf_counter()
        scores = similarity(checkpoint, sources or [], columns, encoding_errors, loading, too_long)
        _print(scores, checkpoint, task, began, json=json)
        return
    if is_headed(checkpoint):
        kind = str(task_in(checkpoint))
        others = [*_TEXT, "first", "plot", *_PAIRS, *_SEARCH]
        others += [] if kind == "question_answering" else ["threshold"]
        others += [] if sources and kind in ("regression", "token_classification") else _ROWS
        others += [] if sources and kind == "regression" else ["header"]
        others += ["too_long"] if kind == "question_answering" else []
        refuse(ctx, f"{checkpoint} is a model for {kind}, which is scored on what its task reads", *others)
        if not sources:
            refuse(
                ctx,
                "without a FILE it is read as the checkpoint's recipe says",
                "encoding_errors",
                "too_long",
            )
        if too_long == "window" and kind != "token_classification":
            refuse_windows(checkpoint)
        began = time.perf_counter()
        reading: dict[str, Any] = {"encoding_errors": encoding_errors, "too_long": too_long}
        scores = evaluate_headed(
            checkpoint, sources or [], columns, threshold=threshold, **reading, **loading
        )
        _print(scores, checkpoint, kind, began, json=json)
        return
    refuse(ctx, f"{checkpoint} answers no questions out of texts", "threshold")
    if is_classifier(checkpoint):
        why = f"{checkpoint} is a classifier, which is scored on labelled rows"
        refuse(ctx, why, *_TEXT, "first", *_PAIRS, *_SEARCH)
        if not sources:
            refuse(ctx, "without a FILE the rows are read as the checkpoint's recipe says",
                   *_ROWS, "header", "encoding_errors", "too_long")  # fmt: skip
        if too_long == "window":
            refuse_windows(checkpoint)
        began = time.perf_counter()
        classifier = load_classifier(checkpoint, **loading)
        scores = classification(classifier, sources or [], columns, encoding_errors, too_long)
        if plot is not None:
            from wordloom.inspect.confusion import draw_confusion

            draw_confusion(**scores.details["confusion"], path=plot)
            typer.echo(f"drawn into {plot}", err=True)
        _print(scores, checkpoint, "classification", began, json=json)
        return
    refuse(ctx, f"{checkpoint} reads no rows of labelled texts", "too_long")
    if is_translator(checkpoint):
        from wordloom.cli.evaluate.pairs import evaluate_pairs

        unused = (*(name for name in _TEXT if name != "batch_size"), *_ROWS, "plot")
        refuse(ctx, f"{checkpoint} translates, and is scored on pairs of texts", *unused)
        if not sources:
            refuse(ctx, "without a FILE the pairs are read as the checkpoint's recipe says",
                   *_PAIRS, "header", "encoding_errors")  # fmt: skip
        began = time.perf_counter()
        scores = evaluate_pairs(
            checkpoint,
            sources or [],
            reading={
                "targets": targets,
                "source_column": column_of(source_column),
                "target_column": column_of(target_column),
                "header": header,
                "encoding_errors": encoding_errors,
            },
            search={
                "beams": beams,
                "length_penalty": length_penalty,
                "max_new_tokens": max_new_tokens,
                "batch_size": batch_size or 32,
                "tokenize": tokenize,
            },
            first=first,
            device=device,
            dtype=dtype,
            out=translations,
        )
        _print(scores, checkpoint, "translation", began, json=json)
        return
    if is_encoder(checkpoint):
        from wordloom.cli.evaluate.encoder import PAIRS_HINT, evaluate_encoder

        only = (
            name for name in _TEXT if name not in ("window", "field", "separator", "specials", "batch_size")
        )
        why = f"{checkpoint} is an encoder, which fills in masked tokens of running text{PAIRS_HINT}"
        refuse(ctx, why, *only, *_ROWS, "header", "plot", *_PAIRS, *_SEARCH)
        if not sources:
            unread = "without a FILE the text is read and masked as the checkpoint's recipe says"
            refuse(ctx, unread, *_READING, "window", "first", "batch_size")
        began = time.perf_counter()
        reading = {"field": field, "separator": separator, "encoding_errors": encoding_errors}
        settings: dict[str, Any] = {"window": window, "specials": specials, "batch_size": batch_size}
        scores = evaluate_encoder(checkpoint, sources or [], reading, settings, first=first, loading=loading)
        _print(scores, checkpoint, "masked", began, json=json)
        return
    why = f"{checkpoint} is a language model, which reads running text"
    refuse(ctx, why, *_ROWS, "header", "plot", *_PAIRS, *_SEARCH)
    if task == "lambada":
        unused = ("window", "stride", "start", "end", "per_word", "joined", *_READING)
        refuse(ctx, "lambada's protocol settles how passages are read", *unused)
    elif not sources:
        refuse(ctx, "without a FILE the text is read as the checkpoint's recipe says", *_READING)
    lm = load_language_model(checkpoint, **loading)
    if lm.tokenizer is None:
        raise CheckpointError(
            f"{checkpoint} has no tokenizer, which text needs; put its tokenizer.json there"
        )
    began = time.perf_counter()
    if task == "lambada":
        scores = lambada_scores(lm, sources or ["lambada"], first=first, batch_size=batch_size)
    else:
        reading = {"field": field, "separator": separator, "encoding_errors": encoding_errors}
        how = {"window": window, "stride": stride, "start": start, "end": end, "batch_size": batch_size}
        labelled = None if sources else labelled_texts(checkpoint)
        if labelled is not None:
            refuse(ctx, "texts are scored one by one after their labels", "per_word", "joined", "first")
            from wordloom.run.tasks.label_scores import scores_after_labels

            scores = scores_after_labels(lm, labelled, **how)
        else:
            documents, specials = documents_of(checkpoint, sources or [], reading, specials)
            texts = list(islice(documents, first))
            scores = text_scores(lm, texts, **how, per_word=per_word, joined=joined, specials=specials)
    _print(scores, checkpoint, task, began, json=json)


def _print(scores: Scores, checkpoint: Path, task: str, began: float, *, json: bool) -> None:
    seconds = time.perf_counter() - began
    if json:
        facts = {"checkpoint": str(checkpoint), "task": task, "seconds": round(seconds, 3)}
        print(json_module.dumps({**facts, **scores.as_dict()}, ensure_ascii=False))
    else:
        print_scores(Console(), scores, seconds)


def _one(name: str) -> str:
    return f"{name.removesuffix('ies')}y" if name.endswith("ies") else name.removesuffix("s")


def print_scores(console: Console, scores: Scores, seconds: float) -> None:
    """The scores for people: values and intervals, what was counted, the settings, what to know."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("score")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    told = []
    for score in scores.scores:
        interval = "" if score.interval is None else " to ".join(map(_number, score.interval))
        table.add_row(score.name, "undefined" if score.value is None else _number(score.value), interval)
        if score.value is None:
            told.append(f"{score.name} is undefined: {score.note}")
        elif score.note:
            told.append(score.note)
    console.print(table)
    counts = {name.replace("_", " "): n for name, n in scores.counts.items() if n and name != "nats"}
    counted = [f"{n:,} {_one(name) if n == 1 else name}" for name, n in counts.items()]
    settings = dict.fromkeys(score.signature.partition("|")[2] for score in scores.scores)
    notes = [f"note: {note}" for note in dict.fromkeys([*told, *scores.notes])]
    console.print()
    for text in [", ".join([*counted, f"{seconds:.1f} s"]), *settings, *notes]:
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def _number(value: float) -> str:
    return f"{value:.4f}" if value < 1000 else f"{value:,.1f}"
