"""Bodies with a head for a task as transformers stores them: ``BertForSequenceClassification`` and its kin.

The class in ``architectures`` names the task, and ``id2label`` the classes.  What it cannot say is under
``"wordloom": {"head": {...}}``: a multiple choice by a causal model, for one, is stored as the sequence
classification with one label that it is to transformers.
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

__all__ = [
    "HEAD",
    "config_of_head",
    "headed",
    "heads_beside",
    "is_head",
    "language_model_in",
    "renaming_of_head",
    "task_of",
]

log = logging.getLogger(__name__)

_OF_MASKED_HEAD = re.compile(r"cls\.predictions\.transform|lm_head\.dense|mlm_transform")
HEAD = "head"  # in config.json: our table of what its other keys do not say


class _Kind(NamedTuple):
    """How models of a family are called, and what their head is, by the end of the class's name."""

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
_KINDS = {
    "bert": _Kind("Bert", _ENCODER),
    "roberta": _Kind("Roberta", {**_ENCODER, _SEQUENCE: "classifier.out_proj"}),
    "openai-gpt": _Kind("OpenAIGPT", {_SEQUENCE: "score"}),
    "gpt2": _Kind("GPT2", {_SEQUENCE: "score", _TOKENS: "classifier", _ANSWERS: "qa_outputs"}),
    "llama": _Kind("Llama", {_SEQUENCE: "score", _TOKENS: "score", _ANSWERS: "qa_outputs"}),
}


_SUMMARY = Ignored(r"multiple_choice_head\.summary\.(weight|bias)", "a multiple choice head")  # double heads
_SAID = {
    _SEQUENCE: "sequence classification",
    _TOKENS: "token classification",
    _ANSWERS: "question answering",
    _CHOICE: "multiple choice",
}


def heads_beside(model_type: str) -> tuple[Ignored, ...]:
    """The task heads that may be stored beside a body and that its loader leaves out.

    One name can stand for the heads of several tasks.
    """
    tasks: dict[str, list[str]] = {}
    for end, head in _KINDS[model_type].heads.items():
        tasks.setdefault(head.replace(".out_proj", r"\.(dense|out_proj)"), []).append(_SAID[end])
    heads = [Ignored(rf"{head}\.(weight|bias)", f"a {' or '.join(of)} head") for head, of in tasks.items()]
    return (*heads, _SUMMARY)


def is_head(what: str) -> bool:
    """Whether a tensor that is left out, and is called ``what``, belongs to a task head."""
    return what.endswith(" head")


def _end(model_type: str, task: str) -> str:
    """The end of the class that has ``task``, or the nearest that there is."""
    heads = _KINDS[model_type].heads
    return _ENDS[task] if _ENDS[task] in heads else _SEQUENCE


# -- config.json -----------------------------------------------------------------------------------------


def headed(theirs: Mapping[str, Any], config: TaskConfig) -> dict[str, Any]:
    """config.json of ``config`` from ``theirs``, that of its body."""
    told = {name: getattr(config, name) for name in ("task", "head_dropout", "language_model", "both_orders")}
    if theirs["model_type"] not in _KINDS:
        return {**theirs, HEAD: {**told, "id2label": dict(config.id2label)}}
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
    read = config_of_head(written, config.body)
    extra = {key: value for key, value in told.items() if getattr(read, key) != value}
    if extra:
        written["wordloom"] = {**(theirs.get("wordloom") or {}), HEAD: extra}
    return written


def task_of(theirs: Mapping[str, Any]) -> str | None:
    """The task that a config.json names; None where it is of a model without a head."""
    own = _table(theirs)
    if "task" in own:
        return str(own["task"])
    kind = _KINDS.get(str(theirs.get("model_type")))
    name = str((theirs.get("architectures") or [""])[0])
    if kind is None or not name.startswith(kind.stem):
        return None
    end = name.removeprefix(kind.stem)
    if end == _SEQUENCE:
        one = len(_labels(theirs)) == 1
        return "regression" if one or theirs.get("problem_type") == "regression" else "classification"
    return next((task for task, its in _ENDS.items() if its == end), None)


def config_of_head(theirs: Mapping[str, Any], body: Any) -> TaskConfig:
    """The config of ``body``, read from ``theirs``, with the head that it names; raises CheckpointError."""
    task, own = task_of(theirs), _table(theirs)
    assert task is not None
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
    """Our table in config.json, which stands under "wordloom" beside keys of transformers."""
    given = theirs.get(HEAD)
    if given is None and isinstance(theirs.get("wordloom"), Mapping):
        given = theirs["wordloom"].get(HEAD)
    if given is not None and not isinstance(given, Mapping):
        raise CheckpointError(f'"{HEAD}" must be a table of settings, not {given!r}')
    return given or {}


def _labels(theirs: Mapping[str, Any]) -> dict[str, str]:
    """``id2label``; without it transformers has as many classes as ``num_labels`` says, else two."""
    given = theirs.get("id2label")
    if given is not None and not isinstance(given, Mapping):
        raise CheckpointError(f"id2label must be a table of names by number, not {given!r}")
    if given:
        numbered = {str(number): str(name) for number, name in given.items()}
        if all(number.isdecimal() for number in numbered):  # in any order: JSON's keys may be sorted as text
            numbered = dict(sorted(numbered.items(), key=lambda item: int(item[0])))
        return numbered
    return {str(number): f"LABEL_{number}" for number in range(theirs.get("num_labels") or 2)}


def language_model_in(config: TaskConfig, stored: Collection[str]) -> TaskConfig:
    """``config`` with a causal body's own head where that is among the ``stored`` tensors, and without an
    encoder's where that is not: another tool leaves it out."""
    if config.encodes and config.language_model and not any(map(_OF_MASKED_HEAD.search, stored)):
        return replace(config, language_model=False, body=replace(config.body, masked_lm_head=False))
    kept = not config.encodes and not config.body.tie_embeddings and "lm_head.weight" in stored
    return replace(config, language_model=kept or config.language_model)


# -- tensors ---------------------------------------------------------------------------------------------


def renaming_of_head(
    config: TaskConfig, names: Collection[str], body: Renaming, model_type: str | None
) -> Renaming:
    """The table of a model with a head: ``names`` are its parameters, ``body`` the table of its body.

    ``model_type`` is that of transformers, None for our own names.
    """
    rows = []
    for row in body.rows:
        ours = tuple(f"body.{name}" for name in row.ours)
        if set(ours) <= set(names):  # a causal body may come without the head of its language model
            rows.append(row._replace(ours=ours, theirs=_place(row.theirs, config, model_type)))
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
    elif _answers_of_llama(config, model_type):
        prefixes = ("transformer.", *prefixes)
    return replace(body, rows=tuple(rows), tied_ours=tied or None, prefixes=prefixes)


def _place(theirs: str, config: TaskConfig, model_type: str | None) -> str:
    """The name of a tensor of the body where there is a head."""
    if model_type is None:
        return f"body.{theirs}"
    if model_type == "roberta" and config.task in ("classification", "regression"):
        return theirs.replace("roberta.pooler.dense.", "classifier.dense.")  # the same layer
    if _answers_of_llama(config, model_type) and theirs.startswith("model."):
        return "transformer." + theirs.removeprefix("model.")
    return theirs


def _answers_of_llama(config: TaskConfig, model_type: str | None) -> bool:
    """transformers calls its body otherwise here."""
    return model_type == "llama" and config.task == "question_answering"
