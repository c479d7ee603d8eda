"""BLEU and chrF of translations against references, computed by sacrebleu and signed with its signature.

sacrebleu (Post 2018, arXiv:1804.08771) takes plain text, as a reader would see it, and tokenizes it itself.
Scores with equal signatures are therefore comparable.  It comes with the extra ``translation``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wordloom.errors import EvaluationError, did_you_mean
from wordloom.evaluate.score import MIN_UNITS, Score

RESAMPLES = 1000  # of the sentences, for the interval; sacrebleu's default
_MOST = 10_000  # sentences; the resamples of more would take gigabytes


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = False,
    tokenize: str = "13a",
    resamples: int = RESAMPLES,
) -> Score:
    """Return corpus BLEU (Papineni et al. 2002), 0 to 100, of hypothesis n against reference n.

    If no hypothesis has four tokens, BLEU is 0 by definition, even for perfect translations.  The score then
    has a note that says so, and no interval.

    Args:
        lowercase: ignore case.
        tokenize: sacrebleu's name of a tokenization: ``13a`` (WMT's), ``intl``, ``zh``, ``char``, ``none``.
        resamples: resamples of the sentences for sacrebleu's 95 % interval (the mean over resamples, plus and
            minus half of their width, seed 12345); 0 for no interval.  Below 20 and above 10,000 sentences
            there is no interval.

    Raises:
        EvaluationError: unequal numbers of sentences, no sentence, a tokenization that is unknown or not
            installed, or sacrebleu missing.
    """
    metrics = _metrics()
    if tokenize not in metrics.BLEU.TOKENIZERS:
        raise EvaluationError(
            f"tokenize='{tokenize}' is not known; {did_you_mean(tokenize, metrics.BLEU.TOKENIZERS)}"
        )
    try:
        metric = metrics.BLEU(lowercase=lowercase, tokenize=tokenize)
    except (ImportError, OSError, RuntimeError) as error:  # MeCab, or a model to be downloaded
        reason = " ".join(str(error).split())
        raise EvaluationError(f"tokenize='{tokenize}' cannot be used here: {reason}") from error
    return _score("bleu", metric, hypotheses, references, resamples)


def chrf(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = False,
    word_order: int = 0,
    resamples: int = RESAMPLES,
) -> Score:
    """Return corpus chrF2 (Popović 2015), 0 to 100: the F2 score of character n-grams up to 6.

    ``word_order`` 2 adds words and pairs of words: chrF2++ (Popović 2017).  See :func:`bleu` for the other
    arguments and the errors.
    """
    if word_order < 0:
        raise EvaluationError(f"word_order={word_order} is not allowed; 0 for chrF, 2 for chrF++")
    metric = _metrics().CHRF(lowercase=lowercase, word_order=word_order)
    return _score("chrf", metric, hypotheses, references, resamples)


def _metrics() -> Any:
    try:
        import sacrebleu.metrics
    except ImportError:
        raise EvaluationError("BLEU and chrF need the package sacrebleu: pip install sacrebleu") from None
    return sacrebleu.metrics


def _score(
    name: str, metric: Any, hypotheses: Sequence[str], references: Sequence[str], resamples: int
) -> Score:
    n = len(hypotheses)
    if n != len(references):
        raise EvaluationError(
            f"{n:,} hypotheses have {len(references):,} references; give one of each per sentence"
        )
    if not n:
        raise EvaluationError("there is no translation to score; give at least one")
    resampled = resamples > 1 and MIN_UNITS <= n <= _MOST
    result = metric.corpus_score(
        list(hypotheses), [list(references)], n_bootstrap=resamples if resampled else 1
    )
    note = _why_zero(name, result)
    interval = None
    if resampled and not note:
        interval = float(result._mean - result._ci), float(result._mean + result._ci)
    return Score(name, float(result.score), interval, f"{result.name}|{metric.get_signature()}", note)


def _why_zero(name: str, result: Any) -> str:
    """Explain a BLEU that is 0 because all translations are too short, however good they are."""
    totals: list[int] = getattr(result, "totals", [])  # n-grams of the translations, by n
    if not totals or not totals[0] or totals[-1]:
        return ""
    n = len(totals)
    return (
        f"{name} is 0 by definition: no translation has {n} tokens, so there is no {n}-gram to match; "
        "compare chrf"
    )


class LengthBin(NamedTuple):
    """The score of the pairs whose source has ``first`` to ``last`` words between white space."""

    first: int
    last: int
    pairs: int
    score: Score

    @property
    def label(self) -> str:
        """The range of lengths, such as ``6–10``."""
        return f"{self.first}–{self.last}"


def bleu_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    width: int = 5,
    **settings: Any,
) -> list[LengthBin]:
    """Return :func:`bleu` by the number of words of the sources, in bins of ``width`` words.

    Starting with the shortest, bins are joined until each has 20 pairs; pairs left over join the last bin.
    ``settings`` are those of :func:`bleu`.
    """
    if width < 1:
        raise EvaluationError(f"width={width} is not allowed; at least 1 word")
    if len(sources) != len(hypotheses):
        raise EvaluationError(
            f"{len(hypotheses):,} hypotheses have {len(sources):,} sources; give one of each per sentence"
        )
    lengths = [max(1, len(source.split())) for source in sources]
    longest = max(lengths, default=0)
    groups: list[tuple[int, int, list[int]]] = []  # the first and last length, and the numbers of the pairs
    first, group = 1, list[int]()
    for last in range(width, longest + width, width):
        group += [i for i, length in enumerate(lengths) if last - width < length <= last]
        if len(group) >= MIN_UNITS:
            groups.append((first, last, group))
            first, group = last + 1, []
    if group:
        first, _, before = groups.pop() if groups else (first, 0, [])
        groups.append((first, longest, before + group))
    return [
        LengthBin(first, min(last, longest), len(group),
                  bleu([hypotheses[i] for i in group], [references[i] for i in group], **settings))
        for first, last, group in groups
    ]  # fmt: skip
