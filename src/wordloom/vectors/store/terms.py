"""Sums of words as people write them: ``king - man + woman``, ``king -man``, ``"2*king + queen"``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from wordloom.errors import VectorError
from wordloom.vectors.store.keyed import KeyedVectors, UnknownWordError

__all__ = ["Term", "analogy_terms", "expression", "parse_terms", "refuse_zero"]

_SIGNS = {"+": 1.0, "-": -1.0, "\N{MINUS SIGN}": -1.0}
_WEIGHED = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\*(.+)", re.DOTALL)
_AT_SIGNS = re.compile("([-+\N{MINUS SIGN}])")


class Term(NamedTuple):
    """A word with its weight, sign and all; ``signed`` where a sign stood before it."""

    word: str
    weight: float
    signed: bool


def parse_terms(vectors: KeyedVectors, given: Sequence[str]) -> list[Term]:
    """The terms of an expression, given in pieces or in one.

    A sign stands alone before a word or at its front, a weight before a star (``2*king``).  What is a word of
    ``vectors`` as it stands is that word, spaces, hyphens and all; a word that begins with a sign or looks
    like a sum of others has to be given apart.

    Raises:
        UnknownWordError: a word has no vector.
        VectorError: there are no terms, a sign has no word after it, or a weight is 0.
    """
    terms: list[Term] = []
    sign, signed = 1.0, False
    pieces = list(_pieces(vectors, given))
    for place, piece in enumerate(pieces):
        if piece in _SIGNS and not (signed or (place == len(pieces) - 1 and _is_word(vectors, piece))):
            sign, signed = _SIGNS[piece], True
            continue
        weight, word = _weighed(vectors, piece)
        vectors.get_vector(word)
        if weight == 0:
            raise VectorError(
                f"the weight of {word!r} is 0, which leaves it out; give another, or no such word"
            )
        terms.append(Term(word, sign * weight, signed))
        sign, signed = 1.0, False
    if signed:
        raise VectorError(f"no word stands after the sign in {' '.join(given)!r}; give one")
    if not terms:
        raise VectorError("there is no word to ask about; give one or more")
    return terms


def _pieces(vectors: KeyedVectors, given: Sequence[str]) -> Iterator[str]:
    """Words and signs, each by itself."""
    for text in given:
        if text in _SIGNS:
            yield text
        elif text[:1] in _SIGNS and (not _is_word(vectors, text) or _is_term(vectors, text[1:])):
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
    return _is_word(vectors, _weighed(vectors, text)[1])


def _is_word(vectors: KeyedVectors, text: str) -> bool:
    """Whether a row of ``vectors`` is called so.  (Of fastText's, any text has a vector.)"""
    try:
        vectors.get_index(text)
    except UnknownWordError:
        return False
    return True


def _weighed(vectors: KeyedVectors, text: str) -> tuple[float, str]:
    """The weight and the word of ``2*king``; 1 where there is none, or the whole is a word."""
    if not _is_word(vectors, text) and (found := _WEIGHED.fullmatch(text)):
        return float(found[1]), found[2]
    return 1.0, text


def analogy_terms(vectors: KeyedVectors, given: Sequence[str]) -> list[Term]:
    """The terms of an analogy: signed ones as they are; three words A B C ask for A - B + C.

    Raises VectorError as :func:`parse_terms`, and for another number of words without a sign.
    """
    terms = parse_terms(vectors, given)
    if any(term.signed for term in terms):
        return terms
    if len(terms) != 3:
        raise VectorError(
            "an analogy is three words (king man woman asks for king - man + woman) or a sum with signs, "
            f"not {len(terms)} words; write the signs"
        )
    a, b, c = terms
    return [a, Term(b.word, -b.weight, True), Term(c.word, c.weight, True)]


def refuse_zero(vectors: KeyedVectors, terms: Sequence[Term]) -> None:
    """Raise VectorError where the sum of ``terms`` is the vector 0, to which all words are equally near."""
    total = sum(term.weight * vectors.get_vector(term.word, norm=True) for term in terms)
    if not np.any(total):
        raise VectorError(
            f"the vector of {expression(terms)!r} is 0, to which all words are equally near; ask for others"
        )


def expression(terms: Sequence[Term]) -> str:
    """The terms as one sum, which :func:`parse_terms` reads again: ``king - man + 2*woman``.

    A word with a space at an end is quoted to be seen.
    """
    text = ""
    for term in terms:
        sign = "-" if term.weight < 0 else "+" if text else ""
        weight = "" if abs(term.weight) == 1 else f"{abs(term.weight):g}*"
        word = repr(term.word) if term.word != term.word.strip() else term.word
        text += f" {sign} {weight}{word}" if text else f"{sign}{weight}{word}"
    return text
