"""Which pattern each attention head follows, measured on random tokens that are repeated once.

The text is L random tokens, then the same L tokens again, so that nothing can be known from the words.  With
A the attention weights:

    previous   mean of A[t, t - 1]
    induction  mean of A[t, t - L + 1] over the second half: the token after the earlier occurrence of token t
               (Olsson et al. 2022, arXiv:2209.11895)
    duplicate  mean of A[t, t - L] over the second half: the earlier occurrence itself
    first      mean of A[t, 0] for t > 0
    itself     mean of A[t, t] for t > 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wordloom.errors import ConfigError, WordloomError
from wordloom.inspect.attention import recording
from wordloom.inspect.figures import FONT, add_colour_bar, new_figure
from wordloom.inspect.view import Table, View
from wordloom.models import context_limit
from wordloom.models.bert import Bert
from wordloom.models.gpt import GPT
from wordloom.models.gpt2 import GPT2
from wordloom.models.llama import Llama
from wordloom.nn.evaluating import evaluating

SCORES = ("previous", "induction", "duplicate", "first", "itself")
_NAMED = 0.25  # the least score by which a head is called after a pattern


@dataclass(frozen=True)
class HeadScores(View):
    """The scores of each head, [layers, H], by name."""

    scores: dict[str, Tensor]
    length: int  # L
    rows: int
    title: str = "Patterns of the attention heads"

    def as_dict(self) -> dict[str, Any]:
        found = {name: score.tolist() for name, score in self.scores.items()}
        return {"length": self.length, "rows": self.rows, **found}

    def tables(self) -> list[Table]:
        layers, heads = self.scores["previous"].shape
        rows = []
        for layer in range(layers):
            for head in range(heads):
                values = {name: float(score[layer, head]) for name, score in self.scores.items()}
                best = max(values, key=lambda name: values[name])
                called = best if values[best] >= _NAMED else ""
                rows.append((f"layer {layer}, head {head}", *(f"{v:.3f}" for v in values.values()), called))
        return [Table(self.title, ("head", *self.scores, "most"), rows)]

    def notes(self) -> Sequence[str]:
        return (
            f"mean attention weights on {self.rows} texts of {self.length} random tokens, each repeated once",
            f"most: the pattern with the largest score, if that is {_NAMED} or more",
        )

    def figure(self) -> Any:
        """Return a grid for each score: layers up, heads across."""
        layers, heads = self.scores["previous"].shape
        figure = new_figure((1.2 + len(SCORES) * (0.9 + 0.22 * heads), 1.3 + 0.24 * layers))
        panels = figure.subplots(1, len(SCORES), squeeze=False)[0]
        for panel, name in zip(panels, SCORES, strict=True):
            image = panel.imshow(self.scores[name].numpy(), origin="lower", cmap="Blues", vmin=0, vmax=1)
            panel.set_title(name, fontsize=FONT)
            panel.set_xlabel("head", fontsize=FONT - 1)
            panel.set_xticks(range(0, heads, max(1, heads // 8)))
            panel.set_yticks(range(0, layers, max(1, layers // 12)))
            panel.tick_params(labelsize=FONT - 2, length=0)
        panels[0].set_ylabel("layer", fontsize=FONT - 1)
        add_colour_bar(panels, image, "mean weight", FONT - 1)
        return figure


def head_scores(model: Any, *, length: int | None = None, rows: int = 8, seed: int = 0) -> HeadScores:
    """Return the scores of each head of a ``model`` with attention.

    Args:
        length: L, the number of random tokens that are repeated; None: 50, or what fits the model.
        rows: the number of texts.
        seed: the seed of the tokens.

    Raises WordloomError for a model without self-attention, ConfigError for a length that does not fit.
    """
    model = getattr(model, "body", model)  # of a model with a task head
    if not isinstance(model, GPT | GPT2 | Llama | Bert):
        raise WordloomError(
            "the view 'heads' is defined for models with self-attention alone (gpt, gpt2, llama, bert), not "
            f"for type {type(model).__name__}"
        )
    layers: list[Any] = [block.attention for block in model.blocks]
    limit = context_limit(model.config) or 100
    length = min(50, limit // 2) if length is None else length
    if length < 2 or 2 * length > limit:
        raise ConfigError(f"length {length} does not fit the model; allowed: 2 to {limit // 2}")
    if rows < 1:
        raise ConfigError(f"rows must be 1 or more, not {rows}")
    draw = torch.Generator().manual_seed(seed)
    half = torch.randint(model.config.vocab_size, (rows, length), generator=draw)
    tokens = torch.cat([half, half], dim=1).to(next(model.parameters()).device)  # [B, 2 L]
    sums = []
    with evaluating(model), recording(layers) as weights:
        model.hidden(tokens)
        sums = [_scores(each, length) for each in weights]  # each of [B, H, T, T]
    return HeadScores(
        scores={name: torch.stack([each[name] for each in sums]).cpu() for name in SCORES},
        length=length,
        rows=rows,
    )


def _scores(weights: Tensor, length: int) -> dict[str, Tensor]:
    """Return the scores [H] of one layer."""

    def back(distance: int, first: int) -> Tensor:
        """The mean of A[t, t - distance] for t from ``first``."""
        return weights.diagonal(-distance, dim1=2, dim2=3)[..., first - distance :].mean(dim=(0, 2))

    return {
        "previous": back(1, 1),
        "induction": back(length - 1, length),
        "duplicate": back(length, length),
        "first": weights[:, :, 1:, 0].mean(dim=(0, 2)),
        "itself": back(0, 1),
    }
