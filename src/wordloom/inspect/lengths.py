"""Plot translation quality by the length of the source."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from wordloom.inspect.figures import COLOURS, MARKS, save_figure

__all__ = ["draw_lengths", "lengths_figure"]

_FONT = 9.0  # points


def draw_lengths(
    path: str | os.PathLike[str], runs: Mapping[str, Sequence[Any]], *, score: str = "BLEU"
) -> None:
    """Draw the scores of each run by the length of the source into a .png, .svg or .pdf file.

    A score that is 0 by definition or undefined, and therefore has a note, is left out; a line below the axes
    names it.

    Args:
        path: the file.
        runs: by name, :class:`wordloom.evaluate.LengthBin` of the same texts.
        score: what the scores are called.

    Raises as :func:`wordloom.inspect.draw_map`.
    """
    save_figure(lambda: lengths_figure(runs, score), [*runs, score], path)


def lengths_figure(runs: Mapping[str, Sequence[Any]], score: str) -> Any:
    """The figure that :func:`draw_lengths` saves."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    bins = next(iter(runs.values()))
    figure = Figure(figsize=(max(4.6, 0.95 * len(bins) + 1.6), 4.0), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    left_out: list[str] = []
    for i, (name, found) in enumerate(runs.items()):
        places = [n + 0.06 * (i - (len(runs) - 1) / 2) for n in range(len(found))]  # bars stand side by side
        values = [math.nan if part.score.note else part.score.value for part in found]
        below, above = (
            [
                abs(part.score.interval[side] - part.score.value) if part.score.interval else 0.0
                for part in found
            ]
            for side in (0, 1)
        )
        if gaps := ", ".join(part.label for part in found if part.score.note):
            left_out.append(f"{name}: no {score} for {gaps} words, see the notes of the scores")
        panel.plot(places, values, color=COLOURS[i % len(COLOURS)], linewidth=1.6, zorder=2)
        style: dict[str, Any] = {
            "color": COLOURS[i % len(COLOURS)],
            "marker": MARKS[i % len(MARKS)],
            "markersize": 6,
            "markeredgecolor": "white",
            "markeredgewidth": 0.6,
            "capsize": 2.5,
            "linestyle": "none",
            "clip_on": False,
            "zorder": 3,  # above the lines of all runs
        }
        panel.errorbar(places, values, yerr=[below, above], label=name, elinewidth=0.9, **style)
    panel.set_xticks(range(len(bins)), [f"{part.label}\n({part.pairs:,})" for part in bins], fontsize=_FONT)
    panel.set_xlabel("\n".join(["source length in words (n sentences)", *left_out]), fontsize=_FONT + 1)
    panel.set_ylabel(score, fontsize=_FONT + 1)
    panel.set_ylim(bottom=0)
    panel.tick_params(labelsize=_FONT)
    panel.grid(axis="y", color="#e3e3e3", linewidth=0.7)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    if len(runs) > 1:
        panel.legend(frameon=False, fontsize=_FONT)
    return figure
