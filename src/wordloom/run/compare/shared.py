"""The text, the tokenizer and the entries of a comparison."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from wordloom.data import Corpus, Document
from wordloom.errors import CheckpointError, RecipeError, TokenizerError
from wordloom.evaluate.reading import tokenizer_name
from wordloom.evaluate.score import signature
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe, load_recipe
from wordloom.recipe.data import CausalData
from wordloom.run.compare.budget import short
from wordloom.run.compare.entries import FAMILIES, NGRAM, Entry, family_entry, own_entry, shape_for, shape_of
from wordloom.run.compare.folder import keep, kept
from wordloom.run.compare.held_out import HeldOut, byte_stream
from wordloom.run.compare.measuring import prompt_of
from wordloom.run.compare.settings import Settings, with_marks
from wordloom.run.prepare import corpus_tokenizer, recipe_corpus
from wordloom.text import Tokenizer


@dataclass(kw_only=True)
class Shared:
    """The text, the tokenizer and the entries of a comparison in ``folder``; each is read when it is used.

    ``base`` is the recipe of the comparison, from :func:`wordloom.run.compare.settings.base_recipe`.
    """

    settings: Settings
    base: Recipe
    folder: Path
    progress: TrainingProgress

    @cached_property
    def corpus(self) -> Corpus:
        """The training and the held-out text; raises RecipeError for prepared tokens, which hold no text."""
        corpus = recipe_corpus(self.base)
        if not isinstance(corpus, Corpus):
            raise RecipeError("a comparison reads text, and data.train names prepared tokens; name the text")
        return corpus

    @cached_property
    def documents(self) -> list[Document]:
        """The held-out documents."""
        return list(self.corpus.documents("validation"))

    @cached_property
    def held_out(self) -> HeldOut:
        """The held-out documents in the units of intervals."""
        return HeldOut(self.documents, self.tokenizer, self.base.data_as(CausalData).specials)

    @cached_property
    def prompt(self) -> str:
        """The text that all samples begin with."""
        return self.settings.prompt or prompt_of(self.documents)

    def check_prompt(self) -> None:
        """Raise RecipeError if the tokenizer cannot read the beginning of the samples."""
        try:
            self.tokenizer.prompt_ids(self.prompt, specials=self.held_out.specials)
        except TokenizerError as error:
            raise RecipeError(f"samples cannot begin with {self.prompt!r} (--prompt): {error}") from None

    @cached_property
    def tokenizer_folder(self) -> Path:
        """The folder of the tokenizer of all entries, which is trained if it is not there."""
        folder = self.folder / "tokenizer"
        if not (folder / "tokenizer.json").exists():
            recipe = self.base
            objectives = {FAMILIES[name].objective for name in self.trained_families}
            objectives |= {recipe.train.objective for recipe in self.own_recipes.values()}
            if "masked_lm" in objectives:
                recipe = with_marks(recipe)
            corpus_tokenizer(recipe, self.corpus, self.progress).save_pretrained(folder)
        return folder

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of all entries."""
        return Tokenizer.from_pretrained(self.tokenizer_folder)

    @cached_property
    def own_recipes(self) -> dict[str, Recipe]:
        """The entered recipes by their paths; one that was removed is read from the copy in the folder."""
        found = {}
        for path in self.settings.recipes:
            copy = self._copy_of(path)
            try:
                found[path] = load_recipe(path)
            except RecipeError:
                if Path(path).exists() or not copy.exists():
                    raise
                self.progress.say(f"{path} is gone; its copy in {copy} is read")
                found[path] = Recipe.model_validate(kept(copy))
        return found

    def keep_recipes(self) -> None:
        """Keep copies of the entered recipes in the folder, so that it can be continued without them."""
        for path, recipe in self.own_recipes.items():
            if not self._copy_of(path).exists():
                keep(self._copy_of(path), recipe.as_dict())

    def _copy_of(self, path: str) -> Path:
        return self.folder / "entries" / f"{quote(path, safe='')}.json"

    @property
    def trained_families(self) -> list[str]:
        """The families whose models are trained."""
        return [name for name in self.settings.families if name != NGRAM]

    @cached_property
    def entries(self) -> list[Entry]:
        """The models that are trained.

        Raises RecipeError for an encoder beside a tokenizer without a mask token, and for equal names.
        """
        size = self.tokenizer.vocab_size
        tokenizer = {"path": str(self.tokenizer_folder)}
        recipe = Recipe.model_validate({**self.base.as_dict(), "tokenizer": tokenizer})
        sizes = self.settings.parameters
        shapes = {f"-{short(number)}" if len(sizes) > 1 else "": shape_for(number, size) for number in sizes}
        if not sizes and self.trained_families:
            shapes = {"": shape_of(self.base, size)}
        found = [
            family_entry(name, recipe, shape, size, suffix)
            for suffix, shape in shapes.items()
            for name in self.trained_families
        ]
        found += [own_entry(path, own, recipe, size) for path, own in self.own_recipes.items()]
        if any(entry.encodes for entry in found) and self.tokenizer.mask_id is None:
            raise RecipeError(
                f"the tokenizer in {self.folder} has no mask token, which encoders need; leave out bert, or "
                "begin with it in another --out"
            )
        seen: set[str] = set()
        for entry in found:  # file systems may ignore case
            names = {entry.name.casefold(), entry.title.casefold()}
            if names & seen:
                raise RecipeError(
                    f"two entries are called {entry.name!r}; give one of the recipes another name"
                )
            seen |= names
        return found

    def check_text(self) -> None:
        """Raise CheckpointError if the text is not that of the runs and scores in the folder."""
        file = self.folder / "text.json"
        hashes = {"train": self.corpus.part_fingerprint("train"), "held_out": self.held_out_hash}
        if not file.exists():
            keep(file, hashes)
        changed = [name for name, value in hashes.items() if kept(file).get(name) != value]
        if changed:
            part = "training" if changed == ["train"] else "held-out"
            raise CheckpointError(
                f"the {part} text has changed since {self.folder} was begun, so scores would not compare; "
                "choose another --out"
            )

    @cached_property
    def held_out_hash(self) -> str:
        """Eight hex digits of the SHA-256 of the held-out documents."""
        return hashlib.sha256(byte_stream(self.documents)).hexdigest()[:8]

    def signature(self) -> str:
        """Return the settings that decide the scores, in one line."""
        return signature(
            "bits_per_byte",
            text=self.held_out_hash,
            tok=tokenizer_name(self.tokenizer),
            documents="independent",
            budget=str(self.settings.budget),
            seeds=self.settings.seeds,
            ci=f"{len(self.held_out.sizes)}-{self.held_out.unit}" if self.held_out.has_intervals else "no",
        )
