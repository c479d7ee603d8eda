"""config.json, both ways: transformers' settings where it computes the same model, ours otherwise."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from wordloom.errors import CheckpointError, ConfigError, did_you_mean
from wordloom.models import TaskConfig, config_from, family_of
from wordloom.weights.families import bag_of_words, bert, bert_generation, gpt2, llama, marian
from wordloom.weights.families.task_heads import (
    HEAD,
    config_with_head,
    json_with_head,
    task_of,
    with_stored_language_model,
)
from wordloom.weights.formats import OWN, Format, own_format, refuse_unless
from wordloom.weights.tensors import complete, open_tensors, read_json

log = logging.getLogger(__name__)

FORMATS: dict[str, Format] = {
    "gpt": gpt2.GPT,
    "gpt2": gpt2.FORMAT,
    "llama": llama.FORMAT,
    "rnn": own_format("rnn"),
    "cbow": own_format("cbow"),
    "seq2seq": own_format("seq2seq"),
    "transformer": marian.FORMAT,
    "bert": bert.FORMAT,
    "roberta": bert.ROBERTA,
    "bert_generation": bert_generation.FORMAT,
    "bag_of_words": bag_of_words.FORMAT,
    "rnn_classifier": own_format("rnn_classifier", generates=False, has_token_ids=False),
}

# Models with sliding windows that look like a LLaMA or a GPT-2, and compute something else.
_GEMMA = "a Gemma adds 1 to the weights of its norms and scales its embeddings"
_OTHERWISE = {
    "gemma": _GEMMA,
    "gemma2": _GEMMA + ", and Gemma 2 caps its scores",
    "gemma3": _GEMMA,
    "gemma3_text": _GEMMA,
    "gpt_neo": "a GPT-Neo does not scale its attention scores",
    "cohere": "a Cohere runs attention and feed-forward side by side",
    "cohere2": "a Cohere runs attention and feed-forward side by side",
    "qwen2": "a Qwen2 has biases in q, k and v alone",
}

ADAPTER_CONFIG = "adapter_config.json"  # of peft
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

# Keys of config.json that identify the tokenizers a model was trained with.
VOCABULARIES = ("vocabulary", "source_vocabulary")

# Settings that may be None, and the attributes with the values that they then take.
_RESOLVED = {
    "n_kv_heads": "kv_heads",
    "head_dim": "head_width",
    "n_decoder_layers": "decoder_layers",
    "mlm_activation": "mlm_head_activation",
}


def format_of(config: Any) -> Format:
    """Return the format of the family of ``config``; for a model with a task head, that of its body."""
    if isinstance(config, TaskConfig):
        return replace(FORMATS[family_of(config.body)], generates=False)
    return FORMATS[family_of(config)]


def config_to_json(config: Any, tokens: Mapping[str, int | None] | None = None) -> dict[str, Any]:
    """Return the contents of config.json for ``config``.

    A model that transformers has gets its keys and its model_type.  Settings that those keys cannot express
    (dropout in a LLaMA, settings left open) go under ``"wordloom"``, so that reading gives an equal config.
    Any other model (sinusoidal positions, GPT-2 without biases, ...) gets ``"model_type": "wordloom-FAMILY"``
    and our keys.  ``tokens`` holds bos_token_id, eos_token_id and pad_token_id.  An absent one is written as
    null, because transformers would otherwise use the released model's.
    """
    if isinstance(config, TaskConfig):
        return json_with_head(config_to_json(config.body, tokens), config)
    family = family_of(config)
    ids = {key: (tokens or {}).get(key) for key in TOKEN_IDS if FORMATS[family].has_token_ids}
    theirs = FORMATS[family].written(config)
    if theirs is None:
        return {"model_type": OWN + family, **_plain(asdict(config)), **ids}
    ours = asdict(config)
    read = asdict(_config_from_settings(family, theirs))
    extra = {key: value for key, value in ours.items() if read[key] != value}
    return {
        "architectures": [FORMATS[family].architecture],
        "model_type": FORMATS[family].model_type,
        **theirs,
        **ids,
        **FORMATS[family].token_settings(ids),
        **({"wordloom": _plain(extra)} if extra else {}),
    }


def config_to_own_json(config: Any) -> dict[str, Any]:
    """Return the contents of a config.json for ``config`` under our own model type, with all its settings.

    Unlike those of :func:`config_to_json`, they name the heads even without the stored tensors.
    """
    if isinstance(config, TaskConfig):
        return json_with_head(config_to_own_json(config.body), config)
    return {"model_type": OWN + family_of(config), **_plain(asdict(config))}


def config_from_json(theirs: Mapping[str, Any]) -> Any:
    """Return our config from the contents of a config.json.

    Raises CheckpointError for an unknown model_type, a setting of the wrong type, and a setting that changes
    the computation and is not supported.
    """
    if task_of(theirs) is not None:
        return config_with_head(theirs, config_from_json(_without_head(theirs)))
    model_type = theirs.get("model_type")
    known = {
        name: family for family, form in FORMATS.items() for name in (form.model_type, *form.other_types)
    }
    known |= {OWN + family: family for family, form in FORMATS.items() if form.has_token_ids}
    if isinstance(model_type, str) and model_type in _OTHERWISE:
        raise CheckpointError(f"models of type {model_type!r} are not read here: {_OTHERWISE[model_type]}")
    if not isinstance(model_type, str) or model_type not in known:
        problem = (
            "names no model_type" if model_type is None else f"has the unknown model_type {model_type!r}"
        )
        raise CheckpointError(f"it {problem}; {did_you_mean(str(model_type), known)}")
    refuse_unless(theirs, quantization_config=None, pruned_heads={})
    family = known[model_type]
    if model_type == OWN + family:
        # any other key must be a setting: an unknown one is an error that names it
        other = {"model_type", "dtype", "source_tokenizer", *VOCABULARIES, *TOKEN_IDS}
        return _build(family, {key: value for key, value in theirs.items() if key not in other})
    config = _config_from_settings(family, theirs)
    extra = theirs.get("wordloom") or {}
    if not isinstance(extra, Mapping):
        raise CheckpointError(f'"wordloom" must be a table of settings, not {extra!r}')
    if not extra:
        return config
    unknown = set(extra).difference(field.name for field in fields(config))
    if unknown:
        raise CheckpointError(f'"wordloom" holds unknown settings: {", ".join(sorted(unknown))}')
    extended = _build(family, asdict(config) | dict(extra))
    if FORMATS[family].written(extended) != FORMATS[family].written(config):
        # another tool changed its own keys and kept ours: the weights were saved with its keys
        log.warning('ignoring "wordloom" settings that contradict the rest of config.json: %s', dict(extra))
        return config
    return extended


def _without_head(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the body alone."""
    body = {key: value for key, value in theirs.items() if key not in (HEAD, "architectures")}
    if isinstance(body.get("wordloom"), Mapping):
        body["wordloom"] = {key: value for key, value in body["wordloom"].items() if key != HEAD}
    return body


