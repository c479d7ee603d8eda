"""Texts of vectors as they are found: by other tools, other systems, other hands."""

import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wordloom.errors import VectorError
from wordloom.vectors import KeyedVectors, load_word2vec, save_word2vec

TWO = {"a": [1, 2], "b": [3, 4]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 2\na 1 2 \nb 3 4 \n", TWO),  # word2vec.c and fastText end lines with a space
        ("2 2\r\na 1 2\r\nb 3 4\r\n", TWO),
        ("2 2 \r\na 1 2 \r\nb 3 4\t\r\n", TWO),
        ("2 2\na 1 2\nb 3 4", TWO),
        ("2 2\na 1 2\nb 3 4\n\n\n", TWO),
        ("\ufeff2 2\na 1 2\nb 3 4\n", TWO),
        ("\ufeffa 1 2\r\nb 3 4\r\n", TWO),
        ("\ufeff\ufeffa 1 2\n\ufeffb 3 4\n", {"\ufeffa": [1, 2], "\ufeffb": [3, 4]}),  # words' own
        ("a  1 2\nb 3  4\n", TWO),
        ("2 2\n a 1 2\n\tb  3 4\n", TWO),
        ("a\t1\t2\nb\t3\t4\n", TWO),
        ("2\t2\na\t1 2\nb 3\t4\n", TWO),
        ("a\t1 2\nb\t3 4\n", TWO),
        ("a\tb 1 2\nc\t7 3 4\n", {"a\tb": [1, 2], "c\t7": [3, 4]}),  # as gensim writes and reads them
        ("a 1 2\nat name@domain.com 3 4\n", {"a": [1, 2], "at name@domain.com": [3, 4]}),  # as glove.840B
        ("a 1 2\nat  last 3  4\n", {"a": [1, 2], "at  last": [3, 4]}),
        ("1 2\n. . . 1e-3 -2E2\n", {". . .": [1e-3, -200]}),
        ("1999 1 2\n2000 3 4\n", {"1999": [1, 2], "2000": [3, 4]}),
        ("2 1\na 1\n7 2\n", {"a": [1], "7": [2]}),
    ],
)
def test_texts_as_they_are_found(tmp_path, text, expected):
    (tmp_path / "v.txt").write_bytes(text.encode())
    read = load_word2vec(tmp_path / "v.txt")
    assert read.index_to_key == list(expected)
    np.testing.assert_array_equal(read.vectors, np.array(list(expected.values()), np.float32))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (". . . 1e-3 -2E2\n", r":1: '\.' is not a number"),
        ("a 1 2\nb\t9\t3\t4\n", ":2: 3 numbers follow the word, and there must be 2"),
        ("a 1 2\nb  9  3  4\n", ":2: 3 numbers follow the word, and there must be 2"),
        ("a\t1 2\nb 3\n", ":2: 1 numbers follow the word, and there must be 2"),
        ("a 1 2\n  3 4\n", ":2: 1 numbers follow the word, and there must be 2"),
        ("a 1,5 2\n", ":1: '1,5' is not a number"),
        ("\u00a0\n", ":1: a word without numbers"),
        ("\n2 2\na 1 2\nb 3 4\n", ":3: 2 numbers follow the word, and there must be 1"),
        ("2 2\ra 1 2\rb 3 4\r", ":1: 'a' is not a number"),
    ],
)
def test_what_is_no_word_and_its_numbers_is_refused_with_the_line(tmp_path, text, says):
    (tmp_path / "v.txt").write_bytes(text.encode())
    with pytest.raises(VectorError, match=says):
        load_word2vec(tmp_path / "v.txt")


plain_words = st.lists(
    st.text(st.characters(categories=["L", "S"]), min_size=1, max_size=6), min_size=1, max_size=5, unique=True
)
blanks = st.sampled_from([" ", "  ", "\t", " \t ", "\t\t"])


@given(st.data(), plain_words, st.integers(1, 4), st.booleans(), st.sampled_from(["", "\ufeff"]))
@settings(deadline=None)
def test_blanks_between_numbers_are_no_part_of_them(data, words, dim, header, mark):
    numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
    vectors = data.draw(arrays(np.float32, (len(words), dim), elements=numbers))
    ends = st.sampled_from(["\n", "\r\n", " \n", "\t\r\n"])
    lines = [[str(len(words)), str(dim)]] if header else []
    lines += [[word, *map(str, row)] for word, row in zip(words, vectors, strict=True)]
    text = mark
    for first, *rest in lines:
        text += first + "".join(data.draw(blanks) + part for part in rest) + data.draw(ends)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "v.txt")
        path.write_bytes(text.encode())
        read = load_word2vec(path)
    assert read.index_to_key == words
    assert read.vectors.tobytes() == vectors.tobytes()


@pytest.mark.parametrize("word", ["\ufeffthe", "the\t1", "\t0.5"])
def test_words_that_a_file_may_not_begin_with(tmp_path, word):
    vectors = KeyedVectors([word, "b"], np.ones((2, 2), np.float32))
    with pytest.raises(VectorError, match=re.escape(f"{word!r} would be read otherwise at the beginning")):
        save_word2vec(vectors, tmp_path / "glove.txt", header=False)
    for name, header in (("v.txt", True), ("v.bin", True)):
        save_word2vec(vectors, tmp_path / name, header=header)
        assert load_word2vec(tmp_path / name).index_to_key == [word, "b"]
    later = KeyedVectors(["b", word], np.ones((2, 2), np.float32))
    save_word2vec(later, tmp_path / "glove.txt", header=False)
    assert load_word2vec(tmp_path / "glove.txt").index_to_key == ["b", word]


def test_two_numbers_first_may_be_a_vector_after_all(tmp_path):
    (tmp_path / "v.txt").write_text("7 1\n8 2\n")
    assert load_word2vec(tmp_path / "v.txt", header=False).index_to_key == ["7", "8"]
    with pytest.raises(VectorError, match="promises 7 words"):
        load_word2vec(tmp_path / "v.txt")
