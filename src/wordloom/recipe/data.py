"""The table ``[data]``: which text, how it is read, and what is held out for validation.

Each group of objectives has a class of its own; ``train.objective`` chooses it (:data:`DATA`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from wordloom.recipe.table import OnlyIf, Table
from wordloom.recipe.training import FineTuned, NotBagOfWords, Objective

Column = str | int


class Source(Table):
    """The training data."""

    train: str | list[str]
    """Training data: files, folders, globs, or the name of a data set (wordloom data list)."""


class HeldOut(Table):
    """The part of a text that is held out for validation."""

    validation: str | list[str] | None = None
    """Validation data: files, folders, globs or a data set. By default a share of data.train."""
    validation_fraction: Annotated[float, OnlyIf("validation", (None,))] = Field(0.1, ge=0.0, lt=1.0)
    """Share of data.train that is held out for validation."""


class Split(Table):
    """The choice of the validation part, for data that can be split in two ways."""

    split: Annotated[
        Literal["tail", "hash"], OnlyIf("validation", (None,)), OnlyIf("validation_fraction")
    ] = "tail"
    """Which part is held out: the end of the data (tail), or documents, rows or pairs chosen by a hash of
    their text (hash). Translation needs hash."""


class Encoding(Table):
    """The decoding of bytes."""

    encoding_errors: Literal["strict", "replace", "bytes"] = "strict"
    """Treatment of bytes that are not UTF-8: raise an error (strict), read U+FFFD (replace), or keep raw
    bytes for a byte tokenizer (bytes; running text only)."""


class DataSettings(Encoding, HeldOut, Source):
    """The keys that every objective reads."""

    @model_validator(mode="after")
    def _rows_are_text(self) -> DataSettings:
        running_text = isinstance(self, TextFiles) and not getattr(self, "label_prefix", False)
        if self.encoding_errors == "bytes" and not running_text:
            raise ValueError('data.encoding_errors "bytes" is for running text; rows take strict or replace')
        return self

    @property
    def holds_out(self) -> bool:
        """True if there is a validation part."""
        return self.validation is not None or self.validation_fraction > 0

    @property
    def row_errors(self) -> Literal["strict", "replace"]:
        """``encoding_errors`` for a reader of rows, which takes no raw bytes."""
        assert self.encoding_errors != "bytes", "refused by _rows_are_text"
        return self.encoding_errors


class Specials(Table):
    """The key for special tokens that are spelled out in the text."""

    specials: Literal["refuse", "text"] = "refuse"
    """Treatment of a special token that the text spells: raise an error (refuse), or read it as plain text
    (text)."""


class Columns(Table):
    """The columns of rows of texts and labels."""

    text_column: Annotated[
        Column | list[Column] | None,
        OnlyIf("label_prefix", instead="name the field of a text with data.field"),
    ] = None
    """Column of the text, by name or by number from 1; a list for rows of several texts. By default the data
    set's own, else 'text'."""
    label_column: Annotated[Column | None, OnlyIf("label_prefix")] = None
    """Column of the label or score, by name or number. By default the data set's own, else 'label'."""


class LabelColumns(Columns):
    """The keys of labelled rows."""

    header: Annotated[bool | None, OnlyIf("label_prefix")] = None
    """True if .csv and .tsv files begin with a row of names. By default they do if a column is given by
    name."""
    unique: Annotated[bool, OnlyIf("label_prefix")] = False
    """Keep only the first of rows with equal text and label."""


class RowLengths(Table):
    """The key for rows longer than the model reads."""

    too_long: Annotated[Literal["error", "cut"], NotBagOfWords] = "error"
    """Treatment of a row of more than train.seq_len tokens: raise an error, or truncate it (cut)."""


class TaskTokens(Table):
    """The key for the tokens that mark a task's rows."""

    task_tokens: bool = False
    """Add a start, a delimiter and an end token around the texts that a causal model reads (Radford et al.
    2018)."""


class TextFiles(Table):
    """The reading of documents from files."""

    field: Annotated[str | None, OnlyIf("label_prefix", (False,))] = None
    """Field of the text in .jsonl and .parquet files. By default the data set's own, else 'text'."""
    separator: Annotated[str | None, OnlyIf("label_prefix", (False,))] = None
    """End of a document in a .txt file: line, blank-line, file, or the line between two
    documents."""


class TextData(Specials, TextFiles, Split, DataSettings):
    """Running text."""


class CausalData(LabelColumns, TextData):
    """Running text for a model that predicts the next token."""

    order: Annotated[Literal["permutation", "random"], OnlyIf("train.objective", ("causal_lm",))] = (
        "permutation"
    )
    """Order of the windows: each once per epoch (permutation), or drawn with replacement (random)."""
    document_mask: bool = False
    """Keep attention within a document, and restart positions at each document."""
    mask_document_starts: bool | None = None
    """Leave the first token of a document unscored. By default as data.document_mask."""
    restart_share: Annotated[
        float,
        OnlyIf("train.objective", ("truncated_bptt",)),
        OnlyIf("document_mask", (False,)),
        OnlyIf("label_prefix", (False,)),
    ] = Field(0.1, ge=0, le=1)
    """Share of the windows that begin with an empty recurrent state and the end token, as every text does
    when the model is used."""
    label_prefix: bool = False
    """Read labelled rows as text: each text follows a special token of its label, such as <Italian>, so that
    a label can be generated from."""


