"""Experiment: how one extra feature is represented, by the density and by its relative importance.

Source: Elhage et al. 2022, arXiv:2209.10652, section 4 (Superposition as a phase change): 2 features in 1
dimension and 3 features in 2 dimensions; the last feature is the extra one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wordloom.lab.superposition.claims import Claim
from wordloom.lab.superposition.geometry import norms, shared
from wordloom.lab.superposition.inputs import by_pattern, even_points
from wordloom.lab.superposition.model import ToyModels, losses, new_models
from wordloom.lab.superposition.theory import OUTCOMES, solution_losses
from wordloom.lab.superposition.training import OnStep, train

SIZES = (2, 3)  # features, in one dimension less
GRID = 24  # values of each axis
STARTS = 10  # models of each grid point, as in the paper; the best of them counts
STEPS = 600
DENSITY_RANGE = (1.0, 0.01)
IMPORTANCE_RANGE = (0.1, 10.0)
_POINTS, _LEARNING_RATE = 32, 3e-2
_TEST_POINTS, _TEST_ROWS = 1_024, 64  # values of each pattern, in all and at once
_CLOSE = 1.03  # loss relative to the bound up to which a model reaches it
NAMES = ("not represented", "superposition", "dedicated dimension")


@dataclass(frozen=True, kw_only=True)
class PhaseDiagram:
    """The best of several models at each point of a grid: R importances down, S densities across.

    Attributes:
        features: n; the models have n - 1 dimensions.
        density: [S], from dense to sparse.
        importance: [R], the importance of the extra feature relative to the others, ascending.
        norm: [R, S], the length of the extra feature's direction.
        share: [R, S], sum_{j != i} (W_i/|W_i| . W_j)^2 of the extra feature.
        loss: [R, S], the expected loss of the best model.
        bound: [R, S], the lowest loss of the hand-built solutions.
        theory: [R, S], the outcome of that solution, an index of NAMES.
    """

    features: int
    density: Tensor
    importance: Tensor
    norm: Tensor
    share: Tensor
    loss: Tensor
    bound: Tensor
    theory: Tensor

    @property
    def trained(self) -> Tensor:
        """The outcome of the trained models [R, S], an index of NAMES."""
        sharing = torch.where(self.share >= 0.5, 1, 2)
        return torch.where(self.norm >= 0.5, sharing, 0)

    @property
    def agreement(self) -> float:
        """The share of grid points at which the trained models have the outcome of the theory."""
        return float((self.trained == self.theory).float().mean())

    @property
    def ratio(self) -> Tensor:
        """The loss relative to the bound [R, S]."""
        return self.loss / self.bound

    def as_dict(self) -> dict[str, Any]:
        names = ("density", "importance", "norm", "share", "loss", "bound", "theory", "trained")
        grids = {name: getattr(self, name).tolist() for name in names}
        return {"features": self.features, "dims": self.features - 1, **grids, "agreement": self.agreement}


@dataclass(frozen=True, kw_only=True)
class Phases:
    """The result of the experiment: a diagram for each of SIZES."""

    diagrams: Sequence[PhaseDiagram]
    steps: int
    starts: int
    seed: int

    @property
    def claims(self) -> list[Claim]:
        found = []
        for diagram in self.diagrams:
            title = f"{diagram.features} features in {diagram.features - 1}"
            outcomes = f"the theory's outcome at {diagram.agreement:.0%} of the points"
            lowest, highest = diagram.ratio.min().item(), diagram.ratio.max().item()
            above = int((diagram.ratio > _CLOSE).sum())
            dense = (diagram.trained == 1)[:, 0].float().mean().item()
            sparse = (diagram.trained == 1)[:, -1].float().mean().item()
            found += [
                Claim(f"{title}: trained models match the closed-form solutions.", outcomes),
                Claim(
                    f"{title}: the best of them bounds the loss.",
                    f"loss / theory {lowest:.3f} to {highest:.3f}; points above {_CLOSE:g}: {above}",
                ),
                Claim(
                    f"{title}: superposition needs sparse features.",
                    f"at density 1: {dense:.0%}, at 0.01: {sparse:.0%} of the importances",
                ),
            ]
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the settings, the measurements and the claims, for JSON."""
        return {
            "experiment": "phases",
            "steps": self.steps,
            "starts": self.starts,
            "seed": self.seed,
            "outcomes": NAMES,
            "diagrams": [diagram.as_dict() for diagram in self.diagrams],
            "claims": [claim._asdict() for claim in self.claims],
        }


