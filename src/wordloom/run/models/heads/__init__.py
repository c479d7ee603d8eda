"""The objects that ``wordloom.load`` returns for models with a head: one file for each task.

A further task is one file with a :class:`~wordloom.run.models.heads.head.Head`, and one line here.
"""

from wordloom.run.models.heads.classification import TextClassifier
from wordloom.run.models.heads.head import Head
from wordloom.run.models.heads.multiple_choice import MultipleChoice
from wordloom.run.models.heads.question_answering import QuestionAnswerer
from wordloom.run.models.heads.regression import TextRegressor
from wordloom.run.models.heads.token_classification import TokenClassifier

__all__ = ["HEADS", "Head"]

HEADS: dict[str, type[Head]] = {
    "classification": TextClassifier,
    "regression": TextRegressor,
    "multiple_choice": MultipleChoice,
    "token_classification": TokenClassifier,
    "question_answering": QuestionAnswerer,
}
