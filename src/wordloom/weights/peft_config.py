"""The settings of an adapter in peft's ``adapter_config.json``."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from wordloom.errors import CheckpointError
from wordloom.nn.lora import LoraSettings
from wordloom.weights.configs import ADAPTER_CONFIG
from wordloom.weights.renaming import listed
from wordloom.weights.tensors import complete, read_json

# Settings beside those of PeftConfig that change no result of a trained adapter: its name, modules that its
# tensors name, too, and settings of training or of another setting alone.
WITHOUT_EFFECT = frozenset(
    {
        *("peft_type", "peft_version", "task_type", "auto_mapping", "revision", "inference_mode", "bias"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "fan_in_fan_out"),
        *("init_lora_weights", "eva_config", "corda_config", "lora_ga_config", "loftq_config"),
        *("velora_config", "runtime_config", "megatron_core", "qalora_group_size"),
    }
)
# Values of init_lora_weights that leave the base as it is; all others subtract something from its weights.
_INITIALISATIONS = (True, False, None, "gaussian", "eva", "orthogonal", "mica")

HEADS = ("classifier", "pooler", "qa_outputs", "score")  # modules_to_save that can be read

Number = TypeVar("Number", int, float)


def _regular_expression(pattern: str) -> str:
    try:
        re.compile(_ending(pattern))
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression ({error})") from None
    return pattern


def _ending(pattern: str) -> str:
    """Return the regular expression that peft matches with the names of modules."""
    return rf"(.*\.)?({pattern})$"


Pattern = Annotated[str, AfterValidator(_regular_expression)]
Rank = Annotated[int, Field(ge=1)]
Alpha = Annotated[float, Field(gt=0, le=1e6)]  # a much larger one gives infinite weights


class PeftConfig(BaseModel):
    """The settings of peft's LoraConfig that are read; the defaults are peft's."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    base_model_name_or_path: str | None = None
    r: Rank = 8
    lora_alpha: Alpha = 8
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    use_rslora: bool = False
    use_dora: bool = False
    rank_pattern: dict[Pattern, Rank] | None = None
    alpha_pattern: dict[Pattern, Alpha] | None = None
    modules_to_save: list[str] | None = None

    def settings(self, names: Collection[str]) -> LoraSettings:
        """Return the settings of the module that has these ``names``."""
        return LoraSettings(
            rank=_chosen(self.rank_pattern, names, self.r),
            alpha=_chosen(self.alpha_pattern, names, self.lora_alpha),
            dropout=self.lora_dropout,
            rank_stabilised=self.use_rslora,
            dora=self.use_dora,
        )


def _chosen(patterns: Mapping[str, Number] | None, names: Collection[str], otherwise: Number) -> Number:
    """Return the value of the first pattern that matches one of ``names``."""
    for pattern, value in (patterns or {}).items():
        if any(re.match(_ending(pattern), name) for name in names):
            return value
    return otherwise


def read_peft_config(folder: Path) -> PeftConfig:
    """Return the settings of the adapter in ``folder``.

    Raises CheckpointError for a folder without an adapter, another kind of adapter than LoRA, settings that
    cannot be read, and settings that change the model in a way that we do not compute.
    """
    complete(folder)
    path = folder / ADAPTER_CONFIG
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no adapter: {ADAPTER_CONFIG} is missing")
    stored = read_json(path)
    if stored.get("peft_type") != "LORA":
        raise CheckpointError(f"{path}: peft_type is {stored.get('peft_type')!r}; only LORA can be read")
    if stored.get("bias", "none") != "none":
        raise CheckpointError(f"{path}: bias is {stored['bias']!r}; only 'none' can be read")
    _check_effects(path, stored)
    try:
        config = PeftConfig.model_validate(stored)
    except ValidationError as error:
        raise CheckpointError(f"{path}: {_explain(error)}; correct it, or save the adapter again") from None
    if others := sorted(set(config.modules_to_save or ()) - set(HEADS)):
        raise CheckpointError(
            f"{path}: modules_to_save names {listed(others)}; only heads can be read ({', '.join(HEADS)}); "
            "merge the adapter with peft first"
        )
    return config


def _check_effects(path: Path, stored: Mapping[str, Any]) -> None:
    """Raise CheckpointError for a setting that changes the model in a way that we do not compute."""
    known = PeftConfig.model_fields.keys() | WITHOUT_EFFECT
    changing = {name: value for name, value in stored.items() if value and name not in known}
    if stored.get("init_lora_weights") not in _INITIALISATIONS:
        changing["init_lora_weights"] = stored["init_lora_weights"]
    for name, value in changing.items():
        raise CheckpointError(
            f"{path}: {name} is {reprlib.repr(value)}, which changes the model in a way that Wordloom does "
            "not compute; merge the adapter into its base with peft first, if peft can"
        )


def _explain(error: ValidationError) -> str:
    """Return pydantic's first error as one line: the setting, its value, and the allowed values."""
    first = error.errors()[0]
    if first["type"] == "value_error":
        return f"{first['loc'][0]}: {first['ctx']['error']}"
    where, message = ".".join(map(str, first["loc"])), first["msg"]
    return f"{where} is {reprlib.repr(first['input'])}: {message[0].lower()}{message[1:]}"
