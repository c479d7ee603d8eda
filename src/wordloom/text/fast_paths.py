"""Fast paths of encoding: tables of bytes and characters, and byte-level BPE with ``tiktoken``'s merge loop.

The merge loop is used only for vocabularies in which it provably gives the same ids.  ``tokenizers`` merges
the pairs that its merge list names; ``tiktoken`` merges any two neighbours whose joined bytes are in the
vocabulary.  Both agree on every text if (1) ids rise with merge rank, (2) every token is the product of
exactly one merge, of parts ranked before it, and (3) merging the bytes of every token gives that token.
Proof: let the pair (l, r) spell the token t without being t's merge.  The two could only be neighbours at
some rank if merging the bytes l + r up to that rank gave (l, r).  But l + r are the bytes of t, which by
(3) are joined by t's merge.  The proof assumes that the Unicode tables of both programs agree;
``tests/text`` compares them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wordloom.errors import TokenizerError
from wordloom.text.definition import (
    Definition,
    bytes_to_characters,
    merge_pairs,
    model_vocabulary,
    normalizers,
    special_tokens,
    split_pattern,
)

if TYPE_CHECKING:
    import tiktoken

# Equivalent to definition.PATTERNS, with possessive quantifiers, which avoid backtracking.
_POSSESSIVE = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "llama3": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
}


def proven_ranks(definition: Definition) -> dict[bytes, int] | None:
    """Return the id of each token's bytes for ``tiktoken``, or None where equal ids are not proven."""
    model = definition["model"]
    unusual = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if (
        model["type"] != "BPE"
        or any(model.get(name) for name in unusual)
        or normalizers(definition)
        or split_pattern(definition) not in _POSSESSIVE
        or any(not token["special"] for token in definition["added_tokens"])
    ):
        return None
    vocabulary, specials = model_vocabulary(definition), special_tokens(definition)
    alphabet = bytes_to_characters()
    byte_of = {character: bytes([byte]) for byte, character in enumerate(alphabet)}
    if any(character not in vocabulary for character in alphabet):
        return None
    ranks = {byte_of[character]: vocabulary[character] for character in alphabet}
    known, last_index = set(alphabet), -1
    for left, right in merge_pairs(definition):
        token = left + right
        index = vocabulary.get(token, -1)
        if (
            index <= last_index
            or token in known
            or left not in known
            or right not in known
            or token in specials
        ):
            return None
        known.add(token)
        last_index = index
        ranks[b"".join(byte_of[character] for character in token)] = index
    if len(known) + sum(token in vocabulary for token in specials) != len(vocabulary):
        return None
    # Without ignore_merges (Llama 3's flag): with it every token encodes as itself, merged or not.
    from tokenizers import models

    alone = models.BPE(vocabulary, merge_pairs(definition)).tokenize
    if any(len(alone(token)) != 1 for token in known):
        return None
    return ranks


def tiktoken_twin(definition: Definition) -> tiktoken.Encoding | None:
    """Return a ``tiktoken`` encoder of ordinary text with equal ids; None if not proven or not installed."""
    try:
        import tiktoken
    except ImportError:
        return None
    ranks = proven_ranks(definition)
    if ranks is None:
        return None
    pattern = _POSSESSIVE[str(split_pattern(definition))]
    return tiktoken.Encoding("wordloom", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


Ids = npt.NDArray[np.int32]


class ByteTable:
    """A table of the id of each byte."""

    def __init__(self, definition: Definition) -> None:
        vocabulary = model_vocabulary(definition)
        self._table = np.array([vocabulary[c] for c in bytes_to_characters()], dtype=np.int32)

    def __call__(self, text: str | bytes) -> Ids:
        data = text.encode() if isinstance(text, str) else text
        return self._table[np.frombuffer(data, dtype=np.uint8)]


class CharacterTable:
    """A table of the id of each code point.

    A character outside the vocabulary gives the unknown token, or an error if there is none.
    """

    def __init__(self, definition: Definition, unknown: int | None) -> None:
        specials = special_tokens(definition)
        self._table = np.full(0x110000, -1 if unknown is None else unknown, dtype=np.int32)
        for token, index in model_vocabulary(definition).items():
            if token not in specials:
                self._table[ord(token)] = index

    def __call__(self, text: str | bytes) -> Ids:
        assert isinstance(text, str)
        ids = self._table[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")]
        if ids.size and ids.min() < 0:
            place = int(np.argmax(ids < 0))
            raise TokenizerError(
                f"character {text[place]!r} (U+{ord(text[place]):04X}) at position {place} is not in the "
                "vocabulary, which has no unknown token: train on text with it, with an unknown token, or a "
                "tokenizer that reads all text (byte, bpe)"
            )
        return ids


def byte_offsets(text: str) -> list[tuple[int, int]]:
    """Return for every UTF-8 byte of ``text`` the span of its character."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    lengths = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    owners = np.repeat(np.arange(len(points)), lengths).tolist()
    return [(owner, owner + 1) for owner in owners]
