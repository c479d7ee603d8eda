"""Models with a task head as transformers stores them: ``BertForSequenceClassification`` and its siblings.

The class in ``architectures`` names the task, and ``id2label`` the classes.  Settings that no class expresses
go under ``"wordloom": {"head": {...}}``.  For example, multiple choice by a causal model is stored as a
sequence classification with one label.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from wordloom.errors import CheckpointError, ConfigError
from wordloom.models.bert import BertConfig
from wordloom.models.task_model import SUMMARIES, TaskConfig
from wordloom.weights.renaming import Ignored, Renaming, Row

log = logging.getLogger(__name__)

_MASKED_HEAD = re.compile(r"cls\.predictions\.transform|lm_head\.dense|mlm_transform")
HEAD = "head"  # key of our settings in config.json


class _Kind(NamedTuple):
    """The class names of a family, and the head's tensor name by the end of the class name."""

    stem: str
    heads: Mapping[str, str]


_SEQUENCE, _TOKENS = "ForSequenceClassification", "ForTokenClassification"
_ANSWERS, _CHOICE = "ForQuestionAnswering", "ForMultipleChoice"
_ENDS = {
    "classification": _SEQUENCE,
    "regression": _SEQUENCE,
    "token_classification": _TOKENS,
    "question_answering": _ANSWERS,
    "multiple_choice": _CHOICE,
}
_ENCODER = {_SEQUENCE: "classifier", _TOKENS: "classifier", _ANSWERS: "qa_outputs", _CHOICE: "classifier"}
_LLAMA = {_SEQUENCE: "score", _TOKENS: "score", _ANSWERS: "qa_outputs"}
_KINDS = {
    "bert": _Kind("Bert", _ENCODER),
    "roberta": _Kind("Roberta", {**_ENCODER, _SEQUENCE: "classifier.out_proj"}),
    "longformer": _Kind("Longformer", {**_ENCODER, _SEQUENCE: "classifier.out_proj"}),
    "openai-gpt": _Kind("OpenAIGPT", {_SEQUENCE: "score"}),
    "gpt2": _Kind("GPT2", {_SEQUENCE: "score", _TOKENS: "classifier", _ANSWERS: "qa_outputs"}),
    "llama": _Kind("Llama", _LLAMA),
    "mistral": _Kind("Mistral", _LLAMA),
    "ministral": _Kind("Ministral", _LLAMA),
}


_SUMMARY = Ignored(r"multiple_choice_head\.summary\.(weight|bias)", "a multiple choice head")  # double heads
_TASK_NAMES = {
    _SEQUENCE: "sequence classification",
    _TOKENS: "token classification",
    _ANSWERS: "question answering",
    _CHOICE: "multiple choice",
}


def heads_beside(model_type: str) -> tuple[Ignored, ...]:
    """Return the task heads that may be stored beside a body and that its loader ignores.

    One tensor name can serve the heads of several tasks.
    """
    tasks: dict[str, list[str]] = {}
    for end, head in _KINDS[model_type].heads.items():
        tasks.setdefault(head.replace(".out_proj", r"\.(dense|out_proj)"), []).append(_TASK_NAMES[end])
    heads = [
        Ignored(rf"{head}\.(weight|bias)", f"a {' or '.join(names)} head") for head, names in tasks.items()
    ]
    return (*heads, _SUMMARY)


def is_head(description: str) -> bool:
    """Return whether an ignored tensor with this description belongs to a task head."""
    return description.endswith(" head")


def _end(model_type: str, task: str) -> str:
    """Return the end of the class name for ``task``, or the nearest one that the family has."""
    heads = _KINDS[model_type].heads
    return _ENDS[task] if _ENDS[task] in heads else _SEQUENCE


# -- config.json -----------------------------------------------------------------------------------------


