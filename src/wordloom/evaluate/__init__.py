"""Score models: every score has a signature of its settings and, where one is defined, an interval.

- :func:`perplexity` scores any text: loss, perplexity, bits per byte; :func:`lambada` scores last words.
- :func:`acceptability` scores minimal pairs of sentences, and :func:`choices` multiple-choice questions, by
  likelihood.
- :func:`classification` scores a classifier on labelled rows. :func:`class_agreement`,
  :func:`number_agreement` and :func:`tag_agreement` score predictions alone: classes, numbers, and labels of
  words with their entities.
- :func:`find_answers` finds answers in texts, and :func:`answer_scores` scores them as SQuAD does.
- :func:`bleu`, :func:`chrf` and :func:`bleu_by_length` score translations.
- :func:`evaluate_batches` computes the loss of an objective during training.
- :mod:`wordloom.evaluate.baselines` computes two baselines for bits per byte.
"""

from wordloom.evaluate.agreement import (
    GLUE,
    GlueTask,
    class_agreement,
    confusion_of,
    glue_task,
    number_agreement,
)
from wordloom.evaluate.choices import choices
from wordloom.evaluate.classification import classification, judge
from wordloom.evaluate.forward import evaluate_batches
from wordloom.evaluate.lambada import Passage, lambada, passages
from wordloom.evaluate.minimal_pairs import acceptability
from wordloom.evaluate.perplexity import perplexity, strided_windows
from wordloom.evaluate.question_answering import (
    Found,
    Span,
    answer_scores,
    exact_match,
    f1_score,
    find_answers,
    normalize_answer,
)
from wordloom.evaluate.score import RatioStatistics, Score, Scores, signature
from wordloom.evaluate.token_classification import Entity, entities, tag_agreement
from wordloom.evaluate.translation import LengthBin, bleu, bleu_by_length, chrf

__all__ = [
    "GLUE", "Entity", "Found", "GlueTask", "LengthBin", "Passage", "RatioStatistics", "Score", "Scores",
    "Span", "acceptability", "answer_scores", "bleu", "bleu_by_length", "choices", "chrf",
    "class_agreement", "classification", "confusion_of", "entities", "evaluate_batches", "exact_match",
    "f1_score", "find_answers", "glue_task", "judge", "lambada", "normalize_answer", "number_agreement",
    "passages", "perplexity", "signature", "strided_windows", "tag_agreement",
]  # fmt: skip
