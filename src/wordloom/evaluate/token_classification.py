"""Scores of token classification: by word, and by entity.

An entity is a run of words with B-TYPE or I-TYPE tags. Entities are found as in the CoNLL-2000 script
(conlleval) and in the default mode of seqeval: B begins an entity, and an I that follows O or another type
also begins one. This covers both BIO schemes: B only between neighbours (IOB1), and B at each beginning
(IOB2). An entity is right if its type and both ends are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from wordloom.errors import EvaluationError
from wordloom.evaluate.score import Counts, Floats, Score, Scores, bootstrap_score, resampled_counts

Tags: TypeAlias = Sequence[str]

# the columns of the counts of each text: right words, words; right, found and true entities
_HITS, _WORDS, _RIGHT, _FOUND, _TRUE = range(5)


class Entity(NamedTuple):
    """The type of an entity, the number of its first word, and the number after its last word."""

    type: str
    begin: int
    end: int


def is_bio(tags: Sequence[str]) -> bool:
    """Return whether all of ``tags`` are ``O``, ``B-TYPE`` or ``I-TYPE``."""
    return all(tag == "O" or (tag[:2] in ("B-", "I-") and len(tag) > 2) for tag in tags)


def entities(tags: Tags) -> list[Entity]:
    """Return the entities of one text, in order; raises EvaluationError for a tag outside the BIO scheme."""
    closed: list[Entity] = []
    kind, begin = "", 0  # of the open entity; "" if none is open
    for at, tag in enumerate((*tags, "O")):
        if not is_bio((tag,)):
            raise EvaluationError(f"the tag {tag!r} is not one of O, B-TYPE and I-TYPE, which entities need")
        mark, _, type_ = tag.partition("-")
        if kind and (mark != "I" or type_ != kind):
            closed.append(Entity(kind, begin, at))
            kind = ""
        if type_ and not kind:
            kind, begin = type_, at
    return closed


def tag_agreement(
    targets: Sequence[Tags], predicted: Sequence[Tags], *, settings: Mapping[str, object] | None = None
) -> Scores:
    """Return ``accuracy`` of words, and for BIO tags ``entity_f1``, ``entity_precision``, ``entity_recall``.

    ``settings`` are further settings that decide the scores, for their signatures. Words, entities and hits
    are summed over all texts.  From 20 texts on, intervals are the percentiles of 2,000 resamples of the
    texts, drawn with a fixed seed.  ``details`` holds for each type of ``entities`` how many are true, found
    and right.

    Raises EvaluationError: no word, unequal numbers of texts or words, predicted tags outside the BIO scheme
    for targets in it.
    """
    if len(targets) != len(predicted):
        raise EvaluationError(
            f"{len(targets):,} texts have {len(predicted):,} predictions; give one for each"
        )
    bio = is_bio(list({tag for tags in targets for tag in tags}))
    types: Counter[tuple[str, int]] = Counter()
    rows = [_counted(n, *pair, bio, types) for n, pair in enumerate(zip(targets, predicted, strict=True), 1)]
    counts = np.array(rows, np.int64).reshape(-1, 5)
    if not counts[:, _WORDS].sum():
        raise EvaluationError("there is no word to score; give at least one with its label")
    scores = [_score(name, counts, settings or {}) for name in (_METRICS if bio else ["accuracy"])]
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


def _counted(n: int, target: Tags, predicted: Tags, bio: bool, types: Counter[tuple[str, int]]) -> list[int]:
    """Return the counts of text ``n``, and count its entities by type in ``types``."""
    if len(target) != len(predicted):
        raise EvaluationError(f"text {n:,} has {len(target):,} words and {len(predicted):,} predicted labels")
    hits = sum(a == b for a, b in zip(target, predicted, strict=True))
    if not bio:
        return [hits, len(target), 0, 0, 0]
    true, found = set(entities(target)), set(entities(predicted))
    for column, group in ((_RIGHT, true & found), (_FOUND, found), (_TRUE, true)):
        types.update((entity.type, column) for entity in group)
    return [hits, len(target), len(true & found), len(found), len(true)]


#: For each metric the columns that its numerator and its denominator sum, and a name for the denominator.
_METRICS: dict[str, tuple[tuple[int, ...], tuple[int, ...], str]] = {
    "accuracy": ((_HITS,), (_WORDS,), ""),
    "entity_f1": ((_RIGHT, _RIGHT), (_FOUND, _TRUE), "true or found"),
    "entity_precision": ((_RIGHT,), (_FOUND,), "found"),
    "entity_recall": ((_RIGHT,), (_TRUE,), "true"),
}


def _score(name: str, counts: Counts, settings: Mapping[str, object]) -> Score:
    """Return the ratio of two sums of the columns of ``counts`` [texts, 5]; 0 / 0 is 0, as in conlleval."""
    above, below, kind = _METRICS[name]

    def ratio(sums: Counts) -> Floats:  # [K, 5] -> [K]
        return sums[:, above].sum(1) / np.maximum(sums[:, below].sum(1), 1)

    def resampled() -> Floats:
        kinds, often = np.unique(counts, axis=0, return_counts=True)  # texts with equal counts are one kind
        return ratio(resampled_counts(often) @ kinds)

    sums = counts.sum(0)
    note = "" if sums[list(below)].any() else f"{name} is 0 by convention: no entity is {kind}"
    value = float(ratio(sums[None])[0])
    return bootstrap_score(name, value, resampled, len(counts), "texts", settings, note)
