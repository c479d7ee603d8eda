"""SQuAD's exact match and F1 by the official rules, rule by rule; spans against a search of all there are."""

from __future__ import annotations

import itertools
import math
import string
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wordloom.data import Answer, AnswerWindows, Question, question_windows
from wordloom.errors import EvaluationError, NonFiniteError
from wordloom.evaluate import (
    Found,
    answer_scores,
    exact_match,
    f1_score,
    find_answers,
    normalize_answer,
)
from wordloom.text import Tokenizer

# ------------------------------------------------------------------------------------------------ scores


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat", "cat"),  # case, article, white space
        ("a an the theme Anna", "theme anna"),  # whole words alone are articles
        ("U.S.A.", "usa"),  # punctuation goes before articles do,
        ("a.b", "ab"),
        ("the-cat", "thecat"),  # so this article is none any more
        ("don't", "dont"),
        ("$1,000", "1000"),
        ("„Über“ — ja", "„über“ — ja"),  # ASCII punctuation alone
        ("tea\u00a0the\u2003pot\n", "tea pot"),  # any white space
        ("the", ""),
        ("", ""),
        ("État à an", "état à"),
    ],
)
def test_normalisation(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


def spelled(text: str) -> list[str]:
    """The words that count, by another way than a pattern."""
    kept = "".join(one for one in text.lower() if one not in string.punctuation)
    words: list[str] = []
    for word in kept.split():
        edges = [i for i in range(1, len(word)) if (inside(word[i - 1]) != inside(word[i]))]
        parts = [word[a:b] for a, b in itertools.pairwise([0, *edges, len(word)])]
        words += "".join(" " if part in ("a", "an", "the") else part for part in parts).split()
    return words


def inside(character: str) -> bool:
    return character.isalnum() or character == "_"


TEXTS = st.lists(
    st.sampled_from(["a", "an", "the", "The", "cat", "Cat", "dog", " ", "  ", "-", ".", "“", "é", "\n", "1"])
).map("".join)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3))
def test_scores_of_any_texts(prediction: str, answers: list[str]) -> None:
    assert normalize_answer(prediction).split() == spelled(prediction)
    best = 0.0
    for answer in answers:
        found, gold = spelled(prediction), spelled(answer)
        same = sum((Counter(found) & Counter(gold)).values())
        if same:
            best = max(best, 2 * same / (len(found) + len(gold)))
    assert f1_score(prediction, answers) == pytest.approx(best, abs=1e-12)
    exact = any(spelled(prediction) == spelled(answer) for answer in answers)
    assert exact_match(prediction, answers) == exact
    kept = [answer for answer in answers if spelled(answer)]
    silent = not spelled(prediction)
    exact = any(spelled(prediction) == spelled(answer) for answer in kept) if kept else silent
    assert exact_match(prediction, answers, version="2.0") == exact
    assert f1_score(prediction, answers, version="2.0") == pytest.approx(best if kept else float(silent))


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("the Denver Broncos", ["Denver Broncos"], 1, 1),
        ("Denver", ["Denver Broncos"], 0, 2 / 3),
        ("Broncos of Denver", ["Denver Broncos", "Denver"], 0, 4 / 5),
        ("cat cat dog", ["cat dog dog"], 0, 2 / 3),  # words as often as they are there
        ("fish", ["cat", "dog"], 0, 0),
        ("", ["cat"], 0, 0),
        ("the", ["an"], 1, 0),  # v1.1: nothing is left, so no word is shared
    ],
)
def test_cases_of_v1(prediction: str, answers: list[str], exact: float, f1: float) -> None:
    assert exact_match(prediction, answers) == exact
    assert f1_score(prediction, answers) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("", [], 1, 1),
        ("cat", [], 0, 0),
        ("the", [], 1, 1),  # normalised, it is nothing
        ("", ["cat"], 0, 0),
        ("the", ["an", "..."], 1, 1),  # answers that are nothing are none
        ("cat", ["the", "cat"], 1, 1),
    ],
)
def test_cases_of_v2(prediction: str, answers: list[str], exact: float, f1: float) -> None:
    assert exact_match(prediction, answers, version="2.0") == exact
    assert f1_score(prediction, answers, version="2.0") == f1


