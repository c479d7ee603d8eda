"""SentencePiece's ``.model`` files as ``tokenizer.json`` definitions with equal ids.

The file is one protocol buffer; the layout is ``sentencepiece_model.proto`` in google/sentencepiece.  BPE and
character models give SentencePiece's ids.  Unigram models do too, except where two segmentations are equally
likely: SentencePiece adds scores in single precision and the library in double, and rounding decides.  A
model with a feature that the ``tokenizers`` library cannot express exactly is refused.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from wordloom.errors import TokenizerError
from wordloom.text.definition import SPACE_MARK, Definition
from wordloom.text.formats import charsmap
from wordloom.text.special import added_token, roles_by_name

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE, WORD = 1, 2, 3

# Far below every score, so that no segmentation prefers a byte piece: only byte fallback gives it.
_NEVER = -1e6


class Piece(NamedTuple):
    """An entry of the vocabulary, with its log-probability and the number of its type."""

    text: str
    score: float
    type: int


class Model(NamedTuple):
    """The contents of a ``.model`` file."""

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
    if trainer is None or normalizer is None:  # they follow the pieces, so a truncated file has neither
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
    """Yield number and value of each field: an int for a varint, else the raw bytes."""
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
                raise ValueError("it is not a protocol buffer")
            length = varint() if wire == 2 else 8 if wire == 1 else 4
            if position + length > len(data):
                raise ValueError("it is truncated")
            yield field, data[position : position + length]
            position += length
    except IndexError:
        raise ValueError("it is truncated") from None


def read_model(path: Path) -> tuple[Definition, dict[str, Any]]:
    """Return the definition and the roles of a ``.model`` file.

    Raises TokenizerError if it is not such a file or has a feature that cannot be expressed exactly.
    """
    try:
        model = parse(path.read_bytes())
    except OSError as error:
        raise TokenizerError(f"cannot read '{path}': {error.strerror}") from error
    except (ValueError, KeyError, AttributeError, TypeError, struct.error) as error:
        raise TokenizerError(f"'{path}' is not a SentencePiece model: {error}") from error
    for defect, present in _defects(model).items():
        if present:
            raise TokenizerError(
                f"'{path}' {defect}, which cannot be read with equal ids: use a tokenizer.json of this model"
            )
    unknown = next((index for index, piece in enumerate(model.pieces) if piece.type == UNKNOWN), None)
    if unknown is None:
        raise TokenizerError(f"'{path}' is not a SentencePiece model: it has no unknown piece")
    special = {p.text: i for i, p in enumerate(model.pieces) if p.type in (UNKNOWN, CONTROL)}
    user_defined = {p.text: i for i, p in enumerate(model.pieces) if p.type == USER_DEFINED}
    try:
        normalizers = _normalizers(model, user_defined)
    except charsmap.UnsupportedRulesError as error:
        raise TokenizerError(
            f"'{path}' has normalisation rules that {error}, which cannot be read with equal ids: convert it "
            "elsewhere"
        ) from error
    except ValueError as error:
        raise TokenizerError(f"'{path}' is not a SentencePiece model: {error}") from error
    config: dict[str, Any] = {"unk_token": model.pieces[unknown].text}
    roles = roles_by_name(list(special))
    config |= {f"{role}_token": roles[role] for role in ("bos", "eos", "pad") if role in roles}
    definition: Definition = {
        "version": "1.0",
        "added_tokens": [added_token(text, i) for text, i in special.items()]
        + (
            [added_token(text, i, special=False) for text, i in user_defined.items()]
            if model.model_type != UNIGRAM
            else []
        ),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": _isolating_unknown(model),
        "post_processor": None,
        "decoder": _decoder(model),
        "model": _unigram(model, unknown) if model.model_type == UNIGRAM else _bpe(model),
    }
    definition["added_tokens"].sort(key=lambda token: token["id"])
    if model.model_type == BPE and "bos" in roles:  # LLaMA begins every text with bos
        config |= {"add_bos_token": True, "add_eos_token": False}
        definition["post_processor"] = _bos_template(roles["bos"], special[roles["bos"]])
    return definition, config


def _defects(model: Model) -> dict[str, bool]:
    """Return features that the ``tokenizers`` library cannot express, with True for those of the model."""
    user_defined = [piece.text for piece in model.pieces if piece.type == USER_DEFINED]
    unigram = model.model_type == UNIGRAM
    return {
        "is of type word": model.model_type == WORD,
        "puts spaces after words (treat_whitespace_as_suffix)": model.space_is_suffix,
        "does not mark spaces (escape_whitespaces is off)": not model.escapes_spaces,
        "has unused pieces": any(piece.type == UNUSED for piece in model.pieces),
        "has user-defined pieces with spaces": any({" ", SPACE_MARK} & set(text) for text in user_defined),
        "is not of type unigram and has user-defined pieces beside a prefixed space": (
            bool(user_defined) and not unigram and model.adds_space
        ),
        "is not of type unigram and has user-defined pieces beside normalisation": (
            bool(user_defined) and not unigram and bool(model.squeezes_spaces or model.charsmap)
        ),
        "has special pieces of one character": not unigram
        and any(len(piece.text) == 1 for piece in model.pieces if piece.type in (UNKNOWN, CONTROL)),
        "gives several pieces the same score": model.model_type == BPE and _equal_scores_matter(model),
        "has characters that occur only in longer pieces": unigram and not _is_unknown_score_exact(model),
    }


def _equal_scores_matter(model: Model) -> bool:
    """True if the order of merges with equal scores can change ids.

    SentencePiece merges the leftmost pair first, the library the pair of the lower rank.  Both agree on
    LLaMA's runs of spaces, which share a score.
    """
    groups: defaultdict[float, list[str]] = defaultdict(list)
    for piece in model.pieces:
        if piece.type == NORMAL and len(piece.text) > 1:
            groups[piece.score].append(piece.text)
    return any(len(group) > 1 and not _merges_from_the_left(group) for group in groups.values())


def _merges_from_the_left(runs: list[str]) -> bool:
    """True if merging by rank splits a run of any length as taking the longest run from the left does."""
    longest = max(map(len, runs))
    if len(set("".join(runs))) > 1 or {*map(len, runs)} != {*range(2, longest + 1)} or longest > 100:
        return False
    rank = {len(run): place for place, run in enumerate(runs)}
    for length in range(2, 2 * longest + 2):
        parts = [1] * length
        while True:
            sums = [left + right for left, right in pairwise(parts)]
            candidates = [(rank[n], -parts[i], i) for i, n in enumerate(sums) if n in rank]
            if not candidates:
                break
            *_, i = min(candidates)
            parts[i : i + 2] = [sums[i]]
        whole, remainder = divmod(length, longest)
        if parts != [longest] * whole + [remainder] * (remainder > 0):
            return False
    return True


def _is_unknown_score_exact(model: Model) -> bool:
    """True if the score of unknown characters equals SentencePiece's, or cannot matter.

    SentencePiece scores them 10 below the worst normal piece, the library 10 below the worst piece of any
    type.  The score matters only if a character that is not a piece occurs within a longer piece.
    """
    matched = [piece for piece in model.pieces if piece.type in (NORMAL, USER_DEFINED)]
    characters = {piece.text for piece in matched if len(piece.text) == 1}
    worst = min((piece.score for piece in model.pieces if piece.type == NORMAL), default=0.0)
    return all(characters.issuperset(piece.text) for piece in matched) or (
        min(score for _, score in _unigram_scores(model)) == worst
    )


def _normalizers(model: Model, user_defined: Collection[str]) -> list[Definition]:
    """Return the steps of the normalizer, in SentencePiece's order.

    If white space is removed, the prefix comes after that, because an empty text gets none.  Otherwise it
    comes first, because a text of characters that the rules delete gets one.
    """
    steps: list[Definition] = []
    prefix = SPACE_MARK if model.adds_space else ""
    early = "" if model.squeezes_spaces else prefix
    if model.charsmap:
        steps += charsmap.steps(model.charsmap, user_defined, early)
    elif early:
        steps.append({"type": "Prepend", "prepend": early})
    if model.squeezes_spaces:
        steps.append(_replace({"Regex": r"\A +"}, ""))
        steps.append(_replace({"Regex": " {2,}"}, " "))
        if prefix:
            steps.append({"type": "Prepend", "prepend": prefix})
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
    """Return the BPE model.

    SentencePiece merges the neighbours whose union has the best score, the leftmost first.  Each way to split
    a piece into two pieces is therefore a merge, ranked by the score of the piece.
    """
    scores = {piece.text: piece.score for piece in model.pieces if piece.type == NORMAL}
    merges: list[list[str]] = []
    for text in sorted(scores, key=lambda text: -scores[text]):
        # The split with the longest left part comes first: runs of one character are joined from the left,
        # which makes it the leftmost of overlapping candidates.
        splits = ((text[:i], text[i:]) for i in range(len(text) - 1, 0, -1))
        merges += [[left, right] for left, right in splits if left in scores and right in scores]
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
    scores = [list(entry) for entry in _unigram_scores(model)]
    return {"type": "Unigram", "unk_id": unknown, "vocab": scores, "byte_fallback": model.byte_fallback}


def _isolating_unknown(model: Model) -> Definition | None:
    """Return a split around unknown characters, so that ``<0x41>`` in a text is not taken for a byte piece.

    The library's Unigram would prefer the byte piece to the unknown character '<'.  No piece contains an
    unknown character, so the split changes nothing else.
    """
    pieces = {piece.text for piece in model.pieces if piece.type in (NORMAL, USER_DEFINED)}
    unknown = [c for c in "<0x123456789ABCDEF>" if c not in pieces]
    if not unknown or not model.byte_fallback or model.model_type != UNIGRAM:
        return None
    pattern = {"Regex": f"[{''.join(unknown)}]"}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def _unigram_scores(model: Model) -> list[tuple[str, float]]:
    """Return piece and score; a user-defined piece gets the score that SentencePiece gives it."""
    best = max((piece.score for piece in model.pieces if piece.type == NORMAL), default=0.0)
    scores: list[tuple[str, float]] = []
    for text, score, kind in model.pieces:
        if kind == USER_DEFINED:
            score = len(text.encode()) * best - 0.1
        scores.append((text, _NEVER if kind == BYTE else score))
    return scores


def _bos_template(name: str, bos_id: int) -> Definition:
    def bos(segment: int) -> Definition:
        return {"SpecialToken": {"id": name, "type_id": segment}}

    single = [bos(0), {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, bos(1), {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {name: {"id": name, "ids": [bos_id], "tokens": [name]}},
    }
