"""Scores of masked language models: masked tokens, next sentences, and pseudo-perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.masked import Marks, MaskedBatch
from wordloom.errors import EvaluationError, NonFiniteError
from wordloom.evaluate.forward import dtype_name, forward_passes
from wordloom.evaluate.likelihood import Ids
from wordloom.evaluate.reading import Reader, check_vocabulary, tokenizer_name
from wordloom.evaluate.score import (
    RatioStatistics,
    Score,
    Scores,
    loss_and_perplexity,
    perplexity_of,
    share_interval,
    signature,
)
from wordloom.nn.evaluating import widened

if TYPE_CHECKING:
    from wordloom.data import Document
    from wordloom.text import Specials, Tokenizer

_BATCH_TOKENS = 1 << 14
_POOL = 1 << 10  # sequences whose copies of equal length are read together
_DAMAGED = "the model gives no finite probability; its weights are damaged, or --dtype is too narrow for them"


def mask_id_of(model: Any, tokenizer: Tokenizer) -> int | None:
    """Return the id that replaces a masked token in the training texts of ``model``.

    It is the empty placeholder or the mask token; None if the tokenizer has no mask token.
    """
    empty: int | None = model.config.empty_id
    return tokenizer.mask_id if empty is None else empty


def masked_scores(
    model: Any,
    batches: Iterable[MaskedBatch],
    *,
    settings: dict[str, object],
    reduce: Callable[[Tensor], Tensor] | None = None,
    unscored: Iterable[MaskedBatch] = (),
) -> Scores:
    """Return ``masked_loss`` (nats per masked token), ``masked_perplexity`` and ``masked_accuracy``.

    Pairs also have ``next_sentence_loss`` and ``next_sentence_accuracy``. ``loss`` is the sum of the losses.
    Accuracies have Wilson's intervals, over masked tokens or pairs. ``reduce`` and ``unscored`` are those of
    :func:`wordloom.evaluate.evaluate_batches`. Raises EvaluationError if no token is masked.
    """

    def batch_sums(batch: MaskedBatch) -> _MaskedSums:
        states = model.hidden(batch.tokens, batch.segments, batch.attend)  # [B, T, D]
        scored = batch.targets != IGNORE
        logits = model.lm_head(model.mlm_hidden(states[scored])).float()  # [n, V]
        sums = _MaskedSums(*_sums_of(logits, batch.targets[scored]))
        if batch.is_next is None:
            return sums
        logits = model.next_sentence(model.pooled(states).pooler_output).float()  # [B, 2]
        return _MaskedSums(*sums[:3], *_sums_of(logits, (~batch.is_next).long()))

    for _ in forward_passes(model, unscored, batch_sums):
        pass
    total = torch.zeros(len(_MaskedSums._fields), dtype=torch.float64)
    for _, part in forward_passes(model, batches, batch_sums):
        total += torch.tensor(part, dtype=torch.float64)
    sums = _MaskedSums.of(total if reduce is None else reduce(total))
    if not sums.masked:
        raise EvaluationError("no token is masked; raise masking.share, or give more text")
    loss = sums.nats / sums.masked
    if not math.isfinite(loss + sums.pair_nats):
        raise NonFiniteError(_DAMAGED)
    values = [
        ("masked_loss", loss, None),
        ("masked_perplexity", perplexity_of(loss), None),
        ("masked_accuracy", sums.right / sums.masked, share_interval(sums.right, sums.masked)),
    ]
    if sums.pairs:
        pair_loss, pair_accuracy = sums.pair_nats / sums.pairs, sums.pair_right / sums.pairs
        values.append(("next_sentence_loss", pair_loss, None))
        interval = share_interval(sums.pair_right, sums.pairs)
        values.append(("next_sentence_accuracy", pair_accuracy, interval))
        loss += pair_loss
    scores = [
        Score(name, value, interval, signature(name, **settings))
        for name, value, interval in [("loss", loss, None), *values]
    ]
    return Scores(tuple(scores), {"hidden_tokens": sums.masked, "pairs": sums.pairs})


class _MaskedSums(NamedTuple):
    """Nats, right predictions and predictions: of masked tokens, and of next sentences."""

    nats: float
    right: int
    masked: int
    pair_nats: float = 0.0
    pair_right: int = 0
    pairs: int = 0

    @classmethod
    def of(cls, sums: Tensor) -> _MaskedSums:
        """Return the six sums of a float64 tensor."""
        nats, right, masked, pair_nats, pair_right, pairs = sums.tolist()
        return cls(nats, int(right), int(masked), pair_nats, int(pair_right), int(pairs))


def _sums_of(logits: Tensor, targets: Tensor) -> tuple[float, int, int]:
    """Return the nats, the right predictions and the number of n targets, from logits [n, C]."""
    nats = float(F.cross_entropy(logits, targets, reduction="sum"))
    return nats, int((logits.argmax(-1) == targets).sum()), len(targets)


def pseudo_perplexity(
    model: Any,
    tokenizer: Tokenizer,
    documents: Iterable[Document | str | bytes],
    *,
    window: int | None = None,
    specials: Specials = "refuse",
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Scores:
    """Score each token given all other tokens of its window (Salazar et al. 2020, arXiv:1910.14659).

    Returns ``pseudo_loss``, the mean of -log p(token | others), and ``pseudo_perplexity``, its exponential.
    Each token is masked in turn by :func:`mask_id_of`.  Pseudo-perplexity is not comparable with perplexity,
    because the model also sees the tokens that follow.  It compares masked language models with one
    tokenizer.

    Args:
        window: tokens read at once, marks included. Default: the model's ``max_seq_len``.  A longer document
            is read in consecutive windows.
        progress: called with the number of tokens scored so far.

    Raises EvaluationError for a model without its masked-language head, a tokenizer without a mask token or
    of another model, and an impossible window.
    """
    longest = model.config.max_seq_len
    window = longest if window is None else window
    if not 3 <= window <= longest:
        raise EvaluationError(
            f"window {window} does not fit the model; allowed: 3 to its max_seq_len {longest}"
        )
    mask = require_masked_head(model, tokenizer)
    check_vocabulary(model, tokenizer)
    marks, reader = Marks.of(tokenizer), Reader(tokenizer, start="none", end="none", specials=specials)
    rows = batch_size or max(1, _BATCH_TOKENS // window)
    statistics, unknown, done = RatioStatistics(), 0, 0
    for text in reader.texts(documents):
        total, count = 0.0, 0
        for at in range(0, len(text.sequence), window - 2):
            ids = np.concatenate([[marks.cls], text.sequence[at : at + window - 2], [marks.sep]])
            for nats in _masked_in_turn(model, ids[None], mask, rows):
                total += float(nats.sum())
                if not math.isfinite(total):
                    raise NonFiniteError(_DAMAGED)
                count += len(nats)
                if progress is not None:
                    progress(done + count)
        if count:
            statistics += RatioStatistics.of_one(total, count)
            done += count
            unknown += text.unknown
    if not statistics.y:
        raise EvaluationError("there is no token to score; give a text of at least one")
    interval = statistics.interval()
    settings: dict[str, object] = {
        "text": reader.digest(),
        "tok": tokenizer_name(tokenizer),
        "window": window,
        **({} if specials == "refuse" else {"specials": specials}),
        "dtype": dtype_name(model),
        "ci": f"{statistics.units}-documents" if interval else "no",
    }
    scores = loss_and_perplexity(statistics.ratio, interval, settings, prefix="pseudo_")
    counts = {"documents": statistics.units, "tokens": int(statistics.y), "unknown_tokens": unknown}
    return Scores(scores, counts, reader.notes())


def require_masked_head(model: Any, tokenizer: Tokenizer) -> int:
    """Return the id of the mask token; raises EvaluationError without it, or without the model's head."""
    if not model.config.masked_lm_head:
        raise EvaluationError("the model was saved without its head for masked tokens")
    mask = mask_id_of(model, tokenizer)
    if mask is None:
        raise EvaluationError("the tokenizer has no mask token; give the one the model was trained with")
    return mask


