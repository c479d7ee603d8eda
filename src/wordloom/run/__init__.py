"""Where the parts of the house meet: load a folder, train a recipe.  The command line calls these."""

from wordloom.run.classifier import TextClassifier
from wordloom.run.load import LanguageModel, is_classifier, load, load_classifier, load_language_model, save
from wordloom.run.train import TrainResult, train
from wordloom.run.translator import Translation, Translator, load_translator

__all__ = [
    "LanguageModel",
    "TextClassifier",
    "TrainResult",
    "Translation",
    "Translator",
    "is_classifier",
    "load",
    "load_classifier",
    "load_language_model",
    "load_translator",
    "save",
    "train",
]
