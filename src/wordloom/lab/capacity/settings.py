"""The settings of one run of the capacity experiment, and the models that it compares."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from wordloom.errors import ConfigError, did_you_mean
from wordloom.lab.capacity.facts import Facts
from wordloom.models.building.build import config_from
from wordloom.recipe import TrainSettings

FAMILIES = ("gpt2", "llama", "lstm")
HEAD_DIM = 64  # the paper's
_MOST_WARMUP = 1_000  # steps, as in the paper
_STEPS_PER_EXPOSURE = 50  # 1,000 exposures take about 50,000 steps, as in the paper


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one run.

    Attributes:
        family: one of FAMILIES.
        people: N.
        exposures: how often training shows each person.
        seed: the random seed of the facts, their orders and the initial weights.
        dim: the width of the embeddings and of Transformer layers.
        layers: the number of layers.
        batch_size: rows in an optimizer step; None: N / 50, which makes 50 steps in an exposure.
        learning_rate: the peak learning rate.
        weight_decay: the decoupled weight decay.
    """

    people: int
    exposures: int
    family: str = "gpt2"
    seed: int = 0
    dim: int = 64
    layers: int = 2
    batch_size: int | None = None
    learning_rate: float = 1e-3
    weight_decay: float = 0.02

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ConfigError(f"unknown family {self.family!r}; {did_you_mean(self.family, FAMILIES)}")
        for name in ("exposures", "dim", "layers", "batch_size"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name} must be 1 or more, not {value}")
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"learning_rate must be above 0 and finite, not {self.learning_rate}")
        if not 0 <= self.weight_decay < 1_000:
            raise ConfigError(f"weight_decay must be from 0 to below 1,000, not {self.weight_decay}")
        _ = self.facts  # raises ConfigError for too many people

    @property
    def facts(self) -> Facts:
        """The facts that the run teaches."""
        return Facts(people=self.people, seed=self.seed)

    @property
    def rows(self) -> int:
        """The rows in an optimizer step."""
        return self.batch_size or max(1, round(self.people / _STEPS_PER_EXPOSURE))

    @property
    def steps(self) -> int:
        """The number of optimizer steps."""
        return math.ceil(self.people * self.exposures / self.rows)

    def training(self, device: str = "cpu") -> TrainSettings:
        """Return the settings of the training loop on ``device``.

        A run of fewer than 5,000 steps has a warm-up of a fifth of its steps.
        """
        return TrainSettings.model_validate(
            {
                "steps": self.steps,
                "batch_size": self.rows,
                "seq_len": self.facts.predictions,
                "learning_rate": self.learning_rate,
                "weight_decay": self.weight_decay,
                "warmup_steps": min(_MOST_WARMUP, self.steps // 5),
                "device": device,
                "precision": "fp32",
                "compile": "off",
            }
        )

    @property
    def config(self) -> Any:
        """The config of the model.

        The hidden widths give the three families about the same number of parameters.  All tie the head to
        the embedding and have no dropout.  GPT-2 has learned positions, unlike the paper's rotary ones.
        """
        shape = {"vocab_size": self.facts.vocab_size, "dim": self.dim, "n_layers": self.layers}
        if self.family == "lstm":
            return config_from(
                "rnn", **shape, hidden_dim=round(1.25 * self.dim), tie_embeddings=True, output_bias=False
            )
        shape |= {"n_heads": max(1, self.dim // HEAD_DIM), "max_seq_len": self.facts.predictions}
        if self.family == "llama":
            shape["hidden_dim"] = round(2.75 * self.dim)
        return config_from(self.family, **shape, tie_embeddings=True)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
