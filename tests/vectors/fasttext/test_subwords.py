"""n-grams and hashes: gensim's and fastText's own, and the kernels' are those of plain Python."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.vectors.fasttext_models import REAL, real_model

from wordloom.errors import VectorError
from wordloom.vectors import Subwords
from wordloom.vectors.fasttext.subwords import word_bytes, word_hash, word_hashes, word_ngrams

theirs = pytest.importorskip("gensim.models.fasttext")

ODD = [
    "",
    "<",
    ">",
    "<>",
    "naïve",
    "日本語",
    "🙂ok",
    "a\u0301",
    "e\u200d",
    "\0",
    " ",
    "a b",
    "\U0010ffff",
    "\x7f\x80",
]
words = st.sampled_from(ODD) | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
raw_bytes = st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
subwords = st.builds(
    Subwords, st.integers(0, 5), st.integers(0, 9), st.sampled_from([0, 1, 7, 2000, 2_000_000])
)


@given(words, subwords)
@example("</s>!", Subwords(1, 9, 100))
@settings(deadline=None, max_examples=100)
def test_ngrams_are_gensims(word, subwords):
    if word == "</s>" or not subwords:
        assert subwords.pieces(word) == subwords.ngrams(word) == []
        return
    assert subwords.pieces(word) == theirs.compute_ngrams_bytes(word, subwords.min_n, subwords.max_n)
    expected = theirs.ft_ngram_hashes(word, subwords.min_n, subwords.max_n, subwords.buckets)
    assert subwords.ngrams(word) == expected


@given(st.lists(words | raw_bytes | st.just("</s>"), max_size=8), subwords)
@settings(deadline=None, max_examples=100)
def test_the_table_holds_the_ngrams_of_each_word(words, subwords):
    starts, ids = subwords.table(words)
    assert (starts.dtype, ids.dtype, starts.shape) == (np.int64, np.int32, (len(words) + 1,))
    assert starts[0] == 0
    assert starts[-1] == len(ids)
    rows = [ids[a:b].tolist() for a, b in pairwise(starts)]
    assert rows == [subwords.ngrams(word) for word in words]


@given(st.lists(words | raw_bytes, max_size=8))
@settings(deadline=None)
def test_hashes_of_words_are_gensims(words):
    expected = [theirs.ft_hash_bytes(word_bytes(word)) for word in words]
    assert [word_hash(word) for word in words] == expected
    hashes = word_hashes(words)
    assert hashes.dtype == np.uint32
    assert hashes.tolist() == expected


@pytest.mark.parametrize("name", REAL["models"])
def test_rows_are_those_of_fasttext_itself(name):
    """What the C++ tool answered by getSubwords; see fasttext_models."""
    model, real = real_model(name), REAL["models"][name]
    rows = {word: row for row, word in enumerate(model.words)}
    for word, expected in zip(REAL["words"], real["rows"], strict=True):
        if expected is not None:  # it took no such word
            own = [rows[word]] if word in rows else []
            assert own + [len(rows) + id for id in model.args.subwords.ngrams(word)] == expected


def test_what_has_no_ngrams():
    assert Subwords()
    assert (Subwords().min_n, Subwords().max_n, Subwords().buckets) == (3, 6, 2_000_000)
    assert len(Subwords().ngrams("a")) == 1  # <a>
    assert Subwords().ngrams("") == []  # <> is too short
    assert Subwords(1, 6).pieces("") == [b"<>"]
    assert Subwords(0, 1).pieces("né") == [b"n", "é".encode()]  # the brackets alone are none
    for none in (Subwords(3, 0), Subwords(6, 3), Subwords(0, 0), Subwords(3, 6, 0)):
        assert not none
        assert none.ngrams("word") == []
        assert [part.tolist() for part in none.table(["word", "more"])] == [[0, 0, 0], []]


def slow_runs(hashes, n, buckets):
    """Dictionary::addWordNgrams, line by line, its int32 and uint64 by hand."""
    signed = [h - 2**32 if h >= 2**31 else h for h in hashes]
    line = []
    for i in range(len(signed)):
        h = signed[i] % 2**64
        for j in range(i + 1, min(len(signed), i + n)):
            h = (h * 116049371 + signed[j]) % 2**64
            line.append(h % buckets)
    return line


@given(
    st.lists(st.integers(0, 2**32 - 1), max_size=9),
    st.integers(0, 12),
    st.sampled_from([1, 13, 2_000_000, 2**31 - 1]),
)
@settings(max_examples=100)
def test_runs_of_words(hashes, n, buckets):
    runs = word_ngrams(np.array(hashes, dtype=np.uint32), n, buckets)
    assert runs.dtype == np.int64
    assert runs.tolist() == slow_runs(hashes, n, buckets)
    signed = np.array(hashes, dtype=np.uint32).view(np.int32)
    assert word_ngrams(signed, n, buckets).tolist() == runs.tolist()


def test_mistakes():
    for wrong in ({"min_n": -1}, {"max_n": -3}, {"buckets": -1}, {"buckets": 2**31}):
        with pytest.raises(VectorError, match=f"{next(iter(wrong))} .* is out of range"):
            Subwords(**wrong)
    for call in (Subwords().ngrams, word_hash, lambda word: Subwords().table(["a", word])):
        with pytest.raises(VectorError, match=r"'\\ud800' holds half a surrogate pair"):
            call("\ud800")
    with pytest.raises(VectorError, match="n-grams of 2 words need buckets"):
        word_ngrams(np.arange(3), 2, 0)
    assert word_ngrams(np.arange(3), 1, 0).tolist() == []
