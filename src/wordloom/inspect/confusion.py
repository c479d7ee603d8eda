"""A picture of what a classifier takes for what."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from wordloom.inspect.figures import check_format, save_figure

__all__ = ["check_format", "confusion_figure", "draw_confusion"]

_CELL = 0.34  # inches
_LEAST = 3.0  # inches, of the matrix, for its axes to have room for their names
_FONT = 8.0  # points
_SHOWN = 0.005  # of a row: below, a cell says nothing
_DARK = 0.55  # from here on a cell's number is white


def draw_confusion(
    counts: Sequence[Sequence[int]], labels: Sequence[str], path: str | os.PathLike[str]
) -> None:
    """Draw a confusion matrix into a .png, .svg or .pdf file: rows are what is true, columns what was said.

    A cell's colour and number are its share of the row, in hundredths; beside the row stands how many rows
    of that label there are.  ``counts[i][j]``: rows of label i taken for label j.

    Raises as :func:`wordloom.inspect.draw_map`.
    """
    save_figure(lambda: confusion_figure(counts, labels), list(labels), path)


def confusion_figure(counts: Sequence[Sequence[int]], labels: Sequence[str]) -> Any:
    """The figure that :func:`draw_confusion` saves."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    table = np.asarray(counts, np.int64)
    n = table.sum(1)  # [C]
    shares = table / np.maximum(n, 1)[:, None]
    C = len(labels)
    side = max(_LEAST, C * _CELL)
    figure = Figure(figsize=(side + 2.6, side + 1.8), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    image = panel.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="nearest")
    panel.set_xticks(range(C), list(labels), rotation=90, fontsize=_FONT)
    names = [f"{label}  ({count:,})" for label, count in zip(labels, n, strict=True)]
    panel.set_yticks(range(C), names, fontsize=_FONT)
    panel.set_xlabel("predicted label", fontsize=_FONT + 1)
    panel.set_ylabel("true label (number of rows)", fontsize=_FONT + 1)
    panel.set_xticks(np.arange(C - 1) + 0.5, minor=True)
    panel.set_yticks(np.arange(C - 1) + 0.5, minor=True)
    panel.grid(which="minor", color="#e3e3e3", linewidth=0.6)
    panel.tick_params(which="both", length=0)
    for spine in panel.spines.values():
        spine.set_color("#8c8c8c")
    for i, j in np.argwhere(shares >= _SHOWN):
        share = shares[i, j]
        looks: dict[str, Any] = {
            "color": "white" if share >= _DARK else "#1a1a1a",
            "weight": "bold" if i == j else "normal",
        }
        panel.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=_FONT - 1, **looks)
    bar = figure.colorbar(image, ax=panel, shrink=0.6, pad=0.02)
    bar.set_label("share of the row", fontsize=_FONT)
    bar.set_ticks([0, 0.5, 1], labels=["0", "50 %", "100 %"], fontsize=_FONT)
    bar.outline.set_visible(False)
    right, rows = int(np.trace(table)), int(table.sum())
    accuracy = f" ({right / rows:.1%})" if rows else ""  # undefined without rows
    panel.set_title(f"{right:,} of {rows:,} correct{accuracy}", fontsize=_FONT + 2)
    return figure
