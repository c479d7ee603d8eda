"""Bags of words: the example everybody starts with, scikit-learn's numbers, and what cannot be counted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

from wordloom.data.bags.vectorizer import BagVectorizer, row_lengths, smooth_idf, unit_rows, weighted
from wordloom.data.rows.labelled import labelled_rows
from wordloom.errors import CheckpointError, DataError
from wordloom.text import Tokenizer

TEXTS = ["The cat sat.", "the dog sat on the cat", "", "A dog, a cat - a café!"]


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    """Real text: SST-2's training sentences, else the standard library's documentation."""
    import os

    if os.environ.get("WORDLOOM_DATA"):
        return [row.texts[0] for row in labelled_rows("sst2/train")]
    from wordloom.data import documents

    text = " ".join(str(document.text) for document in documents("python-docs/validation"))
    return [line for line in text.splitlines() if line.strip()][:5000]


def test_that_is_a_cute_dog():
    vectorizer, counted = BagVectorizer.fit_counts(["that is a cute dog my cat is cute"])
    assert vectorizer.terms == ["that", "is", "a", "cute", "dog", "my", "cat"]
    assert counted.rows.toarray().tolist() == [[1, 2, 1, 2, 1, 1, 1]]
    assert (counted.terms, counted.unknown) == (9, 0)
    again = vectorizer.counts(["my cat is my cat", "wolves"])
    assert again.toarray().tolist() == [[0, 1, 0, 0, 0, 2, 2], [0] * 7]


def columns(peer, vectorizer) -> list[int]:
    return [peer.vocabulary_[term] for term in vectorizer.terms]


@pytest.mark.parametrize("max_ngram", [1, 2])
@pytest.mark.parametrize(("split", "pattern"), [("whitespace", r"\S+"), ("words", r"[^\W_]+|[^\w\s]|_")])
def test_counts_are_scikit_learns(sentences, split, pattern, max_ngram):
    ascii_only = [text for text in sentences if text.isascii()]
    vectorizer, counted = BagVectorizer.fit_counts(ascii_only, split=split, lower=True, max_ngram=max_ngram)
    peer = CountVectorizer(token_pattern=pattern, ngram_range=(1, max_ngram))
    theirs = peer.fit_transform(ascii_only)
    assert set(vectorizer.terms) == set(peer.vocabulary_)
    assert (counted.rows != theirs[:, columns(peer, vectorizer)]).nnz == 0
    assert (vectorizer.counts(ascii_only) != counted.rows).nnz == 0


@pytest.mark.parametrize("features", ["tfidf", "binary", "counts"])
def test_features_are_scikit_learns(sentences, features):
    half = len(sentences) // 2
    vectorizer, counted = BagVectorizer.fit_counts(sentences[:half], split="whitespace", lower=True)
    idf = smooth_idf(counted.rows)
    if features == "tfidf":
        peer = TfidfVectorizer(token_pattern=r"\S+")
    else:
        peer = CountVectorizer(token_pattern=r"\S+", binary=features == "binary")
    peer.fit(sentences[:half])
    order = columns(peer, vectorizer)
    if features == "tfidf":
        np.testing.assert_allclose(idf, peer.idf_[order], rtol=1e-12)
    for part in (sentences[:half], sentences[half:]):
        ours = weighted(vectorizer.counts(part), features, idf)
        assert abs(ours - peer.transform(part)[:, order]).max() < 1e-6


def test_words_are_split_as_the_word_tokenizer_splits(sentences):
    texts = [*sentences[:500], *TEXTS, "naïve…“quote”_x\tü1,5%", "tab\vand\x0cform", "日本語。はい"]
    tokenizer = Tokenizer.train(texts, kind="word", special_tokens=())
    vectorizer = BagVectorizer.fit(texts, split="words")
    for text, words in zip(texts, vectorizer.split_texts(texts), strict=True):
        assert words == [tokenizer.id_to_token(index) for index in tokenizer.encode_ids(text)]


ASCII = st.text(st.characters(max_codepoint=126, min_codepoint=9), max_size=40)


@given(ASCII)
def test_the_fast_split_is_berts(text):
    from tokenizers.pre_tokenizers import BertPreTokenizer

    expected = [word for word, _ in BertPreTokenizer().pre_tokenize_str(text)]
    assert next(iter(BagVectorizer([]).split_texts([text]))) == expected


def test_the_most_frequent_stay_and_ties_go_to_the_first():
    texts = ["d c c b", "b a a e"]
    assert BagVectorizer.fit(texts, min_count=2).terms == ["c", "b", "a"]
    assert BagVectorizer.fit(texts, max_terms=2).terms == ["c", "b"]
    assert BagVectorizer.fit(texts, max_terms=4).terms == ["d", "c", "b", "a"]
    _, counted = BagVectorizer.fit_counts(texts, max_terms=2)
    assert counted.rows.toarray().tolist() == [[2, 1], [0, 1]]
    assert (counted.terms, counted.unknown) == (8, 4)


def test_runs_of_words():
    vectorizer = BagVectorizer.fit(["a b c"], max_ngram=3)
    assert vectorizer.terms == ["a", "b", "c", "a b", "b c", "a b c"]
    assert vectorizer.counts(["b c d a b"]).toarray().tolist() == [[1, 2, 1, 1, 1, 0]]


def test_a_tokenizers_tokens_can_be_the_words(tmp_path):
    texts = ["low lower lowest", "new newer newest <|endoftext|>"] * 20
    tokenizer = Tokenizer.train(texts, kind="bpe", vocab_size=280)
    vectorizer, counted = BagVectorizer.fit_counts(texts, tokenizer=tokenizer, max_ngram=2)
    lengths = [len(ids) for ids in tokenizer.encode_batch(texts, specials="text")]
    assert counted.rows.sum(axis=1).ravel().tolist() == [[2 * n - 1 for n in lengths]]
    vectorizer.save_pretrained(tmp_path)
    again = BagVectorizer.from_pretrained(tmp_path)
    assert again.terms == vectorizer.terms
    assert again.fingerprint == vectorizer.fingerprint
    assert (again.counts(texts) != counted.rows).nnz == 0
    Tokenizer.train(texts, kind="byte").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"is not the one vocabulary\.json was counted with"):
        BagVectorizer.from_pretrained(tmp_path)


@given(st.lists(st.text(max_size=30), min_size=1, max_size=5), st.booleans(), st.integers(1, 3))
def test_it_comes_back_from_disk_as_it_was(tmp_path_factory, texts, lower, max_ngram):
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    if not any(text.split() for text in texts):
        texts.append("word")
    folder = tmp_path_factory.mktemp("vocabulary")
    vectorizer = BagVectorizer.fit(texts, split="whitespace", lower=lower, max_ngram=max_ngram)
    vectorizer.save_pretrained(folder)
    again = BagVectorizer.from_pretrained(folder)
    assert (again.terms, again.fingerprint) == (vectorizer.terms, vectorizer.fingerprint)
    assert (again.counts(texts) != vectorizer.counts(texts)).nnz == 0


@pytest.mark.parametrize(
    ("texts", "settings", "says"),
    [
        (["", "  "], {}, "hold no words"),
        ([], {}, "hold no words"),
        (["a b"], {"min_count": 2}, "min_count 2 leaves no word of 2: the most frequent occurs 1 times"),
        (["a b"], {"min_count": 0}, "min_count 0 makes no vocabulary"),
        (["a b"], {"max_terms": 0}, "max_terms 0 makes no vocabulary"),
        (["a b"], {"split": "word"}, "unknown split 'word'; did you mean 'words'"),
        (["a b"], {"max_ngram": 0}, "max_ngram 0 is not allowed"),
    ],
)
def test_what_makes_no_vocabulary(texts, settings, says):
    with pytest.raises(DataError, match=says):
        BagVectorizer.fit(texts, **settings)


def test_a_damaged_vocabulary_is_told(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no vocabulary\.json"):
        BagVectorizer.from_pretrained(tmp_path)
    path = tmp_path / "vocabulary.json"
    good = {"split": "words", "lower": True, "max_ngram": 1, "terms": ["a", "b"]}
    wrong = ({"terms": ["a"], "splitt": "words"}, {**good, "terms": ["a", "a"]}, {**good, "split": "x"})
    for damaged in ("{", "[]", *map(json.dumps, wrong)):
        path.write_text(damaged)
        with pytest.raises(CheckpointError, match=r"vocabulary\.json cannot be read"):
            BagVectorizer.from_pretrained(tmp_path)
    path.write_text(json.dumps(good))
    assert BagVectorizer.from_pretrained(tmp_path).terms == ["a", "b"]


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ("abc", "texts is one string: give a list"),
        (None, "texts must be a list of strings, not None"),
        (["a", None], r"texts\[1\] must be a str, not None"),
        ([["a"], ["b"]], r"texts\[0\] must be a str, not list \['a'\]"),
        (np.array([["a", "b"]]), r"texts\[0\] must be a str, not ndarray of shape \(2,\)"),
        ([b"a"], r"texts\[0\] must be a str, not bytes"),
    ],
)
def test_what_is_not_a_text_is_refused(texts, says):
    vectorizer = BagVectorizer.fit(["a b"])
    for call in (BagVectorizer.fit, vectorizer.counts, lambda texts: list(vectorizer.split_texts(texts))):
        with pytest.raises(DataError, match=says) as caught:
            call(texts)
        assert isinstance(caught.value, TypeError)
    for texts in (iter(["a b", "b"]), np.array(["a b", "b"])):
        assert vectorizer.counts(texts).toarray().tolist() == [[1, 1], [0, 1]]


@pytest.mark.parametrize("terms", ["abc", None, ["a", 1], [["a"]]])
def test_what_is_not_a_term_is_refused(terms):
    with pytest.raises(DataError, match="terms"):
        BagVectorizer(terms)


@pytest.mark.parametrize("rows", [None, np.ones((2, 2)), [[1, 2]], 3])
def test_rows_that_are_not_csr_are_refused(rows):
    for call in (smooth_idf, unit_rows, row_lengths, lambda rows: weighted(rows, "counts")):
        with pytest.raises(DataError, match="must be a CSR matrix, such as"):
            call(rows)
    for name in ("min_count", "max_terms"):
        with pytest.raises(DataError, match=f"{name} must be an integer, not float"):
            BagVectorizer.fit(["a"], **{name: 1.5})


def test_unknown_features():
    counts = BagVectorizer.fit_counts(["a"])[1].rows
    with pytest.raises(DataError, match="did you mean 'tfidf'"):
        weighted(counts, "tf-idf")
    with pytest.raises(DataError, match="give idf"):
        weighted(counts, "tfidf")
