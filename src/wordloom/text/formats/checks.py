"""Checks of a ``tokenizer.json`` that the ``tokenizers`` library does not make.

Without them its Rust code panics (which is not an ``Exception`` in Python), ends the process, or builds a
tokenizer that the rest of this package cannot use.
"""

from __future__ import annotations

from typing import Any

from wordloom.errors import TokenizerError
from wordloom.text.definition import LARGEST, Definition

_PARTS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}


def check(definition: Definition) -> None:
    """Raise TokenizerError for merges of unknown tokens, ids that are too large, and steps without a type."""
    for part, plural in _PARTS.items():
        if definition[part] is not None and not _has_types(definition[part], plural):
            raise TokenizerError(f"its {part} has a step without a 'type': the file is damaged")
    model = definition["model"]
    vocabulary, merges = model.get("vocab"), model.get("merges")
    prefix = model.get("continuing_subword_prefix") or ""
    if isinstance(vocabulary, dict):
        _check_ids(vocabulary)
        if isinstance(merges, list) and isinstance(prefix, str):  # otherwise the library reports the fault
            _check_merges(merges, vocabulary, prefix)


def _has_types(step: Any, plural: str) -> bool:
    if not isinstance(step, dict) or not isinstance(step.get("type"), str):
        return False
    steps = step.get(plural, [])
    return isinstance(steps, list) and all(_has_types(inner, plural) for inner in steps)


def _check_ids(vocabulary: dict[str, Any]) -> None:
    for token, index in vocabulary.items():
        if isinstance(index, int) and index >= LARGEST:
            raise TokenizerError(f"the token {token!r} has the id {index:,}: ids must be below {LARGEST:,}")


def _check_merges(merges: list[Any], vocabulary: dict[str, Any], prefix: str) -> None:
    """Check that both parts of each merge and their union are tokens.

    The union drops the ``prefix`` of the right part.
    """
    for number, merge in enumerate(merges, 1):
        try:
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            joined = left + right[len(prefix) :]
            known = left in vocabulary and right in vocabulary and joined in vocabulary
        except (TypeError, ValueError):
            raise TokenizerError(f"merge {number} is not two tokens: {merge!r}") from None
        if not known:
            missing = next(token for token in (left, right, joined) if token not in vocabulary)
            raise TokenizerError(
                f"merge {number} ({left!r} and {right!r}) needs the token {missing!r}, which is not in the "
                "vocabulary: the file is damaged"
            )
        if not right.startswith(prefix):
            raise TokenizerError(f"merge {number} joins {right!r}, which does not begin with {prefix!r}")
