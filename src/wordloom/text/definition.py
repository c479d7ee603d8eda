"""Properties of a ``tokenizer.json``: kind, vocabulary, bytes of each id, whether it is lossless.

Every function is pure and takes the parsed JSON object (the *definition*), in the layout that the
``tokenizers`` library writes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

Definition = dict[str, Any]

LARGEST = 10_000_000  # entries of a vocabulary; vocabularies in use have at most a million

SPACE_MARK = "\u2581"  # '▁', SentencePiece's visible space

# The regular expressions of GPT-2's encoder.py and of Llama 3's tokenizer (GPT-4's cl100k is the same).
PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}


def bytes_to_characters() -> list[str]:
    """Return GPT-2's printable character for each of the 256 bytes (``bytes_to_unicode`` in encoder.py)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(256)]


_BYTE_OF_CHARACTER = {character: byte for byte, character in enumerate(bytes_to_characters())}
_BYTE_PIECES = {f"<0x{byte:02X}>": byte for byte in range(256)}


def model_vocabulary(definition: Definition) -> dict[str, int]:
    """Return token to id for the model, without added tokens that are not in the model."""
    vocabulary = definition["model"].get("vocab", {})
    if isinstance(vocabulary, list):  # Unigram: [[piece, score], ...]
        return {piece: index for index, (piece, _) in enumerate(vocabulary)}
    return dict(vocabulary)


def full_vocabulary(definition: Definition) -> dict[str, int]:
    """Return token to id, added tokens included."""
    vocabulary = model_vocabulary(definition)
    vocabulary.update((token["content"], token["id"]) for token in definition["added_tokens"])
    return vocabulary


def special_tokens(definition: Definition) -> dict[str, int]:
    """Return content to id for the added tokens that are special."""
    return {t["content"]: t["id"] for t in definition["added_tokens"] if t["special"]}


def merge_pairs(definition: Definition) -> list[tuple[str, str]]:
    """Return the merges of BPE in rank order, from either spelling (``"a b"`` or ``["a", "b"]``)."""
    merges = definition["model"].get("merges", [])
    pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges)
    return [(left, right) for left, right in pairs]


def unknown_id(definition: Definition) -> int | None:
    """Return the id that the model gives for text that it cannot represent, or None."""
    model = definition["model"]
    if model["type"] == "Unigram":
        unknown: int | None = model.get("unk_id")
        return unknown
    token = model.get("unk_token")
    return None if token is None else full_vocabulary(definition).get(token)


def _steps(component: Definition | None, plural: str) -> Iterator[Definition]:
    """Yield the steps of a normalizer, pre-tokenizer or decoder, with each ``Sequence`` flattened."""
    if component is None:
        return
    if component["type"] == "Sequence":
        for part in component[plural]:
            yield from _steps(part, plural)
    else:
        yield component


def normalizers(definition: Definition) -> list[Definition]:
    """Return the steps of the normalizer, in order."""
    return list(_steps(definition["normalizer"], "normalizers"))


def pre_tokenizers(definition: Definition) -> list[Definition]:
    """Return the steps of the pre-tokenizer, in order."""
    return list(_steps(definition["pre_tokenizer"], "pretokenizers"))


def decoders(definition: Definition) -> list[Definition]:
    """Return the steps of the decoder, in order."""
    return list(_steps(definition["decoder"], "decoders"))


def split_pattern(definition: Definition) -> str | None:
    """Return ``"gpt2"``, ``"llama3"`` or ``"words"`` for exactly that split of the text, else None."""
    steps = pre_tokenizers(definition)
    if len(steps) == 1 and steps[0]["type"] in ("BertPreTokenizer", "WhitespaceSplit"):
        return "words"
    if len(steps) == 1 and _is_byte_level(steps[0], use_regex=True):
        return "gpt2"
    if len(steps) == 2 and not _is_byte_level(steps[1], use_regex=False):
        return None
    if len(steps) in (1, 2) and steps[0]["type"] == "Split":
        split = steps[0]
        for name, pattern in PATTERNS.items():
            isolated = split["behavior"] == "Isolated" and not split["invert"]
            if isolated and split["pattern"] == {"Regex": pattern}:
                return name
    return None


def _is_byte_level(step: Definition, *, use_regex: bool) -> bool:
    return (
        step["type"] == "ByteLevel"
        and not step["add_prefix_space"]
        and step.get("use_regex", True) is use_regex
    )


def kind(definition: Definition) -> str:
    """Return the tokenizer's kind, ``"other"`` for one that Wordloom does not train."""
    model = definition["model"]["type"]
    if model in ("WordLevel", "WordPiece", "Unigram"):
        return {"WordLevel": "word", "WordPiece": "wordpiece", "Unigram": "unigram"}[model]
    if model != "BPE":
        return "other"
    splits = [step["type"] for step in pre_tokenizers(definition)]
    merges = definition["model"]["merges"]
    if "ByteLevel" in splits:
        return "byte" if not merges and _is_plain_bytes(definition) else "bpe"
    if not merges and not splits and _is_plain_characters(definition):
        return "char"
    if definition["model"].get("byte_fallback") and _marks_spaces(definition):
        return "llama"
    return "other"