def json_with_head(theirs: Mapping[str, Any], config: TaskConfig) -> dict[str, Any]:
    """Return config.json for ``config``; ``theirs`` is that of its body."""
    ours = {name: getattr(config, name) for name in ("task", "head_dropout", "language_model", "both_orders")}
    if theirs["model_type"] not in _KINDS:
        return {**theirs, HEAD: {**ours, "id2label": dict(config.id2label)}}
    labels = dict(config.id2label)
    written: dict[str, Any] = {
        **theirs,
        "architectures": [_KINDS[theirs["model_type"]].stem + _end(theirs["model_type"], config.task)],
        "classifier_dropout": config.head_dropout,
    }
    if config.task != "question_answering":
        written["id2label"] = labels or {"0": "LABEL_0"}
        written["label2id"] = {name: int(number) for number, name in written["id2label"].items()}
    if config.task == "regression":
        written["problem_type"] = "regression"
    if _chooses_global_tokens(written):
        written["wordloom"] = {**(theirs.get("wordloom") or {}), "attention": config.body.attention}
    read = config_with_head(written, config.body)
    extra = {key: value for key, value in ours.items() if getattr(read, key) != value}
    if extra:
        written["wordloom"] = {**(written.get("wordloom") or {}), HEAD: extra}
    return written


def _chooses_global_tokens(theirs: Mapping[str, Any]) -> bool:
    """Return whether transformers' class chooses global tokens by the separators in each text."""
    names = theirs.get("architectures")
    classes = [[f"Longformer{end}"] for end in (_ANSWERS, _CHOICE)]
    return theirs.get("model_type") == "longformer" and isinstance(names, list) and names[:1] in classes


def _refuse_other_global_tokens(theirs: Mapping[str, Any]) -> None:
    """Raise CheckpointError for a Longformer head whose global tokens are not the first ones of a text.

    Wordloom states the attention beside such a head, or at least the vocabulary of the trained model.
    """
    settings = theirs.get("wordloom")
    stated = isinstance(settings, Mapping) and "attention" in settings
    ours = stated or ("vocabulary" in theirs and "transformers_version" not in theirs)
    if _chooses_global_tokens(theirs) and not ours:
        name = theirs["architectures"][0]
        tokens = "question" if name.endswith(_ANSWERS) else "choice"
        raise CheckpointError(
            f"transformers' {name} makes all tokens of the {tokens} global, and only the first tokens of a "
            "text can be global here; save its body with transformers' LongformerModel and train a head on it"
        )


def task_of(theirs: Mapping[str, Any]) -> str | None:
    """Return the task that a config.json names; None for a model without a head."""
    own = _table(theirs)
    if "task" in own:
        return str(own["task"])
    kind = _KINDS.get(str(theirs.get("model_type")))
    names = theirs.get("architectures") or [""]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise CheckpointError(f'"architectures" must be a list of names, not {names!r}')
    name = names[0]
    if kind is None or not name.startswith(kind.stem):
        return None
    end = name.removeprefix(kind.stem)
    if end == _SEQUENCE:
        one = len(_labels(theirs)) == 1
        return "regression" if one or theirs.get("problem_type") == "regression" else "classification"
    return next((task for task, known in _ENDS.items() if known == end), None)


def config_with_head(theirs: Mapping[str, Any], body: Any) -> TaskConfig:
    """Return the config of ``body`` with the head that ``theirs`` names; raise CheckpointError if wrong."""
    task, own = task_of(theirs), _table(theirs)
    assert task is not None
    _refuse_other_global_tokens(theirs)
    if unknown := set(own) - {field.name for field in fields(TaskConfig)}:
        raise CheckpointError(f'"{HEAD}" holds unknown settings: {", ".join(sorted(unknown))}')
    if isinstance(body, BertConfig):
        kept = bool(own.get("language_model"))
        body = replace(body, pooler=task in SUMMARIES, masked_lm_head=kept, next_sentence_head=False)
    labels = _labels(theirs) if task in ("classification", "token_classification") else {}
    settings = {"head_dropout": theirs.get("classifier_dropout"), "id2label": labels, **own, "task": task}
    if theirs.get("problem_type") == "multi_label_classification":
        raise CheckpointError("problem_type 'multi_label_classification' is not computed here")
    try:
        return TaskConfig(body=body, **settings)
    except (ConfigError, TypeError) as error:
        raise CheckpointError(str(error)) from None


