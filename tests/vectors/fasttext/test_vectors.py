"""Vectors for words never seen: gensim's answers, word for word."""

import json
import warnings

import numpy as np
import pytest

from wordloom.errors import VectorError
from wordloom.vectors import (
    FastTextVectors,
    KeyedVectors,
    Subwords,
    UnknownWordError,
    load_vectors,
    save_vectors,
    save_word2vec,
)

UNKNOWN = ["nonword", "naïve", "日本語", "a", "two words"]


def made(words, subwords, D=12, seed=0, **more):
    rng = np.random.default_rng(seed)
    own, ngrams = (rng.normal(size=(n, D)).astype(np.float32) for n in (len(words), subwords.buckets))
    return FastTextVectors(words, own, ngrams, subwords, **more)


@pytest.fixture(scope="module")
def ours(vectors):
    return made(vectors.index_to_key, Subwords(2, 5, 300), D=20, counts=np.arange(500, 0, -1))


@pytest.fixture(scope="module")
def gensims(ours):
    return as_gensim(ours)


def as_gensim(ours):
    """The same rows in gensim's class."""
    models = pytest.importorskip("gensim.models.fasttext")
    subwords = ours.subwords
    theirs = models.FastTextKeyedVectors(ours.vector_size, subwords.min_n, subwords.max_n, subwords.buckets)
    theirs.index_to_key, theirs.key_to_index = list(ours.index_to_key), dict(ours.key_to_index)
    theirs.vectors_vocab, theirs.vectors_ngrams = np.array(ours.vectors_vocab), np.array(ours.vectors_ngrams)
    theirs.recalc_char_ngram_buckets()
    theirs.adjust_vectors()
    return theirs


def same(answers, expected):
    assert [word for word, _ in answers] == [word for word, _ in expected]
    np.testing.assert_allclose([s for _, s in answers], [s for _, s in expected], rtol=0, atol=2e-6)


