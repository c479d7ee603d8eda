"""Experiment: 20 features of falling importance in 5 dimensions, at several densities.

Source: Elhage et al. 2022, arXiv:2209.10652, section 2 (Demonstrating superposition): n = 20, m = 5,
I_i = 0.7^i, a linear model and models with a ReLU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from wordloom.lab.superposition.claims import Claim
from wordloom.lab.superposition.geometry import norms, polytopes, shared
from wordloom.lab.superposition.inputs import Inputs, sampled
from wordloom.lab.superposition.model import ToyModels, losses, new_models
from wordloom.lab.superposition.theory import dropped_loss
from wordloom.lab.superposition.training import OnStep, train

FEATURES, DIMS, DECAY = 20, 5, 0.7
DENSITIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
STEPS = 3_000
STARTS = 4  # models of each density, of which the best counts
_ROWS, _LEARNING_RATE = 1_024, 5e-3
_TEST_ROWS = 2_048, 32  # rows of a draw, and draws
REPRESENTED = 0.5  # length of W_i from which on a feature counts as represented
SHARED = 0.1  # sum_{j != i} (W_i/|W_i| . W_j)^2 from which on a feature shares its direction


@dataclass(frozen=True, kw_only=True)
class FeatureModel:
    """One trained model.

    Attributes:
        name: ``linear`` or ``ReLU``.
        density: 1 - S.
        weight: W [m, n].
        bias: b [n].
        loss: the mean loss on fresh inputs, as a share of the loss of a model that represents nothing.
    """

    name: str
    density: float
    weight: Tensor
    bias: Tensor
    loss: float

    @property
    def represented(self) -> list[int]:
        """The features that the model represents, from 0."""
        return (norms(self.weight) >= REPRESENTED).nonzero()[:, 0].tolist()

    @property
    def dedicated(self) -> list[int]:
        """The represented features that share their direction with no other feature."""
        alone = shared(self.weight) < SHARED
        return [i for i in self.represented if alone[i]]

    @property
    def pairs(self) -> int:
        """The number of antipodal pairs: two features in one dimension and orthogonal to all others."""
        found = polytopes(self.weight, norms(self.weight) >= REPRESENTED)
        return sum(len(each.features) == 2 and each.dims == 1 for each in found)

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.name,
            "density": self.density,
            "loss": self.loss,
            "represented": self.represented,
            "dedicated": self.dedicated,
            "antipodal_pairs": self.pairs,
            "norms": norms(self.weight).tolist(),
            "shared": shared(self.weight).tolist(),
            "weight": self.weight.tolist(),
            "bias": self.bias.tolist(),
        }


@dataclass(frozen=True, kw_only=True)
class Features:
    """The result of the experiment: the linear model, then the ReLU models from dense to sparse."""

    models: Sequence[FeatureModel]
    steps: int
    seed: int

    @property
    def claims(self) -> list[Claim]:
        linear, *relu = self.models
        counts = ", ".join(f"{len(model.represented)}" for model in relu)
        dedicated = ", ".join(f"{len(model.dedicated)}" for model in relu)
        pairs = ", ".join(f"{model.pairs}" for model in relu)
        return [
            Claim("A linear model keeps the 5 most important features.", _described(linear)),
            Claim("So does the ReLU model on dense features.", _described(relu[0])),
            Claim("Sparser features: the ReLU model represents more of them.", f"{counts} features"),
            Claim("The most important features are the last to share.", f"{dedicated} dedicated"),
            Claim("Antipodal pairs come first, other structures later.", f"{pairs} pairs"),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the settings, the measurements and the claims, for JSON."""
        return {
            "experiment": "features",
            "features": FEATURES,
            "dims": DIMS,
            "importance_decay": DECAY,
            "steps": self.steps,
            "seed": self.seed,
            "models": [model.as_dict() for model in self.models],
            "claims": [claim._asdict() for claim in self.claims],
        }


def _described(model: FeatureModel) -> str:
    found = model.represented
    kept = f"features {found[0]} to {found[-1]}" if found == list(range(len(found))) and found else str(found)
    return f"{kept}; {len(model.dedicated)} dedicated"


def run_features(*, steps: int = STEPS, seed: int = 0, on_step: OnStep | None = None) -> Features:
    """Train a linear model at density 1 and ReLU models at all DENSITIES, from 4 random starts each.

    The start with the lowest loss counts.  ``on_step`` receives the number of finished steps, of 2 ``steps``
    in total.  The same seed gives the same bits on one machine.

    Raises ConfigError if ``steps`` is below 1.
    """
    generator = torch.Generator().manual_seed(seed)
    found: list[FeatureModel] = []
    for relu, densities in ((False, DENSITIES[:1]), (True, DENSITIES)):
        done = steps if relu else 0
        report = None if on_step is None else lambda step, done=done: on_step(done + step)
        found += _best_models(densities, relu, generator, steps, report)
    return Features(models=found, steps=steps, seed=seed)


def _best_models(
    densities: Sequence[float], relu: bool, generator: torch.Generator, steps: int, on_step: OnStep | None
) -> list[FeatureModel]:
    """Train STARTS models at each density, and return the best of each."""
    importance = DECAY ** torch.arange(FEATURES, dtype=torch.float32)  # [n]
    density = torch.tensor(densities).repeat_interleave(STARTS)  # [I]
    models = new_models(len(density), FEATURES, DIMS, generator=generator, relu=relu)
    draw = partial(sampled, density, FEATURES, _ROWS, generator)
    train(models, draw, importance, steps=steps, learning_rate=_LEARNING_RATE, on_step=on_step)
    means = _test_losses(models, density, importance, generator)
    shares = (means / (dropped_loss(density) * importance.sum())).view(-1, STARTS)  # [S, starts]
    return [
        FeatureModel(
            name="ReLU" if relu else "linear",
            density=value,
            weight=models.weight[i * STARTS + best].detach(),
            bias=models.bias[i * STARTS + best].detach(),
            loss=float(shares[i, best]),
        )
        for i, (value, best) in enumerate(zip(densities, shares.argmin(-1).tolist(), strict=True))
    ]


@torch.no_grad()
def _test_losses(
    models: ToyModels, density: Tensor, importance: Tensor, generator: torch.Generator
) -> Tensor:
    """Return the mean losses [I] on fresh inputs."""
    rows, draws = _TEST_ROWS

    def one() -> Inputs:
        return sampled(density, models.features, rows, generator)

    return torch.stack([losses(models, one(), importance) for _ in range(draws)]).mean(0)
