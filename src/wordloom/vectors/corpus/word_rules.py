"""How a run splits text into words, so that other texts can be split in the same way."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wordloom.errors import VectorError
from wordloom.vectors.corpus.phrases import Phrases, read_phrases
from wordloom.vectors.corpus.vocabulary import split_words


@dataclass(frozen=True)
class WordRule:
    """A function from a text to its words.

    Attributes:
        split, lower: see :func:`wordloom.vectors.split_words`.
        phrases: the passes that join words.
    """

    split: str = "words"
    lower: bool = True
    phrases: Sequence[Phrases] = ()

    def __call__(self, text: str) -> list[str]:
        return split_words(text, split=self.split, lower=self.lower, phrases=self.phrases)

    def __str__(self) -> str:
        joined = ", phrases joined" if self.phrases else ""
        return f"split {self.split!r}, {'lower case' if self.lower else 'case kept'}{joined}"


def word_rule(path: str | os.PathLike[str]) -> WordRule | None:
    """Return how the run in the folder ``path``, or the run its vectors were converted from, splits text.

    Return None for a file, and for vectors of other tools.  Raises VectorError for a damaged folder.
    """
    folder = Path(path)
    try:
        settings = _settings(folder)
        if settings is None:
            return None
        phrases = read_phrases(folder) if settings["phrases"] else ()
        if len(phrases) != settings["phrases"]:
            raise ValueError(
                f"there should be {settings['phrases']} passes of phrases, and there are {len(phrases)}"
            )
        return WordRule(str(settings["split"]), bool(settings["lower"]), phrases)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VectorError(
            f"the settings for splitting text in '{folder}' are damaged ({error}); restore them"
        ) from None


def saved_rule(rule: WordRule) -> dict[str, Any]:
    """Return the entry of ``vectors.json`` that :func:`word_rule` reads; phrases have a file of their own."""
    return {"split": rule.split, "lower": rule.lower, "phrases": len(rule.phrases)}


def _settings(folder: Path) -> Any:
    """Return the entry that :func:`saved_rule` made, or the table ``[words]`` of the run's recipe."""
    if (folder / "vectors.json").is_file():
        about = json.loads((folder / "vectors.json").read_text(encoding="utf-8"))
        if "word_rule" in about:
            return about["word_rule"]
    if (folder / "recipe.toml").is_file():
        return tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8")).get("words")
    return None