def asked(id: str, *answers: str, context: str = "c", impossible: bool = False) -> Question:
    return Question(id, "", context, "?", tuple(Answer(text, 0) for text in answers), impossible, f"f: {id}")


V1 = [asked("1", "cat"), asked("2", "a dog", "hot dog"), asked("3", "red fish", context="d")]
V2 = [*V1, asked("4", impossible=True), asked("5", impossible=True, context="e")]


def test_v1_in_percent() -> None:
    scores = answer_scores(V1, {"1": "Cat", "2": "dog", "3": "fish"}, settings={"model": "m"})
    assert list(scores) == ["exact_match", "f1"]
    assert scores["exact_match"].value == pytest.approx(100 * 2 / 3)
    assert scores["f1"].value == pytest.approx(100 * (1 + 1 + 2 / 3) / 3)
    assert scores["f1"].interval is None
    assert scores["f1"].signature.startswith("f1|model:m|squad:1.1|threshold:no|ci:no|v:")
    assert scores.counts == {"questions": 3, "texts": 2, "impossible": 0, "exact": 2, "said_none": 0}


def test_v2_with_and_without_answer() -> None:
    said = {"1": "cat", "2": "", "3": "fish", "4": "", "5": "x"}
    scores = answer_scores(V2, said)
    assert scores["exact_match"].value == pytest.approx(100 * 2 / 5)
    assert scores["f1"].value == pytest.approx(100 * (1 + 0 + 2 / 3 + 1 + 0) / 5)
    assert scores["exact_match_answerable"].value == pytest.approx(100 / 3)
    assert scores["f1_answerable"].value == pytest.approx(100 * (1 + 2 / 3) / 3)
    assert scores["exact_match_impossible"].value == pytest.approx(50)
    assert "squad:2.0" in scores["f1"].signature
    assert scores.counts["said_none"] == 2


def test_a_threshold_takes_answers_back() -> None:
    said = {"1": "cat", "2": "fish", "3": "fish", "4": "y", "5": "x"}
    surely = {"1": 0.9, "2": 0.2, "3": 0.1, "4": 0.8, "5": 0.3}
    scores = answer_scores(V2, said, no_answer=surely, threshold=0.3)
    assert scores["exact_match"].value == pytest.approx(100 / 5)  # 4 is right, 1 no longer; 5 is not above it
    assert scores["f1"].value == pytest.approx(100 * (0 + 0 + 2 / 3 + 1 + 0) / 5)
    assert scores.counts["said_none"] == 2
    assert scores["best_exact_match"].value == pytest.approx(100 * 2 / 5)
    assert scores.details == {"thresholds": {"best_exact_match": 0.0, "best_f1": 0.1}}
    for name, threshold in scores.details["thresholds"].items():
        assert scores[name].note == f"{name} is at threshold {threshold:g}"
    assert scores["best_f1"].value == pytest.approx(100 * (2 + 2 / 3) / 5)
    assert scores["best_f1"].interval is None


@given(st.data())
def test_best_thresholds_are_the_best(data: st.DataObject) -> None:
    """Against every threshold there is, where no two questions tie."""
    n = data.draw(st.integers(1, 6))
    rows = [
        asked(str(i), impossible=True) if data.draw(st.booleans()) else asked(str(i), "cat", "the cat sat")
        for i in range(n)
    ]
    said = {row.id: data.draw(st.sampled_from(["", "cat", "cat dog", "x"])) for row in rows}
    order = data.draw(st.permutations(range(n)))
    surely = {row.id: float(order[i] + 1) for i, row in enumerate(rows)}
    rows.append(asked("last", impossible=True))
    said["last"], surely["last"] = "", 99.0
    scores = answer_scores(rows, said, no_answer=surely)
    by = [answer_scores(rows, said, no_answer=surely, threshold=float(t)) for t in range(n + 1)]
    for name in ("exact_match", "f1"):
        assert scores[f"best_{name}"].value == pytest.approx(max(one[name].value for one in by))
        best = by[int(scores.details["thresholds"][f"best_{name}"])]
        assert best[name].value == pytest.approx(scores[f"best_{name}"].value)


