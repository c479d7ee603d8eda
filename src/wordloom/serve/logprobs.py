"""Log-probabilities of tokens, as the two endpoints of OpenAI's API report them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wordloom.serve.engine import Token
from wordloom.text import Tokenizer

WHITESPACE = " \t\r\n"  # left out in front of an answer
LOWEST = -9999.0  # for a probability of 0, as JSON has no infinity


def _bytes(tokenizer: Tokenizer, index: int) -> bytes | None:
    table = tokenizer.token_bytes
    return None if table is None or index >= len(table) else table[index]


def token_name(tokenizer: Tokenizer, index: int) -> str:
    """Return the text of a token, or its name in the vocabulary if it has no text of its own."""
    raw = _bytes(tokenizer, index)
    if raw is None:
        return str(tokenizer.id_to_token(index))
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _finite(value: float) -> float:
    return max(value, LOWEST)


def entry(tokenizer: Tokenizer, token: Token, k: int, *, first: bool = False) -> dict[str, Any]:
    """Return a token of ``logprobs.content`` in chats, with the ``k`` likeliest ones.

    The ``first`` token of an answer has no whitespace in front, as the answer has none; nor has it among the
    likeliest ones, where clients look for it.
    """
    own = _one(tokenizer, token.id, token.logprob, token.text)
    likely = [_one(tokenizer, each.id, each.logprob) for each in token.alternatives[:k]]
    if first:
        same = [each for each, found in zip(likely, token.alternatives, strict=False) if found.id == token.id]
        for each in (own, *same):
            each["token"] = each["token"].lstrip(WHITESPACE)
            if each["bytes"] is not None:
                each["bytes"] = list(bytes(each["bytes"]).lstrip(WHITESPACE.encode()))
    return {**own, "top_logprobs": likely}


def _one(tokenizer: Tokenizer, index: int, logprob: float, text: str = "") -> dict[str, Any]:
    raw = _bytes(tokenizer, index)
    if raw is None:
        raw = text.encode() if text else None
    return {
        "token": token_name(tokenizer, index),
        "logprob": _finite(logprob),
        "bytes": None if raw is None else list(raw),
    }


class LogprobsOfCompletion:
    """The ``logprobs`` of ``/v1/completions`` for one choice, whose tokens may come one by one."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], k: int) -> None:
        self.tokenizer, self.k = tokenizer, k
        self.offset = 0

    def of(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """Return the table of the next ``tokens``; one that ends the text is no part of it."""
        tokens, offsets = [token for token in tokens if not token.ends], []
        for token in tokens:
            offsets.append(self.offset)
            self.offset += len(token.text)
        return {
            "tokens": [token_name(self.tokenizer, token.id) for token in tokens],
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [
                {
                    token_name(self.tokenizer, each.id): _finite(each.logprob)
                    for each in token.alternatives[: self.k]
                }
                for token in tokens
            ],
            "text_offset": offsets,
        }
