"""The greedy answers of a model to many questions at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from wordloom.errors import EvaluationError
from wordloom.evaluate.chat import Answer
from wordloom.generate import Sampling, complete
from wordloom.models import generation_limit
from wordloom.text import Tokenizer
from wordloom.text.chat import ChatTemplate, Message, encode_chat

ROWS = 32  # answers that are written at once


def fits(model: Any, tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Message]) -> bool:
    """Return True if the context of the model has room for an answer to ``messages``."""
    room = generation_limit(model.config)
    return room is None or len(encode_chat(tokenizer, template, messages, prompt=True).ids) < room


def answers(
    model: Any,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    questions: Sequence[Sequence[Message]],
    eos_ids: Sequence[int],
    *,
    max_new_tokens: int = 128,
    batch_size: int | None = None,
) -> Iterator[Answer]:
    """Yield the model's greedy answer to each of the ``questions``, which are chats that end with a question.

    An answer ends with one of ``eos_ids``, or after ``max_new_tokens``; where the context is full, its oldest
    tokens slide out.

    Raises EvaluationError for a question that fills the context.
    """
    prompts = [encode_chat(tokenizer, template, messages, prompt=True).ids for messages in questions]
    room = generation_limit(model.config)
    longest = max(map(len, prompts), default=0)
    if room is not None and longest >= room:
        raise EvaluationError(
            f"a question has {longest:,} tokens in the chat template, and the context of the model holds "
            f"{room:,}; leave such questions out"
        )
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=0.0, seed=0, past="slide")
    size, ends = batch_size or ROWS, list(eos_ids)
    for start in range(0, len(prompts), size):
        for done in complete(model, tokenizer, prompts[start : start + size], sampling, eos_ids=ends):
            stopped = bool(done.ids) and done.ids[-1] in ends
            written = tuple(done.ids[:-1] if stopped else done.ids)
            yield Answer(tokenizer.decode(written, skip_special_tokens=True).strip(), written, stopped)
