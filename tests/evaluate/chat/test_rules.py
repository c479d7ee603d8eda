"""Rules on the form of an answer, against answers written by hand."""

from __future__ import annotations

import json
from random import Random

import pytest

from wordloom.errors import EvaluationError
from wordloom.evaluate.chat import RULES, Answer, instructions, instructions_followed, repetition
from wordloom.evaluate.chat.rules import sentences, words

E_ACUTE = "\N{LATIN SMALL LETTER E WITH ACUTE}t"
CURLY = "\N{LEFT DOUBLE QUOTATION MARK}A\N{RIGHT DOUBLE QUOTATION MARK}"
# for each rule, whatever it draws: answers that follow it, and answers that do not
ANSWERS: dict[str, tuple[list[str], list[str]]] = {
    "lower_case": (["a cat sleeps, always.", E_ACUTE], ["A cat.", "42", "..."]),
    "upper_case": (["A CAT SLEEPS, ALWAYS."], ["A cat.", "42"]),
    "no_commas": (["A cat sleeps."], ["A cat, a dog"]),
    "at_most_words": (["A cat.", "It's a cat-like thing."], ["word " * 21, "!!!"]),
    "at_least_words": (["word " * 40], ["A cat.", "word " * 19]),
    "keyword": (["often people because small together every water first"], ["A cat.", "peoples oftentimes"]),
    "forbidden_word": (["It sleeps.", "catalogue"], ["A cat sleeps.", "CAT!"]),
    "json_object": (['{"a": 1}', '```json\n{"a": [1, 2]}\n```'], ["[1]", "{a: 1}", '{"a": 1} and more']),
    "quotation_marks": (['"A cat."', CURLY], ['A "cat"', '"A cat', '""']),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ANSWERS))
def test_a_rule_accepts_its_form_and_refuses_others(name: str) -> None:
    rule = next(rule for rule in RULES if rule.name == name)
    right, wrong = ANSWERS[name]
    for seed in range(30):  # all wordings and numbers
        check = rule.asked(Random(seed), "a cat").check
        for answer in right:
            assert check(answer), (seed, answer)
            assert check(f"\n {answer}\n"), "white space around an answer does not count"
        for answer in wrong:
            assert not check(answer), (seed, answer)


@pytest.mark.parametrize(("name", "make"), [
    ("sentences", lambda n: " ".join(["A cat. "] * n)),
    ("bullet_points", lambda n: "\n".join(["- a cat"] * n)),
    ("numbered_list", lambda n: "\n".join(f"{i}. a cat" for i in range(1, n + 1))),
    ("paragraphs", lambda n: "\n\n".join(["A cat.\nIt sleeps."] * n)),
])  # fmt: skip
def test_a_rule_counts(name: str, make: object) -> None:
    rule = next(rule for rule in RULES if rule.name == name)
    for seed in range(30):
        text, check = rule.asked(Random(seed), "a cat")
        accepted = [n for n in range(1, 8) if check(make(n))]  # type: ignore[operator]
        assert len(accepted) == 1
        assert str(accepted[0]) in text, "the question names the number"


@pytest.mark.parametrize("name", ["beginning", "ending"])
def test_a_phrase_stands_at_its_place(name: str) -> None:
    rule = next(rule for rule in RULES if rule.name == name)
    for seed in range(30):
        text, check = rule.asked(Random(seed), "a cat")
        phrase = text.split('"')[1]
        assert check(f"{phrase} a cat" if name == "beginning" else f"A cat. {phrase}")
        assert not check(f"A {phrase} cat")
        assert not check(phrase.lower() + "x" if name == "beginning" else phrase + "x")


def test_no_empty_answer_follows_a_rule() -> None:
    for each in instructions(3, seed=5):
        assert not each.follows("")
        assert not each.follows(" \n\t")


def test_the_questions_are_those_of_the_seed() -> None:
    first, again = instructions(2, seed=1), instructions(2, seed=1)
    assert [each.question for each in first] == [each.question for each in again]
    assert [each.question for each in first] != [each.question for each in instructions(2, seed=2)]
    assert [each.rule for each in first] == 2 * [rule.name for rule in RULES]
    assert len(RULES) == 15


def test_words_and_sentences() -> None:
    assert words("It's a well-known cat.") == ["It's", "a", "well-known", "cat"]
    assert sentences('He said "No." Then he left! Why? ...') == ['He said "No.', "Then he left!", "Why?"]
    assert sentences("no end") == ["no end"]


def test_repetition_is_the_share_of_repeated_n_grams() -> None:
    assert repetition([1, 2, 3, 4, 1, 2, 3, 4], 4) == pytest.approx(1 / 5)
    assert repetition([7] * 10, 4) == pytest.approx(6 / 7)
    assert repetition([1, 2, 3]) == 0


def test_the_scores_count_by_hand() -> None:
    asked = instructions(2)
    written = [Answer("a cat", (1, 2), stopped=i % 2 == 0) for i in range(len(asked))]
    scores = instructions_followed(asked, written, {"max_new": 9})
    followed = [each.follows("a cat") for each in asked]
    assert scores["followed"].value == sum(followed) / 30
    assert scores["empty_answers"].value == 0
    assert scores["echoed_questions"].value == sum(each.follows(each.question) for each in asked) / 30
    assert scores["lower_case"].value == 1
    assert scores["upper_case"].value == 0
    assert scores["stop_rate"].value == 0.5
    assert scores["answer_tokens"].value == 2
    json.dumps(scores.as_dict())
    with pytest.raises(EvaluationError, match="no question is asked"):
        instructions_followed([], [], {})