def _config_from_settings(family: str, theirs: Mapping[str, Any]) -> Any:
    """Return the config of transformers' keys alone; a value that equals the default of None becomes None."""
    form = FORMATS[family]
    config = _build(family, form.config_from(form.without_aliases(theirs)))
    written = form.written(config)
    for field in fields(config):
        if written is not None and field.default is None and getattr(config, field.name) is not None:
            with suppress(ConfigError):  # the default is impossible beside the other settings
                left_open = replace(config, **{field.name: None})
                if form.written(left_open) == written:
                    config = left_open
    return config


def _build(family: str, settings: dict[str, Any]) -> Any:
    try:
        return config_from(family, **settings)
    except ConfigError as error:
        raise CheckpointError(str(error)) from None


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: dict(value) if isinstance(value, Mapping) else value for key, value in settings.items()}


def load_config(folder: str | Path) -> Any:
    """Return the config of a checkpoint folder; raise CheckpointError as :func:`config_from_json`.

    The names of the stored tensors decide what config.json leaves open.
    """
    path = Path(folder) / "config.json"
    complete(path.parent)
    if not path.exists() and (path.parent / ADAPTER_CONFIG).exists():
        raise CheckpointError(
            f"{folder} holds an adapter, not a model; merge it first: wordloom merge BASE --adapter {folder} "
            "--out FOLDER"
        )
    theirs = read_json(path)
    try:
        config = config_from_json(theirs)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    if isinstance(config, TaskConfig):
        return with_stored_language_model(config, open_tensors(path.parent).entries)
    refine = FORMATS[family_of(config)].refine
    if refine is None or theirs["model_type"].startswith(OWN):
        return config
    return refine(config, open_tensors(path.parent).entries)


def require_equal_settings(stored: Any, config: Any, folder: Path, *, may_differ: Collection[str]) -> None:
    """Raise CheckpointError unless both configs compute the same function from equal weights.

    ``stored`` was read from ``folder``.  Dropouts and the settings in ``may_differ`` are not compared.
    """
    if type(stored) is not type(config):
        raise CheckpointError(f"{folder} holds a {family_of(stored)}, the model is a {family_of(config)}")
    for field in fields(config):
        if field.name.endswith("dropout") or field.name in may_differ:
            continue
        name = _RESOLVED.get(field.name, field.name)
        theirs, ours = getattr(stored, name), getattr(config, name)
        if theirs != ours:
            raise CheckpointError(
                f"{folder} has {field.name} {theirs!r}, the model has {ours!r}; set "
                f"model.{field.name}={json.dumps(theirs)}"
            )
