"""Encoding: checks of the text, then the fastest path that gives the right ids."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from wordloom.errors import TokenizerError, did_you_mean
from wordloom.text import definition as tokenizer_json
from wordloom.text.arguments import ArgumentTypeError, check_texts, describe
from wordloom.text.fast_paths import ByteTable, CharacterTable, Ids, byte_offsets, tiktoken_twin
from wordloom.text.special import finder, without_specials
from wordloom.threads import cores

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

Specials = Literal["refuse", "text", "interpret"]

_PIECE = 1 << 16  # characters: long texts are split about here, for even work per core and bounded memory
_WORTH_PROVING = 1 << 18  # characters in a batch that make the proof of the fast path (below 1 s) pay
_FAST_LIMIT = 500_000  # characters: tiktoken's regex engine gives up within a million spaces in a row


class Encoding(NamedTuple):
    """Ids and, for each one, the half-open span of the text that it stands for.

    Spans count characters of a ``str`` and bytes of a ``bytes``.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]


class Encoder:
    """Encodes text according to a definition; :class:`wordloom.text.Tokenizer` documents the methods."""

    def __init__(self, definition: tokenizer_json.Definition) -> None:
        self._definition = definition
        self._kind = tokenizer_json.kind(definition)
        self._specials = tokenizer_json.special_tokens(definition)
        self._finder = finder(list(self._specials))
        self._prepends_space = tokenizer_json.prepends_space(definition)
        self._cuts_at_spaces = tokenizer_json.cuts_at_spaces(definition)
        self._matches_normalized = definition["normalizer"] is not None and any(
            token["special"] and token["normalized"] for token in definition["added_tokens"]
        )

    @cached_property
    def interpreting(self) -> tokenizers.Tokenizer:
        """The library's tokenizer, which interprets special tokens in a text."""
        return build({**self._definition, "post_processor": None})

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        return build(without_specials(self._definition)) if self._specials else self.interpreting

    @cached_property
    def _fast(self) -> tiktoken.Encoding | None:
        return tiktoken_twin(self._definition)

    @cached_property
    def _table(self) -> ByteTable | CharacterTable | None:
        """The look-up table of the kinds whose units are bytes or characters; None for others."""
        if self._kind == "byte":
            return ByteTable(self._definition)
        if self._kind == "char" and self._definition["normalizer"] is None:
            return CharacterTable(self._definition, tokenizer_json.unknown_id(self._definition))
        return None

    def encode(self, text: str | bytes, specials: Specials) -> Encoding:
        """Return the ids and spans of one text."""
        self._check(text, specials)
        if self._table is None:
            backend = self.interpreting if specials == "interpret" else self._plain
            encoding = _call_library(backend.encode, text, add_special_tokens=False)
            return Encoding(encoding.ids, encoding.offsets)
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for start, end, special_id in self._parts(text, specials):
            if special_id is not None:
                ids.append(special_id)
                offsets.append((start, end))
                continue
            part = text[start:end]
            ids += self._table(part).tolist()
            if self._kind == "byte" and isinstance(part, str):
                offsets += [(start + a, start + b) for a, b in byte_offsets(part)]
            else:
                offsets += [(place, place + 1) for place in range(start, end)]
        return Encoding(ids, offsets)

    def encode_batch(self, texts: Iterable[str | bytes], specials: Specials) -> list[Ids]:
        """Return the ids of each text, [T] int32, using all cores."""
        listed = list(check_texts(texts, types=(object,)))  # _check reports each text)
        try:
            for text in listed:
                self._check(text, specials)
            return self._encode_checked(listed, specials)
        except TokenizerError:
            for i, text in enumerate(listed if len(listed) > 1 else ()):
                try:
                    self.encode_batch([text], specials)
                except TokenizerError as error:
                    raise type(error)(f"texts[{i}] of the batch: {error}") from error.__cause__
            raise

    def _encode_checked(self, texts: list[str | bytes], specials: Specials) -> list[Ids]:
        if self._table is not None:
            return [self._look_up(text, specials) for text in texts]
        strings = [text for text in texts if isinstance(text, str)]  # all of them: only 'byte' takes bytes
        if specials != "interpret" or self._finder is None:
            return self._ordinary(strings)
        marked = {i for i, text in enumerate(strings) if self._finder.search(self._searched(text))}
        with_specials = [strings[i] for i in sorted(marked)]
        found = _call_library(self.interpreting.encode_batch_fast, with_specials, add_special_tokens=False)
        special = iter([np.array(encoding.ids, dtype=np.int32) for encoding in found])
        ordinary = iter(self._ordinary([text for i, text in enumerate(strings) if i not in marked]))
        return [next(special) if i in marked else next(ordinary) for i in range(len(strings))]

    def _look_up(self, text: str | bytes, specials: Specials) -> Ids:
        assert self._table is not None
        parts = [
            self._table(text[start:end]) if special_id is None else np.array([special_id], dtype=np.int32)
            for start, end, special_id in self._parts(text, specials)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int32), *parts])

    def _ordinary(self, texts: list[str]) -> list[Ids]:
        """Return the ids of texts whose special tokens, if any, are taken as text."""
        if self._cuts_at_spaces:
            cut = [list(cut_at_spaces(text, _PIECE)) for text in texts]
            if self._prepends_space:  # it restores the space that each later piece began with
                cut = [[first, *(piece[1:] for piece in rest)] for first, *rest in cut]
        else:
            cut = [[text] for text in texts]
        pieces = [piece for parts in cut for piece in parts]
        lengths = [len(piece) for piece in pieces]
        is_worth_proving = "_fast" in self.__dict__ or sum(lengths) >= _WORTH_PROVING
        if is_worth_proving and self._fast is not None and max(lengths, default=0) <= _FAST_LIMIT:
            lists = self._fast.encode_ordinary_batch(pieces, num_threads=cores())
        else:
            encodings = _call_library(self._plain.encode_batch_fast, pieces, add_special_tokens=False)
            lists = [encoding.ids for encoding in encodings]
        arrays = iter([np.array(ids, dtype=np.int32) for ids in lists])
        return [
            next(arrays) if len(parts) == 1 else np.concatenate([next(arrays) for _ in parts])
            for parts in cut
        ]

    def _parts(self, text: str | bytes, specials: Specials) -> list[tuple[int, int, int | None]]:
        """Return start, end and id of each special token, and of each stretch of ordinary text (id None)."""
        if specials != "interpret" or self._finder is None:
            return [(0, len(text), None)]
        parts: list[tuple[int, int, int | None]] = []
        last = 0
        for match in self._matches(text):
            name = match.group() if isinstance(text, str) else match.group().decode()
            parts += [(last, match.start(), None), (match.start(), match.end(), self._specials[name])]
            last = match.end()
        return [part for part in [*parts, (last, len(text), None)] if part[0] < part[1]]

    def _matches(self, text: str | bytes) -> Iterator[re.Match[Any]]:
        if self._finder is None:
            return iter(())
        if isinstance(text, bytes):
            return re.compile(self._finder.pattern.encode()).finditer(text)
        return self._finder.finditer(text)

    def _check(self, text: object, specials: str) -> None:
        if specials not in ("refuse", "text", "interpret"):
            hint = did_you_mean(str(specials), ("refuse", "text", "interpret"))
            raise TokenizerError(f"specials (--specials) is {specials!r}: {hint}")
        if isinstance(text, bytes):
            if self._kind != "byte":
                raise TokenizerError(
                    f"bytes were given to a {self._kind} tokenizer, which encodes str: decode them first, "
                    "or use a tokenizer of kind 'byte'"
                )
        elif not isinstance(text, str):
            allowed = "a str or bytes" if self._kind == "byte" else "a str"
            raise ArgumentTypeError(f"the text must be {allowed}, not {describe(text)}")
        elif not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise TokenizerError(
                    f"the text has a lone surrogate (U+{ord(text[error.start]):04X}) at character "
                    f"{error.start}, which no encoding can carry: read its source as UTF-8"
                ) from None
        if specials == "refuse":
            self._refuse_specials(text)

    def _refuse_specials(self, text: str | bytes) -> None:
        match = next(self._matches(text), None)
        unit = "byte" if isinstance(text, bytes) else "character"
        place = f"at {unit} {match.start()}" if match else ""
        if match is None and self._matches_normalized and isinstance(text, str) and self._finder:
            match = self._finder.search(self._normalized(text))
            place = "after normalisation"
        if match is not None:
            name = match.group() if isinstance(text, str) else match.group().decode()
            raise TokenizerError(
                f"the text holds the special token '{name}' {place}: say specials=\"text\" (--specials "
                'text, in a recipe data.specials) to take it as text, or "interpret" to get its id'
            )

    def _searched(self, text: str) -> str:
        """Return the text to search for special tokens, with its normalised form if a token matches that."""
        return f"{text}\n{self._normalized(text)}" if self._matches_normalized else text

    def _normalized(self, text: str) -> str:
        normalizer = self.interpreting.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)


