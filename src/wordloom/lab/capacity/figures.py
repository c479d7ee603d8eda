"""Draw the bits per parameter against the number of people."""

from __future__ import annotations

import os
from typing import Any

from wordloom.inspect import figures
from wordloom.lab.capacity.comparing import Comparison, Curve

_LINES = ("-", "--", "-.", ":")  # by exposures, from many to few


def draw_capacity(result: Comparison, path: str | os.PathLike[str]) -> None:
    """Draw the curves of ``result`` into a .png, .svg or .pdf file.

    Raises as :func:`wordloom.inspect.draw_map`.
    """
    figures.save_figure(lambda: capacity_figure(result), [], path)


def capacity_figure(result: Comparison) -> Any:
    """Return the figure that :func:`draw_capacity` saves: a mark for each run, a line through the means.

    Curves of one family have one colour, and other lines for other exposures.  Where other settings differ
    too, each curve has its own colour.
    """
    figure = figures.new_figure((6.4, 4.2))
    panel = figure.subplots()
    names = sorted({_colour_of(curve) for curve in result.curves})
    exposures = sorted({curve.exposures for curve in result.curves}, reverse=True)
    most: dict[int, list[float]] = {}
    for curve in result.curves:
        style = figures.series(names.index(_colour_of(curve)))
        people = [point.people for point in curve.points]
        panel.plot(
            people,
            [point.bits("fp32") for point in curve.points],
            linestyle=_LINES[exposures.index(curve.exposures) % len(_LINES)],
            label=curve.name,
            markersize=5,
            **style,
        )
        for point in curve.points:
            bits = [each.fp32.stored.total / each.parameters for each in point.results]
            panel.plot([point.people] * len(bits), bits, linestyle="", markersize=3, alpha=0.5, **style)
            most.setdefault(point.people, []).append(point.most)
    bound = sorted((people, max(found)) for people, found in most.items())
    panel.plot(*zip(*bound, strict=True), color=figures.FAINT, linewidth=1, marker="_", label="all facts")
    panel.set_xscale("log", base=2)
    panel.set_xticks([people for people, _ in bound], [f"{people:,}" for people, _ in bound])
    panel.minorticks_off()
    panel.set_ylim(bottom=min(0.0, panel.get_ylim()[0]))
    panel.set_xlabel("people", fontsize=figures.FONT)
    panel.set_ylabel("bits per parameter", fontsize=figures.FONT)
    panel.grid(color=figures.GRID, linewidth=0.6)
    panel.legend(fontsize=figures.FONT - 1, frameon=False)
    figures.hide_frame(panel)
    return figure


def _colour_of(curve: Curve) -> str:
    """Return the name of the curves that share a colour."""
    return ", ".join([curve.family, *(f"{name} {value}" for name, value in curve.settings.items())])
