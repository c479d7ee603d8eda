"""Experiment: 400 equally important features in 30 dimensions, and the fraction of a dimension each one gets.

Source: Elhage et al. 2022, arXiv:2209.10652, section 5 (The geometry of superposition): n = 400, m = 30,
I = 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor

from wordloom.lab.superposition.claims import Claim
from wordloom.lab.superposition.geometry import POLYTOPES, dimensionality, norms, polytopes
from wordloom.lab.superposition.inputs import sampled
from wordloom.lab.superposition.model import new_models
from wordloom.lab.superposition.training import OnStep, train

FEATURES, DIMS = 400, 30
#: 1 / (1 - S), from dense to sparse.
INVERSE_DENSITIES = tuple(10 ** (i / 15) for i in range(16))
STEPS = 3_000
_ROWS, _LEARNING_RATE = 256, 1e-2
REPRESENTED = 0.5  # length of W_i from which on a feature counts as represented
#: The fractions of a dimension at which the paper finds features, and their polytopes.
PLATEAUS = {
    Fraction(3, 4): "tetrahedron",
    Fraction(2, 3): "triangle",
    Fraction(1, 2): "antipodal pair",
    Fraction(2, 5): "pentagon",
    Fraction(3, 8): "square antiprism",
}
NEAR = 0.01  # distance from a plateau at which a feature counts as on it


@dataclass(frozen=True, kw_only=True)
class PolytopeModel:
    """One trained model: its density 1 - S and W [m, n]."""

    density: float
    weight: Tensor

    @property
    def effective_features(self) -> float:
        """||W||_F^2, about the number of features that the model represents."""
        return float(self.weight.square().sum())

    @property
    def dims_per_feature(self) -> float:
        """m / ||W||_F^2."""
        return len(self.weight) / self.effective_features

    @property
    def dimensionality(self) -> Tensor:
        """D_i of each feature [n]."""
        return dimensionality(self.weight)

    @property
    def represented(self) -> Tensor:
        """True for the features that the model represents [n]."""
        return norms(self.weight) >= REPRESENTED

    @property
    def on_plateau(self) -> dict[str, int]:
        """The number of represented features with D_i near each plateau, by the name of the polytope."""
        found = self.dimensionality[self.represented]
        return {name: int(((found - float(at)).abs() <= NEAR).sum()) for at, name in PLATEAUS.items()}

    @property
    def polytopes(self) -> dict[str, int]:
        """The number of polytopes of each kind; ``other`` are those that the paper does not name."""
        kinds = [
            POLYTOPES.get((len(each.features), each.dims), "other")
            for each in polytopes(self.weight, self.represented)
        ]
        return dict(Counter(kinds))

    def as_dict(self) -> dict[str, Any]:
        return {
            "density": self.density,
            "effective_features": self.effective_features,
            "dims_per_feature": self.dims_per_feature,
            "represented": int(self.represented.sum()),
            "on_plateau": self.on_plateau,
            "polytopes": self.polytopes,
            "norms": norms(self.weight).tolist(),
            "dimensionality": self.dimensionality.tolist(),
        }


@dataclass(frozen=True, kw_only=True)
class Polytopes:
    """The result of the experiment: a model for each density, from dense to sparse."""

    models: Sequence[PolytopeModel]
    steps: int
    seed: int

    @property
    def claims(self) -> list[Claim]:
        return [
            _sticky(self.models, 1.0, "Dimensions per feature stay near 1 for dense features."),
            _sticky(self.models, 0.5, "They stay near 1/2 over a range of densities."),
            *(self._plateau(at, name) for at, name in PLATEAUS.items()),
            Claim(
                "The D_i sum to about the number of dimensions, 30.",
                "sums of {:.2f} to {:.2f}".format(*self._sums()),
            ),
        ]

    def _plateau(self, at: Fraction, name: str) -> Claim:
        near = [model.on_plateau[name] for model in self.models]
        count = sum(model.polytopes.get(name, 0) for model in self.models)
        most = max(range(len(near)), key=near.__getitem__)
        place = f", most ({near[most]}) at density {self.models[most].density:.2f}" if near[most] > 2 else ""
        plural = f"{name}{'' if count == 1 else 's'}"
        return Claim(f"Features gather at {at} ({name}).", f"{sum(near)} features{place}; {count} {plural}")

    def _sums(self) -> tuple[float, float]:
        sums = [float(model.dimensionality.sum()) for model in self.models]
        return min(sums), max(sums)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings, the measurements and the claims, for JSON."""
        return {
            "experiment": "polytopes",
            "features": FEATURES,
            "dims": DIMS,
            "steps": self.steps,
            "seed": self.seed,
            "models": [model.as_dict() for model in self.models],
            "claims": [claim._asdict() for claim in self.claims],
        }


def _sticky(models: Sequence[PolytopeModel], level: float, paper: str) -> Claim:
    """Return the claim with the densities at which the dimensions per feature are near ``level``."""
    near = [model.density for model in models if abs(model.dims_per_feature / level - 1) <= 0.1]
    if not near:
        return Claim(paper, f"no density within 10 % of {level:g}")
    return Claim(paper, f"within 10 % of {level:g} for densities {min(near):.2f} to {max(near):.2f}")


def run_polytopes(
    *,
    steps: int = STEPS,
    seed: int = 0,
    inverse_densities: Sequence[float] = INVERSE_DENSITIES,
    on_step: OnStep | None = None,
) -> Polytopes:
    """Train one model for each of ``inverse_densities``, 1 / (1 - S).

    ``on_step`` receives the number of finished steps.  The same seed gives the same bits on one machine.

    Raises ConfigError if ``steps`` is below 1, and for an inverse density below 1.
    """
    generator = torch.Generator().manual_seed(seed)
    density = 1 / torch.tensor(list(inverse_densities))
    models = new_models(len(density), FEATURES, DIMS, generator=generator)
    draw = partial(sampled, density, FEATURES, _ROWS, generator)
    train(models, draw, torch.ones(FEATURES), steps=steps, learning_rate=_LEARNING_RATE, on_step=on_step)
    weights = models.weight.detach()
    return Polytopes(
        models=[PolytopeModel(density=s, weight=w) for s, w in zip(density.tolist(), weights, strict=True)],
        steps=steps,
        seed=seed,
    )
