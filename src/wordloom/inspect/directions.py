"""How many directions share the vectors' space: cosines beside those of random directions, and bounds.

With d dimensions and N unit vectors:

    Johnson-Lindenstrauss  a random pair has |cosine| >= e with probability at most 2 exp(-d e^2 / 2), so that
                           N <= sqrt(p) exp(d e^2 / 4) random directions all have |cosine| < e, except with
                           probability p                (Johnson & Lindenstrauss 1984, by the union bound)
    Welch                  the largest |cosine| is at least sqrt((N - d) / (d (N - 1))) for N > d
                                                                                            (Welch 1974)
    effective dimension    (sum l)^2 / sum l^2 over the eigenvalues l of the covariance
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wordloom.errors import ConfigError, NonFiniteError, WordloomError
from wordloom.inspect.figures import COLOURS, FONT, hide_frame, new_figure
from wordloom.inspect.view import Table, View
from wordloom.nn.evaluating import evaluating

FAILURE = 0.01  # p, the probability with which random directions break the bound
EPSILONS = (0.1, 0.2, 0.3, 0.5)
BINS = np.linspace(-1, 1, 201)
_CHUNK = 1 << 22  # cosines computed at once
_SHARE = 0.999  # of the pairs, whose |cosine| is below the quantile


@dataclass(frozen=True)
class Directions:
    """N vectors of D dimensions: the cosines of all pairs, and what the bounds say.

    ``histogram`` counts cosines in the bins of BINS; ``random`` has the values of as many random directions.
    """

    name: str
    N: int
    D: int
    mean: float
    deviation: float
    quantile: float  # of |cosine|, at 99.9 %
    largest: float  # |cosine|
    effective_dimension: float
    centred_dimension: float  # without the mean vector
    histogram: NDArray[np.int64]
    random: Directions | None

    @property
    def random_bound(self) -> float:
        """The |cosine| that random directions stay below, except with probability FAILURE."""
        return math.sqrt(4 * math.log(self.N / math.sqrt(FAILURE)) / self.D)

    @property
    def welch_bound(self) -> float:
        """The least possible largest |cosine|; 0 for N <= D, where all directions can be orthogonal."""
        return math.sqrt((self.N - self.D) / (self.D * (self.N - 1))) if self.N > self.D else 0.0


def directions_that_fit(D: int, epsilon: float) -> float:
    """Return how many random directions of D dimensions have all |cosines| below ``epsilon``.

    They do, except with probability FAILURE.
    """
    return math.sqrt(FAILURE) * math.exp(min(700.0, D * epsilon**2 / 4))


@dataclass(frozen=True)
class Geometry(View):
    """The directions of a model's token embeddings and neurons."""

    groups: tuple[Directions, ...]
    title: str = "Directions beside random ones"

    def as_dict(self) -> dict[str, Any]:
        def values(group: Directions) -> dict[str, Any]:
            found = {**asdict(group), "histogram": group.histogram.tolist()}
            found |= {"random_bound": group.random_bound, "welch_bound": group.welch_bound}
            return found | {"random": None if group.random is None else values(group.random)}

        fits = {f"{e:g}": directions_that_fit(self.groups[0].D, e) for e in EPSILONS}
        return {"groups": [values(group) for group in self.groups], "directions_that_fit": fits}

    def tables(self) -> list[Table]:
        rows = []
        for group in self.groups:
            for name, each in ((group.name, group), ("random", group.random)):
                if each is None:
                    continue
                spread = (each.mean, each.deviation, each.quantile, each.largest)
                dimensions = (each.effective_dimension, each.centred_dimension)
                rows.append(
                    (name, f"{each.N:,}", *(f"{v:.3f}" for v in spread), *(f"{v:.1f}" for v in dimensions))
                )
        columns = (
            "directions", "number", "mean cosine", "deviation", "99.9 % are below", "largest",
            "effective dimension", "of centred ones",
        )  # fmt: skip
        bounds = [
            (group.name, f"{group.welch_bound:.3f}", f"{group.random_bound:.3f}") for group in self.groups
        ]
        D = self.groups[0].D
        fits = [(f"{e:g}", _count(directions_that_fit(D, e))) for e in EPSILONS]
        return [
            Table(f"Cosines of all pairs, {D} dimensions", columns, rows),
            Table(
                "Bounds of the largest |cosine|",
                ("directions", "least possible (Welch)", "of random ones (Johnson-Lindenstrauss)"),
                bounds,
            ),
            Table(
                f"Random directions in {D} dimensions that fit by the bound of Johnson and Lindenstrauss",
                ("|cosine| below", "number"),
                fits,
            ),
        ]

    def notes(self) -> Sequence[str]:
        return (
            f"bounds for random directions hold except with probability {FAILURE:g}",
            "effective dimension: (sum l)^2 / sum l^2 over the eigenvalues l of the covariance, which is the "
            "number of dimensions if all are used equally",
        )

    def figure(self) -> Any:
        """Return a histogram of cosines for each group, beside random directions."""
        figure = new_figure((3.6 * len(self.groups), 3.2))
        panels = figure.subplots(1, len(self.groups), squeeze=False)[0]
        middles = (BINS[:-1] + BINS[1:]) / 2
        widest = min(1.0, 1.3 * max(max(group.quantile, group.random_bound) for group in self.groups))
        for panel, group in zip(panels, self.groups, strict=True):
            tallest = 0.0
            for each, colour, label in ((group.random, COLOURS[9], "random"), (group, COLOURS[0], "model")):
                if each is not None:
                    density = each.histogram / each.histogram.sum() / (BINS[1] - BINS[0])
                    panel.plot(middles, density, color=colour, label=label)
                    panel.fill_between(middles, density, color=colour, alpha=0.15)
                    tallest = tallest or float(density.max())
            panel.set_xlim(-widest, widest)
            panel.locator_params(axis="x", nbins=4)
            panel.set_ylim(0, 1.5 * tallest)  # equal vectors would give a spike at 1 that hides the others
            panel.set_title(f"{group.name}: {group.N:,} in {group.D} dimensions", fontsize=FONT)
            panel.set_xlabel("cosine of a pair", fontsize=FONT - 1)
            panel.set_yticks([])
            panel.set_ylabel("share of pairs", fontsize=FONT - 1)
            panel.tick_params(labelsize=FONT - 1)
            hide_frame(panel)
        panels[0].legend(frameon=False, fontsize=FONT - 1)
        return figure


