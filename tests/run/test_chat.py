"""A chat answers as if every prompt were read from the start, and reads each turn once."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from wordloom.errors import ChatError, GenerationError
from wordloom.generate import Sampling, steps
from wordloom.models import GPT2Config, LlamaConfig, RNNConfig, build
from wordloom.run.chat import Chat
from wordloom.text import Tokenizer
from wordloom.text.chat import SHIPPED, Message, shipped_source, template_of

TEXT = ["Name the colour of grass. It is green, and the sky is blue.\n\nCount: one two three."] * 4


def a_chat(
    rng: random.Random, template: str, family: str = "llama", *, room: int = 600, **settings: Any
) -> Chat:
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer.train(TEXT, kind="bpe", vocab_size=330, special_tokens=specials)
    tokenizer = tokenizer.with_chat_template(shipped_source(template))
    V = tokenizer.vocab_size
    heads = rng.choice([1, 3])
    if family == "rnn":
        model = build(RNNConfig(vocab_size=V, dim=12, n_layers=1, cell="gru"))
    elif family == "gpt2":
        model = build(GPT2Config(vocab_size=V, dim=heads * 6, n_heads=heads, n_layers=2, max_seq_len=room))
    else:
        attention = rng.choice(["full", "band:9"])
        model = build(LlamaConfig(
            vocab_size=V, dim=heads * 8, n_heads=heads, n_layers=2, max_seq_len=room, attention=attention
        ))  # fmt: skip
    return Chat(model.eval(), tokenizer, **settings)


def question(rng: random.Random) -> str:
    return " ".join(
        rng.choices(["name", "the", "colour of", "grass", "count", "two", "green\n", "<|im_end|>"], k=4)
    )


@pytest.mark.parametrize("template", SHIPPED)
@pytest.mark.parametrize("family", ["llama", "gpt2", "rnn"])
def test_answers_are_those_of_a_prompt_read_from_the_start(template: str, family: str) -> None:
    rng = random.Random()
    chat = a_chat(rng, template, family)
    if rng.random() < 0.5:
        chat.system = "Be kind."
    for asked in range(4):
        chat.sampling = Sampling(
            temperature=rng.choice([0, 1.0]), seed=asked, max_new_tokens=rng.choice([1, 5, 12])
        )
        before = chat.n_tokens
        text = question(rng)
        prompt = chat._prompt(chat._turns, Message("user", text))
        answer = "".join(chat.ask(text))
        made = list(steps(
            chat.model, [prompt], chat.sampling, eos_ids=[chat.end], first_row=asked,
            vocab_size=chat.tokenizer.vocab_size,
        ))  # fmt: skip
        ids = [step.id for step in made if step.id != chat.end]
        assert answer == chat.tokenizer.decode(ids, skip_special_tokens=True).lstrip()
        assert chat._turns[-1].ids == (*prompt, *ids, chat.end)
        assert chat.messages[-2:] == [Message("user", text), Message("assistant", answer)]
        usage = chat.usage
        assert usage is not None
        assert usage.written == len(made)
        if asked:  # the turns before are in the cache, but for the end of the last answer
            assert usage.read <= len(prompt) - before + 2


def test_turns_are_undone_retried_edited_and_loaded() -> None:
    rng = random.Random()
    chat = a_chat(rng, "chatml", sampling=Sampling(temperature=0, max_new_tokens=6))
    with pytest.raises(ChatError, match="there is no answer to replace"):
        chat.retry()
    first = "".join(chat.ask("count one"))
    second = "".join(chat.ask("the sky"))
    assert "".join(chat.retry()) == second
    assert [message.content for message in chat.messages] == ["count one", first, "the sky", second]
    other = "".join(chat.edit("name grass"))
    assert [message.content for message in chat.messages] == ["count one", first, "name grass", other]
    again = a_chat(random.Random(), "chatml")
    again.model, again._history = chat.model, type(chat._history)(chat.model)
    again.load([Message("system", "Be kind."), *chat.messages])
    assert again.messages == [Message("system", "Be kind."), *chat.messages]
    assert again.system == "Be kind."
    assert chat.undo() is not None
    assert "".join(chat.ask("name grass")) == other
    chat.clear()
    assert chat.messages == []
    assert "".join(chat.ask("count one")) == first
    with pytest.raises(ChatError, match="these are user, user"):
        chat.load([Message("user", "a"), Message("user", "b")])


def test_a_question_that_does_not_fit_leaves_the_last_turn() -> None:
    chat = a_chat(
        random.Random(), "plain", "gpt2", room=60, sampling=Sampling(temperature=0, max_new_tokens=5)
    )
    list(chat.ask("count"))
    before = chat.messages
    with pytest.raises(
        ChatError, match=r"the question has .* tokens and the context holds 60: shorten the text"
    ):
        chat.edit("count " * 60)
    assert chat.messages == before
    with pytest.raises(
        ChatError, match="holds 60: undo turns, clear the chat, or start it with --when-full drop"
    ):
        chat.ask("count " * 60)
    chat.when_full = "drop"
    with pytest.raises(
        ChatError, match=r"the question has .* tokens and the context holds 60: shorten the text"
    ):
        chat.ask("count " * 60)
    with pytest.raises(ChatError, match="shorten the text"):
        chat.edit("count " * 60)
    assert chat.messages == before
    assert chat.dropped == 0


def test_messages_that_the_template_refuses_leave_the_chat() -> None:
    chat = a_chat(random.Random(), "plain", sampling=Sampling(temperature=0, max_new_tokens=5))
    refusal = "{% if 'bad' in messages | string %}{{ raise_exception('no') }}{% endif %}"
    chat.tokenizer = chat.tokenizer.with_chat_template(refusal + shipped_source("plain"))
    chat.template = template_of(chat.tokenizer)
    chat.system = "Be kind."
    list(chat.ask("count"))
    before = chat.messages
    with pytest.raises(ChatError, match="refuses these messages: no"):
        chat.system = "bad"
    for text in ("bad", "good"):  # the first turn, or the second one, is refused
        turns = [Message("user", text), Message("assistant", ""), Message("user", "bad")]
        with pytest.raises(ChatError, match="refuses these messages: no"):
            chat.load([*turns, Message("assistant", "")])
    assert chat.messages == before
    assert "".join(chat.retry()) == before[-1].content
    silent = "{% for m in messages if m.role != 'system' %}{{ m.content + eos_token }}{% endfor %}"
    chat = Chat(chat.model, chat.tokenizer.with_chat_template(silent))
    with pytest.raises(ChatError, match="ignores the system message"):
        chat.system = "Be kind."
    assert chat.system is None


def test_an_answer_ends_at_a_stop_id() -> None:
    n = 0
    while n < 2:  # random weights may end an answer at once
        chat = a_chat(random.Random(), "plain", sampling=Sampling(temperature=0, max_new_tokens=8))
        list(chat.ask("count"))
        assert chat.usage is not None
        n = chat.usage.written
    first = -n - (chat.usage.finish_reason == "length")  # an answer without an end gets one
    written = chat._turns[-1].ids[first]
    chat.sampling = Sampling(temperature=0, max_new_tokens=8, stop_ids=(written,))
    "".join(chat.retry())
    assert chat.usage is not None
    assert chat.usage.finish_reason == "stop"
    assert chat._turns[-1].ids[-2:] == (written, chat.end)


def test_an_answer_that_is_stopped_early_is_kept() -> None:
    part = None
    while part is None:  # a few random models end their answer at once
        chat = a_chat(random.Random(), "plain", sampling=Sampling(temperature=0, max_new_tokens=30))
        pieces = chat.ask("count")
        part = next(pieces, None)
    pieces.close()
    assert chat.messages[-1] == Message("assistant", part)
    assert chat._turns[-1].ids[-1] == chat.end
    list(chat.ask("again"))
    assert len(chat.messages) == 4


def an_open_answer(chat: Chat) -> tuple[Any, str]:
    """Ask until an answer has several pieces; return its iterator and the first piece."""
    while True:
        chat.clear()
        pieces = chat.ask("count")
        part = next(pieces, None)
        if part is not None and chat.messages == []:
            return pieces, part
        chat.sampling = replace(chat.sampling, seed=(chat.sampling.seed or 0) + 1)  # it ended at once


def test_the_next_question_closes_an_open_answer() -> None:
    chat = a_chat(random.Random(), "plain", sampling=Sampling(temperature=1.0, seed=0, max_new_tokens=30))
    pieces, part = an_open_answer(chat)
    older, pieces = pieces, chat.ask("again")
    turn = [Message("user", "count"), Message("assistant", part)]
    assert chat.messages == turn
    next(pieces, None)
    assert list(older) == []
    list(pieces)
    assert chat.messages[:2] == turn
    assert chat.messages[2].content == "again"
    prompt = chat._prompt(chat._turns[:1], Message("user", "again"))
    assert list(chat._turns[1].ids[: len(prompt)]) == prompt


@pytest.mark.parametrize("change", ["undo", "clear", "edit", "load", "system"])
def test_a_change_closes_an_open_answer(change: str) -> None:
    chat = a_chat(random.Random(), "plain", sampling=Sampling(temperature=1.0, seed=0, max_new_tokens=30))
    pieces, part = an_open_answer(chat)
    if change == "system":
        chat.system = "Be kind."
    elif change == "edit":
        list(chat.edit("again"))
    elif change == "load":
        chat.load([])
    else:
        getattr(chat, change)()
    assert list(pieces) == []
    if change == "system":
        assert chat.messages[1:] == [Message("user", "count"), Message("assistant", part)]
    else:
        assert [message.content for message in chat.messages[::2]] == ["again"] * (change == "edit")


def test_an_answer_that_is_never_begun_changes_no_turn() -> None:
    chat = a_chat(random.Random(), "plain", sampling=Sampling(temperature=0, max_new_tokens=5))
    list(chat.ask("count"))
    before = chat.messages
    chat.retry()
    chat.edit("again")
    chat.ask("again")
    assert chat.messages == before
    chat.sampling = Sampling(stop_ids=(100_000,))
    for ask in (chat.retry, lambda: chat.edit("again"), lambda: chat.ask("again")):
        with pytest.raises(GenerationError, match="the vocabulary is 0 to"):
            next(ask())
        assert chat.messages == before


def test_turns_are_dropped_once_the_answer_begins() -> None:
    chat = a_chat(
        random.Random(), "plain", "gpt2", room=64, when_full="drop",
        sampling=Sampling(temperature=0, max_new_tokens=12),
    )  # fmt: skip
    while len(chat._plan(chat._turns, Message("user", "count")).turns) == len(chat.messages) // 2:
        list(chat.ask("count"))
    before = chat.messages
    answer = chat.ask("count")
    assert (chat.messages, chat.dropped) == (before, 0)
    list(answer)
    assert chat.dropped > 0
    assert chat.messages[:-2] == before[2 * chat.dropped :]


def test_an_answer_without_a_limit_may_fill_the_context() -> None:
    chat = a_chat(random.Random(), "plain", "gpt2", room=600)
    question = Message("user", "count")
    chat.sampling = Sampling()
    for when_full in ("stop", "drop"):
        chat.when_full = when_full
        plan = chat._plan([], question)
        assert chat.fills_context
        assert plan.sampling.max_new_tokens == 600 - len(plan.prompt) > 256
    chat.when_full = "slide"
    assert not chat.fills_context
    assert chat._plan([], question).sampling.max_new_tokens is None
    assert not a_chat(random.Random(), "plain", "rnn").fills_context


@pytest.mark.parametrize("when_full", ["stop", "drop", "slide"])
def test_a_full_context_does_what_was_chosen(when_full: Any) -> None:
    rng = random.Random()
    chat = a_chat(
        rng,
        "plain",
        "gpt2",
        room=64,
        when_full=when_full,
        sampling=Sampling(temperature=0, max_new_tokens=12),
    )
    chat.system = "Be."
    dropped, said = 0, ""
    for asked in range(12):
        try:
            list(chat.ask(f"count {asked}"))
        except ChatError as error:
            said = str(error)
            break
        dropped += chat.dropped
        assert chat.usage is not None
        if when_full != "slide":
            assert chat.n_tokens <= 65
        if when_full == "drop":
            assert chat.messages[0] == Message("system", "Be.")
            assert chat.messages[-2].content == f"count {asked}"
    assert (
        "the context holds 64: undo turns, clear the chat, or start it with --when-full drop" in said
    ) == (when_full == "stop")
    assert (dropped > 0) == (when_full == "drop")


def test_the_date_is_todays() -> None:
    chat = a_chat(random.Random(), "plain")
    dated = "{{ strftime_now('%d %b %Y') }}" + shipped_source("plain")
    chat = Chat(chat.model, chat.tokenizer.with_chat_template(dated))
    text = chat.tokenizer.decode(chat._prompt([], Message("user", "count")))
    assert text.startswith(f"{datetime.now():%d %b %Y}")
    assert template_of(chat.tokenizer).render([Message("user", "count")]).text.startswith("26 Jul 2024")


def test_a_model_without_a_template_cannot_chat() -> None:
    tokenizer = Tokenizer.train(TEXT, kind="bpe", vocab_size=300)
    model = build(LlamaConfig(vocab_size=tokenizer.vocab_size, dim=8, n_heads=2, n_layers=1, max_seq_len=32))
    with pytest.raises(
        ChatError, match="the tokenizer has no chat template: this model was not trained to chat"
    ):
        Chat(model, tokenizer)
