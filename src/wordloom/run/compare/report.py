"""The report of a comparison: its picture, and one page of HTML."""

from __future__ import annotations

from functools import partial
from html import escape
from pathlib import Path

from wordloom.inspect import figures
from wordloom.inspect.view.pages import figure_as_html, page, table_as_html, write_page
from wordloom.run.compare.figure import comparison_figure, encoder_figure
from wordloom.run.compare.result import Pair, Result
from wordloom.run.compare.tables import columns_of, encoder_columns, heading_of, published, trained_in_all

PICTURE, ENCODERS, REPORT = "compare.png", "encoders.png", "report.html"


def write_report(result: Result, folder: Path) -> None:
    """Write ``compare.png``, for encoders ``encoders.png``, and ``report.html`` into ``folder``."""
    drawn = (PICTURE, result.causal, comparison_figure), (ENCODERS, result.encoders, encoder_figure)
    for name, rows, draw in drawn:
        if any(row.points for row in rows):
            figures.save_figure(partial(draw, result), [], folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    write_page(report_page(result), folder / REPORT)


def report_page(result: Result) -> str:
    """Return the page: the table, the picture, the samples side by side, and how it was measured."""
    body = [f"<p>{escape(heading_of(result))}</p>\n"]
    body.append(_table("Models", *columns_of(result)))
    if result.encoders:
        body.append(
            _table(
                "Encoders: pseudo-perplexity compares them with one another only", *encoder_columns(result)
            )
        )
        body.append(
            figure_as_html(lambda: encoder_figure(result), [], "pseudo-perplexity against the budget")
        )
    if any(row.points for row in result.causal):
        body.append(figure_as_html(lambda: comparison_figure(result), [], "bits per byte against the budget"))
    body += [_differences(result), _samples(result)]
    body.append(_rates(result))
    body.append("<h2>How it was measured</h2>\n<ul>\n")
    body += [
        f"<li>{escape(line)}</li>\n"
        for line in (
            *(*_METHOD, *published(result), *trained_in_all(result)),
            *(f"signature: {result.signature}", *result.notes),
        )
    ]
    body.append("</ul>\n")
    return page("Comparison of language models", "".join(body))


_METHOD = (
    "All models read the same documents, each independently of the others, and bits per byte divide all bits "
    "by the bytes of the text. The n-gram model and lzma read these documents as one text, and lzma has the "
    "training text before it.",
    "The score is the mean over the seeds. Intervals are 95 % normal intervals over units of the text; "
    "differences are paired by unit.",
    "The column of seeds has the lowest and the highest score, tokens/s is the speed of greedy decoding at "
    "batch 1, and memory is the peak of a training step, on a CPU as planned. Tasks are scored for the "
    "first seed.",
    "The learning rate of a model has the lowest loss on the held-out text of those tried at a tenth of the "
    "budget.",
    "Each mark of the picture is a finished run. Recurrent models carry their state from window to window in "
    "training. The n-gram model and lzma read the whole training text once, whatever the budget.",
)


def _table(title: str, headings: list[str], rows: list[list[str]]) -> str:
    kept = [i for i in range(len(headings)) if i == 0 or any(row[i] for row in rows)]
    return table_as_html(title, [headings[i] for i in kept], [[row[i] for i in kept] for row in rows])


def _differences(result: Result) -> str:
    """Return the differences of each two rows, a row for the worse of them."""
    known = {(pair.first, pair.second): pair for pair in result.pairs}
    better = list(dict.fromkeys(pair.first for pair in result.pairs))
    worse = list(dict.fromkeys(pair.second for pair in result.pairs))
    rows = []
    for second in worse:
        cells = [known.get((first, second)) for first in better]
        rows.append([second, *("" if pair is None else _difference(pair) for pair in cells)])
    title = "Bits per byte above those of another model, and the 95 % interval, paired"
    return table_as_html(title, ["model", *better], rows) if rows else ""


def _difference(pair: Pair) -> str:
    low, high = pair.interval
    return f"{pair.difference:.4f} ({low:.4f} to {high:.4f})"


def _samples(result: Result) -> str:
    """Return the texts that the models write after the same prompt with the same seed, side by side."""
    rows = [row for row in result.causal if row.sample]
    if not rows:
        return ""
    cells = "".join(
        f"<figure class=sample><figcaption>{escape(row.title)}</figcaption>"
        f"<pre><b>{escape(result.prompt)}</b>{escape(row.sample)}</pre></figure>\n"
        for row in rows
    )
    return f'<h2>Samples</h2>\n<div class="samples">\n{cells}</div>\n'


def _rates(result: Result) -> str:
    """Return the validation losses of the learning rates that were tried, a row for each model."""
    every = sorted({rate for row in result.rows for rate, _ in row.trials})
    rows = []
    for row in result.rows:
        if row.trials:
            losses = dict(row.trials)
            rows.append([row.title, *(_loss(losses, rate, row.rate) for rate in every)])
    title = "Validation loss by learning rate, at a tenth of the budget; * is the rate that was chosen"
    return table_as_html(title, ["model", *(f"{rate:g}" for rate in every)], rows) if rows else ""


def _loss(losses: dict[float, float | None], rate: float, chosen: float | None) -> str:
    if rate not in losses:
        return ""
    loss = losses[rate]
    return f"{'* ' * (rate == chosen)}{'diverged' if loss is None else f'{loss:.4f}'}"
