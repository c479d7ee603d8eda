"""A recipe: everything that decides a training run, as data.

A recipe is a TOML file with the tables ``[data]``, ``[tokenizer]``, ``[model]`` and ``[train]``.  The recipes
in the package also have ``[result]``: the number that the recipe reproduces, and its source.  A recipe is
read strictly: an unknown key is an error with a suggestion, no value is converted, and nothing is executed.

>>> recipe = load_recipe("quickstart", ["train.steps=60", "model.n_layers=2"])
>>> recipe.train.steps
60
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from wordloom.errors import DataError, RecipeError
from wordloom.recipe.data import DATA, DataSettings, Encoding, HeldOut, Specials, Split, TextFiles
from wordloom.recipe.reading import FolderName, read_recipe, shipped_recipes
from wordloom.recipe.table import OneOf, OnlyIf, Table, unused_keys
from wordloom.recipe.training import MASKED, WITH_LANGUAGE_MODEL, TrainSettings

_Bert = OnlyIf("kind", ("bert",))
_Replace = OnlyIf("kind", ("replace",))
_Trained = OnlyIf("kind")
_Translation = OnlyIf("train.objective", ("translation",))
_ADAPTED = ("causal_lm", "instruction", "preference")  # objectives of models that take an adapter

AnyTable = TypeVar("AnyTable", bound=Table)


class Result(Table):
    """The result that a recipe of the package reproduces."""

    metric: str
    """Name of the metric, and the data it is measured on."""
    reference: float | None = None
    """Number that the result is compared with."""
    reference_kind: Literal["published", "baseline", "bound"] | None = None
    """Origin of the reference: a published result, a baseline that was run for comparison, or the project's
    own bound."""
    source: str = ""
    """Source of the reference."""
    measured: float | None = None
    """Measured result. Absent until the recipe has been run."""
    machine: str = ""
    """Machine and time of the measurement."""
    command: str = ""
    """Commands that reproduce the result."""
    note: str = ""
    """Further results, and how they were measured."""


class MaskingSettings(Table):
    """The masking of tokens; see :class:`wordloom.data.Masking`."""

    kind: Literal["bert", "replace"] = "bert"
    """bert: a share of the tokens is chosen, and most of them become the mask token. replace: a share of the
    words is masked, and another share replaced."""
    share: Annotated[float, _Bert] = Field(0.15, gt=0, le=1)
    """Share of the tokens that is chosen."""
    mask_share: Annotated[float, _Bert] = Field(0.8, ge=0, le=1)
    """Share of the chosen tokens that becomes the mask token."""
    random_share: Annotated[float, _Bert] = Field(0.1, ge=0, le=1)
    """Share of the chosen tokens that becomes a random token."""
    whole_words: Annotated[bool, _Bert] = False
    """Choose words with all their pieces."""
    mask_words: Annotated[float, _Replace] = Field(0.1, ge=0, le=1)
    """Share of the words that is masked."""
    substitute_words: Annotated[float, _Replace] = Field(0.0, ge=0, le=1)
    """Share of the words that is replaced by other words."""
    scored: Annotated[Literal["changed", "all"], _Replace] = "changed"
    """Tokens that are scored: the changed ones, or all."""
    placeholder: Literal["mask", "empty"] = "mask"
    """Token that replaces a masked one: the mask token, or [EMPTY], whose vector is zero."""
    dynamic: bool = True
    """Mask other tokens at every visit of a row."""

    @model_validator(mode="after")
    def _shares(self) -> MaskingSettings:
        if self.model_fields_set:
            from wordloom.data.batches.masking import Masking

            try:
                Masking(**self.model_dump(exclude={"dynamic"}))
            except DataError as error:
                raise ValueError(f"masking: {error}") from None
        return self


class OldTask(Specials, TextFiles, Split, Encoding, HeldOut):
    """Text that the starting checkpoint was trained on; its loss is reported before and after the run.

    The text is read as the checkpoint's own head needs it: masked for an encoder, as running text for all
    others.
    """

    train: str | list[str] | None = None
    """Text that the run trains on beside its own."""
    validation_fraction: Annotated[float, OnlyIf("validation", (None,))] = Field(0.1, gt=0, lt=1)
    """Share of old_task.train whose loss is measured."""
    document_mask: bool = False
    """data.document_mask for the old text."""
    mask_document_starts: bool | None = None
    """data.mask_document_starts for the old text."""
    masking: MaskingSettings = Field(default_factory=lambda: MaskingSettings.model_validate({}))
    """[masking] for the old text of an encoder."""
    seed: int = Field(1337, ge=0)
    """Seed of the masked tokens that are measured; equal to that of the first run."""
    seq_len: int | None = Field(None, ge=1)
    """Length of the old text's windows. By default train.seq_len."""
    evaluate_windows: int | None = Field(None, ge=1)
    """Windows per measurement. By default the whole text."""
    every_evaluation: bool = False
    """Measure at every evaluation of the new task, too."""

    @model_validator(mode="after")
    def _some_text(self) -> OldTask:
        if self.train is None and self.validation is None:
            raise ValueError(
                "[old_task] names no text: give old_task.validation, to measure, or old_task.train"
            )
        return self


