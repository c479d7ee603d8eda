"""Where the parts of the house meet: load a folder, train a recipe.  The command line calls these."""

from wordloom.run.checkpoint.average import average
from wordloom.run.checkpoint.load import (
    is_classifier,
    is_encoder,
    is_translator,
    load,
    load_classifier,
    load_encoder,
    load_language_model,
    load_translator,
    save,
)
from wordloom.run.models.clusters import Clusters, cluster_texts
from wordloom.run.models.embedder import Embedded, Embedder
from wordloom.run.models.language_model import LanguageModel
from wordloom.run.models.text_classifier import TextClassifier
from wordloom.run.models.text_encoder import TextEncoder
from wordloom.run.models.translator import Translation, Translator
from wordloom.run.tasks.translation.scores import translation_scores
from wordloom.run.train import TrainResult, train

__all__ = [
    "Clusters",
    "Embedded",
    "Embedder",
    "LanguageModel",
    "TextClassifier",
    "TextEncoder",
    "TrainResult",
    "Translation",
    "Translator",
    "average",
    "cluster_texts",
    "is_classifier",
    "is_encoder",
    "is_translator",
    "load",
    "load_classifier",
    "load_encoder",
    "load_language_model",
    "load_translator",
    "save",
    "train",
    "translation_scores",
]
