"""Load a checkpoint, train a recipe, evaluate and predict: the functions that the command line calls."""

from wordloom.run.checkpoint.average import average
from wordloom.run.checkpoint.kinds import load, load_as, save
from wordloom.run.models.clusters import Clusters, cluster_texts
from wordloom.run.models.embedder import Embedded, Embedder
from wordloom.run.models.heads.classification import TextClassifier
from wordloom.run.models.language_model import LanguageModel
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
    "load",
    "load_as",
    "save",
    "train",
    "translation_scores",
]
