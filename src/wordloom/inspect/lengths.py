"""Plot translation quality by the length of the source."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from wordloom.inspect.figures import COLOURS, GRID, MARKS, new_figure, save_figure

__all__ = ["draw_lengths", "lengths_figure"]

_FONT = 9.0  # points


def draw_lengths(
    path: str | os.PathLike[str], runs: Mapping[str, Sequence[Any]], *, score: str = "BLEU"
) -> None:
    """Draw the scores of each run by the length of the source into a .png, .svg or .pdf file.

    Scores with a note (undefined, or 0 by definition) are left out; a line below the axes names them.

    Args:
        path: the file to write.
        runs: for each run's name, the :class:`wordloom.evaluate.LengthBin` of the same texts.
        score: the name of the scores.

    Raises as :func:`wordloom.inspect.draw_map`.
    """
    save_figure(lambda: lengths_figure(runs, score), [*runs, score], path)


def lengths_figure(runs: Mapping[str, Sequence[Any]], score: str) -> Any:
    """Return the figure that :func:`draw_lengths` saves."""
    bins = next(iter(runs.values()))
    figure = new_figure((max(4.6, 0.95 * len(bins) + 1.6), 4.0))
    panel = figure.subplots()
    left_out: list[str] = []
    for i, (name, parts) in enumerate(runs.items()):
        places = [n + 0.06 * (i - (len(runs) - 1) / 2) for n in range(len(parts))]  # bars stand side by side
        values = [math.nan if part.score.note else part.score.value for part in parts]
        errors = [
            [abs(p.score.interval[side] - p.score.value) if p.score.interval else 0.0 for p in parts]
            for side in (0, 1)
        ]
        if gaps := ", ".join(part.label for part in parts if part.score.note):
            left_out.append(f"{name}: no {score} for {gaps} words, see the notes of the scores")
        colour = COLOURS[i % len(COLOURS)]
        panel.plot(places, values, color=colour, linewidth=1.6, zorder=2)
        panel.errorbar(
            places, values, yerr=errors, label=name, color=colour, marker=MARKS[i % len(MARKS)], markersize=6,
            markeredgecolor="white", markeredgewidth=0.6, elinewidth=0.9, capsize=2.5, linestyle="none",
            clip_on=False, zorder=3,  # above the lines of all runs
        )  # fmt: skip
    panel.set_xticks(range(len(bins)), [f"{part.label}\n({part.pairs:,})" for part in bins], fontsize=_FONT)
    panel.set_xlabel("\n".join(["source length in words (n sentences)", *left_out]), fontsize=_FONT + 1)
    panel.set_ylabel(score, fontsize=_FONT + 1)
    panel.set_ylim(bottom=0)
    panel.tick_params(labelsize=_FONT)
    panel.grid(axis="y", color=GRID, linewidth=0.7)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    if len(runs) > 1:
        panel.legend(frameon=False, fontsize=_FONT)
    return figure
