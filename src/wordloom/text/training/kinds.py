"""Train a vocabulary of each kind with the trainers of the ``tokenizers`` library.

Each ``train_*`` function takes the corpus and the settings, and returns a definition in which every special
token is an added token.  Special tokens have the first ids, with two exceptions: the first 256 ids of the
byte kind are the byte values, and the first ids of the char kind are the characters, sorted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from wordloom.errors import TokenizerError
from wordloom.text.definition import PATTERNS, Definition, bert_template, bytes_to_characters
from wordloom.text.special import added_token
from wordloom.text.training.corpus import Corpus

if TYPE_CHECKING:
    import tokenizers

_ALL = 2**31 - 1  # a vocabulary size that keeps every word

# The score of Unigram's byte pieces, so low that only byte fallback gives them.
_NEVER = -1e6


class Settings(NamedTuple):
    """Settings of a ``train_*`` function, which appends messages for the user to ``notes``."""

    vocab_size: int | None
    lower: bool
    min_frequency: int | None
    special_tokens: list[str]
    roles: dict[str, str]
    split: str | None
    limit_alphabet: int
    notes: list[str]


def train_word(corpus: Corpus, settings: Settings) -> Definition:
    """Train whole words: a ``WordLevel`` model over BERT's split, or over white space."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    _require_size(settings, 1, "one word")
    unknown = settings.roles.get("unk")
    backend = Tokenizer(models.WordLevel(unk_token=unknown or ""))
    backend.pre_tokenizer = (
        pre_tokenizers.BertPreTokenizer() if settings.split == "words" else pre_tokenizers.WhitespaceSplit()
    )
    special = settings.special_tokens
    trainer = trainers.WordLevelTrainer(
        vocab_size=_ALL if settings.vocab_size is None else settings.vocab_size + len(special),
        min_frequency=settings.min_frequency or 1,
        special_tokens=special,
        show_progress=False,
    )
    definition = _trained(backend, trainer, corpus.texts(), settings)
    # a word spelt like a special token (PTB's <unk>) has an id of its own, which replaced the token's
    trained = definition["model"]["vocab"]
    words = [word for word in sorted(trained, key=trained.__getitem__) if word not in special]
    vocabulary = {word: i for i, word in enumerate([*special, *words][: settings.vocab_size])}
    definition["model"]["vocab"] = vocabulary
    definition["added_tokens"] = [added_token(token, vocabulary[token]) for token in special]
    return definition


def train_char(corpus: Corpus, settings: Settings) -> Definition:
    """Train characters: BPE without merges, which looks up each code point."""
    counts = _normalized(corpus.characters, settings)
    kept = [c for c, count in counts.most_common() if count >= (settings.min_frequency or 1)]
    if settings.vocab_size is not None:
        _require_size(settings, 1, "one character")
        kept = kept[: settings.vocab_size - len(settings.special_tokens)]
    if len(kept) < len(counts):
        left_out = sorted(counts.keys() - set(kept))
        if "unk" not in settings.roles:
            raise TokenizerError(
                f"{len(left_out)} of the text's {len(counts)} characters would be left out and there is no "
                "unknown token: raise vocab_size, lower min_frequency, or add '<unk>' to special_tokens"
            )
        share = sum(counts[c] for c in left_out) / counts.total()
        settings.notes.append(
            f"{len(left_out):,} of {len(counts):,} characters ({share:.3%} of the text) are left out and "
            "become the unknown token"
        )
    vocabulary = {token: i for i, token in enumerate([*sorted(kept), *settings.special_tokens])}
    normalizer = {"type": "Lowercase"} if settings.lower else None
    return _lookup(vocabulary, settings, None, {"type": "Fuse"}, settings.roles.get("unk")) | {
        "normalizer": normalizer
    }


def train_byte(corpus: Corpus, settings: Settings) -> Definition:
    """Return the byte kind: byte-level BPE without merges, in which a byte's id is its value."""
    size = 256 + len(settings.special_tokens)
    if settings.vocab_size not in (None, size):
        raise TokenizerError(
            f"vocab_size={settings.vocab_size} is impossible for a byte tokenizer, which has 256 bytes and "
            f"{len(settings.special_tokens)} special tokens: give {size} or leave it out"
        )
    vocabulary = {token: i for i, token in enumerate([*bytes_to_characters(), *settings.special_tokens])}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return _lookup(vocabulary, settings, byte_level, byte_level, None)


def train_bpe(corpus: Corpus, settings: Settings) -> Definition:
    """Train byte-level BPE over the split of GPT-2 or Llama 3."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    _require_size(settings, 256, "the 256 bytes")
    backend = Tokenizer(models.BPE())
    if settings.split == "gpt2":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        steps = [_split(settings), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size or 0,
        min_frequency=settings.min_frequency or 1,
        special_tokens=settings.special_tokens,
        initial_alphabet=bytes_to_characters(),
        show_progress=False,
    )
    return _include_mask_space(_trained(backend, trainer, corpus.texts(), settings), settings)


def train_wordpiece(corpus: Corpus, settings: Settings) -> Definition:
    """Train WordPiece over BERT's normaliser and split.

    The library numbers continuing characters (``##a``) in the random order of its hash table, which decides
    between merges of equal counts.  Passing all of them, sorted, makes training repeatable.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    backend = Tokenizer(models.WordPiece(unk_token=settings.roles["unk"]))
    backend.normalizer = normalizers.BertNormalizer(lowercase=settings.lower)
    backend.pre_tokenizer = split = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    counts = Counter[str]()
    for character, count in corpus.characters.items():
        for normal in backend.normalizer.normalize_str(character):
            if split.pre_tokenize_str(normal):  # not white space
                counts[normal] += count
    alphabet = _alphabet(counts, settings, "the unknown token")
    continuing = [f"##{c}" for c in alphabet if len(split.pre_tokenize_str(f"a{c}")) == 1]
    _require_size(
        settings, len(alphabet) + len(continuing), f"the {len(alphabet)} characters kept (limit_alphabet)"
    )
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.vocab_size or 0,
        min_frequency=settings.min_frequency or 1,
        special_tokens=[*settings.special_tokens, *alphabet, *continuing],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix="##",
        show_progress=False,
    )
    definition = _trained(backend, trainer, corpus.texts(), settings)
    if {"cls", "sep"} <= settings.roles.keys():
        vocabulary = definition["model"]["vocab"]
        cls, sep = settings.roles["cls"], settings.roles["sep"]
        definition["post_processor"] = bert_template({name: vocabulary[name] for name in (cls, sep)})
    return definition


