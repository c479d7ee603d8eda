"""Scores of token classification: by word, and by entity.

An entity is a stretch of words with B-TYPE or I-TYPE tags. Entities are found as in the CoNLL-2000 script
(conlleval) and in the default mode of seqeval: B begins an entity, and so does an I that follows O or another
type. This covers both BIO schemes: B only between neighbours (IOB1), and B at each beginning (IOB2). An
entity is right if its type and both ends are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import EvaluationError
from wordloom.evaluate.score import MIN_UNITS, Floats, Score, Scores, signature

__all__ = ["Entity", "entities", "is_bio", "tag_agreement"]

RESAMPLES = 2000  # of the texts, with a fixed seed
Tags: TypeAlias = Sequence[str]
Totals: TypeAlias = NDArray[np.integer[Any]]

# the columns of what is counted of every text
_HITS, _WORDS, _RIGHT, _FOUND, _TRUE = range(5)


class Entity(NamedTuple):
    """A stretch of words: its type, the number of its first word, and that behind its last."""

    type: str
    begin: int
    end: int


def is_bio(tags: Sequence[str]) -> bool:
    """Return whether all of ``tags`` are ``O``, ``B-TYPE`` or ``I-TYPE``."""
    return all(tag == "O" or (tag[:2] in ("B-", "I-") and len(tag) > 2) for tag in tags)


def entities(tags: Tags) -> list[Entity]:
    """The entities of one text, in order; raises EvaluationError for a tag that is none of BIO's."""
    found: list[Entity] = []
    kind, begin = "", 0  # of the entity that is open; "" for none
    for at, tag in enumerate((*tags, "O")):
        if not is_bio((tag,)):
            raise EvaluationError(f"the tag {tag!r} is none of O, B-TYPE and I-TYPE; entities need these")
        mark, _, type_ = tag.partition("-")
        if kind and (mark != "I" or type_ != kind):
            found.append(Entity(kind, begin, at))
            kind = ""
        if type_ and not kind:
            kind, begin = type_, at
    return found


def tag_agreement(
    targets: Sequence[Tags], predicted: Sequence[Tags], *, settings: Mapping[str, object] | None = None
) -> Scores:
    """Return ``accuracy`` of words, and for BIO tags ``entity_f1``, ``entity_precision``, ``entity_recall``.

    ``settings`` are further settings that decide the scores, for their signatures. Words, entities and hits
    are summed over all texts.  Intervals are the percentiles of
    2,000 resamples of the texts, drawn with a fixed seed, from 20 texts on.  ``details`` holds what each type
    of ``entities`` came to: how many are true, found and right.

    Raises EvaluationError: no word, another number of texts or words than predicted, predicted tags that are
    not BIO's where the targets' are.
    """
    if len(targets) != len(predicted):
        raise EvaluationError(
            f"{len(targets):,} texts have {len(predicted):,} predictions; give one for each"
        )
    about = dict(settings or {})
    bio = is_bio(list({tag for tags in targets for tag in tags}))
    types: Counter[tuple[str, int]] = Counter()
    rows = [_counted(n, *pair, bio, types) for n, pair in enumerate(zip(targets, predicted, strict=True), 1)]
    counts = np.array(rows, np.int64).reshape(-1, 5)
    if not counts[:, _WORDS].sum():
        raise EvaluationError("there is no word to score; give at least one with its label")
    scores = [_score("accuracy", counts, _accuracy, about)]
    if bio:
        scores += [
            _score("entity_f1", counts, _f1, about),
            _score("entity_precision", counts, _precision, about),
            _score("entity_recall", counts, _recall, about),
        ]
    total = counts.sum(0).tolist()
    by_type = {
        kind: {"true": types[kind, _TRUE], "found": types[kind, _FOUND], "right": types[kind, _RIGHT]}
        for kind in sorted({kind for kind, _ in types})
    }
    summed = {"texts": len(rows), "words": total[_WORDS], "right": total[_HITS]}
    if not bio:
        return Scores(tuple(scores), summed)
    summed |= {"entities": total[_TRUE], "found": total[_FOUND], "right_entities": total[_RIGHT]}
    return Scores(tuple(scores), summed, details={"entities": by_type})


def _counted(n: int, right: Tags, taken: Tags, bio: bool, types: Counter[tuple[str, int]]) -> list[int]:
    """The counts of text ``n``; its entities go into ``types``."""
    if len(right) != len(taken):
        raise EvaluationError(f"text {n:,} has {len(right):,} words and {len(taken):,} predicted labels")
    hits = sum(a == b for a, b in zip(right, taken, strict=True))
    if not bio:
        return [hits, len(right), 0, 0, 0]
    true, found = set(entities(right)), set(entities(taken))
    for what, some in ((_RIGHT, true & found), (_FOUND, found), (_TRUE, true)):
        types.update((entity.type, what) for entity in some)
    return [hits, len(right), len(true & found), len(found), len(true)]


def _score(
    name: str, counts: Totals, score: Callable[[Totals], Floats], settings: dict[str, object]
) -> Score:
    """``score`` of sums [K, 5] -> [K]."""
    n, sums = len(counts), counts.sum(0)
    value = float(score(sums[None])[0])
    kind, below = {
        "entity_precision": ("found", sums[_FOUND]),
        "entity_recall": ("true", sums[_TRUE]),
        "entity_f1": ("true or found", sums[_FOUND] + sums[_TRUE]),
    }.get(name, ("", 1))
    enough = n >= MIN_UNITS and below > 0
    signed = signature(name, **{**settings, "ci": f"{n}-texts-bootstrap{RESAMPLES}" if enough else "no"})
    if not below:
        return Score(name, value, None, signed, f"{name} is 0 by convention: no entity is {kind}")
    if not enough:
        return Score(name, value, None, signed)
    alike, often = np.unique(counts, axis=0, return_counts=True)  # texts with equal counts are one draw
    drawn = np.random.default_rng(0).multinomial(n, often / n, size=RESAMPLES)  # [K, kinds of text]
    low, high = np.quantile(score(drawn @ alike), (0.025, 0.975))
    return Score(name, value, (float(low), float(high)), signed)


def _ratio(above: Totals, below: Totals) -> Floats:
    """0 where there is nothing to divide by, as conlleval has it."""
    return above / np.maximum(below, 1)


def _accuracy(sums: Totals) -> Floats:
    return _ratio(sums[:, _HITS], sums[:, _WORDS])


def _f1(sums: Totals) -> Floats:
    return _ratio(2 * sums[:, _RIGHT], sums[:, _FOUND] + sums[:, _TRUE])


def _precision(sums: Totals) -> Floats:
    return _ratio(sums[:, _RIGHT], sums[:, _FOUND])


def _recall(sums: Totals) -> Floats:
    return _ratio(sums[:, _RIGHT], sums[:, _TRUE])
