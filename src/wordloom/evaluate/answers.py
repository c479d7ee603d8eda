"""Question answering: spans found from a model's logits, and their scores as SQuAD defines them.

:func:`find_answers` decodes as BERT's run_squad.py (Devlin et al. 2018, arXiv:1810.04805): of each question
over all its windows the n best spans, each by its start's logit and its end's; a start counts in the window
where it has most context; the [CLS] of the least likely window stands for "no answer".  Theirs joins the 20
best starts with the 20 best ends; here every allowed span is weighed, so none is missed.

:func:`answer_scores` is what the official scripts print, in percent: evaluate-v1.1.py (Rajpurkar et al. 2016,
arXiv:1606.05250) and, where a question is impossible, evaluate-v2.0.py (Rajpurkar et al. 2018,
arXiv:1806.03822).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from wordloom.data.batches.spans import AnswerWindow, AnswerWindows
from wordloom.data.rows.squad import Question
from wordloom.errors import EvaluationError, NonFiniteError
from wordloom.evaluate.score import Floats, RatioStatistics, Score, Scores, signature

__all__ = [
    "Found",
    "Span",
    "answer_scores",
    "exact_match",
    "f1_score",
    "find_answers",
    "normalize_answer",
]

Version = Literal["1.1", "2.0"]
Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


# ------------------------------------------------------------------------------------------------ scores


def normalize_answer(text: str) -> str:
    """``text`` in lower case, without ASCII punctuation and English articles, single spaces between words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str], *, version: Version = "1.1") -> float:
    """1.0 where ``prediction`` is one of ``answers`` once both are normalised, else 0.0.

    By v2.0's rules ``""`` answers a question without answers; by v1.1's that raises EvaluationError.
    """
    found = normalize_answer(prediction)
    return float(any(normalize_answer(answer) == found for answer in _gold(answers, version)))


def f1_score(prediction: str, answers: Sequence[str], *, version: Version = "1.1") -> float:
    """F1 of the words of ``prediction`` and of the one of ``answers`` that it is nearest to.

    Where either has no word left once normalised: 0 in v1.1; in v2.0 1 if both have none.  Raises as
    :func:`exact_match`.
    """
    words = normalize_answer(prediction).split()
    return max(_f1(words, normalize_answer(answer).split(), version) for answer in _gold(answers, version))


def _gold(answers: Sequence[str], version: Version) -> Sequence[str]:
    if version == "2.0":
        return [answer for answer in answers if normalize_answer(answer)] or [""]
    if not answers:
        raise EvaluationError("a question without an answer is judged by SQuAD v2.0's rules; say version 2.0")
    return answers


def _f1(found: list[str], gold: list[str], version: Version) -> float:
    if version == "2.0" and not (found and gold):
        return float(found == gold)
    same = sum((Counter(found) & Counter(gold)).values())
    if not same:
        return 0.0
    precision, recall = same / len(found), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def answer_scores(
    questions: Iterable[Question],
    predictions: Mapping[str, str],
    *,
    no_answer: Mapping[str, float] | None = None,
    threshold: float | None = None,
    settings: Mapping[str, object] | None = None,
) -> Scores:
    """``exact_match`` and ``f1`` in percent, as the official scripts print them.

    Where a question is impossible (v2.0) also ``exact_match_answerable``, ``f1_answerable`` and
    ``exact_match_impossible`` (their HasAns and NoAns; F1 of NoAns is its exact match).  With ``no_answer``
    also ``best_exact_match`` and ``best_f1``: with the threshold that would have been best for each, which
    ``details["thresholds"]`` holds; they are chosen on the very answers, so no interval is theirs.

    Args:
        questions: with their answers.
        predictions: of each question's id the answer's text; ``""``: there is none.
        no_answer: of each id how surely there is no answer: any number that grows with it
            (:attr:`Found.no_answer`).
        threshold: take the answer to be ``""`` where ``no_answer`` is above it.
        settings: what else the signatures say.

    Intervals are normal ones over texts, whose questions are not independent, from 20 on.

    Raises:
        EvaluationError: no question, one without answer that is not impossible, ids that ``predictions`` or
            ``no_answer`` lack, a threshold without ``no_answer``.
    """
    asked = list(questions)
    version: Version = "2.0" if any(question.is_impossible for question in asked) else "1.1"
    _check(asked, predictions, no_answer, threshold)
    given = [predictions[question.id] for question in asked]
    raw = _judged(asked, given, version)
    answerable = np.array([not question.is_impossible for question in asked])
    silent = np.array([not text for text in given])
    kept, said_none = raw, silent
    if no_answer is not None and threshold is not None:
        above = np.array([no_answer[question.id] > threshold for question in asked])
        kept = {name: np.where(above, ~answerable, values) for name, values in raw.items()}
        said_none = silent | above
    signed = {**(settings or {}), "squad": version, "threshold": "no" if threshold is None else threshold}
    texts = _numbered(question.context for question in asked)

    def mean(name: str, of: str, some: Bools) -> Score:
        return _mean(name, kept[of][some], texts[some], signed)

    scores = [mean(name, name, np.ones(len(asked), bool)) for name in raw]
    if version == "2.0":
        if answerable.any():
            scores += [mean(f"{name}_answerable", name, answerable) for name in raw]
        scores.append(mean("exact_match_impossible", "exact_match", ~answerable))
    details = {}
    if no_answer is not None:
        best, thresholds = _best(asked, raw, silent, answerable, no_answer, signed)
        scores += best
        details = {"thresholds": thresholds}
    counts = {
        "questions": len(asked),
        "texts": int(texts.max()) + 1,
        "impossible": int((~answerable).sum()),
        "exact": int(kept["exact_match"].sum()),
        "said_none": int(said_none.sum()),
    }
    return Scores(tuple(scores), counts, (), details)


