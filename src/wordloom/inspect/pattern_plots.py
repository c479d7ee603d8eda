"""Draw which keys the queries of each layer see (as figures 4 and 5 of Lin et al. 2021, arXiv:2106.04554)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.inspect import figures
from wordloom.models import body_config
from wordloom.nn.attention import Approximation, AttentionKind, Pattern

_PANEL, _NAME = 2.4, 1.3  # widths in inches, of a panel and of the name of a kind
_ACROSS = 4  # panels in a row


class LayerPattern(NamedTuple):
    """A kind of attention and the layers that have it, such as "layers 0 to 2"."""

    pattern: AttentionKind
    layers: str

    def kinds(self, n: int) -> NDArray[np.int64]:
        """Return [n, n]: the number from 1 of the first kind that lets query q see key k, 0 for none."""
        shown = np.zeros((n, n), np.int64)
        if isinstance(self.pattern, Approximation):
            return shown + self.pattern.mask(n).numpy()
        for number, kind in enumerate(self.pattern.kinds, 1):
            mask = Pattern((kind,), self.pattern.causal).mask(n).numpy()
            shown[mask & (shown == 0)] = number
        return shown


def layer_patterns(config: Any) -> list[LayerPattern]:
    """Return the patterns of the model of ``config``, each once, with the layers that have it.

    A model without attention by position has none.
    """
    body = body_config(config)
    sides = {"layer": getattr(body, "patterns", ())}
    if hasattr(body, "decoder_patterns"):
        sides = {"encoder layer": body.patterns, "decoder layer": body.decoder_patterns}
    found = []
    for side, patterns in sides.items():
        for pattern in dict.fromkeys(patterns):
            numbers = [layer for layer, each in enumerate(patterns) if each == pattern]
            found.append(LayerPattern(pattern, f"{side}{'s' * (len(numbers) > 1)} {_listed(numbers)}"))
    return found


def draw_patterns(path: Path, patterns: Sequence[LayerPattern], n: int) -> None:
    """Draw a panel for each of ``patterns`` over n tokens into ``path``: queries down, keys across.

    Each kind of a compound has its own colour.  Raises VectorError for a format that is not known.
    """
    figures.save_figure(lambda: patterns_figure(patterns, n), [], path)


def patterns_figure(patterns: Sequence[LayerPattern], n: int) -> Any:
    """Return the figure that :func:`draw_patterns` saves."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    names = list(dict.fromkeys(str(kind) for each in patterns for kind in each.pattern.kinds))
    colours = ["#ffffff", *_colours(len(names))]
    columns = min(_ACROSS, len(patterns))
    rows = math.ceil(len(patterns) / columns)
    width = _PANEL * columns + 0.3
    across = min(len(names), int(width / _NAME))  # names of kinds in a row
    size = (width, (_PANEL + 0.55) * rows + 0.25 * math.ceil(len(names) / across))
    figure = figures.new_figure(size)
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.flat[len(patterns) :]:
        panel.set_visible(False)
    for i, (panel, each) in enumerate(zip(panels.flat, patterns, strict=False)):
        number = np.array([0, *(1 + names.index(str(kind)) for kind in each.pattern.kinds)])
        cells = number[each.kinds(n)]
        palette = ListedColormap(colours[: len(names) + 1])
        edges = np.arange(n + 1) - 0.5
        panel.pcolormesh(
            edges, edges, cells, cmap=palette, vmin=0, vmax=len(names), edgecolors=figures.GRID, linewidth=0.4
        )
        panel.set_aspect("equal")
        panel.invert_yaxis()
        panel.set_xticks([])
        panel.set_yticks([])
        panel.set_title(each.layers, **figures.NAME)
        if i % columns == 0:
            panel.set_ylabel("query", **figures.NAME)
        if i + columns >= len(patterns):
            panel.set_xlabel("key", **figures.NAME)
    handles = [Patch(facecolor=colours[number], label=name) for number, name in enumerate(names, 1)]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=across, frameon=False, fontsize=figures.FONT
    )
    return figure


def _colours(n: int) -> list[str]:
    """Return ``n`` different colours: those of all figures, then lighter tints of them."""
    from matplotlib.colors import to_hex, to_rgb

    base = len(figures.COLOURS)
    rounds = math.ceil(n / base)
    colours = []
    for number in range(n):
        white = 0.7 * (number // base) / rounds  # share
        red, green, blue = (white + (1 - white) * part for part in to_rgb(figures.COLOURS[number % base]))
        colours.append(to_hex((red, green, blue)))
    return colours


def _listed(numbers: Sequence[int]) -> str:
    """Return numbers in words: "3", "0 to 2", "0, 4, 8"."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
