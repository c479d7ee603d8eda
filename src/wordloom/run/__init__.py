"""Where the parts of the house meet: load a folder, train a recipe.  The command line calls these."""

from wordloom.run.averaging import average
from wordloom.run.classifier import TextClassifier
from wordloom.run.clusters import Clusters, cluster_texts
from wordloom.run.embedding import Embedded, Embedder
from wordloom.run.encoder import TextEncoder, is_encoder, load_encoder
from wordloom.run.load import (
    LanguageModel,
    is_classifier,
    is_translator,
    load,
    load_classifier,
    load_language_model,
    save,
)
from wordloom.run.train import TrainResult, train
from wordloom.run.translation_scores import translation_scores
from wordloom.run.translator import Translation, Translator, load_translator

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
