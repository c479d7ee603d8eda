"""Plot clusters of texts in the plane."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import DataError, did_you_mean
from wordloom.inspect import figures
from wordloom.vectors.use.maps import neighbour_embedding, principal_components

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
