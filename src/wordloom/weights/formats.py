"""How one family is stored: the fields of a :class:`Format`, and transformers' names of activations.

"Theirs" means transformers' names and settings throughout this package, "ours" those of ``wordloom.models``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wordloom.errors import CheckpointError, did_you_mean
from wordloom.weights.renaming import Ignored, Renaming, Row

OWN = "wordloom-"  # model_type begins so for models that transformers lacks or would compute differently


@dataclass(frozen=True, kw_only=True)
class Format:
    """How one family lies in a Hugging Face folder.

    Attributes:
        model_type: transformers' name of the family, unless ``config_to`` names one.
        other_types: transformers' names of further families that are ours with other settings.
        architecture: transformers' class, unless ``config_to`` names one.
        writes_patterns: ``config_to`` takes configs whose attention has a pattern; other formats have none.
        config_from: reads our settings from a config.json; raises CheckpointError for a setting that changes
            the computation and is not supported.
        config_to: writes their settings, or returns None if transformers would compute another function; the
            model is then stored under a model type of our own.
        table: the names and layouts of all tensors.
        prefixes: what the body's names may start with; see :class:`Renaming`.
        ignored: stored tensors that the model has no use for.
        renaming: replaces ``table`` if the table depends on the config; takes the config and our names.
        refine: returns the config that fits the names of the stored tensors, if config.json leaves it open.
        aliases: second names of settings -> the names that ``config_from`` reads (transformers'
            ``attribute_map``).
        generates: the model writes text, so the folder has a generation_config.json.
        has_token_ids: config.json holds bos_token_id, eos_token_id and pad_token_id.
        starts_with_bos: an encoder-decoder's source and prefix start with bos (BERT's [CLS]) if the tokenizer
            has it; otherwise the prefix starts with padding and the source with nothing.
        token_settings: further settings of config.json and generation_config.json that follow from those ids.
    """

    model_type: str
    architecture: str
    config_from: Callable[[Mapping[str, Any]], dict[str, Any]]
    config_to: Callable[[Any], dict[str, Any] | None]
    table: Sequence[Row] = ()
    other_types: tuple[str, ...] = ()
    writes_patterns: bool = False
    prefixes: tuple[str, ...] = ("",)
    ignored: Sequence[Ignored] = ()
    renaming: Callable[[Any, Collection[str]], Renaming] | None = None
    refine: Callable[[Any, Collection[str]], Any] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    generates: bool = True
    has_token_ids: bool = True
    starts_with_bos: bool = False
    token_settings: Callable[[Mapping[str, int | None]], dict[str, int]] = lambda ids: {}

    def written(self, config: Any) -> dict[str, Any] | None:
        """Return transformers' settings for ``config``; None if transformers computes another function."""
        patterned = any(not pattern.is_full for pattern in getattr(config, "patterns", ()))
        return None if patterned and not self.writes_patterns else self.config_to(config)

    def without_aliases(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``theirs`` with every setting under its first name.

        Raises CheckpointError when a setting has two names and two values.
        """
        plain = dict(theirs)
        for alias, name in self.aliases.items():
            value = plain.pop(alias, None)
            if value is None:
                continue
            if plain.get(name, value) != value:
                raise CheckpointError(
                    f"{name} = {plain[name]!r} and {alias} = {value!r} are one setting with two values; "
                    "remove the wrong one"
                )
            plain[name] = value
        return plain


def own_format(family: str, *, generates: bool = True, has_token_ids: bool = True) -> Format:
    """Return the format of a family that transformers lacks: our model type, settings and names."""

    def config_from(_: object) -> dict[str, Any]:
        raise CheckpointError(f"a model of family {family} is stored under our own settings alone")

    return Format(
        model_type=OWN + family,
        architecture="",
        config_from=config_from,
        config_to=lambda config: None,
        generates=generates,
        has_token_ids=has_token_ids,
    )


GPT_ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}

# Ours -> theirs (keys of transformers' ACT2FN).
ACTIVATION_NAMES = {
    "gelu_tanh": "gelu_new",
    "gelu": "gelu",
    "silu": "silu",
    "relu": "relu",
    "sigmoid": "sigmoid",
    "identity": "linear",
}
_ACTIVATIONS = {theirs: ours for ours, theirs in ACTIVATION_NAMES.items()} | {
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "swish": "silu",
}


def refuse_unless(theirs: Mapping[str, Any], **supported: Any) -> None:
    """Raise CheckpointError if a setting is present and differs from the one supported value."""
    for key, value in supported.items():
        stored = theirs.get(key)
        if stored is not None and stored != value:
            raise CheckpointError(f"unsupported setting {key} = {stored!r}; only {value!r} is computed here")


class Setting(NamedTuple):
    """One key of a config.json and the setting of ours that it holds.

    Attributes:
        theirs: the key.
        ours: the setting.
        default: transformers' value for a missing key.
        written: the attribute to write, if the setting may be None.
        read: False for a key that repeats another one.
    """

    theirs: str
    ours: str
    default: Any = None
    written: str | None = None
    read: bool = True


class Settings:
    """A table of the settings that one name in each config expresses.

    Args:
        rows: in the order of config.json.
        only: other keys, each with the one supported value.
        activations: their names of activations -> ours.
        activation_names: our names of activations -> theirs.
    """

    def __init__(
        self,
        *rows: Setting,
        only: Mapping[str, Any] | None = None,
        activations: Mapping[str, str] = _ACTIVATIONS,
        activation_names: Mapping[str, str] = ACTIVATION_NAMES,
    ) -> None:
        self.rows, self.only = rows, only or {}
        self.activations, self.activation_names = activations, activation_names

    def read(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Return our settings from a config.json; raise CheckpointError for an unsupported value."""
        refuse_unless(theirs, **self.only)
        settings = {}
        for row in self.rows:
            value = theirs.get(row.theirs, row.default)
            if row.ours == "activation":
                if not isinstance(value, str) or value not in self.activations:
                    hint = did_you_mean(str(value), self.activations)
                    raise CheckpointError(f"unsupported activation {row.theirs} = {value!r}; {hint}")
                value = self.activations[value]
            if row.read:
                settings[row.ours] = value
        return settings

    def write(self, config: Any) -> dict[str, Any]:
        """Return the keys of config.json for ``config``."""
        theirs = {}
        for row in self.rows:
            value = getattr(config, row.written or row.ours)
            if row.ours == "activation":
                value = self.activation_names[value]
            elif value is None and row.ours.endswith("_dropout"):
                value = config.dropout
            theirs[row.theirs] = value
        return theirs
