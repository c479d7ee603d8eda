"""Scores of masked language models: masked tokens, next sentences, and pseudo-perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional as F

from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.masked import Marks, MaskedBatch
from wordloom.errors import EvaluationError, NonFiniteError
from wordloom.evaluate.forward import forward_passes
from wordloom.evaluate.likelihood import DTYPE_NAMES
from wordloom.evaluate.reading import Reader, tokenizer_name
from wordloom.evaluate.score import (
    MIN_UNITS,
    RatioStatistics,
    Score,
    Scores,
    perplexity_interval,
    perplexity_of,
    share_interval,
    signature,
)
from wordloom.nn.evaluating import evaluating

if TYPE_CHECKING:
    from wordloom.data import Document
    from wordloom.text import Specials, Tokenizer

__all__ = ["mask_id_of", "masked_scores", "pseudo_perplexity"]

_BATCH_TOKENS = 1 << 14
_DAMAGED = "the model gives no finite probability; its weights are damaged, or --dtype is too narrow for them"


def mask_id_of(model: Any, tokenizer: Tokenizer) -> int | None:
    """Return the id that replaces a masked token in the training texts of ``model``.

    It is the empty placeholder or the mask token; None if the tokenizer has no mask token.
    """
    empty: int | None = model.config.empty_id
    return tokenizer.mask_id if empty is None else empty


def masked_scores(model: Any, batches: Iterable[MaskedBatch], *, settings: dict[str, object]) -> Scores:
    """Return ``masked_loss`` (nats per masked token), ``masked_perplexity`` and ``masked_accuracy``.

    Pairs also have ``next_sentence_loss`` and ``next_sentence_accuracy``. ``loss`` is the sum of the losses.
    Accuracies have Wilson's intervals, over masked tokens or pairs. Raises EvaluationError if no token is
    masked.
    """
    nats = right = masked = 0.0
    pair_nats = pair_right = pairs = 0.0

    def totals(batch: MaskedBatch) -> tuple[float, int, int, float, int, int]:
        states = model.hidden(batch.tokens, batch.segments, batch.attend)  # [B, T, D]
        scored = batch.targets != IGNORE
        logits = model.lm_head(model.mlm_hidden(states[scored])).float()  # [n, V]
        lost = float(F.cross_entropy(logits, batch.targets[scored], reduction="sum"))
        hits = int((logits.argmax(-1) == batch.targets[scored]).sum())
        if batch.is_next is None:
            return lost, hits, len(logits), 0.0, 0, 0
        following = model.next_sentence(model.pooled(states).pooler_output).float()  # [B, 2]
        labels = (~batch.is_next).long()
        pair_lost = float(F.cross_entropy(following, labels, reduction="sum"))
        return lost, hits, len(logits), pair_lost, int((following.argmax(-1) == labels).sum()), len(labels)

    for _, sums in forward_passes(model, batches, totals):
        nats, right, masked = nats + sums[0], right + sums[1], masked + sums[2]
        pair_nats, pair_right, pairs = pair_nats + sums[3], pair_right + sums[4], pairs + sums[5]
    if not masked:
        raise EvaluationError("no token is masked; raise masking.share, or give more text")

    def score(name: str, value: float, interval: tuple[float, float] | None = None) -> Score:
        return Score(name, value, interval, signature(name, **settings))

    loss = nats / masked
    if not math.isfinite(loss + pair_nats):
        raise NonFiniteError(_DAMAGED)
    found = [
        score("masked_loss", loss),
        score("masked_perplexity", perplexity_of(loss)),
        score("masked_accuracy", right / masked, share_interval(int(right), int(masked))),
    ]
    if pairs:
        share = share_interval(int(pair_right), int(pairs))
        found.append(score("next_sentence_loss", pair_nats / pairs))
        found.append(score("next_sentence_accuracy", pair_right / pairs, share))
        loss += pair_nats / pairs
    counts = {"hidden_tokens": int(masked), "pairs": int(pairs)}
    return Scores((score("loss", loss), *found), counts)


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
    """exp of the mean over tokens of -log p(token | all others of its window) (Salazar et al. 2020,
    arXiv:1910.14659), each token masked in turn by :func:`mask_id_of`.

    It is no perplexity: the tokens around one know more of it than those before it.  It compares masked
    language models of one tokenizer.

    Args:
        window: tokens read at once, marks included; None: the model's ``max_seq_len``.  A longer document is
            read in windows that follow one another.
        progress: called with the number of tokens scored so far.

    Raises EvaluationError for a model without its masked-language head, a tokenizer without mask, and an
    impossible window.
    """
    longest = model.config.max_seq_len
    window = longest if window is None else window
    if not 3 <= window <= longest:
        raise EvaluationError(
            f"window {window} does not fit the model; allowed: 3 to its max_seq_len {longest}"
        )
    if not model.config.masked_lm_head:
        raise EvaluationError("the model has no head to fill in masked tokens: it was saved without it")
    mask = mask_id_of(model, tokenizer)
    if mask is None:
        raise EvaluationError("the tokenizer has no mask token; give the one the model was trained with")
    marks, reader = Marks.of(tokenizer), Reader(tokenizer, start="none", end="none", specials=specials)
    rows = batch_size or max(1, _BATCH_TOKENS // window)
    statistics, n_documents, unknown, done = RatioStatistics(), 0, 0, 0
    for text in reader.texts(documents):
        total, count = 0.0, 0
        for at in range(0, len(text.sequence), window - 2):
            ids = np.concatenate([[marks.cls], text.sequence[at : at + window - 2], [marks.sep]])
            for nats in _masked_in_turn(model, ids, mask, rows):
                total += float(nats.sum())
                if not math.isfinite(total):
                    raise NonFiniteError(_DAMAGED)
                count += len(nats)
                done += len(nats)
                if progress is not None:
                    progress(done)
        if count:
            statistics += RatioStatistics(1, total, count, total * total, total * count, count * count)
            n_documents += 1
            unknown += text.unknown
    if not statistics.y:
        raise EvaluationError("there is no token to score; give a text of at least one")
    interval = statistics.interval() if n_documents >= MIN_UNITS else None
    settings: dict[str, object] = {
        "text": reader.digest(),
        "tok": tokenizer_name(tokenizer),
        "window": window,
        **({} if specials == "refuse" else {"specials": specials}),
        "dtype": DTYPE_NAMES.get(next(model.parameters()).dtype, "other"),
        "ci": f"{n_documents}-documents" if interval else "no",
    }
    loss = statistics.ratio
    spread = perplexity_interval(interval)
    scores = (
        Score("pseudo_loss", loss, interval, signature("pseudo_loss", **settings)),
        Score("pseudo_perplexity", perplexity_of(loss), spread, signature("pseudo_perplexity", **settings)),
    )
    counts = {"documents": n_documents, "tokens": int(statistics.y), "unknown_tokens": unknown}
    return Scores(scores, counts, reader.notes())


def _masked_in_turn(model: Any, ids: np.ndarray, mask: int, rows: int) -> Iterator[torch.Tensor]:
    """Yield -log p of each of ``ids`` but the first and last, given all others, some at a time."""
    device = next(model.parameters()).device
    whole = torch.as_tensor(ids, dtype=torch.int64, device=device)
    places = torch.arange(1, len(ids) - 1, device=device)
    with evaluating(model):
        for some in torch.split(places, rows):
            rows_of = torch.arange(len(some), device=device)
            tokens = whole.repeat(len(some), 1)  # [B, T]
            tokens[rows_of, some] = mask
            states = model.hidden(tokens)[rows_of, some]  # [B, D]
            logits = model.lm_head(model.mlm_hidden(states)).float()
            yield F.cross_entropy(logits, whole[some], reduction="none")
