"""The ids of a chat, and which of them the assistant writes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from wordloom.errors import ChatError, TokenizerError
from wordloom.text.chat.message import Message
from wordloom.text.chat.template import FIXED_DATE, ChatTemplate, Rendered, Span
from wordloom.text.encoding import Encoding
from wordloom.text.special import finder
from wordloom.text.tokenizer import Tokenizer

MARK = "7290418365"  # which no template writes of its own accord, and no filter for letters changes


class ChatIds(NamedTuple):
    """The ids of a chat.

    Attributes:
        ids: all ids.
        scored: for each id, whether the assistant writes it, so that a loss covers it.
    """

    ids: list[int]
    scored: list[bool]


def template_of(
    tokenizer: Tokenizer, source: str | None = None, *, now: datetime = FIXED_DATE
) -> ChatTemplate:
    """Return the chat template ``source``, or the tokenizer's own, with its special tokens as variables.

    ``now`` is the time for templates that write a date.

    Raises ChatError if there is none.
    """
    source = tokenizer.chat_template if source is None else source
    if source is None:
        raise ChatError("the tokenizer has no chat template: this model was not trained to chat")
    return ChatTemplate(source, tokenizer.special_names(), now=now)


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    prompt: bool = False,
    place: str = "",
) -> ChatIds:
    """Return the ids of ``messages``, those that transformers' ``apply_chat_template`` gives.

    Special tokens come from the template alone: one that a message spells is encoded as ordinary text.  Where
    the tokenizer would join the end of a prompt with the beginning of its answer, the prompt keeps the ids
    that it has alone, because generation begins with those.

    ``prompt`` adds the beginning of an answer, and nothing is scored.  ``place`` stands in errors.

    Raises ChatError for a template that refuses the messages, that ignores their system message, whose
    answers cannot be found, or that begins with two bos tokens.
    """
    try:
        return _encode_chat(tokenizer, template, messages, prompt)
    except (ChatError, TokenizerError) as error:
        raise type(error)(f"{place}: {error}" if place else str(error)) from error.__cause__


def _encode_chat(
    tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Message], prompt: bool
) -> ChatIds:
    names = _names(tokenizer)
    rendered = template.render(messages, prompt=prompt, specials=names)
    _check_system_message(template, messages, rendered.text, prompt=prompt)
    answers = [] if prompt else rendered.answers
    if not prompt and not template.has_answers:
        answers = _found_answers(template, messages, rendered, names)
    whole = _encoded(tokenizer, rendered.text, rendered.spelled, names)
    joined = [start for start, _ in answers if any(begin < start < end for begin, end in whole.offsets)]
    if joined and not tokenizer.strips_first_space:  # which would put a space before each part
        edges = [0, *joined, len(rendered.text)]
        whole = _encoded_apart(tokenizer, rendered, edges, names)
    ids, bos = whole.ids, tokenizer.bos_id
    if bos is not None and ids[:2] == [bos, bos]:
        raise ChatError(
            f"the chat begins with {tokenizer.id_to_token(bos)} twice; take it out of the first message or "
            "of the template"
        )
    scored = [any(start <= begin and end <= stop for start, stop in answers) for begin, end in whole.offsets]
    return ChatIds(ids, scored)


def _check_system_message(
    template: ChatTemplate, messages: Sequence[Message], text: str, *, prompt: bool
) -> None:
    """Raise ChatError if ``messages`` have the same ``text`` with another system message."""
    first, *rest = messages
    if first.role != "system" or not first.content:
        return
    other = first._replace(content=f"{first.content} {MARK}")
    if template.render([other, *rest], prompt=prompt).text == text:
        raise ChatError(
            "the chat template ignores the system message; leave the message out (data.system, --system), or "
            "take another template"
        )


def end_of_turn(tokenizer: Tokenizer, template: ChatTemplate) -> int:
    """Return the id that ends an answer: the first special token behind it.

    Raises ChatError for a template that ends answers without a special token: a model could not stop.
    """
    text = template.render([Message("user", "?"), Message("assistant", MARK)]).text
    if MARK not in text:
        raise ChatError("the chat template does not write the text of an answer as it is; correct it")
    behind = text[text.rindex(MARK) + len(MARK) :]
    stretches = _stretches(behind, (), _names(tokenizer))
    name = next((behind[first:last] for first, last, special in stretches if special), None)
    index = None if name is None else tokenizer.token_to_id(name)
    if index is None:
        raise ChatError(
            "the chat template does not end an answer with a special token of the tokenizer, so a model "
            "could not learn to stop; add eos_token to the template, or the token to the tokenizer"
        )
    return index


def _names(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.id_to_token(index) for index in tokenizer.special_ids]


def _encoded(tokenizer: Tokenizer, text: str, spelled: Sequence[Span], names: list[str]) -> Encoding:
    """Return the encoding of ``text``, in which the special tokens of ``spelled`` are ordinary text."""
    if not spelled:
        return tokenizer.encode(text, specials="interpret")
    ids: list[int] = []
    offsets: list[Span] = []
    for first, last, special in _stretches(text, spelled, names):
        if special:
            index = tokenizer.token_to_id(text[first:last])
            assert index is not None
            ids.append(index)
            offsets.append((first, last))
        else:
            part = tokenizer.encode(text[first:last], specials="text")
            ids += part.ids
            offsets += [(first + begin, first + end) for begin, end in part.offsets]
    return Encoding(ids, offsets)


def _encoded_apart(
    tokenizer: Tokenizer, rendered: Rendered, edges: Sequence[int], names: list[str]
) -> Encoding:
    """Return the encoding of the text between each two of ``edges``, one after another."""
    ids: list[int] = []
    offsets: list[Span] = []
    begins = [begin for begin, _ in rendered.spelled]
    for first, last in pairwise(edges):
        within = rendered.spelled[bisect_left(begins, first) : bisect_left(begins, last)]
        spelled = [(a - first, b - first) for a, b in within if b <= last]
        part = _encoded(tokenizer, rendered.text[first:last], spelled, names)
        ids += part.ids
        offsets += [(first + begin, first + end) for begin, end in part.offsets]
    return Encoding(ids, offsets)


def _stretches(text: str, spelled: Sequence[Span], names: list[str]) -> Iterator[tuple[int, int, bool]]:
    """Yield begin and end of each special token (True) that no message spells, and of the text between."""
    pattern = finder(names)
    last = n_before = 0  # how many spans of ``spelled``, which are in order, end before the match
    for match in () if pattern is None else pattern.finditer(text):
        first, end = match.span()
        while n_before < len(spelled) and spelled[n_before][1] <= first:
            n_before += 1
        if n_before < len(spelled) and spelled[n_before][0] < end:
            continue
        if last < first:
            yield last, first, False
        yield first, end, True
        last = end
    if last < len(text):
        yield last, len(text), False


def _found_answers(
    template: ChatTemplate, messages: Sequence[Message], rendered: Rendered, names: list[str]
) -> list[Span]:
    """Return the spans of answers in a text whose template does not mark them.

    An answer begins where the chat before it ends with the beginning of an answer, and ends behind the last
    special token of its message.
    """
    answers = []
    for i, message in enumerate(messages):
        if message.role != "assistant":
            continue
        before = template.render(messages[:i], prompt=True).text if i else ""
        until = template.render(messages[: i + 1]).text
        if not (rendered.text.startswith(until) and until.startswith(before)):
            raise ChatError(
                "the chat template writes a message differently when others follow, so answers cannot be "
                "found; put {% generation %} and {% endgeneration %} around them in the template"
            )
        ends = [end for _, end, special in _stretches(until, rendered.spelled, names) if special]
        end = max((end for end in ends if end > len(before)), default=len(until))
        answers.append((len(before), end))
    return answers
