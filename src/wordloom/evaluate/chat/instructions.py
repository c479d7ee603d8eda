"""Questions that ask for a form, and how often a model's answers have it; see :mod:`.rules`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from wordloom.errors import EvaluationError
from wordloom.evaluate.chat.answers import Answer, answers_written
from wordloom.evaluate.chat.rules import RULES, Check
from wordloom.evaluate.score import Scores, share_score

PER_RULE = 20  # questions, unless another number is asked for

_REQUESTS = ("Describe {}.", "Write about {}.", "Tell me about {}.", "Say something about {}.")
_SUBJECTS = (
    "the sea", "a cat", "a good friend", "the moon", "bread", "an old house", "a teacher", "the winter",
    "a river", "music", "a horse", "the city", "a garden", "coffee", "a train", "the rain", "a doctor",
    "a book", "the forest", "a king", "football", "a letter", "the school", "a bird", "the market", "a ship",
    "fire", "a dream", "the mountain", "a bicycle",
)  # fmt: skip


@dataclass(frozen=True)
class Instruction:
    """A question that asks for a form.

    Attributes:
        rule: the name of the rule.
        question: the text.
        follows: returns whether an answer has the form.
    """

    rule: str
    question: str
    follows: Check


def instructions(per_rule: int = PER_RULE, seed: int = 0) -> list[Instruction]:
    """Return ``per_rule`` questions for each of the rules, in turn; ``seed`` draws subjects and wordings."""
    random = Random(seed)
    made = []
    for _ in range(per_rule):
        for rule in RULES:
            subject = random.choice(_SUBJECTS)
            request = random.choice(_REQUESTS).format(subject)
            text, check = rule.asked(random, subject)
            made.append(Instruction(rule.name, f"{request} {text}", check))
    return made


def instructions_followed(
    asked: Sequence[Instruction],
    written: Sequence[Answer],
    settings: dict[str, object],
) -> Scores:
    """Return the share of the answers that follow their rule: of all, and of each rule.

    The scores also hold the shares for an answer that is empty and for one that repeats the question, which
    show how much a model gets for nothing; and stop rate and repetition (see :func:`.answers_written`).

    Args:
        asked: the questions.
        written: the answer to each.
        settings: the settings of the signature.

    Raises EvaluationError without a question.
    """
    if not asked:
        raise EvaluationError("no question is asked; ask at least one")
    followed = [each.follows(answer.text) for each, answer in zip(asked, written, strict=True)]
    controls = {
        "empty_answers": [each.follows("") for each in asked],
        "echoed_questions": [each.follows(each.question) for each in asked],
    }
    by_rule: dict[str, list[bool]] = {}
    for each, ok in zip(asked, followed, strict=True):
        by_rule.setdefault(each.rule, []).append(ok)
    shares = {"followed": followed, **controls, **by_rule}
    scores = [share_score(name, sum(oks), len(oks), settings) for name, oks in shares.items()]
    counts = {"instructions": len(asked), "followed": sum(followed)}
    return Scores((*scores, *answers_written(written, settings)), counts)