def build(definition: tokenizer_json.Definition) -> tokenizers.Tokenizer:
    """Build the library's tokenizer; raise TokenizerError if the library cannot read the definition."""
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(json.dumps(definition))
    except BaseException as error:  # the library raises bare Exception, and panics
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        raise TokenizerError(
            f"the tokenizers library ({tokenizers.__version__}) cannot read this tokenizer: {error}"
        ) from error


def _call_library(call: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    try:
        return call(*args, **settings)
    except BaseException as error:
        if _is_panic(error):
            raise TokenizerError(
                f"the tokenizers library fails on this tokenizer ({error}): its file is damaged"
            ) from error
        if "UNK" in str(error) or "unk" in str(error):
            raise TokenizerError(
                "the text has a word outside the vocabulary, which has no unknown token: train with an "
                "unknown token, or on text that has every word"
            ) from error
        raise


def _is_panic(error: BaseException) -> bool:
    """True if the library's Rust code panicked; that error is not an ``Exception`` in Python."""
    return type(error).__name__ == "PanicException"


# Not before a space that ends the text, nor behind SentencePiece's sign for a space: the rest would lose its
# space where a tokenizer puts one in front, and a piece of two signs would be cut.
_BEFORE_SPACE = re.compile(r"(?<=[^\s\u2581])(?= .)", re.DOTALL)


def cut_at_spaces(text: str, limit: int) -> Iterator[str]:
    """Yield ``text`` in pieces of about ``limit`` characters, split before a space that follows a non-space.

    All pre-tokenizer patterns end a token there: those of GPT-2 and Llama 3 begin a token with at most one
    space and never continue it across a space.  The ids of the pieces are therefore the ids of the text.  A
    text without a place to split stays whole.
    """
    start = 0
    while len(text) - start > limit:
        match = _BEFORE_SPACE.search(text, start + limit)
        if match is None:
            break
        yield text[start : match.start()]
        start = match.start()
    if start < len(text) or not text:
        yield text[start:]
