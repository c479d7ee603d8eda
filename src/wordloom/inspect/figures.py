"""The style of all figures, how they are saved, and the labels of points.

Figures use matplotlib's default settings; a user's settings are neither read nor changed.  The colours are
Okabe and Ito's and some of Tol's, which colour-blind people can distinguish.  Each colour has its own marker,
so that a figure can be read in grey.

Words can be in any script: installed fonts supply characters that matplotlib's own font lacks.  In an .svg,
words stay text, which can be searched and is shown in the reader's own fonts.
"""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import VectorError, WordloomError, did_you_mean
from wordloom.inspect.fonts import cannot_be_drawn, fonts_for, without_font_warnings
from wordloom.inspect.labels import leader_line, place_labels
from wordloom.vectors.whole_files import new_file

_log = logging.getLogger(__name__)

FORMATS = (".png", ".svg", ".pdf")

COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00",
    "#56B4E9", "#332288", "#882255", "#999933", "#666666",
)  # fmt: skip
MARKS = ("o", "s", "^", "D", "v", "P", "X")  # 7 and 10 have no common factor: 70 pairs of marker and colour
MOST_TOKENS = 128  # columns of a figure
SHADES = " ░▒▓█"  # for matrices as text
INK, FAINT, GRID = "#1a1a1a", "#8c8c8c", "#e3e3e3"
ADDS, TAKES = "#D55E00", "#0072B2"  # warm colours add to a score and cold ones take from it, as in RdBu_r
FONT = 9.0  # points
NAME: dict[str, Any] = {"fontsize": FONT, "color": INK, "parse_math": False}  # the style of names of axes
_DPI = 200
_MOST_PIXELS = 65_535  # of a side, in matplotlib
_NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # no file of XML may hold these
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "wordloom", "path.simplify": True}


def check_format(path: str | os.PathLike[str]) -> str:
    """Return the ending of ``path``; raise VectorError if it names no format that can be drawn."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise VectorError(
            f"'{path}' has no ending that names a picture format; {did_you_mean(suffix or 'none', FORMATS)}"
        )
    return suffix


def save_figure(make: Callable[[], Any], texts: Sequence[str], path: str | os.PathLike[str]) -> None:
    """Save the figure that ``make`` returns in the format that the ending of ``path`` names.

    If no installed font has a character of ``texts``, one warning names it and says what to install.
    """
    suffix = check_format(path)
    load_matplotlib()  # report that it is missing before a file is made
    with new_file(Path(path)) as file:
        drawn_figure(make, texts, file, suffix)


def drawn_figure(make: Callable[[], Any], texts: Sequence[str], file: IO[bytes], suffix: str) -> None:
    """Write the figure that ``make`` returns into an open file; ``suffix`` is one of FORMATS."""
    matplotlib = load_matplotlib()
    with matplotlib.rc_context(), without_font_warnings():
        matplotlib.rcdefaults()  # ignore the user's style sheet
        fonts, missing = fonts_for(texts)
        matplotlib.rcParams.update(_SETTINGS | {"font.family": ["sans-serif", *fonts]})
        if missing and suffix != ".svg":
            _log.warning(cannot_be_drawn(missing, texts))
        figure = make()
        if suffix == ".svg":
            _keep_text(figure)
        # without a date, equal figures give equal files
        metadata = {".png": None, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[suffix]
        if suffix != ".svg":
            figure.savefig(file, format=suffix[1:], dpi=_DPI, metadata=metadata)
            return
        drawing = io.StringIO()
        figure.savefig(drawing, format="svg", dpi=_DPI, metadata=metadata)
        file.write(_NOT_XML.sub(_code, drawing.getvalue()).encode())


def _code(found: re.Match[str]) -> str:
    return f"\\x{ord(found[0]):02x}"


def _keep_text(figure: Any) -> None:
    """Replace white outlines of letters by a box, because an .svg would store outlined letters as paths."""
    from matplotlib.text import Text

    for text in figure.findobj(lambda artist: isinstance(artist, Text) and artist.get_path_effects()):
        text.set_path_effects([])
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.0})


def load_matplotlib() -> Any:
    """Return the module matplotlib; raise WordloomError if it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise WordloomError("drawing needs matplotlib: pip install matplotlib") from None
    return matplotlib


