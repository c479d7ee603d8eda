"""Plot scores: confusion matrices, BLEU by the length of the source, bits by position, and forgetting."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.inspect import figures

Path = str | os.PathLike[str]

# ------------------------------------------------------------------------------------ confusion matrices

_CELL = 0.34  # inches
_MOST_INSIDE = 3  # runs whose names find room among their lines
_LEAST = 3.0  # inches; a smaller matrix has no room for the names of its axes
_CELL_FONT = 8.0  # points
_SHOWN = 0.005  # share of a row; cells below it have no number
_DARK = 0.55  # share of a row from which on a cell's number is white


def draw_confusion(
    counts: Sequence[Sequence[int]], labels: Sequence[str], path: Path, *, kind: str = "label"
) -> None:
    """Draw a confusion matrix into a .png, .svg or .pdf file, with true labels down and predictions across.

    The colour and number of a cell are its percentage of the row.  ``counts[i][j]`` is the number of examples
    with label i and prediction j.  ``kind`` names in the axis labels what is predicted, such as ``language``.

    Raises as :func:`wordloom.inspect.draw_map`.
    """
    figures.save_figure(lambda: confusion_figure(counts, labels, kind), [*labels, kind], path)


def confusion_figure(counts: Sequence[Sequence[int]], labels: Sequence[str], kind: str = "label") -> Any:
    """Return the figure that :func:`draw_confusion` saves."""
    table = np.asarray(counts, np.int64)
    n = table.sum(1)  # [C]
    shares = table / np.maximum(n, 1)[:, None]
    C = len(labels)
    side = max(_LEAST, C * _CELL)
    figure = figures.new_figure((side + 2.6, side + 1.8))
    panel = figure.subplots()
    image = panel.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="nearest")
    panel.set_xticks(range(C), list(labels), rotation=90, fontsize=_CELL_FONT, parse_math=False)
    names = [f"{label}  ({count:,})" for label, count in zip(labels, n, strict=True)]
    panel.set_yticks(range(C), names, fontsize=_CELL_FONT, parse_math=False)
    panel.set_xlabel(f"predicted {kind}", fontsize=_CELL_FONT + 1, parse_math=False)
    panel.set_ylabel(f"true {kind} (n examples)", fontsize=_CELL_FONT + 1, parse_math=False)
    panel.set_xticks(np.arange(C - 1) + 0.5, minor=True)
    panel.set_yticks(np.arange(C - 1) + 0.5, minor=True)
    panel.grid(which="minor", color=figures.GRID, linewidth=0.6)
    panel.tick_params(which="both", length=0)
    for i, j in np.argwhere(shares >= _SHOWN):
        share = shares[i, j]
        colour, weight = "white" if share >= _DARK else figures.INK, "bold" if i == j else "normal"
        style = {"ha": "center", "va": "center", "fontsize": _CELL_FONT - 1}
        panel.text(j, i, f"{100 * share:.0f}", color=colour, weight=weight, **style)
    bar = figures.add_colour_bar(panel, image, f"share of the true {kind}", _CELL_FONT)
    bar.set_ticks([0, 0.5, 1], labels=["0", "50 %", "100 %"])
    right, rows = int(np.trace(table)), int(table.sum())
    accuracy = f" ({right / rows:.1%})" if rows else ""  # undefined without rows
    panel.set_title(f"{right:,} of {rows:,} correct{accuracy}", fontsize=_CELL_FONT + 2)
    return figure


# ------------------------------------------------------------------------------ scores by source length


def draw_lengths(path: Path, runs: Mapping[str, Sequence[Any]]) -> None:
    """Draw the BLEU of each run by the length of the source into a .png, .svg or .pdf file.

    ``runs`` holds by name each run's :class:`wordloom.evaluate.LengthBin` of the same texts.  Scores with a
    note (undefined, or 0 by definition) are left out; a line below the axes names them.

    Raises as :func:`wordloom.inspect.draw_map`.
    """
    figures.save_figure(lambda: lengths_figure(runs), list(runs), path)


def lengths_figure(runs: Mapping[str, Sequence[Any]]) -> Any:
    """Return the figure that :func:`draw_lengths` saves."""
    bins = next(iter(runs.values()))
    figure = figures.new_figure((max(4.6, 0.95 * len(bins) + 1.6), 4.0))
    panel = figure.subplots()
    left_out: list[str] = []
    for i, (name, parts) in enumerate(runs.items()):
        places = [n + 0.06 * (i - (len(runs) - 1) / 2) for n in range(len(parts))]  # bars stand side by side
        values = [math.nan if part.score.note else part.score.value for part in parts]
        errors = [
            [abs(p.score.interval[side] - p.score.value) if p.score.interval else 0.0 for p in parts]
            for side in (0, 1)
        ]
        if gaps := ", ".join(part.label for part in parts if part.score.note):
            left_out.append(f"{name}: no BLEU for {gaps} words, see the notes of the scores")
        look = figures.series(i)
        panel.plot(places, values, color=look["color"], linewidth=1.6, zorder=2)
        panel.errorbar(
            places, values, yerr=errors, label=figures.plain(name), **look, markersize=6,
            markeredgecolor="white", markeredgewidth=0.6, elinewidth=0.9, capsize=2.5, linestyle="none",
            clip_on=False, zorder=3,  # above the lines of all runs
        )  # fmt: skip
    panel.set_xticks(
        range(len(bins)), [f"{part.label}\n({part.pairs:,})" for part in bins], fontsize=figures.FONT
    )
    label = "\n".join(["source length in words (n sentences)", *left_out])
    panel.set_xlabel(label, fontsize=figures.FONT + 1, parse_math=False)
    panel.set_ylabel("BLEU", fontsize=figures.FONT + 1)
    panel.set_ylim(bottom=0)
    panel.tick_params(labelsize=figures.FONT)
    panel.grid(axis="y", color=figures.GRID, linewidth=0.7)
    panel.set_axisbelow(True)
    figures.hide_frame(panel)
    if len(runs) > 1:
        panel.legend(frameon=False, fontsize=figures.FONT)
    return figure


# ------------------------------------------------------------------------------------ bits by position


def position_groups(runs: Mapping[str, Sequence[Any]]) -> list[tuple[int, int]]:
    """Return ``first`` and ``stop`` of the groups of all ``runs``, each once and in order.

    The last group of a short window has the ``first`` of another group, and an earlier ``stop``.
    """
    return sorted({(group.first, group.stop) for groups in runs.values() for group in groups})


def draw_positions(path: Path, runs: Mapping[str, Sequence[Any]]) -> None:
    """Draw the bits per byte of each run by the tokens read before into a .png, .svg or .pdf file.

    ``runs`` holds by name each run's :class:`wordloom.evaluate.positions.PositionBits` of the same texts.

    Raises as :func:`wordloom.inspect.draw_map`.
    """
    figures.save_figure(lambda: positions_figure(runs), list(runs), path)


def positions_figure(runs: Mapping[str, Sequence[Any]]) -> Any:
    """Return the figure that :func:`draw_positions` saves."""
    figure = figures.new_figure((8.6 if len(runs) > _MOST_INSIDE else 6.8, 4.2))
    panel = figure.subplots()
    spans = position_groups(runs)
    for i, (name, groups) in enumerate(runs.items()):
        places = [spans.index((group.first, group.stop)) for group in groups]
        values = [group.bits_per_byte for group in groups]
        label = figures.plain(name)
        panel.plot(places, values, label=label, **figures.series(i), markersize=5, linewidth=1.4)
    labels = [f"{first:,}\u2013{stop - 1:,}" for first, stop in spans]
    panel.set_xticks(range(len(spans)), labels, fontsize=figures.FONT - 1)
    panel.set_xlabel("tokens read before", fontsize=figures.FONT + 1)
    panel.set_ylabel("bits per byte", fontsize=figures.FONT + 1)
    panel.tick_params(labelsize=figures.FONT - 1)
    panel.grid(axis="y", color=figures.GRID, linewidth=0.7)
    panel.set_axisbelow(True)
    figures.hide_frame(panel)
    if len(runs) > _MOST_INSIDE:
        figure.legend(loc="outside right upper", frameon=False, fontsize=figures.FONT)
    elif len(runs) > 1:
        panel.legend(frameon=False, fontsize=figures.FONT)
    return figure


# ------------------------------------------------------------------------------------------- forgetting

_REMEDY_MARKS = "oD^sP"
_REMEDY_COLOURS = ("#444444", "#1b6ca8", "#2a9d8f", "#c8553d", "#8a5a9e")
_ROOM = 0.14  # margin around all points for their names, as a share of their span


def draw_forgetting(path: Path, runs: Sequence[Any], remedies: Sequence[str]) -> None:
    """Draw each run's loss on the old task against its score on the new task into a .png, .svg or .pdf file.

    ``runs`` are :class:`wordloom.run.sweep.forgetting.Forgetting`; a line joins the runs of one of the
    ``remedies``.  If all runs started from one checkpoint, the figure shows the increase of the loss over the
    checkpoint's.  The scale is linear around zero and logarithmic farther away, because remedies differ by
    hundredths of a nat, and fine-tuning with a high learning rate forgets several nats.

    Raises as :func:`wordloom.inspect.draw_map`.
    """
    names = [*remedies, *(run.label for run in runs)]
    figures.save_figure(lambda: forgetting_figure(runs, remedies), names, path)


def forgetting_figure(runs: Sequence[Any], remedies: Sequence[str]) -> Any:
    """Return the figure that :func:`draw_forgetting` saves."""
    panel = figures.new_panel((7.6, 4.6), (0.75, 0.65, 2.65, 0.3))
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
        ticks = _ticks(panel.get_ylim(), linear)
        panel.set_yticks(ticks, [f"{tick:+g}" if tick else "0" for tick in ticks])
        panel.minorticks_off()
    else:
        panel.set_ylim(*_with_room(losses))
    colours = {remedy: _REMEDY_COLOURS[at % len(_REMEDY_COLOURS)] for at, remedy in enumerate(remedies)}
    for at, (remedy, colour) in enumerate(colours.items()):
        remedied = [(run.score, run.after - origin) for run in runs if run.remedy == remedy]
        if remedied:
            panel.plot(*zip(*remedied, strict=True), color=colour, linewidth=0.8, alpha=0.45, zorder=1)
            looks = {"color": colour, "marker": _REMEDY_MARKS[at % len(_REMEDY_MARKS)], "markersize": 6.5}
            looks |= {"linestyle": "none", "markeredgecolor": "white", "markeredgewidth": 0.6}
            panel.plot(*zip(*remedied, strict=True), label=remedy, zorder=3, **looks)
    for number, loss in enumerate(before):
        label = None if number else "checkpoint before training" + (f": {origin:.3f}" if origin else "")
        panel.axhline(loss, color="#888888", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1, label=label)
    labels = [run.label for run in runs]
    figures.name_points(panel, labels, points, [False] * len(runs), lines_may_cross=True, overlap=True)
    for text, run in zip(panel.texts, runs, strict=True):
        text.set_color(colours[run.remedy])
        text.set_fontsize(figures.FONT - 0.5)
    metric = runs[0].metric.replace("_", " ")
    panel.set_xlabel(f"new task: {metric}", fontsize=figures.FONT + 1)
    measure = "loss above the checkpoint's (nats)" if origin else "loss (nats), lower is better"
    panel.set_ylabel(f"old task: {measure}", fontsize=figures.FONT + 1)
    panel.tick_params(labelsize=figures.FONT, colors="#333333")
    panel.grid(color="#ececec", linewidth=0.7)
    figures.hide_frame(panel)
    panel.legend(
        frameon=False, fontsize=figures.FONT, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0
    )
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


def _ticks(limits: tuple[float, float], linear: float) -> list[float]:
    """Return ticks at 0 and, from ``linear / 2`` on, at 1 and 3 times powers of ten on both sides.

    Matplotlib's own ticks for this scale stand on each other near 0.
    """
    low, high = limits
    powers = range(math.floor(math.log10(linear)), math.ceil(math.log10(max(-low, high, linear))) + 1)
    sizes = [factor * 10.0**power for power in powers for factor in (1, 3)]
    ticks = [0.0, *(sign * size for size in sizes if size >= linear / 2 for sign in (1, -1))]
    return sorted(tick for tick in ticks if low <= tick <= high)
