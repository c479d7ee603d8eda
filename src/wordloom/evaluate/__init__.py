"""Scoring models: every score carries an interval, where one is defined, and a signature of its settings.

:func:`perplexity` scores any text (loss, perplexity, bits per byte); :func:`lambada` last words;
:func:`classification` labelled rows (accuracy, macro-F1); :func:`bleu`, :func:`chrf` and, by the lengths of
sources, :func:`bleu_by_length` translations;
:func:`evaluate_batches` an objective over batches, while training runs.  :mod:`wordloom.evaluate.references`
measures what a compressor and an n-gram make of the same bytes.
"""

from wordloom.evaluate.batches import evaluate_batches
from wordloom.evaluate.classification import classification, judge
from wordloom.evaluate.lambada import Passage, lambada, passages
from wordloom.evaluate.perplexity import perplexity, strided_windows
from wordloom.evaluate.score import RatioStatistics, Score, Scores, signature
from wordloom.evaluate.translation import LengthBin, bleu, bleu_by_length, chrf

__all__ = [
    "LengthBin",
    "Passage",
    "RatioStatistics",
    "Score",
    "Scores",
    "bleu",
    "bleu_by_length",
    "chrf",
    "classification",
    "evaluate_batches",
    "judge",
    "lambada",
    "passages",
    "perplexity",
    "signature",
    "strided_windows",
]