def _is_plain_bytes(definition: Definition) -> bool:
    vocabulary = model_vocabulary(definition)
    steps = pre_tokenizers(definition)
    return (
        not normalizers(definition)
        and len(steps) == 1
        and _is_byte_level(steps[0], use_regex=False)
        and all(character in vocabulary for character in _BYTE_OF_CHARACTER)
        and all(t["special"] and _is_matched_as_written(t) for t in definition["added_tokens"])
    )


def _is_plain_characters(definition: Definition) -> bool:
    specials = special_tokens(definition)
    model = definition["model"]
    return (
        not (model.get("fuse_unk") or model.get("byte_fallback") or model.get("end_of_word_suffix"))
        and all(len(token) == 1 or token in specials for token in full_vocabulary(definition))
        and all(map(_is_matched_as_written, definition["added_tokens"]))
    )


def _is_matched_as_written(token: Definition) -> bool:
    return not (token["lstrip"] or token["rstrip"] or token["single_word"])


def _marks_spaces(definition: Definition) -> bool:
    return any(
        step["type"] == "Replace" and step["content"] == SPACE_MARK for step in normalizers(definition)
    ) or any(step["type"] == "Metaspace" for step in pre_tokenizers(definition))


def _decoder_style(definition: Definition) -> str | None:
    """Return how tokens become bytes: ``byte-level``, ``sentencepiece`` or ``fallback``; else None."""
    steps = decoders(definition)
    types = [step["type"] for step in steps]
    if types == ["ByteLevel"]:
        return "byte-level"
    if types == ["ByteFallback", "Fuse"]:
        return "fallback"
    if types[:3] == ["Replace", "ByteFallback", "Fuse"]:
        replaces_mark = steps[0]["pattern"] == {"String": SPACE_MARK} and steps[0]["content"] == " "
        if replaces_mark and (len(steps) == 3 or strips_first_space(definition)):
            return "sentencepiece"
    return None


def strips_first_space(definition: Definition) -> bool:
    """True if decoding drops one leading space, which encoding has added."""
    last = (decoders(definition) or [{"type": None}])[-1]
    return last["type"] == "Strip" and (last["content"], last["start"], last["stop"]) == (" ", 1, 0)


def token_bytes(definition: Definition, vocab_size: int) -> list[bytes | None] | None:
    """Return the exact bytes of every id, None for an id without a token; None if tokens are not bytes."""
    style = _decoder_style(definition)
    if style is None:
        return None
    table: list[bytes | None] = [None] * vocab_size
    for token, index in model_vocabulary(definition).items():
        if style == "byte-level":
            values = [_BYTE_OF_CHARACTER.get(character, -1) for character in token]
            table[index] = bytes(values) if -1 not in values else token.encode()
        elif token in _BYTE_PIECES:
            table[index] = bytes([_BYTE_PIECES[token]])
        else:
            table[index] = (token.replace(SPACE_MARK, " ") if style == "sentencepiece" else token).encode()
    for added in definition["added_tokens"]:
        table[added["id"]] = added["content"].encode()
    return table


def continuations(definition: Definition, vocab_size: int) -> list[bool]:
    """Return for every id whether it continues the word of the token before it.

    WordPiece marks such pieces with a prefix.  In byte-level BPE and SentencePiece the first piece of a word
    begins with a space, so a piece that begins with a letter or digit continues a word.  In other kinds no
    token does.
    """
    continues = [False] * vocab_size
    known = kind(definition)
    prefix = definition["model"].get("continuing_subword_prefix")
    table = token_bytes(definition, vocab_size)
    for token, index in model_vocabulary(definition).items():
        if known == "wordpiece":
            continues[index] = bool(prefix) and token.startswith(prefix)
        elif known in ("byte", "bpe", "char", "unigram", "llama"):
            piece = token if table is None else (table[index] or b"").decode(errors="replace")
            continues[index] = piece[:1].isalnum() or (table is not None and piece[:1] == "\ufffd")
    return continues


def is_lossless(definition: Definition) -> bool:
    """True if decoding reproduces every encoded text.

    A SentencePiece layout counts as lossless, although it reads a literal U+2581 as a space.
    """
    style = _decoder_style(definition)
    if style is None or any(
        t["lstrip"] or t["rstrip"] for t in definition["added_tokens"] if not t["special"]
    ):
        return False
    model, vocabulary = definition["model"], model_vocabulary(definition)
    if style == "byte-level":
        split = split_pattern(definition) in ("gpt2", "llama3") or kind(definition) == "byte"
        complete = all(character in vocabulary for character in _BYTE_OF_CHARACTER)
        return model["type"] == "BPE" and split and complete and not normalizers(definition)
    if not model.get("byte_fallback") or not all(piece in vocabulary for piece in _BYTE_PIECES):
        return False
    if style == "fallback":
        whole = not pre_tokenizers(definition) or split_pattern(definition) in PATTERNS
        return whole and not normalizers(definition)
    if strips_first_space(definition):
        return prepends_space(definition) and _only_isolates(definition)
    steps = [(step["type"], step.get("pattern")) for step in normalizers(definition)]
    return steps == [("Replace", {"String": " "})] and _only_isolates(definition)


