"""Plot words and texts: maps of words with their neighbours, words on named axes, and clusters of texts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import DataError, did_you_mean
from wordloom.inspect import figures
from wordloom.inspect.fonts import width_of
from wordloom.vectors.use.projections import WordMap, neighbour_embedding, principal_components

_WIDTH = 7.5  # inches; a figure grows until there is room for every name
_SCALES = (1.0, 1.2, 1.4, 1.6)  # tried while no line may cross a name
_SCALES_CROSSING = (1.4, 1.6, 1.9, 2.3, 2.8, 3.4, 4.2, 5.0)  # tried when lines may cross names


def draw_map(word_map: WordMap, path: str | os.PathLike[str]) -> None:
    """Draw a map of words into a .png, .svg or .pdf file, which is written atomically.

    A character that no installed font has is drawn as a box, and a warning names it.

    Raises VectorError for another ending or a file that cannot be written, WordloomError without matplotlib.
    """
    figures.save_figure(lambda: map_figure(word_map), word_map.words, path)


def draw_axes(
    words: Sequence[str], values: NDArray[np.float32], names: Sequence[str], path: str | os.PathLike[str]
) -> None:
    """Draw words on named axes into a .png, .svg or .pdf file, by :func:`wordloom.vectors.project`'s values.

    ``values`` holds the cosines [words, axes].  One axis is drawn as bars, two as a plane, and more as a
    table of colours.  Raises as :func:`draw_map`.
    """
    figures.save_figure(lambda: axes_figure(words, values, names), [*words, *names], path)


def map_figure(word_map: WordMap) -> Any:
    """Return the matplotlib figure of :func:`draw_map`; the words are texts of its panel."""
    names = figures.axis_labels(word_map.explained, "words")
    bold = [word in set(word_map.asked) for word in word_map.words]
    how = {"spokes": True, "ticks": word_map.explained is not None}
    return _labelled(word_map.words, word_map.points, word_map.groups, bold, names, **how).figure


def axes_figure(words: Sequence[str], values: NDArray[np.float32], names: Sequence[str]) -> Any:
    """Return the figure of :func:`draw_axes`."""
    if values.shape[1] == 1:
        return _bars(words, values[:, 0], names[0])
    if values.shape[1] > 2:
        return _table(words, values, names)
    groups = np.zeros(len(words), dtype=np.int64)
    panel = _labelled(words, values.astype(np.float64), groups, [False] * len(words), names)
    for line in (panel.axhline, panel.axvline):
        line(0, color=figures.FAINT, linewidth=0.8, zorder=1)
    return panel.figure


def _labelled(
    words: Sequence[str],
    points: NDArray[np.float64],
    groups: NDArray[np.int64],
    bold: Sequence[bool],
    names: Sequence[str],
    *,
    spokes: bool = False,
    ticks: bool = True,
) -> Any:
    """Return a panel with a marker and a name for each point, large enough that names cover nothing."""
    spans = np.ptp(points, axis=0)
    height = _WIDTH * np.clip(spans[1] / spans[0] if spans[0] > 0 else 1.0, 0.5, 0.9)
    for scale, lines_may_cross in [*((s, False) for s in _SCALES), *((s, True) for s in _SCALES_CROSSING)]:
        panel = figures.new_panel((_WIDTH * scale, height * scale), (0.65, 0.6, 0.2, 0.2))
        figures.fit_plane(panel, points, names, ticks=ticks)
        _marks(panel, points, groups, bold, spokes=spokes)
        last = lines_may_cross and scale == _SCALES_CROSSING[-1]
        if figures.name_points(panel, words, points, bold, lines_may_cross=lines_may_cross, overlap=last):
            break
    return panel


def _marks(
    panel: Any, points: NDArray[np.float64], groups: NDArray[np.int64], bold: Sequence[bool], *, spokes: bool
) -> None:
    for i, (point, group) in enumerate(zip(points, groups.tolist(), strict=True)):
        look = figures.series(group)
        if spokes and not bold[i]:  # the queried words are the first points, in the order of the groups
            (x0, y0), (x1, y1) = points[group], point
            panel.plot([x0, x1], [y0, y1], color=look["color"], alpha=0.3, linewidth=0.8, zorder=2)
        panel.plot(
            *point[:, None], **look, markersize=2 * figures.mark_radius(bold[i]), linestyle="none",
            markeredgecolor="white", markeredgewidth=0.6,
            zorder=3 if bold[i] else 4,  # small markers stand above large ones
        )  # fmt: skip


def _number(value: float) -> str:
    return f"{value:.2f}".replace("-", "\N{MINUS SIGN}")


def _bars(words: Sequence[str], values: NDArray[np.float32], name: str) -> Any:
    """Return a figure with a bar for each word, the largest value on top."""
    order = np.argsort(values, kind="stable")
    left = 0.35 + max(map(width_of, map(figures.shown, words)))
    panel = figures.new_panel((left + 5.0, 1.0 + 0.27 * len(words)), (left, 0.6, 0.55, 0.2))
    places = np.arange(len(words))
    colours = [figures.COLOURS[1] if value < 0 else figures.COLOURS[0] for value in values[order]]
    panel.barh(places, values[order], height=0.62, color=colours)
    panel.axvline(0, color=figures.FAINT, linewidth=0.8)
    panel.grid(axis="x", color=figures.GRID, linewidth=0.6)
    panel.set_yticks(places, [figures.shown(words[i]) for i in order], **figures.NAME)
    panel.set_xlabel(name, **figures.NAME)
    most = float(np.abs(values).max()) * 1.25 or 1.0
    panel.set_xlim(-most if values.min() < 0 else 0, most if values.max() > 0 else 0)
    panel.set_ylim(-0.6, len(words) - 0.4)
    for place, value in zip(places, values[order].tolist(), strict=True):
        right = value >= 0
        panel.annotate(
            _number(value), (value, place), xytext=(3 if right else -3, 0), textcoords="offset points",
            ha="left" if right else "right", va="center", fontsize=figures.FONT - 2, color=figures.INK,
        )  # fmt: skip
    return panel.figure


def _table(words: Sequence[str], values: NDArray[np.float32], names: Sequence[str]) -> Any:
    """Return a table with words down and axes across, with each value written on its colour."""
    left = 0.35 + max(map(width_of, map(figures.shown, words)))
    longest = max(map(width_of, names))  # inches; the names have an angle of 30 degrees
    top, right = 0.3 + 0.5 * longest, max(0.3, 0.87 * longest - 0.3)
    size = (left + 0.85 * len(names) + right, top + 0.32 * len(words) + 0.15)
    panel = figures.new_panel(size, (left, 0.15, right, top))
    most = float(np.abs(values).max()) or 1.0
    # red, white, blue: colour-blind people can distinguish them
    panel.imshow(values, cmap="RdBu", vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
    panel.xaxis.tick_top()
    slanted = {"rotation": 30, "ha": "left", "rotation_mode": "anchor"}
    panel.set_xticks(range(len(names)), names, **slanted, **figures.NAME)
    panel.set_yticks(range(len(words)), [figures.shown(word) for word in words], **figures.NAME)
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if abs(value) > 0.65 * most else figures.INK
        centred = {"ha": "center", "va": "center", "fontsize": figures.FONT - 1}
        panel.text(column, row, _number(float(value)), color=colour, **centred)
    return panel.figure


Plane = Literal["pca", "tsne"]
PLANES = ("pca", "tsne")

_MOST_TSNE = 5_000  # texts; t-SNE compares all pairs
_PANEL = 6.0  # inches
_LINE = 0.2  # height of a line of the list of clusters, in inches
_BREADTH = 3.6  # width of the list, in inches
_LONGEST = 44  # characters in a line of the list


def check_plane(plane: Plane, n: int) -> None:
    """Raise DataError if ``plane`` cannot take ``n`` texts, WordloomError without matplotlib."""
    figures.load_matplotlib()
    if plane not in PLANES:
        raise DataError(f"unknown plane {plane!r}; {did_you_mean(plane, PLANES)}")
    if plane == "tsne" and not 4 <= n <= _MOST_TSNE:
        raise DataError(f"t-SNE takes 4 to {_MOST_TSNE:,} texts, not {n:,}; take pca")


def draw_clusters(
    vectors: NDArray[Any],
    assigned: NDArray[np.int64],
    words: Sequence[Sequence[str]],
    path: str | os.PathLike[str],
    *,
    plane: Plane = "pca",
    seed: int = 0,
) -> None:
    """Draw N texts into a .png, .svg or .pdf file, with a marker for each text and a list of the clusters.

    Markers have the colour and form of their cluster.  A large marker with the cluster's number stands at the
    median of its texts.

    Args:
        vectors: [N, D], one vector for each text.
        assigned: [N], the cluster of each text from 0; the figure counts from 1.
        words: the words that name each of the K clusters in the list.
        plane: ``pca`` keeps the two directions along which the vectors vary most; ``tsne`` keeps neighbours
            by cosine together, at distances that have no meaning.
        seed: the seed of ``tsne``.

    Raises DataError as :func:`check_plane`, and as :func:`wordloom.inspect.draw_map`.
    """
    check_plane(plane, len(vectors))
    names = [word for some in words for word in some]
    figures.save_figure(lambda: cluster_figure(vectors, assigned, words, plane=plane, seed=seed), names, path)


def cluster_figure(
    vectors: NDArray[Any],
    assigned: NDArray[np.int64],
    words: Sequence[Sequence[str]],
    *,
    plane: Plane = "pca",
    seed: int = 0,
) -> Any:
    """Return the figure that :func:`draw_clusters` saves."""
    from matplotlib.lines import Line2D

    points, axes = _points(np.asarray(vectors, np.float64), plane, seed)
    K = len(words)
    height = max(_PANEL, K * _LINE + 1.0)
    panel = figures.new_panel((_PANEL + _BREADTH, height), (0.65, 0.6, _BREADTH, 0.2))
    figures.fit_plane(panel, points, axes, ticks=plane != "tsne")
    size = float(np.clip(110 / np.sqrt(len(points)), 2.5, 6.0))  # many texts get small markers
    sizes = np.bincount(assigned, minlength=K)
    looks = [figures.series(i) for i in range(K)]
    small: dict[str, Any] = {"linestyle": "none", "markeredgewidth": 0}
    handles = [Line2D([], [], markersize=6, **small, **look) for look in looks]
    middles = []
    for cluster, look in enumerate(looks):
        members = points[assigned == cluster]
        panel.plot(*members.T, zorder=2, markersize=size, alpha=0.6, **small, **look)
        middles.append(np.median(members, axis=0))
    large = {"markersize": 2 * figures.mark_radius(True), "markeredgecolor": figures.INK}
    for middle, look in zip(middles, looks, strict=True):
        panel.plot(*middle, zorder=4, **large, **look)
    numbers = [str(cluster + 1) for cluster in range(K)]
    figures.name_points(panel, numbers, np.stack(middles), [True] * K, lines_may_cross=True, overlap=True)
    lines = [_line(i + 1, n, some) for i, (n, some) in enumerate(zip(sizes.tolist(), words, strict=True))]
    legend = panel.legend(
        handles, lines, title="cluster, texts: words", loc="upper left", bbox_to_anchor=(1.01, 1.0),
        fontsize=figures.FONT - 0.5, title_fontsize=figures.FONT - 0.5, labelcolor=figures.INK,
        frameon=False, alignment="left",
    )  # fmt: skip
    legend.get_title().set_color(figures.FAINT)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return panel.figure


def _points(x: NDArray[np.float64], plane: Plane, seed: int) -> tuple[NDArray[np.float64], tuple[str, str]]:
    if plane == "tsne":
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        units = np.divide(x, norms, out=np.zeros_like(x), where=norms > 0)
        return neighbour_embedding(units, seed), figures.axis_labels(None, "texts")
    points, explained = principal_components(x)
    return points, figures.axis_labels(explained, "texts")


def _line(number: int, n: int, words: Sequence[str]) -> str:
    """Return a line with ``number``, ``n`` and as many of ``words`` as fit."""
    line = f"{number}, {n:,}:"
    for i, word in enumerate(words):
        longer = f"{line}{',' if i else ''} {word}"
        if len(longer) > _LONGEST:
            break
        line = longer
    return line if words else line.rstrip(":")
