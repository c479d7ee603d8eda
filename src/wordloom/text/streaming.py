"""Streaming decoding: complete characters only, and no text that changes later."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol

from wordloom.text.arguments import check_id, check_ids


class Decoder(Protocol):
    """The part of a :class:`~wordloom.text.Tokenizer` that decodes ids."""

    kind: str
    special_ids: frozenset[int]
    strips_first_space: bool

    @property
    def token_bytes(self) -> list[bytes | None] | None: ...
    def bytes_of(self, index: int) -> bytes: ...
    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str: ...


class StreamDecoder:
    """A decoder that returns the text of a growing sequence of ids piece by piece.

    The joined results of :meth:`push` and :meth:`flush` are the text of the whole sequence without the text
    of ``ids_so_far``.  An incomplete UTF-8 character waits for the ids that complete it;
    :meth:`flush` returns U+FFFD for it.

    :meth:`Tokenizer.stream_decoder` creates one.
    """

    def __init__(
        self, tokenizer: Decoder, ids_so_far: Iterable[int] = (), *, skip_special_tokens: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._table = tokenizer.token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._drop_space = tokenizer.strips_first_space
        # For tokens that are not bytes: ids whose text is not returned yet, after a few earlier ones as
        # context, because decoders look at neighbours; and the number of these.
        self._window: list[int] = []
        self._context = 0
        self._done = False
        for token_id in check_ids(ids_so_far, takes_bytes=tokenizer.kind == "byte"):
            self.push(token_id)

    def push(self, token_id: int) -> str:
        """Add an id and return the text that is now complete, which may be empty."""
        if self._done:
            raise ValueError("push() after flush(): create a new StreamDecoder for a new sequence")
        token_id = check_id(token_id)
        if token_id in self._skip:
            return ""
        if self._table is None:
            return self._push_to_window(token_id)
        return self._without_first_space(self._utf8.decode(self._tokenizer.bytes_of(token_id)))

    def flush(self) -> str:
        """Return the remaining text and end the stream."""
        self._done = True
        if self._table is not None:
            return self._without_first_space(self._utf8.decode(b"", final=True))
        return self._text(self._window)[len(self._text(self._window[: self._context])) :]

    def _without_first_space(self, text: str) -> str:
        if self._drop_space and text:
            self._drop_space = False
            return text.removeprefix(" ")
        return text

    def _push_to_window(self, token_id: int) -> str:
        self._window.append(token_id)
        context, text = self._text(self._window[: self._context]), self._text(self._window)
        if text == context or text.endswith("\ufffd") or not text.startswith(context):
            return ""
        self._window = self._window[self._context :]
        self._context = len(self._window)
        return text[len(context) :]

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=bool(self._skip)) if ids else ""
