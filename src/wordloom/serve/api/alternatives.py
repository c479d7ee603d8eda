"""The tokens of an answer, each with the likely tokens in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wordloom.serve.api.fields import SamplingFields
from wordloom.serve.api.writing import Writing
from wordloom.serve.engine import Token
from wordloom.serve.logprobs import LOWEST, token_name


def alternatives_of(body: SamplingFields, writing: Writing, tokens: Sequence[Token]) -> dict[str, Any]:
    """Return ``tokens`` with their alternatives under the key "tokens"; nothing if none were asked for."""
    if not body.alternatives:
        return {}
    return {"tokens": [_with_alternatives(body.alternatives, writing, token) for token in tokens]}


def _with_alternatives(k: int, writing: Writing, token: Token) -> dict[str, Any]:
    """Return a token, and the probability of ``k`` likely ones by the model and after the settings.

    A token that ``ends`` the answer is no part of its text.
    """
    request = writing.stream.request
    ends = {*request.eos_ids, *request.sampling.stop_ids}
    return {
        "id": token.id,
        "text": token.text,
        "logprob": max(token.logprob, LOWEST),
        "ends": token.ends,
        "alternatives": [
            {
                "id": each.id,
                "token": token_name(writing.tokenizer, each.id),
                "logprob": max(each.logprob, LOWEST),
                "kept": each.kept,
                "ends": each.id in ends,
            }
            for each in token.alternatives[:k]
        ],
    }
