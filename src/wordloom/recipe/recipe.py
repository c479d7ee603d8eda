"""A recipe: everything that decides a training run, as data.

A recipe is a TOML file with the tables ``[data]``, ``[tokenizer]``, ``[model]``, ``[train]`` and, for
those that ship with the package, ``[result]``: the number it reproduces and where that number comes from.
It is read strictly: an unknown key is an error that says what was probably meant, a value of the wrong
type is never converted, and nothing in it is executed.

>>> recipe = load_recipe("quickstart", ["train.steps=60", "model.n_layers=2"])
>>> recipe.train.steps
60
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import Field, model_validator

from wordloom.errors import DataError
from wordloom.recipe.reading import FolderName, Strict, read_recipe, shipped_recipes
from wordloom.recipe.training import TrainSettings, without_effect

__all__ = [
    "DataSettings",
    "MaskingSettings",
    "OldTask",
    "Recipe",
    "Result",
    "TokenizerSettings",
    "TrainSettings",
    "load_recipe",
    "shipped_recipes",
    "without_effect",
]


class Result(Strict):
    """What a shipped recipe reproduces; ``measured`` is None until it has been run."""

    metric: str
    published: float | None = None
    source: str = ""
    measured: float | None = None
    machine: str = ""
    command: str = ""
    note: str = ""


class DataSettings(Strict):
    """Which text, how it is read, split and cut into windows (see :mod:`wordloom.data`)."""

    train: str | list[str]  # files, folders, globs, or the name of a data set
    validation: str | list[str] | None = None  # its own text, else a share of the training text
    split: Literal["tail", "hash"] = "tail"
    validation_fraction: float = Field(0.1, ge=0.0, lt=1.0)
    field: str | None = None  # of .jsonl and .parquet rows; None: what the data set says, else "text"
    separator: str | None = None  # a line that stands between documents of a .txt file
    encoding_errors: Literal["strict", "replace", "bytes"] = "strict"
    specials: Literal["refuse", "text"] = "refuse"  # special tokens' spellings inside the text
    order: Literal["permutation", "random"] = "permutation"
    document_mask: bool = False  # attention stays within a document
    mask_document_starts: bool | None = None  # first tokens unscored; None: as document_mask
    # of labelled rows: columns by name, or by number from 1; None: as the data set says, else text and label
    text_column: str | int | list[str | int] | None = None  # several, for pairs of texts and the like
    label_column: str | int | None = None
    header: bool | None = None  # of .csv and .tsv; None: there where a column is given by name
    unique: bool = False  # of rows with equal text and label the first alone
    # a text of labelled rows of more tokens than train.seq_len; a window: of token_classification alone
    too_long: Literal["error", "window", "cut"] = "error"
    # contrastive: rows whose texts belong together have this label, or this score at least; None: all rows
    positive: str | float | None = None
    # cosine_similarity: the scores of cosines 0 and 1; None: the lowest and the highest of the training rows
    score_range: list[float] | None = Field(None, min_length=2, max_length=2)
    both_orders: bool = False  # rows of two texts by a causal model: read both ways, whose sum answers
    task_tokens: bool = False  # rows by a causal model: between new tokens, a start, a delimiter and an end
    # of questions about texts: windows of train.seq_len tokens that begin so many apart, and the question's
    doc_stride: int = Field(128, ge=1)
    max_query: int = Field(64, ge=1)
    misplaced: Literal["error", "nearest"] = "error"  # an answer that does not stand at its answer_start
    no_answer: bool = False  # whether a question may have none
    # of pairs: the other side of parallel files, or its column in tables and named sets
    targets: str | list[str] | None = None
    validation_targets: str | list[str] | None = None
    source_column: str | int | None = None
    target_column: str | int | None = None
    max_source_tokens: int | None = Field(None, ge=1)  # None: what the model takes
    max_target_tokens: int | None = Field(None, ge=1)
    overlong: Literal["drop", "cut"] = "drop"  # a pair with a longer side
    # labelled rows as text to learn to write: each text after a special token of its label, such as <Italian>
    label_prefix: bool = False
    # masked_lm+next_sentence: where sentences end
    sentences: Literal["punctuation", "line"] = "punctuation"

    @model_validator(mode="after")
    def _one_validation(self) -> DataSettings:
        if self.validation is not None and (self.split, self.validation_fraction) != ("tail", 0.1):
            raise ValueError(
                "data.validation names the validation text, so data.split and data.validation_fraction have "
                "no effect: leave them out, or set data.validation=none"
            )
        return self


class MaskingSettings(Strict):
    """What is hidden from a masked language model; see :class:`wordloom.data.Masking`."""

    kind: Literal["bert", "replace"] = "bert"
    # bert: a share of the tokens is chosen; of these so many become the mask, and so many another token
    share: float = Field(0.15, gt=0, le=1)
    mask_share: float = Field(0.8, ge=0, le=1)
    random_share: float = Field(0.1, ge=0, le=1)
    whole_words: bool = False
    # replace: shares of the words
    mask_words: float = Field(0.1, ge=0, le=1)
    substitute_words: float = Field(0.0, ge=0, le=1)
    scored: Literal["changed", "all"] = "changed"
    placeholder: Literal["mask", "empty"] = "mask"  # empty: a token [EMPTY] whose vector is zero
    dynamic: bool = True  # masked anew at every visit; false: always the same

    @model_validator(mode="after")
    def _one_kind(self) -> MaskingSettings:
        if self.model_fields_set:
            from wordloom.data.batches.masking import Masking

            try:
                Masking(**self.model_dump(exclude={"dynamic"}))
            except DataError as error:
                raise ValueError(f"masking: {error}") from None
        return self


class OldTask(Strict):
    """Text that the checkpoint had learnt from, whose loss is told before and after.

    It is read as ``[data]`` of the objective that the checkpoint's own head has: ``masked_lm`` of an encoder,
    else ``causal_lm``.
    """

    train: str | list[str] | None = None  # what is rehearsed
    validation: str | list[str] | None = None  # what is measured; None: a share of train
    split: Literal["tail", "hash"] = "tail"
    validation_fraction: float = Field(0.1, gt=0, lt=1)
    field: str | None = None
    separator: str | None = None
    encoding_errors: Literal["strict", "replace", "bytes"] = "strict"
    specials: Literal["refuse", "text"] = "refuse"
    document_mask: bool = False
    mask_document_starts: bool | None = None
    masking: MaskingSettings = Field(default_factory=lambda: MaskingSettings.model_validate({}))
    seed: int = Field(1337, ge=0)  # of what is hidden where it is measured; that of its own run: the same
    seq_len: int | None = Field(None, ge=1)  # None: train.seq_len
    evaluate_windows: int | None = Field(None, ge=1)  # None: the whole text
    every_evaluation: bool = False  # measured whenever the new task is, too

    @model_validator(mode="after")
    def _some_text(self) -> OldTask:
        if self.train is None and self.validation is None:
            raise ValueError(
                "[old_task] names no text: give old_task.validation, to measure, or old_task.train"
            )
        if self.validation is not None and (self.split, self.validation_fraction) != ("tail", 0.1):
            raise ValueError(
                "old_task.validation names the text to measure by, so old_task.split and "
                "old_task.validation_fraction have no effect: leave them out"
            )
        return self


class TokenizerSettings(Strict):
    """A tokenizer to train on the training text (``kind``), or one to read (``path``)."""

    kind: Literal["word", "char", "byte", "bpe", "wordpiece", "unigram"] | None = None
    path: str | None = None
    vocab_size: int | None = Field(None, ge=1)
    lower: bool = False
    min_frequency: int | None = Field(None, ge=1)
    special_tokens: list[str] | None = None  # None: the kind's own
    split: str | None = (
        None  # how text is split first: gpt2 or llama3 (bpe, unigram), words or whitespace (word)
    )
    separate: bool = False  # of pairs: one tokenizer for the sources and one for the targets
    source_vocab_size: int | None = Field(None, ge=1)  # None: vocab_size for both
    source_path: str | None = None  # the sources', where path is the targets'

    @model_validator(mode="after")
    def _one_source(self) -> TokenizerSettings:
        if self.source_path is not None and self.path is None:
            raise ValueError("tokenizer.source_path is read beside tokenizer.path, the targets': give both")
        if (self.kind is None) == (self.path is None):
            raise ValueError("give either tokenizer.kind (to train one) or tokenizer.path (to read one)")
        settled = {
            name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default
        }
        if self.source_vocab_size is not None and not self.separate:
            raise ValueError("tokenizer.source_vocab_size needs tokenizer.separate = true; or leave it out")
        if self.path is not None and not settled <= {"path", "source_path"}:
            named = ", ".join(f"tokenizer.{name}" for name in sorted(settled - {"path", "source_path"}))
            raise ValueError(
                f"{named} would train a tokenizer, and tokenizer.path reads one; leave out either"
            )
        return self


# Settings that only mean something for labelled rows, and only for running text.
_OF_ROWS: dict[str, tuple[str, ...]] = {
    "data": ("text_column", "label_column", "header", "unique", "too_long")
}
_OF_LABELS: dict[str, tuple[str, ...]] = {
    "data": ("text_column", "label_column", "header", "unique", "label_prefix")
}
_OF_QUESTIONS: dict[str, tuple[str, ...]] = {"data": ("doc_stride", "max_query", "misplaced", "no_answer")}
_OF_CONTRAST: dict[str, tuple[str, ...]] = {
    "data": ("positive",),
    "train": ("similarity_scale", "symmetric"),
}
_OF_TEXT_AFTER_LABELS: dict[str, tuple[str, ...]] = {"data": ("field", "separator", "too_long")}
_OF_TEXT: dict[str, tuple[str, ...]] = {
    "data": (
        *("field", "separator", "specials", "order", "document_mask", "mask_document_starts"),
        "label_prefix",
    ),
    "train": ("evaluate_windows", "sample_every"),
}
_OF_TEXT_OR_ROWS: dict[str, tuple[str, ...]] = {"train": ("seq_len", "micro_batch_size")}
_OF_PAIRS: dict[str, tuple[str, ...]] = {
    "data": (
        *("targets", "validation_targets", "source_column", "target_column"),
        *("max_source_tokens", "max_target_tokens", "overlong"),
    ),
    "tokenizer": ("separate", "source_vocab_size", "source_path"),
    "train": ("batch_tokens", "label_smoothing", "cross_attention"),
}
_OF_MASKS: dict[str, tuple[str, ...]] = {
    "masking": tuple(MaskingSettings.model_fields),
    "train": ("long_seq_len", "long_share"),
}
_OF_WRITERS: dict[str, tuple[str, ...]] = {  # of running text that is read in one direction
    "data": ("order", "document_mask", "mask_document_starts", "label_prefix"),
    "train": ("sample_every",),
}
# Objectives to which the loss of their own texts' next tokens can be added, and those whose steps follow one
# another, or whose model has no head for an old task.
_WITH_LANGUAGE_MODEL = ("classification", "regression", "multiple_choice")
_NOT_REHEARSED = ("truncated_bptt", "translation")
_INSTEAD = {
    "seq_len": "pairs are as long as data.max_source_tokens and data.max_target_tokens allow: leave it out",
    "micro_batch_size": "train.batch_tokens says what goes through at a time: leave it out",
    "text_column": "the field of a text is data.field",
    "field": "the column of a text is data.text_column",
    "order": "its windows follow one another: leave it out",
    "sample_every": "such a model writes no text: leave it out",
    "label_prefix": "it is for models that write: leave it out",
}


class Recipe(Strict):
    """A whole recipe; see the module docstring."""

    name: FolderName
    description: str = ""
    seed: int = Field(1337, ge=0)
    start_from: str | None = None  # a checkpoint whose weights and tokenizer the run begins with (--from)
    result: Result | None = None
    data: DataSettings
    # left out where a run begins with a checkpoint, whose tokenizer it takes
    tokenizer: TokenizerSettings = Field(default_factory=TokenizerSettings.model_construct)
    model: dict[str, Any] = Field(
        default_factory=dict
    )  # ``family`` or ``preset``, and settings of that family's config
    train: TrainSettings
    masking: MaskingSettings = Field(default_factory=lambda: MaskingSettings.model_validate({}))
    old_task: OldTask | None = None

    @model_validator(mode="after")
    def _something_to_rehearse(self) -> Recipe:
        s, old = self.train, self.old_task
        given = "train.rehearsal_share" if s.rehearsal_share is not None else None
        if s.language_model_texts == "old" and s.language_model_weight:
            if given is not None:
                raise ValueError(
                    'train.rehearsal_share and train.language_model_texts "old" both go on with the old '
                    "task; give one of them"
                )
            given = 'train.language_model_texts "old"'
        if given is not None:
            if old is None or old.train is None:
                raise ValueError(f"{given} needs old text: name it as old_task.train")
            if s.objective in _NOT_REHEARSED or s.long_seq_len is not None:
                why = "train.long_seq_len" if s.long_seq_len else f"train.objective '{s.objective}'"
                raise ValueError(f"{given} does not go with {why}; leave one of them out")
        if old is not None and s.objective == "translation":
            raise ValueError(
                "[old_task] is of a language model, which train.objective 'translation' does not begin with; "
                "leave it out"
            )
        return self

    @model_validator(mode="after")
    def _data_of_the_objective(self) -> Recipe:
        """Settings of rows are for rows, settings of running text for running text."""
        for table, names in self._without_meaning():
            settings: Any = getattr(self, table)
            for name in names:
                if getattr(settings, name) != type(settings).model_fields[name].default:
                    hint = _INSTEAD.get(name, "leave it out")
                    what = f"for train.objective '{self.train.objective}'"
                    if self.data.label_prefix and name in _OF_TEXT_AFTER_LABELS[table]:
                        what = "with data.label_prefix, which reads labelled rows"
                    raise ValueError(f"{table}.{name} has no meaning {what}; {hint}")
        return self

    def _without_meaning(self) -> list[tuple[str, tuple[str, ...]]]:
        """Tables, and settings of theirs, that are for other objectives than this recipe's."""
        objective = self.train.objective
        if objective == "translation":
            others = [_OF_TEXT, _OF_ROWS, _OF_TEXT_OR_ROWS]
        elif objective in ("classification", "regression", "contrastive", "cosine_similarity"):
            others = [_OF_TEXT, _OF_PAIRS]
        elif objective in ("question_answering", "multiple_choice"):
            others = [_OF_TEXT, _OF_PAIRS, _OF_LABELS]
        elif objective == "token_classification":
            others = [_OF_TEXT, _OF_PAIRS, {"data": ("header", "unique")}]
        elif objective.startswith("masked_lm"):
            others = [_OF_ROWS, _OF_PAIRS, _OF_WRITERS]
        else:
            others = [_OF_TEXT_AFTER_LABELS if self.data.label_prefix else _OF_ROWS, _OF_PAIRS]
            if objective == "truncated_bptt":
                others.append({"data": ("order",)})
        if not objective.startswith("masked_lm"):
            others.append(_OF_MASKS)
        if objective != "question_answering":
            others.append(_OF_QUESTIONS)
        if objective != "contrastive":
            others.append(_OF_CONTRAST)
        if objective != "cosine_similarity":
            others.append({"data": ("score_range",)})
        if objective not in ("classification", "regression"):
            others.append({"data": ("both_orders",)})
        if objective not in _WITH_LANGUAGE_MODEL:  # those of a text's last token
            others.append({"data": ("task_tokens",)})
        if objective not in _WITH_LANGUAGE_MODEL and self.train.language_model_texts == "task":
            others.append({"train": ("language_model_weight",)})
        if objective != "masked_lm+next_sentence":
            others.append({"data": ("sentences",)})
        allowed = {"specials", "header"} if objective == "translation" else set()
        return [
            (table, tuple(name for name in names if name not in allowed))
            for settings in others
            for table, names in settings.items()
        ]

    @model_validator(mode="after")
    def _windows_of_words(self) -> Recipe:
        if self.data.too_long == "window" and self.train.objective != "token_classification":
            raise ValueError(
                'data.too_long "window" is for train.objective "token_classification", whose answers are of '
                'words; take "error" or "cut"'
            )
        return self

    @model_validator(mode="after")
    def _something_to_evaluate(self) -> Recipe:
        nothing = self.data.validation is None and self.data.validation_fraction == 0
        if nothing and (self.train.evaluate_every or self.train.keep_best):
            raise ValueError(
                "train.evaluate_every and train.keep_best need validation text; set data.validation or "
                "data.validation_fraction, or train.evaluate_every=0"
            )
        return self

    def as_dict(self) -> dict[str, Any]:
        """Plain values, nothing left out but what is None, and what is hidden where nothing is."""
        unused = set() if self.train.objective.startswith("masked_lm") else {"masking"}
        if self.tokenizer.kind is None and self.tokenizer.path is None:
            unused.add("tokenizer")
        return self.model_dump(mode="json", exclude_none=True, exclude=unused)

    def to_toml(self) -> str:
        """The recipe as a TOML file that :func:`load_recipe` reads back to an equal recipe."""
        return tomli_w.dumps(self.as_dict(), multiline_strings=True)


def load_recipe(
    source: str | Path | Recipe,
    overrides: Sequence[str] = (),
    *,
    say: Callable[[str], None] | None = None,
) -> Recipe:
    """Return the recipe called ``source`` (a shipped name or a .toml file), with ``key=value`` overrides.

    ``say`` is called with a line for the settings that an override makes the recipe leave out.

    Raises RecipeError for a file that is missing or not TOML, an unknown key, or a value out of its range.
    """
    return read_recipe(Recipe, shipped_recipes(), source, overrides, say=say)
