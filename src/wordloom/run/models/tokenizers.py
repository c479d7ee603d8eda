"""The tokenizers of a model folder, checked against the model.

A translation model has one tokenizer for both sides, or one for each. The ``tokenizer.json`` in the folder is
that of the targets.  If the sources have a tokenizer of their own, it is in a subfolder, which
``source_tokenizer`` in config.json names; transformers reads it as
``AutoTokenizer.from_pretrained(RUN, subfolder="source_tokenizer")``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from wordloom.errors import CheckpointError
from wordloom.evaluate.reading import tokenizer_name
from wordloom.text import Tokenizer
from wordloom.text.formats.folders import TOKENIZER_FILES
from wordloom.weights.configs import format_of
from wordloom.weights.formats import Format
from wordloom.weights.tensors import read_json

_PADDED = 128  # tools pad the vocabulary of a matrix with fewer rows than this


def folder_tokenizer(folder: Path, vocab_size: int) -> Tokenizer | None:
    """Load the tokenizer in ``folder``; return None if the folder has no tokenizer files.

    Raises CheckpointError for a tokenizer that does not fit a model of ``vocab_size`` tokens.
    """
    if not any((folder / name).exists() for name in TOKENIZER_FILES):
        return None
    tokenizer = Tokenizer.from_pretrained(folder)
    if tokenizer.vocab_size > vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens and the model {vocab_size}; they do "
            "not belong together"
        )
    if (folder / "config.json").exists():  # an adapter's folder has none
        _check_vocabulary(folder, tokenizer)
    return tokenizer


def required_tokenizer(tokenizer: Tokenizer | None, folder: Path | None, *, ids: bool = False) -> Tokenizer:
    """Return ``tokenizer``; raises CheckpointError if it is None.

    ``ids`` says whether the caller also takes token ids instead of text.
    """
    if tokenizer is None:
        where = "the model" if folder is None else folder
        advice = "give token ids, or put its tokenizer.json there" if ids else "put its tokenizer.json there"
        raise CheckpointError(f"{where} has no tokenizer, which text needs; {advice}")
    return tokenizer


@dataclass(kw_only=True)
class ReadsText:
    """A loaded model and its tokenizer, which is None if its folder has none."""

    takes_ids: ClassVar[bool] = False  # instead of text
    model: Any
    tokenizer: Tokenizer | None
    config: Any
    folder: Path | None = None

    @classmethod
    def of(cls, folder: Path, model: Any, tokenizer: Tokenizer | None) -> Self:
        """Return the ``model`` in ``folder`` with its tokenizer."""
        return cls(model=model, tokenizer=tokenizer, config=model.config, folder=folder)

    @property
    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer; raises CheckpointError if the folder has none."""
        return required_tokenizer(self.tokenizer, self.folder, ids=self.takes_ids)


def _check_vocabulary(
    folder: Path, tokenizer: Tokenizer, facts: Mapping[str, Any] | None = None, *, key: str = "vocabulary"
) -> None:
    """Raise CheckpointError if config.json (``facts``) has the hash of a different tokenizer.

    Tokens that were added after training are allowed.
    """
    known = (read_json(folder / "config.json") if facts is None else facts).get(key)
    if not isinstance(known, Mapping) or not isinstance(size := known.get("size"), int):
        return
    if tokenizer.vocab_size < size or tokenizer.vocabulary_hash(size) != known.get("sha256"):
        raise CheckpointError(
            f"{folder}: the model was trained with a different tokenizer: some of its {size:,} "
            f'tokens differ; put that tokenizer back, or remove "{key}" from config.json to keep this one'
        )


