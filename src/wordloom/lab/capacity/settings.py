"""The settings of one run of the capacity experiment."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from wordloom.errors import ConfigError, did_you_mean
from wordloom.lab.capacity.facts import Facts
from wordloom.lab.capacity.facts.bio_d import BioD
from wordloom.lab.capacity.facts.bio_s import BioS
from wordloom.recipe import TrainSettings

FAMILIES = ("gpt2", "llama", "lstm")
DATA = {"bioD": BioD, "bioS": BioS}
PRECISIONS = ("fp32", "bf16")
_MOST_WARMUP = 1_000  # steps, as in the paper
_PEOPLE_PER_ROW = {"bioD": 50, "bioS": 500}  # of a step: both give 50 to 75 steps in an exposure


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one run.

    Attributes:
        data: one of DATA.
        family: one of FAMILIES.
        people: N.
        exposures: how often training shows each person.
        seed: the random seed of the facts, their orders and the initial weights.
        dim: the width of the embeddings and of Transformer layers.
        layers: the number of layers.
        batch_size: rows in an optimizer step: people of bioD, windows of bioS.  None: N / 50 people, or
            N / 500 windows, as in the paper.
        learning_rate: the peak learning rate.
        weight_decay: the decoupled weight decay.
        precision: one of PRECISIONS.
    """

    people: int
    exposures: int
    data: str = "bioD"
    family: str = "gpt2"
    seed: int = 0
    dim: int = 64
    layers: int = 2
    batch_size: int | None = None
    learning_rate: float = 1e-3
    weight_decay: float = 0.02
    precision: str = "fp32"

    def __post_init__(self) -> None:
        for name, known in (("data", DATA), ("family", FAMILIES), ("precision", PRECISIONS)):
            if (given := getattr(self, name)) not in known:
                raise ConfigError(f"unknown {name} {given!r}; {did_you_mean(given, known)}")
        for name in ("exposures", "dim", "layers", "batch_size"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name} must be 1 or more, not {value}")
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"learning_rate must be above 0 and finite, not {self.learning_rate}")
        if not 0 <= self.weight_decay < 1_000:
            raise ConfigError(f"weight_decay must be from 0 to below 1,000, not {self.weight_decay}")
        facts = self.facts  # raises ConfigError for too many people
        if self.batch_size is not None and self.batch_size > (rows := facts.rows(self.exposures)):
            raise ConfigError(
                f"batch_size must be at most {rows:,}, the rows of all exposures, not {self.batch_size:,}"
            )

    @cached_property
    def facts(self) -> Facts:
        """The facts that the run teaches."""
        facts: Facts = DATA[self.data](people=self.people, seed=self.seed)
        return facts

    @property
    def rows(self) -> int:
        """The rows in an optimizer step."""
        return self.batch_size or max(1, round(self.people / _PEOPLE_PER_ROW[self.data]))

    @cached_property
    def steps(self) -> int:
        """The number of optimizer steps."""
        return math.ceil(self.facts.rows(self.exposures) / self.rows)

    def training(self, device: str = "cpu") -> TrainSettings:
        """Return the settings of the training loop on ``device``.

        A run of fewer than 5,000 steps has a warm-up of a fifth of its steps.
        """
        return TrainSettings.model_validate(
            {
                "steps": self.steps,
                "batch_size": self.rows,
                "seq_len": self.facts.window,
                "learning_rate": self.learning_rate,
                "weight_decay": self.weight_decay,
                "warmup_steps": min(_MOST_WARMUP, self.steps // 5),
                "device": device,
                "precision": self.precision,
                "compile": "off",
            }
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
