"""Draw the learning curve of the demonstration beside its two baselines.

make demo
python scripts/draw_demo.py runs/demo-3min docs/images/demo.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from wordloom import load
from wordloom.inspect.figures import COLOURS, FAINT, GRID, load_matplotlib, save_figure
from wordloom.run.demo import compare


def main() -> None:
    folder, path = (Path(name) for name in sys.argv[1:])
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    curve = [(row["step"], row["bits_per_byte"]) for row in rows if row["kind"] == "evaluate"]
    model, *baselines = compare(load(folder))
    load_matplotlib()

    def make() -> Any:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 2.9), layout="constrained")
        axes = figure.add_subplot()
        for number, baseline in enumerate(baselines):
            axes.axhline(
                baseline.bits_per_byte, color=FAINT, linestyle=("dashed", "dotted")[number], zorder=1
            )
            axes.annotate(
                f"{baseline.name}: {baseline.bits_per_byte:.3f}",
                (1.0, baseline.bits_per_byte),
                xycoords=("axes fraction", "data"),
                xytext=(-4, -11 if number == 0 else 3),
                textcoords="offset points",
                ha="right",
                fontsize=8,
            )
        steps, bits = zip(*curve, strict=True)
        axes.plot(steps, bits, color=COLOURS[0], marker="o", markersize=4, zorder=3)
        axes.plot(steps[-1], model.bits_per_byte, color=COLOURS[0], marker="*", markersize=11, zorder=4)
        axes.annotate(
            f"final evaluation: {model.bits_per_byte:.3f}",
            (steps[-1], model.bits_per_byte),
            xytext=(-9, -4),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=COLOURS[0],
        )
        axes.set_xlabel("training step")
        axes.set_ylabel("bits per byte, held-out text")
        axes.grid(color=GRID)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(left=0)
        return figure

    save_figure(make, [], path)


if __name__ == "__main__":
    main()
