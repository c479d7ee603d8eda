"""Minimal pairs: whether a model finds the acceptable sentence more likely than the other.

A pair is right if the summed log-probability of the acceptable sentence is higher (Warstadt et al. 2020,
arXiv:1912.00582).  Equal probabilities are wrong.  A causal model reads a sentence behind the start token of
:mod:`wordloom.evaluate.perplexity` and no end token is scored, as in EleutherAI's harness.  An encoder scores
each token given all others, and the sum is the pseudo-log-likelihood (Salazar et al. 2020, arXiv:1910.14659).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wordloom.errors import EvaluationError, TokenizerError
from wordloom.evaluate.forward import check_finite, dtype_name
from wordloom.evaluate.likelihood import BATCH_TOKENS, Ids, Stretch, likelihoods
from wordloom.evaluate.masked import pseudo_likelihoods, require_masked_head
from wordloom.evaluate.perplexity import strided_windows
from wordloom.evaluate.reading import Reader, check_vocabulary, tokenizer_name
from wordloom.evaluate.score import MIN_UNITS, Z95, Score, Scores, share_interval, signature
from wordloom.models import context_limit, encodes

if TYPE_CHECKING:
    from wordloom.data.rows.minimal_pairs import MinimalPair
    from wordloom.text import Tokenizer


def acceptability(
    model: Any,
    tokenizer: Tokenizer,
    pairs: Iterable[MinimalPair],
    *,
    batch_size: int | None = None,
    progress: Callable[[bool], None] | None = None,
) -> Scores:
    """Return ``accuracy``, the mean over paradigms, and the accuracy of each phenomenon and paradigm.

    Args:
        model: a causal model, or an encoder with its head for masked tokens.
        batch_size: sentences per forward pass of a causal model, masked copies of an encoder.
        progress: called after every pair with whether it was right.

    Paradigms have Wilson's intervals.  Means of 20 pairs or more have normal intervals, of pairs drawn within
    paradigms.

    Raises:
        EvaluationError: no pair; a sentence of no token; a sentence that does not fit an encoder; a
            tokenizer of another model.
        NonFiniteError: a log-probability is not finite.
        TokenizerError: the tokenizer refuses a sentence; the message names its place.
    """
    read = list(pairs)
    if not read:
        raise EvaluationError("no pair given; BLiMP is the data set 'blimp'")
    check_vocabulary(model, tokenizer)
    is_encoder = encodes(model.config)
    reader = Reader(tokenizer, start="none" if is_encoder else "auto", end="none", specials="text")
    sentences = ((sentence, pair.place) for pair in read for sentence in (pair.good, pair.bad))
    sequences = list(_sequences(reader, sentences, least=1 if is_encoder else 2))
    # the sums of two equal sentences can differ in the last bit, because they are two rows of a batch
    equal = [
        np.array_equal(good, bad) for (good, _), (bad, _) in zip(sequences[::2], sequences[1::2], strict=True)
    ]
    if is_encoder:
        totals = _pseudo_sums(model, tokenizer, sequences, batch_size)
    else:
        totals = _sums(model, sequences, batch_size)
    right, of = Counter[str](), Counter[str]()
    ties, phenomena = 0, dict[str, dict[str, None]]()
    for pair, is_equal, good, bad in zip(read, equal, totals, totals, strict=True):
        check_finite(np.array([good, bad]))
        is_right = good < bad and not is_equal
        of[pair.paradigm] += 1
        right[pair.paradigm] += is_right
        ties += is_equal or good == bad
        if pair.phenomenon:
            phenomena.setdefault(pair.phenomenon, {})[pair.paradigm] = None
        if progress is not None:
            progress(is_right)
    settings = {
        "text": reader.digest(),
        "tok": tokenizer_name(tokenizer),
        "by": "pseudo-likelihood" if is_encoder else "likelihood",
        "start": "marks" if is_encoder else reader.start_name,
        "dtype": dtype_name(model),
    }
    scores = [_mean("accuracy", list(of), right, of, settings)]
    scores += [_mean(name, list(paradigms), right, of, settings) for name, paradigms in phenomena.items()]
    if any(of):  # pairs of a file may name no paradigm
        scores += [_share(name, right[name], n, settings) for name, n in of.items()]
    some = "1 pair has" if ties == 1 else f"{ties:,} pairs have"
    notes = (f"{some} two equally likely sentences, which counts as wrong",) * bool(ties)
    counts = {"pairs": len(read), "paradigms": len(of), "right": sum(right.values()), "ties": ties}
    return Scores(tuple(scores), counts, notes)


def _mean(
    name: str,
    paradigms: Sequence[str],
    right: Mapping[str, int],
    of: Mapping[str, int],
    settings: Mapping[str, object],
) -> Score:
    """Return the mean accuracy of paradigms; its variance is that of a stratified sample."""
    shares = [right[each] / of[each] for each in paradigms]
    value, interval = sum(shares) / len(shares), None
    pairs = sum(of[each] for each in paradigms)
    settings = {**settings, "ci": f"{pairs}-pairs" if pairs >= MIN_UNITS else "no"}
    if settings["ci"] != "no" and min(of[each] for each in paradigms) > 1:
        variances = (p * (1 - p) / (of[each] - 1) for p, each in zip(shares, paradigms, strict=True))
        half = Z95 * math.sqrt(sum(variances)) / len(shares)
        interval = max(0.0, value - half), min(1.0, value + half)
    return Score(name, value, interval, signature(name, **settings))


def _share(name: str, right: int, of: int, settings: Mapping[str, object]) -> Score:
    settings = {**settings, "ci": f"{of}-pairs"}
    return Score(name, right / of, share_interval(right, of), signature(name, **settings))


def _sequences(reader: Reader, sentences: Iterable[tuple[str, str]], least: int) -> Iterator[tuple[Ids, str]]:
    """Yield the tokens of each sentence, and its place; raises EvaluationError for fewer than ``least``."""
    for sentence, place in sentences:
        try:
            sequence = reader.read(sentence).sequence
        except TokenizerError as error:
            raise TokenizerError(f"{place}: {error}") from None
        if len(sequence) < least:
            raise EvaluationError(
                f"{place}: {sentence[:40]!r} has no token with another before it to predict it from"
            )
        yield sequence, place


def _sums(model: Any, sequences: Iterable[tuple[Ids, str]], batch_size: int | None) -> Iterator[float]:
    """Yield the nats of each sentence; one that exceeds the window is read in overlapping windows."""
    window = context_limit(model.config)

    def stretches() -> Iterator[tuple[bool, Stretch]]:
        for sequence, _ in sequences:
            inputs, targets = sequence[:-1], sequence[1:]
            longest = window or len(inputs)
            for w in strided_windows(len(inputs), window=longest, stride=max(1, longest // 2)):
                yield w.end == len(inputs), Stretch(inputs[w.begin : w.end], targets[w.scored : w.end])

    rows = batch_size or max(1, BATCH_TOKENS // min(window or 64, 64))
    total = 0.0
    for is_last, likelihood in likelihoods(model, stretches(), batch_size=rows):
        total += float(likelihood.nats.sum())
        if is_last:
            yield total
            total = 0.0


def _pseudo_sums(
    model: Any, tokenizer: Tokenizer, sequences: Iterable[tuple[Ids, str]], batch_size: int | None
) -> Iterator[float]:
    """Yield minus the pseudo-log-likelihood of each sentence."""
    longest = model.config.max_seq_len - 2
    require_masked_head(model, tokenizer)

    def fitting() -> Iterator[Ids]:
        for sequence, place in sequences:
            if len(sequence) > longest:
                raise EvaluationError(
                    f"{place}: a sentence has {len(sequence)} tokens, and the model reads {longest}"
                )
            yield sequence

    return pseudo_likelihoods(model, tokenizer, fitting(), rows=batch_size)
