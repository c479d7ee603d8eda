"""Pictures of words: a map of them and their neighbours, and where they lie on named directions.

Drawn with matplotlib, whose settings are neither used nor changed.  The colours are Okabe and Ito's, which
colour-blind people tell apart, and each comes with a mark of its own, so that a print in grey can be read.

Words in any script: what matplotlib's own font lacks comes from fonts that are installed.  In an .svg words
stay text, which can be searched for and is shown in its reader's own fonts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError, WordloomError, did_you_mean
from wordloom.inspect.fonts import breadth, cannot_be_drawn, fonts_for, without_remarks
from wordloom.inspect.labels import leads, place_labels
from wordloom.vectors.files.whole_files import new_file
from wordloom.vectors.use.maps import WordMap

__all__ = ["FORMATS", "axes_figure", "draw_axes", "draw_map", "map_figure"]

_log = logging.getLogger(__name__)

FORMATS = (".png", ".svg", ".pdf")

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKS = ("o", "s", "^", "D", "v", "P", "X")  # one more than colours: 42 pairs
_INK, _FAINT, _GRID = "#1a1a1a", "#8c8c8c", "#e3e3e3"
_FONT = 9.0  # points
_DPI = 200
_WIDTH = 7.5  # inches; a figure grows until there is room for every name
_GROWTH = (1.0, 1.2, 1.4, 1.6)  # as long as no line may cross a name
_GROWTH_THEN = (1.4, 1.6, 1.9, 2.3, 2.8, 3.4, 4.2, 5.0)  # when lines may
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "wordloom", "path.simplify": True}


def draw_map(word_map: WordMap, path: str | os.PathLike[str]) -> None:
    """Draw a map of words into a .png, .svg or .pdf file, which appears when it is complete.

    What no font here can draw is a box, and told by a warning in the log.

    Raises VectorError for another ending or a place that cannot be written, WordloomError without matplotlib.
    """
    _save(lambda: map_figure(word_map), word_map.words, path)


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
    _save(lambda: axes_figure(words, values, names), [*words, *names], path)


def check_format(path: str | os.PathLike[str]) -> str:
    """The ending of ``path``; raises VectorError for one that cannot be drawn."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise VectorError(
            f"'{path}' does not say by its ending how to draw; {did_you_mean(suffix or 'none', FORMATS)}"
        )
    return suffix


def _save(make: Any, texts: Sequence[str], path: str | os.PathLike[str]) -> None:
    suffix = check_format(path)
    matplotlib = _matplotlib()
    with matplotlib.rc_context(), without_remarks():
        matplotlib.rcdefaults()  # a user's style sheet is not ours to draw with
        fonts, missing = fonts_for(texts)
        matplotlib.rcParams.update(_SETTINGS | {"font.family": ["sans-serif", *fonts]})
        if missing and suffix != ".svg":
            _log.warning(cannot_be_drawn(missing, texts))
        figure = make()
        if suffix == ".svg":
            _keep_text(figure)
        # without a date, equal pictures are equal files
        metadata = {".png": None, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[suffix]
        with new_file(Path(path)) as file:
            figure.savefig(file, format=suffix[1:], dpi=_DPI, metadata=metadata)


def _keep_text(figure: Any) -> None:
    """White around letters would make outlines of them in an .svg; there it is a box behind each name."""
    from matplotlib.text import Text

    for text in figure.findobj(lambda artist: isinstance(artist, Text) and artist.get_path_effects()):
        text.set_path_effects([])
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.0})


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise WordloomError("drawing needs matplotlib: pip install 'wordloom[plots]'") from None
    return matplotlib


def _panel(size: tuple[float, float], margins: tuple[float, float, float, float]) -> Any:
    """The one panel of a new figure; ``size`` and margins (left, bottom, right, top) in inches."""
    _matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    (width, height), (left, bottom, right, top) = size, margins
    panel = figure.add_axes(
        (left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height)
    )
    panel.set_axisbelow(True)
    panel.tick_params(colors=_FAINT, labelsize=_FONT - 2, length=0)
    for side in panel.spines.values():
        side.set_color(_GRID)
    return panel


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
        line(0, color=_FAINT, linewidth=0.8, zorder=1)
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
        panel = _panel((_WIDTH * scale, height * scale), (0.65, 0.6, 0.2, 0.2))
        _marks(panel, points, groups, bold, names, spokes=spokes)
        last = lines_may_cross and scale == _GROWTH_THEN[-1]
        if _named(panel, words, points, bold, lines_may_cross=lines_may_cross, at_any_price=last):
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
    _same_scale(panel, points)
    panel.grid(color=_GRID, linewidth=0.6)
    panel.set_xlabel(names[0], fontsize=_FONT, color=_INK, parse_math=False)
    panel.set_ylabel(names[1], fontsize=_FONT, color=_INK, parse_math=False)
    for i, (point, group) in enumerate(zip(points, groups.tolist(), strict=True)):
        colour, mark = _COLOURS[group % len(_COLOURS)], _MARKS[group % len(_MARKS)]
        if spokes and not bold[i]:  # rows of words asked about stand first, in the order of the groups
            (x0, y0), (x1, y1) = points[group], point
            panel.plot([x0, x1], [y0, y1], color=colour, alpha=0.3, linewidth=0.8, zorder=2)
        panel.plot(
            [point[0]],
            [point[1]],
            marker=mark,
            markersize=2 * _radius(bold[i]),
            color=colour,
            markeredgecolor="white",
            markeredgewidth=0.6,
            linestyle="none",
            zorder=3,
        )