class LoraTable(Table):
    """A low-rank adapter that is trained instead of the model (Hu et al. 2021)."""

    rank: int = Field(8, ge=1)
    """Rank of the update of a matrix."""
    alpha: float = Field(16.0, gt=0, le=10_000)
    """Scale of the update, times the rank. At most 10,000."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of the adapter's inputs that are dropped in training."""
    targets: list[str] = Field(default_factory=lambda: ["*_proj"], min_length=1)
    """Linear layers with an adapter: last parts of their names, or patterns with *. By default all matrices
    of the blocks."""
    rank_stabilised: bool = False
    """Divide alpha by the square root of the rank instead of the rank (Kalajdzievski 2023)."""
    dora: bool = False
    """Learn the norms of a matrix's rows apart from their directions (Liu et al. 2024)."""
    base: Literal["full", "int8"] = "full"
    """Weights of the model under the adapter: as trained (full), or in 8 bits (int8)."""


class TokenizerSettings(Table):
    """A tokenizer to train on the training text (``kind``), or one to read (``path``)."""

    kind: Literal["word", "char", "byte", "bpe", "wordpiece", "unigram"] | None = None
    """Kind of tokenizer to train on the training text."""
    path: str | None = None
    """Tokenizer to read: a folder or a file, instead of kind."""
    vocab_size: Annotated[int | None, _Trained] = Field(None, ge=1)
    """Size of the vocabulary, with the special tokens. The default depends on the kind."""
    lower: Annotated[bool, _Trained] = False
    """Lower-case the text."""
    min_frequency: Annotated[int | None, _Trained] = Field(None, ge=1)
    """Lowest count of a word, or of a pair to merge, in the training text."""
    special_tokens: Annotated[list[str] | None, _Trained] = None
    """Special tokens. By default those of the kind."""
    split: Annotated[str | None, _Trained] = None
    """How text is split first: gpt2 or llama3 (bpe, unigram), words or whitespace (word)."""
    separate: Annotated[bool, _Translation, _Trained] = False
    """Train one tokenizer for the sources and one for the targets."""
    source_vocab_size: Annotated[int | None, _Translation, OnlyIf("separate")] = Field(None, ge=1)
    """Vocabulary size of the sources' tokenizer. By default tokenizer.vocab_size."""
    source_path: Annotated[str | None, _Translation, OnlyIf("path")] = None
    """Tokenizer of the sources to read, if tokenizer.path is for the targets alone."""

    @model_validator(mode="after")
    def _one_source(self) -> TokenizerSettings:
        if (self.kind is None) == (self.path is None):
            raise ValueError("give either tokenizer.kind (to train one) or tokenizer.path (to read one)")
        return self


