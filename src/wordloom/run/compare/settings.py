"""The settings of a comparison, and the recipe that all of its entries share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wordloom.data import Corpus
from wordloom.data.files.source import is_stdin
from wordloom.data.sets.fetch import files_of
from wordloom.errors import RecipeError, did_you_mean
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe, load_recipe
from wordloom.recipe.data import CausalData
from wordloom.recipe.reading import shipped_recipes
from wordloom.recipe.training import TrainSettings
from wordloom.run.checkpoint.kinds import OF_SETS
from wordloom.run.compare.budget import Budget, short
from wordloom.run.compare.entries import DEFAULT, NGRAM, SHARED, check_families
from wordloom.run.folder import name_of
from wordloom.run.prepare import recipe_corpus
from wordloom.text import TOKENIZERS
from wordloom.text.special import ROLE_NAMES, roles_by_name

_VOCABULARY = 4096
_MARKS = ("cls", "sep", "pad", "mask")  # the special tokens that encoders need


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a comparison, which a folder is continued with.

    Attributes:
        source: a recipe, or a corpus: files, folders, globs or a data set.
        budget: how long each model trains, once for each seed.
        families: names in FAMILIES, and "ngram".
        parameters: the sizes of the models with embeddings; empty: that of the recipe's model.
        recipes: further recipes to enter.
        tokenizer: the kind of tokenizer; None: that of the recipe, else bpe.
        seeds: how many seeds each entry trains with.
        rates: how many learning rates are tried.
        tasks: data sets to score the models on by likelihood, such as blimp.
        prompt: the beginning of the samples; None: the first words of the held-out text.
        overrides: settings of the recipe, as key=value.
    """

    source: str
    budget: Budget
    families: Sequence[str] = DEFAULT
    parameters: Sequence[float] = ()
    recipes: Sequence[str] = ()
    tokenizer: str | None = None
    seeds: int = 3
    rates: int = 5
    tasks: Sequence[str] = ()
    prompt: str | None = None
    overrides: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_families(list(self.families))
        if not self.families and not self.recipes:
            raise RecipeError("there is nothing to compare; name models with --families or --entry")
        if not 1 <= self.rates <= 5:
            raise RecipeError(f"--rates {self.rates}: 1 to 5 learning rates can be tried")
        if self.seeds < 1:
            raise RecipeError(f"--seeds {self.seeds}: train with at least one seed")
        if self.tokenizer is not None and self.tokenizer not in TOKENIZERS:
            raise RecipeError(f"--tokenizer {self.tokenizer!r}: {did_you_mean(self.tokenizer, TOKENIZERS)}")
        for name in self.tasks:
            if files_of(name)[0].task not in OF_SETS:
                raise RecipeError(
                    f"--task {name!r}: this set was made for {files_of(name)[0].task}; allowed: sets for "
                    f"{', '.join(OF_SETS)}"
                )
        for number in self.parameters:
            if [short(other) for other in self.parameters].count(short(number)) > 1:
                raise RecipeError(f"--parameters names {short(number)} twice; give sizes that differ more")

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "budget": str(self.budget)}