@dataclass(frozen=True)
class Vocabularies:
    """The tokenizers of sources and targets; the same object for a joint vocabulary.

    ``start_id`` begins targets; None is the pad token.  ``source_start_id`` begins sources; None is no token.
    """

    source: Tokenizer
    target: Tokenizer
    start_id: int | None = None
    source_start_id: int | None = None

    @property
    def beside(self) -> Tokenizer | None:
        """The tokenizer of the sources if it is not that of the targets, else None."""
        return None if self.source is self.target else self.source

    @property
    def fingerprint(self) -> str:
        """The sha256 of everything that decides the ids of both sides."""
        if self.beside is None:
            return self.target.fingerprint
        return hashlib.sha256(f"{self.source.fingerprint}/{self.target.fingerprint}".encode()).hexdigest()

    @property
    def name(self) -> str:
        """The names of the tokenizers for a signature, such as ``bpe-8000-ab12cd``."""
        sides = [self.target] if self.beside is None else [self.source, self.target]
        return ">".join(map(tokenizer_name, sides))

    @property
    def lacks(self) -> str | None:
        """The role, eos or pad, whose token is missing; None if there are all."""
        needed = {"eos": (self.source.eos_id, self.target.eos_id), "pad": (self.target.pad_id,)}
        return next((role for role, ids in needed.items() if None in ids), None)

    def begun(self, form: Format, start_id: int | None = None) -> Vocabularies:
        """Return the vocabularies with the start tokens of folders in this form.

        ``start_id`` is the start token in the folder.  If it is bos, sources begin with bos too if their
        tokenizer adds it.
        """
        if not form.starts_with_bos:
            return self
        target = self.target.with_bert_ends().with_end()
        source = target if self.beside is None else self.source.with_bert_ends().with_end()
        start = target.bos_id if start_id is None else start_id
        alike = start == target.bos_id and source.adds_bos
        return replace(
            self,
            source=source,
            target=target,
            start_id=start,
            source_start_id=source.bos_id if alike else None,
        )


def read_vocabularies(folder: Path, config: Any, form: Format | None = None) -> Vocabularies:
    """Load the tokenizers in a model folder, for a model of this form; None is that of ``config``.

    Raises CheckpointError if one is missing, or is not the one that the model was trained with.
    """
    if not (folder / "tokenizer.json").exists():
        raise CheckpointError(f"{folder} has no tokenizer, which text needs; put its tokenizer.json there")
    target = Tokenizer.from_pretrained(folder)
    facts = read_json(folder / "config.json")
    named = facts.get("source_tokenizer")
    if named is not None and not (folder / str(named) / "tokenizer.json").exists():
        raise CheckpointError(
            f"{folder} has no tokenizer of its sources; put back its {named}/tokenizer.json"
        )
    source = target if named is None else Tokenizer.from_pretrained(folder / str(named))
    reads = getattr(config, "source_vocab", config.vocab_size)
    sides = [("source", source, reads), ("target", target, config.vocab_size)]
    for side, tokenizer, size in sides:
        if not 0 <= size - tokenizer.vocab_size < _PADDED:
            what = "tokenizer" if named is None else f"{side} tokenizer"
            raise CheckpointError(
                f"{folder}: the {what} has {tokenizer.vocab_size:,} tokens and the model {size:,} {side} "
                "tokens; they do not belong together: put back the one it was trained with"
            )
    _check_vocabulary(folder, target, facts)
    if named is not None:
        _check_vocabulary(folder, source, facts, key="source_vocabulary")
    generation = folder / "generation_config.json"
    start_id = (facts | (read_json(generation) if generation.exists() else {})).get("decoder_start_token_id")
    vocabularies = Vocabularies(source, target).begun(form or format_of(config), start_id)
    for role in ("eos", "pad"):
        tokenizer_id, model_id = getattr(vocabularies.target, f"{role}_id"), facts.get(f"{role}_token_id")
        if isinstance(model_id, int) and tokenizer_id is not None and tokenizer_id != model_id:
            raise CheckpointError(
                f"{folder}: the {role} token is {tokenizer_id} in the tokenizer and {model_id} in the model; "
                "they do not belong together: put back the one it was trained with"
            )
    if vocabularies.lacks is not None:
        raise CheckpointError(f"{folder}: its tokenizer lacks an eos or pad token, so no text would end")
    return vocabularies