def _radius(bold: bool) -> float:
    """Points (1/72 inch) from the middle of a mark to its edge."""
    return 4.5 if bold else 3.0


def _same_scale(panel: Any, points: NDArray[np.float64]) -> None:
    """Limits that hold all points with some room, a step across being as long as one up."""
    box = panel.get_window_extent()
    middle = (points.min(axis=0) + points.max(axis=0)) / 2
    spans = np.ptp(points, axis=0)
    step = max(spans[0] / box.width, spans[1] / box.height) * 1.2 or 1.0 / box.width
    for set_limits, centre, pixels in zip(
        (panel.set_xlim, panel.set_ylim), middle, (box.width, box.height), strict=True
    ):
        set_limits(centre - step * pixels / 2, centre + step * pixels / 2)


def _named(
    panel: Any,
    words: Sequence[str],
    points: NDArray[np.float64],
    bold: Sequence[bool],
    *,
    lines_may_cross: bool,
    at_any_price: bool,
) -> bool:
    """Write the names, or return False where they have no room: ``at_any_price`` one on another then."""
    from matplotlib.patheffects import withStroke

    renderer, pixels = panel.figure.canvas.get_renderer(), _DPI / 72
    at = panel.transData.transform(points)
    texts = [
        panel.annotate(
            _shown(word),
            xy=point,
            xytext=(0, 0),
            textcoords="offset points",
            ha="left",
            va="bottom",
            fontsize=_FONT + 1 if strong else _FONT,
            fontweight="bold" if strong else "normal",
            color=_INK,
            parse_math=False,
            path_effects=[withStroke(linewidth=1.5, foreground="white")],
            zorder=5,
        )
        for word, point, strong in zip(words, points, bold, strict=True)
    ]
    extents = [text.get_window_extent(renderer) for text in texts]
    sizes = np.array([(extent.width, extent.height) for extent in extents])
    radii = np.array([_radius(strong) * pixels for strong in bold])
    box = panel.get_window_extent()
    area = (box.x0 + 4, box.y0 + 4, box.x1 - 4, box.y1 - 4)
    corners = place_labels(at, sizes, radii, area, lines_may_cross=lines_may_cross)
    if corners is None and not at_any_price:
        return False
    corners = at + radii[:, None] if corners is None else corners
    for text, corner, point, size in zip(texts, corners, at, sizes, strict=True):
        text.set_position((corner - point) / pixels)
        line = leads(np.concatenate([corner, corner + size]), point, size[1])
        if line is not None:
            ends = panel.transData.inverted().transform(line)
            panel.plot(*ends.T, color=_FAINT, linewidth=0.5, zorder=2)
    return True


def _shown(word: str) -> str:
    """A token that begins with a space is quoted, to be seen."""
    return repr(word) if word != word.strip() else word


def _number(value: float) -> str:
    return f"{value:.2f}".replace("-", "\N{MINUS SIGN}")


def _bars(words: Sequence[str], values: NDArray[np.float32], name: str) -> Any:
    """A bar for each word, the largest value on top."""
    order = np.argsort(values, kind="stable")
    left = 0.35 + max(map(breadth, map(_shown, words)))
    panel = _panel((left + 5.0, 1.0 + 0.27 * len(words)), (left, 0.6, 0.55, 0.2))
    places = np.arange(len(words))
    colours = [_COLOURS[1] if value < 0 else _COLOURS[0] for value in values[order]]
    panel.barh(places, values[order], height=0.62, color=colours)
    panel.axvline(0, color=_FAINT, linewidth=0.8)
    panel.grid(axis="x", color=_GRID, linewidth=0.6)
    panel.set_yticks(places, [_shown(words[i]) for i in order], fontsize=_FONT, color=_INK, parse_math=False)
    panel.set_xlabel(name, fontsize=_FONT, color=_INK, parse_math=False)
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
            fontsize=_FONT - 2,
            color=_INK,
        )
    return panel.figure


def _table(words: Sequence[str], values: NDArray[np.float32], names: Sequence[str]) -> Any:
    """Words down, axes across, each value written on its colour."""
    left = 0.35 + max(map(breadth, map(_shown, words)))
    longest = max(map(breadth, names))  # inches, at an angle of 30 degrees
    top, right = 0.3 + 0.5 * longest, max(0.3, 0.87 * longest - 0.3)
    size = (left + 0.85 * len(names) + right, top + 0.32 * len(words) + 0.15)
    panel = _panel(size, (left, 0.15, right, top))
    most = float(np.abs(values).max()) or 1.0
    # from red over white to blue, which colour-blind people tell apart
    panel.imshow(values, cmap="RdBu", vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
    panel.xaxis.tick_top()
    style = {"fontsize": _FONT, "color": _INK, "parse_math": False}
    panel.set_xticks(range(len(names)), names, rotation=30, ha="left", rotation_mode="anchor", **style)
    panel.set_yticks(range(len(words)), [_shown(word) for word in words], **style)
    for (row, column), value in np.ndenumerate(values):
        light = abs(value) > 0.65 * most
        panel.text(
            column,
            row,
            _number(float(value)),
            ha="center",
            va="center",
            fontsize=_FONT - 1,
            color="white" if light else _INK,
        )
    return panel.figure
