"""The vectors of any model: a file of word vectors, a folder of them, or the token rows of a checkpoint.

A token is called by the text it stands for, which is also what a person types: ``' king'``, or ``king``, for
the token that begins a word, whatever the vocabulary file writes there (``Ġking``, ``▁king``).  Where the
same letters are a token inside of words too, that one is called ``##king``, as WordPiece does.  Line breaks
and other characters that do not print are written as in Python (``\\n``), bytes that are no character as
``<0xE2>``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import TokenizerError, VectorError, did_you_mean
from wordloom.vectors.files.formats import load_vectors
from wordloom.vectors.files.saved_state import unfinished
from wordloom.vectors.store.keyed import KeyedVectors

if TYPE_CHECKING:
    from wordloom.text import Tokenizer

__all__ = ["TokenVectors", "open_vectors"]

Rows = Literal["embedding", "head"]

_PARAMETERS = {"embedding": "token_embedding.weight", "head": "lm_head.weight"}
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
_NO_CHARACTER = re.compile("[\udc80-\udcff]")  # how "surrogateescape" keeps a byte
_END_OF_WORD = "</w>"  # the first GPT's


def open_vectors(
    path: str | os.PathLike[str], *, rows: Rows | None = None, unicode_errors: str = "strict"
) -> KeyedVectors:
    """The vectors at ``path``: a vector file or folder (:func:`wordloom.vectors.load_vectors`), the words'
    of the fastText classifier in a run's folder, or the token rows of a model's checkpoint folder, ours or
    transformers'.

    Of a checkpoint one tensor is read, not the model.  ``rows`` says which: ``embedding`` (the default), or
    ``head``, the rows of the output layer, which are the same ones where a model ties the two.
    ``unicode_errors`` is what to do with words of a file that are not UTF-8, see :func:`load_word2vec`.

    Raises:
        VectorError: nothing of the kind is there, or ``rows`` is given for a file of vectors.
        CheckpointError: the checkpoint is damaged.
        TokenizerError: its tokenizer cannot be read.
    """
    if rows is not None and rows not in _PARAMETERS:
        raise VectorError(f"unknown rows {rows!r}; {did_you_mean(rows, _PARAMETERS)}")
    folder = Path(path)
    if folder.is_dir() and not (folder / "vectors.json").exists():
        if (folder / "config.json").exists():
            return _token_vectors(folder, rows or "embedding")
        if not (folder / "model.bin").exists():
            raise VectorError(
                unfinished(folder)
                or f"'{folder}' holds neither word vectors (vectors.json) nor a trained model (config.json, "
                "model.bin); give another folder, or a file of vectors"
            )
        folder = folder / "model.bin"
    if rows is not None:
        raise VectorError(f"'{folder}' holds word vectors, not a model that has {rows} rows; leave out rows")
    return load_vectors(folder, unicode_errors=unicode_errors)


def _token_vectors(folder: Path, rows: Rows) -> TokenVectors:
    from wordloom.text import Tokenizer
    from wordloom.weights import load_parameter

    weight = load_parameter(folder, _PARAMETERS[rows])
    try:
        tokenizer = Tokenizer.from_pretrained(folder)
    except TokenizerError as error:
        raise TokenizerError(f"{error}; the tokens of a model have no names without it") from None
    if tokenizer.vocab_size > len(weight):
        raise VectorError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size:,} tokens and the model {len(weight):,} "
            "rows; they do not belong together"
        )
    return TokenVectors(tokenizer, weight.float().numpy())


class TokenVectors(KeyedVectors):
    """A model's tokens and their rows.

    Wherever a word is asked for, a token is found by its text (see the module), without the space before it
    too, and by what its vocabulary file writes.

    Attributes:
        tokenizer: the model's.
        token_ids: [V] int64, the id of each row.  Ids that no token has are left out.
    """

    def __init__(self, tokenizer: Tokenizer, weight: NDArray[Any]) -> None:
        """Takes ``weight`` [ids, D], whose row i is that of the token with id i.

        Raises VectorError for rows that are not finite.
        """
        self.tokenizer = tokenizer
        self._tokens = dict(_tokens(tokenizer))
        self.token_ids: NDArray[np.int64] = np.fromiter(self._tokens, dtype=np.int64)
        if len(self.token_ids) < len(weight):
            weight = weight[self.token_ids]
        super().__init__(_keys(tokenizer, self._tokens), weight)

    @cached_property
    def _row_of_id(self) -> dict[int, int]:
        return {int(index): row for row, index in enumerate(self.token_ids)}

    def _row(self, key: object) -> int | None:
        """The row of a token, found as the class says, or of a row's number."""
        return self._found(key) if isinstance(key, str) else super()._row(key)

    def _found(self, key: str) -> int | None:
        for spelling in (key, f" {key}", f"{key} "):
            if (row := self.key_to_index.get(spelling)) is not None:
                return row
        index = self.tokenizer.token_to_id(key)
        return None if index is None else self._row_of_id.get(index)

    def namesakes(self, key: str) -> list[str]:
        """Other tokens that ``key`` may be meant for: the same letters elsewhere in a word."""
        row = self._found(key)
        alike = (f"##{key}", f" {key}", f"{key} ")
        return [other for other in alike if self.key_to_index.get(other, row) != row]

    def rows_of(self, text: str) -> list[int]:
        """The rows of the tokens of ``text``, special tokens in it taken as text."""
        ids = self.tokenizer.encode_ids(text, specials="text")
        return [self._row_of_id[index] for index in ids]

    def words(self) -> KeyedVectors:
        """The tokens without the spaces around them, for questions written with whole words; of tokens that
        are then alike, the first."""
        rows: dict[str, int] = {}
        for row, key in enumerate(self.index_to_key):
            if bare := key.strip():
                rows.setdefault(bare, row)
        return KeyedVectors(rows, self.vectors[list(rows.values())], check=False)

    def _hint(self, key: object) -> str:
        hint = super()._hint(key)
        if not isinstance(key, str) or not key.strip():
            return hint
        try:
            pieces = [self.index_to_key[row] for row in self.rows_of(key)]
            if f" {key[0]}" in self.key_to_index and pieces[0][0] != " ":  # as after another word
                pieces = [self.index_to_key[row] for row in self.rows_of(f" {key}")]
        except TokenizerError:  # characters that it cannot encode
            return hint
        cut = f"the tokenizer cuts it into {', '.join(map(repr, pieces))}"
        return f"{hint} ({cut})" if "did you mean" in hint else f": {cut}; ask for one of these"

    def _near(self, key: str) -> list[str]:
        if len(key) < 2:  # every token of one letter would be near
            return []
        return super()._near(key) or super()._near(f" {key}")


