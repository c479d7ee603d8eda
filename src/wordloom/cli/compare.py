"""``wordloom compare RECIPE|CORPUS --budget tokens=50M``."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from wordloom.cli import options
from wordloom.cli.options import argument, option


def _names(given: str | None) -> list[str]:
    return [] if given is None else [name.strip() for name in given.split(",") if name.strip()]


def command(
    source: Annotated[
        str,
        Argument(
            metavar="RECIPE|CORPUS",
            help="A recipe, whose text, tokenizer and batches all models share; or a text: a file, a folder, "
            "a glob or a data set.",
        ),
    ],
    budget: Annotated[
        str,
        Option(
            metavar="KIND=AMOUNT",
            help="How long each model trains: tokens=50M, flops=1e15 or minutes=30. The other two are "
            "reported.",
        ),
    ],
    settings: list[str] | None = argument(
        None, "Settings that replace those of the recipe, such as data.validation=FILE.", metavar="KEY=VALUE"
    ),
    families: str | None = option(
        None,
        "The models to compare, of ngram, bag, rnn, lstm, gru, gpt2, llama, llama-band and bert.  [default: "
        "all but bert]",
        metavar="NAME[,NAME]...",
    ),
    parameters: str | None = option(
        None,
        "How many parameters each model has, with embeddings, such as 1M or 1M,4M.  [default: those of the "
        "recipe's model]",
        metavar="NUMBER[,NUMBER]...",
    ),
    entry: list[str] | None = option(
        None, "Also enter this recipe with its own model. Repeatable.", metavar="RECIPE"
    ),
    tokenizer: str | None = option(
        None, "The kind of the tokenizer that all models share.  [default: that of the recipe, else bpe]"
    ),
    seeds: int = option(3, "How many seeds each model trains with.", min=1),
    rates: int = option(
        5, "How many learning rates each model tries, at a tenth of the budget.", min=1, max=5
    ),
    task: list[str] | None = option(
        None, "Also score the models on this data set, such as blimp. Repeatable.", metavar="DATASET"
    ),
    prompt: str | None = option(
        None, "The beginning of the sample of each model.  [default: the first words of the held-out text]"
    ),
    out: Path | None = option(None, "The folder of the comparison.  [default: runs/NAME-compare]"),
    dry_run: bool = option(
        False,
        "Print the models and their runs, and stop there.  A budget in minutes still times each model.",
        "--dry-run",
    ),
    json: bool = option(False, "Print the result as JSON.", "--json"),
    verbose: options.VERBOSE = False,
) -> None:
    """Train families of models on one text with one budget.

    All models have equal numbers of parameters, one tokenizer, and learning rates that are tried at a tenth
    of the budget. The table, a picture, a report in HTML and the models are in the folder. After Ctrl-C, the
    same command continues and trains nothing twice.
    """
    import logging

    from wordloom.progress import TrainingProgress
    from wordloom.run.compare.budget import Budget, parse_amount
    from wordloom.run.compare.compare import compare
    from wordloom.run.compare.entries import DEFAULT
    from wordloom.run.compare.report import PICTURE, REPORT
    from wordloom.run.compare.result import Result
    from wordloom.run.compare.settings import Settings
    from wordloom.run.compare.tables import text_of

    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(message)s")
    progress = TrainingProgress()
    found = compare(
        Settings(
            source=source,
            budget=Budget.parse(budget),
            families=_names(families) if families is not None else DEFAULT,
            parameters=[parse_amount(each, "--parameters") for each in _names(parameters)],
            recipes=entry or [],
            tokenizer=tokenizer,
            seeds=seeds,
            rates=rates,
            tasks=task or [],
            prompt=prompt,
            overrides=settings or [],
        ),
        out=out,
        dry_run=dry_run,
        progress=progress,
    )
    if not isinstance(found, Result):
        _print_runs(found, json=json)
        return
    if json:
        print(json_module.dumps(found.as_dict(), ensure_ascii=False, indent=1))
    elif found.rows:
        print(text_of(found), end="")
    folder = found.folder
    if not found.stopped and (folder / PICTURE).exists():
        progress.say(f"\nthe picture is {folder / PICTURE}, the report {folder / REPORT}")


def _print_runs(runs: list[Any], *, json: bool) -> None:
    """Print the runs that a comparison would train, and their state."""
    from rich.text import Text

    from wordloom.cli.tables import plain_table, print_unwrapped

    rows = [
        {
            "run": run.name,
            "state": run.state().state,
            "parameters": run.entry.parameters,
            "without_embeddings": run.entry.weights,
            "learning_rate": run.rate,
            "steps": run.recipe.train.steps,
            "tokens": (run.recipe.train.steps or 0) * run.entry.tokens_per_step,
            "flops": run.work,
        }
        for run in runs
    ]
    if json:
        print(json_module.dumps(rows, indent=1))
        return
    table = plain_table(None, "run", "state", "parameters", "without embeddings", "rate", "tokens", "FLOPs")
    for row in rows:
        table.add_row(
            Text(str(row["run"])),
            str(row["state"]),
            f"{row['parameters']:,}",
            f"{row['without_embeddings']:,}",
            f"{row['learning_rate']:g}",
            f"{row['tokens']:,}",
            f"{row['flops']:.2e}",
        )
    print_unwrapped(table)
