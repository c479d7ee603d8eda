"""Plot a confusion matrix."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from wordloom.inspect.figures import GRID, INK, add_colour_bar, new_figure, save_figure

__all__ = ["confusion_figure", "draw_confusion"]

_CELL = 0.34  # inches
_LEAST = 3.0  # inches; a smaller matrix has no room for the names of its axes
_FONT = 8.0  # points
_SHOWN = 0.005  # share of a row; cells below it have no number
_DARK = 0.55  # share of a row from which on a cell's number is white


def draw_confusion(
    counts: Sequence[Sequence[int]],
    labels: Sequence[str],
    path: str | os.PathLike[str],
    *,
    kind: str = "label",
) -> None:
    """Draw a confusion matrix into a .png, .svg or .pdf file, with true labels down and predictions across.

    The colour and number of a cell are its percentage of the row.  ``counts[i][j]`` is the number of examples
    with label i and prediction j.  ``kind`` names in the axis labels what is predicted, such as ``language``.

    Raises as :func:`wordloom.inspect.draw_map`.
    """
    save_figure(lambda: confusion_figure(counts, labels, kind), [*labels, kind], path)


def confusion_figure(counts: Sequence[Sequence[int]], labels: Sequence[str], kind: str = "label") -> Any:
    """Return the figure that :func:`draw_confusion` saves."""
    table = np.asarray(counts, np.int64)
    n = table.sum(1)  # [C]
    shares = table / np.maximum(n, 1)[:, None]
    C = len(labels)
    side = max(_LEAST, C * _CELL)
    figure = new_figure((side + 2.6, side + 1.8))
    panel = figure.subplots()
    image = panel.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="nearest")
    panel.set_xticks(range(C), list(labels), rotation=90, fontsize=_FONT)
    names = [f"{label}  ({count:,})" for label, count in zip(labels, n, strict=True)]
    panel.set_yticks(range(C), names, fontsize=_FONT)
    panel.set_xlabel(f"predicted {kind}", fontsize=_FONT + 1, parse_math=False)
    panel.set_ylabel(f"true {kind} (n examples)", fontsize=_FONT + 1, parse_math=False)
    panel.set_xticks(np.arange(C - 1) + 0.5, minor=True)
    panel.set_yticks(np.arange(C - 1) + 0.5, minor=True)
    panel.grid(which="minor", color=GRID, linewidth=0.6)
    panel.tick_params(which="both", length=0)
    for i, j in np.argwhere(shares >= _SHOWN):
        share = shares[i, j]
        colour, weight = "white" if share >= _DARK else INK, "bold" if i == j else "normal"
        style = {"ha": "center", "va": "center", "fontsize": _FONT - 1, "color": colour, "weight": weight}
        panel.text(j, i, f"{100 * share:.0f}", **style)
    bar = add_colour_bar(panel, image, f"share of the true {kind}", _FONT)
    bar.set_ticks([0, 0.5, 1], labels=["0", "50 %", "100 %"])
    right, rows = int(np.trace(table)), int(table.sum())
    accuracy = f" ({right / rows:.1%})" if rows else ""  # undefined without rows
    panel.set_title(f"{right:,} of {rows:,} correct{accuracy}", fontsize=_FONT + 2)
    return figure
