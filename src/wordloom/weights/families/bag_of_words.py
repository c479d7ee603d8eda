"""Bag of words on disk: our own model_type; the names of the classes are stored as in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wordloom.errors import CheckpointError
from wordloom.models.bag_of_words import BagOfWordsConfig
from wordloom.weights.formats import Format
from wordloom.weights.renaming import Row, layer_rows

_SETTINGS = ("vocab_size", "features", "max_ngram")


def _config_from(theirs: Mapping[str, Any]) -> dict[str, Any]:
    names = theirs.get("id2label")
    missing = [key for key in (*_SETTINGS, "id2label") if key not in theirs]
    if missing or not isinstance(names, Mapping):
        raise CheckpointError(f"a bag of words needs {', '.join(missing) or 'a table id2label'}")
    numbers = {str(name): number for number, name in enumerate(names.values())}
    if theirs.get("label2id", numbers) != numbers:
        raise CheckpointError(f"label2id {theirs['label2id']!r} is not the inverse of id2label {names!r}")
    return {**{key: theirs[key] for key in _SETTINGS}, "id2label": dict(names)}


def _config_to(config: BagOfWordsConfig) -> dict[str, Any]:
    return {
        **{key: getattr(config, key) for key in _SETTINGS},
        "id2label": dict(config.id2label),
        "label2id": {label: number for number, label in enumerate(config.labels)},
    }


FORMAT = Format(
    model_type="bag_of_words",
    architecture="BagOfWords",
    table=(*layer_rows("classifier", "classifier"), Row("idf", ("idf",))),
    config_from=_config_from,
    config_to=_config_to,
    generates=False,
    has_token_ids=False,
)
