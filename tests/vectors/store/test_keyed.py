"""Answers are gensim's on the same vectors; what is not there is an error that says what comes near."""

import pickle

import numpy as np
import pytest
from tests.vectors.conftest import as_gensim

from wordloom.errors import VectorError
from wordloom.vectors import KeyedVectors, UnknownWordError, load_word2vec


def same(ours, theirs, tolerance=1e-6):
    assert [word for word, _ in ours] == [word for word, _ in theirs]
    assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=tolerance)


@pytest.fixture(scope="module", params=["random", "glove", "word2vec text", "word2vec binary"])
def both(request, vectors):
    """Ours and gensim's over the same vectors: random ones, and files that other tools wrote."""
    if request.param == "random":
        return vectors, as_gensim(vectors)
    models = pytest.importorskip("gensim.models")
    name = {
        "glove": "test_glove.txt",
        "word2vec text": "lee_fasttext.vec",
        "word2vec binary": "euclidean_vectors.bin",
    }[request.param]
    path = request.getfixturevalue("data") / "weights" / "gensim-samples" / name
    theirs = models.KeyedVectors.load_word2vec_format(
        str(path), binary=path.suffix == ".bin", no_header=request.param == "glove"
    )
    ours = load_word2vec(path)
    assert ours.index_to_key == theirs.index_to_key
    assert np.array_equal(ours.vectors, theirs.vectors)
    return ours, theirs


@pytest.fixture(scope="module")
def word(both):
    """Words of these vectors, by number."""
    return lambda *rows: [both[0].index_to_key[row] for row in rows]


def test_looking_up_is_gensims(both, word):
    ours, theirs = both
    a, b = word(3, 7)
    assert len(ours) == len(theirs)
    assert a in ours
    assert "not there" not in ours
    assert ours.key_to_index == theirs.key_to_index
    assert np.array_equal(ours[a], theirs[a])
    assert np.array_equal(ours[[a, b]], theirs[[a, b]])
    assert np.array_equal(ours[3], theirs[3])
    assert ours.vector_size == theirs.vector_size
    np.testing.assert_allclose(ours.get_vector(a, norm=True), theirs.get_vector(a, norm=True), atol=1e-6)


@pytest.mark.parametrize(
    ("positive", "negative"),
    [([0], []), ([1, 2], []), ([3, 4], [5]), ([], [6]), ([7], [8, 9]), ([9, 9], [3])],
)
@pytest.mark.parametrize("topn", [1, 10])
def test_most_similar_is_gensims(both, word, positive, negative, topn):
    ours, theirs = both
    asked = {"positive": word(*positive), "negative": word(*negative), "topn": topn}
    same(ours.most_similar(**asked), theirs.most_similar(**asked))
    if positive:
        same(ours.most_similar_cosmul(**asked), theirs.most_similar_cosmul(**asked), tolerance=1e-5)


def test_other_ways_of_asking_are_gensims(both, word):
    ours, theirs = both
    a, b, c = word(2, 5, 9)
    same(ours.most_similar(a), theirs.most_similar(a))
    same(ours.most_similar(a, b), theirs.most_similar(a, b))
    everything = [dict(wv.most_similar(a, topn=4 * len(ours))) for wv in both]  # scores tie within rounding
    assert len(everything[0]) == len(ours) - 1
    assert everything[0] == pytest.approx(everything[1], abs=1e-6)
    assert ours.most_similar(a, topn=0) == theirs.most_similar(a, topn=0) == []
    same(ours.most_similar([a, b], restrict_vocab=8), theirs.most_similar([a, b], restrict_vocab=8))
    np.testing.assert_allclose(ours.most_similar(a, topn=None), theirs.most_similar(a, topn=None), atol=1e-6)
    for asked in ([ours[a]], [ours[a], b], [(a, 0.5), (b, 2.0)], [(ours[a], 0.3), c], ours[[a, b]]):
        same(ours.most_similar(asked), theirs.most_similar(asked))
    for negative in ([ours[a]], [(b, -0.5)], [(b, 0.5)]):
        same(ours.most_similar([c], negative), theirs.most_similar([c], negative))
    same(ours.similar_by_word(a, topn=3), theirs.similar_by_word(a, topn=3))
    same(ours.similar_by_vector(ours[a]), theirs.similar_by_vector(ours[a]))