def run_phases(
    *,
    steps: int = STEPS,
    grid: int = GRID,
    starts: int = STARTS,
    seed: int = 0,
    on_step: OnStep | None = None,
) -> Phases:
    """Train ``starts`` models at each point of a ``grid`` by ``grid`` diagram, for each of SIZES.

    ``on_step`` receives the number of finished steps of 2 ``steps`` in total.  The same seed gives the same
    bits on one machine.

    Raises ConfigError if ``steps`` is below 1.
    """
    density = _even_logarithms(DENSITY_RANGE, grid)
    importance = _even_logarithms(IMPORTANCE_RANGE, grid)
    diagrams = []
    for i, features in enumerate(SIZES):
        report = None if on_step is None else lambda step, done=i * steps: on_step(done + step)
        diagrams.append(
            phase_diagram(
                features, density, importance, steps=steps, starts=starts, seed=seed, on_step=report
            )
        )
    return Phases(diagrams=diagrams, steps=steps, starts=starts, seed=seed)


def _even_logarithms(ends: tuple[float, float], count: int) -> Tensor:
    first, last = map(math.log10, ends)
    return torch.logspace(first, last, count)  # [count]


def phase_diagram(
    features: int,
    density: Tensor,
    importance: Tensor,
    *,
    steps: int = STEPS,
    starts: int = STARTS,
    seed: int = 0,
    on_step: OnStep | None = None,
) -> PhaseDiagram:
    """Train ``starts`` models for each density [S] and each importance [R] of the last of the features.

    Training takes all patterns of present features in each step (:func:`.inputs.by_pattern`), with random
    values.  The model with the lowest expected loss counts.

    Raises ConfigError for fewer than 2 or more than 10 features, for a density outside (0, 1], and if
    ``steps`` is below 1.
    """
    R, S = len(importance), len(density)
    solutions = solution_losses(features, density[None], importance[:, None])  # each [R, S]
    bound, best = torch.stack(list(solutions.values())).min(0)  # [R, S]
    outcomes = torch.tensor([NAMES.index(OUTCOMES[name]) for name in solutions])

    generator = torch.Generator().manual_seed(seed)
    models = new_models(R * S * starts, features, features - 1, generator=generator)  # [R S starts, ..]
    densities = density.repeat(R).repeat_interleave(starts)  # [R S starts]
    weights = torch.ones(R * S * starts, features)
    weights[:, -1] = importance.repeat_interleave(S * starts)
    train(
        models,
        lambda: by_pattern(densities, torch.rand(_POINTS, features, generator=generator)),
        weights,
        steps=steps,
        learning_rate=_LEARNING_RATE,
        on_step=on_step,
    )
    loss, chosen = expected_losses(models, densities, weights).view(R, S, starts).min(-1)  # [R, S]
    index = (torch.arange(R * S) * starts + chosen.flatten()).tolist()
    weight = models.weight.detach()[index]  # [R S, m, n]
    return PhaseDiagram(
        features=features,
        density=density,
        importance=importance,
        norm=norms(weight)[:, -1].view(R, S),
        share=shared(weight)[:, -1].view(R, S),
        loss=loss,
        bound=bound,
        theory=outcomes[best],
    )


@torch.no_grad()
def expected_losses(models: ToyModels, density: Tensor, importance: Tensor) -> Tensor:
    """Return the expected loss of each model [I], for density [I] and importance [I, n].

    The expectation is exact over the patterns of present features, and takes 1,024 evenly spread values for
    each.  It differs from the integral by about 0.1 %.
    """
    points = even_points(_TEST_POINTS, models.features).view(-1, _TEST_ROWS, models.features)  # [.., P, n]
    parts = [losses(models, by_pattern(density, some), importance) for some in points]
    return torch.stack(parts).mean(0)