def train_unigram(corpus: Corpus, settings: Settings) -> Definition:
    """Train Unigram with spaces in its pieces and byte fallback for unknown characters.

    With SentencePiece's visible space, a literal U+2581 and a leading space would be ambiguous.  With the
    space itself in the pieces and the split of GPT-2 or Llama 3, decoding is concatenation.
    """
    from tokenizers import Tokenizer, models, trainers

    counts = _normalized(corpus.characters, settings)
    counts.pop("\0", None)  # the library's own separator
    alphabet = _alphabet(counts, settings, "their UTF-8 bytes")
    alphabet = sorted({*alphabet, *map(chr, range(0x20, 0x7F)), "\n"})
    _require_size(settings, 256 + len(alphabet), f"256 bytes and the {len(alphabet)} characters kept")
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = _split(settings)
    trainer = trainers.UnigramTrainer(
        vocab_size=(settings.vocab_size or 0) - 256,
        special_tokens=settings.special_tokens,
        unk_token=settings.roles["unk"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    others = counts.keys() - set(alphabet) | {"\0"}
    texts: Iterable[str] = corpus.texts()
    if settings.lower:
        texts = (_lowercase().normalize_str(text) for text in texts)
    left_out = re.compile(f"[{re.escape(''.join(sorted(others)))}]+")
    parts = (part for text in texts for part in left_out.split(text) if part)
    definition = _include_mask_space(_trained(backend, trainer, parts, settings), settings)
    n_special = len(settings.special_tokens)
    pieces = definition["model"]["vocab"]
    fallback = [[f"<0x{byte:02X}>", _NEVER] for byte in range(256)]
    definition["model"] |= {
        "vocab": pieces[:n_special] + fallback + pieces[n_special:],
        "byte_fallback": True,
    }
    definition["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    return definition


def _trained(
    backend: tokenizers.Tokenizer,
    trainer: tokenizers.trainers.Trainer,
    texts: Iterable[str],
    settings: Settings,
) -> Definition:
    if settings.lower and backend.normalizer is None:
        backend.normalizer = _lowercase()
    backend.train_from_iterator(texts, trainer=trainer)
    definition: Definition = json.loads(backend.to_str())
    special = settings.special_tokens
    definition["added_tokens"] = [t for t in definition["added_tokens"] if t["content"] in special]
    return definition


def _include_mask_space(definition: Definition, settings: Settings) -> Definition:
    """Make the mask token include the space before it, as in RoBERTa, because the masked piece does."""
    for token in definition["added_tokens"]:
        token["lstrip"] = token["content"] == settings.roles.get("mask")
    return definition


def _lookup(
    vocabulary: dict[str, int],
    settings: Settings,
    pre_tokenizer: Definition | None,
    decoder: Definition,
    unknown: str | None,
) -> Definition:
    """Return a BPE definition without merges, which looks up each unit."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(token, vocabulary[token]) for token in settings.special_tokens],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def _split(settings: Settings) -> tokenizers.pre_tokenizers.Split:
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(PATTERNS[str(settings.split)]), behavior="isolated")


def _lowercase() -> tokenizers.normalizers.Lowercase:
    from tokenizers import normalizers

    return normalizers.Lowercase()


def _normalized(counts: Counter[str], settings: Settings) -> Counter[str]:
    """Return the count of each character, in the lower-cased text if the settings say so."""
    if not settings.lower:
        return Counter(counts)
    normalizer, lowered = _lowercase(), Counter[str]()
    for character, count in counts.items():
        for normal in normalizer.normalize_str(character):
            lowered[normal] += count
    return lowered


def _alphabet(counts: Counter[str], settings: Settings, become: str) -> list[str]:
    """Return the ``limit_alphabet`` most frequent characters, sorted; a note reports the others."""
    kept = sorted(counts, key=lambda c: (-counts[c], c))[: settings.limit_alphabet]
    if len(kept) < len(counts):
        share = 1 - sum(counts[c] for c in kept) / counts.total()
        settings.notes.append(
            f"{len(counts) - len(kept):,} of {len(counts):,} characters ({share:.3%} of the text) are beyond "
            f"limit_alphabet={settings.limit_alphabet} and become {become}"
        )
    return sorted(kept)


def _require_size(settings: Settings, units: int, unit_names: str) -> None:
    least = units + len(settings.special_tokens)
    if settings.vocab_size is not None and settings.vocab_size < least:
        raise TokenizerError(
            f"vocab_size={settings.vocab_size} is too small: {unit_names} and {len(settings.special_tokens)} "
            f"special tokens need {least}"
        )
