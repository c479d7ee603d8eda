"""The table of a comparison: as text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from wordloom.files import write_text
from wordloom.run.compare.result import Interval, Result, Row

TABLE = "table"
_EXPLAINED = (
    "seeds: the lowest and the highest score; tokens/s: greedy decoding at batch 1; memory: the peak of a "
    "training step, on a CPU as planned"
)


def write_tables(result: Result, folder: Path) -> None:
    """Write ``table.txt``, ``table.json`` and ``table.csv`` into ``folder``."""
    write_text(folder / f"{TABLE}.txt", text_of(result))
    write_text(folder / f"{TABLE}.json", json.dumps(result.as_dict(), indent=1, ensure_ascii=False) + "\n")
    write_text(folder / f"{TABLE}.csv", csv_of(result))


def columns_of(result: Result) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the cells of the table of all models with bits per byte."""
    headings = [
        *("model", "bits/byte", "95 % interval", "seeds"),
        "to the best trained model" if any(row.seeds for row in result.causal) else "to the best",
        *("parameters", "without embeddings", "tokens", "FLOPs", "minutes", "tokens/s", "memory MB"),
        *result.tasks,
    ]
    return headings, [_cells(row, result.tasks) for row in result.causal]


def encoder_columns(result: Result) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the cells of the table of encoders."""
    headings = [
        *("encoder", "pseudo-perplexity", "seeds", "parameters", "without embeddings", "tokens", "FLOPs"),
        *("minutes", "memory MB", *result.tasks),
    ]
    rows = [
        [
            *(row.title, f"{row.score:.2f}", _range(row.seeds, ".2f"), *_sizes(row), *_budgets(row)),
            *(_memory(row), *_tasks(row, result.tasks)),
        ]
        for row in result.encoders
    ]
    return headings, rows


def _cells(row: Row, tasks: Sequence[str]) -> list[str]:
    speed = "" if row.decoded_per_second is None else f"{row.decoded_per_second:,.0f}"
    return [
        *(row.title, f"{row.score:.4f}", _interval(row.interval), _range(row.seeds, ".4f"), _difference(row)),
        *(*_sizes(row), *_budgets(row), speed, _memory(row), *_tasks(row, tasks)),
    ]


def _interval(interval: Interval | None, form: str = ".4f") -> str:
    return "" if interval is None else f"{interval[0]:{form}} to {interval[1]:{form}}"


def _range(seeds: Sequence[float], form: str) -> str:
    return f"{min(seeds):{form}} to {max(seeds):{form}}" if len(seeds) > 1 else ""


def _difference(row: Row) -> str:
    if row.difference is None:
        return ""
    interval = row.difference_interval
    return f"{row.difference:.4f}" + (f" ({_interval(interval)})" if interval else "")


def _sizes(row: Row) -> list[str]:
    return ["" if count is None else f"{count:,}" for count in (row.parameters, row.weights)]


def _budgets(row: Row) -> list[str]:
    return [
        "" if row.tokens is None else f"{row.tokens:,}",
        "" if row.flops is None else f"{row.flops:.2e}",
        "" if row.minutes is None else f"{row.minutes:.1f}",
    ]


def _memory(row: Row) -> str:
    return "" if row.memory is None else f"{row.memory / 2**20:,.0f}"


def _tasks(row: Row, tasks: Sequence[str]) -> list[str]:
    values = [row.tasks.get(name) for name in tasks]
    return ["" if value is None else f"{value:.3f}" for value in values]


def heading_of(result: Result) -> str:
    """Return a line that says what the scores are of."""
    seeds = f"{result.seeds} seed{'s' * (result.seeds != 1)}"
    trained = f"each model trained for {result.budget}, with {seeds}; " if result.runs else ""
    return (
        f"bits per byte of {result.text}: {result.held_out_bytes:,} bytes, {result.units:,} {result.unit}; "
        f"{trained}tokenizer: {result.tokenizer}"
    )


def text_of(result: Result) -> str:
    """Return the tables, their notes and the signature as plain text."""
    parts = [heading_of(result), "", _aligned(*columns_of(result))]
    if result.encoders:
        parts += ["", "encoders, which pseudo-perplexity compares with one another only", ""]
        parts += [_aligned(*encoder_columns(result))]
    tasks = f"; {', '.join(result.tasks)}: accuracy of the first seed" if result.tasks else ""
    if result.runs:
        rates = ", ".join(f"{row.title} {row.rate:g}" for row in result.rows if row.rate is not None)
        parts += ["", _EXPLAINED + tasks, "", f"learning rates: {rates}"]
    parts += ["", *trained_in_all(result), result.signature, *published(result)]
    parts += [f"note: {note}" for note in result.notes]
    return "\n".join(parts) + "\n"


def trained_in_all(result: Result) -> Iterator[str]:
    """Yield a line that counts all training, also that of the trials of learning rates."""
    if result.runs:
        yield f"trained in all: {result.runs} runs, {result.flops:.3g} FLOPs"


def published(result: Result) -> Iterator[str]:
    """Yield the published scores on the tasks of the table."""
    if "blimp" in result.tasks:
        yield (
            "published on BLiMP (Warstadt et al. 2020): n-gram model 0.612, LSTM 0.698, Transformer-XL "
            "0.696, GPT-2 0.830"
        )


def _aligned(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is aligned to the left and whose others are to the right."""
    lines = [list(headings), *map(list, rows)]
    kept = [i for i in range(len(headings)) if i == 0 or any(row[i] for row in rows)]
    widths = {i: max(len(line[i]) for line in lines) for i in kept}
    return "\n".join(
        "  ".join(line[i].rjust(widths[i]) if i else line[i].ljust(widths[i]) for i in kept).rstrip()
        for line in lines
    )


def csv_of(result: Result) -> str:
    """Return a line for each entry and seed, with plain numbers."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        [
            *("name", "title", "measure", "seed", "score", "mean", "low", "high", "difference"),
            *("difference_low", "difference_high", "parameters", "weights", "learning_rate", "tokens"),
            *("flops", "minutes", "decoded_per_second", "memory_bytes", *result.tasks),
        ]
    )
    for row in result.rows:
        low, high = row.interval or (None, None)
        below, above = row.difference_interval or (None, None)
        measure = "pseudo_perplexity" if row.encodes else "bits_per_byte"
        numbers: Sequence[int | None] = row.seed_numbers or [None]
        for number, score in zip(numbers, row.seeds or [row.score], strict=True):
            writer.writerow(
                [
                    *(
                        row.name,
                        row.title,
                        measure,
                        number,
                        score,
                        row.score,
                    ),
                    *(low, high, row.difference, below, above, row.parameters, row.weights, row.rate),
                    *(row.tokens, row.flops, row.minutes, row.decoded_per_second, row.memory),
                    *(row.tasks.get(name) if number == numbers[0] else None for name in result.tasks),
                ]
            )
    return file.getvalue()
