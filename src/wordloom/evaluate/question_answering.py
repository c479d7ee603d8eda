"""Question answering: find spans in a model's logits, and score them as SQuAD does.

:func:`find_answers` decodes as BERT's run_squad.py (Devlin et al. 2018, arXiv:1810.04805). It ranks the spans
of a question over all its windows by the logit of their start plus that of their end. A start counts in the
window where it has most context. The [CLS] of the least likely window stands for "no answer".  The script
joins the 20 best starts with the 20 best ends; here every allowed span is ranked, so that none is missed.

:func:`answer_scores` computes the scores of the official scripts, in percent: evaluate-v1.1.py (Rajpurkar et
al. 2016, arXiv:1606.05250) and, if a question is impossible, evaluate-v2.0.py (Rajpurkar et al. 2018,
arXiv:1806.03822).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from wordloom.data.batches.spans import AnswerWindow, AnswerWindows
from wordloom.data.rows.squad import Question
from wordloom.errors import EvaluationError, NonFiniteError
from wordloom.evaluate.score import Floats, RatioStatistics, Score, Scores, signed_score

Version = Literal["1.1", "2.0"]
Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


# ------------------------------------------------------------------------------------------------ scores


def normalize_answer(text: str) -> str:
    """Return ``text`` in lower case, without ASCII punctuation, English articles and repeated spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str], *, version: Version = "1.1") -> float:
    """Return 1.0 if the normalised ``prediction`` is among the normalised ``answers``, else 0.0.

    For a question without answers, version 2.0 expects ``""``; version 1.1 raises EvaluationError.
    """
    normalized = normalize_answer(prediction)
    return float(any(normalize_answer(answer) == normalized for answer in _gold(answers, version)))


def f1_score(prediction: str, answers: Sequence[str], *, version: Version = "1.1") -> float:
    """Return the best F1 of the words of ``prediction`` and of one of ``answers``.

    If a normalised text has no word, F1 is 0, except that it is 1 in version 2.0 if neither has one.  Raises
    as :func:`exact_match`.
    """
    words = normalize_answer(prediction).split()
    return max(_f1(words, normalize_answer(answer).split(), version) for answer in _gold(answers, version))


def _gold(answers: Sequence[str], version: Version) -> Sequence[str]:
    if version == "2.0":
        return [answer for answer in answers if normalize_answer(answer)] or [""]
    if not answers:
        raise EvaluationError('a question without answers needs the rules of SQuAD v2.0; set version="2.0"')
    return answers


