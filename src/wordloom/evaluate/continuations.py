"""Tokenize continuations of a context, whose likelihood a causal model gives."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from wordloom.errors import EvaluationError, TokenizerError
from wordloom.evaluate.forward import dtype_name
from wordloom.evaluate.likelihood import BATCH_TOKENS, Stretch
from wordloom.evaluate.reading import tokenizer_name

if TYPE_CHECKING:
    from wordloom.text import Tokenizer


class ContinuationReader:
    """Tokenizes continuations for a model with a ``window``, None for a model without a limit.

    A context begins with the tokens that the tokenizer puts before a prompt. A context that is too long loses
    its beginning; ``truncated`` counts these.
    """

    def __init__(self, tokenizer: Tokenizer, window: int | None) -> None:
        self.tokenizer, self.window = tokenizer, window
        self.before = [] if tokenizer.start_id is None else [tokenizer.start_id]
        self._start = "no" if not self.before else "bos" if tokenizer.adds_bos else "eos"
        self.truncated = 0
        self._digest = hashlib.sha256()

    @property
    def rows(self) -> int:
        """A number of continuations to compute at once."""
        return max(1, BATCH_TOKENS // min(self.window or 256, 256))

    def stretch(self, context: str, continuation: str, *, place: str) -> Stretch:
        """Return the continuation as the targets behind its context.

        The two are joined by one space, unless either has white space there, and tokenized as one text. A
        token that holds a character behind the context belongs to the continuation. Messages name the
        ``place``.

        Raises EvaluationError for nothing before the continuation and for one that exceeds the window, and
        TokenizerError for a text that the tokenizer refuses.
        """
        self._digest.update(json.dumps((context, continuation)).encode())
        try:
            ids, first = _tokens(self.tokenizer, context, continuation)
        except TokenizerError as error:
            raise TokenizerError(f"{place}: {error}") from None
        sequence = np.array([*self.before, *ids], dtype=np.int64)
        n_targets, window = len(ids) - first, self.window
        if not n_targets:
            raise EvaluationError(
                f"{place}: the tokenizer gives no token for the continuation {continuation!r}, so it has no "
                "probability; change it, or leave this item out"
            )
        if n_targets >= len(sequence):
            raise EvaluationError(f"{place} has no token before its continuation to predict it from")
        if window is not None and n_targets > window:
            raise EvaluationError(
                f"{place}: its continuation has {n_targets} tokens, the model takes {window}"
            )
        self.truncated += window is not None and len(sequence) - 1 > window
        return Stretch(sequence[:-1][-window:] if window else sequence[:-1], sequence[-n_targets:])

    def settings(self, model: Any) -> dict[str, object]:
        """Return the settings that decide the scores of all continuations so far, for their signatures."""
        return {
            "text": self._digest.hexdigest()[:8],
            "tok": tokenizer_name(self.tokenizer),
            "window": self.window or "whole",
            "start": self._start,
            "dtype": dtype_name(model),
        }


def _tokens(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[list[int], int]:
    """Return the ids of both as one text, and the index of the first one of the continuation."""
    space = "" if context[-1:].isspace() or continuation[:1].isspace() or not context else " "
    # "text": passages quote the web, where the spelling of a special token is ordinary text
    encoding = tokenizer.encode(context + space + continuation, specials="text")
    first = next(
        (i for i, (_, stop) in enumerate(encoding.offsets) if stop > len(context)), len(encoding.ids)
    )
    return encoding.ids, first