def test_similarities_are_gensims(both, word):
    ours, theirs = both
    a, b, c, d, e = word(*range(1, 6))
    assert ours.similarity(a, b) == pytest.approx(theirs.similarity(a, b), abs=1e-6)
    assert ours.distance(a, b) == pytest.approx(theirs.distance(a, b), abs=1e-6)
    np.testing.assert_allclose(ours.distances(a), theirs.distances(a), atol=1e-6)
    np.testing.assert_allclose(ours.distances(ours[a], [b, c]), theirs.distances(ours[a], [b, c]), atol=1e-6)
    assert ours.n_similarity([a, b], [c, d, e]) == pytest.approx(
        theirs.n_similarity([a, b], [c, d, e]), abs=1e-6
    )
    assert ours.doesnt_match([a, b, c, d]) == theirs.doesnt_match([a, b, c, d])
    assert [w for _, w in ours.rank_by_centrality([a, b, c])] == [
        w for _, w in theirs.rank_by_centrality([a, b, c])
    ]
    assert ours.rank(a, b) == theirs.rank(a, b)
    assert ours.closer_than(a, b) == theirs.closer_than(a, b)
    for settings in ({}, {"pre_normalize": False}, {"post_normalize": True}, {"weights": [1.0, -2.0, 0.5]}):
        np.testing.assert_allclose(
            ours.get_mean_vector([a, b, ours[c]], **settings),
            theirs.get_mean_vector([a, b, ours[c]], **settings),
            atol=1e-6,
        )


def test_the_dot_product_keeps_lengths(vectors):
    a, b, c = vectors.index_to_key[:3]
    query = vectors[a] + 2 * vectors[b] - vectors[c]
    expected = vectors.vectors @ query
    order = [row for row in np.argsort(-expected) if row > 2][:10]
    found = vectors.most_similar([a, (b, 2.0)], [c], dot=True)
    assert [vectors.get_index(word) for word, _ in found] == order
    assert [score for _, score in found] == pytest.approx(expected[order].tolist(), rel=1e-5)
    np.testing.assert_allclose(
        vectors.most_similar([a, (b, 2.0)], [c], topn=None, dot=True), expected, rtol=1e-4
    )


def test_ties_come_in_the_order_of_the_vocabulary():
    vectors = KeyedVectors(["a", "b", "c", "d", "e", "f"], np.ones((6, 3), np.float32))
    assert [word for word, _ in vectors.most_similar("c", topn=3)] == ["a", "b", "d"]
    words = [str(row) for row in range(1000)]
    many = KeyedVectors(words, np.tile(np.eye(4, dtype=np.float32), (250, 1)))
    assert [word for word, _ in many.most_similar("0", topn=998)] == [
        *words[4::4],
        *(word for row, word in enumerate(words) if row % 4),
    ][:998]


def test_a_vector_of_length_0_is_near_nothing():
    vectors = KeyedVectors(["a", "zero", "b"], np.array([[1, 0], [0, 0], [-1, 0]], np.float32))
    with np.errstate(all="raise"):
        assert vectors.most_similar("a") == [("zero", 0.0), ("b", -1.0)]
        assert vectors.most_similar("zero") == [("a", 0.0), ("b", 0.0)]
        assert vectors.similarity("a", "zero") == 0.0
        assert vectors.get_vector("zero", norm=True).tolist() == [0, 0]
        assert vectors.most_similar_cosmul("a")[0][0] == "zero"
        assert vectors.doesnt_match(["a", "zero"]) == "zero"


def test_words_without_vectors_are_left_out_of_the_odd_one_out_loudly(vectors):
    words = vectors.index_to_key[:4]
    with pytest.warns(UserWarning, match="left out, without vectors: 'not there'"):
        odd = vectors.doesnt_match([*words, "not there"])
    assert odd == vectors.doesnt_match(words)
    with pytest.raises(VectorError, match="none of the words has a vector"):
        vectors.doesnt_match(["not there"])


# -- words that are not there --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def english():
    words = ["the", "king", "queen", "woman", "women", "house", "London", "receive", "believe", "naïve"]
    return KeyedVectors(words, np.eye(10, dtype=np.float32))


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("kng", "'king'"),  # missing
        ("quueen", "'queen'"),  # superfluous
        ("xing", "'king'"),  # wrong, in the first place
        ("recieve", "'receive'"),  # exchanged
        ("womn", "'woman' or 'women'"),
        ("KING", "'king'"),
        ("london", "'London'"),
        (" the ", "'the'"),
        ("naive", "'naïve'"),
        ("beleeive", "'believe'"),  # two slips
    ],
)
def test_a_slip_is_told_from(english, wrong, meant):
    with pytest.raises(UnknownWordError) as caught:
        english[wrong]
    assert str(caught.value) == f"{wrong!r} is not in the vocabulary; did you mean {meant}?"


