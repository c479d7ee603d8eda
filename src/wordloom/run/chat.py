"""A chat with a model: the messages so far, kept in the cache, and answers to new ones."""

from __future__ import annotations

import time
import weakref
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple

from wordloom.errors import ChatError
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


class _Plan(NamedTuple):
    """A question, the turns that stay before it, and a prompt and settings that fit into the context."""

    question: Message
    turns: list[_Turn]
    dropped: int
    prompt: list[int]
    sampling: Sampling


@dataclass
class Chat:
    """A conversation with a model.

    The ids of earlier turns stay as they were read and written.  The cache holds them, so no turn is read
    twice.  After :meth:`undo` or :meth:`edit`, the model reads what follows the unchanged turns.

    A chat writes one answer at a time.  The next question, and every method that changes the conversation,
    closes the iterator of an answer that is still open.

    Attributes:
        model, tokenizer: the model and its tokenizer, which has a chat template.
        sampling: the settings of the next answer.  Without ``max_new_tokens``, an answer may fill the
            context; with "slide", and without a limit of the context, it has up to 256 tokens.
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
        # a weak reference, so that an iterator that the caller drops is closed at once
        self._open: weakref.ref[Generator[str, None, None]] | None = None

    @property
    def messages(self) -> list[Message]:
        """All messages, the system message first if there is one."""
        return self._messages(self._turns)

    @property
    def system(self) -> str | None:
        """The system message; None for none.  After a change, the model reads all turns again.

        Setting it raises ChatError as the template does; the chat then stays as it was.
        """
        return None if self._system is None else self._system.content

    @system.setter
    def system(self, text: str | None) -> None:
        self._end_answer()
        message = Message("system", text) if text else None
        self._turns = self._encoded(message, [(turn.question, turn.answer) for turn in self._turns])
        self._system = message

    @property
    def n_tokens(self) -> int:
        """The tokens of all turns."""
        return len(self._turns[-1].ids) if self._turns else 0

    @property
    def room(self) -> int | None:
        """The tokens that the context holds; None for any number."""
        return generation_limit(self.model.config)

    @property
    def fills_context(self) -> bool:
        """Whether an answer without ``max_new_tokens`` may use all tokens that the context has left."""
        return self.room is not None and self.when_full != "slide"

    def ask(self, question: str) -> Iterator[str]:
        """Yield the answer to ``question`` in pieces; then both are a turn of the chat.

        If the iterator is closed early, the answer up to there counts.

        Raises ChatError for a question that leaves no room for an answer, and as the template does; no turn
        is then dropped.
        """
        self._end_answer()
        return self._answer_after(self._turns, question)

    def undo(self) -> _Turn | None:
        """Remove the last turn and return it; None without a turn."""
        self._end_answer()
        return self._turns.pop() if self._turns else None

    def retry(self) -> Iterator[str]:
        """Yield another answer to the last question; raises ChatError without one."""
        self._end_answer()
        if not self._turns:
            raise ChatError("there is no answer to replace; ask something first")
        return self.edit(self._turns[-1].question.content)

    def edit(self, question: str) -> Iterator[str]:
        """Replace the last question and yield the answer to the new one.

        The last turn stays until the answer begins, when the first piece is read.

        Raises ChatError without a question, and as :meth:`ask`; the last turn then stays.
        """
        self._end_answer()
        if not self._turns:
            raise ChatError("there is no question to replace; ask something first")
        return self._answer_after(self._turns[:-1], question)

    def clear(self) -> None:
        """Remove all turns; the system message stays."""
        self._end_answer()
        self._turns.clear()

    def load(self, messages: Sequence[Message]) -> None:
        """Continue a chat of ``messages``: perhaps a system message, then questions and answers.

        Raises ChatError for other messages, and as the template does; the chat then stays as it was.
        """
        self._end_answer()
        rest = list(messages)
        system = rest.pop(0) if rest and rest[0].role == "system" else None
        roles = [message.role for message in rest]
        if roles != ["user", "assistant"] * (len(rest) // 2):
            raise ChatError(
                "a chat to load has a system message at most, and then questions with an answer each; these "
                f"are {', '.join(roles) or 'none'}"
            )
        self._turns = self._encoded(system, list(zip(rest[::2], rest[1::2], strict=True)))
        self._system = system

    # -- ids -------------------------------------------------------------------------------------------

    def _encoded(self, system: Message | None, turns: Sequence[tuple[Message, Message]]) -> list[_Turn]:
        """Return these questions and answers, encoded after the system message."""
        messages = [] if system is None else [system]
        if system is not None:  # the template may refuse it
            encode_chat(self.tokenizer, self.template, [system, Message("user", "?")], prompt=True)
        encoded = []
        for question, answer in turns:
            messages += [question, answer]
            ids = encode_chat(self.tokenizer, self.template, messages).ids
            encoded.append(_Turn(question, answer, tuple(_until(ids, self.end))))
        return encoded

    def _messages(self, turns: Sequence[_Turn]) -> list[Message]:
        """Return the system message, if there is one, and the messages of ``turns``."""
        first = [] if self._system is None else [self._system]
        return first + [message for turn in turns for message in (turn.question, turn.answer)]

    def _prompt(self, turns: Sequence[_Turn], question: Message) -> list[int]:
        """Return the ids of ``turns`` and of ``question``, up to where its answer begins."""
        messages = self._messages(turns)
        whole = encode_chat(self.tokenizer, self.template, [*messages, question], prompt=True).ids
        if not turns:
            return whole
        # earlier answers stay as they were written, which may be another spelling in tokens
        ends = encode_chat(self.tokenizer, self.template, messages).ids.count(self.end)
        places = [place for place, index in enumerate(whole) if index == self.end]
        if len(places) < ends:  # the template writes earlier turns differently now
            return whole
        return [*turns[-1].ids, *whole[places[ends - 1] + 1 :]]

    def _plan(self, turns: list[_Turn], question: Message) -> _Plan:
        """Return a plan of the answer to ``question`` after ``turns``; the chat does not change."""
        prompt, room, dropped = self._prompt(turns, question), self.room, 0
        if room is None or self.when_full == "slide":
            return _Plan(question, turns, dropped, prompt, replace(self.sampling, past="slide"))
        most = self.sampling.max_new_tokens
        wanted = min(most or _LEAST, room // 2)
        while self.when_full == "drop" and turns and len(prompt) + wanted > room:
            turns = self._encoded(self._system, [(turn.question, turn.answer) for turn in turns[1:]])
            dropped += 1
            prompt = self._prompt(turns, question)
        left = room - len(prompt)
        if left < 1:
            raise ChatError(self._full(turns, len(prompt), room))
        sampling = replace(self.sampling, max_new_tokens=left if most is None else min(left, most))
        return _Plan(question, turns, dropped, prompt, sampling)

    def _full(self, turns: Sequence[_Turn], n: int, room: int) -> str:
        """Return the message about a prompt of ``n`` tokens that leaves no room for an answer."""
        if turns:  # they are kept because of "stop"
            return (
                f"the chat has {n:,} tokens and the context holds {room:,}: undo turns, clear the chat, or "
                "start it with --when-full drop (the oldest turns) or slide"
            )
        what = "the question" if self._system is None else "the system message and the question"
        verb = "has" if self._system is None else "have"
        return f"{what} {verb} {n:,} tokens and the context holds {room:,}: shorten the text"

    def _end_answer(self) -> None:
        """Close the iterator of the last answer if it is open; its text so far is then a turn."""
        answer = None if self._open is None else self._open()
        if answer is not None:
            answer.close()

    def _answer_after(self, turns: list[_Turn], question: str) -> Iterator[str]:
        """Return the iterator of the answer to ``question``, which follows ``turns``."""
        answer = self._answer(self._plan(turns, Message("user", question)))
        self._open = weakref.ref(answer)
        return answer

    def _answer(self, plan: _Plan) -> Generator[str, None, None]:
        """Yield the answer in pieces, and keep the question and the answer as a turn."""
        prompt, sampling = plan.prompt, plan.sampling
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
        self._turns, self.dropped = plan.turns, plan.dropped  # after a refused prompt they stay
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
            self._turns.append(_Turn(plan.question, answer, (*prompt, *written, self.end)))


def _until(ids: Sequence[int], end: int) -> list[int]:
    """Return ``ids`` up to the last ``end``, which stays."""
    last = next((i for i in reversed(range(len(ids))) if ids[i] == end), len(ids) - 1)
    return list(ids[: last + 1])
