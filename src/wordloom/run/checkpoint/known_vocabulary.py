"""Whether a folder's tokenizer is the one that its model learnt with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wordloom.errors import CheckpointError
from wordloom.text import Tokenizer
from wordloom.weights.tensors import read_json

__all__ = ["check_vocabulary"]


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
