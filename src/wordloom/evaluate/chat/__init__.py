"""Score models that answer: the likelihood of given answers, and rules that their own answers should follow.

answers       bits per byte of given answers; how own answers end and repeat themselves
instructions  questions that ask for a form, such as three bullet points, and the score of their answers
rules         the forms, each with its wording and its check
"""

from wordloom.evaluate.chat.answers import Answer, AnswerLikelihood, answer_likelihood, repetition
from wordloom.evaluate.chat.instructions import Instruction, instructions, instructions_followed
from wordloom.evaluate.chat.rules import RULES, Rule

__all__ = [
    "RULES",
    "Answer",
    "AnswerLikelihood",
    "Instruction",
    "Rule",
    "answer_likelihood",
    "instructions",
    "instructions_followed",
    "repetition",
]
