"""Parse sums of words: ``king - man + woman``, ``king -man``, ``"2*king + queen"``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from wordloom.errors import VectorError
from wordloom.vectors.store.keyed import KeyedVectors

_SIGNS = {"+": 1.0, "-": -1.0, "\N{MINUS SIGN}": -1.0}
_WEIGHED = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\*(.+)", re.DOTALL)
_AT_SIGNS = re.compile("([-+\N{MINUS SIGN}])")


class Term(NamedTuple):
    """A word with its signed weight; ``signed`` if a sign was written before it."""

    word: str
    weight: float
    signed: bool


def parse_terms(vectors: KeyedVectors, given: Sequence[str]) -> list[Term]:
    """Return the terms of an expression, which may be split into several strings.

    A sign is a string of its own or the first character of a word; a weight is written ``2*king``.  A string
    that is a word of ``vectors`` is that word, including its spaces and hyphens.  A word that begins with a
    sign, or looks like a sum of other words, must be a string of its own.

    Raises:
        UnknownWordError: a word has no vector.
        VectorError: there are no terms, no word follows a sign, or a weight is 0.
    """
    terms: list[Term] = []
    sign, signed = 1.0, False
    pieces = list(_pieces(vectors, given))
    for place, piece in enumerate(pieces):
        if piece in _SIGNS and not (signed or (place == len(pieces) - 1 and vectors.has_index_for(piece))):
            sign, signed = _SIGNS[piece], True
            continue
        weight, word = _weighed(vectors, piece)
        vectors.get_vector(word)
        if weight == 0:
            raise VectorError(
                f"the weight of {word!r} is 0, so it has no effect; give another, or leave out the word"
            )
        terms.append(Term(word, sign * weight, signed))
        sign, signed = 1.0, False
    if signed:
        raise VectorError(f"no word follows the sign in {' '.join(given)!r}; give one")
    if not terms:
        raise VectorError("no word is given; give one or more")
    return terms


def _pieces(vectors: KeyedVectors, given: Sequence[str]) -> Iterator[str]:
    """Yield words and signs one by one."""
    for text in given:
        if text in _SIGNS:
            yield text
        elif text[:1] in _SIGNS and (not vectors.has_index_for(text) or _is_term(vectors, text[1:])):
            yield text[:1]
            yield from _pieces(vectors, [text[1:]])
        elif _is_term(vectors, text):
            yield text
        elif (parts := text.split()) and parts != [text]:
            yield from _pieces(vectors, parts)
        else:
            parts = [part for part in _AT_SIGNS.split(text) if part]
            known = all(part in _SIGNS or _is_term(vectors, part) for part in parts)
            yield from parts if parts and known else [text]


def _is_term(vectors: KeyedVectors, text: str) -> bool:
    return vectors.has_index_for(_weighed(vectors, text)[1])


def _weighed(vectors: KeyedVectors, text: str) -> tuple[float, str]:
    """Split ``2*king`` into weight and word.  The weight is 1 if there is none or the whole is a word."""
    if not vectors.has_index_for(text) and (found := _WEIGHED.fullmatch(text)):
        return float(found[1]), found[2]
    return 1.0, text


def analogy_terms(vectors: KeyedVectors, given: Sequence[str]) -> list[Term]:
    """Return the terms of an analogy.  Three words A B C without signs mean A - B + C.

    Raises VectorError like :func:`parse_terms`, and for another number of words without signs.
    """
    terms = parse_terms(vectors, given)
    if any(term.signed for term in terms):
        return terms
    if len(terms) != 3:
        raise VectorError(
            "an analogy is three words (king man woman means king - man + woman) or a sum with signs, "
            f"not {len(terms)} words; write the signs"
        )
    a, b, c = terms
    return [a, Term(b.word, -b.weight, True), Term(c.word, c.weight, True)]


def refuse_zero(vectors: KeyedVectors, terms: Sequence[Term]) -> None:
    """Raise VectorError if the sum of ``terms`` is the zero vector, which is equally near to all words."""
    total = sum(term.weight * vectors.get_vector(term.word, norm=True) for term in terms)
    if not np.any(total):
        raise VectorError(
            f"{expression(terms)!r} is the zero vector, equally near to all words; give other words"
        )


def expression(terms: Sequence[Term]) -> str:
    """Return the terms as one sum, ``king - man + 2*woman``, which :func:`parse_terms` can read.

    A word with leading or trailing spaces is quoted.
    """
    text = ""
    for term in terms:
        sign = "-" if term.weight < 0 else "+" if text else ""
        weight = "" if abs(term.weight) == 1 else f"{abs(term.weight):g}*"
        word = repr(term.word) if term.word != term.word.strip() else term.word
        text += f" {sign} {weight}{word}" if text else f"{sign}{weight}{word}"
    return text
