"""The paper's claims beside what an experiment measured."""

from __future__ import annotations

from typing import NamedTuple


class Claim(NamedTuple):
    """One claim of the paper, and the measurement that agrees with it or not."""

    paper: str
    measured: str