class Recipe(Table):
    """A recipe of a model; see the module docstring."""

    name: FolderName
    """Name of the run, whose folder is runs/NAME. A file's own name if left out."""
    description: str = ""
    """Purpose of the recipe."""
    seed: int = Field(1337, ge=0)
    """Seed of initialisation, data order, dropout and masking."""
    start_from: str | None = None
    """Checkpoint whose weights and tokenizer the run starts from (--from)."""
    result: Result | None = None
    """Result that the recipe reproduces."""
    train: TrainSettings
    """Training loop."""
    data: Annotated[SerializeAsAny[DataSettings], OneOf("train.objective", DATA)]
    """Training and validation data."""
    tokenizer: TokenizerSettings = Field(default_factory=TokenizerSettings.model_construct)
    """Tokenizer. Left out if the run starts from a checkpoint, which has one."""
    model: dict[str, Any] = Field(default_factory=dict)
    """Model: family or preset, and settings of the family's config."""
    masking: Annotated[MaskingSettings, OnlyIf("train.objective", MASKED)] = Field(
        default_factory=lambda: MaskingSettings.model_validate({})
    )
    """Masking of tokens."""
    lora: LoraTable | None = None
    """Adapter to train instead of the model, from a checkpoint. A fine-tuning head is trained with it."""
    old_task: Annotated[OldTask | None, OnlyIf("train.objective", excluded=("translation",))] = None
    """Text of the starting checkpoint, to measure or prevent forgetting."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unused(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and _objective(values) in DATA:  # pydantic refuses another objective
            for unused in unused_keys(cls, values):
                raise ValueError(str(unused))
        return values

    @field_validator("data", mode="before")
    @classmethod
    def _of_the_objective(cls, values: Any, info: ValidationInfo) -> Any:
        """Choose the class of ``[data]``; other objectives' keys are at their defaults and are left out."""
        if isinstance(values, DataSettings) or "train" not in info.data:
            return values if isinstance(values, DataSettings) else DataSettings.model_construct()
        kind = DATA[info.data["train"].objective]
        others = {name for each in DATA.values() for name in each.model_fields} - set(kind.model_fields)
        return kind.model_validate({key: value for key, value in values.items() if key not in others})

    def data_as(self, kind: type[AnyTable]) -> AnyTable:
        """Return ``data`` as the class that the run's objective has, or as a part of that class."""
        assert isinstance(self.data, kind), f"[data] is {type(self.data).__name__}, not {kind.__name__}"
        return self.data

    def check_family(self, family: str) -> None:
        """Raise RecipeError for a key without effect on models of ``family``, such as a checkpoint's."""
        for unused in unused_keys(Recipe, dict(self), {"model.family": family}):
            raise RecipeError(str(unused))

    @model_validator(mode="after")
    def _something_to_rehearse(self) -> Recipe:
        s, old = self.train, self.old_task
        weight, texts = s.language_model_weight, s.language_model_texts
        if weight and texts == "task" and s.objective not in WITH_LANGUAGE_MODEL:
            raise ValueError(
                f"train.language_model_weight is not a setting of train.objective {s.objective!r} with "
                'train.language_model_texts "task"; leave it out'
            )
        key = "train.rehearsal_share" if s.rehearsal_share is not None else None
        if weight and texts == "old":
            if key is not None:
                raise ValueError(
                    'train.rehearsal_share and train.language_model_texts "old" both train on the old task; '
                    "give one of them"
                )
            key = 'train.language_model_texts "old"'
        if key is not None:
            if old is None or old.train is None:
                raise ValueError(f"{key} needs old text: name it as old_task.train")
            if s.objective == "truncated_bptt" or s.long_seq_len is not None:
                why = "train.long_seq_len" if s.long_seq_len else f"train.objective '{s.objective}'"
                raise ValueError(f"{key} does not go with {why}; leave one of them out")
        return self

    @model_validator(mode="after")
    def _one_way_to_train(self) -> Recipe:
        if self.lora is not None and self.train.precision == "bf16-pure":
            raise ValueError('[lora] trains in fp32 or bf16, not train.precision "bf16-pure"')
        return self

    @model_validator(mode="after")
    def _something_to_evaluate(self) -> Recipe:
        if not self.data.holds_out and (self.train.evaluate_every or self.train.keep_best):
            raise ValueError(
                "train.evaluate_every and train.keep_best need validation text; set data.validation or "
                "data.validation_fraction, or train.evaluate_every=0"
            )
        return self

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, without those that are None and without tables that have no effect."""
        unused = set() if self.train.objective in MASKED else {"masking"}
        if self.tokenizer.kind is None and self.tokenizer.path is None:
            unused.add("tokenizer")
        values = self.model_dump(mode="json", exclude_none=True, exclude=unused)
        # behind [data], [tokenizer] and [model], where readers expect it
        values["train"] = values.pop("train")
        return values

    def to_toml(self) -> str:
        """Return the recipe as TOML that :func:`load_recipe` reads back to an equal recipe."""
        return tomli_w.dumps(self.as_dict(), multiline_strings=True)


def _objective(values: Mapping[str, Any]) -> object:
    """Return ``train.objective``, its default where it is left out."""
    train = values.get("train")
    if isinstance(train, TrainSettings):
        return train.objective
    default = TrainSettings.model_fields["objective"].default
    found = train.get("objective", default) if isinstance(train, Mapping) else default
    return found if isinstance(found, str) else None


def load_recipe(
    source: str | Path | Recipe, overrides: Sequence[str] = (), *, say: Callable[[str], None] | None = None
) -> Recipe:
    """Return the recipe called ``source`` (a shipped name or a .toml file), with ``key=value`` overrides.

    ``say`` is called with one line for each group of the recipe's settings that an override makes useless.

    Raises RecipeError for a file that is missing or not TOML, an unknown key, a value out of its range, or a
    key that has no effect.
    """
    return read_recipe(Recipe, shipped_recipes(), source, overrides, say=say)
