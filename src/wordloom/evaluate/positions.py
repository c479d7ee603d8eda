"""Bits per byte by position: how much a causal model gains from the tokens that it has read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wordloom.errors import EvaluationError
from wordloom.evaluate.likelihood import BATCH_TOKENS, Stretch, likelihoods
from wordloom.evaluate.reading import Reader, check_vocabulary
from wordloom.models import context_limit
from wordloom.nn.recurrent import Recurrent

if TYPE_CHECKING:
    from wordloom.data import Document
    from wordloom.text import Specials, Tokenizer

FIRST_POSITIONS = 16  # in the first group; each further group ends at twice the position


class PositionBits(NamedTuple):
    """The bits per byte of the tokens that have ``first`` to ``stop`` - 1 tokens before them."""

    first: int
    stop: int
    tokens: int
    bytes: int
    bits_per_byte: float


def bits_by_position(
    model: Any,
    tokenizer: Tokenizer,
    documents: Iterable[Document | str | bytes],
    *,
    window: int | None = None,
    specials: Specials = "refuse",
) -> list[PositionBits]:
    """Return bits per byte by the number of tokens that the model has read before.

    Each document is divided into windows of ``window`` tokens (None: the model's ``max_seq_len``), and the
    model reads every window from its beginning.  A recurrent model has an empty state there; if it has
    learned to read texts behind the end token, each window begins with it too.  Positions 1 to 16 are a
    group, 17 to 32, 33 to 64, ...

    Raises EvaluationError for a window that the model cannot read, for a tokenizer that loses characters or
    is that of another model, and for a text without tokens to predict.
    """
    longest = context_limit(model.config)
    window = longest if window is None else window
    if window is None:
        raise EvaluationError("this model has no longest text; say how many tokens it reads at once (window)")
    if window < 1 or (longest is not None and window > longest):
        allowed = f"1 to {longest}" if longest is not None else "1 or more"
        raise EvaluationError(f"a window of {window} tokens does not fit the model; allowed: {allowed}")
    check_vocabulary(model, tokenizer)
    reader = Reader(tokenizer, start="auto", end="none", specials=specials)
    is_recurrent = any(isinstance(module, Recurrent) for module in model.modules())
    later = [] if tokenizer.start_id is None or not is_recurrent else [tokenizer.start_id]
    nats, sizes, counts = (np.zeros(window) for _ in range(3))

    def stretches() -> Any:
        for text in reader.texts(documents):
            if text.token_bytes is None:
                raise EvaluationError("the tokenizer loses characters, so bits per byte are undefined")
            inputs, targets, size = text.sequence[:-1], text.sequence[1:], text.token_bytes[1:]
            for begin in range(0, len(inputs), window):
                part = slice(begin, begin + window)
                read = np.concatenate([later if begin else [], inputs[part]]).astype(np.int64)
                yield size[part], Stretch(read, targets[part])

    for size, found in likelihoods(model, stretches(), batch_size=max(1, BATCH_TOKENS // window)):
        n = len(found.nats)
        nats[:n] += found.nats
        sizes[:n] += size
        counts[:n] += 1
    if not sizes.sum():
        raise EvaluationError("there is no token to predict; give a text of at least two tokens")
    groups, first = [], 0
    while first < window and counts[first]:
        stop = min(window, 2 * first or FIRST_POSITIONS)
        total = sizes[first:stop].sum()
        bits = nats[first:stop].sum() / math.log(2) / total if total else math.nan
        tokens = int(counts[first:stop].sum())
        groups.append(PositionBits(first + 1, stop + 1, tokens, int(total), float(bits)))
        first = stop
    return groups
