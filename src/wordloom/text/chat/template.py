"""Chat templates: the Jinja templates of transformers, rendered in a sandbox with the same result.

A template turns messages into one text.  Messages are untrusted: a special token that a message spells must
not become one.  The renderer therefore marks such spellings, and finds them again in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib import resources
from typing import Any, NamedTuple

from jinja2 import TemplateError, nodes

from wordloom.errors import ChatError, did_you_mean
from wordloom.text.chat.message import Message
from wordloom.text.chat.sandbox import Generation, Sandbox

Span = tuple[int, int]

#: The templates of this package, each with the special tokens that it writes beside bos and eos.
SHIPPED: dict[str, tuple[str, ...]] = {
    "alpaca": (),
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "llama2": (),
    "plain": (),
}

#: The date of templates that write one, in training and in evaluation.  Llama 3.1 has it as its default.
FIXED_DATE = datetime(2024, 7, 26)

# Unicode's noncharacters, which no text interchanges: four of them mark places in a rendered text.
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class Rendered(NamedTuple):
    """The text of a chat.

    Attributes:
        text: the text, as transformers renders it.
        answers: the spans of ``{% generation %}`` blocks, which hold what the assistant writes.
        spelled: the spans of special tokens that messages spell, which are ordinary text.
    """

    text: str
    answers: list[Span]
    spelled: list[Span]


class ChatTemplate:
    """A chat template.

    Attributes:
        source: the Jinja source.
        variables: further variables of the template, such as ``bos_token``.
        now: the time that the template's ``strftime_now`` writes.
        has_answers: whether the template has ``{% generation %}`` blocks.
        reads_input: whether the template has a place for :attr:`Message.input`.
    """

    def __init__(
        self, source: str, variables: Mapping[str, Any] | None = None, *, now: datetime = FIXED_DATE
    ) -> None:
        """Compile the template; raises ChatError for a syntax error."""
        self.source = source
        self.variables = dict(variables or {})
        self.now = now
        self._sandbox = Sandbox(now)
        try:
            tree = self._sandbox.parse(source)
            self.has_answers = Generation.occurs_in(tree)
            self._template = self._sandbox.compiled(tree)
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            place = "" if line is None else f" in line {line}"
            raise ChatError(f"the chat template has an error{place}: {error}; correct it") from None
        keys = [key.arg for key in tree.find_all(nodes.Getitem)]
        names = {key.value for key in keys if isinstance(key, nodes.Const)}
        self.reads_input = "input" in names | {each.attr for each in tree.find_all(nodes.Getattr)}

    @classmethod
    def shipped(cls, name: str, variables: Mapping[str, Any] | None = None) -> ChatTemplate:
        """Return the template of :data:`SHIPPED` with this name; raises ChatError for another name."""
        return cls(shipped_source(name), variables)

    def render(
        self, messages: Sequence[Message], *, prompt: bool = False, specials: Iterable[str] = ()
    ) -> Rendered:
        """Return the text of ``messages``.

        ``prompt`` adds the beginning of an answer (``add_generation_prompt``).  ``specials`` are the special
        tokens that messages must not produce.

        Raises ChatError without messages, and where the template refuses them or fails.
        """
        if not messages:
            raise ChatError("a chat needs at least one message")
        marks = self._marks(messages)
        names = sorted(filter(None, specials), key=len, reverse=True)
        spelled = re.compile("|".join(map(re.escape, names))) if names else None

        def marked(text: str) -> str:
            return text if spelled is None else spelled.sub(rf"{marks[2]}\g<0>{marks[3]}", text)

        given = [self._as_dict(message, marked) for message in messages]
        self._sandbox.begin()
        self._sandbox.generation.marks = (marks[0], marks[1])
        try:
            text = self._template.render(messages=given, add_generation_prompt=prompt, **self.variables)
        except ChatError:
            raise
        except TemplateError as error:
            reason = " ".join(str(error).split())
            raise ChatError(f"the chat template refuses these messages: {reason}") from None
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise ChatError(f"the chat template fails on these messages: {reason}") from error
        finally:
            self._sandbox.generation.marks = ("", "")
        return _unmarked(text, marks)

    def _as_dict(self, message: Message, marked: Callable[[str], str]) -> dict[str, str]:
        content = marked(message.content)
        if not message.input:
            return {"role": message.role, "content": content}
        if self.reads_input:
            return {"role": message.role, "content": content, "input": marked(message.input)}
        return {"role": message.role, "content": f"{content}\n\n{marked(message.input)}"}

    def _marks(self, messages: Sequence[Message]) -> list[str]:
        """Return four noncharacters that neither the template nor a message contains."""
        texts = [self.source, *(text for message in messages for text in (message.content, message.input))]
        free = [mark for mark in _NONCHARACTERS if not any(mark in text for text in texts)]
        if len(free) < 4:
            raise ChatError("the messages hold nearly all noncharacters U+FDD0 to U+FDEF; remove some")
        return free[:4]


def shipped_source(name: str) -> str:
    """Return the source of the template of :data:`SHIPPED` with this name; raises ChatError for another."""
    if name not in SHIPPED:
        raise ChatError(f"unknown chat template {name!r}; {did_you_mean(name, SHIPPED)}")
    file = resources.files(__package__) / "shipped" / f"{name}.jinja"
    return file.read_text(encoding="utf-8").rstrip("\n")


def _unmarked(text: str, marks: Sequence[str]) -> Rendered:
    """Return the text without marks, and the spans between pairs of them."""
    begin_answer, end_answer, begin_spelled, end_spelled = marks
    parts: list[str] = []
    answers: list[Span] = []
    spelled: list[Span] = []
    begun: dict[str, int] = {}
    length = 0
    for part in re.split(f"([{''.join(marks)}])", text):
        if part in (begin_answer, begin_spelled):
            begun[part] = length
        elif part == end_answer:
            answers.append((begun[begin_answer], length))
        elif part == end_spelled:
            spelled.append((begun.pop(begin_spelled, length), length))  # a template may drop the first mark
        else:
            parts.append(part)
            length += len(part)
    return Rendered("".join(parts), answers, [span for span in spelled if span[0] < span[1]])
