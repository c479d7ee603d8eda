"""The picture of a comparison: bits per byte against the budget, and by position in the context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wordloom.inspect import figures
from wordloom.run.compare.budget import short
from wordloom.run.compare.result import Point, Result, Row

_NEAR = 1.25  # times the best score: above it, an entry would stretch the scale of the small panel
_LABELS = {
    "tokens": "tokens of training",
    "flops": "floating-point operations of training",
    "minutes": "minutes of training, as planned",
}


def comparison_figure(result: Result) -> Any:
    """Return the figure: a line for each entry, and horizontal lines for the baselines.

    A small panel shows the bits per byte by position in the context, without entries that are far above the
    best one.  Every mark is a finished run of its own, whose learning rate decayed to the end.
    """
    figure = figures.new_figure((8.6, 4.8))
    panels = figure.subplot_mosaic(
        [["budget", "position"], ["budget", "legend"]], width_ratios=[2.2, 1], height_ratios=[1, 1.1]
    )
    panel = panels["budget"]
    trained = [row for row in result.causal if row.points]
    _draw_scores(panel, trained, result)
    for row, dashes in zip((row for row in result.causal if not row.points), ("--", ":"), strict=False):
        panel.axhline(row.score, color=figures.FAINT, linestyle=dashes, linewidth=1.2, label=row.title)
    panel.set_ylabel("bits per byte of held-out text", **figures.NAME)
    lines, names = panel.get_legend_handles_labels()
    panels["legend"].axis("off")
    panels["legend"].legend(lines, names, fontsize=figures.FONT - 1.5, frameon=False, loc="upper left")
    _draw_positions(panels["position"], trained)
    return figure


def encoder_figure(result: Result) -> Any:
    """Return the figure of encoders: a line for each, as in :func:`comparison_figure`."""
    figure = figures.new_figure((6.0, 4.0))
    panel = figure.subplots()
    _draw_scores(panel, result.encoders, result)
    panel.set_ylabel("pseudo-perplexity of held-out text", **figures.NAME)
    panel.legend(fontsize=figures.FONT - 1.5, frameon=False)
    return figure


def _draw_scores(panel: Any, rows: Sequence[Row], result: Result) -> None:
    """Draw the scores of each of ``rows`` against the budget."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for i, row in enumerate(rows):
        points = sorted(row.points, key=lambda point: point.share)
        scores = [point.score for point in points[:-1]] + [row.score]
        panel.plot(
            [_amount(point, result) for point in points], scores, label=row.title, markersize=5,
            linewidth=1.3, **figures.series(i),
        )  # fmt: skip
    panel.set_xscale("log")
    # of about one and a half decades, all minor ticks would have labels that overlap
    panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.xaxis.set_major_formatter(lambda x, _: f"{x:.0e}" if result.budget.kind == "flops" else short(x))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_xlabel(_LABELS[result.budget.kind], **figures.NAME)
    panel.tick_params(labelsize=figures.FONT - 1)
    panel.grid(color=figures.GRID, linewidth=0.6, which="both")
    panel.set_axisbelow(True)
    figures.hide_frame(panel)


def _draw_positions(inset: Any, trained: Sequence[Row]) -> None:
    """Draw the bits per byte of each entry near the best one by the position in the context."""
    for i, row in enumerate(trained):
        if row.positions and row.score <= _NEAR * trained[0].score:
            inset.plot(
                [(first * (stop - 1)) ** 0.5 for first, stop, _ in row.positions],
                [bits for *_, bits in row.positions],
                color=figures.series(i)["color"],
                linewidth=1.1,
            )
    inset.set_xscale("log", base=2)
    inset.set_xlabel("position in the context, tokens", fontsize=figures.FONT - 2)
    inset.set_ylabel("bits per byte", fontsize=figures.FONT - 2)
    inset.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    inset.tick_params(labelsize=figures.FONT - 2.5)
    inset.grid(color=figures.GRID, linewidth=0.5)
    figures.hide_frame(inset)


def _amount(point: Point, result: Result) -> float:
    """Return the budget of a run: planned minutes, since a busy machine takes longer for the same steps."""
    if result.budget.kind == "minutes":
        return point.share * result.budget.amount
    return float(getattr(point, result.budget.kind))
