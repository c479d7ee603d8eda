"""Conversations for instruction tuning, and preferences between two answers.

Each record of a .jsonl, .json (a list) or .parquet file has one of these layouts; other fields are ignored,
and a record with two of them is refused:

- Alpaca's: ``instruction``, ``input`` (may be absent or empty), and ``output`` or ``response``; perhaps
  ``history``, a list of earlier [instruction, answer] pairs;
- Self-Instruct's: ``instruction`` and ``instances``, a list of objects with ``input`` and ``output``;
- chat: ``messages``, a list of objects with ``role`` (system, user or assistant) and ``content``;
- ShareGPT's: ``conversations``, a list of objects with ``from`` (system, human or gpt) and ``value``;
- ``prompt`` and ``completion``, both texts or both lists of messages.

Each of them may have a ``system`` message beside it.

A preference has ``chosen`` and ``rejected`` in place of the answer: texts after an ``instruction`` or
``prompt``, or lists of messages, of which all but the last may be repeated from the prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from wordloom.data.files.json import json_objects, valid_text
from wordloom.data.files.json_object import JsonObject
from wordloom.data.files.source import Format, Source, Sources
from wordloom.data.files.stream import EncodingErrors, Meter, check_errors
from wordloom.data.files.table import parquet_objects
from wordloom.data.sets.expand import JSON, task_files
from wordloom.errors import DataError, did_you_mean, position
from wordloom.text.chat import Message
from wordloom.text.chat.message import Role

_FORMATS: dict[str, Format] = {**JSON, ".parquet": "parquet"}
_ROLES: dict[str, Role] = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user",
    "assistant": "assistant", "gpt": "assistant", "model": "assistant",
}  # fmt: skip
_LAYOUTS = (
    "instruction with output (or response, or instances); messages; conversations; prompt with completion"
)
EQUAL = "record(s) whose two answers are equal, left out"
_PREFERENCES = "a preference has chosen and rejected, after an instruction or a prompt"
_BEGINNINGS = ("instruction", "prompt")


class Conversation(NamedTuple):
    """The messages of one conversation, which end with an answer; ``place`` names the record in errors."""

    messages: tuple[Message, ...]
    place: str


class Preference(NamedTuple):
    """A prompt with a preferred and a rejected answer; ``place`` names the record in errors."""

    prompt: tuple[Message, ...]
    chosen: Message
    rejected: Message
    place: str


def conversations(sources: Sources, *, encoding_errors: EncodingErrors = "strict") -> Iterator[Conversation]:
    """Yield every conversation of ``sources``, in order.

    Args:
        sources: files, folders (their .jsonl, .json and .parquet, sorted), globs, ``"-"`` for .jsonl on
            standard input, or named sets such as ``alpaca``.  Files may be compressed (.gz, .xz, .bz2, .zst).
        encoding_errors: ``"strict"`` raises on invalid UTF-8, ``"replace"`` inserts U+FFFD.

    Raises DataError, which names file, record and field: a missing file or field, a value that is not text,
    two layouts, an unknown role, a call of a tool, an empty question, messages that do not alternate, or that
    end without an answer.
    """
    for record in _records(sources, encoding_errors):
        for messages in _conversations(record):
            yield Conversation(_checked(messages, record), record.file)


def preferences(
    sources: Sources, *, encoding_errors: EncodingErrors = "strict", counts: Counter[str] | None = None
) -> Iterator[Preference]:
    """Yield every preference of ``sources``, in order; arguments and errors as in :func:`conversations`.

    A record whose two answers are equal prefers none: it is left out, and counted under :data:`EQUAL`.
    """
    left_out = Counter[str]() if counts is None else counts
    for record in _records(sources, encoding_errors):
        for name in ("chosen", "rejected"):
            if name not in record.values:
                raise record.refused(name, f"is missing; {_PREFERENCES}; {_there(record)}")
        beginning = _only_one(record, _BEGINNINGS)
        before = [] if beginning is None else [*_system(record), *_prompt(record)]
        if beginning is None and _system(record):
            raise record.refused("system", "has no prompt to stand before; make it the first message of both")
        chosen, rejected = (_answered(record, name, before) for name in ("chosen", "rejected"))
        if chosen[:-1] != rejected[:-1]:
            raise record.refused("rejected", "follows other messages than chosen; give both the same prompt")
        if chosen == rejected:
            left_out[EQUAL] += 1
            continue
        yield Preference(chosen[:-1], chosen[-1], rejected[-1], record.file)


def _answered(record: JsonObject, name: str, before: list[Message]) -> tuple[Message, ...]:
    """Return the messages ``before`` and the answer in the field ``name``."""
    if not isinstance(record.values[name], list):
        return _checked([*before, Message("assistant", record.text(name))], record)
    messages = _messages(record, name)
    if messages[: len(before)] != before:  # a list may repeat the prompt or not
        messages = [*before, *messages]
    return _checked(messages, record)


# ----------------------------------------------------------------------------------------------- records


def _records(sources: Sources, errors: EncodingErrors) -> Iterator[JsonObject]:
    """Yield the records of all files, without fields that are null; ``file`` is the place of the record."""
    check_errors(errors, "conversations")
    for file in task_files(sources, _FORMATS, task="instructions", stdin=".jsonl"):
        for number, values in _objects(file, errors):
            filled = {name: value for name, value in values.items() if value is not None}
            yield JsonObject(filled, position(file.name, number), "", errors)


def _objects(file: Source, errors: EncodingErrors) -> Iterator[tuple[int, dict[str, Any]]]:
    if file.format == "parquet":
        return enumerate(parquet_objects(file, errors), 1)
    return ((record.line, record.value) for record in json_objects(file, errors, Meter()))


def _conversations(record: JsonObject) -> Iterator[list[Message]]:
    """Yield the conversations of a record: one, or one for each of its instances."""
    values = record.values
    names = ("messages", "conversations", "instruction", *["prompt"] * ("completion" in values))
    _only_one(record, names)
    if "messages" in values:
        yield [*_system(record), *_messages(record, "messages")]
    elif "conversations" in values:
        yield [*_system(record), *_messages(record, "conversations")]
    elif "instruction" in values:
        answer = _only_one(record, ("instances", "output", "response"))
        if answer is None:
            raise record.refused("output", f"is missing; an instruction needs its answer; {_there(record)}")
        yield from _instructed(record, answer)
    elif "prompt" in values:
        if "completion" not in values:
            raise record.refused("completion", f"is missing; a prompt needs its answer; {_there(record)}")
        listed = isinstance(values["completion"], list)
        completion = Message("assistant", "" if listed else record.text("completion", missing=""))
        yield [
            *_system(record),
            *_prompt(record),
            *(_messages(record, "completion") if listed else [completion]),
        ]
    else:
        raise DataError(f"{record.file}: is no conversation; a record has {_LAYOUTS}; {_there(record)}")


def _instructed(record: JsonObject, answer: str) -> Iterator[list[Message]]:
    """Yield the conversations of an instruction with its answer, or with instances, in a field."""
    if answer != "instances":
        yield [*_system(record), *_prompt(record), Message("assistant", record.text(answer, missing=""))]
        return
    for instance in record.objects("instances"):
        question = Message("user", record.text("instruction"), instance.text("input", missing=""))
        yield [*_system(record), question, Message("assistant", instance.text("output", missing=""))]


def _only_one(record: JsonObject, names: Iterable[str]) -> str | None:
    """Return the field of these ``names`` that the record has, if any; raise DataError for two."""
    found = [name for name in names if name in record.values]
    if len(found) > 1:
        raise record.refused(
            found[1], f"stands beside '{found[0]}', and only one of them can be read; leave the other out"
        )
    return found[0] if found else None


def _system(record: JsonObject) -> list[Message]:
    """Return the system message in the field ``system``, if there is one."""
    text = record.text("system", missing="")
    return [Message("system", text)] if text else []


def _there(record: JsonObject) -> str:
    return f"the fields there are {', '.join(map(repr, record.values)) or 'none'}"


def _prompt(record: JsonObject) -> list[Message]:
    """Return the messages before the answer, of an ``instruction`` or a ``prompt``."""
    if "instruction" not in record.values:
        if isinstance(record.values["prompt"], list):
            return _messages(record, "prompt")
        return [Message("user", record.text("prompt"))]
    messages = []
    for i, pair in enumerate(
        record.get("history", list, "a list of pairs") if "history" in record.values else ()
    ):
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise record.refused(f"history[{i}]", "is not a pair of texts: an instruction and its answer")
        place = f"{record.file}: history[{i}]"
        question, answer = (valid_text(text, record.errors, place) for text in pair)
        messages += [Message("user", question), Message("assistant", answer)]
    return [*messages, Message("user", record.text("instruction"), record.text("input", missing=""))]


def _messages(record: JsonObject, field: str) -> list[Message]:
    """Return the messages of a list of objects with ``role`` and ``content``, or ``from`` and ``value``."""
    messages = []
    for entry in record.objects(field):
        role_name, text_name = ("from", "value") if "from" in entry.values else ("role", "content")
        role = entry.text(role_name)
        if role not in _ROLES:
            raise entry.refused(role_name, f"is {role!r}; {did_you_mean(role, _ROLES)}")
        for call in ("tool_calls", "function_call"):
            if entry.values.get(call):
                raise entry.refused(call, "calls a tool, and a conversation has texts alone; leave it out")
        content = entry.values.get(text_name)
        if isinstance(content, list):  # parts, of which texts alone can be read
            content = "".join(_part(part) for part in entry.objects(text_name))
        else:
            content = entry.text(text_name, missing=None if _ROLES[role] == "user" else "")
        messages.append(Message(_ROLES[role], content))
    return messages


def _part(part: JsonObject) -> str:
    if part.text("type", missing="text") != "text":
        raise part.refused("type", f"is {part.values['type']!r}; a message is made of texts alone")
    return part.text("text", missing=None)


def _checked(messages: list[Message], record: JsonObject) -> tuple[Message, ...]:
    """Raise DataError unless questions and answers alternate and an answer is last."""
    turns = messages[1:] if messages and messages[0].role == "system" else messages
    for i, message in enumerate(turns):
        expected = "assistant" if i % 2 else "user"
        if message.role != expected:
            number = i + 1 + len(messages) - len(turns)
            raise DataError(
                f"{record.file}: message {number} is of role '{message.role}' where '{expected}' must "
                "follow; questions and answers alternate, and a system message stands first"
            )
    if not turns or turns[-1].role != "assistant":
        raise DataError(f"{record.file}: ends without an answer, from which a model could learn; add one")
    return tuple(messages)
