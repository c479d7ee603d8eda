"""Analogies and word pairs: gensim's figures on the same vectors and files, and rules by hand."""

import copy
import gzip
import pickle
import warnings

import numpy as np
import pytest
from tests.vectors.conftest import as_gensim

from wordloom.errors import VectorError
from wordloom.vectors import KeyedVectors, evaluate_word_analogies, evaluate_word_pairs


def plausible(words, dim=12, seed=0):
    """Random vectors in which some analogies hold: a word is near the mean of its neighbours in the list."""
    rng = np.random.default_rng(seed)
    values = np.cumsum(rng.normal(size=(len(words), dim)), axis=0)
    return KeyedVectors(words, values.astype(np.float32))


def compare(vectors, path, **settings):
    """Our analogies, after seeing that gensim's are the same."""
    score, theirs = as_gensim(vectors).evaluate_word_analogies(str(path), **settings)
    ours = vectors.evaluate_word_analogies(path, **settings)
    assert ours == (score, theirs)
    assert ours.accuracy == ours.score == score
    for section, their in zip(ours.sections, theirs, strict=True):
        assert section.name == their["section"]
        assert section.correct == their["correct"]
        assert section.incorrect == their["incorrect"]
    return ours


@pytest.fixture(scope="module")
def mikolov(data):
    """Vectors for most words of the Google analogies, in their case and order but for repetitions."""
    path = data / "word-similarity" / "questions-words.txt.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    words = dict.fromkeys(w for line in text.splitlines() if not line.startswith(":") for w in line.split())
    return plausible([word for i, word in enumerate(words) if i % 10 != 9])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"restrict_vocab": 300},
        {"case_insensitive": False},
        {"restrict_vocab": 300, "dummy4unknown": True},
    ],
    ids=["plain", "restricted", "cased", "all"],
)
def test_the_google_analogies_come_out_as_gensims(data, mikolov, settings):
    ours = compare(mikolov, data / "word-similarity" / "questions-words.txt.gz", **settings)
    assert len(ours.sections) == 14 + 1
    assert ours.total.name == "Total accuracy"
    assert ours.total.asked == sum(section.asked for section in ours.sections[:-1])
    assert ours.asked + ours.skipped == 19_544
    if "dummy4unknown" in settings:
        assert ours.skipped == 0
        return
    assert 0 < ours.skipped < 19_544
    assert 0.005 < ours.accuracy < 0.99  # both answers are compared


@pytest.mark.parametrize("name", ["wordsim353.tsv", "simlex999.txt"])
@pytest.mark.parametrize(
    "settings", [{}, {"case_insensitive": False}, {"restrict_vocab": 200}, {"dummy4unknown": True}]
)
def test_word_pairs_come_out_as_gensims(data, name, settings):
    path = data / "word-similarity" / name
    pairs = [line.split("\t")[:2] for line in path.read_text().splitlines() if not line.startswith("#")]
    words = dict.fromkeys(word for pair in pairs for word in pair)
    known = [word for i, word in enumerate(words) if i % 7 != 6]
    # Of length 8 each: cosines are exact, so that equal ones tie on both sides and none is split by rounding.
    values = np.random.default_rng(2).choice([-1, 1], size=(len(known), 64))
    vectors = KeyedVectors(known, values.astype(np.float32))
    expected = as_gensim(vectors).evaluate_word_pairs(str(path), **settings)
    ours = vectors.evaluate_word_pairs(path, **settings)
    pearson, spearman, oov = ours
    assert (ours.pearson, ours.spearman, ours.oov_ratio) == (pearson, spearman, oov)
    assert pearson == (pearson.statistic, pearson.pvalue) == pytest.approx(expected[0], abs=1e-5)
    assert spearman == (spearman.statistic, spearman.pvalue) == pytest.approx(expected[1], abs=1e-5)
    assert oov == pytest.approx(expected[2])
    left_out = 0 if "dummy4unknown" in settings else ours.unknown
    assert ours.pairs + left_out == len(pairs)
    assert oov == pytest.approx(100 * ours.unknown / len(pairs))
    assert 0 < ours.unknown < len(pairs)


def test_spellings_alike_but_for_case_stand_for_one_another(tmp_path):
    """The first in the question, any in the answer, as in gensim."""
    values = {
        "man": [1, 0, 0.1],
        "king": [1, 1, 0.1],
        "woman": [0.1, 0.1, 1],
        "MAN": [-1, -1, -1],
        "Woman": [0, 1, 1.05],  # nearest of all, but a spelling of a word asked about
        "queen": [-1, 0.2, 0],
        "Queen": [0, 1, 1],  # the answer's other spelling
        "else": [0.3, 0.5, 0.8],
    }
    vectors = KeyedVectors(values, np.array(list(values.values()), np.float32))
    path = tmp_path / "questions.txt"
    path.write_text(": family\nman king woman queen\nMan King Woman Queen\nman king woman princess\n")
    ours = compare(vectors, path)
    assert len(ours.sections[0].correct) == 2
    assert ours.skipped == ours.sections[0].skipped == 1
    assert compare(vectors, path, case_insensitive=False).accuracy == 0.0


def test_many_questions_are_asked_in_parts(tmp_path, monkeypatch, vectors):
    rng = np.random.default_rng(5)
    lines = [" ".join(rng.choice(vectors.index_to_key, 4, replace=False)) for _ in range(40)]
    path = tmp_path / "questions.txt"
    path.write_text(": one\n" + "\n".join(lines[:25]) + "\n: empty\n: two\n" + "\n".join(lines[25:]) + "\n")
    whole = evaluate_word_analogies(vectors, path)
    monkeypatch.setattr("wordloom.vectors.store.evaluation._SCORES_AT_ONCE", 7 * len(vectors))
    assert evaluate_word_analogies(vectors, path) == whole
    assert [section.asked for section in whole.sections] == [25, 0, 15, 40]
    assert whole.sections[1].accuracy == 0.0