def _only_isolates(definition: Definition) -> bool:
    """True if the pre-tokenizer drops nothing, or there is none."""
    return all(
        step["type"] == "Split" and step["behavior"] == "Isolated" for step in pre_tokenizers(definition)
    )


def cuts_at_spaces(definition: Definition) -> bool:
    """True if splitting a text before a space that follows a non-space never changes its ids."""
    if not all(token["special"] for token in definition["added_tokens"]):
        return False
    if prepends_space(definition):  # SentencePiece: no piece may continue across a space
        specials = special_tokens(definition)
        ordinary = (token for token in model_vocabulary(definition) if token not in specials)
        return not pre_tokenizers(definition) and all(
            SPACE_MARK not in token.lstrip(SPACE_MARK) for token in ordinary
        )
    plain = all(step["type"] in ("Lowercase", "BertNormalizer") for step in normalizers(definition))
    return plain and split_pattern(definition) is not None


def prepends_space(definition: Definition) -> bool:
    """True if normalisation adds a space before the text, marks all spaces, and does nothing else."""
    steps = normalizers(definition)
    return [step["type"] for step in steps] == ["Prepend", "Replace"] and (
        steps[0]["prepend"] == steps[1]["content"] == SPACE_MARK and steps[1]["pattern"] == {"String": " "}
    )


def leading_token(definition: Definition) -> str | None:
    """Return the special token that the post-processor puts before a single text, or None."""
    processor = definition["post_processor"]
    parts = processor.get("processors", [processor]) if processor else []
    for part in parts:
        first = part["single"][:1] if part["type"] == "TemplateProcessing" else []
        if first and "SpecialToken" in first[0]:
            token: str = first[0]["SpecialToken"]["id"]
            return token
        if part["type"] in ("RobertaProcessing", "BertProcessing"):
            return str(part["cls"][0])
    return None


def frames(definition: Definition) -> bool:
    """True if the post-processor adds tokens around a text; a byte-level one only changes offsets."""
    processor = definition["post_processor"]
    parts = processor.get("processors", [processor]) if processor else []
    return any(part["type"] != "ByteLevel" for part in parts)


_TEMPLATES = ("single", "pair")


def frame_template(
    start: Sequence[tuple[str, int]],
    between: Sequence[tuple[str, int]],
    end: Sequence[tuple[str, int]],
    *,
    second_segment: int = 0,
) -> Definition:
    """Return a post-processor that makes ``start A end`` and ``start A between B end``.

    Each part is a list of tokens with their ids.  B and the tokens after it belong to ``second_segment``,
    everything else to segment 0.
    """

    def tokens(some: Sequence[tuple[str, int]], segment: int) -> list[Definition]:
        return [{"SpecialToken": {"id": name, "type_id": segment}} for name, _ in some]

    def text(name: str, segment: int) -> Definition:
        return {"Sequence": {"id": name, "type_id": segment}}

    first = [*tokens(start, 0), text("A", 0)]
    second = [text("B", second_segment), *tokens(end, second_segment)]
    return {
        "type": "TemplateProcessing",
        "single": [*first, *tokens(end, 0)],
        "pair": [*first, *tokens(between, 0), *second],
        "special_tokens": {
            name: {"id": name, "ids": [index], "tokens": [name]} for name, index in (*start, *between, *end)
        },
    }


def bert_template(ids: dict[str, int]) -> Definition:
    """Return the post-processor for ``[CLS] A [SEP]`` and ``[CLS] A [SEP] B [SEP]``, with B in segment 1."""
    cls, sep = ids.items()
    return frame_template([cls], [sep], [sep], second_segment=1)


def in_one_segment(processor: Definition | None) -> Definition | None:
    """Return the post-processor with every token in segment 0."""
    if processor is None:
        return None
    match processor["type"]:
        case "Sequence":
            return {**processor, "processors": [in_one_segment(part) for part in processor["processors"]]}
        case "BertProcessing":
            cls, sep = (tuple(processor[name]) for name in ("cls", "sep"))
            return frame_template([cls], [sep], [sep])
        case "TemplateProcessing":
            return {**processor, **{name: list(map(_in_segment_0, processor[name])) for name in _TEMPLATES}}
        case _:
            return processor


def _in_segment_0(piece: Definition) -> Definition:
    return {kind: {**settings, "type_id": 0} for kind, settings in piece.items()}


def fingerprint(definition: Definition, roles: dict[str, int | None]) -> str:
    """Return the SHA-256 (hex) of everything that affects ids: rules, vocabulary, special tokens, roles."""
    model = dict(definition["model"])
    if "merges" in model:
        model["merges"] = merge_pairs(definition)
    decisive = {
        "normalizer": definition["normalizer"],
        "pre_tokenizer": definition["pre_tokenizer"],
        "model": model,
        "added_tokens": sorted(definition["added_tokens"], key=lambda token: token["id"]),
        "roles": roles,
    }
    text = json.dumps(decisive, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
