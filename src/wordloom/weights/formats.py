"""What the families have in common on disk, and the names transformers gives to activations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wordloom.errors import CheckpointError, did_you_mean
from wordloom.weights.renaming import Ignored, Renaming, Row

__all__ = ["ACTIVATION_NAMES", "GPT_ALIASES", "Format", "activation_from", "refuse_unless"]


@dataclass(frozen=True, kw_only=True)
class Format:
    """How one family lies in a Hugging Face folder.

    ``config_from`` reads the settings of a config.json and raises CheckpointError for one that changes
    what is computed and is not ours; ``config_to`` writes them, or returns None for a model that
    transformers would not compute as we do, which is then stored under a model type of our own.
    ``begins_with_bos``: what the model reads and writes begins with bos, a BERT's [CLS], where the tokenizer
    has one; else nothing begins what it reads, and padding what it writes.  ``token_settings`` are more of
    its settings, of config.json and generation_config.json, that follow from bos_token_id, eos_token_id and
    pad_token_id.  ``renaming``, of a config and the names of our parameters, stands for ``table`` where that
    depends on the config.  ``refined``, of a config and the names of the stored tensors, is the config of
    what they hold, where config.json alone does not say it.  ``aliases`` maps second names of settings to
    the names that ``config_from`` reads, as the ``attribute_map`` of transformers' config does.
    """

    model_type: str
    architecture: str
    prefixes: tuple[str, ...]
    table: Sequence[Row]
    ignored: Sequence[Ignored]
    config_from: Callable[[Mapping[str, Any]], dict[str, Any]]
    config_to: Callable[[Any], dict[str, Any] | None]
    generates: bool = True  # text: its folder then says which tokens begin and end one
    says_tokens: bool = True  # config.json has their ids; a bag of words has its own vocabulary
    begins_with_bos: bool = False
    token_settings: Callable[[Mapping[str, int | None]], dict[str, int]] = lambda ids: {}
    renaming: Callable[[Any, Collection[str]], Renaming] | None = None
    refined: Callable[[Any, Collection[str]], Any] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)

    def without_aliases(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """``theirs`` with every setting under its first name.

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


def activation_from(
    theirs: Mapping[str, Any], key: str, default: str, names: Mapping[str, str] = _ACTIVATIONS
) -> str:
    """Our name of the activation under ``key``; raises CheckpointError for one we do not have."""
    name = theirs.get(key, default)
    if not isinstance(name, str) or name not in names:
        raise CheckpointError(f"unsupported activation {key} = {name!r}; {did_you_mean(str(name), names)}")
    return names[name]


def refuse_unless(theirs: Mapping[str, Any], **supported: Any) -> None:
    """Raise CheckpointError when a setting is given and is not the one value we compute."""
    for key, value in supported.items():
        given = theirs.get(key)
        if given is not None and given != value:
            raise CheckpointError(f"unsupported setting {key} = {given!r}; only {value!r} is computed here")
