"""The drafters that a user can ask for by name: see :mod:`wordloom.generate.speculation`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from wordloom.data import prepare
from wordloom.data.cache import cache_folder, reused_or_written
from wordloom.errors import DataError, GenerationError, did_you_mean
from wordloom.generate.speculation import CorpusNgrams, Lookup, NewDrafter
from wordloom.recipe.data import TextData
from wordloom.run.prepare import recipe_corpus, recipe_of

log = logging.getLogger(__name__)

SPECULATIONS = ("lookup", "corpus")
MOST_TOKENS = 1 << 24
"""The number of training tokens whose n-grams are counted; counting more takes long."""


def drafter_named(name: str, folder: Path | None, tokenizer: Any) -> NewDrafter:
    """Return what makes a drafter for each row: "lookup" or "corpus".

    "corpus" counts the n-grams of the first ``MOST_TOKENS`` training tokens of the run in ``folder``, and
    keeps them in the cache folder.

    Raises GenerationError for another name, and for "corpus" without a recipe that names training text or
    without the text.
    """
    if name not in SPECULATIONS:
        known = did_you_mean(name, SPECULATIONS) if isinstance(name, str) else "allowed: lookup, corpus"
        raise GenerationError(f"unknown speculation {name!r}; {known}")
    if name == "lookup":
        return Lookup
    recipe = None if folder is None else recipe_of(folder)
    if recipe is None or tokenizer is None or not isinstance(recipe.data, TextData):
        raise GenerationError(
            f"speculation 'corpus' needs the recipe of a run on text, which {folder} lacks; use 'lookup'"
        )
    specials = recipe.data_as(TextData).specials
    try:
        shards = prepare(recipe_corpus(recipe), tokenizer, part="train", specials=specials)
    except DataError as error:
        raise GenerationError(
            f"speculation 'corpus' reads the training text: {error}; or use 'lookup'"
        ) from None
    target = cache_folder(None) / "ngrams" / f"{shards.fingerprint[:32]}-{MOST_TOKENS}"

    def write(place: Path) -> None:
        log.warning("counting the n-grams of the training text, once ...")
        tokens = shards.tokens(0, min(len(shards), MOST_TOKENS))
        arrays: dict[str, Any] = CorpusNgrams.count(tokens, tokenizer.vocab_size).arrays()
        place.mkdir()
        np.savez(place / "ngrams.npz", **arrays)

    def read() -> CorpusNgrams:
        try:
            with np.load(target / "ngrams.npz", allow_pickle=False) as stored:
                return CorpusNgrams.from_arrays(dict(stored))
        except (OSError, KeyError, ValueError) as error:
            raise DataError(f"{target} does not hold n-grams: {error}") from None

    return reused_or_written(target, read, write, name="n-grams", doing="counting the same n-grams")
