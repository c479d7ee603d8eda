"""Encoding by table look-up, for tokenizers whose units are bytes or characters."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wordloom.errors import TokenizerError
from wordloom.text.definition import Definition, bytes_to_characters, model_vocabulary, special_tokens

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
                f"vocabulary, which has no unknown token: train with an unknown token, or on text with it"
            )
        return ids


def byte_offsets(text: str) -> list[tuple[int, int]]:
    """Return for every UTF-8 byte of ``text`` the span of its character."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    lengths = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    owners = np.repeat(np.arange(len(points)), lengths).tolist()
    return [(owner, owner + 1) for owner in owners]
