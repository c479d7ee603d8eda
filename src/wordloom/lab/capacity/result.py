"""The result of a run: the bits that the model stores, beside the bits of all facts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from wordloom.errors import CheckpointError
from wordloom.lab.capacity.bits import StoredBits
from wordloom.lab.capacity.facts import Facts
from wordloom.lab.capacity.measuring import ROUNDINGS, Losses
from wordloom.lab.capacity.settings import Settings

RESULT = "result.json"
KINDS = ("fp32", *ROUNDINGS)  # of weights


class Knowledge(NamedTuple):
    """The losses of a model and the bits that they stand for."""

    losses: Losses
    stored: StoredBits

    @classmethod
    def of(cls, facts: Facts, losses: Losses) -> Knowledge:
        """Return the bits of ``losses``."""
        return cls(losses, facts.space.stored(facts.people, losses.nats))


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run.

    Attributes:
        settings: the settings of the run.
        parameters: P, without the rows of tokens that never occur.
        fp32: the knowledge of the trained weights.
        int8: the knowledge of the weights rounded to 8 bits.
        int4: the knowledge of the weights rounded to 4 bits.
    """

    settings: Settings
    parameters: int
    fp32: Knowledge
    int8: Knowledge
    int4: Knowledge

    @property
    def kinds(self) -> dict[str, Knowledge]:
        """The knowledge by kind of weights."""
        return {name: getattr(self, name) for name in KINDS}

    @property
    def most(self) -> StoredBits:
        """R_max, the bits of all facts."""
        return self.settings.facts.space.most(self.settings.people)

    def as_dict(self) -> dict[str, Any]:
        most = self.most.total
        return {
            "experiment": "capacity",
            "settings": self.settings.as_dict(),
            "steps": self.settings.steps,
            "batch_size": self.settings.rows,
            "parameters": self.parameters,
            "possible_bits": most,
            "possible_bits_per_parameter": most / self.parameters,
            **{
                name: {
                    "losses": each.losses._asdict(),
                    "bits": {**each.stored._asdict(), "total": each.stored.total},
                    "bits_per_parameter": each.stored.total / self.parameters,
                    "known_share": each.stored.total / most,
                }
                for name, each in self.kinds.items()
            },
        }


def read_result(folder: Path) -> Result:
    """Return the result of the finished run in ``folder``; raise CheckpointError for a damaged file."""
    try:
        saved = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        settings = Settings(**saved["settings"])
        kinds = {name: Knowledge.of(settings.facts, Losses(**saved[name]["losses"])) for name in KINDS}
        return Result(settings=settings, parameters=saved["parameters"], **kinds)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"cannot read {folder / RESULT}: {error}; remove the file and run again with --resume"
        ) from None
