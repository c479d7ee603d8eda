"""The errors that Wordloom raises on purpose.

The message is one line: what was given, what is allowed, what to do.  The command prints it in red without a
traceback and exits with code 2.  Any other exception is a bug of Wordloom and shows its traceback.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Literal


class WordloomError(Exception):
    """A mistake the user can put right; ``str(error)`` is the one line that says how."""


class RecipeError(WordloomError):
    """A recipe, or an override on the command line, that cannot be used."""


class DataError(WordloomError):
    """A corpus, named data set, token shard or batch that cannot be used."""


class TokenizerError(WordloomError):
    """A tokenizer file, a training of a tokenizer, or a text that a tokenizer cannot encode."""


class DataTypeError(DataError, TypeError):
    """A text that is not a string, a number that is not an integer, or a matrix that is not CSR."""


class ConfigError(WordloomError):
    """A model configuration whose shapes cannot be built."""


class CheckpointError(WordloomError):
    """A checkpoint folder that is missing, truncated, mismatching, or in the way."""


class RankError(WordloomError):
    """The end of a rank because another one ended, which says why."""


class DeviceError(WordloomError):
    """A device, precision or kernel that this machine does not have."""


class ChatError(WordloomError):
    """Messages or a chat template that cannot be used."""


class GenerationError(WordloomError):
    """A prompt or a sampling setting that cannot be used."""


class EvaluationError(WordloomError):
    """A text, window or task that cannot be scored."""


class VectorError(WordloomError):
    """Word vectors: a corpus, a vector file or a word that cannot be used."""


class NonFiniteError(WordloomError):
    """Loss or gradients became NaN or infinite; raised before the optimizer step."""


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return advice with the names most similar to ``name`` among ``allowed``, else with all of them.

    >>> did_you_mean("stpes", ["steps", "tokens"])
    "did you mean 'steps'?"
    >>> did_you_mean("qqq", ["steps", "tokens"])
    'allowed: steps, tokens'
    """
    names = list(allowed)
    begun = [known for known in names if len(name) > 3 and known.startswith(name)]
    close = begun[:2] or get_close_matches(name, names, n=2, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(f"'{near}'" for near in close) + "?"
    return "allowed: " + ", ".join(names)


_COUNTED = re.compile(r"\.(json|parquet)(\.\w+)?$", re.IGNORECASE)  # files without one object per line


def position(
    file: object,
    number: int,
    column: int | None = None,
    *,
    unit: Literal["line", "item", "row", "text"] | None = None,
) -> str:
    """Return a place in a file for messages, as ``file:line`` or ``file:line:column``, which editors open.

    ``number`` counts from 1.  A ``.json`` list has items and a ``.parquet`` file has rows; ``unit`` is needed
    if the name of the file does not show the format.

    >>> position("long.csv", 5)
    'long.csv:5'
    >>> position("train.json.gz", 5), position("train.parquet", 5)
    ('train.json.gz, item 5', 'train.parquet, row 5')
    """
    if unit is None:
        suffix = _COUNTED.search(str(file))
        unit = "line" if suffix is None else "item" if suffix[1].lower() == "json" else "row"
    if unit != "line":
        return f"{file}, {unit} {number}"
    return f"{file}:{number}" if column is None else f"{file}:{number}:{column}"
