"""A recipe for word vectors: TOML like every recipe (:mod:`wordloom.recipe`), with other tables.

``[data]`` names the text, ``[words]`` says how it is split into words, and ``[vectors]`` how their vectors
are trained.

>>> recipe = load_vector_recipe("word2vec-gutenberg", ["vectors.dim=50"])
>>> recipe.vectors.dim
50
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, model_validator

from wordloom.recipe.reading import MAX_THREADS, FolderName, read_recipe, shipped_recipes
from wordloom.recipe.recipe import Result
from wordloom.recipe.table import OnlyIf, Table, unused_keys

# alpha of skip-gram and of CBOW, the lowest alpha, and the threshold of frequent words
_CONSTANTS = {
    "gensim": (0.025, 0.025, 1e-4, 1e-3),
    "word2vec.c": (0.025, 0.05, None, 1e-3),  # None: 1e-4 of alpha
    "fasttext": (0.05, 0.05, 0.0, 1e-4),
}
# The defaults of fastText's supervised mode, where they differ
_SUPERVISED_DEFAULTS: dict[str, dict[str, Any]] = {
    "words": {"split": "whitespace", "lower": False, "min_count": 1},
    "vectors": {"min_n": 0, "max_n": 0, "alpha": 0.1, "min_alpha": 0.0},
}

_SUPERVISED = "fasttext-supervised"
_Words = OnlyIf("vectors.algorithm", ("word2vec", "fasttext", "glove"))
_Windowed = OnlyIf("algorithm", ("word2vec", "fasttext"))
_WithWindow = OnlyIf("algorithm", ("word2vec", "fasttext", "glove"))
_Sampled = OnlyIf("algorithm", ("word2vec", "fasttext", _SUPERVISED))
_NGrams = OnlyIf("algorithm", ("fasttext", _SUPERVISED))
_Supervised = OnlyIf("algorithm", (_SUPERVISED,))
_GloVe = OnlyIf("algorithm", ("glove",))


class CorpusSettings(Table):
    """The text, and how it is read; all of it is trained on."""

    train: str | list[str]
    """Training data: files, folders, globs, or the name of a data set (wordloom data list)."""
    field: str | None = None
    """Field of the text in .jsonl and .parquet files. By default the data set's own, else 'text'."""
    separator: str | None = None
    """End of a text in a .txt file, and of every window: line (the default), blank-line, file, or the
    line between two texts."""
    encoding_errors: Literal["strict", "replace"] = "strict"
    """Treatment of bytes that are not UTF-8: raise an error (strict), or read U+FFFD (replace)."""


class WordSettings(Table):
    """The splitting of text into words, and the choice of words that get vectors."""

    split: Literal["words", "whitespace"] = "words"
    """How text is split: into words and punctuation, or at white space."""
    lower: bool = True
    """Lower-case the text."""
    min_count: int = Field(5, ge=1)
    """Lowest count of a word that gets a vector."""
    max_words: int | None = Field(None, ge=1)
    """Largest vocabulary: the most frequent words."""
    phrases: Annotated[int, _Words] = Field(0, ge=0, le=4)
    """Passes that join frequent pairs of words: new_york, new_york_times."""
    phrase_min_count: Annotated[int, _Words] = Field(5, ge=1)
    """Lowest count of a pair that is joined."""
    phrase_threshold: Annotated[float, _Words] = Field(10.0, gt=0)
    """Lowest score of a pair that is joined; higher values join fewer."""


