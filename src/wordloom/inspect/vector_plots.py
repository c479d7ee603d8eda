"""Pictures of words: a map of them and their neighbours, and where they lie on named directions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.inspect.figures import (
    COLOURS,
    FAINT,
    FONT,
    GRID,
    INK,
    MARKS,
    mark_radius,
    name_points,
    new_panel,
    same_scale,
    save_figure,
    shown,
)
from wordloom.inspect.fonts import breadth
from wordloom.vectors.use.maps import WordMap

__all__ = ["axes_figure", "draw_axes", "draw_map", "map_figure"]

_WIDTH = 7.5  # inches; a figure grows until there is room for every name
_GROWTH = (1.0, 1.2, 1.4, 1.6)  # as long as no line may cross a name
_GROWTH_THEN = (1.4, 1.6, 1.9, 2.3, 2.8, 3.4, 4.2, 5.0)  # when lines may


def draw_map(word_map: WordMap, path: str | os.PathLike[str]) -> None:
    """Draw a map of words into a .png, .svg or .pdf file, which appears when it is complete.

    A character that no installed font has is drawn as a box, and a warning names it.

    Raises VectorError for another ending or a place that cannot be written, WordloomError without matplotlib.
    """
    save_figure(lambda: map_figure(word_map), word_map.words, path)


def draw_axes(
    words: Sequence[str],
    values: NDArray[np.float32],
    names: Sequence[str],
    path: str | os.PathLike[str],
) -> None:
    """Draw where words lie on directions: bars for one, a plane for two, a table of colours for more.

    Args:
        words: n words.
        values: [n, axes] cosines, as :func:`wordloom.vectors.project` gives them.
        names: what each axis is called.
        path: a .png, .svg or .pdf file.

    Raises as :func:`draw_map`.
    """
    save_figure(lambda: axes_figure(words, values, names), [*words, *names], path)


def map_figure(word_map: WordMap) -> Any:
    """The figure of :func:`draw_map`: of matplotlib, with the words as texts of its one panel."""
    if word_map.explained is None:
        names = ("t-SNE: near words are alike; distance and direction mean nothing", "")
    else:
        across, up = word_map.explained
        names = (
            f"first principal component ({across:.0%} of the variance)",
            f"second principal component ({up:.0%})",
        )
    bold = [word in set(word_map.asked) for word in word_map.words]
    panel = _labelled(word_map.words, word_map.points, word_map.groups, bold, names, spokes=True)
    if word_map.explained is None:
        panel.set_xticks([])
        panel.set_yticks([])
    return panel.figure


def axes_figure(words: Sequence[str], values: NDArray[np.float32], names: Sequence[str]) -> Any:
    """The figure of :func:`draw_axes`."""
    if values.shape[1] == 1:
        return _bars(words, values[:, 0], names[0])
    if values.shape[1] > 2:
        return _table(words, values, names)
    groups = np.zeros(len(words), dtype=np.int64)
    panel = _labelled(words, values.astype(np.float64), groups, [False] * len(words), names, spokes=False)
    for line in (panel.axhline, panel.axvline):
        line(0, color=FAINT, linewidth=0.8, zorder=1)
    return panel.figure


def _labelled(
    words: Sequence[str],
    points: NDArray[np.float64],
    groups: NDArray[np.int64],
    bold: Sequence[bool],
    names: Sequence[str],
    *,
    spokes: bool,
) -> Any:
    """A panel with a mark and a name for each point; it grows until no name covers another or a mark."""
    spans = np.ptp(points, axis=0)
    height = _WIDTH * np.clip(spans[1] / spans[0] if spans[0] > 0 else 1.0, 0.5, 0.9)
    for scale, lines_may_cross in [*((s, False) for s in _GROWTH), *((s, True) for s in _GROWTH_THEN)]:
        panel = new_panel((_WIDTH * scale, height * scale), (0.65, 0.6, 0.2, 0.2))
        _marks(panel, points, groups, bold, names, spokes=spokes)
        last = lines_may_cross and scale == _GROWTH_THEN[-1]
        if name_points(panel, words, points, bold, lines_may_cross=lines_may_cross, at_any_price=last):
            break
    return panel


def _marks(
    panel: Any,
    points: NDArray[np.float64],
    groups: NDArray[np.int64],
    bold: Sequence[bool],
    names: Sequence[str],
    *,
    spokes: bool,
) -> None:
    same_scale(panel, points)
    panel.grid(color=GRID, linewidth=0.6)
    panel.set_xlabel(names[0], fontsize=FONT, color=INK, parse_math=False)
    panel.set_ylabel(names[1], fontsize=FONT, color=INK, parse_math=False)
    for i, (point, group) in enumerate(zip(points, groups.tolist(), strict=True)):
        colour, mark = COLOURS[group % len(COLOURS)], MARKS[group % len(MARKS)]
        if spokes and not bold[i]:  # rows of words asked about stand first, in the order of the groups
            (x0, y0), (x1, y1) = points[group], point
            panel.plot([x0, x1], [y0, y1], color=colour, alpha=0.3, linewidth=0.8, zorder=2)
        panel.plot(
            [point[0]],
            [point[1]],
            marker=mark,
            markersize=2 * mark_radius(bold[i]),
            color=colour,
            markeredgecolor="white",
            markeredgewidth=0.6,
            linestyle="none",
            zorder=3 if bold[i] else 4,  # a large mark does not hide a small one
        )


def _number(value: float) -> str:
    return f"{value:.2f}".replace("-", "\N{MINUS SIGN}")


def _bars(words: Sequence[str], values: NDArray[np.float32], name: str) -> Any:
    """A bar for each word, the largest value on top."""
    order = np.argsort(values, kind="stable")
    left = 0.35 + max(map(breadth, map(shown, words)))
    panel = new_panel((left + 5.0, 1.0 + 0.27 * len(words)), (left, 0.6, 0.55, 0.2))
    places = np.arange(len(words))
    colours = [COLOURS[1] if value < 0 else COLOURS[0] for value in values[order]]
    panel.barh(places, values[order], height=0.62, color=colours)
    panel.axvline(0, color=FAINT, linewidth=0.8)
    panel.grid(axis="x", color=GRID, linewidth=0.6)
    panel.set_yticks(places, [shown(words[i]) for i in order], fontsize=FONT, color=INK, parse_math=False)
    panel.set_xlabel(name, fontsize=FONT, color=INK, parse_math=False)
    most = float(np.abs(values).max()) * 1.25 or 1.0
    panel.set_xlim(-most if values.min() < 0 else 0, most if values.max() > 0 else 0)
    panel.set_ylim(-0.6, len(words) - 0.4)
    for place, value in zip(places, values[order].tolist(), strict=True):
        panel.annotate(
            _number(value),
            (value, place),
            xytext=(3 if value >= 0 else -3, 0),
            textcoords="offset points",
            ha="left" if value >= 0 else "right",
            va="center",
            fontsize=FONT - 2,
            color=INK,
        )
    return panel.figure


def _table(words: Sequence[str], values: NDArray[np.float32], names: Sequence[str]) -> Any:
    """Words down, axes across, each value written on its colour."""
    left = 0.35 + max(map(breadth, map(shown, words)))
    longest = max(map(breadth, names))  # inches, at an angle of 30 degrees
    top, right = 0.3 + 0.5 * longest, max(0.3, 0.87 * longest - 0.3)
    size = (left + 0.85 * len(names) + right, top + 0.32 * len(words) + 0.15)
    panel = new_panel(size, (left, 0.15, right, top))
    most = float(np.abs(values).max()) or 1.0
    # from red over white to blue, which colour-blind people tell apart
    panel.imshow(values, cmap="RdBu", vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
    panel.xaxis.tick_top()
    style = {"fontsize": FONT, "color": INK, "parse_math": False}
    panel.set_xticks(range(len(names)), names, rotation=30, ha="left", rotation_mode="anchor", **style)
    panel.set_yticks(range(len(words)), [shown(word) for word in words], **style)
    for (row, column), value in np.ndenumerate(values):
        light = abs(value) > 0.65 * most
        panel.text(
            column,
            row,
            _number(float(value)),
            ha="center",
            va="center",
            fontsize=FONT - 1,
            color="white" if light else INK,
        )
    return panel.figure
