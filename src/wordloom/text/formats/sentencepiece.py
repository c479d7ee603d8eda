"""SentencePiece's ``.model`` files (BPE and Unigram) as ``tokenizer.json`` definitions of equal ids.

The file is one protocol buffer, of which a few fields matter; the layout is
``sentencepiece_model.proto`` in google/sentencepiece.  BPE ids are SentencePiece's own; Unigram's are
too except where two segmentations are exactly as likely, which rounding decides (single precision
there, double here).  Where SentencePiece has a feature that the
``tokenizers`` library cannot express exactly, the file is refused rather than read almost rightly.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from wordloom.errors import TokenizerError
from wordloom.text.formats.definition import SPACE_MARK, Definition
from wordloom.text.special import added_token

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE = 1, 2

# Far below every score, so that no path of pieces prefers it: bytes are reached by falling back only.
_NEVER = -1e6


class Piece(NamedTuple):
    """An entry of the vocabulary: its log-probability, and its type as the file numbers it."""

    text: str
    score: float
    type: int


class Model(NamedTuple):
    """What a ``.model`` file holds."""

    pieces: list[Piece]
    model_type: int
    byte_fallback: bool
    space_is_suffix: bool
    charsmap: bytes
    adds_space: bool
    squeezes_spaces: bool
    escapes_spaces: bool


def parse(data: bytes) -> Model:
    """Parse a serialised ``ModelProto``.  Raises ValueError if ``data`` is not one."""
    pieces: list[Piece] = []
    trainer: dict[int, Any] | None = None
    normalizer: dict[int, Any] | None = None
    for field, value in _fields(data):
        if field == 1:
            entry = dict(_fields(value))
            score = struct.unpack("<f", entry[2])[0] if 2 in entry else 0.0
            pieces.append(Piece(entry[1].decode(), score, entry.get(3, NORMAL)))
        elif field == 2:
            trainer = dict(_fields(value))
        elif field == 3:
            normalizer = dict(_fields(value))
    if not pieces:
        raise ValueError("it has no pieces")
    if trainer is None or normalizer is None:  # they follow the pieces; a file cut between two has neither
        raise ValueError("it is truncated: it ends after its pieces, before their type and normalisation")
    return Model(
        pieces=pieces,
        model_type=trainer.get(3, UNIGRAM),
        byte_fallback=bool(trainer.get(35, False)),
        space_is_suffix=bool(trainer.get(24, False)),
        charsmap=normalizer.get(2, b""),
        adds_space=bool(normalizer.get(3, True)),
        squeezes_spaces=bool(normalizer.get(4, True)),
        escapes_spaces=bool(normalizer.get(5, True)),
    )


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field: an int for a varint, else the raw bytes."""
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    try:
        while position < len(data):
            field, wire = divmod(varint(), 8)
            if wire == 0:
                yield field, varint()
                continue
            if wire not in (1, 2, 5):
                raise ValueError("it is no protocol buffer")
            length = varint() if wire == 2 else 8 if wire == 1 else 4
            if position + length > len(data):
                raise ValueError("it is truncated")
            yield field, data[position : position + length]
            position += length
    except IndexError:
        raise ValueError("it is truncated") from None


