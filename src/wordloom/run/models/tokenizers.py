"""The tokenizer of a model folder, checked against the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from wordloom.errors import CheckpointError
from wordloom.text import Tokenizer
from wordloom.weights.tensors import read_json

__all__ = ["ReadsText", "check_vocabulary", "folder_tokenizer", "required_tokenizer"]

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.bpe", "merges.txt")


def folder_tokenizer(folder: Path, vocab_size: int) -> Tokenizer | None:
    """Load the tokenizer in ``folder``; return None if the folder has no tokenizer files.

    Raises CheckpointError for a tokenizer that does not fit a model of ``vocab_size`` tokens.
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


def required_tokenizer(tokenizer: Tokenizer | None, folder: Path | None, *, ids: bool = False) -> Tokenizer:
    """Return ``tokenizer``; raises CheckpointError if it is None.

    ``ids`` says whether the caller also takes token ids in place of text.
    """
    if tokenizer is None:
        where = "the model" if folder is None else folder
        advice = "give token ids, or put its tokenizer.json there" if ids else "put its tokenizer.json there"
        raise CheckpointError(f"{where} has no tokenizer, which text needs; {advice}")
    return tokenizer


@dataclass(kw_only=True)
class ReadsText:
    """A loaded model and its tokenizer, which is None if its folder has none."""

    takes_ids: ClassVar[bool] = False  # in place of text
    model: Any
    tokenizer: Tokenizer | None
    config: Any
    folder: Path | None = None

    @classmethod
    def of(cls, folder: Path, model: Any, tokenizer: Tokenizer | None) -> Self:
        """Return the ``model`` in ``folder`` with its tokenizer."""
        return cls(model=model, tokenizer=tokenizer, config=model.config, folder=folder)

    @property
    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer; raises CheckpointError if the folder has none."""
        return required_tokenizer(self.tokenizer, self.folder, ids=self.takes_ids)


def check_vocabulary(
    folder: Path, tokenizer: Tokenizer, facts: Mapping[str, Any] | None = None, *, key: str = "vocabulary"
) -> None:
    """Raise CheckpointError if config.json (``facts``) has the hash of a different tokenizer.

    Tokens that were added after training are allowed.
    """
    known = (read_json(folder / "config.json") if facts is None else facts).get(key)
    if not isinstance(known, Mapping) or not isinstance(size := known.get("size"), int):
        return
    if tokenizer.vocab_size < size or tokenizer.vocabulary_hash(size) != known.get("sha256"):
        raise CheckpointError(
            f"{folder}: the model was trained with a different tokenizer: some of its {size:,} "
            f'tokens differ; put that tokenizer back, or remove "{key}" from config.json to keep this one'
        )