@pytest.mark.parametrize("nothing", ["", "zzzzzzzzzz", "日本語", "x" * 10_000, None, 10, -1])
def test_what_resembles_nothing_gets_no_suggestion(english, nothing):
    with pytest.raises(UnknownWordError) as caught:
        english.get_index(nothing)
    assert str(caught.value).startswith(f"{nothing!r} is not in the vocabulary of 10 words")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("zzzzzz", "'zzzzzz' is not in the vocabulary of 10 words"),
        (10, "10 is not in the vocabulary of 10 words; a number must be a row, 0 to 9"),
        (np.int64(-3), "-3 is not in the vocabulary of 10 words; a number must be a row, 0 to 9"),
        (2.5, "2.5 is not in the vocabulary of 10 words; give a word or the number of a row"),
        ([["king"]], "a list is not in the vocabulary of 10 words; give a word or the number of a row"),
        (np.zeros((3, 3)), "a ndarray is not in the vocabulary of 10 words; give a word"),
        (b"king", "b'king' is not in the vocabulary of 10 words; give a word"),
    ],
)
def test_what_was_asked_for_wrongly_is_said(english, key, says):
    with pytest.raises(UnknownWordError) as caught:
        english.get_vector(key)
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(
    "ask",
    [
        lambda v: v["qeen"],
        lambda v: v[["king", "qeen"]],
        lambda v: v.get_vector("qeen"),
        lambda v: v.most_similar("qeen"),
        lambda v: v.most_similar(["king"], ["qeen"]),
        lambda v: v.most_similar([("qeen", 2.0)]),
        lambda v: v.most_similar_cosmul("qeen"),
        lambda v: v.similarity("king", "qeen"),
        lambda v: v.distances("king", ["qeen"]),
        lambda v: v.rank("king", "qeen"),
        lambda v: v.get_mean_vector(["qeen"], ignore_missing=False),
        lambda v: v.relative_cosine_similarity("qeen", "king"),
        lambda v: v.most_similar_to_given("king", ["qeen"]),
        lambda v: v.set_vecattr("qeen", "count", 1),
    ],
)
def test_every_question_names_the_unknown_word(english, ask):
    with pytest.raises(KeyError, match="did you mean 'queen'") as caught:
        ask(english)
    assert isinstance(caught.value, VectorError)
    assert caught.value.key == "qeen"


def test_the_error_travels_between_processes_without_the_vectors(english):
    with pytest.raises(UnknownWordError) as caught:
        english["qeen"]
    sent = pickle.dumps(caught.value)
    assert len(sent) < 400
    assert str(pickle.loads(sent)) == str(caught.value)


def test_suggestions_are_looked_for_when_they_are_read_and_not_among_all_words(monkeypatch):
    """Loops that catch the error do not pay for its message, which compares some words in full, not all."""
    words = [f"c{row}" for row in range(100_000)]
    many = KeyedVectors(words, np.ones((len(words), 1), np.float32))
    compared = []

    def get_close_matches(word, possibilities, **_):
        compared.append(list(possibilities))
        return ["c0"]

    monkeypatch.setattr("difflib.get_close_matches", get_close_matches)
    with pytest.raises(UnknownWordError) as caught:
        many["cxyzt"]
    assert not compared
    assert str(caught.value) == str(caught.value) == "'cxyzt' is not in the vocabulary; did you mean 'c0'?"
    assert len(compared) == 1
    assert 1000 < len(compared[0]) < 10_000


# -- what cannot be asked or made ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda v: v.most_similar(), "needs at least one word"),
        (lambda v: v.most_similar_cosmul(negative=["king"]), "at least one word in positive"),
        (lambda v: v.most_similar_cosmul([("king", 2.0)]), "without weights"),
        (lambda v: v.most_similar("king", restrict_vocab=0), "restrict_vocab 0 leaves no words"),
        (lambda v: v.most_similar([np.ones(3, np.float32)]), r"shape \(3,\) was given where \[10\]"),
        (lambda v: v.most_similar([np.full(10, np.nan, np.float32)]), "not finite"),
        (lambda v: v.get_mean_vector([]), "the mean of no words"),
        (lambda v: v.n_similarity([], ["king"]), "the mean of no words"),
        (lambda v: v.get_mean_vector(["king"], weights=[1.0, 2.0]), "1 keys have 2 weights"),
    ],
)
def test_questions_without_an_answer(english, ask, says):
    with pytest.raises(VectorError, match=says):
        ask(english)


@pytest.mark.parametrize(
    ("words", "values", "says"),
    [
        (["a"], np.ones((2, 3)), r"1 words and vectors of shape \(2, 3\)"),
        (["a", "b"], np.ones(2), r"vectors of shape \(2,\)"),
        ([], np.ones((0, 3)), "there are no vectors"),
        (["a"], np.ones((1, 0)), "there are no vectors"),
        (["a", "b", "c", "b"], np.ones((4, 2)), "'b' occurs twice, as number 2 and 4"),
        (["a", "b"], np.array([[1.0], [np.inf]]), r"'b' \(word number 2\) is not finite; remove"),
        (["a", "b", "c"], np.array([[np.nan], [1], [-np.inf]]), "'a' .* nor are those of 1 other words"),
        (["a", "b"], np.array([[np.inf], [-np.inf]]), "'a' .* is not finite"),
    ],
)
def test_vectors_that_fit_no_words(words, values, says):
    with pytest.raises(VectorError, match=says):
        KeyedVectors(words, values)


def test_counts_fit_the_words():
    with pytest.raises(VectorError, match="2 words have 1 counts"):
        KeyedVectors(["a", "b"], np.ones((2, 2), np.float32), counts=np.array([1]))


def test_large_finite_vectors_are_taken():
    top = np.finfo(np.float32).max
    assert len(KeyedVectors(["a", "b"], np.full((2, 2), top, np.float32))) == 2