def _count(value: float) -> str:
    if value < 2:
        return "no pair"
    return f"{math.floor(value):,}" if value < 1e6 else f"{value:.1e}"


def geometry(model: Any, *, seed: int = 0) -> Geometry:
    """Return the directions of a model's token embeddings, and of its neurons layer by layer.

    The direction of a neuron is what its activation adds to the vector of a token: a column of down_proj.
    Layers with fewer than two neurons have no part.  ``seed`` draws the random directions.

    Raises WordloomError for a model without token embeddings, ConfigError for fewer than two vectors.
    """
    body = getattr(model, "body", model)
    if not hasattr(body, "token_embedding"):
        raise WordloomError(
            f"the view 'geometry' needs token embeddings; type {type(model).__name__} has none"
        )
    draw = torch.Generator().manual_seed(seed)
    with evaluating(body):
        vocabulary = torch.arange(body.config.vocab_size, device=next(body.parameters()).device)
        groups = [("token embeddings", body.token_embedding(vocabulary).float().cpu())]
        feeds = [block.feed_forward for block in body.blocks if hasattr(block, "feed_forward")]
        for layer in sorted({0, len(feeds) // 2, len(feeds) - 1} if feeds else ()):
            found = neuron_directions(feeds[layer]).float().cpu()
            if int((found.norm(dim=1) > 0).sum()) > 1:  # one direction has no pair
                groups.append((f"neurons of layer {layer}", found))
    return Geometry(tuple(directions(name, x, draw) for name, x in groups))


def neuron_directions(feed_forward: Any) -> Tensor:
    """Return what one unit of each neuron's activation adds to the vector of a token, [F, D]."""
    down = feed_forward.down_proj
    some = next(chain(feed_forward.parameters(), feed_forward.buffers()))  # weights in 8 bits are buffers
    dtype = some.dtype if some.is_floating_point() else torch.float32
    one = torch.eye(down.in_features, device=some.device, dtype=dtype)  # [F, F]
    return down(one) - down(torch.zeros_like(one[:1]))  # without the bias


def directions(name: str, vectors: Tensor, draw: torch.Generator | None) -> Directions:
    """Return the cosines of N ``vectors`` [N, D]; ``draw`` makes as many random ones, None makes none.

    Zero vectors, which have no direction, are left out.  Memory holds a block of the N^2 cosines.

    Raises ConfigError for fewer than two directions, NonFiniteError for vectors that are not finite.
    """
    if not vectors.isfinite().all():
        raise NonFiniteError(f"{name}: a vector is not finite; the model's weights are damaged")
    vectors = vectors[vectors.norm(dim=1) > 0]
    N, D = vectors.shape
    if N < 2:
        raise ConfigError(f"{name}: {N} vectors have no pair; two or more are needed")
    units = torch.nn.functional.normalize(vectors.float(), dim=1)
    histogram = np.zeros(len(BINS) - 1, dtype=np.int64)
    fine = np.zeros(100_001, dtype=np.int64)  # of |cosine|, for the quantile
    total = squares = largest = 0.0
    for cosines in _pairs(units):
        histogram += np.histogram(cosines, BINS)[0]
        size = np.abs(cosines)
        fine += np.bincount((size * 100_000).astype(np.int64), minlength=len(fine))
        total += float(cosines.sum(dtype=np.float64))
        squares += float(np.square(cosines, dtype=np.float64).sum())
        largest = max(largest, float(size.max()))
    pairs = N * (N - 1) / 2
    mean = total / pairs
    centred = vectors.double() - vectors.double().mean(0)
    return Directions(
        name=name,
        N=N,
        D=D,
        mean=mean,
        deviation=math.sqrt(max(0.0, squares / pairs - mean**2)),
        quantile=float(np.searchsorted(fine.cumsum(), _SHARE * pairs) / 100_000),
        largest=largest,
        effective_dimension=_effective_dimension(vectors.double()),
        centred_dimension=_effective_dimension(centred),
        histogram=histogram,
        random=None if draw is None else directions("random", torch.randn(N, D, generator=draw), None),
    )


def _pairs(units: Tensor) -> Iterator[NDArray[np.float32]]:
    """Yield the cosines of all pairs i < j, in blocks."""
    N = len(units)
    rows = max(1, _CHUNK // N)
    for start in range(0, N - 1, rows):
        block = (units[start : start + rows] @ units[start:].T).clamp(-1, 1)  # [rows, N - start]
        later = torch.ones_like(block, dtype=torch.bool).triu(1)
        yield block[later].numpy()


def _effective_dimension(x: Tensor) -> float:
    """x [N, D] -> the participation ratio of its second moments."""
    moments = x.T @ x  # [D, D]; its trace is the sum of eigenvalues, its squared entries that of squares
    squares = float(moments.square().sum())
    return float(moments.trace()) ** 2 / squares if squares else 0.0
