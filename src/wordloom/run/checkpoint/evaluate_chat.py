"""The evaluations of models that answer: given answers, and answers to questions that ask for a form.

Each function takes a request and the loaded model, as those of :mod:`wordloom.run.checkpoint.evaluate` do.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from wordloom.data.batches.conversations import (
    ConversationRows,
    LengthNames,
    conversation_rows,
    nothing_left,
)
from wordloom.data.ledgers import RowDigest
from wordloom.data.rows.conversations import Conversation, conversations
from wordloom.errors import CheckpointError, EvaluationError
from wordloom.evaluate import Scores
from wordloom.evaluate.chat import (
    Answer,
    AnswerLikelihood,
    answer_likelihood,
    instructions,
    instructions_followed,
    repetition,
)
from wordloom.evaluate.chat.answers import answers_written
from wordloom.evaluate.forward import dtype_name
from wordloom.evaluate.reading import tokenizer_name
from wordloom.files import link_target, write_text
from wordloom.models import context_limit
from wordloom.recipe.data import ChatData, InstructionData, PreferenceData
from wordloom.run.answers import answers, fits
from wordloom.run.checkpoint.loaders import Request
from wordloom.run.models.language_model import LanguageModel
from wordloom.run.tasks.conversing import (
    end_ids,
    template_signature,
    with_system_message,
    with_template,
)
from wordloom.run.tasks.instruction import conversations_of
from wordloom.run.tasks.preference import preferences_of
from wordloom.text import Tokenizer
from wordloom.text.chat import ChatIds, ChatTemplate, Message, encode_chat, end_of_turn, template_of

TooLong = Literal["error", "drop", "cut"]
MAX_NEW_TOKENS = 128
_OF_TRAINING = LengthNames("train.seq_len of its recipe allows", "--too-long drop", "--too-long cut", "give")
_OF_MODEL = _OF_TRAINING._replace(limit="the model reads at most")


class _Speaker(NamedTuple):
    """A model with the tokenizer and the template of its chats."""

    lm: LanguageModel
    tokenizer: Tokenizer
    template: ChatTemplate

    @classmethod
    def of(cls, request: Request, lm: LanguageModel, template: str | None) -> _Speaker:
        """Return the model with the template of this name, or with its own.

        Raises CheckpointError for a model without a template, and for a template with new tokens.
        """
        tokenizer = lm.text_tokenizer
        if template is not None:
            tokenizer, further = with_template(tokenizer, template)
            if further:
                raise CheckpointError(
                    f"--template {template} needs the tokens {', '.join(further)}, which "
                    f"{request.checkpoint.folder} was not trained with; take plain or alpaca"
                )
        elif tokenizer.chat_template is None:
            raise CheckpointError(
                f"{request.checkpoint.folder} has no chat template; name one: --template plain"
            )
        return cls(lm, tokenizer, template_of(tokenizer))

    def encode(self, conversation: Conversation) -> ChatIds:
        return encode_chat(self.tokenizer, self.template, conversation.messages, place=conversation.place)

    def signature(self, **settings: object) -> dict[str, object]:
        """Return the settings of a score's signature."""
        return {
            **settings,
            "tok": tokenizer_name(self.tokenizer),
            **template_signature(self.template),
            "dtype": dtype_name(self.lm.model),
        }

    def fits(self, question: Sequence[Message]) -> bool:
        """Return True if the context has room for an answer."""
        asked = with_system_message(tuple(question), self.lm.system)
        return fits(self.lm.model, self.tokenizer, self.template, asked)

    def answers(
        self, request: Request, questions: Sequence[Sequence[Message]], most: int, rows: int | None
    ) -> list[Answer]:
        """Return the answers to ``questions``, and show the progress."""
        ends = end_ids(self.tokenizer, end_of_turn(self.tokenizer, self.template))
        asked = [with_system_message(tuple(messages), self.lm.system) for messages in questions]
        made: list[Answer] = []
        began = time.perf_counter()
        with request.reporter.progress(len(asked)) as advance:
            for answer in answers(
                self.lm.model,
                self.tokenizer,
                self.template,
                asked,
                ends,
                max_new_tokens=most,
                batch_size=rows,
            ):
                made.append(answer)
                tokens = sum(len(each.ids) for each in made)
                advance(1, f"own answers  {tokens / (time.perf_counter() - began):,.0f} tokens/s")
        return made


