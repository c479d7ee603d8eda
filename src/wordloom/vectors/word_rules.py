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
from wordloom.vectors.phrases import Phrases
from wordloom.vectors.vocabulary import split_words
from wordloom.vectors.whole_files import new_file

__all__ = ["WordRule", "keep_word_rule", "word_rule"]

PHRASES = "phrases.json"  # as WordVocabulary.save writes it, too


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
        phrases = _phrases(folder) if settings["phrases"] else ()
        return WordRule(str(settings["split"]), bool(settings["lower"]), phrases)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VectorError(
            f"what '{folder}' keeps of how its words were made is damaged ({error}); put it back"
        ) from None


def keep_word_rule(rule: WordRule, folder: Path) -> dict[str, Any]:
    """What :func:`word_rule` reads again, for ``vectors.json``; phrases go into a file beside it.

    Raises VectorError for a place that cannot be written.
    """
    if rule.phrases:
        passes = [[[*pair, score] for pair, score in one.pairs.items()] for one in rule.phrases]
        with new_file(folder / PHRASES) as file:
            file.write(json.dumps(passes, ensure_ascii=False).encode())
    return {"split": rule.split, "lower": rule.lower, "phrases": len(rule.phrases)}


def _settings(folder: Path) -> Any:
    """What :func:`keep_word_rule` kept, as where other vectors have replaced a run's; else the table
    ``[words]`` of the run's recipe."""
    if (folder / "vectors.json").is_file():
        about = json.loads((folder / "vectors.json").read_text(encoding="utf-8"))
        if "word_rule" in about:
            return about["word_rule"]
    if (folder / "recipe.toml").is_file():
        return tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))["words"]
    return None


def _phrases(folder: Path) -> tuple[Phrases, ...]:
    passes = json.loads((folder / PHRASES).read_text(encoding="utf-8"))
    return tuple(Phrases({(a, b): score for a, b, score in one}) for one in passes)
