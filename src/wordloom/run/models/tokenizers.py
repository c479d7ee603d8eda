"""The tokenizer of a model folder: read, or None, and checked against the model it was trained with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wordloom.errors import CheckpointError
from wordloom.text import Tokenizer
from wordloom.weights.tensors import read_json

__all__ = ["ReadsText", "check_vocabulary", "folder_tokenizer", "required_tokenizer"]

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.bpe", "merges.txt")


def folder_tokenizer(folder: Path, vocab_size: int) -> Tokenizer | None:
    """The tokenizer in ``folder``, None where there are no files of one.

    Raises CheckpointError for a tokenizer that does not belong to a model of ``vocab_size`` tokens.
    """
    if not any((folder / name).exists() for name in _FILES):
        return None
    tokenizer = Tokenizer.from_pretrained(folder)
    if tokenizer.vocab_size > vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens and the model {vocab_size}; they do "
            "not belong together"
        )
    check_vocabulary(folder, tokenizer)
    return tokenizer


def required_tokenizer(tokenizer: Tokenizer | None, folder: Path | None) -> Tokenizer:
    """``tokenizer``; raises CheckpointError where it is None."""
    if tokenizer is None:
        where = "the model" if folder is None else folder
        raise CheckpointError(f"{where} has no tokenizer, which text needs; put its tokenizer.json there")
    return tokenizer


class ReadsText:
    """A loaded model with its ``tokenizer``, which is None where the folder has none."""

    tokenizer: Tokenizer | None
    folder: Path | None

    @property
    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer; raises CheckpointError where the folder has none."""
        return required_tokenizer(self.tokenizer, self.folder)


def check_vocabulary(
    folder: Path, tokenizer: Tokenizer, facts: Mapping[str, Any] | None = None, *, key: str = "vocabulary"
) -> None:
    """Raise CheckpointError where config.json (``facts``) knows the model's tokenizer, and it is another.

    Tokens that were added behind those the model learnt with are allowed.
    """
    known = (read_json(folder / "config.json") if facts is None else facts).get(key)
    if not isinstance(known, Mapping) or not isinstance(size := known.get("size"), int):
        return
    if tokenizer.vocab_size < size or tokenizer.vocabulary_hash(size) != known.get("sha256"):
        raise CheckpointError(
            f"{folder}: the tokenizer is not the one that the model was trained with: of {size:,} "
            f'tokens some differ; put that one back, or take "{key}" out of config.json if this is meant'
        )