def _tokens(tokenizer: Tokenizer) -> Iterator[tuple[int, str]]:
    """(id, token as the vocabulary file writes it) of every id that has one."""
    for index in range(tokenizer.vocab_size):
        try:
            yield index, tokenizer.id_to_token(index)
        except TokenizerError:  # a hole
            continue


def _keys(tokenizer: Tokenizer, tokens: dict[int, str]) -> list[str]:
    """What each token is called: its text; where that is taken, what its vocabulary writes, or its id too."""
    texts = {index: _text(tokenizer, index, token) for index, token in tokens.items()}
    spaced = {text for text in texts.values() if text != text.strip()}
    taken: set[str] = set()
    keys = []
    for index, token in tokens.items():
        text = texts[index]
        if text[:1].isalnum() and not spaced.isdisjoint((f" {text}", f"{text} ")):
            text = f"##{text}"
        key = next(name for name in (text, token, f"{token}#{index}") if name not in taken)
        taken.add(key)
        keys.append(key)
    return keys


def _text(tokenizer: Tokenizer, index: int, token: str) -> str:
    if index in tokenizer.special_ids or _BYTE_PIECE.fullmatch(token):
        return token
    data = tokenizer.token_bytes[index] if tokenizer.token_bytes is not None else None
    if data is None:
        text = token.removesuffix(_END_OF_WORD) + " " if token.endswith(_END_OF_WORD) else token
    else:
        text = data.decode("utf-8", "surrogateescape")
    text = _NO_CHARACTER.sub(lambda byte: f"<0x{ord(byte[0]) - 0xDC00:02X}>", text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text) or token
