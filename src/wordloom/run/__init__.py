"""Where the parts of the house meet: load a folder, train a recipe.  The command line calls these."""

from wordloom.run.load import LanguageModel, load, save
from wordloom.run.train import TrainResult, train

__all__ = ["LanguageModel", "TrainResult", "load", "save", "train"]
