"""Sums of words as people write them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wordloom.errors import VectorError
from wordloom.vectors import KeyedVectors, UnknownWordError
from wordloom.vectors.store.terms import Term, analogy_terms, expression, parse_terms

WORDS = [
    "king",
    "man",
    "woman",
    "queen",
    "1990",
    "well-known",
    "-",
    "+",
    "new york",
    " space",
    "-est",
    "est",
    "c++",
]
VECTORS = KeyedVectors(WORDS, np.eye(len(WORDS)))


def weights(*given):
    return [(term.word, term.weight) for term in parse_terms(VECTORS, given)]


SUM = [("king", 1.0), ("man", -1.0), ("woman", 1.0)]


@pytest.mark.parametrize(
    "given",
    [
        ["king", "-", "man", "+", "woman"],
        ["king", "-man", "+woman"],
        ["king", "-man", "woman"],
        ["king - man + woman"],
        ["king-man+woman"],
        ["+king", "−man", "+", "woman"],
        ["king -man", "+", "1*woman"],
    ],
)
def test_ways_to_write_one_sum(given):
    assert weights(*given) == SUM


def test_weights():
    assert weights("2*king", "-0.5*man") == [("king", 2.0), ("man", -0.5)]
    assert weights("2*king - .25*man") == [("king", 2.0), ("man", -0.25)]
    assert weights("- 3*man") == [("man", -3.0)]


def test_words_that_look_like_something_else():
    assert weights("new york") == [("new york", 1.0)]
    assert weights("king", "-new york") == [("king", 1.0), ("new york", -1.0)]
    assert weights("well-known", "1990") == [("well-known", 1.0), ("1990", 1.0)]
    assert weights(" space") == [(" space", 1.0)]
    assert weights("c++") == [("c++", 1.0)]
    assert weights("king", "+") == [("king", 1.0), ("+", 1.0)]
    assert weights("-") == [("-", 1.0)]
    assert weights("king", "-", "-") == [("king", 1.0), ("-", -1.0)]
    assert weights("-est") == [("est", -1.0)]  # a sign, where what follows is a word


def test_mistakes():
    with pytest.raises(UnknownWordError, match=r"'kign' is not in the vocabulary; did you mean 'king'\?"):
        parse_terms(VECTORS, ["kign"])
    with pytest.raises(UnknownWordError, match="'mann'"):
        parse_terms(VECTORS, ["king", "-mann"])
    with pytest.raises(UnknownWordError, match="'mann'"):
        parse_terms(VECTORS, ["king - mann + woman"])
    with pytest.raises(UnknownWordError, match="'well-known-man'"):
        parse_terms(VECTORS, ["well-known-man"])
    for nothing in ("", "  "):
        with pytest.raises(UnknownWordError):
            parse_terms(VECTORS, [nothing])
    with pytest.raises(UnknownWordError, match="'kign'"):
        parse_terms(VECTORS, ["2*kign"])
    with pytest.raises(VectorError, match="no word is given"):
        parse_terms(VECTORS, [])
    lonely = KeyedVectors(["king"], np.ones((1, 1)))
    with pytest.raises(VectorError, match="no word follows the sign in 'king -'; give one"):
        parse_terms(lonely, ["king", "-"])


def test_an_analogy_is_three_words_or_a_sum():
    assert analogy_terms(VECTORS, ["king", "man", "woman"]) == [
        Term("king", 1.0, False),
        Term("man", -1.0, True),
        Term("woman", 1.0, True),
    ]
    assert [t.weight for t in analogy_terms(VECTORS, ["king", "queen", "-man", "+woman"])] == [1, 1, -1, 1]
    assert [t.weight for t in analogy_terms(VECTORS, ["2*king", "man", "woman"])] == [2, -1, 1]
    with pytest.raises(VectorError, match="a sum with signs, not 2 words"):
        analogy_terms(VECTORS, ["king", "man"])


plain = st.sampled_from(["king", "man", "woman", "queen", "1990", "well-known"])
numbers = st.integers(-400, 400).filter(bool).map(lambda n: n / 4)


@given(st.lists(st.tuples(plain, numbers), min_size=1, max_size=6))
def test_what_is_written_is_read_again(terms):
    written = expression([Term(word, weight, False) for word, weight in terms])
    assert weights(written) == terms
    assert weights(*written.split(" ")) == terms
