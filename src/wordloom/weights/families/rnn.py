"""Recurrent models on disk: our own model_type and names, since transformers has none of them."""

from __future__ import annotations

from wordloom.errors import CheckpointError
from wordloom.weights.formats import Format

__all__ = ["FORMAT"]


def _never(_: object) -> dict[str, object]:
    raise CheckpointError("a recurrent model is stored under our own settings alone")


FORMAT = Format(
    model_type="wordloom-rnn",
    architecture="RNN",
    prefixes=("",),
    table=(),
    ignored=(),
    config_from=_never,
    config_to=lambda config: None,
)
