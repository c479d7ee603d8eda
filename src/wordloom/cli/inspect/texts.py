"""The texts that a view reads."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wordloom.data import Document
    from wordloom.text import Specials


def texts_to_read(
    folder: str, file: str | None, first: int | None = None
) -> tuple[Iterable[Document], Specials]:
    """Return the ``first`` documents of ``file``, or of the validation data of the recipe in ``folder``.

    The second value says how to read special tokens in them.
    """
    from wordloom.data import documents
    from wordloom.recipe.data import TextData
    from wordloom.run.checkpoint.loaders import read_checkpoint
    from wordloom.run.prepare import recipe_corpus

    if file is not None:
        return islice(documents([file]), first), "refuse"
    recipe = read_checkpoint(folder).validation_recipe
    return islice(recipe_corpus(recipe).documents("validation"), first), recipe.data_as(TextData).specials
