"""The one tokenizer class: text to ids and back, whatever the kind."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wordloom.errors import TokenizerError
from wordloom.text import special
from wordloom.text.arguments import check_id, check_ids
from wordloom.text.direct import Ids
from wordloom.text.encoding import Encoder, Encoding, Specials
from wordloom.text.formats import definition as facts
from wordloom.text.streaming import StreamDecoder

if TYPE_CHECKING:
    from wordloom.text.training.train import TrainingReport

_GENERIC = "PreTrainedTokenizerFast"  # the tokenizer_class of transformers that does what tokenizer.json says

# In tokenizer_config.json: the frame that a folder's head has texts read in, and what stood there before.
# The next model that begins with this tokenizer, such as a language model again, has another frame or none.
_BEFORE = "wordloom_before_frame"


class Tokenizer:
    """Text to ids and back.

    Make one with :meth:`train` or :meth:`from_pretrained`.

    Attributes:
        kind: ``word``, ``char``, ``byte``, ``bpe`` (byte-level), ``wordpiece``, ``unigram``, ``llama``
            (SentencePiece's BPE) or ``other`` (a ``tokenizer.json`` that is none of these).
        vocab_size: ids are ``0 .. vocab_size - 1``, special tokens included.
        bos_id, eos_id, pad_id, unk_id, mask_id, cls_id, sep_id: the ids of the special roles, None where
            the tokenizer has no such token.  ``unk_id`` is what encoding gives for what the vocabulary
            cannot represent.
        special_ids: the ids of all special tokens.
        lossless: ``decode(encode(text)) == text`` for every text, special tokens in it taken as text.
            SentencePiece's layout (``llama``) reads a literal U+2581 as a space; that one character is
            outside the promise, because the ids are SentencePiece's own.
        fingerprint: SHA-256 (hex) of everything that decides ids.
        chat_template: the Jinja template that came with the tokenizer, or None.
        training_report: what :meth:`train` saw and made; None for a tokenizer that was read.
    """

    def __init__(
        self,
        definition: Mapping[str, Any],
        config: Mapping[str, Any] | None = None,
        *,
        chat_template: str | None = None,
        training_report: TrainingReport | None = None,
    ) -> None:
        """Take the parsed ``tokenizer.json`` and ``tokenizer_config.json``."""
        self._definition = {**definition, "truncation": None, "padding": None}  # nothing is cut or padded
        self._definition["added_tokens"] = [dict(token) for token in definition["added_tokens"]]
        if definition["model"].get("dropout"):  # BPE dropout: the same text gets the same ids
            self._definition["model"] = {**definition["model"], "dropout": None}
        self._config = dict(config or {})
        self.chat_template = chat_template
        self.training_report = training_report

        names = {role: special.token_name(self._config.get(f"{role}_token")) for role in special.ROLES}
        if not any(names.values()):
            names.update(special.roles_by_name(list(facts.special_tokens(self._definition))))
        for name in filter(None, names.values()):
            special.mark_special(self._definition, name)
        self._ids = facts.full_vocabulary(self._definition)
        self._tokens = {index: token for token, index in self._ids.items()}
        roles = {role: self._ids[name] if name else None for role, name in names.items()}
        roles["unk"] = facts.unknown_id(self._definition)

        self.kind = facts.kind(self._definition)
        self.vocab_size = max(self._tokens, default=-1) + 1
        self.bos_id, self.eos_id, self.pad_id = roles["bos"], roles["eos"], roles["pad"]
        self.unk_id, self.mask_id = roles["unk"], roles["mask"]
        self.cls_id, self.sep_id = roles["cls"], roles["sep"]
        self.special_ids = frozenset(facts.special_tokens(self._definition).values())
        self.lossless = facts.is_lossless(self._definition)
        self.fingerprint = facts.fingerprint(self._definition, roles)
        self.strips_first_space = facts.strips_first_space(self._definition)
        self._encoder = Encoder(self._definition)

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocab_size={self.vocab_size})"

    # Making and keeping

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
        """Learn a vocabulary from documents, read once as a stream.

        Args:
            texts: the documents.
            kind: a key of :data:`wordloom.text.TOKENIZERS`.
            vocab_size: size aimed at, special tokens included.  None: 8192 for bpe, wordpiece and
                unigram; every word or character for word and char; byte has 256 and its special tokens.
            lower: lower-case the text, here and whenever the tokenizer encodes.
            min_frequency: how often a word (word), character (char) or pair (bpe, wordpiece) must occur.
                None: 1 for word and char, 2 for bpe and wordpiece.
            special_tokens: names, whose roles their names tell (``</s>`` or ``<|endoftext|>`` is eos and
                so on); or a mapping of role to name; ``()`` for none.  None: those usual for the kind.
            split: how text is split first: ``gpt2`` (default) or ``llama3`` for bpe and unigram; ``words``
                (words and single punctuation marks, default) or ``whitespace`` for word.
            limit_alphabet: characters kept by wordpiece and unigram, the most frequent (default 1000).
                The others become the unknown token (wordpiece) or bytes (unigram).
            sample_bytes: bound on the text held in memory.  A corpus within it is used whole; from a larger
                one, a uniform sample of 64 KB stretches drawn by ``seed``.  The char kind sees all.
            progress: called with a stage (``reading``, ``counting``), bytes done, and bytes in all if known.

        The result's ``training_report`` says how much was seen and used, and what was not as asked.
        Raises TokenizerError for an impossible setting or an empty corpus.
        """
        from wordloom.text.training.train import train

        return train(
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

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Read a folder or file: ``tokenizer.json`` of any kind, GPT-2's ``encoder.json`` + ``vocab.bpe`` or
        ``vocab.json`` + ``merges.txt``, SentencePiece's ``tokenizer.model``, BERT's ``vocab.txt``.

        Raises TokenizerError if there is none at ``path`` or it cannot be read.
        """
        from wordloom.text.formats.reading import read

        definition, config, chat_template = read(Path(path))
        before = config.pop(_BEFORE, None)
        if before and definition["post_processor"] == before["frame"]:  # else somebody has changed it since
            definition = {**definition, "post_processor": before["post_processor"]}
            config |= before["config"]
        return cls(definition, config, chat_template=chat_template)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write ``tokenizer.json`` and ``tokenizer_config.json``, which transformers loads with equal ids.

        Each file is replaced whole or not at all.  What they cannot carry: transformers interprets
        special tokens inside user text, whatever ``specials`` says here.
        """
        from wordloom.text.formats.writing import write

        config = {
            "tokenizer_class": _GENERIC,
            "clean_up_tokenization_spaces": False,
            **self._config,
        }
        for role in special.ROLES:
            index = getattr(self, f"{role}_id")
            if index is not None and not config.get(f"{role}_token"):
                config[f"{role}_token"] = self._tokens[index]
        write(Path(folder), self._definition, config, self.chat_template)

    # Text to ids

    def encode(self, text: str | bytes, *, specials: Specials = "refuse") -> Encoding:
        """Ids with their places in ``text``.  Adds neither bos nor eos.

        Args:
            text: a ``str``; or, for the byte kind, any ``bytes``.
            specials: what to do with a special token written in ``text``: ``"refuse"`` raises,
                ``"text"`` encodes its characters like any others, ``"interpret"`` gives its id.

        Raises ArgumentTypeError (a TokenizerError and a TypeError) for what is not a text, and
        TokenizerError for a refused special token (naming it and its place), for bytes where
        they cannot be encoded, for a lone surrogate, and for a character or word outside a vocabulary
        that has no unknown token.
        """
        return self._encoder.encode(text, specials)

    def encode_ids(self, text: str | bytes, *, specials: Specials = "refuse") -> list[int]:
        """The ids of :meth:`encode`, faster."""
        ids: list[int] = self._encoder.encode_batch([text], specials)[0].tolist()
        return ids

    def encode_batch(self, texts: Iterable[str | bytes], *, specials: Specials = "refuse") -> list[Ids]:
        """The ids of each text, as int32 arrays [T], on all cores without the interpreter's lock.

        Byte-level BPE goes through ``tiktoken`` where its ids are proven equal, the byte and char kinds
        through a table, all others through ``tokenizers``.  Long texts are cut where that cannot
        change an id.  Raises as :meth:`encode` does, naming the text by its index.
        """
        return self._encoder.encode_batch(texts, specials)

    def prompt_ids(self, text: str | bytes, *, specials: Specials = "refuse") -> list[int]:
        """What a model of this tokenizer is prompted with: the ids of ``text``, after bos where
        :attr:`adds_bos` and they do not begin with it already."""
        ids = self.encode_ids(text, specials=specials)
        if self.bos_id is not None and self.adds_bos and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    @property
    def adds_bos(self) -> bool:
        """Whether the tokenizer's own configuration or post-processor begins a text with bos (LLaMA's do)."""
        if self.bos_id is None:
            return False
        if self._config.get("add_bos_token") is not None:
            return bool(self._config["add_bos_token"])
        return facts.leading_token(self._definition) == self._tokens[self.bos_id]

    # Ids to text

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of ``ids``; bytes that are not valid UTF-8 become U+FFFD.

        ``ids`` may be any iterable of integers, a NumPy array or a tensor, of one dimension; a byte
        tokenizer also takes ``bytes``.  Raises
        ArgumentTypeError (a TokenizerError and a TypeError) for anything else, and TokenizerError for an id
        outside the vocabulary.
        """
        ids = self._known(ids)
        if self.token_bytes is None:
            return self._encoder.interpreting.decode(ids, skip_special_tokens=skip_special_tokens)
        if skip_special_tokens:
            ids = [index for index in ids if index not in self.special_ids]
        return self.decode_bytes(ids).decode(errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The exact bytes of ``ids``, valid UTF-8 or not; TokenizerError where tokens are not bytes."""
        if self.token_bytes is None:
            raise TokenizerError(
                f"the tokens of this {self.kind} tokenizer do not stand for exact bytes: use decode(), or a "
                "tokenizer of kind byte, bpe or unigram"
            )
        data = b"".join([self.token_bytes[index] or b"" for index in self._known(ids)])
        return data.removeprefix(b" ") if self.strips_first_space else data

    def stream_decoder(
        self, ids_so_far: Iterable[int] = (), *, skip_special_tokens: bool = False
    ) -> StreamDecoder:
        """A decoder of ids that arrive one by one after ``ids_so_far`` (the prompt)."""
        return StreamDecoder(self, ids_so_far, skip_special_tokens=skip_special_tokens)

    @cached_property
    def token_bytes(self) -> list[bytes | None] | None:
        """The bytes of each id (None for an id that no token has); None where tokens are not bytes."""
        return facts.token_bytes(self._definition, self.vocab_size)

    def bytes_of(self, index: int) -> bytes:
        """The bytes of one id, where tokens are bytes."""
        known = self.token_bytes[self._known([check_id(index)])[0]] if self.token_bytes else None
        if known is None:
            raise TokenizerError(f"id {index} has no bytes in this {self.kind} tokenizer")
        return known

    def byte_lengths(self) -> npt.NDArray[np.int32] | None:
        """How many bytes of raw text each id stands for, [vocab_size], for bits per byte; special tokens
        stand for none.  None where that is not defined: lossy kinds, except char without unknown token.

        A SentencePiece tokenizer's first token of each text counts one byte too many, for the space
        that encoding puts there.
        """
        if self.lossless:
            pieces = self.token_bytes or []
        elif self.kind == "char" and self.unk_id is None and self._definition["normalizer"] is None:
            pieces = [self._tokens[index].encode() for index in range(self.vocab_size)]
        else:
            return None
        lengths = [
            0 if index in self.special_ids or piece is None else len(piece)
            for index, piece in enumerate(pieces)
        ]
        return np.array(lengths, dtype=np.int32)

    # Vocabulary

    def vocabulary_hash(self, size: int | None = None) -> str:
        """16 hex digits of SHA-256 over the tokens with ids below ``size`` (None: all), in order: by it a
        model folder knows its tokenizer again, also where tokens were added behind them."""
        size = self.vocab_size if size is None else size
        tokens = [self._tokens.get(index, "") for index in range(size)]
        return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]

    def with_end(self) -> Tokenizer:
        """As :meth:`with_frame`, with eos behind every text, as Marian's have it; without eos as it is."""
        return self if self.eos_id is None else self.with_frame((), (self.eos_id,), (self.eos_id,))

    def with_frame(
        self,
        start: Sequence[int],
        between: Sequence[int],
        end: Sequence[int],
        *,
        second_segment: int = 0,
        instead: bool = False,
    ) -> Tokenizer:
        """The same ids, in a file that tells other tools what stands before a text, between two and behind.

        Encoding here adds nothing.  A tokenizer that says already what stands around texts is left as it is,
        unless it is to say this ``instead``; read again, :meth:`from_pretrained` gives what it was.
        """
        config, processor = self._config, self._definition["post_processor"]
        if instead or not facts.frames(self._definition):
            named = ([(self._tokens[index], index) for index in ids] for ids in (start, between, end))
            processor = facts.frame_template(*named, second_segment=second_segment)
        if instead:
            apart = {key: value for key, value in config.items() if key.startswith("add_")}
            apart["tokenizer_class"] = config.get("tokenizer_class", _GENERIC)
            before = {"post_processor": self._definition["post_processor"], "config": apart}
            before = {**config.get(_BEFORE, before), "frame": processor}
            config = {key: value for key, value in config.items() if key not in apart}
            config |= {"tokenizer_class": _GENERIC, _BEFORE: before}  # the class that follows the file
        generic = config.get("tokenizer_class", _GENERIC) == _GENERIC
        if second_segment and generic:  # it tells none where it is not asked
            config = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"], **config}
        return Tokenizer(
            {**self._definition, "post_processor": processor},
            config,
            chat_template=self.chat_template,
            training_report=self.training_report,
        )

    def with_one_segment(self) -> Tokenizer:
        """The same ids, in files that make other tools put both texts of a pair into segment 0."""
        config = dict(self._config)
        if names := config.get("model_input_names"):
            config["model_input_names"] = [name for name in names if name != "token_type_ids"]
        processor = facts.in_one_segment(self._definition["post_processor"])
        return Tokenizer(
            {**self._definition, "post_processor": processor},
            config,
            chat_template=self.chat_template,
            training_report=self.training_report,
        )

    def with_bert_ends(self) -> Tokenizer:
        """The same ids, cls and sep being bos and eos too, where there is no eos: for models that write."""
        if self.eos_id is not None or self.sep_id is None:
            return self
        ids = {role: getattr(self, f"{role}_id") for role in special.ROLES}
        ids |= {"bos": self.cls_id if self.bos_id is None else self.bos_id, "eos": self.sep_id}
        named = {f"{role}_token": self._tokens[index] for role, index in ids.items() if index is not None}
        return Tokenizer(
            self._definition,
            {**self._config, **named},
            chat_template=self.chat_template,
            training_report=self.training_report,
        )

    def with_marks(self, start: str, between: str, end: str) -> Tokenizer:
        """Three more special tokens, behind all others, in a file that tells other tools to put them around a
        text and between two, after bos where there is one.

        Encoding here adds nothing.  Of a tokenizer that has all three the ids stay; raises TokenizerError
        for one of them that the vocabulary has as an ordinary token.
        """
        names = (start, between, end)
        new = [] if all(self._ids.get(name) in self.special_ids for name in names) else names
        if taken := [name for name in new if name in self._ids]:
            raise TokenizerError(f"the vocabulary has a token '{taken[0]}' already; take another tokenizer")
        added = [special.added_token(name, self.vocab_size + n) for n, name in enumerate(new)]
        wider = Tokenizer(
            {**self._definition, "added_tokens": [*self._definition["added_tokens"], *added]},
            self._config,
            chat_template=self.chat_template,
            training_report=self.training_report,
        )
        first, second, last = (wider._ids[name] for name in names)
        bos = () if self.bos_id is None else (self.bos_id,)
        return wider.with_frame((*bos, first), (second,), (last,), instead=True)

    def continuations(self) -> npt.NDArray[np.bool_]:
        """Of every id, [vocab_size], whether it goes on with a word when it stands behind another token."""
        return np.array(facts.continuations(self._definition, self.vocab_size), dtype=bool)

    def id_to_token(self, index: int) -> str:
        """The token as the vocabulary spells it; TokenizerError if no token has this id."""
        return self._tokens[self._known([check_id(index)])[0]]

    def token_to_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it, or None."""
        return self._ids.get(token)

    def _known(self, ids: Iterable[int]) -> list[int]:
        """Return the ids as a list, each checked to be one of the vocabulary's."""
        listed = check_ids(ids, takes_bytes=self.kind == "byte")
        if not self._tokens.keys() >= set(listed):
            wrong = next(index for index in listed if index not in self._tokens)
            raise TokenizerError(
                f"id {wrong} is not in the vocabulary, whose ids are 0 to {self.vocab_size - 1}: "
                "these ids come from another tokenizer"
            )
        return listed
