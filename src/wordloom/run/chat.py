"""A chat with a model: the messages so far, kept in the cache, and answers to new ones."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple

from wordloom.errors import ChatError, WordloomError
from wordloom.generate import History, Sampling
from wordloom.generate.engine import FinishReason, RowOptions
from wordloom.generate.speculation import NewDrafter
from wordloom.generate.text import StopWatch
from wordloom.models import generation_limit
from wordloom.text import Tokenizer
from wordloom.text.chat import ChatTemplate, Message, encode_chat, end_of_turn, template_of

WhenFull = Literal["stop", "drop", "slide"]
_LEAST = 64  # tokens that an answer without a limit should have room for


class Usage(NamedTuple):
    """The cost of an answer.

    Attributes:
        read, written: the numbers of tokens that the model read and wrote for it.
        first_seconds: the seconds from the question to the first token.
        seconds: the seconds from the question to the end.
        finish_reason: why the answer ended.
    """

    read: int
    written: int
    first_seconds: float
    seconds: float
    finish_reason: FinishReason

    @property
    def tokens_per_second(self) -> float:
        """The tokens written per second after the first one."""
        spent = self.seconds - self.first_seconds
        return (self.written - 1) / spent if self.written > 1 and spent > 0 else 0.0


@dataclass(frozen=True)
class _Turn:
    """A question and its answer, with all ids up to the end of the answer."""

    question: Message
    answer: Message
    ids: tuple[int, ...]


@dataclass
class Chat:
    """A conversation with a model.

    The ids of earlier turns stay as they were read and written.  The cache holds them, so no turn is read
    twice.  After :meth:`undo` or :meth:`edit`, the model reads what follows the unchanged turns.

    Attributes:
        model, tokenizer: the model and its tokenizer, which has a chat template.
        sampling: the settings of the next answer.
        when_full: what happens when the context is full: answers stop there ("stop"), the oldest turns are
            dropped ("drop"), or the oldest tokens slide out ("slide").
        eos_ids: further ids that end an answer.
        speculate: makes drafts; see :mod:`wordloom.generate.speculation`.
        dropped: how many turns were dropped to make room for the last answer.
        usage: the cost of the last answer; None before the first.
    """

    model: Any
    tokenizer: Tokenizer
    sampling: Sampling = field(default_factory=Sampling)
    when_full: WhenFull = "stop"
    eos_ids: Sequence[int] = ()
    speculate: NewDrafter | None = None
    dropped: int = field(default=0, init=False)
    usage: Usage | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Raise ChatError for a tokenizer without a template, and for one whose answers have no end."""
        self.template: ChatTemplate = template_of(self.tokenizer, now=datetime.now())
        self.end = end_of_turn(self.tokenizer, self.template)
        self._history = History(self.model, speculate=self.speculate)
        self._system: Message | None = None
        self._turns: list[_Turn] = []
        self._asked = 0

    @property
    def messages(self) -> list[Message]:
        """All messages, the system message first if there is one."""
        first = [] if self._system is None else [self._system]
        return first + [message for turn in self._turns for message in (turn.question, turn.answer)]

    @property
    def system(self) -> str | None:
        """The system message; None for none.  After a change, the model reads all turns again.

        Setting it raises ChatError as the template does; the chat then stays as it was.
        """
        return None if self._system is None else self._system.content

    @system.setter
    def system(self, text: str | None) -> None:
        message = Message("system", text) if text else None
        self._rebuild(message, [(turn.question, turn.answer) for turn in self._turns])

    @property
    def n_tokens(self) -> int:
        """The tokens of all turns."""
        return len(self._turns[-1].ids) if self._turns else 0

    @property
    def room(self) -> int | None:
        """The tokens that the context holds; None for any number."""
        return generation_limit(self.model.config)

    def ask(self, question: str) -> Iterator[str]:
        """Yield the answer to ``question`` in pieces; then both are a turn of the chat.

        If the iterator is closed early, the answer up to there counts.

        Raises ChatError for a question that leaves no room for an answer, and as the template does; no turn
        is then dropped.
        """
        message = Message("user", question)
        return self._answer(message, *self._fitting(message))

    def undo(self) -> _Turn | None:
        """Remove the last turn and return it; None without a turn."""
        return self._turns.pop() if self._turns else None

    def retry(self) -> Iterator[str]:
        """Yield another answer to the last question; raises ChatError without one."""
        if not self._turns:
            raise ChatError("there is no answer to replace; ask something first")
        return self.edit(self._turns[-1].question.content)

    def edit(self, question: str) -> Iterator[str]:
        """Replace the last question and yield the answer to the new one.

        Raises ChatError without a question, and as :meth:`ask`; the last turn then stays.
        """
        last = self.undo()
        if last is None:
            raise ChatError("there is no question to replace; ask something first")
        try:
            return self.ask(question)
        except WordloomError:
            self._turns.append(last)
            raise

    def clear(self) -> None:
        """Remove all turns; the system message stays."""
        self._turns.clear()

    def load(self, messages: Sequence[Message]) -> None:
        """Continue a chat of ``messages``: perhaps a system message, then questions and answers.

        Raises ChatError for other messages, and as the template does; the chat then stays as it was.
        """
        rest = list(messages)
        system = rest.pop(0) if rest and rest[0].role == "system" else None
        roles = [message.role for message in rest]
        if roles != ["user", "assistant"] * (len(rest) // 2):
            raise ChatError(
                "a chat to load has a system message at most, and then questions with an answer each; these "
                f"are {', '.join(roles) or 'none'}"
            )
        self._rebuild(system, list(zip(rest[::2], rest[1::2], strict=True)))

    # -- ids -------------------------------------------------------------------------------------------

    def _rebuild(self, system: Message | None, turns: Sequence[tuple[Message, Message]]) -> None:
        """Replace the system message and all turns by these, which are encoded again."""
        messages = [] if system is None else [system]
        if system is not None:  # the template may refuse it
            encode_chat(self.tokenizer, self.template, [system, Message("user", "?")], prompt=True)
        rebuilt = []
        for question, answer in turns:
            messages += [question, answer]
            ids = encode_chat(self.tokenizer, self.template, messages).ids
            rebuilt.append(_Turn(question, answer, tuple(_until(ids, self.end))))
        self._system, self._turns = system, rebuilt

    def _prompt(self, question: Message) -> list[int]:
        """Return the ids of all turns and of ``question``, up to where its answer begins."""
        whole = encode_chat(self.tokenizer, self.template, [*self.messages, question], prompt=True).ids
        if not self._turns:
            return whole
        # earlier answers stay as they were written, which may be another spelling in tokens
        ends = encode_chat(self.tokenizer, self.template, self.messages).ids.count(self.end)
        places = [place for place, index in enumerate(whole) if index == self.end]
        if len(places) < ends:  # the template writes earlier turns differently now
            return whole
        return [*self._turns[-1].ids, *whole[places[ends - 1] + 1 :]]

    def _fitting(self, question: Message) -> tuple[list[int], Sampling]:
        """Return the ids of the prompt and the sampling of an answer that fits behind it."""
        self.dropped, turns = 0, self._turns
        try:
            return self._fitted(question)
        except WordloomError:
            self.dropped, self._turns = 0, turns
            raise

    def _fitted(self, question: Message) -> tuple[list[int], Sampling]:
        """Return the result of :meth:`_fitting`; an error leaves the chat without the dropped turns."""
        prompt, room = self._prompt(question), self.room
        if room is None or self.when_full == "slide":
            return prompt, replace(self.sampling, past="slide")
        wanted = min(self.sampling.max_new_tokens or _LEAST, room // 2)
        while self.when_full == "drop" and self._turns and len(prompt) + wanted > room:
            self._rebuild(self._system, [(turn.question, turn.answer) for turn in self._turns[1:]])
            self.dropped += 1
            prompt = self._prompt(question)
        left = room - len(prompt)
        if left < 1:
            raise ChatError(self._full(len(prompt), room))
        most = self.sampling.max_new_tokens
        return prompt, replace(self.sampling, max_new_tokens=left if most is None else min(left, most))

    def _full(self, n: int, room: int) -> str:
        """Return the message about a prompt of ``n`` tokens that leaves no room for an answer."""
        if self._turns:  # the turns are kept because of "stop"
            return (
                f"the chat has {n:,} tokens and the context holds {room:,}: undo turns, clear the chat, or "
                "start it with --when-full drop (the oldest turns) or slide"
            )
        what = "the question" if self._system is None else "the system message and the question"
        verb = "has" if self._system is None else "have"
        return f"{what} {verb} {n:,} tokens and the context holds {room:,}: shorten the text"

    def _answer(self, question: Message, prompt: list[int], sampling: Sampling) -> Iterator[str]:
        """Yield the answer in pieces, and keep both as a turn."""
        began, first = time.perf_counter(), 0.0
        ends = (self.end, *self.eos_ids)
        silent = {*ends, *sampling.stop_ids}  # tokens that end an answer are not decoded
        watch = StopWatch(self.tokenizer.stream_decoder(prompt, skip_special_tokens=True), sampling.stop)
        texts: list[str] = []
        ids: list[int] = []
        new: list[str] = []
        reason: FinishReason = "stop"

        def stopped(_row: int, token: int) -> bool:
            new.append(watch.push(token))
            return watch.stopped

        options: RowOptions = {
            "eos_ids": ends, "stopped": stopped, "vocab_size": self.tokenizer.vocab_size,
            "first_row": self._asked,
        }  # fmt: skip
        self._asked += 1
        steps = self._history.continued(prompt, sampling, **options)
        try:
            for step in steps:
                first = first or time.perf_counter() - began
                ids.append(step.id)
                text = "" if step.id in silent else new.pop(0)
                if step.finish_reason is not None:
                    reason = step.finish_reason
                    text += watch.flush()
                if not texts:
                    text = text.lstrip()
                if text:
                    texts.append(text)
                    yield text
        finally:
            steps.close()
            spent = time.perf_counter() - began
            self.usage = Usage(self._history.n_read, len(ids), first, spent, reason)
            written = ids[:-1] if ids and ids[-1] in ends else ids
            answer = Message("assistant", "".join(texts))
            self._turns.append(_Turn(question, answer, (*prompt, *written, self.end)))


def _until(ids: Sequence[int], end: int) -> list[int]:
    """Return ``ids`` up to the last ``end``, which stays."""
    last = next((i for i in reversed(range(len(ids))) if ids[i] == end), len(ids) - 1)
    return list(ids[: last + 1])