def _check(
    asked: Sequence[Question],
    predictions: Mapping[str, str],
    no_answer: Mapping[str, float] | None,
    threshold: float | None,
) -> None:
    if not asked:
        raise EvaluationError("there is no question to judge; give at least one")
    if threshold is not None and no_answer is None:
        raise EvaluationError(f"threshold={threshold} is of the numbers in no_answer; give them, too")
    for name, mapping in (("predictions", predictions), ("no_answer", no_answer)):
        missing = [question.id for question in asked if mapping is not None and question.id not in mapping]
        if missing:
            raise EvaluationError(
                f"{name} has nothing for {len(missing):,} of {len(asked):,} questions (the first: "
                f"'{missing[0]}'); give an answer for each"
            )
    unread = next((one for one in asked if not one.answers and not one.is_impossible), None)
    if unread is not None:
        raise EvaluationError(f"{unread.place}: has no answer to judge by; read the questions with answers")


def _judged(asked: Sequence[Question], given: Sequence[str], version: Version) -> dict[str, Floats]:
    """Exact match and F1 of each question: [questions] each."""
    pairs = [(text, [a.text for a in one.answers]) for text, one in zip(given, asked, strict=True)]
    return {
        "exact_match": np.array([exact_match(text, gold, version=version) for text, gold in pairs]),
        "f1": np.array([f1_score(text, gold, version=version) for text, gold in pairs]),
    }


def _numbered(names: Iterable[str]) -> Ints:
    known: dict[str, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], np.int64)


def _mean(name: str, values: Floats, texts: Ints, signed: Mapping[str, object]) -> Score:
    """The mean of ``values`` [n] in percent, whose interval is over ``texts`` [n]."""
    _, unit = np.unique(texts, return_inverse=True)
    total = np.bincount(unit, weights=100.0 * values).astype(np.float64)
    found = RatioStatistics.of(total, np.bincount(unit).astype(np.float64))
    interval = found.interval()
    ci = "no" if interval is None else f"{found.units}-texts"
    if interval is not None:
        interval = max(0.0, interval[0]), min(100.0, interval[1])
    return Score(name, found.ratio, interval, signature(name, **{**signed, "ci": ci}))


def _best(
    asked: Sequence[Question],
    raw: Mapping[str, Floats],
    silent: Bools,
    answerable: Bools,
    no_answer: Mapping[str, float],
    signed: Mapping[str, object],
) -> tuple[list[Score], dict[str, float]]:
    """The scores at the best thresholds, and these; found as evaluate-v2.0.py does.

    Questions come in the order of ``no_answer``: before the first, all are taken to have no answer; each in
    its turn then counts as it was answered.
    """
    number = {question.id: i for i, question in enumerate(asked)}
    turns = [id for id in sorted(no_answer, key=lambda id: no_answer[id]) if id in number]
    order = np.array([number[id] for id in turns])
    scores, thresholds = [], {}
    for of, values in raw.items():
        gain = np.where(answerable, values, np.where(silent, 0.0, -1.0))[order]
        total = np.cumsum(np.concatenate([[float((~answerable).sum())], gain]))
        at = int(total.argmax())  # of equally good ones the first
        name, found = f"best_{of}", 0.0 if at == 0 else float(no_answer[turns[at - 1]])
        signs = signature(name, **{**signed, "threshold": "best", "ci": "no"})
        scores.append(
            Score(
                name, float(100.0 * total[at] / len(asked)), None, signs, f"{name} is at threshold {found:g}"
            )
        )
        thresholds[name] = found
    return scores, thresholds


# ----------------------------------------------------------------------------------------------- decoding


class Span(NamedTuple):
    """A possible answer: ``context[start:end] == text``; ``""`` at 0 stands for "no answer".

    ``score`` is the sum of its start's and end's logit, ``probability`` its share among the n best.
    """

    text: str
    start: int
    end: int
    score: float
    probability: float