class MaskedData(TextData):
    """Running text for a model that fills in masked tokens."""

    sentences: Annotated[
        Literal["punctuation", "line"], OnlyIf("train.objective", ("masked_lm+next_sentence",))
    ] = "punctuation"
    """Where a sentence ends: at punctuation, or at the end of a line."""


class LabelledData(TaskTokens, RowLengths, LabelColumns, Split, DataSettings):
    """Rows of one text or two with a label or a number."""

    both_orders: Annotated[bool, FineTuned] = False
    """Let a causal model read the two texts of a row in both orders, and add up the two results (Radford et
    al. 2018)."""


class SentenceData(RowLengths, LabelColumns, Split, DataSettings):
    """Rows of texts for sentence embeddings."""

    positive: Annotated[str | float | None, OnlyIf("train.objective", ("contrastive",))] = None
    """Label of rows whose texts belong together, or their lowest score. By default all rows are used."""
    score_range: Annotated[list[float] | None, OnlyIf("train.objective", ("cosine_similarity",))] = Field(
        None, min_length=2, max_length=2
    )
    """Scores that mean cosines of 0 and 1. By default the lowest and highest training scores."""


class ChoiceData(TaskTokens, RowLengths, DataSettings):
    """Questions with several choices."""


class TokenLabelData(Columns, DataSettings):
    """Texts whose words have labels."""

    too_long: Literal["error", "window", "cut"] = "error"
    """Treatment of a text of more than train.seq_len tokens: raise an error, read it in overlapping
    windows, or truncate it (cut)."""


class QuestionData(RowLengths, DataSettings):
    """Questions about texts, in SQuAD's format."""

    doc_stride: int = Field(128, ge=1)
    """Distance in tokens between the starts of two windows of one long text."""
    max_query: int = Field(64, ge=1)
    """Longest question in tokens; the rest is truncated."""
    misplaced: Literal["error", "nearest"] = "error"
    """Treatment of an answer that is not at its answer_start: raise an error, or take the nearest
    occurrence."""
    no_answer: bool = False
    """Allow questions without an answer (SQuAD v2)."""


class ChatData(Split, DataSettings):
    """The keys of conversations in a chat template."""

    template: str | None = None
    """Chat template: alpaca, chatml, llama2, plain, or a .jinja file. By default the tokenizer's own, else
    plain."""
    system: str | None = None
    """System message of conversations that have none."""
    too_long: Literal["error", "drop", "cut"] = "error"
    """Treatment of a conversation of more than train.seq_len tokens: raise an error, leave it out (drop), or
    truncate it (cut)."""


class InstructionData(ChatData):
    """Conversations, from which a causal model learns to answer."""

    packing: bool = True
    """Pack several conversations into a window of train.seq_len tokens; they do not see one another."""


class PreferenceData(ChatData):
    """Prompts with a preferred and a rejected answer."""


class TranslationData(Specials, Split, DataSettings):
    """Pairs of a source and a target sentence."""

    targets: str | list[str] | None = None
    """Files of the target side, line by line parallel to data.train."""
    validation_targets: str | list[str] | None = None
    """Files of the target side, parallel to data.validation."""
    source_column: Column | None = None
    """Column or language of the source in tables and data sets, by name or number."""
    target_column: Column | None = None
    """Column or language of the target in tables and data sets, by name or number."""
    header: bool | None = None
    """True if .csv and .tsv files begin with a row of names. By default they do if a column is given by
    name."""
    max_source_tokens: int | None = Field(None, ge=1)
    """Longest source in tokens. By default the longest that the model reads."""
    max_target_tokens: int | None = Field(None, ge=1)
    """Longest target in tokens. By default the longest that the model reads."""
    overlong: Literal["drop", "cut"] = "drop"
    """Treatment of a pair that has a longer side: drop the pair, or truncate (cut)."""


#: The class of ``[data]`` for each ``train.objective``.
DATA: dict[Objective, type[DataSettings]] = {
    "causal_lm": CausalData,
    "truncated_bptt": CausalData,
    "masked_lm": MaskedData,
    "masked_lm+next_sentence": MaskedData,
    "classification": LabelledData,
    "regression": LabelledData,
    "multiple_choice": ChoiceData,
    "token_classification": TokenLabelData,
    "question_answering": QuestionData,
    "contrastive": SentenceData,
    "cosine_similarity": SentenceData,
    "translation": TranslationData,
    "instruction": InstructionData,
    "preference": PreferenceData,
}
