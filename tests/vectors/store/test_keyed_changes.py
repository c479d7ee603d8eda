"""Vectors that change: words are added and sorted, lengths follow, nothing changes unseen; files and back."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.vectors.conftest import as_gensim

from wordloom.errors import VectorError
from wordloom.vectors import FastTextVectors, KeyedVectors, QuestionError, Subwords, save_vectors

WORDS = ["north", "east", "west", "up"]


@pytest.fixture
def made():
    return np.array([[0, 1], [1, 0], [-1, 0], [3, 4]], np.float32)


@pytest.fixture
def wv(made):
    return KeyedVectors(WORDS, made, counts=np.array([4, 3, 2, 1]))


# -- nothing changes unseen ----------------------------------------------------------------------------


def test_single_vectors_are_not_written_to(wv):
    for vector in (wv["up"], wv[3], wv.get_vector("up"), wv.get_vector("up", norm=True)):
        with pytest.raises(ValueError, match="read-only"):
            vector += 1
    several = wv[["up", "west"]]
    several += 1
    assert wv.vectors.tolist() == [[0, 1], [1, 0], [-1, 0], [3, 4]]


def test_those_of_fasttext_are_not_either():
    wv = FastTextVectors(["a", "b"], np.ones((2, 3)), np.ones((5, 3)), Subwords(2, 3, 5))
    for made_already in (False, True):
        if made_already:
            assert wv.vectors.shape == (2, 3)
        for vector in (wv["a"], wv["unheard"], wv.get_vector("a", norm=True)):
            assert not vector.flags.writeable


def test_the_array_and_the_counts_that_were_given_are_not_written_to(made):
    counts = np.array([4, 3, 2, 1])
    wv = KeyedVectors(WORDS, made, counts=counts)
    assert np.shares_memory(wv.vectors, made)
    wv["up"] = np.zeros(2)
    wv.set_vecattr("up", "count", 9)
    wv.unit_normalize_all()
    assert made[3].tolist() == [3, 4]
    assert counts.tolist() == [4, 3, 2, 1]
    assert wv.counts.tolist() == [4, 3, 2, 9]


# -- lengths follow ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda wv: wv.add_vectors(["up"], [[0, 5]], replace=True),
        lambda wv: wv.__setitem__("up", [0, 5]),
        lambda wv: setattr(wv, "vectors", np.array([[0, 1], [1, 0], [-1, 0], [0, 5]], np.float32)),
        lambda wv: (wv.vectors.__setitem__(3, [0, 5]), wv.fill_norms(force=True)),
        lambda wv: (wv.vectors.__setitem__(3, [0, 5]), setattr(wv, "norms", None)),
    ],
)
def test_answers_are_of_the_vectors_as_they_are(wv, change):
    assert dict(wv.most_similar("north"))["up"] == pytest.approx(0.8)
    change(wv)
    assert wv.norms.tolist() == [1, 1, 1, 5]
    assert dict(wv.most_similar("north"))["up"] == pytest.approx(1.0)
    assert wv.get_normed_vectors()[3].tolist() == [0, 1]


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 9), st.booleans()), min_size=1, max_size=8)
)
def test_adding_in_any_order_is_a_dictionary_in_order(steps):
    """Each step adds two words, the second of which may be there, and keeps or replaces what was there."""
    wv, expected = KeyedVectors(vector_size=2), {}
    for word, number, replace in steps:
        pair = {word: [number, 1.0], f"{word}{number}": [1.0, number]}
        wv.add_vectors(list(pair), list(pair.values()), {"number": np.array([number, -number])}, replace)
        for key, vector, kept in zip(pair, pair.values(), [number, -number], strict=True):
            if replace or key not in expected:
                expected[key] = (vector, kept)
    assert wv.index_to_key == list(expected)
    assert wv.key_to_index == {word: row for row, word in enumerate(expected)}
    assert [(v.tolist(), wv.get_vecattr(w, "number")) for w, v in zip(expected, wv.vectors, strict=True)] == [
        *expected.values()
    ]
    np.testing.assert_allclose(wv.norms, [np.hypot(*vector) for vector, _ in expected.values()], rtol=1e-6)


def test_new_words_have_no_count_until_they_are_given_one(wv):
    assert wv.add_vector("down", [0, -1]) == 4
    assert wv.counts.tolist() == [4, 3, 2, 1, 0]
    wv.add_vectors(["a", "b"], np.eye(2), {"count": np.array([7, 8])})
    assert wv.counts.tolist() == [4, 3, 2, 1, 0, 7, 8]
    with pytest.raises(QuestionError, match=r"1 words have 'count' of shape \(2,\)"):
        wv.add_vectors("c", [1, 1], {"count": np.array([7, 8])})
    assert "c" not in wv


def test_words_of_memory_mapped_vectors_are_added(wv, tmp_path):
    wv.save(tmp_path / "here")
    mapped = KeyedVectors.load(tmp_path / "here", mmap="r")
    mapped["down"] = [0, -1]
    assert mapped.most_similar("down", topn=1)[0][0] in ("east", "west")
    assert len(KeyedVectors.load(tmp_path / "here")) == 4


def test_vectors_made_of_ngrams_are_not_added_to():
    subwords, counts = Subwords(2, 3, 5), np.array([1, 2])
    wv = FastTextVectors(["a", "b"], np.ones((2, 3)), np.ones((5, 3)), subwords, counts=counts)
    for change in (lambda: wv.add_vector("c", np.ones(3)), wv.sort_by_descending_frequency):
        with pytest.raises(VectorError, match="vectors with n-grams cannot be added"):
            change()
    assert wv.index_to_key == ["a", "b"]


def test_an_empty_store_knows_nothing():
    wv = KeyedVectors(3)
    assert (len(wv), wv.vector_size) == (0, 3)
    assert wv.most_similar(np.ones(3)) == []
    assert wv.distances(np.ones(3)).shape == (0,)
    assert "a" not in wv
    with pytest.raises(VectorError, match="there are no vectors to save"):
        wv.save("nowhere")
    with pytest.raises(VectorError, match="there are no vectors"):
        wv.save_word2vec_format("nowhere")


# -- files ---------------------------------------------------------------------------------------------


def test_attributes_that_a_folder_does_not_keep_are_named(wv, tmp_path):
    wv.set_vecattr("up", "color", "red")
    with pytest.warns(UserWarning, match="does not keep 'color'"):
        wv.save(tmp_path / "here")
    again = KeyedVectors.load(tmp_path / "here")
    assert again.get_vecattr("up", "count") == 1
    said = "^these words have no attribute 'color'; attributes: 'count'$"
    with pytest.raises(KeyError, match=said) as caught:
        again.get_vecattr("up", "color")
    assert isinstance(caught.value, VectorError)  # whose line is not in quotes, as KeyError's is


def test_gensims_pickle_is_refused(wv, tmp_path):
    as_gensim(wv).save(str(tmp_path / "x.kv"))
    with pytest.raises(VectorError, match="is a pickle, which is never read"):
        KeyedVectors.load(tmp_path / "x.kv")


def test_a_folder_of_another_kind(wv, tmp_path):
    save_vectors(wv, tmp_path / "plain")
    with pytest.raises(VectorError, match="holds KeyedVectors, not FastTextVectors; open it with Keyed"):
        FastTextVectors.load(tmp_path / "plain")
    fasttext = FastTextVectors(["a", "b"], np.ones((2, 3)), np.ones((5, 3)), Subwords(2, 3, 5))
    fasttext.save(tmp_path / "fasttext")
    assert "unheard" in KeyedVectors.load(tmp_path / "fasttext")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("north 4\neast 3\nwest 2\n", "has no count of 'up'; give the counts of all words"),
        ("north 4\neast\n", ":2: not a word and its count: 'east'"),
        ("north many\n", ":1: not a word and its count: 'north many'"),
    ],
)
def test_files_of_counts_that_do_not_serve(wv, tmp_path, text, says):
    wv.save_word2vec_format(tmp_path / "x")
    (tmp_path / "counts").write_text(text)
    with pytest.raises(VectorError, match=says):
        KeyedVectors.load_word2vec_format(tmp_path / "x", tmp_path / "counts")


def test_no_counts_are_made_up(wv, tmp_path):
    wv.save_word2vec_format(tmp_path / "x")
    assert KeyedVectors.load_word2vec_format(tmp_path / "x").counts is None
    assert wv.vectors_for_all(["up", "unheard"]).counts is None


def test_they_travel_between_processes(wv):
    assert wv.norms.tolist() == [1, 1, 1, 5]
    again = pickle.loads(pickle.dumps(wv))
    assert again.most_similar("up") == wv.most_similar("up")
    assert again.counts.tolist() == [4, 3, 2, 1]


# -- Word Mover's Distance -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "other", "expected"),
    [
        (["north"], ["east"], np.sqrt(2)),
        (["north", "east"], ["east", "north"], 0),
        (["east", "east", "west"], ["west"], 4 / 3),
        (["east", "north"], ["west", "west"], (2 + np.sqrt(2)) / 2),
        (["up"], ["north"], np.sqrt(0.4)),  # of lengths 1
        (["east", "unheard"], ["west", "unheard"], 2),
        (["unheard"], ["west"], np.inf),
        ([], ["west"], np.inf),
    ],
)
def test_words_are_carried_the_cheapest_way(wv, text, other, expected):
    assert wv.wmdistance(text, other) == pytest.approx(expected, abs=1e-6)
    assert wv.wmdistance(other, text) == pytest.approx(expected, abs=1e-6)


def test_lengths_count_where_they_are_to(wv):
    assert wv.wmdistance(["up"], ["north"], norm=False) == pytest.approx(np.sqrt(18), abs=1e-6)
    assert wv.wmdistance(["up"], ["north"], False) == pytest.approx(np.sqrt(18), abs=1e-6)


def test_one_to_one_it_is_the_best_assignment(vectors):
    """Of texts of as many words each, the cheapest way is an assignment of the words."""
    from itertools import permutations

    w = vectors.index_to_key
    here, there = w[:5], w[5:10]
    unit = {word: vectors.get_vector(word, norm=True).astype(np.float64) for word in w[:10]}
    best = min(
        sum(float(np.linalg.norm(unit[a] - unit[b])) for a, b in zip(here, order, strict=True))
        for order in permutations(there)
    )
    assert vectors.wmdistance(here, there) == pytest.approx(best / 5, rel=1e-6)
