"""What the ``tokenizers`` library takes on trust in a ``tokenizer.json``, checked before it is built.

Where these do not hold, its Rust code breaks off (a panic, which is no ``Exception``, or the end of the
process), or builds what the rest of this package cannot make sense of.
"""

from __future__ import annotations

from typing import Any

from wordloom.errors import TokenizerError
from wordloom.text.formats.definition import LARGEST, Definition

_PARTS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}


def check(definition: Definition) -> None:
    """Raise TokenizerError for merges of unknown tokens, ids past all bounds, and parts without a type."""
    for part, plural in _PARTS.items():
        if definition[part] is not None and not _has_types(definition[part], plural):
            raise TokenizerError(f"its {part} has a step without a 'type': the file is damaged")
    model = definition["model"]
    vocabulary, merges = model.get("vocab"), model.get("merges")
    prefix = model.get("continuing_subword_prefix") or ""
    if isinstance(vocabulary, dict):
        _check_ids(vocabulary)
        if isinstance(merges, list) and isinstance(prefix, str):  # else the library says what is wrong
            _check_merges(merges, vocabulary, prefix)


def _has_types(step: Any, plural: str) -> bool:
    if not isinstance(step, dict) or not isinstance(step.get("type"), str):
        return False
    within = step.get(plural, [])
    return isinstance(within, list) and all(_has_types(each, plural) for each in within)


def _check_ids(vocabulary: dict[str, Any]) -> None:
    for token, index in vocabulary.items():
        if isinstance(index, int) and index >= LARGEST:
            raise TokenizerError(f"the token {token!r} has the id {index:,}: below {LARGEST:,} are read")


def _check_merges(merges: list[Any], vocabulary: dict[str, Any], prefix: str) -> None:
    """The parts of a merge and their union, which the right part's ``prefix`` is no part of, are tokens."""
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