def _f1(predicted: list[str], gold: list[str], version: Version) -> float:
    if version == "2.0" and not (predicted and gold):
        return float(predicted == gold)
    common = sum((Counter(predicted) & Counter(gold)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def answer_scores(
    questions: Iterable[Question],
    predictions: Mapping[str, str],
    *,
    no_answer: Mapping[str, float] | None = None,
    threshold: float | None = None,
    settings: Mapping[str, object] | None = None,
) -> Scores:
    """Return ``exact_match`` and ``f1`` in percent, as the official scripts print them.

    If a question is impossible (v2.0), the scores include ``exact_match_answerable``, ``f1_answerable`` and
    ``exact_match_impossible``, which the script calls HasAns and NoAns. With ``no_answer`` they include
    ``best_exact_match`` and ``best_f1``, each at its best threshold, which ``details["thresholds"]`` holds.
    The thresholds are chosen on these answers, so that the best scores have no interval.

    Args:
        questions: the questions with their answers.
        predictions: the text of the answer by the id of the question; ``""`` means that there is none.
        no_answer: a number by id that grows with the probability of no answer (:attr:`Found.no_answer`).
        threshold: replace an answer by ``""`` if its ``no_answer`` is above this number.
        settings: further settings for the signatures.

    From 20 texts on, intervals are normal ones over texts, because the questions about one text depend on
    each other.

    Raises:
        EvaluationError: no question, a question without answers that is not impossible, ids that are missing
            from ``predictions`` or ``no_answer``, a threshold without ``no_answer``.
    """
    rows = list(questions)
    version: Version = "2.0" if any(question.is_impossible for question in rows) else "1.1"
    _check(rows, predictions, no_answer, threshold)
    given = [predictions[question.id] for question in rows]
    pairs = [(text, [a.text for a in row.answers]) for text, row in zip(given, rows, strict=True)]
    raw: dict[str, Floats] = {
        "exact_match": np.array([exact_match(text, gold, version=version) for text, gold in pairs]),
        "f1": np.array([f1_score(text, gold, version=version) for text, gold in pairs]),
    }
    answerable = np.array([not question.is_impossible for question in rows])
    empty = np.array([not text for text in given])
    kept, said_none = raw, empty
    if no_answer is not None and threshold is not None:
        above = np.array([no_answer[question.id] > threshold for question in rows])
        kept = {name: np.where(above, ~answerable, values) for name, values in raw.items()}
        said_none = empty | above
    signed = {**(settings or {}), "squad": version, "threshold": "no" if threshold is None else threshold}
    known: dict[str, int] = {}  # equal numbers for questions about one text
    texts = np.array([known.setdefault(question.context, len(known)) for question in rows], np.int64)

    def mean(name: str, metric: str, part: Bools) -> Score:
        return _mean(name, kept[metric][part], texts[part], signed)

    scores = [mean(name, name, np.ones(len(rows), bool)) for name in raw]
    if version == "2.0":
        if answerable.any():
            scores += [mean(f"{name}_answerable", name, answerable) for name in raw]
        scores.append(mean("exact_match_impossible", "exact_match", ~answerable))
    details = {}
    if no_answer is not None:
        best, thresholds = _best(rows, raw, empty, answerable, no_answer, signed)
        scores += best
        details = {"thresholds": thresholds}
    counts = {
        "questions": len(rows),
        "texts": int(texts.max()) + 1,
        "impossible": int((~answerable).sum()),
        "exact": int(kept["exact_match"].sum()),
        "said_none": int(said_none.sum()),
    }
    return Scores(tuple(scores), counts, (), details)


def _check(
    rows: Sequence[Question],
    predictions: Mapping[str, str],
    no_answer: Mapping[str, float] | None,
    threshold: float | None,
) -> None:
    if not rows:
        raise EvaluationError("there is no question to score; give at least one")
    if threshold is not None and no_answer is None:
        raise EvaluationError(f"threshold={threshold} applies to the numbers of no_answer; give both")
    for name, mapping in (("predictions", predictions), ("no_answer", no_answer)):
        missing = [question.id for question in rows if mapping is not None and question.id not in mapping]
        if missing:
            raise EvaluationError(
                f"{name} lacks {len(missing):,} of {len(rows):,} questions (the first: '{missing[0]}'); give "
                "a value for each"
            )
    unread = next((row for row in rows if not row.answers and not row.is_impossible), None)
    if unread is not None:
        raise EvaluationError(
            f"{unread.place}: has no answer to compare with; read the questions with answers"
        )


def _mean(name: str, values: Floats, texts: Ints, signed: Mapping[str, object]) -> Score:
    """Return the mean of ``values`` [n] in percent, with an interval over their ``texts`` [n]."""
    _, unit = np.unique(texts, return_inverse=True)
    total = np.bincount(unit, weights=100.0 * values).astype(np.float64)
    statistics = RatioStatistics.of(total, np.bincount(unit).astype(np.float64))
    score = statistics.score(name, signed, "texts")
    if score.interval is None:
        return score
    low, high = score.interval
    return replace(score, interval=(max(0.0, low), min(100.0, high)))


def _best(
    rows: Sequence[Question],
    raw: Mapping[str, Floats],
    empty: Bools,
    answerable: Bools,
    no_answer: Mapping[str, float],
    signed: Mapping[str, object],
) -> tuple[list[Score], dict[str, float]]:
    """Return the scores at the best thresholds, and the thresholds, found as evaluate-v2.0.py does.

    All questions start without an answer. In the order of ``no_answer``, each then counts with its answer.
    """
    number = {question.id: i for i, question in enumerate(rows)}
    ids = [id for id in sorted(no_answer, key=lambda id: no_answer[id]) if id in number]
    order = np.array([number[id] for id in ids])
    scores, thresholds = [], {}
    for metric, values in raw.items():
        gain = np.where(answerable, values, np.where(empty, 0.0, -1.0))[order]
        total = np.cumsum(np.concatenate([[float((~answerable).sum())], gain]))
        at = int(total.argmax())  # the first of equal ones
        name, threshold = f"best_{metric}", 0.0 if at == 0 else float(no_answer[ids[at - 1]])
        value, note = float(100.0 * total[at] / len(rows)), f"{name} is at threshold {threshold:g}"
        scores.append(signed_score(name, value, None, {**signed, "threshold": "best"}, "", note))
        thresholds[name] = threshold
    return scores, thresholds


# ----------------------------------------------------------------------------------------------- decoding


class Span(NamedTuple):
    """A possible answer: ``context[start:end] == text``; ``""`` at 0 stands for "no answer".

    ``score`` is the sum of the logits of its start and end, ``probability`` its share among the n best.
    """

    text: str
    start: int
    end: int
    score: float
    probability: float


class Found(NamedTuple):
    """The answer found for a question, and the n best spans with different texts, the best first.

    The answer is always among the spans, and so is "no answer" if it is allowed.
    """

    id: str  # of the question
    text: str  # "" means that there is no answer
    spans: tuple[Span, ...]
    no_answer: float | None  # the score of "no answer" minus the best span's; None if it is not allowed
    truncated: bool = False  # whether the question was truncated


def find_answers(
    windows: AnswerWindows,
    start_logits: Sequence[ArrayLike],
    end_logits: Sequence[ArrayLike],
    *,
    n_best: int = 20,
    max_answer_tokens: int = 30,
    no_answer: bool = False,
    no_answer_threshold: float = 0.0,
) -> list[Found]:
    """Return the answer to each question of ``windows``, as it is written in the text.

    Args:
        start_logits, end_logits: [T] logits of each window; further ones, of padding, are not read.
        n_best: the number of spans to keep, with different texts.
        max_answer_tokens: the largest number of tokens of a span.
        no_answer: whether a question may have no answer.
        no_answer_threshold: the answer is ``""`` if "no answer" scores better than the best span by more than
            this.

    Raises:
        EvaluationError: a setting out of range, logits of other windows.
        NonFiniteError: logits that are not finite.
    """
    if n_best < 1 or max_answer_tokens < 1:
        raise EvaluationError(
            f"n_best={n_best}, max_answer_tokens={max_answer_tokens} are not allowed; at least 1 each"
        )
    n = len(windows.windows)
    if len(start_logits) != n or len(end_logits) != n:
        raise EvaluationError(
            f"{n:,} windows have logits of {len(start_logits):,} starts and {len(end_logits):,} ends; give "
            "both for each window"
        )
    answers = []
    for i, question in enumerate(windows.questions):
        rows = range(int(windows.begins[i]), int(windows.begins[i + 1]))
        logits = [
            _Logits.of(windows.windows[row], start_logits[row], end_logits[row], max_answer_tokens)
            for row in rows
        ]
        spans = _best_spans(question.context, logits, n_best)
        margin, text = None, spans[0].text
        if no_answer:
            least = min(window.none for window in logits)
            margin = least - spans[0].score
            text = "" if margin > no_answer_threshold else text
            spans = _with_none(spans, least, text, n_best)
        answers.append(Found(question.id, text, _with_shares(spans), margin, i in windows.truncated))
    return answers


class _Logits(NamedTuple):
    """The scores of a window: of the spans, and of "no answer".

    ``spans`` [P, L] holds the score of the span of l + 1 tokens from token p on, -inf for an impossible span.
    ``none`` is the score of [CLS].
    """

    window: AnswerWindow
    spans: Floats
    none: float

    @classmethod
    def of(cls, window: AnswerWindow, start: ArrayLike, end: ArrayLike, longest: int) -> _Logits:
        T, P = len(window.ids), len(window.offsets)
        starts, ends = np.asarray(start, np.float64)[:T], np.asarray(end, np.float64)[:T]
        if starts.shape != (T,) or ends.shape != (T,):
            raise EvaluationError(
                f"a window of {T} tokens has logits of shape {starts.shape} for starts and {ends.shape} for "
                "ends; give both for each token"
            )
        if not (np.isfinite(starts).all() and np.isfinite(ends).all()):
            raise NonFiniteError("the model gives logits that are not finite; its weights are damaged")
        none = float(starts[0] + ends[0])
        passage = slice(window.passage, window.passage + P)
        written = window.offsets[:, 0] < window.offsets[:, 1]  # tokens with characters
        first = np.where(window.best & written, starts[passage], -np.inf)  # [P]
        last = np.where(written, ends[passage], -np.inf)  # [P]
        L = min(longest, P)
        following = sliding_window_view(np.concatenate([last, np.full(L - 1, -np.inf)]), L)  # [P, L]
        return cls(window, first[:, None] + following, none)


def _best_spans(context: str, logits: Sequence[_Logits], n_best: int) -> list[Span]:
    """Return the ``n_best`` spans with different texts, the best first; among equal ones, the first."""
    sizes = [window.spans.size for window in logits]
    ends = np.cumsum(sizes)
    scores = np.concatenate([window.spans.ravel() for window in logits])
    best: dict[str, Span] = {}
    for at in _best_first(scores, 4 * n_best):
        which = int(np.searchsorted(ends, at, side="right"))
        window, spans, _ = logits[which]
        first, more = divmod(at - int(ends[which]) + sizes[which], spans.shape[1])
        a, b = int(window.offsets[first, 0]), int(window.offsets[first + more, 1])
        if a < b and context[a:b] not in best:
            best[context[a:b]] = Span(context[a:b], a, b, float(scores[at]), 0.0)
            if len(best) == n_best:
                break
    return list(best.values())


def _best_first(scores: Floats, k: int) -> Iterator[int]:
    """Yield the indices of all finite ``scores``, the best first; sort about ``k`` of them at first."""
    done = 0
    while done < len(scores):
        k = min(k, len(scores))
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        places = np.flatnonzero(scores >= least)
        places = places[np.argsort(-scores[places], kind="stable")]
        for place in places[done:].tolist():
            if scores[place] == -np.inf:
                return
            yield place
        done, k = len(places), 8 * k


def _with_none(spans: list[Span], score: float, chosen: str, n_best: int) -> list[Span]:
    """Insert "no answer" by its score and keep ``n_best`` spans, always with "no answer" and ``chosen``."""
    none = Span("", 0, 0, score, 0.0)
    ranked = sorted([*spans, none], key=lambda span: -span.score)
    return [span for rank, span in enumerate(ranked) if rank < n_best or span.text in ("", chosen)]


def _with_shares(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return ``spans`` with their probabilities, which add up to 1."""
    scores = np.array([span.score for span in spans])
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    return tuple(span._replace(probability=p) for span, p in zip(spans, shares.tolist(), strict=True))