class VectorSettings(Table):
    """The algorithm and its settings; the defaults are gensim's.

    The algorithm ``fasttext-supervised`` has the defaults of fastText's command ``supervised``.
    """

    algorithm: Literal["word2vec", "fasttext", "fasttext-supervised", "glove"] = "word2vec"
    """Algorithm. fasttext-supervised trains a text classifier."""
    architecture: Annotated[Literal["skipgram", "cbow"], _Windowed] = "skipgram"
    """skipgram predicts the words around a word, cbow a word from the words around it."""
    dim: int = Field(100, ge=1)
    """Dimensions of a vector."""
    window: Annotated[int | None, _WithWindow] = Field(None, ge=1)
    """Largest distance of two words in a window. By default 5; GloVe 15."""
    negative: Annotated[int, _Sampled, OnlyIf("hierarchical_softmax", (False,))] = Field(5, ge=0)
    """Noise words of a window. fastText's skip-gram draws three times as many, each with a third of the
    weight."""
    hierarchical_softmax: Annotated[bool, _Windowed] = False
    """Use a binary tree over the vocabulary instead of noise words."""
    exponent: Annotated[float, _Windowed] = 0.75
    """Noise words are drawn in proportion to count ** exponent."""
    min_n: Annotated[int, _NGrams] = Field(3, ge=0)
    """Letters of the shortest n-gram; 0: none."""
    max_n: Annotated[int, _NGrams] = Field(6, ge=0)
    """Letters of the longest n-gram."""
    buckets: Annotated[int, _NGrams] = Field(2_000_000, ge=1)
    """Number of vectors that all n-grams share, by hash."""
    loss: Annotated[Literal["softmax", "ns", "hs", "ova"], _Supervised] = "softmax"
    """Loss of the classifier: softmax, negative sampling (ns), a tree (hs), or one binary classifier per
    label (ova)."""
    word_ngrams: Annotated[int, _Supervised] = Field(1, ge=1)
    """Words of the longest word n-gram that has a vector."""
    label_prefix: Annotated[str, _Supervised] = Field("__label__", pattern=r"^\S+$")
    """Words that begin with this prefix are labels."""
    mean: Annotated[bool, _Windowed] = True
    """CBOW: average the surrounding words instead of summing them."""
    x_max: Annotated[float, _GloVe] = Field(100.0, gt=0)
    """Counts from here on have weight 1. Take 10 for small corpora."""
    power: Annotated[float, _GloVe] = Field(0.75, gt=0)
    """Lower counts have weight (count / x_max) ** power."""
    memory_mb: Annotated[int, _GloVe] = Field(1024, ge=1)
    """Memory in MiB for counting co-occurrences."""
    epochs: int | None = Field(None, ge=1)
    """Passes over the text. By default 5; GloVe 25."""
    constants: Annotated[Literal["gensim", "word2vec.c", "fasttext"], _Windowed] = "gensim"
    """Program whose alpha, min_alpha and sample are the defaults."""
    alpha: float | None = Field(None, gt=0)
    """Initial learning rate, which falls linearly. The default depends on constants."""
    min_alpha: Annotated[float | None, _Sampled] = Field(None, ge=0)
    """Final learning rate. The default depends on constants."""
    sample: Annotated[float | None, _Windowed] = Field(None, ge=0)
    """Share of the text above which a word is skipped at random; 0: never. The default depends on
    constants."""
    device: str = "auto"
    """Device: auto (CUDA where the algorithm has it, else the CPU), cpu, cuda or cuda:1."""
    deterministic: bool = False
    """Compute vectors that do not depend on the number of threads."""
    threads: Annotated[int | None, OnlyIf("device", ("auto", "cpu"))] = Field(None, ge=1, le=MAX_THREADS)
    """CPU threads. By default one per processor."""
    save_minutes: float = Field(5.0, gt=0)
    """Minutes between two checkpoints."""

    @model_validator(mode="after")
    def _consistent(self) -> VectorSettings:
        if not self.hierarchical_softmax and not self.negative:
            raise ValueError(
                "vectors.negative 0 leaves no noise words: give 1 or more, or "
                "vectors.hierarchical_softmax=true"
            )
        if self.algorithm in _NGrams.values and 0 < self.max_n < self.min_n:
            raise ValueError(f"vectors.max_n {self.max_n} is below vectors.min_n {self.min_n}; raise it")
        if self.algorithm == "fasttext-supervised" and self.loss != "ns" and self.negative != 5:
            raise ValueError(
                f"vectors.negative has no effect with vectors.loss '{self.loss}': leave it out or set "
                "vectors.loss='ns'"
            )
        if self.min_alpha is not None and self.resolved().alpha < self.min_alpha:
            raise ValueError(
                f"vectors.min_alpha {self.min_alpha:g} is above vectors.alpha {self.resolved().alpha:g}; "
                "alpha falls to min_alpha"
            )
        return self

    def resolved(self) -> Any:
        """Return the settings with every default filled in; ``negative`` is 0 for a tree."""
        skipgram, cbow, floor, sample = _CONSTANTS[self.constants]
        alpha = self.alpha
        glove = self.algorithm == "glove"
        if alpha is None and glove:
            alpha = 0.05
        elif alpha is None:
            alpha = skipgram if self.architecture == "skipgram" else cbow
        assert alpha is not None
        least = 1e-4 * alpha if floor is None else min(floor, alpha)
        return self.model_copy(
            update={
                "window": self.window or (15 if glove else 5),
                "epochs": self.epochs or (25 if glove else 5),
                "alpha": alpha,
                "min_alpha": least if self.min_alpha is None else self.min_alpha,
                "sample": sample if self.sample is None else self.sample,
                "negative": 0 if self.hierarchical_softmax else self.negative,
            }
        )