def new_figure(size: tuple[float, float], **settings: Any) -> Any:
    """Return an empty figure of ``size`` inches; by default it arranges its parts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, facecolor="white", **(settings or {"layout": "constrained"}))
    FigureCanvasAgg(figure)
    return figure


def check_tokens(n: int) -> None:
    """Raise WordloomError if a figure with a column for each of ``n`` tokens would be too wide to read."""
    if n > MOST_TOKENS:
        raise WordloomError(
            f"the picture has a column for each token, and {n:,} tokens are too many; draw a text of at most "
            f"{MOST_TOKENS}"
        )


def check_size(size: tuple[float, float], advice: str) -> None:
    """Raise WordloomError with ``advice`` if matplotlib cannot draw a figure of ``size`` inches."""
    width, height = (int(_DPI * side) for side in size)
    if max(width, height) > _MOST_PIXELS:
        raise WordloomError(
            f"the picture would have {width:,} × {height:,} pixels, and a side has at most {_MOST_PIXELS:,}; "
            f"{advice}"
        )


def plain(name: str) -> str:
    """Return ``name`` for a label in which matplotlib reads mathematics between dollar signs."""
    return name.replace("$", r"\$")


def add_colour_bar(panels: Any, image: Any, label: str, size: float) -> Any:
    """Add a colour bar for ``image`` beside a panel or a grid of them, and give each a grey frame.

    Returns the bar.
    """
    every = list(getattr(panels, "flat", [panels]))
    for panel in every:
        for side in panel.spines.values():
            side.set_color(FAINT)
    bar = image.figure.colorbar(image, ax=every, shrink=0.6, pad=0.02)
    bar.set_label(label, fontsize=size, parse_math=False)
    bar.ax.tick_params(labelsize=size - 1)
    bar.outline.set_visible(False)
    return bar


def hide_frame(panel: Any) -> None:
    """Hide the frame of ``panel`` above and on the right."""
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def axis_labels(explained: tuple[float, float] | None, points: str) -> tuple[str, str]:
    """Return the labels of a plane: two principal components, or t-SNE where ``explained`` is None."""
    if explained is None:
        return f"t-SNE: similar {points} are near; distance and direction have no meaning", ""
    across, up = explained
    component = "{} principal component ({:.0%}{})"
    return component.format("first", across, " of the variance"), component.format("second", up, "")


def new_panel(size: tuple[float, float], margins: tuple[float, float, float, float]) -> Any:
    """Return the panel of a new figure; ``size`` and margins (left, bottom, right, top) are in inches."""
    (width, height), (left, bottom, right, top) = size, margins
    panel = new_figure(size, dpi=_DPI).add_axes(
        (left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height)
    )
    panel.set_axisbelow(True)
    panel.tick_params(colors=FAINT, labelsize=FONT - 2, length=0)
    for side in panel.spines.values():
        side.set_color(GRID)
    return panel


def series(i: int) -> dict[str, Any]:
    """Return the marker and the colour of series ``i``."""
    return {"marker": MARKS[i % len(MARKS)], "color": COLOURS[i % len(COLOURS)]}


def mark_radius(bold: bool) -> float:
    """Return the radius of a marker in points (1/72 inch)."""
    return 4.5 if bold else 3.0


def fit_plane(panel: Any, points: NDArray[np.float64], names: Sequence[str], *, ticks: bool = True) -> None:
    """Set the names of both axes, and limits around all points with one scale."""
    panel.grid(color=GRID, linewidth=0.6)
    panel.set_xlabel(names[0], **NAME)
    panel.set_ylabel(names[1], **NAME)
    if not ticks:
        panel.set_xticks([])
        panel.set_yticks([])
    box = panel.get_window_extent()
    middle = (points.min(axis=0) + points.max(axis=0)) / 2
    spans = np.ptp(points, axis=0)
    step = max(spans[0] / box.width, spans[1] / box.height) * 1.2 or 1.0 / box.width
    for set_limits, centre, pixels in zip(
        (panel.set_xlim, panel.set_ylim), middle, (box.width, box.height), strict=True
    ):
        set_limits(centre - step * pixels / 2, centre + step * pixels / 2)


def name_points(
    panel: Any,
    words: Sequence[str],
    points: NDArray[np.float64],
    bold: Sequence[bool],
    *,
    lines_may_cross: bool,
    overlap: bool,
) -> bool:
    """Write the names of points; return False if they have no room.

    With ``overlap``, names without room are written over one another.
    """
    from matplotlib.patheffects import withStroke

    renderer, pixels = panel.figure.canvas.get_renderer(), _DPI / 72
    pixel_points = panel.transData.transform(points)  # [n, 2]
    texts = [
        panel.annotate(
            shown(word), xy=point, xytext=(0, 0), textcoords="offset points", ha="left", va="bottom",
            fontsize=FONT + 1 if strong else FONT, fontweight="bold" if strong else "normal", color=INK,
            parse_math=False, path_effects=[withStroke(linewidth=1.5, foreground="white")], zorder=5,
        )
        for word, point, strong in zip(words, points, bold, strict=True)
    ]  # fmt: skip
    extents = [text.get_window_extent(renderer) for text in texts]
    sizes = np.array([(extent.width, extent.height) for extent in extents])
    radii = np.array([mark_radius(strong) * pixels for strong in bold])
    box = panel.get_window_extent()
    area = (box.x0 + 4, box.y0 + 4, box.x1 - 4, box.y1 - 4)
    corners = place_labels(pixel_points, sizes, radii, area, lines_may_cross=lines_may_cross)
    if corners is None and not overlap:
        return False
    corners = pixel_points + radii[:, None] if corners is None else corners
    for text, corner, point, size in zip(texts, corners, pixel_points, sizes, strict=True):
        text.set_position((corner - point) / pixels)
        line = leader_line(np.concatenate([corner, corner + size]), point, size[1])
        if line is not None:
            ends = panel.transData.inverted().transform(line)
            panel.plot(*ends.T, color=FAINT, linewidth=0.5, zorder=2)
    return True


def shown(word: str) -> str:
    """Return ``word``, in quotes if it begins or ends with white space."""
    return repr(word) if word != word.strip() else word
