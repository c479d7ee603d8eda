"""How the text of a run became words, so that other texts become the same words."""

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

__all__ = ["WordRule", "kept_rule", "word_rule"]


@dataclass(frozen=True)
class WordRule:
    """From a text to its words.

    Attributes:
        split, lower: see :func:`wordloom.vectors.split_words`.
        phrases: what joins words, one after another.
    """

    split: str = "words"
    lower: bool = True
    phrases: Sequence[Phrases] = ()

    def __call__(self, text: str) -> list[str]:
        words = split_words(text, split=self.split, lower=self.lower)
        for one in self.phrases:
            words = one.join(words)
        return words

    def __str__(self) -> str:
        joined = ", phrases joined" if self.phrases else ""
        return f"split {self.split!r}, {'lower case' if self.lower else 'case kept'}{joined}"


def word_rule(path: str | os.PathLike[str]) -> WordRule | None:
    """How the run in the folder ``path`` made words, or the one that the vectors there were converted from;
    None where nothing says so: of a file, and of vectors that are not ours.

    Raises VectorError where what says so is damaged.
    """
    folder = Path(path)
    try:
        settings = _settings(folder)
        if settings is None:
            return None
        phrases = read_phrases(folder) if settings["phrases"] else ()
        if len(phrases) != settings["phrases"]:
            raise ValueError(f"{settings['phrases']} passes of phrases were made, {len(phrases)} are kept")
        return WordRule(str(settings["split"]), bool(settings["lower"]), phrases)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VectorError(
            f"what '{folder}' keeps of how its words were made is damaged ({error}); put it back"
        ) from None


def kept_rule(rule: WordRule) -> dict[str, Any]:
    """What :func:`word_rule` reads again, for ``vectors.json``; its phrases go into a file of their own."""
    return {"split": rule.split, "lower": rule.lower, "phrases": len(rule.phrases)}


def _settings(folder: Path) -> Any:
    """What :func:`kept_rule` gave, as where other vectors have replaced a run's; else the table
    ``[words]`` of the run's recipe."""
    if (folder / "vectors.json").is_file():
        about = json.loads((folder / "vectors.json").read_text(encoding="utf-8"))
        if "word_rule" in about:
            return about["word_rule"]
    if (folder / "recipe.toml").is_file():
        return tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8")).get("words")
    return None
