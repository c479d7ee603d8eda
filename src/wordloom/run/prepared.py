"""Prepared tokens that a recipe names in place of text, and their tokenizer."""

from __future__ import annotations

from wordloom.data.shards.datatrove import SUFFIX
from wordloom.data.shards.prepared import PreparedCorpus, names_prepared
from wordloom.errors import RecipeError
from wordloom.recipe import Recipe
from wordloom.recipe.data import TextData
from wordloom.text import Tokenizer

#: The keys of ``[data]`` that prepared tokens leave open.
_OF_PREPARED = {
    "train",
    "validation",
    "validation_fraction",
    "order",
    "document_mask",
    "mask_document_starts",
}


def prepared_corpus(recipe: Recipe) -> PreparedCorpus | None:
    """Return the prepared tokens that ``data.train`` names, or None if it names text.

    Raises RecipeError for keys of ``[data]`` that have no effect on prepared tokens.
    """
    d = recipe.data_as(TextData)
    named = [d.train] if isinstance(d.train, str) else d.train
    prepared = [name for name in named if names_prepared(name)]
    held_out = [d.validation] if isinstance(d.validation, str) else d.validation or []
    if not prepared:
        for name in filter(names_prepared, held_out):
            raise RecipeError(
                f"data.validation '{name}' is prepared, and data.train is text; name text for both"
            )
        return None
    for key, names in (("train", named), ("validation", held_out)):
        if len(names) > 1 and not all(name.endswith(SUFFIX) for name in names):
            first = next(filter(names_prepared, names), names[0])
            raise RecipeError(f"data.{key} names '{first}', which is prepared, beside others; name it alone")
    if recipe.train.objective == "masked_lm+next_sentence":
        raise RecipeError(
            f"data.train '{prepared[0]}' holds prepared tokens, and next sentences are found in text; name "
            'the text, or take train.objective = "masked_lm"'
        )
    unused = {name: field for name, field in type(d).model_fields.items() if name not in _OF_PREPARED}
    changed = [name for name, field in unused.items() if getattr(d, name) != field.get_default()]
    if d.validation_fraction not in (0.0, type(d).model_fields["validation_fraction"].get_default()):
        changed.append("validation_fraction")
    if changed:
        raise RecipeError(
            f"data.train '{prepared[0]}' was prepared with its own settings: leave out "
            + ", ".join(f"data.{name}" for name in changed)
        )
    if not all(map(names_prepared, held_out)):
        raise RecipeError(
            "data.validation names text, and data.train prepared tokens; prepare both in one folder, with "
            "wordloom data prepare --validation"
        )
    return PreparedCorpus(train=tuple(named), validation=tuple(held_out) or None)


def tokenizer_of_prepared(corpus: PreparedCorpus, recipe: Recipe) -> Tokenizer:
    """Return the tokenizer of prepared tokens: that of their folder, or the recipe's."""
    t = recipe.tokenizer
    if t.kind is not None:
        raise RecipeError(
            f"tokenizer.kind trains a tokenizer, and data.train '{corpus.location}' is prepared with one; "
            f"leave [tokenizer] out, or set tokenizer.path={corpus.location}/tokenizer"
        )
    path = corpus.saved_tokenizer() if t.path is None else t.path
    if path is None:
        raise RecipeError(
            f"'{corpus.location}' holds no tokenizer; name the one of its tokens: tokenizer.path"
        )
    return Tokenizer.from_pretrained(path)