def test_intervals_are_over_texts() -> None:
    """Ten times the same questions about a text say no more than once."""
    rng = np.random.default_rng(0)
    right = rng.random(40) < 0.7
    once = [asked(f"{i}", "cat", context=f"c{i}") for i in range(40)]
    often = [asked(f"{i}-{k}", "cat", context=f"c{i}") for i in range(40) for k in range(10)]
    one = answer_scores(once, {q.id: "cat" if right[int(q.id)] else "x" for q in once})["exact_match"]
    ten = answer_scores(often, {q.id: "cat" if right[int(q.id.split("-")[0])] else "x" for q in often})
    assert one.interval == pytest.approx(ten["exact_match"].interval)
    share = right.mean()
    half = 196 * math.sqrt(share * (1 - share) / 39)
    assert one.interval == pytest.approx((100 * share - half, 100 * share + half), rel=1e-4)
    assert "ci:40-texts" in one.signature


@pytest.mark.parametrize(
    ("rows", "said", "more", "message"),
    [
        ([], {}, {}, "there is no question to score"),
        (V1, {"1": "cat"}, {}, r"predictions lacks 2 of 3 questions \(the first: '2'\)"),
        (V1, dict.fromkeys("123", "x"), {"no_answer": {}}, "no_answer lacks 3 of 3"),
        (
            V1,
            dict.fromkeys("123", "x"),
            {"threshold": 0.5},
            "threshold=0.5 applies to the numbers",
        ),
        ([asked("1")], {"1": "x"}, {}, "f: 1: has no answer to compare with"),
    ],
)
def test_what_cannot_be_judged(rows: Any, said: Any, more: Any, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        answer_scores(rows, said, **more)
    with pytest.raises(EvaluationError, match=r"the rules of SQuAD v2\.0"):
        exact_match("x", [])


# ----------------------------------------------------------------------------------------------- decoding


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    special = {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "unk": "[UNK]"}
    return Tokenizer.train(["ab c d e f g h ."] * 2, kind="word", special_tokens=special)


CONTEXT = "ab c  ab d. e f\ng ab h"


@pytest.fixture(scope="module")
def windows(tokenizer: Tokenizer) -> AnswerWindows:
    """Two questions about one text, in windows of six tokens of it, four apart."""
    rows = [Question(id, "", CONTEXT, "c d", (), False, id) for id in ("one", "two")]
    return question_windows(tokenizer, rows, max_seq_len=11, doc_stride=4, max_query=4, targets=False)


def logits(windows: AnswerWindows, rng: np.random.Generator) -> list[np.ndarray]:
    """Random ones, padded by large ones that must not be read."""
    made = []
    for window in windows.windows:
        row = rng.normal(size=len(window.ids) + 3)
        row[len(window.ids) :] = 99.0
        made.append(row)
    return made


def all_spans(
    windows: AnswerWindows, i: int, starts: list[np.ndarray], ends: list[np.ndarray], longest: int
) -> list[tuple[float, str, int, int]]:
    """Every span allowed, the best first, each text once."""
    found = []
    for row in range(*windows.begins[i : i + 2].tolist()):
        window = windows.windows[row]
        for p in range(len(window.offsets)):
            for q in range(p, min(p + longest, len(window.offsets))):
                if window.best[p]:
                    a, b = int(window.offsets[p, 0]), int(window.offsets[q, 1])
                    score = starts[row][window.passage + p] + ends[row][window.passage + q]
                    found.append((float(score), CONTEXT[a:b], a, b))
    seen: set[str] = set()
    found.sort(key=lambda one: -one[0])
    return [one for one in found if not (one[1] in seen or seen.add(one[1]))]


@pytest.mark.parametrize(("n_best", "longest"), [(1, 1), (3, 2), (20, 30), (500, 4)])
def test_spans_are_the_best_there_are(windows: AnswerWindows, n_best: int, longest: int) -> None:
    assert windows.begins.tolist() == [0, 2, 4]
    for seed in range(5):
        rng = np.random.default_rng(seed)
        starts, ends = logits(windows, rng), logits(windows, rng)
        made = find_answers(windows, starts, ends, n_best=n_best, max_answer_tokens=longest)
        for i, found in enumerate(made):
            wanted = all_spans(windows, i, starts, ends, longest)[:n_best]
            assert [(s.text, s.start, s.end) for s in found.spans] == [one[1:] for one in wanted]
            assert [s.score for s in found.spans] == pytest.approx([one[0] for one in wanted])
            shares = np.exp([one[0] for one in wanted])
            assert [s.probability for s in found.spans] == pytest.approx(shares / shares.sum())
            assert found.text == found.spans[0].text
            assert found.no_answer is None
            assert all(CONTEXT[s.start : s.end] == s.text for s in found.spans)
    assert [found.id for found in made] == ["one", "two"]


def decided(windows: AnswerWindows, none: float, **settings: Any) -> Found:
    """With span scores below 8, best 'c', and the [CLS] at ``none`` in the least window, more elsewhere."""
    starts = [np.linspace(0, 1, len(window.ids)) for window in windows.windows]
    ends = [np.zeros(len(window.ids)) for window in windows.windows]
    begin, stop = windows.begins[:2].tolist()
    for row in range(begin, stop):
        starts[row][0] = none + (row != stop - 1)
    starts[begin][windows.windows[begin].passage + 1] = 4.0
    ends[begin][windows.windows[begin].passage + 1] = 3.0
    return find_answers(windows, starts, ends, no_answer=True, **settings)[0]


def test_no_answer_is_the_least_likely_windows_cls(windows: AnswerWindows) -> None:
    unsure = decided(windows, 6.0)
    assert (unsure.text, unsure.no_answer) == ("c", pytest.approx(-1.0))
    none = decided(windows, 8.0)
    assert (none.text, none.no_answer) == ("", pytest.approx(1.0))
    assert none.spans[0][:4] == ("", 0, 0, 8.0)
    assert none.spans[1].text == "c"
    assert decided(windows, 8.0, no_answer_threshold=1.0).text == "c"
    assert decided(windows, 6.0, no_answer_threshold=-1.5).text == ""


def test_no_answer_stands_among_the_n_best_or_behind_them(windows: AnswerWindows) -> None:
    assert [span.text for span in decided(windows, 8.0, n_best=1).spans] == [""]
    assert [span.text for span in decided(windows, 8.0, n_best=1, no_answer_threshold=1.0).spans] == ["", "c"]
    assert [span.text for span in decided(windows, -9.0, n_best=2).spans][0::2] == ["c", ""]
    assert len(decided(windows, 6.9, n_best=3).spans) == 3
    assert sum(span.probability for span in decided(windows, 6.9).spans) == pytest.approx(1)


def test_only_windows_with_most_context_begin_a_span(windows: AnswerWindows) -> None:
    starts = [np.zeros(len(window.ids)) for window in windows.windows]
    ends = [np.zeros(len(window.ids)) for window in windows.windows]
    window = windows.windows[0]
    less = int(np.flatnonzero(~window.best)[0])
    starts[0][window.passage + less] = 50.0
    starts[0][: window.passage] = 90.0  # marks and question are no answers
    starts[0][len(window.ids) - 1] = 90.0
    assert max(span.score for span in find_answers(windows, starts, ends)[0].spans) == 0.0


def test_logits_of_others_are_refused(windows: AnswerWindows) -> None:
    rows = [np.zeros(len(window.ids)) for window in windows.windows]
    with pytest.raises(EvaluationError, match="4 windows have logits of 3 starts and 4 ends"):
        find_answers(windows, rows[1:], rows)
    with pytest.raises(EvaluationError, match=r"a window of 11 tokens has logits of shape \(5,\)"):
        find_answers(windows, [rows[0][:5], *rows[1:]], rows)
    with pytest.raises(NonFiniteError, match="logits that are not finite"):
        find_answers(windows, [np.full(11, np.nan), *rows[1:]], rows)
    for settings in ({"n_best": 0}, {"max_answer_tokens": 0}):
        with pytest.raises(EvaluationError, match="at least 1 each"):
            find_answers(windows, rows, rows, **settings)  # type: ignore[arg-type]
