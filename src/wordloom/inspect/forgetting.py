"""A picture of what runs have learnt of a new task, and what they have forgotten of the old one."""

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
_ROOM = 0.14  # of the spans, around all points, for their names
_LEFT, _BELOW, _RIGHT, _ABOVE = 0.75, 0.65, 2.65, 0.3  # inches


def draw_forgetting(
    path: str | os.PathLike[str], runs: Sequence[Any], remedies: Sequence[str], *, title: str = ""
) -> None:
    """Draw into a .png, .svg or .pdf file the old task's loss of each run against its score on the new one.

    Where all began with one checkpoint, it is the loss above that checkpoint's, on a scale that is even
    around zero and of powers farther off: between remedies lie hundredths, where fine-tuning at a high rate
    forgets whole nats.

    Args:
        path: the file.
        runs: :class:`wordloom.run.sweep.forgetting.Forgetting`; those of one remedy are joined in order.
        remedies: in the order in which they have their colours.
        title: stands above.

    Raises as :func:`wordloom.inspect.draw_map`.
    """
    save_figure(
        lambda: forgetting_figure(runs, remedies, title),
        [title, *remedies, *(run.label for run in runs)],
        path,
    )


def forgetting_figure(runs: Sequence[Any], remedies: Sequence[str], title: str = "") -> Any:
    """The figure that :func:`draw_forgetting` saves."""
    panel = new_panel((7.6, 4.6), (_LEFT, _BELOW, _RIGHT, _ABOVE))
    # one that was trained from scratch knew nothing of the old task
    before = sorted({run.before for run in runs if run.remedy != remedies[-1]})
    origin = before[0] if len(before) == 1 else 0.0
    points = np.array([(run.score, run.after - origin) for run in runs])
    before = [loss - origin for loss in before]
    every = np.concatenate([points[:, 1], before])
    panel.set_xlim(*_with_room(points[:, 0]))
    if origin:
        even = _even_around_zero(points[:, 1])
        low, high = _with_room(np.arcsinh(every / even))
        panel.set_yscale("asinh", linear_width=even)
        panel.set_ylim(even * np.sinh(low), even * np.sinh(high))
        low, high = panel.get_ylim()
        ticks = _ticks(low, high, even)
        panel.set_yticks(ticks, [f"{tick:+g}" if tick else "0" for tick in ticks])
        panel.minorticks_off()
    else:
        panel.set_ylim(*_with_room(every))
    colours = {remedy: _COLOURS[at % len(_COLOURS)] for at, remedy in enumerate(remedies)}
    for at, (remedy, colour) in enumerate(colours.items()):
        its = [(run.score, run.after - origin) for run in runs if run.remedy == remedy]
        if its:
            panel.plot(*zip(*its, strict=True), color=colour, linewidth=0.8, alpha=0.45, zorder=1)
            looks = {"color": colour, "linestyle": "none", "markersize": 6.5, "zorder": 3}
            looks |= {"markeredgecolor": "white", "markeredgewidth": 0.6}
            panel.plot(*zip(*its, strict=True), marker=_MARKS[at % len(_MARKS)], label=remedy, **looks)
    for number, loss in enumerate(before):
        label = None if number else "the checkpoint, before" + (f": {origin:.3f}" if origin else "")
        panel.axhline(loss, color="#888888", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1, label=label)
    name_points(
        panel,
        [run.label for run in runs],
        points,
        [False] * len(runs),
        lines_may_cross=True,
        at_any_price=True,
    )
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
    """Limits with room for names around ``values``."""
    low, high = float(values.min()), float(values.max())
    room = _ROOM * (high - low) or 0.02 * abs(high) or 1.0
    return low - room, high + room


def _even_around_zero(changes: NDArray[np.float64]) -> float:
    """How far from zero the scale is even: up to the smallest change, but a thousandth of the largest."""
    sizes = np.abs(changes[changes != 0])
    return float(max(sizes.min(), sizes.max() / 1000)) if sizes.size else 1.0


def _ticks(low: float, high: float, even: float) -> list[float]:
    """0, and 1 and 3 times powers of ten on both sides, from ``even`` on."""
    powers = range(math.floor(math.log10(even)), math.ceil(math.log10(max(-low, high, even))) + 1)
    sizes = [factor * 10.0**power for power in powers for factor in (1, 3)]
    some = [0.0, *(sign * size for size in sizes if size >= even / 2 for sign in (1, -1))]
    return sorted(tick for tick in some if low <= tick <= high)
