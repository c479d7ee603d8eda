"""A picture of what runs have learnt of a new task, and what they have forgotten of the old one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from wordloom.inspect.vector_plots import _named, _panel, _save

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

    Args:
        path: the file.
        runs: :class:`wordloom.run.forgetting.Forgetting`; those of one remedy are joined in their order.
        remedies: in the order in which they have their colours.
        title: stands above.

    Raises as :func:`wordloom.inspect.draw_map`.
    """
    _save(lambda: forgetting_figure(runs, remedies, title), [run.label for run in runs], path)


def forgetting_figure(runs: Sequence[Any], remedies: Sequence[str], title: str = "") -> Any:
    """The figure that :func:`draw_forgetting` saves."""
    panel = _panel((7.6, 4.6), (_LEFT, _BELOW, _RIGHT, _ABOVE))
    points = np.array([(run.score, run.after) for run in runs])
    before = sorted(
        {run.before for run in runs if run.remedy != remedies[-1]}
    )  # one that began afresh knew none
    every = np.concatenate([points[:, 1], before])
    for limits, low, high in (
        (panel.set_xlim, points[:, 0].min(), points[:, 0].max()),
        (panel.set_ylim, every.min(), every.max()),
    ):
        room = _ROOM * (high - low) or 0.02 * abs(high) or 1.0
        limits(low - room, high + room)
    colours = {remedy: _COLOURS[at % len(_COLOURS)] for at, remedy in enumerate(remedies)}
    for at, (remedy, colour) in enumerate(colours.items()):
        its = [(run.score, run.after) for run in runs if run.remedy == remedy]
        if its:
            panel.plot(*zip(*its, strict=True), color=colour, linewidth=0.8, alpha=0.45, zorder=1)
            looks = {"color": colour, "linestyle": "none", "markersize": 6.5, "zorder": 3}
            panel.plot(*zip(*its, strict=True), marker=_MARKS[at % len(_MARKS)], label=remedy, **looks)
    for number, loss in enumerate(before):
        label = None if number else "the checkpoint, before"
        panel.axhline(loss, color="#888888", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1, label=label)
    _named(
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
    panel.set_ylabel("old task: loss (nats), lower is better", fontsize=_FONT + 1)
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
