"""Read prompts, check them, and limit the new tokens to the room that each prompt leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from wordloom.errors import GenerationError
from wordloom.generate.conditioned import Conditioned

DEFAULT_NEW_TOKENS = 256


def check_finite(logits: Tensor) -> None:
    """Raise GenerationError unless each row's largest logit is a finite number."""
    if not bool(logits.amax(dim=-1).isfinite().all()):
        raise not_finite()


def not_finite() -> GenerationError:
    """Return the error for a model whose logits are NaN or infinite."""
    return GenerationError("the model's logits are NaN or infinite; are its weights damaged?")


def new_token_limits(
    model: Any,
    prompts: Sequence[Sequence[int]],
    wanted: int | None,
    *,
    window: int | None,
    advice: str,
    fit: bool = False,
) -> list[int]:
    """Return the most new tokens of each prompt: ``wanted``, or the default where that is None.

    Raises GenerationError for prompts that ``model`` cannot continue, and, with ``advice``, where ``window``
    leaves no room for that many tokens.  With ``fit``, the limit is then the room that is left.
    """
    check_ids(prompts, model.config.vocab_size)
    usual = [DEFAULT_NEW_TOKENS] * len(prompts)
    if isinstance(model, Conditioned):
        model.check(prompts)
        usual = model.usual_new_tokens()
    if fit and wanted is not None:
        usual, wanted = [wanted] * len(prompts), None
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


def token_ids(given: Any, what: str) -> list[int]:
    """Return a sequence of whole numbers of any kind as a list of Python ints.

    Raises GenerationError for text and bytes, and for items that are not whole numbers.
    """
    if isinstance(given, str | bytes | bytearray | memoryview):
        kind = type(given).__name__
        raise GenerationError(f"{what} takes whole numbers here, not {kind}; decode bytes into a str first")
    try:
        items = list(given.tolist() if hasattr(given, "tolist") else given)  # tensors and arrays at once
    except TypeError:
        raise GenerationError(f"{what} is a list of whole numbers from 0, not {given!r}") from None
    for item in items:
        if isinstance(item, bool) or not hasattr(item, "__index__") or getattr(item, "ndim", None):
            raise GenerationError(f"{what} has {item!r}, not a token id; give a list of whole numbers from 0")
    try:
        return [int(item.__index__()) for item in items]
    except TypeError as error:  # such as a tensor of floats without dimensions
        raise GenerationError(f"{what} has no token ids: {error}; give whole numbers from 0") from None


def are_several(prompt: Any) -> bool:
    """Return whether ``prompt`` is several prompts: a matrix, or a sequence of sequences."""
    if hasattr(prompt, "ndim"):
        return prompt.ndim > 1
    first = next(iter(prompt), None) if hasattr(prompt, "__iter__") else None
    return getattr(first, "ndim", 0) > 0 if hasattr(first, "ndim") else hasattr(first, "__len__")
