"""The table of tokenizer kinds, and the training that all kinds share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from wordloom.errors import TokenizerError, did_you_mean
from wordloom.text.arguments import check_id
from wordloom.text.definition import LARGEST, Definition, full_vocabulary
from wordloom.text.special import ROLES, roles_given
from wordloom.text.training import kinds
from wordloom.text.training.corpus import Corpus, Progress
from wordloom.text.training.kinds import Settings


class TrainingReport(NamedTuple):
    """The corpus and the result of a training."""

    kind: str
    texts: int  # documents or parts of documents, as given
    bytes_seen: int
    bytes_used: int  # less than bytes_seen where the corpus was sampled
    vocab_size: int
    requested_vocab_size: int | None
    notes: tuple[str, ...]  # deviations from the settings, one sentence each


class Kind(NamedTuple):
    """A kind of tokenizer that can be trained."""

    summary: str
    train: Callable[[Corpus, Settings], Definition]
    special_tokens: tuple[str, ...]
    splits: tuple[str, ...] = ()  # the first is the default
    vocab_size: int | None = None  # the default; None: no limit
    min_frequency: int | None = None  # the default; None: the kind has no such setting
    limit_alphabet: int | None = None
    counts_characters: bool = False
    reads_corpus: bool = True


_GPT = ("<|endoftext|>", "<|pad|>")

TOKENIZERS: dict[str, Kind] = {
    "word": Kind(
        "words and punctuation marks; unknown words become <unk>",
        kinds.train_word,
        ("<unk>", *_GPT),
        splits=("words", "whitespace"),
        min_frequency=1,
    ),
    "char": Kind(
        "every character of the corpus, sorted",
        kinds.train_char,
        ("<unk>", *_GPT),
        min_frequency=1,
        counts_characters=True,
    ),
    "byte": Kind("the 256 bytes; lossless", kinds.train_byte, _GPT, reads_corpus=False),
    "bpe": Kind(
        "byte-level BPE, as GPT-2; lossless",
        kinds.train_bpe,
        _GPT,
        splits=("gpt2", "llama3"),
        vocab_size=8192,
        min_frequency=2,
    ),
    "wordpiece": Kind(
        "WordPiece, as BERT",
        kinds.train_wordpiece,
        ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        vocab_size=8192,
        min_frequency=2,
        limit_alphabet=1000,
        counts_characters=True,
    ),
    "unigram": Kind(
        "Unigram with byte fallback, spaces kept; lossless",
        kinds.train_unigram,
        ("<unk>", "<s>", "</s>", "<pad>"),
        splits=("gpt2", "llama3"),
        vocab_size=8192,
        limit_alphabet=1000,
        counts_characters=True,
    ),
}


def train_definition(
    texts: Iterable[str],
    *,
    kind: str,
    sample_bytes: int,
    seed: int,
    progress: Progress | None,
    **options: Any,
) -> tuple[Definition, dict[str, Any], TrainingReport]:
    """Return the definition, the configuration and the report of a new tokenizer.

    :meth:`wordloom.text.Tokenizer.train` documents the arguments and ``options``.
    """
    if kind not in TOKENIZERS:
        raise TokenizerError(f"tokenizer kind '{kind}' is unknown: {did_you_mean(kind, TOKENIZERS)}")
    chosen = TOKENIZERS[kind]
    settings = _settings(kind, **options)
    corpus = Corpus(
        texts if chosen.reads_corpus else [" "],
        sample_bytes=sample_bytes,
        seed=seed,
        count=chosen.counts_characters,
        progress=progress if chosen.reads_corpus else None,
    )
    definition = chosen.train(corpus, settings)
    config: dict[str, Any] = {
        f"{role}_token": settings.roles[role] for role in ROLES if role in settings.roles
    }
    if kind == "wordpiece":
        config["do_lower_case"] = settings.lower
    size = max(full_vocabulary(definition).values()) + 1
    notes = list(settings.notes)
    if settings.vocab_size is not None and size < settings.vocab_size:
        notes.append(
            f"the vocabulary has {size:,} entries instead of {settings.vocab_size:,}: this "
            "text supports no more"
            + (f" at min_frequency {settings.min_frequency}" if settings.min_frequency else "")
        )
    if corpus.bytes_used < corpus.bytes_seen and kind != "char":
        notes.append(
            f"trained on a uniform sample of {corpus.bytes_used / 1e6:,.0f} of "
            f"{corpus.bytes_seen / 1e6:,.0f} MB (sample_bytes)"
        )
    used = corpus.bytes_seen if kind == "char" else corpus.bytes_used
    counts = (corpus.n_texts, corpus.bytes_seen, used) if chosen.reads_corpus else (0, 0, 0)
    return definition, config, TrainingReport(kind, *counts, size, options["vocab_size"], tuple(notes))


def _settings(
    kind: str,
    *,
    vocab_size: int | None,
    lower: bool,
    min_frequency: int | None,
    special_tokens: Sequence[str] | Mapping[str, str] | None,
    split: str | None,
    limit_alphabet: int | None,
) -> Settings:
    """Return the settings with the kind's defaults; raise TokenizerError for one that it does not have."""
    chosen = TOKENIZERS[kind]
    if isinstance(special_tokens, str):
        raise TokenizerError(f"special_tokens is one string: give a list, such as ['{special_tokens}']")
    tokens, roles = roles_given(chosen.special_tokens if special_tokens is None else special_tokens)
    if split is not None and split not in chosen.splits:
        allowed = did_you_mean(split, chosen.splits) if chosen.splits else "it has no such choice"
        raise TokenizerError(f"split='{split}' is not for a {kind} tokenizer: {allowed}")
    if lower and kind == "byte":
        raise TokenizerError(
            "a byte tokenizer does not lower-case, since it takes any bytes: leave lower out"
        )
    limits = {
        "min_frequency": (min_frequency, 10**12),
        "limit_alphabet": (limit_alphabet, 10**12),
        "vocab_size": (vocab_size, LARGEST),  # the trainers allocate this many
    }
    for name, (value, most) in limits.items():
        if value is not None and not 1 <= check_id(value, name) <= most:
            raise TokenizerError(f"{name}={value} is impossible: give a number from 1 to {most:,}")
    if min_frequency is not None and chosen.min_frequency is None:
        raise TokenizerError(f"a {kind} tokenizer has no min_frequency: leave it out")
    if limit_alphabet is not None and chosen.limit_alphabet is None:
        raise TokenizerError(f"a {kind} tokenizer has no limit_alphabet: leave it out")
    if kind in ("wordpiece", "unigram") and "unk" not in roles:
        usual = "[UNK]" if kind == "wordpiece" else "<unk>"
        raise TokenizerError(f"a {kind} tokenizer needs an unknown token: add '{usual}' to special_tokens")
    return Settings(
        vocab_size=vocab_size or chosen.vocab_size,
        lower=lower,
        min_frequency=min_frequency or chosen.min_frequency,
        special_tokens=tokens,
        roles=roles,
        split=split or next(iter(chosen.splits), None),
        limit_alphabet=limit_alphabet or chosen.limit_alphabet or 0,
        notes=[],
    )