def evaluate_answers(
    request: Request,
    lm: LanguageModel,
    *,
    template: str | None = None,
    too_long: TooLong | None = None,
    first: int | None = None,
    max_new_tokens: int | None = None,
    batch_size: int | None = None,
    answers: Path | None = None,
    encoding_errors: Literal["strict", "replace"] = "strict",
) -> Scores:
    """Return the likelihood of given answers, and the stop rate and repetition of the model's own.

    The model answers the last question of each conversation greedily, in up to ``max_new_tokens``.  It does
    not answer a question that fills the context; a note counts these.  Questions and answers go into the
    file ``answers``.
    """
    speaker = _Speaker.of(request, lm, template)
    found, longest, too_long = _conversations(request, speaker, too_long, encoding_errors)
    names = _OF_MODEL if request.sources else _OF_TRAINING
    kept, dropped = found, 0
    if too_long == "drop":
        kept, dropped = _fitting(speaker, found, longest, first)
        if not kept:
            raise nothing_left("conversation", dropped, longest, names)
    kept, unknown = kept[:first], speaker.tokenizer.unk_id
    rows = conversation_rows(
        speaker.encode, kept, longest=longest, too_long=too_long, names=names, unknown=unknown
    )
    likelihood = _likelihood(request, speaker, rows, batch_size)
    most = max_new_tokens or MAX_NEW_TOKENS
    questions = [each.messages[:-1] for each in kept]
    fitting = [speaker.fits(question) for question in questions]
    own = speaker.answers(request, list(compress(questions, fitting)), most, batch_size)
    answered = iter(own)
    written = [next(answered) if fits else None for fits in fitting]
    digest = RowDigest([[list(message) for message in each.messages] for each in kept])
    settings = speaker.signature(text=str(digest), too_long=too_long, max_new=most)
    scores = likelihood.scores(settings)
    if answers is not None:
        costs = zip(likelihood.nats, likelihood.bytes, strict=True)
        lines = (
            {**_line(each.messages[-2], answer), "nats": float(nats), "bytes": int(size)}
            for each, answer, (nats, size) in zip(kept, written, costs, strict=True)
        )
        _write(request, answers, lines)
    notes = {
        "left out because they are too long": dropped,
        "truncated": rows.tokens.cut,
        "whose question fills the context, without an answer of the model": fitting.count(False),
    }
    return replace(
        scores,
        scores=(*scores.scores, *(answers_written(own, settings) if own else ())),
        notes=tuple(f"conversations {what}: {n:,}" for what, n in notes.items() if n),
    )


def _fitting(
    speaker: _Speaker, found: Iterable[Conversation], longest: int, first: int | None
) -> tuple[list[Conversation], int]:
    """Return the ``first`` conversations that are not too long, and the number of those left out before."""
    kept: list[Conversation] = []
    dropped = 0
    for each in found:
        if first is not None and len(kept) == first:
            break
        if len(speaker.encode(each).ids) - 1 <= longest:
            kept.append(each)
        else:
            dropped += 1
    return kept, dropped


def _conversations(
    request: Request,
    speaker: _Speaker,
    too_long: TooLong | None,
    encoding_errors: Literal["strict", "replace"],
) -> tuple[list[Conversation], int, TooLong]:
    """Return the conversations to score, the longest that are read, and what happens to others.

    Without files they are those that the recipe holds out, read as in training.
    """
    if not request.sources:
        recipe = request.checkpoint.validation_recipe
        found = list(_held_out(request))
        return found, recipe.train.seq_len, too_long or recipe.data_as(ChatData).too_long
    found = [
        each._replace(messages=with_system_message(each.messages, speaker.lm.system))
        for each in conversations(list(request.sources), encoding_errors=encoding_errors)
    ]
    return found, context_limit(speaker.lm.model.config) or sys.maxsize, too_long or "error"


def _likelihood(
    request: Request, speaker: _Speaker, rows: ConversationRows, batch_size: int | None
) -> AnswerLikelihood:
    """Return the likelihood of the answers in ``rows``, and show the progress."""
    tokens, began = 0, time.perf_counter()
    with request.reporter.progress(len(rows.tokens.ids)) as advance:

        def progress(more: int, _: float) -> None:
            nonlocal tokens
            tokens += more
            advance(more, f"given answers  {tokens / (time.perf_counter() - began):,.0f} tokens/s")

        return answer_likelihood(
            speaker.lm.model, speaker.tokenizer, rows, batch_size=batch_size, progress=progress
        )


def _held_out(request: Request) -> Iterator[Conversation]:
    """Yield the validation conversations of the recipe; for preferences those with the preferred answers.

    Raises CheckpointError for a recipe without any.
    """
    recipe, folder = request.checkpoint.validation_recipe, request.checkpoint.folder
    if isinstance(recipe.data, InstructionData):
        yield from conversations_of(recipe).get("validation", ())
    elif isinstance(recipe.data, PreferenceData):
        for each in preferences_of(recipe, Counter()).get("validation", ()):
            yield Conversation((*each.prompt, each.chosen), each.place)
    else:
        raise CheckpointError(
            f"{folder} was not trained on conversations, so its recipe names none; give a file or a data set"
        )
    if not recipe.data.holds_out:
        raise CheckpointError(f"the recipe of {folder} holds out no validation data; give a file")


def evaluate_instructions(
    request: Request,
    lm: LanguageModel,
    *,
    template: str | None = None,
    first: int | None = None,
    max_new_tokens: int | None = None,
    batch_size: int | None = None,
    answers: Path | None = None,
) -> Scores:
    """Return how many greedy answers follow the rule on their form that the question states."""
    if request.sources:
        raise EvaluationError("--task instructions makes its own questions; leave out FILE")
    speaker = _Speaker.of(request, lm, template)
    asked = instructions()[:first]
    most = max_new_tokens or MAX_NEW_TOKENS
    questions = [[Message("user", each.question)] for each in asked]
    written = speaker.answers(request, questions, most, batch_size)
    if answers is not None:
        lines = (
            {"rule": each.rule, "followed": each.follows(answer.text), **_line(question[0], answer)}
            for each, question, answer in zip(asked, questions, written, strict=True)
        )
        _write(request, answers, lines)
    digest = str(RowDigest([[each.question] for each in asked]))[:8]
    return instructions_followed(asked, written, speaker.signature(text=digest, max_new=most))


def _line(question: Message, answer: Answer | None) -> dict[str, Any]:
    asked = {"question": question.content, **({"input": question.input} if question.input else {})}
    if answer is None:
        return {**asked, "answer": None}
    return {
        **asked,
        "answer": answer.text,
        "stopped": answer.stopped,
        "repetition": repetition(answer.ids),
        "tokens": len(answer.ids),
    }


def _write(request: Request, path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    request.write(path, lambda path: write_text(link_target(path), text))
