"""Decoding as ids arrive: text that is never half a character and is never taken back."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING

from wordloom.text.arguments import check_ids

if TYPE_CHECKING:
    from wordloom.text.tokenizer import Tokenizer


class StreamDecoder:
    """Gives the text of a growing sequence of ids piece by piece.

    ``"".join(pushed) + flush()`` is what decoding the whole sequence adds to the text of
    ``ids_so_far``, for which nothing is given out.  An incomplete UTF-8 character is held back until
    the ids that complete it arrive, or until :meth:`flush`, which gives U+FFFD for it.

    Made by :meth:`Tokenizer.stream_decoder`.
    """

    def __init__(
        self, tokenizer: Tokenizer, ids_so_far: Iterable[int] = (), *, skip_special_tokens: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._table = tokenizer.token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._drop_space = tokenizer.strips_first_space
        # For tokens that are not bytes: ids whose text is not wholly given out yet, after a few
        # earlier ones for context (decoders look at neighbours), and the text of those few.
        self._window: list[int] = []
        self._context = 0
        self._done = False
        for token_id in check_ids(ids_so_far, takes_bytes=tokenizer.kind == "byte"):
            self.push(token_id)

    def push(self, token_id: int) -> str:
        """The text that this id makes final; often one token's text, sometimes nothing."""
        if self._done:
            raise ValueError("push() after flush(): make a new StreamDecoder for a new sequence")
        if self._table is None:
            return self._push_to_window(token_id)
        if token_id in self._skip:
            return ""
        return self._without_first_space(self._utf8.decode(self._tokenizer.bytes_of(token_id)))

    def flush(self) -> str:
        """The text still held back; the stream is over afterwards."""
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
        given, text = self._text(self._window[: self._context]), self._text(self._window)
        if text == given or text.endswith("\ufffd") or not text.startswith(given):
            return ""
        self._window = self._window[self._context :]
        self._context = len(self._window)
        return text[len(given) :]

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=bool(self._skip)) if ids else ""