class VectorRecipe(Table):
    """A recipe of word vectors; see the module docstring."""

    name: FolderName
    """Name of the run, whose folder is runs/NAME. A file's own name if left out."""
    description: str = ""
    """Purpose of the recipe."""
    seed: int = Field(1, ge=0)
    """Seed of initialisation and sampling."""
    result: Result | None = None
    """Result that the recipe reproduces."""
    data: CorpusSettings
    """Training data."""
    words: WordSettings = Field(default_factory=lambda: WordSettings.model_validate({}))
    """Words and phrases."""
    vectors: VectorSettings = Field(default_factory=lambda: VectorSettings.model_validate({}))
    """Algorithm and training."""

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, values: Any) -> Any:
        """Refuse keys without effect, and fill in the defaults of fastText's supervised mode."""
        if not isinstance(values, Mapping):
            return values
        for unused in unused_keys(cls, values):
            raise ValueError(str(unused))
        vectors = values.get("vectors")
        if not isinstance(vectors, dict) or vectors.get("algorithm") != _SUPERVISED:
            return values
        filled = {
            table: {**defaults, **given}
            for table, defaults in _SUPERVISED_DEFAULTS.items()
            if isinstance(given := values.get(table, {}), dict)
        }
        return {**values, **filled}

    @model_validator(mode="after")
    def _splits_at_white_space(self) -> VectorRecipe:
        if self.vectors.algorithm == _SUPERVISED and self.words.split != "whitespace":
            raise ValueError(
                f"words.split 'words' would split labels: vectors.algorithm {_SUPERVISED!r} splits at white "
                "space; leave it out"
            )
        return self

    def to_toml(self) -> str:
        """The recipe as a TOML file that :func:`load_vector_recipe` reads back to an equal recipe."""
        return tomli_w.dumps(self.as_dict(), multiline_strings=True)


def shipped_vector_recipes() -> dict[str, Path]:
    """Return the files of the package's recipes for word vectors, by name."""
    return shipped_recipes("recipes/vectors")


def load_vector_recipe(
    source: str | Path | VectorRecipe | dict[str, Any],
    overrides: Sequence[str] = (),
    *,
    say: Callable[[str], None] | None = None,
) -> VectorRecipe:
    """Return the recipe called ``source`` (a shipped name, a .toml file, or its values), with overrides.

    ``say`` is called with a line for the keys of the recipe that an override makes useless.

    Raises RecipeError for a file that is missing or not TOML, an unknown key, or a value out of its range, or
    a key that has no effect.
    """
    return read_recipe(VectorRecipe, shipped_vector_recipes(), source, overrides, say=say)
