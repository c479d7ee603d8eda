"""Checks of prompts, and the number of new tokens that each prompt has room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from wordloom.errors import GenerationError
from wordloom.generate.conditioned import Conditioned
from wordloom.generate.sampling import DEFAULT_NEW_TOKENS


def check_finite(logits: Tensor) -> None:
    """Raise GenerationError unless each row's largest logit is a finite number."""
    if not bool(logits.amax(dim=-1).isfinite().all()):
        raise not_finite()


def not_finite() -> GenerationError:
    """Return the error for a model whose logits are NaN or infinite."""
    return GenerationError("the model's logits are NaN or infinite; are its weights damaged?")


def new_token_limits(
    model: Any, prompts: Sequence[Sequence[int]], wanted: int | None, *, window: int | None, advice: str
) -> list[int]:
    """Return the most new tokens of each prompt: ``wanted``, or the default where that is None.

    Raises GenerationError for prompts that ``model`` cannot continue, and, with ``advice``, where ``window``
    leaves no room for that many tokens.
    """
    check_ids(prompts, model.config.vocab_size)
    usual = [DEFAULT_NEW_TOKENS] * len(prompts)
    if isinstance(model, Conditioned):
        model.check(prompts)
        usual = model.usual_new_tokens()
    return [
        _limit(len(prompt), window, wanted, most, advice) for prompt, most in zip(prompts, usual, strict=True)
    ]


def check_ids(prompts: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Raise GenerationError for an empty prompt or an id that the model has no embedding for."""
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise GenerationError(
                f"prompt {number} has no tokens; give at least one (the beginning-of-text id)"
            )
        check_known(f"prompt {number}", prompt, vocab_size)


def check_known(what: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raise GenerationError unless all ``ids`` are whole numbers that the model has an embedding for."""
    for token in ids:
        if not hasattr(token, "__index__"):
            raise GenerationError(
                f"{what} has {token!r}, not a token id; give a list of whole numbers from 0"
            )
        if not 0 <= token < vocab_size:
            raise GenerationError(
                f"{what} has id {token}, but the model's vocabulary is 0 to {vocab_size - 1}; "
                "was it tokenized with this model's tokenizer?"
            )


def _limit(prompt: int, window: int | None, wanted: int | None, usual: int, advice: str) -> int:
    if window is None:
        return wanted or usual
    left = window - prompt
    if left < (wanted or 1):
        asked = f"a prompt of length {prompt}" + ("" if wanted is None else f" and {wanted} new tokens")
        fewer = f"ask for at most {left} new tokens, " if left > 0 else ""
        raise GenerationError(f"{asked}: more than max_seq_len {window} holds; {fewer}{advice}")
    return wanted or min(usual, left)
