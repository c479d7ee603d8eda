"""``wordloom data prepare``."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from typer import Option

from wordloom.cli import options
from wordloom.cli.help import HelpCommand
from wordloom.cli.options import option
from wordloom.cli.usage import UsageError, refuse
from wordloom.errors import DataError

if TYPE_CHECKING:
    from wordloom.data import Corpus


class DashedSources(HelpCommand):
    """A command that takes a source such as ``-.jsonl``, but only after ``--``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if getattr(error, "option_name", None) != "-.":
                raise
            raise DataError(
                "a source such as -.jsonl begins like an option; put the sources last, after '--': "
                f"{ctx.command_path} --tokenizer ... -- -.jsonl"
            ) from None


def prepare(
    ctx: typer.Context,
    sources: options.SOURCES,
    tokenizer: Annotated[Path, Option(help="A tokenizer, or the folder of a model that has one.")],
    part: Literal["train", "validation", "both", "all"] = option(
        "both", "Which part to prepare; all: the whole corpus."
    ),
    field: list[str] | None = option(
        None, "The field of .jsonl, .json and .parquet rows that holds the text. Repeat to join several."
    ),
    separator: options.SEPARATOR = None,
    encoding_errors: options.ENCODING_ERRORS_OR_BYTES = "strict",
    split: Literal["tail", "hash"] | None = option(
        None,
        "How to split off a validation part: the end of the corpus, or documents by hash.  "
        "[default: tail; hash with --task]",
    ),
    validation_fraction: float = option(0.1, "The share of the validation part."),
    validation: list[str] | None = option(None, "Files for validation, instead of a split. Repeatable."),
    specials: Literal["refuse", "text"] = option(
        "refuse", "Special tokens that occur in the text: refuse them, or read them as text."
    ),
    end: Literal["eos", "sep", "none"] = option(
        "eos", "The token after each document: the tokenizer's end, its separator (as in BERT), or none."
    ),
    workers: int | None = option(
        None, "How many batches to encode at once.  [default: by the number of cores]", min=1
    ),
    cache: Path | None = option(
        None, "The folder of the shards.  [default: $WORDLOOM_CACHE]", metavar="FOLDER"
    ),
    task: str | None = option(
        None,
        "Prepare one of several equal shares of the files, such as 3/64, for `data merge`. Files with a "
        "document on each line are divided; others are in one share.",
    ),
    out: Path | None = option(None, "The folder that all tasks write to.", metavar="FOLDER"),
    json: options.JSON = False,
) -> None:
    """Tokenize a corpus into memory-mapped shards.  Existing shards are reused."""
    from wordloom.data import Corpus

    if (task is None) != (out is None):
        raise DataError(
            "--task and --out go together: all tasks write to --out FOLDER; one task alone is --task 1/1"
        )
    if task is not None:
        refuse(ctx, "--task writes to --out", "cache")
    if validation:
        refuse(ctx, "--validation takes the place of a split", "split", "validation_fraction")
    corpus = Corpus(
        sources=sources,
        field="text" if not field else field[0] if len(field) == 1 else field,
        separator=separator,
        encoding_errors=encoding_errors,
        split="files" if validation else split or ("tail" if task is None else "hash"),
        validation_fraction=validation_fraction,
        validation_sources=validation or (),
    )
    formats = {source.format for source in corpus.files("all")}  # a source that is missing is met here
    if not formats & {"jsonl", "json", "parquet"}:
        refuse(ctx, "only .jsonl, .json and .parquet have fields", "field")
    if "text" not in formats:
        refuse(ctx, "only plain text has separators", "separator")
    parts = ("train", "validation") if part == "both" else (part,)
    if part == "both" and not validation and validation_fraction == 0:
        parts = ("train",)
    settings: dict[str, Any] = {"workers": workers, "specials": specials, "end": end}
    if task is None:
        _prepare_whole(corpus, tokenizer, parts, cache, settings, json=json)
    else:
        _prepare_task(corpus, tokenizer, parts, task, cast(Path, out), settings, json=json)


def _prepare_whole(
    corpus: Corpus,
    tokenizer: Path,
    parts: Sequence[str],
    cache: Path | None,
    settings: dict[str, Any],
    *,
    json: bool,
) -> None:
    from wordloom.data import prepare as prepare_shards
    from wordloom.progress import TrainingProgress
    from wordloom.text import Tokenizer

    loaded = Tokenizer.from_pretrained(tokenizer)
    prepared, progress = [], TrainingProgress()
    for each in parts:
        with progress.data(each) as show:
            shards = prepare_shards(
                corpus, loaded, part=cast(Any, each), cache=cache, progress=show, **settings
            )
        prepared.append(
            {"folder": str(shards.folder), "reused": shards.reused, "ledger": shards.ledger.as_dict()}
        )
        if not json:
            print("\n".join(shards.ledger.lines()))
            print(f"{'reused' if shards.reused else 'written'}: {shards.folder}\n")
    if json:
        print(json_module.dumps(prepared))


def _prepare_task(
    corpus: Corpus,
    tokenizer: Path,
    parts: Sequence[str],
    task: str,
    out: Path,
    settings: dict[str, Any],
    *,
    json: bool,
) -> None:
    from wordloom.data.shards.tasks import prepare_share
    from wordloom.data.text.shares import ShareNumber
    from wordloom.progress import TrainingProgress
    from wordloom.text import Tokenizer

    number = ShareNumber.parse(task)
    if not tokenizer.exists():
        raise DataError(
            f"no tokenizer '{tokenizer}': all tasks need one that exists; train it once before they start, "
            "with wordloom tokenize train SOURCES --out FOLDER"
        )
    share = prepare_share(
        corpus,
        Tokenizer.from_pretrained(tokenizer),
        number,
        out=out,
        parts=cast(Any, parts),
        progress=TrainingProgress().data,
        **settings,
    )
    if json:
        ledgers = {name: ledger.as_dict() for name, ledger in share.ledgers.items()}
        print(json_module.dumps({"folder": str(share.folder), "reused": share.reused, "ledgers": ledgers}))
        return
    for ledger in share.ledgers.values():
        print("\n".join(ledger.lines()) + "\n")
    print(f"task {task} {'was complete' if share.reused else 'is complete'}: {share.folder}")
