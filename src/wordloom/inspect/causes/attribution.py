"""Which tokens of a text a score depends on: occlusion, gradient x input, integrated gradients.

A score F is a number that a model computes from the embeddings E [T, D] of a text, such as a logit.  The
attribution of token t is, by method:

    occlusion             F(E) - F(E with row t at zero)
    gradient              sum over d of E[t, d] dF/dE[t, d]                       (Simonyan et al. 2014)
    integrated-gradients  sum over d of E[t, d] times the mean of dF/dE[t, d] on the straight line
                          from zero to E                                         (Sundararajan et al. 2017)

Integrated gradients sum to F(E) - F(0); the residual says how far the numeric integral is from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from wordloom.errors import ConfigError, NonFiniteError
from wordloom.inspect.figures import ADDS, FONT, GRID, TAKES, check_tokens, hide_frame, new_figure
from wordloom.inspect.token_names import visible
from wordloom.inspect.view import Table, View
from wordloom.inspect.view.pages import data_as_html, resource
from wordloom.nn.evaluating import evaluating, widened

Method = Literal["integrated-gradients", "gradient", "occlusion"]
METHODS: tuple[Method, ...] = get_args(Method)

Scorer = Callable[[Tensor], Tensor]
"""tokens [B, T] -> the score of each row [B]; it calls the model."""

MOST_STEPS = 4096
TOLERANCE = 0.01  # of the residual, relative to F(E) - F(0)
_ROWS = 32  # computed at once
_INTERVALS, _POINTS = 8, 4  # at first, and in each
_RANGE = 40.0  # K: the points begin near exp(-K); each norm of a LLaMA multiplies what is below its epsilon


@dataclass(frozen=True)
class Attribution(View):
    """How much of a score comes from each token.

    ``score`` is F(E), and ``baseline`` F(0) for embeddings of zero.  ``residual`` is the sum of the values
    less score - baseline; the numeric error for integrated gradients, and None for other methods.
    """

    tokens: tuple[str, ...]
    values: tuple[float, ...]
    what: str  # the score, such as "logit of Lily"
    method: Method
    score: float
    baseline: float
    residual: float | None
    is_exact: bool = False  # the model is linear, and all methods agree

    @property
    def title(self) -> str:
        by = (
            "exactly, because the model is linear" if self.is_exact else f"by {self.method.replace('-', ' ')}"
        )
        return f"Attribution of the {self.what} to tokens, {by}"

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def tables(self) -> list[Table]:
        most = max(map(abs, self.values), default=0.0) or 1.0
        negative = any(value < 0 for value in self.values)
        rows = []
        for token, value in zip(self.tokens, self.values, strict=True):
            bar = "▇" * round(10 * abs(value) / most)
            left = (bar if value < 0 else "").rjust(10, "·")  # bars of negative values end at the zero line
            right = (bar if value > 0 else "").ljust(10, "·")
            rows.append((visible(token), f"{value:+.4f}", f"{left}│{right}" if negative else right))
        return [Table(self.title, ("token", "adds", ""), rows)]

    def notes(self) -> list[str]:
        line = f"{self.what} {self.score:.4f}; {self.baseline:.4f} with all embeddings at zero"
        if self.residual is None:
            return [line]
        line = f"{line}; the sum of the values differs from the difference by {self.residual:+.2g}"
        if abs(self.residual) <= 2 * TOLERANCE * abs(self.score - self.baseline):
            return [line]
        return [line, "the score changes in steps too narrow for the integral: trust --method occlusion"]

    def words(self) -> Sequence[str]:
        return [*map(visible, self.tokens), self.what]

    def figure(self) -> Any:
        """Return a bar for each token, in the order of the text."""
        n = len(self.tokens)
        check_tokens(n)
        figure = new_figure((max(4.0, 1.2 + 0.34 * n), 3.2))
        panel = figure.subplots()
        colours = [ADDS if value > 0 else TAKES for value in self.values]
        panel.bar(range(n), self.values, color=colours, width=0.75)
        panel.axhline(0, color="#8c8c8c", linewidth=0.8)
        slanted = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        names = {"fontsize": FONT - 1, "parse_math": False}
        panel.set_xticks(range(n), list(map(visible, self.tokens)), **slanted, **names)
        panel.grid(axis="y", color=GRID, linewidth=0.6)
        panel.set_axisbelow(True)
        panel.set_ylabel(f"adds to the {self.what}", fontsize=FONT, parse_math=False)
        panel.tick_params(length=0)
        hide_frame(panel)
        return figure

    def body(self) -> str:
        return data_as_html("attribution", self.as_dict()) + '<div id="view"></div>'

    def script(self) -> str:
        return resource("tokens.js") + resource("attribution.js")


def attribution(
    model: nn.Module,
    ids: Sequence[int],
    scorer: Scorer,
    name: Callable[[int], str] = str,
    *,
    what: str = "score",
    method: Method = "integrated-gradients",
    most_steps: int = MOST_STEPS,
) -> Attribution:
    """Return how much each of ``ids`` adds to the score that ``scorer`` computes with ``model``.

    Args:
        scorer: calls ``model`` on tokens [B, T], and returns the score of each row [B].
        name: returns the text of a token id.
        what: the name of the score.
        most_steps: the most points of the line at which integrated gradients are computed; they end when the
            residual is below 1 % of the difference.  A score that changes in steps, as after many norms of a
            few numbers, keeps a larger one.

    Raises:
        ConfigError: an unknown method, or fewer than 32 steps.
        NonFiniteError: the score is not finite.
    """
    if method not in METHODS:
        raise ConfigError(f"unknown method {method!r}; allowed: {', '.join(METHODS)}")
    if most_steps < _INTERVALS * _POINTS:
        raise ConfigError(f"most_steps must be {_INTERVALS * _POINTS} or more, not {most_steps}")
    row = torch.tensor([list(ids)], device=next(model.parameters()).device)  # [1, T]
    with evaluating(model), _Embedding(model) as embedding:
        ends = embedding.scores(scorer, row, torch.tensor([1.0, 0.0]))
        score, baseline = float(ends[0]), float(ends[1])
        if not ends.isfinite().all():
            raise NonFiniteError(f"the {what} is {score:g}, and {baseline:g} with all embeddings at zero")
        residual = None
        if method == "occlusion":
            values = _occlusion(embedding, scorer, row, score)
        elif method == "gradient":
            values = embedding.gradient(scorer, row, torch.ones(1)).mul(widened(embedding.own)).sum(-1)[0]
        else:
            values, residual = _integrated(embedding, scorer, row, score - baseline, most_steps)
    return Attribution(
        tokens=tuple(map(name, ids)),
        values=tuple(values.tolist()),
        what=what,
        method=method,
        score=score,
        baseline=baseline,
        residual=residual,
    )


class _Embedding:
    """The token embedding of a model, whose output is multiplied by factors inside the block."""

    def __init__(self, model: Any) -> None:
        self.module = embedding_of(model)
        self.factors: Tensor | None = None  # [B, 1 or T, 1]
        self.leaf: Tensor | None = None  # [B, T, D], where a gradient is wanted
        self.own = torch.empty(0)  # [1, T, D], the embeddings of the text

    def __enter__(self) -> _Embedding:
        self._hook = self.module.register_forward_hook(self._replaced)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def _replaced(self, _: Any, args: Any, output: Tensor) -> Tensor:
        self.own = output[:1].detach()
        if self.factors is not None:
            output = output * self.factors.to(output)
        if torch.is_grad_enabled():
            self.leaf = output = output.detach().requires_grad_()
        return output

    def scores(self, scorer: Scorer, row: Tensor, factors: Tensor) -> Tensor:
        """Return the score for each of ``factors`` [N] or [N, T] of the embeddings of ``row`` [1, T]."""
        factors = factors.view(len(factors), -1, 1)
        parts = []
        for start in range(0, len(factors), _ROWS):
            self.factors = factors[start : start + _ROWS]
            parts.append(widened(scorer(row.expand(len(self.factors), -1))))
        self.factors = None
        return torch.cat(parts)

    def gradient(self, scorer: Scorer, row: Tensor, factors: Tensor) -> Tensor:
        """Return dF/dE [N, T, D] at E times each of ``factors`` [N]."""
        parts = []
        for start in range(0, len(factors), _ROWS):
            self.factors = factors[start : start + _ROWS].view(-1, 1, 1)
            # cuDNN has gradients of recurrent layers in training mode only
            with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
                total = scorer(row.expand(len(self.factors), -1)).sum()
                assert self.leaf is not None
                parts.append(widened(torch.autograd.grad(total, self.leaf)[0]))
        self.factors = self.leaf = None
        return torch.cat(parts)


def embedding_of(model: Any) -> nn.Module:
    """Return the token embedding of a model, or of the body below its head.

    Raises ConfigError for a model without one, or with a separate one for its source.
    """
    body = getattr(model, "body", model)
    embedding = getattr(body, "token_embedding", None)
    if not isinstance(embedding, nn.Module):
        raise ConfigError(f"type {type(model).__name__} has no token embedding to attribute a score to")
    return embedding


def _occlusion(embedding: _Embedding, scorer: Scorer, row: Tensor, score: float) -> Tensor:
    T = row.shape[1]
    return score - embedding.scores(scorer, row, 1.0 - torch.eye(T))  # [T]


def _integrated(
    embedding: _Embedding, scorer: Scorer, row: Tensor, difference: float, most_steps: int
) -> tuple[Tensor, float]:
    """Return the integral [T] and its residual.

    The line is divided into intervals.  The integral over one must be the difference of the scores at its
    ends, so the error of each is known, and those with the largest errors are halved.
    """
    ends = torch.linspace(0, 1, _INTERVALS + 1, dtype=torch.float64)
    waiting = torch.stack([ends[:-1], ends[1:]], dim=1)  # [n, 2]
    parts = torch.empty(0, row.shape[1], dtype=torch.float64)  # of the finished intervals
    errors = torch.empty(0, dtype=torch.float64)
    spans = torch.empty(0, 2, dtype=torch.float64)
    steps = 0
    while True:
        new_parts = _over_intervals(embedding, scorer, row, waiting)  # [n, T]
        scores = embedding.scores(scorer, row, _place(waiting).flatten().float()).view(-1, 2).cpu()
        steps += len(waiting) * _POINTS
        parts = torch.cat([parts, new_parts])
        errors = torch.cat([errors, new_parts.sum(1) - (scores[:, 1] - scores[:, 0])])
        spans = torch.cat([spans, waiting])
        total, limit = parts.sum(0), TOLERANCE * abs(difference)
        coarse = errors.abs() > limit / (2 * len(errors))
        room = (most_steps - steps) // (2 * _POINTS)  # intervals that can be halved
        if float(errors.abs().sum()) <= limit or not coarse.any() or room < 1:
            return total, float(total.sum()) - difference
        if int(coarse.sum()) > room:
            coarse = torch.zeros_like(coarse).index_fill(0, errors.abs().topk(room).indices, True)
        low, high = spans[coarse].unbind(1)
        middle = (low + high) / 2
        waiting = torch.cat([torch.stack([low, middle], dim=1), torch.stack([middle, high], dim=1)])
        parts, errors, spans = parts[~coarse], errors[~coarse], spans[~coarse]


def _over_intervals(embedding: _Embedding, scorer: Scorer, row: Tensor, spans: Tensor) -> Tensor:
    """Return the integral [n, T] over each of ``spans`` [n, 2] of u, by Gauss-Legendre points."""
    x, w = (torch.from_numpy(values) for values in np.polynomial.legendre.leggauss(_POINTS))
    low, high = spans.unbind(1)
    u = low[:, None] + (high - low)[:, None] * (x + 1) / 2  # [n, points]
    weights = (high - low)[:, None] / 2 * w * _RANGE * torch.exp(_RANGE * u) / math.expm1(_RANGE)
    gradient = embedding.gradient(scorer, row, _place(u).flatten().float())  # [n * points, T, D]
    parts = (gradient * widened(embedding.own)).sum(-1).cpu()  # [n * points, T]
    return (parts.view(*u.shape, -1) * weights[..., None]).sum(1)


def _place(u: Tensor) -> Tensor:
    """Return the points of the line from 0 to 1 for ``u`` from 0 to 1.

    A model with norms changes over many orders of magnitude near zero, so the points are dense there.
    """
    return torch.expm1(_RANGE * u) / math.expm1(_RANGE)
