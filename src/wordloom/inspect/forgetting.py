"""Plot the score of runs on a new task against their loss on the old task."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.inspect.figures import name_points, new_panel, save_figure

__all__ = ["draw_forgetting", "forgetting_figure"]

_FONT = 9.0  # points
_MARKS = "oD^sP"
_COLOURS = ("#444444", "#1b6ca8", "#2a9d8f", "#c8553d", "#8a5a9e")
_ROOM = 0.14  # margin around all points for their names, as a share of their span
_LEFT, _BELOW, _RIGHT, _ABOVE = 0.75, 0.65, 2.65, 0.3  # margins in inches


def draw_forgetting(
    path: str | os.PathLike[str], runs: Sequence[Any], remedies: Sequence[str], *, title: str = ""
) -> None:
    """Draw each run's loss on the old task against its score on the new task into a .png, .svg or .pdf file.

    If all runs started from one checkpoint, the figure shows the increase of the loss over the checkpoint's.
    The scale is linear around zero and logarithmic farther away, because remedies differ by hundredths of a
    nat, and fine-tuning with a high learning rate forgets several nats.

    Args:
        path: the file to write.
        runs: :class:`wordloom.run.sweep.forgetting.Forgetting`; a line joins the runs of one remedy.
        remedies: names of the remedies, in the order of their colours.
        title: the title of the figure.

    Raises as :func:`wordloom.inspect.draw_map`.
    """
    save_figure(
        lambda: forgetting_figure(runs, remedies, title),
        [title, *remedies, *(run.label for run in runs)],
        path,
    )


def forgetting_figure(runs: Sequence[Any], remedies: Sequence[str], title: str = "") -> Any:
    """Return the figure that :func:`draw_forgetting` saves."""
    panel = new_panel((7.6, 4.6), (_LEFT, _BELOW, _RIGHT, _ABOVE))
    # a run from scratch did not start from the checkpoint
    before = sorted({run.before for run in runs if run.remedy != remedies[-1]})
    origin = before[0] if len(before) == 1 else 0.0
    points = np.array([(run.score, run.after - origin) for run in runs])
    before = [loss - origin for loss in before]
    losses = np.concatenate([points[:, 1], before])
    panel.set_xlim(*_with_room(points[:, 0]))
    if origin:
        linear = _linear_limit(points[:, 1])
        low, high = _with_room(np.arcsinh(losses / linear))
        panel.set_yscale("asinh", linear_width=linear)
        panel.set_ylim(linear * np.sinh(low), linear * np.sinh(high))
        low, high = panel.get_ylim()
        ticks = _ticks(low, high, linear)
        panel.set_yticks(ticks, [f"{tick:+g}" if tick else "0" for tick in ticks])
        panel.minorticks_off()
    else:
        panel.set_ylim(*_with_room(losses))
    colours = {remedy: _COLOURS[at % len(_COLOURS)] for at, remedy in enumerate(remedies)}
    for at, (remedy, colour) in enumerate(colours.items()):
        remedied = [(run.score, run.after - origin) for run in runs if run.remedy == remedy]
        if remedied:
            panel.plot(*zip(*remedied, strict=True), color=colour, linewidth=0.8, alpha=0.45, zorder=1)
            looks = {"color": colour, "linestyle": "none", "markersize": 6.5, "zorder": 3}
            looks |= {"markeredgecolor": "white", "markeredgewidth": 0.6}
            panel.plot(*zip(*remedied, strict=True), marker=_MARKS[at % len(_MARKS)], label=remedy, **looks)
    for number, loss in enumerate(before):
        label = None if number else "checkpoint before training" + (f": {origin:.3f}" if origin else "")
        panel.axhline(loss, color="#888888", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1, label=label)
    labels = [run.label for run in runs]
    name_points(panel, labels, points, [False] * len(runs), lines_may_cross=True, overlap=True)
    for text, run in zip(panel.texts, runs, strict=True):
        text.set_color(colours[run.remedy])
        text.set_fontsize(_FONT - 0.5)
    metric = runs[0].metric.replace("_", " ")
    panel.set_xlabel(f"new task: {metric}", fontsize=_FONT + 1)
    measure = "loss above the checkpoint's (nats)" if origin else "loss (nats), lower is better"
    panel.set_ylabel(f"old task: {measure}", fontsize=_FONT + 1)
    panel.tick_params(labelsize=_FONT, colors="#333333")
    panel.grid(color="#ececec", linewidth=0.7)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    panel.legend(
        frameon=False, fontsize=_FONT, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0
    )
    if title:
        panel.set_title(title, fontsize=_FONT + 1)
    return panel.figure


def _with_room(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return limits with room for names around ``values``."""
    low, high = float(values.min()), float(values.max())
    room = _ROOM * (high - low) or 0.02 * abs(high) or 1.0
    return low - room, high + room


def _linear_limit(changes: NDArray[np.float64]) -> float:
    """Return where the linear scale ends: at the smallest change, but at least 1/1000 of the largest."""
    sizes = np.abs(changes[changes != 0])
    return float(max(sizes.min(), sizes.max() / 1000)) if sizes.size else 1.0


def _ticks(low: float, high: float, linear: float) -> list[float]:
    """Return ticks at 0 and, from ``linear`` on, at 1 and 3 times powers of ten on both sides."""
    powers = range(math.floor(math.log10(linear)), math.ceil(math.log10(max(-low, high, linear))) + 1)
    sizes = [factor * 10.0**power for power in powers for factor in (1, 3)]
    ticks = [0.0, *(sign * size for size in sizes if size >= linear / 2 for sign in (1, -1))]
    return sorted(tick for tick in ticks if low <= tick <= high)
