"""The tokenizers that a translation recipe asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wordloom.data import PairCorpus
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.run.models.vocabularies import Vocabularies
from wordloom.run.prepare import recipe_tokenizer

__all__ = ["recipe_vocabularies"]


def recipe_vocabularies(recipe: Recipe, corpus: PairCorpus, progress: TrainingProgress) -> Vocabularies:
    """Return the tokenizers that ``[tokenizer]`` asks for: read, or trained on both sides or on each."""

    def texts(*sides: int) -> Iterator[str]:
        return ((pair.source, pair.target)[side] for pair in corpus.pairs("train") for side in sides)

    t = recipe.tokenizer
    if not t.separate and t.source_path is None:
        joint = recipe_tokenizer(recipe, texts(0, 1), progress, "pairs, both sides").with_end()
        return Vocabularies(joint, joint)
    changes: dict[str, Any] = {"path": t.source_path, "vocab_size": t.source_vocab_size or t.vocab_size}
    of_sources = recipe.model_copy(update={"tokenizer": t.model_copy(update=changes)})
    return Vocabularies(
        recipe_tokenizer(of_sources, texts(0), progress, "pairs' sources").with_end(),
        recipe_tokenizer(recipe, texts(1), progress, "pairs' targets").with_end(),
    )
