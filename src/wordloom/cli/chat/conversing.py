"""Converse with an assistant: questions, answers, and commands that begin with a slash."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wordloom.cli.chat.answers import print_pieces
from wordloom.cli.chat.lines import read_lines
from wordloom.cli.generate import print_note

if TYPE_CHECKING:
    from wordloom.generate import Settings
    from wordloom.generate.speculation import NewDrafter
    from wordloom.run import LanguageModel
    from wordloom.run.chat import Chat, WhenFull

_SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "temperature": ("temperature", float),
    "top-k": ("top_k", int),
    "top-p": ("top_p", float),
    "max-new-tokens": ("max_new_tokens", int),
    "seed": ("seed", int),
}
HELP = """\
/temperature X  /top-k N  /top-p X  /max-new-tokens N  /seed N   change a setting; alone, show it
/system TEXT    change the system message; alone, show it; "" removes it
/undo           remove the last question and its answer
/retry          answer the last question again
/edit TEXT      replace the last question
/clear          remove all turns
/save FILE      write the conversation as JSON: {"messages": [...]}
/load FILE      continue a conversation that was saved
/tokens         show how full the context is
/help           show these lines
Ctrl-C stops an answer, Ctrl-D leaves"""


def converse(
    lm: LanguageModel,
    chosen: Settings,
    drafter: NewDrafter | None,
    *,
    system: str | None,
    when_full: WhenFull,
    terminal: bool,
    json: bool,
) -> None:
    """Answer each line that is typed or piped; ``json`` prints each answer as an object."""
    from wordloom.errors import WordloomError
    from wordloom.run.chat import Chat

    chat = Chat(
        lm.model,
        lm.text_tokenizer,
        chosen.sampling,
        when_full=when_full,
        eos_ids=chosen.eos_ids,
        speculate=drafter,
    )
    chat.system = lm.system if system is None else system
    if terminal:
        print_note(chosen.line(fills_context=chat.fills_context))
        print_note("Ctrl-C stops an answer, Ctrl-D leaves, /help lists the commands")
    for line in read_lines(terminal):
        try:
            pieces = chat.ask(_content(line)) if json else _run(chat, line)
            if pieces is None:
                continue
            if json:
                _print_json(chat, "".join(pieces))
            else:
                print_pieces(pieces, terminal=terminal)
                if terminal or chat.dropped:
                    print_note(_about(chat) if terminal else _dropped(chat))
        except WordloomError as error:
            if not terminal:
                raise
            print_note(str(error))


def _content(line: str) -> str:
    """Return the question in a line of JSON."""
    from wordloom.data.files.json import parse_json
    from wordloom.errors import ChatError, DataError

    try:
        found = parse_json(line, "standard input")
    except (ValueError, DataError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("content"), str):
        raise ChatError(f'a line is {line[:60]!r}; with --json it is {{"content": "a question"}}')
    return _content_alone(found, "content", what="a line of --json")


def _content_alone(found: dict[str, Any], *names: str, what: str) -> str:
    """Return the content of an object.

    Raises ChatError if it has a value in a field that is not among ``names``.
    """
    from wordloom.errors import ChatError

    if others := [name for name, value in found.items() if name not in names and value is not None]:
        raise ChatError(
            f"{what} has {', '.join(map(repr, others))} beside {' and '.join(map(repr, names))}; a chat "
            "cannot take that, so leave it out"
        )
    text: str = found["content"]
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ChatError(f"{what} holds half of a surrogate pair, which is not text; correct it")
    return text


def _run(chat: Chat, line: str) -> Iterator[str] | None:
    """Return the answer to a line in pieces; None for a command that has none."""
    from wordloom.errors import ChatError, did_you_mean

    if not line.startswith("/"):
        return chat.ask(line)
    name, _, argument = line[1:].partition(" ")
    argument = argument.strip()
    if name in _SETTINGS:
        _set(chat, name, argument)
        return None
    if name == "edit":
        if not argument:
            raise ChatError("/edit needs the new question behind it")
        return chat.edit(argument)
    if name in _COMMANDS:
        _COMMANDS[name](chat, argument)
        return None
    if name != "retry" and name not in _ALONE:
        known = [f"/{each}" for each in (*_SETTINGS, "retry", "edit", *_COMMANDS, *_ALONE)]
        raise ChatError(
            f"unknown command /{name}; {did_you_mean(f'/{name}', known)}; a space before it sends it"
        )
    if argument:
        raise ChatError(f"/{name} takes nothing behind it, not {argument!r}")
    if name == "retry":
        return chat.retry()
    _ALONE[name](chat)
    return None


def _set(chat: Chat, name: str, argument: str) -> None:
    """Change a setting, or show it."""
    from wordloom.errors import ChatError
    from wordloom.generate.settings import shown

    key, parse = _SETTINGS[name]
    if argument:
        try:
            value = parse(argument)
        except ValueError:
            kind = "a whole number" if parse is int else "a number"
            raise ChatError(f"/{name} takes {kind}, not {argument!r}") from None
        chat.sampling = replace(chat.sampling, **{key: value})
    value = shown(key, getattr(chat.sampling, key), fills_context=chat.fills_context)
    print_note(f"{name} {value}")


def _system(chat: Chat, argument: str) -> None:
    if not argument:
        print_note(f"system {chat.system or 'none'}")
        return
    chat.system = None if argument == '""' else argument
    print_note("the system message is changed" if chat.system else "the system message is removed")


def _undo(chat: Chat) -> None:
    turn = chat.undo()
    print_note("there is no turn to undo" if turn is None else f"removed: {turn.question.content}")


def _clear(chat: Chat) -> None:
    chat.clear()
    print_note("all turns are removed")


def _save(chat: Chat, argument: str) -> None:
    from wordloom.errors import ChatError
    from wordloom.files import link_target, write_text

    path = Path(_named(argument, "save"))
    messages = [{"role": message.role, "content": message.content} for message in chat.messages]
    try:
        if path.exists():
            raise ChatError(f"{path} exists; choose another name")
        write_text(
            link_target(path), json_module.dumps({"messages": messages}, indent=2, ensure_ascii=False) + "\n"
        )
    except OSError as error:
        raise ChatError(f"{path} cannot be written: {error.strerror}") from None
    print_note(f"wrote {path}")


def _load(chat: Chat, argument: str) -> None:
    from wordloom.data.files.json import parse_json
    from wordloom.errors import ChatError, DataError
    from wordloom.text.chat import Message

    path = Path(_named(argument, "load"))
    try:
        found = parse_json(path.read_text(encoding="utf-8-sig"), str(path))["messages"]
        if not all(isinstance(each["role"], str) and isinstance(each["content"], str) for each in found):
            raise TypeError
    except OSError as error:
        raise ChatError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, DataError):
        raise ChatError(
            f'{path} holds no conversation: {{"messages": [{{"role", "content"}}, ...]}}'
        ) from None
    places = ((each, f"{path}: message {number}") for number, each in enumerate(found, 1))
    messages = [
        Message(each["role"], _content_alone(each, "role", "content", what=place)) for each, place in places
    ]
    chat.load(messages)
    print_note(f"{len(messages)} messages of {path}")


def _named(argument: str, name: str) -> str:
    from wordloom.errors import ChatError

    if not argument:
        raise ChatError(f"/{name} needs the name of a file behind it")
    if "\0" in argument:
        raise ChatError(f"/{name}: the name of a file cannot hold the character NUL; type it again")
    return argument


def _tokens(chat: Chat) -> None:
    room = "any number" if chat.room is None else f"{chat.room:,}"
    print_note(f"{chat.n_tokens:,} tokens in {len(chat.messages)} messages; the context holds {room}")


def _help(chat: Chat) -> None:
    print_note(HELP)


_COMMANDS: dict[str, Callable[[Chat, str], None]] = {
    "system": _system,
    "save": _save,
    "load": _load,
}
_ALONE: dict[str, Callable[[Chat], None]] = {
    "undo": _undo,
    "clear": _clear,
    "tokens": _tokens,
    "help": _help,
}


def _about(chat: Chat) -> str:
    """Return a line about the last answer: its speed, and what happened to the context."""
    usage = chat.usage
    if usage is None:
        return ""
    facts = [f"{usage.written:,} tokens, {usage.tokens_per_second:,.0f} tokens/s, {usage.read:,} read"]
    if chat.dropped:
        facts.append(_dropped(chat))
    if usage.finish_reason == "length":
        full = chat.room is not None and chat.n_tokens >= chat.room
        facts.append("the context is full" if full else "the answer reached its longest length")
    return "; ".join(facts)


def _dropped(chat: Chat) -> str:
    oldest = "the oldest turn was" if chat.dropped == 1 else f"the {chat.dropped} oldest turns were"
    return f"{oldest} dropped"


def _print_json(chat: Chat, answer: str) -> None:
    usage = chat.usage
    assert usage is not None
    found = {
        "role": "assistant",
        "content": answer,
        "finish_reason": usage.finish_reason,
        "tokens_read": usage.read,
        "tokens_written": usage.written,
        "turns_dropped": chat.dropped,
    }
    print(json_module.dumps(found, ensure_ascii=False), flush=True)
