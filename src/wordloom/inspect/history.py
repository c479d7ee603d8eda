"""How the patterns of the attention heads formed while a model trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wordloom.errors import CheckpointError
from wordloom.inspect.figures import FONT, add_colour_bar, new_figure
from wordloom.inspect.heads import SCORES
from wordloom.inspect.view import Table, View

_SHOWN = ("previous", "induction")
_MOST_PICTURES = 8


@dataclass(frozen=True)
class HeadHistory(View):
    """The scores of each head at S steps, [S, layers, H], by name; see :mod:`wordloom.inspect.heads`."""

    steps: tuple[int, ...]
    scores: dict[str, Tensor]
    title: str = "Patterns of the attention heads during training"

    def as_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, **{name: score.tolist() for name, score in self.scores.items()}}

    def tables(self) -> list[Table]:
        """Return for each step the head with the largest score of each pattern."""
        rows = []
        for i, step in enumerate(self.steps):
            cells = []
            for score in self.scores.values():
                layer, head = np.unravel_index(int(score[i].argmax()), tuple(score[i].shape))
                cells.append(f"{float(score[i].max()):.3f} ({layer}.{head})")
            rows.append((f"{step:,}", *cells))
        return [Table(self.title, ("step", *self.scores), rows)]

    def notes(self) -> Sequence[str]:
        return ("the largest score of each pattern, and its head as (layer.head)",)

    def figure(self) -> Any:
        """Return grids for up to eight steps: a row of them for each pattern; layers up, heads across."""
        count = min(_MOST_PICTURES, len(self.steps))
        taken = np.linspace(0, len(self.steps) - 1, count).round().astype(int)
        layers, heads = self.scores[_SHOWN[0]].shape[1:]
        each = (max(1.0, 0.16 * heads), max(1.0, 0.16 * layers))
        figure = new_figure((1.5 + count * (each[0] + 0.15), 0.7 + len(_SHOWN) * (each[1] + 0.1)))
        panels = figure.subplots(len(_SHOWN), count, squeeze=False)
        for row, name in zip(panels, _SHOWN, strict=True):
            for panel, i in zip(row, taken, strict=True):
                grid = self.scores[name][i].numpy()
                image = panel.imshow(grid, origin="lower", cmap="Blues", vmin=0, vmax=1)
                panel.set_xticks([])
                panel.set_yticks([])
            row[0].set_yticks(range(0, layers, 1 + layers // 8))
            row[0].tick_params(labelsize=FONT - 3, length=0)
            row[0].set_ylabel(f"{name}\nlayer", fontsize=FONT - 1)
        for top, bottom, i in zip(panels[0], panels[-1], taken, strict=True):
            top.set_title(f"step {self.steps[i]:,}", fontsize=FONT - 1)
            bottom.set_xticks(range(0, heads, 1 + heads // 8))
            bottom.tick_params(labelsize=FONT - 3, length=0)
            bottom.set_xlabel("head", fontsize=FONT - 1)
        add_colour_bar(panels, image, "mean weight", FONT - 1)
        return figure


def head_history(run: str | Path) -> HeadHistory:
    """Return the scores that training with ``train.inspect = ["heads"]`` wrote into the folder of a run.

    Raises CheckpointError for a folder without them, and for a damaged file.
    """
    folder = Path(run) / "views" / "heads"
    found = []
    for path in sorted(folder.glob("step-*.json")):
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            scores = {name: torch.tensor(saved[name]) for name in SCORES}
            if any(score.dim() != 2 or not score.numel() for score in scores.values()):
                raise ValueError("the scores are no grid of layers and heads")
            found.append((int(saved["step"]), scores))
        except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
            raise CheckpointError(f"cannot read {path}: {error}") from None
    if not found:
        raise CheckpointError(f'{folder} holds no scores; train with train.inspect = ["heads"]')
    shapes = {tuple(score.shape) for _, scores in found for score in scores.values()}
    if len(shapes) > 1:
        raise CheckpointError(f"{folder} holds scores of several models; remove those of the older run")
    together = {name: torch.stack([each[name] for _, each in found]) for name in SCORES}
    return HeadHistory(steps=tuple(step for step, _ in found), scores=together)