def read_model(path: Path) -> tuple[Definition, dict[str, Any]]:
    """The definition and the roles of a ``.model`` file.

    Raises TokenizerError if it is no such file or uses what cannot be expressed exactly.
    """
    try:
        model = parse(path.read_bytes())
    except OSError as error:
        raise TokenizerError(f"cannot read '{path}': {error.strerror}") from error
    except (ValueError, KeyError, AttributeError, TypeError, struct.error) as error:
        raise TokenizerError(f"'{path}' is no SentencePiece model: {error}") from error
    types = {piece.type for piece in model.pieces}
    defects = {
        "is of type word or char, not bpe or unigram": model.model_type not in (UNIGRAM, BPE),
        "puts spaces after words (treat_whitespace_as_suffix)": model.space_is_suffix,
        "does not mark spaces (escape_whitespaces is off)": not model.escapes_spaces,
        "has unused pieces": UNUSED in types,
        "has user-defined pieces beside a prefixed space": USER_DEFINED in types and model.adds_space,
    }
    for defect, present in defects.items():
        if present:
            raise TokenizerError(
                f"'{path}' {defect}, which cannot be read with equal ids: convert it elsewhere"
            )

    unknown = next((index for index, piece in enumerate(model.pieces) if piece.type == UNKNOWN), None)
    if unknown is None:
        raise TokenizerError(f"'{path}' is no SentencePiece model: it has no unknown piece")
    special = {p.text: i for i, p in enumerate(model.pieces) if p.type in (UNKNOWN, CONTROL)}
    user_defined = {p.text: i for i, p in enumerate(model.pieces) if p.type == USER_DEFINED}
    config: dict[str, Any] = {"unk_token": model.pieces[unknown].text}
    for role, name in (("bos", "<s>"), ("eos", "</s>"), ("pad", "<pad>")):
        if name in special:
            config[f"{role}_token"] = name
    definition: Definition = {
        "version": "1.0",
        "added_tokens": [added_token(text, i) for text, i in special.items()]
        + [added_token(text, i, special=False) for text, i in user_defined.items()],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model)},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": _decoder(model),
        "model": _bpe(model) if model.model_type == BPE else _unigram(model, unknown),
    }
    definition["added_tokens"].sort(key=lambda token: token["id"])
    if model.model_type == BPE and "<s>" in special:  # LLaMA begins every text with bos
        config |= {"add_bos_token": True, "add_eos_token": False}
        definition["post_processor"] = _bos_template(special["<s>"])
    return definition, config


def _normalizers(model: Model) -> list[Definition]:
    steps: list[Definition] = []
    if model.charsmap:
        charsmap = base64.b64encode(model.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if model.squeezes_spaces:
        steps.append(_replace({"Regex": r"\A +"}, ""))
        steps.append(_replace({"Regex": " {2,}"}, " "))
    if model.adds_space:
        steps.append({"type": "Prepend", "prepend": SPACE_MARK})
    steps.append(_replace({"String": " "}, SPACE_MARK))
    if model.squeezes_spaces:  # at the end, marks that were in the text go as well
        steps.append(_replace({"Regex": rf"{SPACE_MARK}+\z"}, ""))
    return steps


def _replace(pattern: Definition, content: str) -> Definition:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _decoder(model: Model) -> Definition:
    steps: list[Definition] = [
        _replace({"String": SPACE_MARK}, " "),
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if model.adds_space:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _bpe(model: Model) -> Definition:
    """SentencePiece joins the neighbours whose union has the best score, the leftmost of equals; so every
    way of cutting a piece in two known pieces is a merge, ranked by the piece's score."""
    learnt = {piece.text: piece.score for piece in model.pieces if piece.type == NORMAL}
    merges: list[list[str]] = []
    for text in sorted(learnt, key=lambda text: -learnt[text]):
        # Of several cuts of one piece, the longest left part first: runs of one character are joined from
        # the left, so that is the leftmost of overlapping candidates.
        cuts = range(len(text) - 1, 0, -1)
        merges += [[text[:cut], text[cut:]] for cut in cuts if text[:cut] in learnt and text[cut:] in learnt]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": next(piece.text for piece in model.pieces if piece.type == UNKNOWN),
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": False,
        "vocab": {piece.text: index for index, piece in enumerate(model.pieces)},
        "merges": merges,
    }


def _unigram(model: Model, unknown: int) -> Definition:
    scores = [[piece.text, _NEVER if piece.type == BYTE else piece.score] for piece in model.pieces]
    return {"type": "Unigram", "unk_id": unknown, "vocab": scores, "byte_fallback": model.byte_fallback}


def _bos_template(bos_id: int) -> Definition:
    def bos(segment: int) -> Definition:
        return {"SpecialToken": {"id": "<s>", "type_id": segment}}

    single = [bos(0), {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, bos(1), {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [bos_id], "tokens": ["<s>"]}},
    }