def test_when_only_the_words_asked_about_are_left_nothing_is_right(tmp_path):
    vectors = KeyedVectors(["a", "b", "c"], np.eye(3, dtype=np.float32))
    path = tmp_path / "questions.txt"
    path.write_text(": x\na b c a\n")
    assert evaluate_word_analogies(vectors, path).sections[0].incorrect == [("A", "B", "C", "A")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a b c d\n", ":1: the file must begin with a ': section' line"),
        (": x\na b c d\na b c\n", ":3: an analogy has four words, and this line has 3"),
        (": x\n", "holds no analogies"),
        ("", "holds no analogies"),
    ],
)
def test_files_that_are_no_analogies(tmp_path, vectors, text, says):
    (tmp_path / "q.txt").write_text(text)
    with pytest.raises(VectorError, match=says):
        evaluate_word_analogies(vectors, tmp_path / "q.txt")


def test_columns_and_names_of_columns(tmp_path):
    vectors = KeyedVectors(["a", "b", "c"], np.array([[1, 0], [1, 0.2], [0, 1]], np.float32))
    path = tmp_path / "pairs.csv"
    path.write_text("score,first,second\n9,a,b\n# remark\n\n2,b, C\n1,a,c\n5,a,unknown\n")
    found = evaluate_word_pairs(vectors, path, delimiter=",", columns=(1, 2, 0))
    assert found.spearman.statistic == pytest.approx(1.0)
    assert (found.pairs, found.unknown, found.oov_ratio) == (3, 1, 25.0)


def test_scores_that_never_vary_agree_with_nothing(tmp_path):
    vectors = KeyedVectors(["a", "b", "c"], np.eye(3, dtype=np.float32))
    (tmp_path / "p.tsv").write_text("a\tb\t1\nb\tc\t2\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = evaluate_word_pairs(vectors, tmp_path / "p.tsv")
    assert np.isnan([*found.spearman, *found.pearson]).all()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a\tb\t1\na\tb\tmuch\n", r":2: no two words and a number in columns \(0, 1, 2\)"),
        (b"a\tb\t1\na b 2\n", ":2"),
        (b"a\tb\t1\na\tb\tinf\n", ":2"),
        (b"a\tb\t1\nx\ty\t2\n", "1 of 2 pairs have vectors, and two are needed"),
        (b"", "0 of 0 pairs"),
        (b"\xff\xfe\t\n", "is not UTF-8"),
        (gzip.compress(b"a\tb\t1\n" * 50, mtime=0)[:20], "truncated or damaged"),
    ],
)
def test_files_that_are_no_pairs(tmp_path, content, says):
    vectors = KeyedVectors(["a", "b"], np.eye(2, dtype=np.float32))
    (tmp_path / "p.tsv").write_bytes(content)
    with pytest.raises(VectorError, match=says):
        evaluate_word_pairs(vectors, tmp_path / "p.tsv")


def test_a_file_that_is_not_there(tmp_path, vectors):
    with pytest.raises(VectorError, match=r"cannot read '.*nowhere': No such file"):
        evaluate_word_pairs(vectors, tmp_path / "nowhere")


def test_questions_are_answered_by_products_where_they_are_to_be(tmp_path, vectors):
    """As most_similar_cosmul answers one by one; gensim takes the name and goes on as ever."""
    rng = np.random.default_rng(6)
    asked = [[str(word) for word in rng.choice(vectors.index_to_key, 4, replace=False)] for _ in range(40)]
    for number, (a, b, c, _) in enumerate(asked):
        if number % 2:  # the answer that is looked for
            asked[number][3] = vectors.most_similar_cosmul([b, c], [a], topn=1, restrict_vocab=450)[0][0]
    known = [words for words in asked if all(vectors.key_to_index[word] < 450 for word in words)]
    (tmp_path / "q.txt").write_text(": x\n" + "".join(f"{' '.join(words)}\n" for words in known))
    right = [
        vectors.most_similar_cosmul([b, c], [a], topn=1, restrict_vocab=450)[0][0] == d
        for a, b, c, d in known
    ]
    settings = {"restrict_vocab": 450, "case_insensitive": False}
    found = vectors.evaluate_word_analogies(
        tmp_path / "q.txt", similarity_function="most_similar_cosmul", **settings
    )
    assert found.total.correct == [tuple(words) for words, each in zip(known, right, strict=True) if each]
    assert found != vectors.evaluate_word_analogies(tmp_path / "q.txt", **settings)


def test_results_are_copied_and_travel(tmp_path, vectors):
    w = vectors.index_to_key
    (tmp_path / "q.txt").write_text(f": x\n{w[0]} {w[1]} {w[2]} {w[3]}\n{w[0]} {w[1]} {w[2]} unheard\n")
    (tmp_path / "p.tsv").write_text(
        f"{w[0]}\t{w[1]}\t1\n{w[1]}\t{w[2]}\t2\n{w[0]}\tunheard\t3\n{w[3]}\t{w[2]}\t5\n"
    )
    analogies = vectors.evaluate_word_analogies(tmp_path / "q.txt")
    pairs = vectors.evaluate_word_pairs(tmp_path / "p.tsv")
    for again in (copy.deepcopy, lambda result: pickle.loads(pickle.dumps(result))):
        assert again(analogies) == analogies
        assert again(analogies).skipped == analogies.skipped == 1
        assert again(pairs) == pairs
        assert (again(pairs).pairs, again(pairs).unknown) == (pairs.pairs, pairs.unknown) == (3, 1)