def pseudo_likelihoods(
    model: Any, tokenizer: Tokenizer, sequences: Iterable[Ids], *, rows: int | None = None
) -> Iterator[float]:
    """Yield minus the pseudo-log-likelihood of each sequence of tokens, in nats and in order.

    A sequence is read between the tokenizer's marks, which are not scored. ``rows`` masked copies are read at
    once; None: about 16,384 tokens.
    """
    mask, marks = require_masked_head(model, tokenizer), Marks.of(tokenizer)
    waiting = iter(sequences)
    while pool := list(islice(waiting, _POOL)):
        nats = dict[int, float]()
        by_length = sorted(range(len(pool)), key=lambda i: len(pool[i]))
        for length, group in groupby(by_length, key=lambda i: len(pool[i])):
            numbers = list(group)
            ids = np.stack([np.concatenate([[marks.cls], pool[i], [marks.sep]]) for i in numbers])
            parts = list(_masked_in_turn(model, ids, mask, rows or max(1, _BATCH_TOKENS // (length + 2))))
            sums = widened(torch.cat(parts)).view(len(numbers), length).sum(1)
            nats.update(zip(numbers, sums.tolist(), strict=True))
        yield from (nats[i] for i in range(len(pool)))


class _TurnBatch(NamedTuple):
    """Copies of a text [B, T], each with one masked token; its position [B] and its id [B]."""

    tokens: Tensor
    positions: Tensor
    targets: Tensor


def _masked_in_turn(model: Any, ids: np.ndarray, mask: int, rows: int) -> Iterator[Tensor]:
    """Yield -log p of each token of the texts ``ids`` [N, T], given all others of its text.

    The first and the last of a text are not scored. Results are of ``rows`` tokens at a time, text by text.
    """
    texts = torch.as_tensor(ids, dtype=torch.int64)
    N, T = texts.shape

    def batches() -> Iterator[_TurnBatch]:
        for each in torch.split(torch.arange(N * (T - 2)), rows):
            text, positions = each // (T - 2), 1 + each % (T - 2)
            tokens = texts[text]  # [B, T]
            tokens[torch.arange(len(each)), positions] = mask
            yield _TurnBatch(tokens, positions, texts[text, positions])

    def nats(batch: _TurnBatch) -> Tensor:
        row = torch.arange(len(batch.tokens), device=batch.tokens.device)
        states = model.hidden(batch.tokens)[row, batch.positions]  # [B, D]
        logits = model.lm_head(model.mlm_hidden(states)).float()  # [B, V]
        return F.cross_entropy(logits, batch.targets, reduction="none")

    return (result for _, result in forward_passes(model, batches(), nats))
