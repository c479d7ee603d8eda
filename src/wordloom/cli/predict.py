"""``wordloom predict CHECKPOINT [FILE...]``."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Sequence

import typer

from wordloom.cli import options
from wordloom.cli.options import argument, option
from wordloom.cli.usage import check_options, refuse
from wordloom.errors import CheckpointError, DataError
from wordloom.progress import TerminalReporter

_SHOWN = 20  # numbers of truncated rows that are shown


def command(
    ctx: typer.Context,
    checkpoint: options.CHECKPOINT,
    sources: list[str] | None = argument(
        None, "Files with one text a line, .jsonl files or tables.  [default: stdin]", metavar="FILE"
    ),
    field: options.RUN_FIELD = None,
    text_column: options.TEXT_COLUMN = None,
    header: options.HEADER = None,
    encoding_errors: options.ENCODING_ERRORS = "strict",
    top_k: int = option(
        5,
        "How many tokens to show for each mask (encoders), or how many answers to each question with --json.",
        min=1,
    ),
    too_long: options.TOO_LONG = "error",
    threshold: options.THRESHOLD = None,
    batch_size: options.BATCH_SIZE = None,
    device: options.DEVICE = "auto",
    dtype: options.DTYPE = "auto",
    json: options.JSON_LINES = False,
) -> None:
    """Predict with a fine-tuned model or an encoder.  The output has one line for each text, in order.

    A classifier gives the label of each text and its probability, a regression model a number, and token
    classification each word with its label. Multiple choice gives the most probable choice. Question
    answering gives the answer, where it begins and ends, and its probability. An encoder gives the most
    probable tokens for each mask.
    """
    from wordloom.run.checkpoint.kinds import KINDS, kind_of
    from wordloom.run.checkpoint.loaders import Request, read_checkpoint

    contents = read_checkpoint(checkpoint)
    kind = kind_of(contents)
    prediction = kind.prediction
    if prediction is None:
        raise CheckpointError(
            f"{checkpoint} holds {kind.description}, which predicts no labels; try "
            f"`{kind.command_for(contents)}`"
        )
    uses = [one.prediction for one in KINDS.values() if one.prediction is not None]
    check_options(ctx, contents, kind, prediction, uses, files=True)
    if text_column is not None:
        refuse(ctx, "--text-column says where the texts are", "field")
    if prediction.files is not None and not sources:
        raise DataError(f"give a FILE of {prediction.files}, or - for standard input")
    model = kind.load(contents, device, dtype)
    settings = {name: ctx.params[name] for name in prediction.all_options}
    truncated = []
    rows = prediction.run(
        Request(contents, sources or ["-"], TerminalReporter(), unwritten=[]), model, **settings
    )
    for number, row in enumerate(rows, 1):
        print(json_module.dumps(row.facts, ensure_ascii=False) if json else row.line)
        if row.truncated:
            truncated.append(number)
    _report_truncated(prediction.rows, truncated)
    sys.stdout.flush()


def _report_truncated(rows: str, numbers: Sequence[int]) -> None:
    """Report the ``numbers``, from 1, of the ``rows`` ("texts" or "questions") that were truncated."""
    if not numbers:
        return
    shown = ", ".join(f"{number:,}" for number in numbers[:_SHOWN])
    more = f" and {len(numbers) - _SHOWN:,} more" if len(numbers) > _SHOWN else ""
    subject = f"1 {rows.removesuffix('s')} is" if len(numbers) == 1 else f"{len(numbers):,} {rows} are"
    verb = "was" if len(numbers) == 1 else "were"
    print(f"note: {subject} longer than the model reads and {verb} truncated: {shown}{more}", file=sys.stderr)
