"""The tokenizer of a GGUF file: what llama.cpp needs to give the ids that ours gives.

llama.cpp knows two kinds of our tokenizers: byte-level BPE ("gpt2"), and SentencePiece's BPE ("llama").  A
tokenizer of bytes is the first without merges.  So is one of characters: the bytes of a character above ASCII
are merged from left to right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wordloom.errors import CheckpointError
from wordloom.text import Tokenizer
from wordloom.text import definition as tokenizer_json
from wordloom.text.definition import Definition, bytes_to_characters

# The names of llama.cpp for the two splits, with merges followed also for words that are tokens.
_SPLITS = {"gpt2": "gpt-2", "llama3": "smaug-bpe"}
# llama.cpp refuses an empty list of merges. The parts of this one never occur: each is two symbols.
_NO_MERGE = "\u0100\u0100 \u0100\u0100"
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6


def tokenizer_fields(tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
    """Return the keys behind ``tokenizer.`` and their values, for a model of ``vocab_size`` tokens.

    Raises CheckpointError for a tokenizer that llama.cpp does not have.
    """
    definition = dict(tokenizer.definition)
    if tokenizer.kind in ("bpe", "byte"):
        fields = _byte_level(tokenizer, definition)
    elif tokenizer.kind == "char":
        fields = _characters(tokenizer, definition)
    elif tokenizer.kind == "llama":
        fields = _sentencepiece(definition)
    else:
        raise CheckpointError(
            f"llama.cpp has no tokenizer of kind '{tokenizer.kind}' for language models; allowed: bpe, byte, "
            "char, llama"
        )
    if "merges" in fields:
        fields["merges"] = fields["merges"] or [_NO_MERGE]
    texts, types, scores = fields.pop("texts"), fields.pop("types"), fields.pop("scores", {})
    for token in definition["added_tokens"]:
        texts[token["id"]] = token["content"]
        types[token["id"]] = _CONTROL if token["special"] else _USER_DEFINED
    unknown = tokenizer.unk_id
    if unknown is not None and tokenizer.kind == "llama":
        types[unknown] = _UNKNOWN
    tokens = [texts.get(i, f"[unused {i}]") for i in range(vocab_size)]
    roles = {
        "bos": tokenizer.bos_id,
        "eos": tokenizer.eos_id,
        "padding": tokenizer.pad_id,
        "unknown": unknown,
    }
    return {
        **{f"ggml.{name}": value for name, value in fields.items()},
        "ggml.tokens": tokens,
        "ggml.token_type": [types.get(i, _UNUSED) for i in range(vocab_size)],
        **({"ggml.scores": [scores.get(i, 0.0) for i in range(vocab_size)]} if scores else {}),
        **{f"ggml.{role}_token_id": index for role, index in roles.items() if index is not None},
        "ggml.add_bos_token": tokenizer.adds_bos,
        "ggml.add_eos_token": False,
        **({"chat_template": _chat_template(tokenizer)} if tokenizer.chat_template else {}),
    }


def _chat_template(tokenizer: Tokenizer) -> str:
    """Return the chat template for llama.cpp, which takes token 11 for the bos of a tokenizer without one."""
    without = "{%- set bos_token = '' -%}" if tokenizer.bos_id is None else ""
    return f"{without}{tokenizer.chat_template}"


def _byte_level(tokenizer: Tokenizer, definition: Definition) -> dict[str, Any]:
    split = tokenizer_json.split_pattern(definition) if tokenizer.kind == "bpe" else "gpt2"
    if split not in _SPLITS or tokenizer_json.normalizers(definition):
        raise CheckpointError(
            "llama.cpp splits texts as GPT-2 or Llama 3 does, and this tokenizer does not; train one with "
            "tokenizer.split = 'gpt2' or 'llama3'"
        )
    vocabulary = tokenizer_json.model_vocabulary(definition)
    name = _SPLITS[split]
    if definition["model"].get("ignore_merges"):
        if split != "llama3":
            raise CheckpointError("llama.cpp has no GPT-2 split for a tokenizer that ignores merges")
        name = "llama-bpe"
    return {
        "model": "gpt2",
        "pre": name,
        "merges": [" ".join(pair) for pair in tokenizer_json.merge_pairs(definition)],
        "texts": {index: token for token, index in vocabulary.items()},
        "types": dict.fromkeys(vocabulary.values(), _NORMAL),
    }


def _characters(tokenizer: Tokenizer, definition: Definition) -> dict[str, Any]:
    if tokenizer_json.normalizers(definition):
        raise CheckpointError(
            "llama.cpp has no tokenizer of characters that changes texts, as lower-casing does"
        )
    added = {token["id"] for token in definition["added_tokens"]}
    vocabulary = tokenizer_json.model_vocabulary(definition)
    spelled = {
        index: "".join(map(_SYMBOLS.__getitem__, token.encode()))
        for token, index in vocabulary.items()
        if index not in added
    }
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "merges": list(dict.fromkeys(merge for text in spelled.values() for merge in _chain(text))),
        "texts": spelled,
        "types": dict.fromkeys(spelled, _NORMAL),
    }


_SYMBOLS = bytes_to_characters()


def _chain(text: str) -> Iterator[str]:
    """Yield the merges that make ``text`` of its bytes, from left to right."""
    return (f"{text[:i]} {text[i]}" for i in range(1, len(text)))


def _sentencepiece(definition: Definition) -> dict[str, Any]:
    """Return the fields of a SentencePiece tokenizer.

    llama.cpp first merges the pair whose piece has the highest score, so the earliest merge gets it.  Of
    normalizers, it knows only one that marks all spaces, and perhaps adds one before the text.

    Raises CheckpointError for a tokenizer that changes or cuts texts in another way.
    """
    steps = tokenizer_json.normalizers(definition)
    marks = tokenizer_json.prepends_space(definition) or [
        (step["type"], step.get("pattern"), step.get("content")) for step in steps
    ] == [("Replace", {"String": " "}, tokenizer_json.SPACE_MARK)]
    if not marks or tokenizer_json.pre_tokenizers(definition):
        found = ", ".join(step["type"] for step in (*steps, *tokenizer_json.pre_tokenizers(definition)))
        raise CheckpointError(
            "llama.cpp gives other tokens: its SentencePiece tokenizer has the steps Prepend and Replace, or "
            f"Replace alone, for spaces, and this one has {found or 'no steps'}; use transformers"
        )
    vocabulary, scores = tokenizer_json.model_vocabulary(definition), dict[str, float]()
    for rank, (left, right) in enumerate(tokenizer_json.merge_pairs(definition)):
        scores.setdefault(left + right, -float(rank))
    lowest = -float(len(scores) + len(vocabulary))
    types = {}
    for token, index in vocabulary.items():
        is_byte = len(token) == 6 and token.startswith("<0x") and token.endswith(">")
        types[index] = _BYTE if is_byte else _NORMAL
    return {
        "model": "llama",
        "pre": "default",
        "scores": {index: scores.get(token, lowest) for token, index in vocabulary.items()},
        "add_space_prefix": tokenizer_json.prepends_space(definition),
        "texts": {index: token for token, index in vocabulary.items()},
        "types": types,
    }
