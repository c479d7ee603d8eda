"""Rules on the form of an answer that a program can check, in the manner of IFEval.

Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models" (arXiv:2311.07911).  The
rules and their wording are Wordloom's own, so scores are not comparable with those of IFEval.  As there, an
empty answer follows no rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

Check = Callable[[str], bool]


class Asked(NamedTuple):
    """A sentence that asks for a form, and the check of an answer."""

    text: str
    check: Check


@dataclass(frozen=True)
class Rule:
    """A kind of form.

    Attributes:
        name: its name in scores.
        ask: draws one of its wordings, and the numbers and words in it; it gets the subject of the question.
    """

    name: str
    ask: Callable[[Random, str], Asked]

    def asked(self, random: Random, subject: str) -> Asked:
        """Draw a wording; its check refuses an answer without a character other than white space."""
        text, check = self.ask(random, subject)
        return Asked(text, lambda answer: bool(answer.strip()) and check(answer.strip()))


def words(text: str) -> list[str]:
    """Return the words of ``text``: letters and digits, perhaps with apostrophes or hyphens inside."""
    return re.findall(r"\w+(?:['\N{RIGHT SINGLE QUOTATION MARK}-]\w+)*", text)


def sentences(text: str) -> list[str]:
    """Return the sentences of ``text``, which end with a full stop, a question or an exclamation mark."""
    return [part for part in re.split(r"(?<=[.!?])[\"')\]]*\s+", text) if words(part)]


def _holds(word: str) -> Check:
    pattern = re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE)
    return lambda answer: pattern.search(answer) is not None


def _lines(pattern: str) -> Callable[[str], int]:
    return lambda answer: len(re.findall(pattern, answer, re.MULTILINE))


def _lower_case(random: Random, subject: str) -> Asked:
    text = random.choice(["Use only lower-case letters.", "Write everything in lower case."])
    return Asked(text, lambda answer: answer == answer.lower() and answer != answer.upper())


def _upper_case(random: Random, subject: str) -> Asked:
    text = random.choice(["Use only capital letters.", "Write everything in upper case."])
    return Asked(text, lambda answer: answer == answer.upper() and answer != answer.lower())


def _no_commas(random: Random, subject: str) -> Asked:
    return Asked(random.choice(["Do not use commas.", "Use no comma."]), lambda answer: "," not in answer)


def _at_most_words(random: Random, subject: str) -> Asked:
    n = random.choice([5, 10, 15, 20])
    text = random.choice([f"Use at most {n} words.", f"Answer in no more than {n} words."])
    return Asked(text, lambda answer: 0 < len(words(answer)) <= n)


def _at_least_words(random: Random, subject: str) -> Asked:
    n = random.choice([20, 30, 40])
    text = random.choice([f"Use at least {n} words.", f"Answer in {n} words or more."])
    return Asked(text, lambda answer: len(words(answer)) >= n)


def _sentences(random: Random, subject: str) -> Asked:
    n = random.choice([1, 2, 3])
    noun = "sentence" if n == 1 else "sentences"
    text = random.choice([f"Use exactly {n} {noun}.", f"Answer in {n} {noun}."])
    return Asked(text, lambda answer: len(sentences(answer)) == n)


def _bullet_points(random: Random, subject: str) -> Asked:
    n, count = random.choice([2, 3, 4]), _lines(r"^\s*[-*] +\S")
    text = random.choice(
        [
            f'Give exactly {n} bullet points that begin with "- ".',
            f'Answer with {n} lines, each a bullet point such as "- this".',
        ]
    )
    return Asked(text, lambda answer: count(answer) == n)


def _numbered_list(random: Random, subject: str) -> Asked:
    n = random.choice([2, 3, 4])
    text = random.choice(
        [f"Give a numbered list of {n} points.", f"Answer with {n} lines, numbered from 1 to {n}."]
    )

    def check(answer: str) -> bool:
        found = re.findall(r"^\s*(\d+)[.)] +\S", answer, re.MULTILINE)
        return found == [str(number) for number in range(1, n + 1)]

    return Asked(text, check)


def _json_object(random: Random, subject: str) -> Asked:
    text = random.choice(["Answer with a JSON object only.", "Write the answer as one JSON object."])

    def check(answer: str) -> bool:
        inner = re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", answer, re.DOTALL)
        try:
            return isinstance(json.loads(inner.group(1) if inner else answer), dict)
        except (ValueError, RecursionError):
            return False

    return Asked(text, check)


_KEYWORDS = ("often", "people", "because", "small", "together", "every", "water", "first")


def _keyword(random: Random, subject: str) -> Asked:
    word = random.choice(_KEYWORDS)
    text = random.choice([f'Use the word "{word}".', f'The answer must contain the word "{word}".'])
    return Asked(text, _holds(word))


def _forbidden_word(random: Random, subject: str) -> Asked:
    word = subject.split()[-1]
    text = random.choice([f'Do not use the word "{word}".', f'Avoid the word "{word}".'])
    return Asked(text, lambda answer: not _holds(word)(answer))


_BEGINNINGS = ("Well", "In short", "Of course", "Today")
_ENDINGS = ("That is all.", "Is there anything else?", "Thank you.")


def _beginning(random: Random, subject: str) -> Asked:
    phrase = random.choice(_BEGINNINGS)
    text = random.choice([f'Begin the answer with "{phrase}".', f'Let "{phrase}" be the first words.'])
    return Asked(text, lambda answer: re.match(rf"{phrase}\b", answer) is not None)


def _ending(random: Random, subject: str) -> Asked:
    phrase = random.choice(_ENDINGS)
    text = random.choice([f'End the answer with "{phrase}"', f'The last words must be "{phrase}"'])
    return Asked(text, lambda answer: answer.endswith(phrase))


def _quotation_marks(random: Random, subject: str) -> Asked:
    text = random.choice(
        ["Put the whole answer in double quotation marks.", "Begin and end with a double quotation mark."]
    )
    pairs = [('"', '"'), ("\N{LEFT DOUBLE QUOTATION MARK}", "\N{RIGHT DOUBLE QUOTATION MARK}")]
    return Asked(
        text,
        lambda answer: len(answer) > 2 and any(answer[0] == a and answer[-1] == b for a, b in pairs),
    )


def _paragraphs(random: Random, subject: str) -> Asked:
    n = random.choice([2, 3])
    text = random.choice(
        [
            f"Write exactly {n} paragraphs with an empty line between them.",
            f"Divide the answer into {n} paragraphs by empty lines.",
        ]
    )

    def check(answer: str) -> bool:
        return len([part for part in re.split(r"\n[ \t]*\n", answer) if part.strip()]) == n

    return Asked(text, check)


#: All rules, in the order of scores.
RULES: tuple[Rule, ...] = (
    Rule("lower_case", _lower_case),
    Rule("upper_case", _upper_case),
    Rule("no_commas", _no_commas),
    Rule("at_most_words", _at_most_words),
    Rule("at_least_words", _at_least_words),
    Rule("sentences", _sentences),
    Rule("bullet_points", _bullet_points),
    Rule("numbered_list", _numbered_list),
    Rule("json_object", _json_object),
    Rule("keyword", _keyword),
    Rule("forbidden_word", _forbidden_word),
    Rule("beginning", _beginning),
    Rule("ending", _ending),
    Rule("quotation_marks", _quotation_marks),
    Rule("paragraphs", _paragraphs),
)