class Found(NamedTuple):
    """The answer that was found for a question.

    Attributes:
        id: the question's.
        text: the answer; ``""``: there is none.
        spans: the n best with different texts, the best first; ``text`` is always among them, and "no answer"
            where that is allowed.
        no_answer: the score of "no answer" less the best span's; None where it is not allowed.
        truncated: whether the question lost its end.
    """

    id: str
    text: str
    spans: tuple[Span, ...]
    no_answer: float | None
    truncated: bool = False


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
    """The answer of each question of ``windows``, cut out of its text as it is written.

    Args:
        start_logits, end_logits: of each window [T] or more (what padding has is not read).
        n_best: spans that are kept, of different texts.
        max_answer_tokens: tokens of a span at most.
        no_answer: whether a question may have none.
        no_answer_threshold: the answer is ``""`` where "no answer" scores better than the best span by more.

    Raises:
        EvaluationError: a setting out of range, logits of other windows.
        NonFiniteError: logits that are no finite numbers.
    """
    if n_best < 1 or max_answer_tokens < 1:
        raise EvaluationError(
            f"n_best={n_best}, max_answer_tokens={max_answer_tokens} are not allowed; at least 1 each"
        )
    n = len(windows.windows)
    if len(start_logits) != n or len(end_logits) != n:
        raise EvaluationError(
            f"there are {n:,} windows, and logits of {len(start_logits):,} starts and {len(end_logits):,} "
            "ends; give both for each window"
        )
    found = []
    for i, question in enumerate(windows.questions):
        rows = range(int(windows.begins[i]), int(windows.begins[i + 1]))
        read = [
            _Logits.of(windows.windows[row], start_logits[row], end_logits[row], max_answer_tokens)
            for row in rows
        ]
        spans = _best_spans(question.context, read, n_best)
        margin = None
        if no_answer:
            least = min(logits.none for logits in read)
            margin = least - spans[0].score
        text = "" if margin is not None and margin > no_answer_threshold else spans[0].text
        if no_answer:
            spans = _with_none(spans, least, text, n_best)
        found.append(Found(question.id, text, _shared(spans), margin, i in windows.shortened))
    return found


class _Logits(NamedTuple):
    """A window's logits, summed: ``spans`` [P, L], that of the span of l + 1 tokens from token p on, -inf
    where it is none; ``none`` of its [CLS]."""

    window: AnswerWindow
    spans: Floats
    none: float

    @classmethod
    def of(cls, window: AnswerWindow, start: ArrayLike, end: ArrayLike, longest: int) -> _Logits:
        T, P = len(window.ids), len(window.offsets)
        starts, ends = np.asarray(start, np.float64)[:T], np.asarray(end, np.float64)[:T]
        if starts.shape != (T,) or ends.shape != (T,):
            raise EvaluationError(
                f"a window has {T} tokens, and logits of shape {starts.shape} for starts and {ends.shape} "
                "for ends; give both for each token"
            )
        if not (np.isfinite(starts).all() and np.isfinite(ends).all()):
            raise NonFiniteError("the model gives logits that are no numbers; its weights are damaged")
        none = float(starts[0] + ends[0])
        passage = slice(window.passage, window.passage + P)
        seen = window.offsets[:, 0] < window.offsets[:, 1]  # tokens that stand for characters
        first = np.where(window.best & seen, starts[passage], -np.inf)
        last = np.where(seen, ends[passage], -np.inf)
        L = min(longest, P)
        following = sliding_window_view(np.concatenate([last, np.full(L - 1, -np.inf)]), L)  # [P, L]
        return cls(window, first[:, None] + following, none)


def _best_spans(context: str, read: Sequence[_Logits], n_best: int) -> list[Span]:
    """The ``n_best`` spans of different texts, the best first; of equal ones, the first."""
    sizes = [logits.spans.size for logits in read]
    ends = np.cumsum(sizes)
    scores = np.concatenate([logits.spans.ravel() for logits in read])
    found: dict[str, Span] = {}
    for at in _best_first(scores, 4 * n_best):
        which = int(np.searchsorted(ends, at, side="right"))
        window, spans, _ = read[which]
        first, more = divmod(at - int(ends[which]) + sizes[which], spans.shape[1])
        a, b = int(window.offsets[first, 0]), int(window.offsets[first + more, 1])
        if a < b and context[a:b] not in found:
            found[context[a:b]] = Span(context[a:b], a, b, float(scores[at]), 0.0)
            if len(found) == n_best:
                break
    return list(found.values())


def _best_first(scores: Floats, k: int) -> Iterator[int]:
    """Places of all finite ``scores``, the best first; about ``k`` of them are sorted at first."""
    given = 0
    while given < len(scores):
        k = min(k, len(scores))
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        places = np.flatnonzero(scores >= least)
        places = places[np.argsort(-scores[places], kind="stable")]
        for place in places[given:].tolist():
            if scores[place] == -np.inf:
                return
            yield place
        given, k = len(places), 8 * k


def _with_none(spans: list[Span], score: float, chosen: str, n_best: int) -> list[Span]:
    """``spans`` with "no answer" in its place, ``n_best`` in all, or more: it and ``chosen`` always stay."""
    none = Span("", 0, 0, score, 0.0)
    ranked = sorted([*spans, none], key=lambda span: -span.score)
    return [span for rank, span in enumerate(ranked) if rank < n_best or span.text in ("", chosen)]


def _shared(spans: Sequence[Span]) -> tuple[Span, ...]:
    """``spans`` with their probabilities, which add up to 1."""
    scores = np.array([span.score for span in spans])
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    return tuple(span._replace(probability=p) for span, p in zip(spans, shares.tolist(), strict=True))