def _table(theirs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return our settings in config.json; beside transformers' keys they are under "wordloom"."""
    table = theirs.get(HEAD)
    if table is None and isinstance(theirs.get("wordloom"), Mapping):
        table = theirs["wordloom"].get(HEAD)
    if table is not None and not isinstance(table, Mapping):
        raise CheckpointError(f'"{HEAD}" must be a table of settings, not {table!r}')
    return table or {}


def _labels(theirs: Mapping[str, Any]) -> dict[str, str]:
    """Return ``id2label``; without it, as many classes as ``num_labels`` says, or two, like transformers."""
    names = theirs.get("id2label")
    if names is not None and not isinstance(names, Mapping):
        raise CheckpointError(f"id2label must be a table of names by number, not {names!r}")
    if names:
        numbered = {str(number): str(name) for number, name in names.items()}
        if all(number.isdecimal() for number in numbered):  # JSON's keys may be sorted as text
            numbered = dict(sorted(numbered.items(), key=lambda item: int(item[0])))
        return numbered
    return {str(number): f"LABEL_{number}" for number in range(theirs.get("num_labels") or 2)}


def with_stored_language_model(config: TaskConfig, stored: Collection[str]) -> TaskConfig:
    """Return ``config`` with ``language_model`` as the names of the ``stored`` tensors show it.

    Another tool may have left out an encoder's masked-LM head, or kept a causal body's ``lm_head``.
    """
    if config.encodes and config.language_model and not any(map(_MASKED_HEAD.search, stored)):
        return replace(config, language_model=False, body=replace(config.body, masked_lm_head=False))
    kept = not config.encodes and not config.body.tie_embeddings and "lm_head.weight" in stored
    return replace(config, language_model=kept or config.language_model)


# -- tensors ---------------------------------------------------------------------------------------------


def renaming_of_head(
    config: TaskConfig, names: Collection[str], body: Renaming, model_type: str | None
) -> Renaming:
    """Return the table of a model with a head.

    ``names`` are its parameters, and ``body`` is the table of its body.  ``model_type`` is transformers';
    None for our own names.
    """
    rows = []
    for row in body.rows:
        ours = tuple(f"body.{name}" for name in row.ours)
        if set(ours) <= set(names):  # a causal body may lack its lm_head
            rows.append(row._replace(ours=ours, theirs=_stored_name(row.theirs, config, model_type)))
    head = "classifier" if model_type is None else _KINDS[model_type].heads[_end(model_type, config.task)]
    rows += [
        Row(f"{head}.{part}", (f"classifier.{part}",))
        for part in ("weight", "bias")
        if f"classifier.{part}" in names
    ]
    tied = {f"body.{a}": f"body.{b}" for a, b in (body.tied_ours or {}).items() if f"body.{a}" in names}
    prefixes = body.prefixes
    if model_type is None:
        prefixes = ("",)
    elif _renames_llama(config, model_type):
        prefixes = ("transformer.", *prefixes)
    return replace(body, rows=tuple(rows), tied_ours=tied or None, prefixes=prefixes)


def _stored_name(theirs: str, config: TaskConfig, model_type: str | None) -> str:
    """Return the stored name of a body's tensor in a model with a head."""
    if model_type is None:
        return f"body.{theirs}"
    if model_type in ("roberta", "longformer") and config.task in ("classification", "regression"):
        # transformers keeps the pooler of a sequence classifier in its head
        return theirs.replace(f"{model_type}.pooler.dense.", "classifier.dense.")
    if _renames_llama(config, model_type) and theirs.startswith("model."):
        return "transformer." + theirs.removeprefix("model.")
    return theirs


def _renames_llama(config: TaskConfig, model_type: str | None) -> bool:
    """Return whether transformers calls the body "transformer" instead of "model"."""
    return model_type in ("llama", "ministral") and config.task == "question_answering"
