"""The settings of a generation, and the source of each: the caller, the checkpoint, or the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from wordloom.errors import CheckpointError, GenerationError, did_you_mean
from wordloom.generate.prompts import DEFAULT_NEW_TOKENS
from wordloom.generate.sampling import Sampling, new_seed

if TYPE_CHECKING:
    from wordloom.text import Tokenizer

CHECKPOINT = "generation_config.json"

# transformers' name: ours
_NAMES = {
    "max_new_tokens": "max_new_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "stop_strings": "stop",
}

# other keys of the file: those that change no token here, and those that are off at this value
_SILENT = ("do_sample", "eos_token_id", "bos_token_id", "pad_token_id", "use_cache")
_OFF: dict[str, Any] = {
    "num_beams": 1,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "min_length": 0,
    "max_length": 20,  # transformers' default, which it ignores beside max_new_tokens
    "length_penalty": 1.0,
    "diversity_penalty": 0.0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "cache_implementation": "dynamic",
}
# not in the printed line where they have their defaults, which do nothing
_QUIET = (
    "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias",
    "no_repeat_ngram", "stop", "stop_ids", "samples", "past",
)  # fmt: skip


class Settings(NamedTuple):
    """Settings, and the source of each: "given", "generation_config.json", "default" or "fresh" (a seed)."""

    sampling: Sampling
    sources: dict[str, str]
    eos_ids: tuple[int, ...]
    ignored: tuple[str, ...]

    @property
    def fit_new_tokens(self) -> bool:
        """Whether ``max_new_tokens`` is the checkpoint's, which a long prompt lowers, like the default."""
        return self.sources["max_new_tokens"] == CHECKPOINT

    def line(self, *, fills_context: bool = False) -> str:
        """Return the settings in one line, by source, without those that are off by default.

        ``fills_context`` is that of :func:`shown`.
        """
        parts = []
        for source in ("given", CHECKPOINT, "default", "fresh"):
            said = [
                f"{name} {shown(name, getattr(self.sampling, name), fills_context=fills_context)}"
                for name, origin in self.sources.items()
                if origin == source and not (source == "default" and name in _QUIET)
            ]
            if said:
                parts.append(f"{source}: {', '.join(said)}")
        return " | ".join(parts)

    @property
    def ignored_line(self) -> str | None:
        """One line that names the unsupported settings of the checkpoint; None if there are none."""
        if not self.ignored:
            return None
        return f"{CHECKPOINT} also sets {', '.join(self.ignored)}, which Wordloom does not support: ignored"

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return a dict of field to value and source, for JSON."""
        return {
            name: {"value": getattr(self.sampling, name), "from": source}
            for name, source in self.sources.items()
        }


def shown(name: str, value: Any, *, fills_context: bool = False) -> str:
    """Return the value of a setting as text.

    ``fills_context`` says that a text without ``max_new_tokens`` may fill the context.
    """
    if name == "max_new_tokens" and value is None:
        return "up to the end of the context" if fills_context else f"up to {DEFAULT_NEW_TOKENS}"
    if value is None or value == ():
        return "off"
    if isinstance(value, tuple):
        return " ".join(repr(item) for item in value)
    return str(value)


def settings(
    checkpoint: Mapping[str, Any], given: Mapping[str, Any], *, tokenizer: Tokenizer | None = None
) -> Settings:
    """Join the caller's settings, ``given`` by Wordloom's names, with a checkpoint's generation_config.

    The caller's settings come first, then the checkpoint's, then the defaults.  A seed is drawn where there
    is none.  A checkpoint with ``do_sample: false`` is greedy.  ``ignored`` names settings of the checkpoint
    that Wordloom does not support.

    Raises GenerationError for an unknown name or a value out of range in ``given``, CheckpointError for a
    malformed generation_config, and for a value out of range in it that ``given`` does not replace.
    """
    _check(checkpoint)
    names = [field.name for field in fields(Sampling)]
    for name in given:
        if name not in names:
            raise GenerationError(f"unknown sampling setting '{name}'; {did_you_mean(name, names)}")
    values: dict[str, Any] = {}
    sources = dict.fromkeys(names, "default")
    theirs = {_NAMES[key]: value for key, value in checkpoint.items() if key in _NAMES and value is not None}
    if checkpoint.get("do_sample") is False:
        theirs["temperature"] = 0.0
    _check_values({name: value for name, value in theirs.items() if name not in given})
    for source, some in ((CHECKPOINT, theirs), ("given", given)):
        for name, value in some.items():
            values[name], sources[name] = value, source
    if values.get("seed") is None:
        values["seed"], sources["seed"] = new_seed(), "fresh"
    ends = checkpoint.get("eos_token_id")
    eos_ids = [] if ends is None else list(ends) if isinstance(ends, list) else [ends]
    if tokenizer is not None and tokenizer.eos_id is not None and tokenizer.eos_id not in eos_ids:
        eos_ids.append(tokenizer.eos_id)
    ignored = [
        key
        for key, value in checkpoint.items()
        if key not in _NAMES
        and key not in _SILENT
        and not key.startswith(("_", "transformers", "output_", "return_"))
        and value not in (None, False, [], {})
        and value != _OFF.get(key)
    ]
    return Settings(Sampling(**values), sources, tuple(eos_ids), tuple(ignored))


def _check(checkpoint: Any) -> None:
    """Raise CheckpointError unless ``checkpoint`` has the form of a generation_config."""
    if not isinstance(checkpoint, Mapping):
        raise CheckpointError(
            f"{CHECKPOINT} holds {_short(checkpoint)}, not a table of settings; correct or remove it"
        )
    for key, fits, what in (
        ("eos_token_id", lambda item: type(item) is int and item >= 0, "a token id or a list of such"),
        ("stop_strings", lambda item: isinstance(item, str), "a text or a list of such"),
        ("do_sample", lambda item: isinstance(item, bool), "true or false"),
    ):
        value = checkpoint.get(key)
        items = value if isinstance(value, list) and key != "do_sample" else [value]
        if value is not None and not all(map(fits, items)):
            raise CheckpointError(
                f"{CHECKPOINT} or config.json: {key} is {_short(value)}, not {what}; correct or remove it"
            )


def _check_values(theirs: Mapping[str, Any]) -> None:
    """Raise CheckpointError if a value of a generation_config, by Wordloom's name, is out of range."""
    try:
        Sampling(**theirs)
    except GenerationError as error:
        raise CheckpointError(f"{CHECKPOINT}: {error}; correct or remove the setting in this file") from None


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 60 else said[:59] + "…"
