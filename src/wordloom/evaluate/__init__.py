"""Scoring models: every score carries an interval, where one is defined, and a signature of its settings.

:func:`perplexity` scores any text (loss, perplexity, bits per byte); :func:`lambada` last words;
:func:`classification` labelled rows (accuracy, macro-F1); :func:`class_agreement` predicted classes (F1 of
one, Matthews), :func:`number_agreement` numbers (Pearson, Spearman), :func:`tag_agreement` labels of words,
and entities, each from predictions alone; :func:`answer_scores` the answers that :func:`find_answers` finds
in texts, as SQuAD's scripts do; :func:`bleu`, :func:`chrf` and, by the lengths of sources,
:func:`bleu_by_length` translations;
:func:`evaluate_batches` an objective over batches, while training runs.  :mod:`wordloom.evaluate.references`
measures what a compressor and an n-gram make of the same bytes.
"""

from wordloom.evaluate.agreement import class_agreement, confusion_of, number_agreement
from wordloom.evaluate.answers import (
    Found,
    Span,
    answer_scores,
    exact_match,
    f1_score,
    find_answers,
    normalize_answer,
)
from wordloom.evaluate.batches import evaluate_batches
from wordloom.evaluate.classification import classification, judge
from wordloom.evaluate.glue import GLUE, GlueTask, glue_task
from wordloom.evaluate.lambada import Passage, lambada, passages
from wordloom.evaluate.perplexity import perplexity, strided_windows
from wordloom.evaluate.score import RatioStatistics, Score, Scores, signature
from wordloom.evaluate.tags import Entity, entities, tag_agreement
from wordloom.evaluate.translation import LengthBin, bleu, bleu_by_length, chrf

__all__ = [
    "GLUE",
    "Entity",
    "Found",
    "GlueTask",
    "LengthBin",
    "Passage",
    "RatioStatistics",
    "Score",
    "Scores",
    "Span",
    "answer_scores",
    "bleu",
    "bleu_by_length",
    "chrf",
    "class_agreement",
    "classification",
    "confusion_of",
    "entities",
    "evaluate_batches",
    "exact_match",
    "f1_score",
    "find_answers",
    "glue_task",
    "judge",
    "lambada",
    "normalize_answer",
    "number_agreement",
    "passages",
    "perplexity",
    "signature",
    "strided_windows",
    "tag_agreement",
]
