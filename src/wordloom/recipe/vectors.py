"""A recipe for word vectors: TOML like every recipe (:mod:`wordloom.recipe`), with other tables.

``[data]`` names the text, ``[words]`` says how it becomes words, ``[vectors]`` how they are learnt.

>>> recipe = load_vector_recipe("word2vec-gutenberg", ["vectors.dim=50"])
>>> recipe.vectors.dim
50
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import Field, model_validator

from wordloom.recipe import Result
from wordloom.recipe.reading import MAX_THREADS, FolderName, Strict, read_recipe, shipped_recipes

__all__ = [
    "CorpusSettings",
    "VectorRecipe",
    "VectorSettings",
    "WordSettings",
    "load_vector_recipe",
    "shipped_vector_recipes",
]

# alpha for skip-gram and for CBOW, its floor, and the share of frequent words that is kept
_CONSTANTS = {
    "gensim": (0.025, 0.025, 1e-4, 1e-3),
    "word2vec.c": (0.025, 0.05, None, 1e-3),  # None: 1e-4 of alpha
    "fasttext": (0.05, 0.05, 0.0, 1e-4),
}

# settings that some algorithms have no use for
_WINDOWED = ("word2vec", "fasttext")
_ONLY_WITH = {
    **dict.fromkeys(("min_n", "max_n", "buckets"), ("fasttext", "fasttext-supervised")),
    **dict.fromkeys(("loss", "word_ngrams", "label_prefix"), ("fasttext-supervised",)),
    **dict.fromkeys(("x_max", "power", "memory_mb"), ("glove",)),
    **dict.fromkeys(("architecture", "hierarchical_softmax"), _WINDOWED),
    **dict.fromkeys(("exponent", "mean", "constants", "sample"), _WINDOWED),
    **dict.fromkeys(("negative", "min_alpha"), (*_WINDOWED, "fasttext-supervised")),
    "window": (*_WINDOWED, "glove"),
}
_PHRASES = ("phrases", "phrase_min_count", "phrase_threshold")  # of words, which labelled lines have not
# The defaults of fastText's supervised mode, where they differ
_SUPERVISED_DEFAULTS: dict[str, dict[str, Any]] = {
    "words": {"split": "whitespace", "lower": False, "min_count": 1},
    "vectors": {"min_n": 0, "max_n": 0, "alpha": 0.1, "min_alpha": 0.0},
}


class CorpusSettings(Strict):
    """Which text, and how it is read (see :mod:`wordloom.data`); all of it is trained on."""

    train: str | list[str]  # files, folders, globs, or the name of a data set
    field: str | None = None  # of .jsonl and .parquet rows; None: what the data set says, else "text"
    # What ends a text of a .txt file, past which no window reaches: line, blank-line, file, or the line that
    # stands between two; None: line, and a data set as it says itself
    separator: str | None = None
    encoding_errors: Literal["strict", "replace"] = "strict"


class WordSettings(Strict):
    """How text becomes words, and which of them have vectors (see
    :mod:`wordloom.vectors.corpus.vocabulary`)."""

    split: Literal["words", "whitespace"] = "words"
    lower: bool = True
    min_count: int = Field(5, ge=1)
    max_words: int | None = Field(None, ge=1)
    phrases: int = Field(0, ge=0, le=4)  # passes that join words found together: new_york, new_york_times
    phrase_min_count: int = Field(5, ge=1)
    phrase_threshold: float = Field(10.0, gt=0)


class VectorSettings(Strict):
    """What is learnt and how; the defaults are gensim's.

    ``constants`` chooses whose alpha, min_alpha and sample stand where none are given.  The algorithm
    ``fasttext-supervised`` has the defaults of fastText's command ``supervised``.
    """

    algorithm: Literal["word2vec", "fasttext", "fasttext-supervised", "glove"] = "word2vec"
    architecture: Literal["skipgram", "cbow"] = "skipgram"
    dim: int = Field(100, ge=1)
    window: int | None = Field(None, ge=1)  # words to either side at most; None: 5, GloVe 15
    negative: int = Field(5, ge=0)  # noise words drawn for a window
    hierarchical_softmax: bool = False  # a tree over the vocabulary instead of noise words
    exponent: float = 0.75  # noise words are drawn in proportion to count ** exponent
    min_n: int = Field(3, ge=0)  # fastText: letters of the shortest n-gram; 0: none at all
    max_n: int = Field(6, ge=0)  # ... of the longest
    buckets: int = Field(2_000_000, ge=1)  # ... vectors that all n-grams share
    loss: Literal["softmax", "ns", "hs", "ova"] = "softmax"  # supervised; ova: one classifier a label
    word_ngrams: int = Field(1, ge=1)  # ... words in the longest run that has a vector
    label_prefix: str = Field("__label__", pattern=r"^\S+$")  # ... words that begin so are labels
    mean: bool = True  # CBOW: the mean of the words around, else their sum
    x_max: float = Field(100.0, gt=0)  # GloVe: counts from here on weigh the same; 10 suits small corpora
    power: float = Field(0.75, gt=0)  # ... and those below by (count / x_max) ** power
    memory_mb: int = Field(1024, ge=1)  # ... MiB in which co-occurrences are counted
    epochs: int | None = Field(None, ge=1)  # None: 5, GloVe 25
    constants: Literal["gensim", "word2vec.c", "fasttext"] = "gensim"
    alpha: float | None = Field(None, gt=0)  # learning rate, falling linearly
    min_alpha: float | None = Field(None, ge=0)  # ... to this
    sample: float | None = Field(
        None, ge=0
    )  # share of a word above which it is passed over at times; 0: never

    device: str = "auto"  # auto: CUDA where it is and can do it, else cpu; cpu, cuda, cuda:1
    deterministic: bool = (
        False  # the same vectors whatever the number of threads; on a GPU: by the same GPU and torch
    )
    threads: int | None = Field(None, ge=1, le=MAX_THREADS)  # None: one for every processor
    save_minutes: float = Field(5.0, gt=0)  # between two saves of where it stands

    @model_validator(mode="after")
    def _consistent(self) -> VectorSettings:
        if self.hierarchical_softmax and self.negative != 5:
            raise ValueError(
                "vectors.negative has no effect with vectors.hierarchical_softmax: leave out one of them"
            )
        if not self.hierarchical_softmax and not self.negative:
            raise ValueError(
                "vectors.negative 0 leaves nothing to learn against: give 1 or more, or "
                "vectors.hierarchical_softmax=true"
            )
        if self.algorithm in _ONLY_WITH["min_n"] and 0 < self.max_n < self.min_n:
            raise ValueError(f"vectors.max_n {self.max_n} is below vectors.min_n {self.min_n}; raise it")
        for name, algorithms in _ONLY_WITH.items():
            if self.algorithm not in algorithms and _changed(self, [name]):
                raise ValueError(
                    f"vectors.{name} has no effect with vectors.algorithm '{self.algorithm}': leave it out "
                    f"or set vectors.algorithm to {' or '.join(map(repr, algorithms))}"
                )
        if self.threads is not None and self.device not in ("auto", "cpu"):
            raise ValueError(
                f"vectors.threads has no effect with vectors.device '{self.device}': leave out one of them"
            )
        if self.algorithm == "fasttext-supervised" and self.loss != "ns" and self.negative != 5:
            raise ValueError(
                f"vectors.negative has no effect with vectors.loss '{self.loss}': leave it out or set "
                "vectors.loss='ns'"
            )
        if self.min_alpha is not None and self.settled().alpha < self.min_alpha:
            raise ValueError(
                f"vectors.min_alpha {self.min_alpha:g} is above vectors.alpha {self.settled().alpha:g}; "
                "alpha falls to min_alpha"
            )
        return self

    def settled(self) -> Any:
        """The settings with nothing left open; ``negative`` is 0 for a tree."""
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


class VectorRecipe(Strict):
    """A whole recipe; see the module docstring."""

    name: FolderName
    description: str = ""
    seed: int = Field(1, ge=0)
    result: Result | None = None
    data: CorpusSettings
    words: WordSettings = Field(default_factory=lambda: WordSettings.model_validate({}))
    vectors: VectorSettings = Field(default_factory=lambda: VectorSettings.model_validate({}))

    @model_validator(mode="before")
    @classmethod
    def _supervised_defaults(cls, values: Any) -> Any:
        """What is not given stands as fastText's supervised mode has it, where that is what is asked for."""
        if not isinstance(values, dict) or not isinstance(vectors := values.get("vectors"), dict):
            return values
        if vectors.get("algorithm") != "fasttext-supervised":
            return values
        filled = {
            table: {**defaults, **given}
            for table, defaults in _SUPERVISED_DEFAULTS.items()
            if isinstance(given := values.get(table, {}), dict)
        }
        return {**values, **filled}

    @model_validator(mode="after")
    def _consistent(self) -> VectorRecipe:
        """The supervised mode refuses what would do nothing."""
        if self.vectors.algorithm != "fasttext-supervised":
            return self
        if self.words.split != "whitespace":
            raise ValueError(
                "words.split 'words' would cut labels: vectors.algorithm 'fasttext-supervised' splits at "
                "white space; leave it out"
            )
        if changed := _changed(self.words, _PHRASES):
            raise ValueError(
                f"words.{changed[0]} has no effect with vectors.algorithm 'fasttext-supervised': leave it out"
            )
        return self

    def to_toml(self) -> str:
        """The recipe as a TOML file that :func:`load_vector_recipe` reads back to an equal recipe."""
        return tomli_w.dumps(self.as_dict(), multiline_strings=True)


def _changed(settings: Strict, names: Sequence[str]) -> list[str]:
    """Those of ``names`` that have another value than the default."""
    fields = type(settings).model_fields
    return [name for name in names if getattr(settings, name) != fields[name].default]


def shipped_vector_recipes() -> dict[str, Path]:
    """Name -> file of every recipe for word vectors that comes with the package."""
    return shipped_recipes("recipes/vectors")


def load_vector_recipe(
    source: str | Path | VectorRecipe | dict[str, Any],
    overrides: Sequence[str] = (),
    *,
    say: Callable[[str], None] | None = None,
) -> VectorRecipe:
    """Return the recipe called ``source`` (a shipped name, a .toml file, or its values), with overrides.

    ``say`` is called with a line for the settings that an override makes the recipe leave out.

    Raises RecipeError for a file that is missing or not TOML, an unknown key, or a value out of its range.
    """
    return read_recipe(VectorRecipe, shipped_vector_recipes(), source, overrides, say=say)
