"""config.json, both ways: transformers' keys for what transformers computes as we do, ours for the rest."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from wordloom.errors import CheckpointError, ConfigError, did_you_mean
from wordloom.models import TaskConfig, config_from, family_of
from wordloom.weights.families import (
    bag_of_words,
    bert,
    bert_generation,
    gpt,
    gpt2,
    llama,
    marian,
    rnn,
    rnn_classifier,
    seq2seq,
)
from wordloom.weights.families.task_heads import HEAD, config_of_head, headed, language_model_in, task_of
from wordloom.weights.formats import Format, refuse_unless
from wordloom.weights.tensors import complete, open_tensors, read_json

__all__ = ["FORMATS", "OWN", "config_from_theirs", "config_to_theirs", "format_of", "load_config"]

log = logging.getLogger(__name__)

FORMATS: dict[str, Format] = {
    "gpt": gpt.FORMAT,
    "gpt2": gpt2.FORMAT,
    "llama": llama.FORMAT,
    "rnn": rnn.FORMAT,
    "seq2seq": seq2seq.FORMAT,
    "transformer": marian.FORMAT,
    "bert": bert.FORMAT,
    "roberta": bert.ROBERTA,
    "bert_generation": bert_generation.FORMAT,
    "bag_of_words": bag_of_words.FORMAT,
    "rnn_classifier": rnn_classifier.FORMAT,
}

# Models that transformers would read wrongly or not at all carry a model_type that it refuses.
OWN = "wordloom-"

TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

# What says which tokenizer a model learnt with.
VOCABULARIES = ("vocabulary", "source_vocabulary")


def format_of(config: Any) -> Format:
    """How the model of ``config`` lies in a folder; of a body with a head, how the body does."""
    if isinstance(config, TaskConfig):
        return replace(FORMATS[family_of(config.body)], generates=False)
    return FORMATS[family_of(config)]


def config_to_theirs(config: Any, tokens: Mapping[str, int | None] | None = None) -> dict[str, Any]:
    """config.json of ``config``: transformers' own keys and model_type when it computes the same model.

    What its keys cannot say without changing the model (dropout in a LLaMA, settings left open) goes
    under ``"wordloom"``, so that reading it back gives an equal config.  A model transformers does not
    have (sinusoidal positions, GPT-2 without biases, ...) gets ``"model_type": "wordloom-<family>"`` and
    our own keys.  ``tokens`` holds bos_token_id, eos_token_id and pad_token_id; those absent are written
    as null, because transformers would otherwise assume the released model's.
    """
    if isinstance(config, TaskConfig):
        return headed(config_to_theirs(config.body, tokens), config)
    family = family_of(config)
    ids = {key: (tokens or {}).get(key) for key in TOKEN_IDS if FORMATS[family].says_tokens}
    theirs = FORMATS[family].config_to(config)
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


def config_from_theirs(theirs: Mapping[str, Any]) -> Any:
    """Our config from the contents of a config.json.

    Raises CheckpointError for a model_type we do not have, a setting of the wrong type, and a setting
    that changes what is computed and is not supported, by name.
    """
    if task_of(theirs) is not None:
        return config_of_head(theirs, config_from_theirs(_of_body(theirs)))
    model_type = theirs.get("model_type")
    known = {form.model_type: family for family, form in FORMATS.items()}
    known |= {OWN + family: family for family, form in FORMATS.items() if form.says_tokens}
    if not isinstance(model_type, str) or model_type not in known:
        what = "names no model_type" if model_type is None else f"has the unknown model_type {model_type!r}"
        raise CheckpointError(f"it {what}; {did_you_mean(str(model_type), known)}")
    refuse_unless(theirs, quantization_config=None, pruned_heads={})
    family = known[model_type]
    if model_type == OWN + family:
        # nothing else is ours to ignore: an unknown setting is an error that names it
        not_ours = {"model_type", "dtype", "source_tokenizer", *VOCABULARIES, *TOKEN_IDS}
        return _build(family, {key: value for key, value in theirs.items() if key not in not_ours})
    config = _config_from_settings(family, theirs)
    extra = theirs.get("wordloom") or {}
    if not isinstance(extra, Mapping):
        raise CheckpointError(f'"wordloom" must be a table of settings, not {extra!r}')
    if not extra:
        return config
    unknown = set(extra).difference(field.name for field in fields(config))
    if unknown:
        raise CheckpointError(f'"wordloom" holds unknown settings: {", ".join(sorted(unknown))}')
    whole = _build(family, asdict(config) | dict(extra))
    if FORMATS[family].config_to(whole) != FORMATS[family].config_to(config):
        # another tool changed its own keys and kept ours: theirs are what the weights were saved with
        log.warning('ignoring "wordloom" settings that contradict the rest of config.json: %s', dict(extra))
        return config
    return whole


def _of_body(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """What a config.json says of the body alone."""
    rest = {key: value for key, value in theirs.items() if key not in (HEAD, "architectures")}
    if isinstance(rest.get("wordloom"), Mapping):
        rest["wordloom"] = {key: value for key, value in rest["wordloom"].items() if key != HEAD}
    return rest


def _config_from_settings(family: str, theirs: Mapping[str, Any]) -> Any:
    """The config of transformers' keys alone; a value that is the usual one becomes None."""
    form = FORMATS[family]
    config = _build(family, form.config_from(form.without_aliases(theirs)))
    written = form.config_to(config)
    for field in fields(config):
        if written is not None and field.default is None and getattr(config, field.name) is not None:
            left_open = replace(config, **{field.name: None})
            if form.config_to(left_open) == written:
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
    """The config of a checkpoint folder; raises CheckpointError as :func:`config_from_theirs`.

    Where config.json leaves open what a folder holds, the names of its weights decide.
    """
    path = Path(folder) / "config.json"
    complete(path.parent)
    try:
        theirs = read_json(path)
        config = config_from_theirs(theirs)
    except CheckpointError as error:
        message = str(error)
        raise CheckpointError(message if str(path) in message else f"{path}: {message}") from None
    if isinstance(config, TaskConfig):
        return language_model_in(config, open_tensors(path.parent).entries)
    refined = FORMATS[family_of(config)].refined
    if refined is None or theirs["model_type"].startswith(OWN):
        return config
    return refined(config, open_tensors(path.parent).entries)