def test_vectors_are_gensims(ours, gensims):
    np.testing.assert_allclose(ours.vectors, gensims.vectors, rtol=1e-6, atol=1e-7)
    for word in [*ours.index_to_key[:50], *UNKNOWN]:
        for norm in (False, True):
            expected = gensims.get_vector(word, norm=norm)
            np.testing.assert_allclose(ours.get_vector(word, norm), expected, rtol=1e-5, atol=1e-6)
    mixed = [ours.index_to_key[3], "nonword", ours.index_to_key[4]]
    np.testing.assert_allclose(ours[mixed], gensims[mixed], rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(ours[7], ours[ours.index_to_key[7]])
    assert ours[[]].shape == (0, 20)


def test_a_single_word_is_what_all_together_are(ours):
    alone = made(ours.index_to_key, ours.subwords, D=20)
    some = [alone[word] for word in alone.index_to_key[:40]]
    assert alone.vector_size == 20
    assert len(alone) == 500
    assert "vectors" not in vars(alone)  # nothing here needed all
    np.testing.assert_array_equal(some, alone.vectors[:40])
    np.testing.assert_array_equal(some, [alone[word] for word in alone.index_to_key[:40]])


def test_many_words_are_made_in_parts():
    words = [f"word{number}" for number in range(40_000)]
    wv = made(words, Subwords(3, 6, 50), D=3)
    for row in (0, 16_383, 16_384, 32_767, 32_768, 39_999):
        parts = [wv.vectors_vocab[row], *wv.vectors_ngrams[wv.subwords.ngrams(words[row])]]
        np.testing.assert_allclose(
            wv.vectors[row], np.mean(parts, axis=0, dtype=np.float64), rtol=2e-6, atol=1e-7
        )


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_rows_may_lie_at_any_byte(ours, place):
    def moved(rows):
        raw = bytes(place) + rows.tobytes()
        return np.ndarray(rows.shape, "<f4", raw, place)  # read-only, too

    there = FastTextVectors(
        ours.index_to_key, moved(ours.vectors_vocab), moved(ours.vectors_ngrams), ours.subwords
    )
    assert there.vectors_ngrams.flags.owndata is False
    np.testing.assert_array_equal(there["nonword"], ours["nonword"])
    np.testing.assert_array_equal(there.vectors, ours.vectors)
    assert there.vectors.flags.aligned
    plain = FastTextVectors(
        ours.index_to_key, moved(ours.vectors_vocab), moved(ours.vectors_ngrams), Subwords(3, 0, 300)
    )
    assert plain.vectors.flags.aligned
    np.testing.assert_array_equal(plain.vectors, ours.vectors_vocab)


def test_questions_about_unknown_words_are_answered_as_gensim_does(ours, gensims):
    a, b, c = ours.index_to_key[:3]
    same(ours.most_similar("nonword"), gensims.most_similar("nonword"))
    same(ours.most_similar(["nonword", a], "naïve"), gensims.most_similar(["nonword", a], "naïve"))
    same(
        ours.most_similar_cosmul([a, "nonword"], ["naïve"]),
        gensims.most_similar_cosmul([a, "nonword"], ["naïve"]),
    )
    same(ours.similar_by_word("日本語", 3), gensims.similar_by_word("日本語", 3))
    assert ours.similarity("nonword", a) == pytest.approx(gensims.similarity("nonword", a), abs=1e-6)
    assert ours.distance("nonword", "naïve") == pytest.approx(gensims.distance("nonword", "naïve"), abs=1e-6)
    np.testing.assert_allclose(ours.distances("nonword"), gensims.distances("nonword"), atol=2e-6)
    np.testing.assert_allclose(ours.distances(a, [b, c]), gensims.distances(a, [b, c]), atol=2e-6)
    far = ours.distances("naïve", [a, "nonword"])
    assert far.tolist() == pytest.approx(
        [ours.distance("naïve", a), ours.distance("naïve", "nonword")], abs=1e-6
    )
    lists = ["nonword", a], [b, "naïve", c]
    assert ours.n_similarity(*lists) == pytest.approx(gensims.n_similarity(*lists), abs=1e-6)
    asked = [a, b, "nonword", "naïve", c]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranked = ours.rank_by_centrality(asked)
        assert ours.doesnt_match(asked) == gensims.doesnt_match(asked)
    expected = gensims.rank_by_centrality(asked)
    same([pair[::-1] for pair in ranked], [pair[::-1] for pair in expected])
    np.testing.assert_allclose(
        ours.get_mean_vector([a, ("nonword", -0.5)]),
        gensims.get_mean_vector([a, "nonword"], weights=[1, -0.5]),
        rtol=1e-5,
        atol=1e-6,
    )


def test_ranks_with_unknown_words(ours, gensims):
    a, b = ours.index_to_key[:2]
    assert ours.rank(a, b) == gensims.rank(a, b)
    order = [word for word, _ in ours.most_similar("nonword", topn=500)]
    assert ours.rank("nonword", order[4]) == 5
    assert set(ours.closer_than("nonword", order[4])) == set(order[:4])
    near = [word for word, _ in ours.most_similar(a, topn=500)]
    between = [word for word in near if ours.distance(a, word) < ours.distance(a, "nonword")]
    assert ours.rank(a, "nonword") == len(between) + 1


def test_judgements_are_of_known_words_as_gensims_are(ours, gensims, tmp_path):
    rng = np.random.default_rng(5)
    words = [*ours.index_to_key[:60], "nonword", "another"]
    pairs = [(*rng.choice(words, 2, replace=False), round(rng.uniform(0, 10), 2)) for _ in range(80)]
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{a}\t{b}\t{score}\n" for a, b, score in pairs))
    judged = ours.evaluate_word_pairs(file)
    pearson, spearman, oov = gensims.evaluate_word_pairs(str(file))
    assert judged.pearson == pytest.approx(pearson, abs=1e-6)
    assert judged.spearman == pytest.approx(spearman, abs=1e-9)
    assert 0 < judged.oov_ratio == pytest.approx(oov)


def test_a_sentence(ours, gensims):
    words = [ours.index_to_key[0], "nonword"]
    expected = gensims.get_sentence_vector(words)
    np.testing.assert_allclose(ours.get_sentence_vector(words), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(
        ours.get_sentence_vector(" \t".join(words)), ours.get_sentence_vector(words)
    )


def test_which_words_have_vectors(ours):
    assert ours.index_to_key[0] in ours
    assert "nonword" in ours
    assert "nonword" not in ours.key_to_index
    assert "" in ours  # <> has two characters
    assert 3 in ours
    for none in ("</s>", "\ud800", 500, None):
        assert none not in ours
    with pytest.raises(
        UnknownWordError, match=r"'</s>' is not in the vocabulary and has no n-grams of 2 to 5"
    ):
        ours["</s>"]
    for key in (500, -1, None, 2.5):
        with pytest.raises(UnknownWordError, match="is not in the vocabulary"):
            ours.get_vector(key)
    long = made(["hello", "there"], Subwords(7, 8, 20))
    with pytest.raises(
        UnknownWordError, match=r"7 to 8 characters, brackets included; did you mean 'hello'\?"
    ):
        long["helo"]
    with pytest.raises(KeyError):
        long.most_similar("xy")
    with pytest.warns(UserWarning, match="left out, without vectors: 'xy'"):
        assert long.doesnt_match(["hello", "there", "xy"]) in ("hello", "there")


def test_without_ngrams_they_are_plain_vectors(vectors):
    plain = FastTextVectors(
        vectors.index_to_key, vectors.vectors, np.zeros((0, 20), np.float32), Subwords(0, 0, 0)
    )
    assert np.shares_memory(plain.vectors, vectors.vectors)
    assert "nonword" not in plain
    with pytest.raises(UnknownWordError, match=r"'nonword' is not in the vocabulary of 500 words"):
        plain["nonword"]
    same(plain.most_similar(vectors.index_to_key[0]), vectors.most_similar(vectors.index_to_key[0]))


def test_the_end_of_a_line_is_its_own_row():
    """As in fastText, where gensim adds n-grams: checked against the C++ tool in test_fasttext_format."""
    wv = made(["the", "</s>"], Subwords(3, 6, 20))
    np.testing.assert_array_equal(wv.vectors[1], wv.vectors_vocab[1])
    np.testing.assert_array_equal(wv["</s>"], wv.vectors_vocab[1])


def test_what_does_not_fit():
    own, ngrams = np.ones((2, 3), np.float32), np.ones((20, 3), np.float32)
    words, subwords = ["a", "b"], Subwords(3, 6, 20)
    for wrong in (np.ones((19, 3)), np.ones((20, 2)), np.ones(20)):
        with pytest.raises(VectorError, match="do not fit 20 buckets"):
            FastTextVectors(words, own, wrong, subwords)
    with pytest.raises(VectorError, match="give one row for each word"):
        FastTextVectors(["a"], own, ngrams, subwords)
    with pytest.raises(VectorError, match="'a' occurs twice"):
        FastTextVectors(["a", "a"], own, ngrams, subwords)
    with pytest.raises(VectorError, match="2 words have 1 counts"):
        FastTextVectors(words, own, ngrams, subwords, counts=np.ones(1, np.int64))
    with pytest.raises(VectorError, match=r"vectors of shape \(1, 3\) do not fit own rows"):
        FastTextVectors(words, own, ngrams, subwords, vectors=np.ones((1, 3), np.float32))
    for rows, says in ((own, r"the row of 'b' \(word number 2\)"), (ngrams, "the n-gram row number 2")):
        for bad in (np.nan, np.inf, -np.inf):
            rows[1, 2] = bad
            with pytest.raises(VectorError, match=says):
                FastTextVectors(words, own, ngrams, subwords)
            FastTextVectors(words, own, ngrams, subwords, check=False)
        rows[1, 2] = 1


def test_other_numbers_become_float32():
    wv = FastTextVectors(["a", "b"], np.ones((2, 3)), np.zeros((20, 3)), Subwords(3, 6, 20))
    assert {wv.vectors.dtype, wv["a"].dtype, wv["unknown"].dtype} == {np.dtype(np.float32)}
    assert wv["a"].tolist() == [0.5] * 3


# -- our folder ------------------------------------------------------------------------------------------


def test_our_folder_keeps_ngrams(ours, tmp_path):
    save_vectors(ours, tmp_path, corpus="a book")
    read = load_vectors(tmp_path)
    assert isinstance(read, FastTextVectors)
    assert read.index_to_key == ours.index_to_key
    assert read.subwords == ours.subwords
    assert read.counts.tolist() == ours.counts.tolist()
    for name in ("vectors", "vectors_vocab", "vectors_ngrams"):
        rows = getattr(read, name)
        np.testing.assert_array_equal(rows, getattr(ours, name))
        assert not rows.flags.owndata
        assert not rows.flags.writeable
    np.testing.assert_array_equal(read["nonword"], ours["nonword"])
    assert json.loads((tmp_path / "vectors.json").read_text())["corpus"] == "a book"
    save_vectors(read, tmp_path)  # over the very files that are mapped
    np.testing.assert_array_equal(load_vectors(tmp_path)["nonword"], ours["nonword"])


def test_a_folder_without_ngrams(tmp_path):
    plain = made(["a", "b"], Subwords(3, 0, 0))
    save_vectors(plain, tmp_path)
    read = load_vectors(tmp_path)
    assert isinstance(read, FastTextVectors)
    assert read.vectors_ngrams.shape == (0, 12)
    np.testing.assert_array_equal(read["a"], plain["a"])


def test_plain_vectors_take_a_folder_over(ours, vectors, tmp_path):
    save_vectors(ours, tmp_path)
    save_vectors(vectors, tmp_path)
    read = load_vectors(tmp_path)
    assert type(read) is KeyedVectors
    assert "nonword" not in read
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"vectors.npy", "words.txt", "vectors.json"}  # nothing of the older vectors stays


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("vectors_vocab.npy", lambda raw: raw[:-8]),
        ("vectors_ngrams.npy", lambda raw: raw[:-8]),
        ("vectors_ngrams.npy", lambda raw: raw.replace(b"(300, 20)", b"(299, 20)")),
        ("vectors.json", lambda raw: raw.replace(b'"buckets": 300', b'"buckets": 301')),
        ("vectors.json", lambda raw: raw.replace(b'"buckets": 300', b'"buckets": -1')),
        ("vectors.json", lambda raw: raw.replace(b'"buckets"', b'"bucket"')),
    ],
)
def test_a_damaged_folder(ours, tmp_path, name, damage):
    save_vectors(ours, tmp_path)
    before = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(damage(before))
    assert (tmp_path / name).read_bytes() != before
    with pytest.raises(VectorError, match="are damaged"):
        load_vectors(tmp_path)


def test_word2vecs_format_takes_the_words_alone(ours, tmp_path):
    save_word2vec(ours, tmp_path / "v.vec")
    read = load_vectors(tmp_path / "v.vec")
    np.testing.assert_array_equal(read.vectors, ours.vectors)
    assert "nonword" not in read
