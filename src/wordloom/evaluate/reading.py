"""Tokenize documents for a model, and check that their tokens decode to the text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, AnyStr, Literal

import numpy as np

from wordloom.errors import EvaluationError, TokenizerError
from wordloom.evaluate.likelihood import Ids

if TYPE_CHECKING:
    from wordloom.data import Document
    from wordloom.data.text.documents import Piece
    from wordloom.text import Specials, Tokenizer

Start = Literal["auto", "bos", "eos", "label", "none"]
End = Literal["auto", "eos", "none"]


class Recovered(IntEnum):
    """How much of a text its tokens decode to; each level includes the ones before.

    Bits per byte are undefined for a lossy tokenizer, because lost characters would cost nothing.
    """

    NOTHING = 0
    WORDS = 1  # the words between white space, in order
    LINES = 2  # and which line each stands on
    TEXT = 3  # every character


def recovered(text: AnyStr, decoded: AnyStr) -> Recovered:
    """Return how much of ``text`` is in the ``decoded`` text."""
    if text == decoded:
        return Recovered.TEXT
    if text.split() != decoded.split():
        return Recovered.NOTHING
    newline = b"\n" if isinstance(text, bytes) else "\n"
    lines, others = ([line.split() for line in one.split(newline)] for one in (text, decoded))
    return Recovered.LINES if lines == others else Recovered.WORDS


@dataclass(frozen=True, eq=False, kw_only=True)
class ReadText:
    """A tokenized document; its sizes are those of the raw text."""

    sequence: Ids  # start token, tokens, end token
    token_bytes: Ids | None  # bytes of each of ``sequence``, 0 for start and end; None if undefined
    has_start: bool
    bytes: int
    words: int  # between white space
    word_bytes: int  # those of the words, and one of white space after each
    lines: int  # line ends
    unknown: int
    recovered: Recovered


class Reader:
    """Reads documents as :class:`ReadText`.

    The module :mod:`wordloom.evaluate.perplexity` describes ``start`` and ``end``.
    """

    def __init__(self, tokenizer: Tokenizer, *, start: Start, end: End, specials: Specials) -> None:
        self.tokenizer, self.specials = tokenizer, specials
        bos, eos = tokenizer.bos_id, tokenizer.eos_id
        if start == "auto":
            start = "bos" if tokenizer.adds_bos else "eos" if eos is not None else "none"
        if end == "auto":
            end = "eos" if eos is not None else "none"
        self.starts_with_label = start == "label"
        self.before = [] if self.starts_with_label else _token("start", start, {"bos": bos, "eos": eos})
        self.after = _token("end", end, {"eos": eos})
        self.start_name, self.end_name = ("no" if name == "none" else name for name in (start, end))
        self.byte_lengths = tokenizer.byte_lengths()
        self.empty = 0  # documents that texts() left out
        self._hash = hashlib.sha256()

    def texts(self, documents: Iterable[Document | Piece | str | bytes]) -> Iterator[ReadText]:
        """Yield each document as :meth:`read` returns it, without empty ones, which training also drops."""
        for document in documents:
            if document if isinstance(document, (str, bytes)) else document.text:
                yield self.read(document)
            else:
                self.empty += 1

    def ids(self, document: Document | Piece | str | bytes) -> Ids:
        """Return the tokens of a document; raises TokenizerError, which names it, for refused text."""
        text = document if isinstance(document, (str, bytes)) else document.text
        try:
            return self.tokenizer.encode_batch([text], specials=self.specials)[0]
        except TokenizerError as error:
            if isinstance(document, (str, bytes)):
                raise
            raise TokenizerError(f"{document.source}, document {document.index + 1}: {error}") from None

    def notes(self) -> tuple[str, ...]:
        """Return a line that counts the empty documents, if there were any."""
        some = "1 empty document is" if self.empty == 1 else f"{self.empty:,} empty documents are"
        return (f"{some} left out, as in training",) if self.empty else ()

    def read(self, document: Document | Piece | str | bytes) -> ReadText:
        """Tokenize a document; raises TokenizerError, which names the document, for refused text."""
        text = document if isinstance(document, (str, bytes)) else document.text
        prefix = str(getattr(document, "prefix", "")) if self.starts_with_label else ""
        before = self._label(prefix) if self.starts_with_label else self.before
        ids = self.ids(document)
        if isinstance(text, bytes):
            raw, lines = text, text.count(b"\n")
            level = recovered(text, self.tokenizer.decode_bytes(ids))
        else:
            raw, lines = text.encode(), text.count("\n")
            level = recovered(text, self.tokenizer.decode(ids))
        words = raw.split() if isinstance(text, bytes) else [word.encode() for word in text.split()]
        read = prefix.encode() + raw
        self._hash.update(len(read).to_bytes(8, "little") + read)
        sizes = None
        if self.byte_lengths is not None:
            sizes = np.pad(self.byte_lengths[ids], (len(before), len(self.after)))
        return ReadText(
            sequence=np.concatenate([before, ids, self.after]).astype(np.int64),
            token_bytes=sizes,
            has_start=bool(before),
            bytes=len(raw),
            words=len(words),
            word_bytes=sum(map(len, words)) + len(words),
            lines=lines,
            unknown=0 if self.tokenizer.unk_id is None else int(np.sum(ids == self.tokenizer.unk_id)),
            recovered=level,
        )

    def _label(self, prefix: str) -> list[int]:
        label = self.tokenizer.token_to_id(prefix)
        if label is None:
            raise EvaluationError(
                f"start 'label' needs texts behind a token of the tokenizer, not behind {prefix!r}; allowed: "
                "auto, bos, eos, none"
            )
        return [label]

    def digest(self) -> str:
        """Return eight hex digits of the SHA-256 of all documents read so far, lengths included."""
        return self._hash.hexdigest()[:8]


def _token(option: str, role: str, tokens: dict[str, int | None]) -> list[int]:
    if role == "none":
        return []
    if role not in tokens:
        raise EvaluationError(f"unknown {option} {role!r}; allowed: auto, {', '.join(tokens)}, none")
    token = tokens[role]
    if token is None:
        raise EvaluationError(f"{option} {role!r}: the tokenizer has no {role} token; allowed: auto, none")
    return [token]


def check_vocabulary(model: Any, tokenizer: Tokenizer) -> None:
    """Raise EvaluationError if ``tokenizer`` has ids that ``model`` does not have."""
    if tokenizer.vocab_size > model.config.vocab_size:
        raise EvaluationError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model {model.config.vocab_size}; "
            "give the tokenizer the model was trained with"
        )


def tokenizer_name(tokenizer: Tokenizer) -> str:
    """Return kind, size and fingerprint of a tokenizer, such as ``bpe-4096-ab12cd``."""
    return f"{tokenizer.kind}-{tokenizer.vocab_size}-{tokenizer.fingerprint[:6]}"
