"""``/score``: the log-probabilities of continuations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import Field

from wordloom.generate import score as score_continuations
from wordloom.generate.text import continuation_ids, prompt_ids
from wordloom.run.models.language_model import LanguageModel
from wordloom.serve.api.completions import check_ids
from wordloom.serve.api.computing import ChosenModel, as_list, compute, field_errors
from wordloom.serve.api.fields import Body, Ids, MaybeEmptyPassage, Passage, Text
from wordloom.serve.api.writing import check_room
from wordloom.serve.errors import ApiError
from wordloom.serve.worker import Job

router = APIRouter()

MOST = 128
Continuations = Annotated[list[Passage], Field(min_length=1, max_length=MOST)]
ListsOfIds = Annotated[list[Ids], Field(min_length=1, max_length=MOST)]


class Score(Body):
    """A prompt and its continuations: texts, or token ids in both."""

    model: Text
    prompt: MaybeEmptyPassage | Ids
    continuations: Continuations | ListsOfIds

    @property
    def items(self) -> Sequence[str | list[int]]:
        """The continuations, each as a text or as token ids."""
        given: Any = self.continuations
        return given

    def check(self) -> None:
        """Raise ApiError unless the prompt and the continuations are both texts, or both ids."""
        if isinstance(self.prompt, str) != isinstance(self.continuations[0], str):
            wanted = "texts" if isinstance(self.prompt, str) else "lists of ids"
            raise ApiError(
                400, f"'continuations': give {wanted}, as the prompt is given", param="continuations"
            )


@router.post("/score")
async def score(body: Score, http: HttpRequest) -> Response:
    """Return the log-probability of each continuation: in total and by token, in nats.

    Each continuation is scored alone, so the others do not change its score.
    """
    body.check()

    def call(chosen: ChosenModel, job: Job) -> dict[str, Any]:
        lm: LanguageModel = chosen.model
        engine = chosen.served.engine
        assert engine is not None
        with field_errors("prompt"):
            prompt = prompt_ids(lm.text_tokenizer, body.prompt, specials="text")
        check_ids(lm, prompt, "prompt")
        data, n = [], 0
        for number, continuation in enumerate(job.each(body.items)):
            ids = _ids(lm, body.prompt, continuation, number)
            check_room(len(prompt), len(ids), engine.room, param=f"continuations[{number}]")
            with field_errors(f"continuations[{number}]"):
                (scored,) = score_continuations(lm.model, lm.text_tokenizer, prompt, [ids])
            text = continuation if isinstance(continuation, str) else "".join(scored.tokens)
            data.append({"text": text, "total": scored.total, "token_logprobs": scored.per_token,
                         "tokens": scored.tokens, "ids": scored.ids, "greedy": scored.greedy})  # fmt: skip
            n += len(ids)
        total = len(prompt) + n
        return as_list(body.model, data, usage={"prompt_tokens": total, "total_tokens": total})

    return await compute(http, body.model, LanguageModel, "a causal language model", call)


def _ids(
    lm: LanguageModel, prompt: str | Sequence[int], continuation: str | list[int], number: int
) -> list[int]:
    if not isinstance(continuation, str):
        check_ids(lm, continuation, f"continuations[{number}]")
        return continuation
    assert isinstance(prompt, str)
    with field_errors(f"continuations[{number}]"):
        return continuation_ids(lm.text_tokenizer, prompt, continuation, specials="text")[1]
