"""``/v1/models/NAME/card``: what a model is, and how it was trained."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from torch import nn

from wordloom.data.rows.labelled import DEFAULT_COLUMNS, columns_in
from wordloom.data.sets.catalogue import DATASETS
from wordloom.evaluate.masked import mask_id_of
from wordloom.generate.prompts import DEFAULT_NEW_TOKENS
from wordloom.generate.settings import settings
from wordloom.models import body_config, family_of
from wordloom.run.checkpoint.kinds import Kind
from wordloom.run.models.heads.classification import TextClassifier
from wordloom.run.models.heads.regression import TextRegressor
from wordloom.run.models.heads.token_classification import TokenClassifier
from wordloom.run.models.language_model import LanguageModel
from wordloom.run.models.text_encoder import TextEncoder
from wordloom.serve.api.writing import using
from wordloom.serve.models import Served
from wordloom.text import Tokenizer
from wordloom.vectors import FastTextClassifier

router = APIRouter()

MOST_BYTES = 1 << 18  # that are read of a file
_READ_TEXTS = (TextClassifier, TextRegressor, TokenClassifier)


@router.get("/v1/models/{name:path}/card")
async def card(name: str, http: HttpRequest) -> dict[str, Any]:
    """Return the card of a model, which is loaded if needed."""
    async with using(http, name) as (served, adapter):
        folder = served.source.folder if adapter is None else served.source.adapters[adapter]
        kind = served.kind if adapter is None else served.adapted[adapter].kind
        recipe = _text(folder / "recipe.toml")
        facts = _parsed(recipe)
        return {
            "id": name,
            "kind": served.description if adapter is None or kind is None else kind.description,
            "bytes": served.n_bytes,
            "context": None if served.engine is None else served.engine.room,
            **_network(served),
            "tokenizer": _tokenizer(served),
            **_writing(served.as_described(adapter), kind),
            "mask_token": _mask_token(served),
            "texts": _texts(served, kind, facts),
            "description": _line(facts.get("description")),
            "example": _line(_table(facts, "train").get("sample_prompt")),
            "metrics": _last_metrics(folder),
            "recipe": recipe,
        }


def _network(served: Served) -> dict[str, Any]:
    """Return the family and the number of parameters, without those of an adapter."""
    family = None if served.checkpoint is None else family_of(body_config(served.checkpoint.config))
    network = getattr(served.model, "model", None)
    n = sum(each.numel() for each in network.parameters()) if isinstance(network, nn.Module) else None
    return {"family": family, "parameters": n}


def _tokenizer(served: Served) -> dict[str, Any] | None:
    tokenizer = getattr(served.model, "tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        return None
    return {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size}


def _writing(lm: Any, kind: Kind | None) -> dict[str, Any]:
    """Return whether the model chats, its system message, and the settings of its checkpoint."""
    generates = kind is not None and kind.result is LanguageModel
    if not generates or not isinstance(lm, LanguageModel) or lm.tokenizer is None:
        return {"chat": False, "system": None, "sampling": None}
    chosen = settings(lm.generation_defaults, {}, tokenizer=lm.tokenizer).as_dict()
    sampling = {name: each for name, each in chosen.items() if name != "seed"}
    chats = lm.tokenizer.chat_template is not None
    if not chats and sampling["max_new_tokens"]["value"] is None:  # as /v1/completions has it
        sampling["max_new_tokens"] = {"value": DEFAULT_NEW_TOKENS, "from": "default"}
    return {"chat": chats, "system": lm.system, "sampling": sampling}


def _mask_token(served: Served) -> str | None:
    """Return the mask token of an encoder with a masked-LM head; None for another model."""
    encoder = served.model
    if not isinstance(encoder, TextEncoder) or not encoder.config.masked_lm_head:
        return None
    mask = mask_id_of(encoder.model, encoder.text_tokenizer)
    return None if mask is None else encoder.text_tokenizer.id_to_token(mask)


def _texts(served: Served, kind: Kind | None, recipe: Mapping[str, Any]) -> int | None:
    """Return how many texts a model reads at once: 1, or 2 if it was trained on pairs.

    None for a model that is no classifier, regression or token classification, and for one that can read both
    and has no recipe in its folder.
    """
    if isinstance(served.model, FastTextClassifier):
        return 1
    if kind is None or kind.prediction is None or kind.result not in _READ_TEXTS:
        return None
    if kind.prediction.most_texts == 1:
        return 1
    return _texts_in_training(recipe) if recipe else None


def _texts_in_training(recipe: Mapping[str, Any]) -> int:
    """Return the number of text columns in the training data of a recipe."""
    data = _table(recipe, "data")
    if "text_column" in data:
        return len(columns_in(data["text_column"]))
    train = data.get("train")
    first = train[0] if isinstance(train, list) and train else train
    named = DATASETS.get(str(first).partition("/")[0])
    columns = DEFAULT_COLUMNS if named is None or named.columns is None else named.columns
    return len(columns.texts)


def _parsed(recipe: str | None) -> dict[str, Any]:
    """Return the values of a recipe; none if it is missing or is no TOML."""
    try:
        return tomllib.loads(recipe or "")
    except tomllib.TOMLDecodeError:
        return {}


def _table(recipe: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = recipe.get(name)
    return found if isinstance(found, dict) else {}


def _line(value: object) -> str | None:
    """Return a text of a recipe without line breaks; None without one."""
    return " ".join(value.split()) or None if isinstance(value, str) else None


def _last_metrics(folder: Path) -> dict[str, Any]:
    """Return the last line of each kind in metrics.jsonl, by kind."""
    found: dict[str, Any] = {}
    for line in (_text(folder / "metrics.jsonl") or "").splitlines():
        try:
            row = json.loads(line, parse_constant=lambda _: None)
        except ValueError:  # the end of a longer line, or a line that is being written
            continue
        if isinstance(row, dict):
            found[str(row.pop("kind", "metrics"))] = row
    return found


def _text(path: Path) -> str | None:
    """Return the end of a text file; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MOST_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return None