def base_recipe(settings: Settings, progress: TrainingProgress) -> Recipe:
    """Return the recipe whose text, tokenizer and batches all entries share."""
    source, overrides = settings.source, list(settings.overrides)
    _check_overrides(overrides)
    if source in shipped_recipes() or source.endswith(".toml") or (Path(source) / "recipe.toml").exists():
        recipe = _with_tokenizer(settings.tokenizer, source, overrides, progress)
    else:
        values: dict[str, Any] = {
            "name": name_of(source, default="corpus"),
            "data": {"train": source},
            "tokenizer": _new_tokenizer(settings.tokenizer or "bpe"),
            "model": {"family": "llama"},
            "train": {"seq_len": 256, "batch_size": 16, "steps": 1, "evaluate_windows": 200},
        }  # fmt: skip
        recipe = load_recipe(Recipe.model_validate(values), overrides, say=progress.say)
        if not settings.parameters and any(name != NGRAM for name in settings.families):
            corpus = recipe_corpus(recipe)
            if isinstance(corpus, Corpus):
                next(iter(corpus.documents("train")), None)  # raises for a source that is not there
            raise RecipeError("a corpus does not say how large the models are; give --parameters, such as 1M")
    if recipe.train.objective not in ("causal_lm", "truncated_bptt"):
        raise RecipeError(
            f"{source}: train.objective {recipe.train.objective!r} predicts no next tokens; give a recipe "
            "with causal_lm"
        )
    for part in (recipe.data.train, recipe.data.validation or ()):
        if any(map(is_stdin, [part] if isinstance(part, str) else part)):
            raise RecipeError(
                "a comparison reads its text for every model, standard input only once; name a file"
            )
    if not recipe.data.holds_out:
        raise RecipeError(
            "nothing is held out to compare on; set data.validation or data.validation_fraction"
        )
    if recipe.start_from is not None or recipe.data_as(CausalData).label_prefix:
        raise RecipeError(
            f"{source}: a comparison trains models from scratch on running text; leave out start_from and "
            "data.label_prefix"
        )
    return _without_unknown(recipe)


def _new_tokenizer(kind: str) -> dict[str, Any]:
    """Return the settings of a tokenizer of this kind."""
    return {"kind": kind, **({} if kind in ("byte", "char") else {"vocab_size": _VOCABULARY})}


def _with_tokenizer(
    kind: str | None, source: str, overrides: Sequence[str], progress: TrainingProgress
) -> Recipe:
    """Return the recipe in ``source``; a tokenizer of another ``kind`` replaces its own whole."""
    own = [each for each in overrides if each.strip().startswith("tokenizer.")]
    recipe = load_recipe(source, [each for each in overrides if each not in own], say=progress.say)
    if kind is not None and kind != recipe.tokenizer.kind:
        recipe = Recipe.model_validate({**recipe.as_dict(), "tokenizer": _new_tokenizer(kind)})
    return load_recipe(recipe, own, say=progress.say)


def _check_overrides(overrides: Sequence[str]) -> None:
    """Raise RecipeError for a key that the comparison decides, and that would have no effect."""
    shared = [f"train.{name}" for name in SHARED]
    for override in overrides:
        key, equals, _ = override.partition("=")
        key = key.strip()
        if not equals:
            raise RecipeError(
                f"{override} is no KEY=VALUE; a comparison reads one text or recipe, so quote a pattern such "
                "as '*.txt'"
            )
        if key == "seed" or key in shared or key.startswith(("data.", "tokenizer.")):
            continue
        if key.startswith("train.") and key.removeprefix("train.") not in TrainSettings.model_fields:
            continue  # the recipe refuses it, and names similar keys
        if key.startswith("model."):
            raise RecipeError(
                f"{key}: the comparison sizes its models by --parameters; enter a model of your own with "
                "--entry"
            )
        raise RecipeError(
            f"{key}: the comparison decides it; allowed: seed, data.*, tokenizer.*, {', '.join(shared)}"
        )


def _without_unknown(recipe: Recipe) -> Recipe:
    """Return ``recipe`` without a token for unknown characters, which would make bits per byte undefined."""
    t = recipe.tokenizer
    if t.kind != "char" or t.special_tokens is not None:
        return recipe
    tokens = TOKENIZERS["char"].special_tokens
    kept = [token for token in tokens if token not in ROLE_NAMES["unk"]]
    values = recipe.as_dict()
    return Recipe.model_validate({**values, "tokenizer": {**values["tokenizer"], "special_tokens": kept}})


def with_marks(recipe: Recipe) -> Recipe:
    """Return ``recipe`` with the special tokens that encoders need in its tokenizer."""
    kind, names = recipe.tokenizer.kind, recipe.tokenizer.special_tokens
    if kind is None:
        return recipe
    tokens = list(names if names is not None else TOKENIZERS[kind].special_tokens)
    missing = [role for role in _MARKS if role not in roles_by_name(tokens)]
    tokens += [ROLE_NAMES[role][0] for role in missing]
    values = recipe.as_dict()
    return Recipe.model_validate({**values, "tokenizer": {**values["tokenizer"], "special_tokens": tokens}})
