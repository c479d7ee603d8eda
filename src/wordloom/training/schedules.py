"""Learning-rate schedules: a share of the peak at each step, pure functions of the step."""

from __future__ import annotations

import math
from collections.abc import Callable

from wordloom.recipe import TrainSettings


def _constant(step: int, total: int, s: TrainSettings) -> float:
    return 1.0


def _linear(step: int, total: int, s: TrainSettings) -> float:
    return 1.0 - (1.0 - s.final_share) * _progress(step, s.warmup_steps, total)


def _cosine(step: int, total: int, s: TrainSettings) -> float:
    """Half a cosine from the peak to ``final_share`` (Loshchilov & Hutter 2016, arXiv:1608.03983)."""
    return s.final_share + (1.0 - s.final_share) * 0.5 * (
        1.0 + math.cos(math.pi * _progress(step, s.warmup_steps, total))
    )


def _warmup_stable_decay(step: int, total: int, s: TrainSettings) -> float:
    """The peak until the last ``decay_share`` of all steps, then straight down (Hu et al. 2024, "MiniCPM",
    arXiv:2404.06395, section 4)."""
    start = total - round(total * s.decay_share)
    return 1.0 - (1.0 - s.final_share) * _progress(step, max(start, s.warmup_steps), total)


def _inverse_sqrt(step: int, total: int, s: TrainSettings) -> float:
    """min(n / warmup, sqrt(warmup / n)) at step n, counted from 1 (Vaswani et al. 2017, section 5.3)."""
    warmup = max(1, s.warmup_steps)
    return min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))


def _epoch_decay(step: int, total: int, s: TrainSettings) -> float:
    """The peak for ``flat_epochs``, then ``decay_factor`` times less in each (Zaremba et al. 2014)."""
    assert s.epochs is not None
    epoch = int((step + 1e-6) * s.epochs / total)  # of the step, from 0
    return s.decay_factor ** max(0, epoch + 1 - s.flat_epochs)


def _progress(step: int, start: int, total: int) -> float:
    """0 at ``start``, 1 at the last step."""
    if step < start:
        return 0.0
    return min(1.0, (step - start) / max(1, total - 1 - start))


SCHEDULES: dict[str, Callable[[int, int, TrainSettings], float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "warmup_stable_decay": _warmup_stable_decay,
    "inverse_sqrt": _inverse_sqrt,
    "epoch_decay": _epoch_decay,
}


def learning_rate_share(step: int, total: int, settings: TrainSettings) -> float:
    """Return the share of the peak learning rate at ``step`` (counted from 0) of ``total``.

    Warm-up is linear and reaches the peak at step ``warmup_steps``.  The first step is never 0.  The schedule
    "inverse_sqrt" has its own warm-up, which reaches the peak one step earlier.
    """
    share = SCHEDULES[settings.schedule](step, total, settings)
    if step < settings.warmup_steps and settings.schedule != "inverse_sqrt":
        share *= (step + 1) / (settings.warmup_steps + 1)
    return share
