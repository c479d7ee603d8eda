"""Open the vectors of any model: word vectors in a file or folder, or the token embeddings of a checkpoint.

A token is named by its text: ``' king'``, or ``king``, is the token that begins a word, whatever the
vocabulary file contains (``Ġking``, ``▁king``).  If the same letters are also a token inside words, that
token is named ``##king``, as in WordPiece.  Line breaks and other unprintable characters are written as in
Python (``\\n``), and bytes that are not a character as ``<0xE2>``.
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

Rows = Literal["embedding", "head"]

_PARAMETERS = {"embedding": "token_embedding.weight", "head": "lm_head.weight"}
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
_NO_CHARACTER = re.compile("[\udc80-\udcff]")  # a byte decoded with "surrogateescape"
_END_OF_WORD = "</w>"  # as in GPT-1


def open_vectors(
    path: str | os.PathLike[str], *, rows: Rows | None = None, unicode_errors: str = "strict"
) -> KeyedVectors:
    """Open the vectors at ``path``.

    Args:
        path: a file or folder of word vectors (see :func:`wordloom.vectors.load_vectors`), the run folder of
            a fastText classifier, or a checkpoint folder of Wordloom or transformers, whose tokens are the
            words.
        rows: the tensor to read from a checkpoint: ``embedding`` (the default), or ``head``, the weight of
            the output layer.  The two are equal in models that tie them.
        unicode_errors: how to treat words of a file that are not UTF-8, see :func:`load_word2vec`.

    Raises:
        VectorError: there are no vectors at ``path``, or ``rows`` is given for word vectors.
        CheckpointError: the checkpoint is damaged.
        TokenizerError: the checkpoint's tokenizer cannot be read.
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
        raise VectorError(f"'{folder}' holds word vectors, not a model with {rows} rows; leave out rows")
    return load_vectors(folder, unicode_errors=unicode_errors)


def _token_vectors(folder: Path, rows: Rows) -> TokenVectors:
    from wordloom.text import Tokenizer
    from wordloom.weights import load_parameter

    weight = load_parameter(folder, _PARAMETERS[rows])
    try:
        tokenizer = Tokenizer.from_pretrained(folder)
    except TokenizerError as error:
        raise TokenizerError(f"{error}; the tokens have no names without it") from None
    if tokenizer.vocab_size > len(weight):
        raise VectorError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size:,} tokens and the model {len(weight):,} "
            "rows; they do not belong together"
        )
    return TokenVectors(tokenizer, weight.float().numpy())


class TokenVectors(KeyedVectors):
    """The token vectors of a model.

    Methods find a token by its text (see the module), with or without the space before it, and by its entry
    in the vocabulary file.

    Attributes:
        tokenizer: the model's tokenizer.
        token_ids: [V] int64, the token id of each row, without ids that have no token.
    """

    def __init__(self, tokenizer: Tokenizer, weight: NDArray[Any]) -> None:
        """Take ``weight`` [ids, D], whose row i belongs to token id i.

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
        """Return the row of a token or of a row's number, or None."""
        return self._row_of_token(key) if isinstance(key, str) else super()._row(key)

    def _row_of_token(self, key: str) -> int | None:
        for spelling in (key, f" {key}", f"{key} "):
            if (row := self.key_to_index.get(spelling)) is not None:
                return row
        index = self.tokenizer.token_to_id(key)
        return None if index is None else self._row_of_id.get(index)

    def namesakes(self, key: str) -> list[str]:
        """Return other tokens that ``key`` may refer to: the same letters elsewhere in a word."""
        row = self._row_of_token(key)
        alike = (f"##{key}", f" {key}", f"{key} ")
        return [other for other in alike if self.key_to_index.get(other, row) != row]

    def rows_of(self, text: str) -> list[int]:
        """Return the rows of the tokens of ``text``; special tokens in it are read as text."""
        ids = self.tokenizer.encode_ids(text, specials="text")
        return [self._row_of_id[index] for index in ids]

    def words(self) -> KeyedVectors:
        """Return the tokens without surrounding spaces, for questions that consist of words.

        If several tokens become equal, the first remains.
        """
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
            if f" {key[0]}" in self.key_to_index and pieces[0][0] != " ":  # the split after another word
                pieces = [self.index_to_key[row] for row in self.rows_of(f" {key}")]
        except TokenizerError:  # characters that it cannot encode
            return hint
        split = f"the tokenizer splits it into {', '.join(map(repr, pieces))}"
        return f"{hint} ({split})" if "did you mean" in hint else f": {split}; use one of these"

    def _near(self, key: str) -> list[str]:
        if len(key) < 2:  # every one-letter token would be similar
            return []
        return super()._near(key) or super()._near(f" {key}")


def _tokens(tokenizer: Tokenizer) -> Iterator[tuple[int, str]]:
    """Yield (id, token in the vocabulary file) of every id that has a token."""
    for index in range(tokenizer.vocab_size):
        try:
            yield index, tokenizer.id_to_token(index)
        except TokenizerError:  # an unused id
            continue


def _keys(tokenizer: Tokenizer, tokens: dict[int, str]) -> list[str]:
    """Return the token names: the text, or else the vocabulary's entry, with the id if that is taken too."""
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
