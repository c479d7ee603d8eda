"""The tokenizer class, one for all kinds."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wordloom.errors import ChatError, TokenizerError
from wordloom.text import definition as tokenizer_json
from wordloom.text import special
from wordloom.text.arguments import ArgumentTypeError, check_id, check_ids, describe
from wordloom.text.encoding import Encoder, Encoding, Specials
from wordloom.text.fast_paths import Ids
from wordloom.text.formats.folders import read_tokenizer, write_tokenizer
from wordloom.text.streaming import StreamDecoder
from wordloom.text.training.train import TrainingReport, train_definition

_GENERIC = "PreTrainedTokenizerFast"  # the tokenizer_class of transformers that follows tokenizer.json

# A key of tokenizer_config.json: the frame that a task head put around texts, and the settings it replaced.
# They are restored on loading, because the next model that uses the tokenizer has another frame or none.
_BEFORE_FRAME = "wordloom_before_frame"
# A key of it too: the model has learned to read every text behind eos.
_STARTS_WITH_EOS = "wordloom_starts_with_eos"


class Tokenizer:
    """A tokenizer, which encodes text as ids and decodes ids to text.

    Create one with :meth:`train` or :meth:`from_pretrained`.

    Attributes:
        kind: ``word``, ``char``, ``byte``, ``bpe`` (byte-level), ``wordpiece``, ``unigram``, ``llama``
            (SentencePiece's BPE) or ``other`` (a ``tokenizer.json`` that is none of these).
        vocab_size: ids are ``0 .. vocab_size - 1``, special tokens included.
        bos_id, eos_id, pad_id, unk_id, mask_id, cls_id, sep_id: the ids of the special roles, None where
            the tokenizer has no token of that role.  Encoding gives ``unk_id`` for text that the vocabulary
            cannot represent.
        special_ids: the ids of all special tokens.
        lossless: True if ``decode(encode(text)) == text`` for every text, with special tokens in it taken
            as text.  The exception is U+2581, which a SentencePiece tokenizer (``llama``) reads as a space.
        fingerprint: SHA-256 (hex) of everything that affects ids.
        training_report: the corpus and the result of :meth:`train`; None for a tokenizer that was loaded.
    """

    def __init__(
        self,
        definition: Mapping[str, Any],
        config: Mapping[str, Any] | None = None,
        *,
        chat_template: str | ChatError | None = None,
        training_report: TrainingReport | None = None,
    ) -> None:
        """Build the tokenizer from the parsed ``tokenizer.json`` and ``tokenizer_config.json``."""
        self._definition = {**definition, "truncation": None, "padding": None}  # no truncation, no padding
        self._definition["added_tokens"] = [dict(token) for token in definition["added_tokens"]]
        if definition["model"].get("dropout"):  # without it, equal texts get equal ids
            self._definition["model"] = {**definition["model"], "dropout": None}
        self._config = dict(config or {})
        self._chat_template = chat_template
        self.training_report = training_report

        names = {role: special.token_name(self._config.get(f"{role}_token")) for role in special.ROLES}
        if not any(names.values()):
            names.update(special.roles_by_name(list(tokenizer_json.special_tokens(self._definition))))
        for role in special.NEW_ROLES:
            if name := names[role]:
                special.mark_special(self._definition, name, self._config.get(f"{role}_token"))
        self._ids = tokenizer_json.full_vocabulary(self._definition)
        self._tokens = {index: token for token, index in self._ids.items()}
        roles = {role: self._ids[name] if name else None for role, name in names.items()}
        roles["unk"] = tokenizer_json.unknown_id(self._definition)

        self.kind = tokenizer_json.kind(self._definition)
        self.vocab_size = max(self._tokens, default=-1) + 1
        self.bos_id, self.eos_id, self.pad_id = roles["bos"], roles["eos"], roles["pad"]
        self.unk_id, self.mask_id = roles["unk"], roles["mask"]
        self.cls_id, self.sep_id = roles["cls"], roles["sep"]
        self.special_ids = frozenset(tokenizer_json.special_tokens(self._definition).values())
        self.lossless = tokenizer_json.is_lossless(self._definition)
        self.fingerprint = tokenizer_json.fingerprint(self._definition, roles)
        self.strips_first_space = tokenizer_json.strips_first_space(self._definition)
        self._encoder = Encoder(self._definition)

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocab_size={self.vocab_size})"

    # Training, loading, saving

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        kind: str,
        vocab_size: int | None = None,
        lower: bool = False,
        min_frequency: int | None = None,
        special_tokens: Sequence[str] | Mapping[str, str] | None = None,
        split: str | None = None,
        limit_alphabet: int | None = None,
        sample_bytes: int = 256 << 20,
        seed: int = 0,
        progress: Callable[[str, int, int | None], None] | None = None,
    ) -> Tokenizer:
        """Train a tokenizer on documents, which are read once as a stream.

        Args:
            texts: documents.
            kind: a key of :data:`wordloom.text.TOKENIZERS`.
            vocab_size: requested size, special tokens included.  None: 8192 for bpe, wordpiece and
                unigram; every word or character for word and char; byte has 256 and its special tokens.
            lower: lower-case the text, in training and in encoding.
            min_frequency: how often a word (word), character (char) or pair (bpe, wordpiece) must occur.
                None: 1 for word and char, 2 for bpe and wordpiece.
            special_tokens: names, with the role of each well-known name (``</s>`` and ``<|endoftext|>`` are
                eos, and so on); or a mapping of role to name; ``()`` for none.  None: the kind's default.
            split: how text is split first: ``gpt2`` (default) or ``llama3`` for bpe and unigram; ``words``
                (words and single punctuation marks, default) or ``whitespace`` for word.
            limit_alphabet: characters kept by wordpiece and unigram, the most frequent (default 1000).
                The others become the unknown token (wordpiece) or bytes (unigram).
            sample_bytes: limit on the text held in memory.  A smaller corpus is used completely; a larger
                one gives a uniform sample of 64 KB stretches drawn with ``seed``.  The char kind reads all.
            progress: called with a stage (``reading``, ``counting``), bytes done, and bytes in all if known.

        The result's ``training_report`` gives the amount of text read and used, and notes on settings that
        could not be met.
        Raises TokenizerError for an impossible setting or an empty corpus.
        """
        definition, config, report = train_definition(
            texts,
            kind=kind,
            vocab_size=vocab_size,
            lower=lower,
            min_frequency=min_frequency,
            special_tokens=special_tokens,
            split=split,
            limit_alphabet=limit_alphabet,
            sample_bytes=sample_bytes,
            seed=seed,
            progress=progress,
        )
        return cls(definition, config, training_report=report)

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Load a tokenizer from a folder or file.

        Reads ``tokenizer.json`` of any kind, GPT-2's ``encoder.json`` + ``vocab.bpe`` or ``vocab.json`` +
        ``merges.txt``, SentencePiece's ``tokenizer.model``, and BERT's ``vocab.txt``.  The chat template is
        that of ``chat_template.jinja``, else the one in ``tokenizer_config.json``.

        Raises TokenizerError if there is none at ``path`` or it cannot be read.
        """
        definition, config, chat_template = read_tokenizer(Path(path))
        before = config.pop(_BEFORE_FRAME, None)
        if before and definition["post_processor"] == before["frame"]:  # otherwise another program changed it
            definition = {**definition, "post_processor": before["post_processor"]}
            config |= before["config"]
        return cls(definition, config, chat_template=chat_template)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write ``tokenizer.json`` and ``tokenizer_config.json``, which transformers loads with equal ids.

        Each file is replaced completely or not at all.  The files cannot express ``specials``:
        transformers always interprets special tokens in text.
        """
        config = {"tokenizer_class": _GENERIC, "clean_up_tokenization_spaces": False, **self._config}
        for role in special.ROLES:
            index = getattr(self, f"{role}_id")
            if index is not None and not config.get(f"{role}_token"):
                config[f"{role}_token"] = self._tokens[index]
        write_tokenizer(Path(folder), self._definition, config, self._chat_template)

    # Text to ids

    def encode(self, text: str | bytes, *, specials: Specials = "refuse") -> Encoding:
        """Return the ids of a text and the span of each one.  Adds neither bos nor eos.

        Args:
            text: a ``str``; or, for the byte kind, any ``bytes``.
            specials: how to treat a special token written in ``text``: ``"refuse"`` raises an error,
                ``"text"`` encodes its characters like any others, ``"interpret"`` gives its id.

        Raises ArgumentTypeError (a TokenizerError and a TypeError) for what is not a text, and
        TokenizerError for a refused special token (naming it and its place), for bytes where
        they cannot be encoded, for a lone surrogate, and for a character or word outside a vocabulary
        that has no unknown token.
        """
        return self._encoder.encode(text, specials)

    def encode_ids(self, text: str | bytes, *, specials: Specials = "refuse") -> list[int]:
        """Return the ids of a text, faster than :meth:`encode`."""
        ids: list[int] = self._encoder.encode_batch([text], specials)[0].tolist()
        return ids

    def encode_batch(self, texts: Iterable[str | bytes], *, specials: Specials = "refuse") -> list[Ids]:
        """Return the ids of each text, as int32 arrays [T].  Uses all cores, without the interpreter's lock.

        Byte-level BPE goes through ``tiktoken`` where its ids are proven equal, the byte and char kinds
        through a table, all others through ``tokenizers``.  Long texts are cut where that cannot
        change an id.  Raises as :meth:`encode` does, naming the text by its index.
        """
        return self._encoder.encode_batch(texts, specials)

    def prompt_ids(self, text: str | bytes, *, specials: Specials = "refuse") -> list[int]:
        """Return the ids of ``text`` as a prompt, behind :attr:`start_id` unless they begin with it."""
        ids, start = self.encode_ids(text, specials=specials), self.start_id
        return ids if start is None or ids[:1] == [start] else [start, *ids]

    @property
    def start_id(self) -> int | None:
        """The token before every prompt: bos if :attr:`adds_bos` is true, eos after :meth:`with_start`."""
        if self.adds_bos:
            return self.bos_id
        return self.eos_id if self._config.get(_STARTS_WITH_EOS) else None

    @property
    def chat_template(self) -> str | None:
        """The Jinja template that came with the tokenizer, or None.

        Raises ChatError if the folder has something else in its place.
        """
        if isinstance(self._chat_template, ChatError):
            raise self._chat_template
        return self._chat_template

    @property
    def definition(self) -> Mapping[str, Any]:
        """The parsed ``tokenizer.json``, to read."""
        return self._definition

    @property
    def adds_bos(self) -> bool:
        """True if the tokenizer's configuration or post-processor puts bos before a text, as LLaMA's does."""
        if self.bos_id is None:
            return False
        if self._config.get("add_bos_token") is not None:
            return bool(self._config["add_bos_token"])
        return tokenizer_json.leading_token(self._definition) == self._tokens[self.bos_id]

    # Ids to text

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of ``ids``; bytes that are not valid UTF-8 become U+FFFD.

        ``ids`` may be any iterable of integers, a NumPy array or a tensor, of one dimension; a byte
        tokenizer also takes ``bytes``.  Raises
        ArgumentTypeError (a TokenizerError and a TypeError) for anything else, and TokenizerError for an id
        outside the vocabulary.
        """
        ids = self.checked_ids(ids)
        if self.token_bytes is None:
            return self._encoder.interpreting.decode(ids, skip_special_tokens=skip_special_tokens)
        if skip_special_tokens:
            ids = [index for index in ids if index not in self.special_ids]
        return self.decode_bytes(ids).decode(errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the exact bytes of ``ids``, which need not be valid UTF-8.

        Raises TokenizerError for a tokenizer whose tokens are not bytes.
        """
        if self.token_bytes is None:
            raise TokenizerError(
                f"the tokens of this {self.kind} tokenizer do not stand for exact bytes: use decode(), or a "
                "tokenizer of kind byte, bpe or unigram"
            )
        data = b"".join([self.token_bytes[index] or b"" for index in self.checked_ids(ids)])
        return data.removeprefix(b" ") if self.strips_first_space else data

    def stream_decoder(
        self, ids_so_far: Iterable[int] = (), *, skip_special_tokens: bool = False
    ) -> StreamDecoder:
        """Return a decoder for ids that arrive one by one after ``ids_so_far`` (the prompt)."""
        return StreamDecoder(self, ids_so_far, skip_special_tokens=skip_special_tokens)

    @cached_property
    def token_bytes(self) -> list[bytes | None] | None:
        """The bytes of each id, None for an id without a token; None for a tokenizer without exact bytes."""
        return tokenizer_json.token_bytes(self._definition, self.vocab_size)

    def bytes_of(self, index: int) -> bytes:
        """Return the bytes of one id; raise TokenizerError if it has none."""
        data = self.token_bytes[self.checked_ids([check_id(index)])[0]] if self.token_bytes else None
        if data is None:
            raise TokenizerError(f"id {index} has no bytes in this {self.kind} tokenizer")
        return data

    def byte_lengths(self) -> npt.NDArray[np.int32] | None:
        """Return the number of bytes of text that each id stands for, [vocab_size], for bits per byte.

        Special tokens stand for none.  The result is None for lossy tokenizers, except for the char kind
        without an unknown token.  With a SentencePiece tokenizer, the first token of each text counts one
        byte too many, for the space that encoding adds.
        """
        if self.lossless:
            pieces = self.token_bytes or []
        elif self.kind == "char" and self.unk_id is None and self._definition["normalizer"] is None:
            pieces = [self._tokens.get(index, "").encode() for index in range(self.vocab_size)]
        else:
            return None
        lengths = [
            0 if index in self.special_ids or piece is None else len(piece)
            for index, piece in enumerate(pieces)
        ]
        return np.array(lengths, dtype=np.int32)

    # Vocabulary

    def vocabulary_hash(self, size: int | None = None) -> str:
        """Return 16 hex digits of SHA-256 over the tokens with ids below ``size`` (None: all), in order.

        A model folder keeps it to recognise its tokenizer, even after tokens were added at the end.
        """
        size = self.vocab_size if size is None else size
        tokens = [self._tokens.get(index, "") for index in range(size)]
        return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]

    def with_end(self) -> Tokenizer:
        """Return the tokenizer with a frame that ends every text with eos, as Marian's does.

        A tokenizer without eos is returned unchanged.
        """
        return self if self.eos_id is None else self.with_frame((), (self.eos_id,), (self.eos_id,))

    def with_start(self, *, eos: bool) -> Tokenizer:
        """Return the tokenizer with or without ``eos`` before every prompt.

        One that adds a bos, or has no eos, is returned unchanged.  Only Wordloom reads this from a folder.
        """
        if self.adds_bos or self.eos_id is None or eos == bool(self._config.get(_STARTS_WITH_EOS)):
            return self
        config = {key: value for key, value in self._config.items() if key != _STARTS_WITH_EOS}
        return self._changed(config | ({_STARTS_WITH_EOS: True} if eos else {}))

    def with_frame(
        self,
        start: Sequence[int],
        between: Sequence[int],
        end: Sequence[int],
        *,
        second_segment: int = 0,
        instead: bool = False,
    ) -> Tokenizer:
        """Return a tokenizer whose ``tokenizer.json`` makes other tools add ids around texts.

        Wordloom's own encoding adds nothing.  A tokenizer that has a frame keeps it, unless ``instead`` is
        true; :meth:`from_pretrained` then restores the original frame.
        """
        config, processor = self._config, self._definition["post_processor"]
        if instead or not tokenizer_json.frames(self._definition):
            parts = ([(self._tokens[index], index) for index in ids] for ids in (start, between, end))
            processor = tokenizer_json.frame_template(*parts, second_segment=second_segment)
        if instead:
            replaced = {key: value for key, value in config.items() if key.startswith("add_")}
            replaced["tokenizer_class"] = config.get("tokenizer_class", _GENERIC)
            before = {"post_processor": self._definition["post_processor"], "config": replaced}
            before = {**config.get(_BEFORE_FRAME, before), "frame": processor}
            config = {key: value for key, value in config.items() if key not in replaced}
            config |= {"tokenizer_class": _GENERIC, _BEFORE_FRAME: before}
        generic = config.get("tokenizer_class", _GENERIC) == _GENERIC
        if second_segment and generic:  # the class returns segment ids only if asked
            config = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"], **config}
        return self._changed(config, post_processor=processor)

    def with_one_segment(self) -> Tokenizer:
        """Return a tokenizer whose files make other tools put both texts of a pair into segment 0."""
        config = dict(self._config)
        if names := config.get("model_input_names"):
            config["model_input_names"] = [name for name in names if name != "token_type_ids"]
        processor = tokenizer_json.in_one_segment(self._definition["post_processor"])
        return self._changed(config, post_processor=processor)

    def with_bert_ends(self) -> Tokenizer:
        """Return the tokenizer with cls and sep as bos and eos if it has no eos, for generative models."""
        if self.eos_id is not None or self.sep_id is None:
            return self
        ids = {role: getattr(self, f"{role}_id") for role in special.ROLES}
        ids |= {"bos": self.cls_id if self.bos_id is None else self.bos_id, "eos": self.sep_id}
        tokens = {f"{role}_token": self._tokens[index] for role, index in ids.items() if index is not None}
        return self._changed({**self._config, **tokens})

    def with_marks(self, start: str, between: str, end: str) -> Tokenizer:
        """Return a tokenizer with three more special tokens, which frame a text and separate two.

        The tokens get the next free ids, unless the tokenizer has all three.  Its ``tokenizer.json`` makes
        other tools add them, after bos if there is one; Wordloom's own encoding adds nothing.  Raises
        TokenizerError if one of them is an ordinary token of the vocabulary.
        """
        names = (start, between, end)
        has_all = all(self._ids.get(name) in self.special_ids for name in names)
        extended = self if has_all else self._with_special_tokens(names)
        first, second, last = (extended._ids[name] for name in names)
        bos = () if self.bos_id is None else (self.bos_id,)
        return extended.with_frame((*bos, first), (second,), (last,), instead=True)

    def with_chat_template(self, source: str, tokens: Sequence[str] = ()) -> Tokenizer:
        """Return the tokenizer with a chat template, and further special ``tokens`` at the next free ids.

        Raises TokenizerError if one of them is an ordinary token of the vocabulary.
        """
        tokenizer = self._with_special_tokens(tokens)
        tokenizer._chat_template = source
        return tokenizer

    def _with_special_tokens(self, names: Sequence[str]) -> Tokenizer:
        """Return a tokenizer with these special tokens at the next free ids."""
        if taken := [name for name in names if name in self._ids]:
            raise TokenizerError(f"the vocabulary already has a token '{taken[0]}': use another tokenizer")
        added = [special.added_token(name, self.vocab_size + n) for n, name in enumerate(names)]
        return self._changed(self._config, added_tokens=[*self._definition["added_tokens"], *added])

    def _changed(self, config: Mapping[str, Any], **parts: Any) -> Tokenizer:
        """Return a tokenizer with another configuration and other ``parts`` of the definition."""
        definition, report = {**self._definition, **parts}, self.training_report
        return Tokenizer(definition, config, chat_template=self._chat_template, training_report=report)

    def continuations(self) -> npt.NDArray[np.bool_]:
        """Return for each id, [vocab_size], whether it continues the word of the token before it."""
        return np.array(tokenizer_json.continuations(self._definition, self.vocab_size), dtype=bool)

    def id_to_token(self, index: int) -> str:
        """Return the token as the vocabulary spells it; raise TokenizerError if no token has this id."""
        return self._tokens[self.checked_ids([check_id(index)])[0]]

    def token_text(self, index: int) -> str:
        """Return the text of one id with its white space, or its name in the vocabulary if it has no text.

        A part of a character is written as its bytes, such as ``\\xe2\\x80``.

        Raises TokenizerError if no token has this id.
        """
        name = self.id_to_token(index)
        raw = None if self.token_bytes is None else self.token_bytes[index]
        if raw is None:
            return name
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "".join(f"\\x{byte:02x}" for byte in raw)

    def special_names(self) -> dict[str, str]:
        """Return the special tokens by the names that chat templates give them, such as ``bos_token``."""
        ids = {role: getattr(self, f"{role}_id") for role in special.ROLES}
        return {f"{role}_token": self._tokens[index] for role, index in ids.items() if index is not None}

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token as the vocabulary spells it, or None."""
        if not isinstance(token, str):
            raise ArgumentTypeError(f"a token must be a str, not {describe(token)}")
        return self._ids.get(token)

    def checked_ids(self, ids: Iterable[int]) -> list[int]:
        """Return ``ids`` as a list; raise TokenizerError for one that is not in the vocabulary."""
        listed = check_ids(ids, takes_bytes=self.kind == "byte")
        if not self._tokens.keys() >= set(listed):
            wrong = next(index for index in listed if index not in self._tokens)
            raise TokenizerError(
                f"id {wrong} is not in the vocabulary, whose ids are 0 to {self.vocab_size - 1}: "
                "these ids come from another tokenizer"
            )
        return listed
