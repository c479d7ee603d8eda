"""Labels for texts: the C++ tool's own predictions, for its own models."""

import numpy as np
import pytest
from tests.vectors.fasttext_models import REAL, SUPERVISED, gensims_files, real_model, small

from wordloom.errors import VectorError
from wordloom.vectors import FastTextClassifier, load_fasttext
from wordloom.vectors.word2vec.sampling import huffman


def as_fasttext_says(model, rows, label):
    """The probability that fastText prints: 1e-5 more each time, and a sigmoid that goes by steps."""
    scores = (model.output_matrix @ model.input_matrix[rows].mean(axis=0)).astype(np.float64)
    if model.args.loss == "softmax":
        weights = np.exp(scores - scores.max())
        return weights[label] / weights.sum() + 1e-5
    if model.args.loss == "hs":
        starts, nodes, codes = huffman(model.label_counts)
        path = slice(starts[label], starts[label + 1])
        right = 1 / (1 + np.exp(-scores[nodes[path]]))
        return np.prod(np.where(codes[path], right, 1 - right) + 1e-5)
    step = int((scores[label] + 8) * 32)
    inside = 1 / (1 + np.exp(8 - step / 32))
    return (0.0 if scores[label] < -8 else 1.0 if scores[label] > 8 else inside) + 1e-5


@pytest.mark.parametrize("name", SUPERVISED)
def test_fasttexts_own_predictions(name):
    model, real = real_model(name), REAL["models"][name]
    classifier = FastTextClassifier(model)
    exact = {"softmax": 1.1e-5, "hs": 5e-5, "ns": 0.008, "ova": 0.008}[model.args.loss]  # its tables' steps
    seen = 0
    for line, expected in zip(REAL["lines"], real["predictions"], strict=True):
        answers = dict(classifier.predict(line, k=-1))
        assert set(answers) == set(model.labels)
        for label, p in expected:
            shown = as_fasttext_says(model, classifier.rows(line), model.labels.index(label))
            assert shown == pytest.approx(p, abs=5e-7)
            assert answers[label] == pytest.approx(p, abs=exact)
            seen += 1
        if expected[0][1] - expected[1][1] > 2 * exact:
            assert classifier.predict(line)[0][0] == expected[0][0]
    assert seen > 2 * len(REAL["lines"])


def test_a_classifier_that_fasttext_wrote_for_gensim():
    with pytest.warns(UserWarning, match="5 words are not UTF-8"):
        model = load_fasttext(gensims_files() / "pang_lee_polarity_fasttext.bin")
    assert list(model.labels) == ["__label__pos", "__label__neg"]
    assert (len(model.words), model.args.buckets, model.args.loss) == (1694, 0, "softmax")
    p = FastTextClassifier(model).probabilities("a film")
    assert p.sum() == pytest.approx(1)


@pytest.mark.parametrize("loss", ["softmax", "hs", "ns", "ova"])
def test_probabilities(loss):
    model = small(L=7, loss=loss, word_ngrams=2)
    classifier = FastTextClassifier(model)
    p = classifier.probabilities("the naïve unknown")
    scores = model.output_matrix @ model.input_matrix[classifier.rows("the naïve unknown")].mean(axis=0)
    if loss in ("softmax", "hs"):
        assert p.sum() == pytest.approx(1, abs=1e-6)
    else:
        np.testing.assert_allclose(p, 1 / (1 + np.exp(-scores)), rtol=1e-6)
    ranked = classifier.predict("the naïve unknown", k=-1)
    assert [score for _, score in ranked] == sorted(p.tolist(), reverse=True)
    assert classifier.predict("the naïve unknown", k=3) == ranked[:3]
    middle = ranked[3][1]
    assert classifier.predict("the naïve unknown", k=-1, threshold=middle) == ranked[:4]


def test_one_label_is_certain():
    for loss in ("softmax", "hs"):
        assert FastTextClassifier(small(L=1, loss=loss)).predict("the") == [("__label__0", pytest.approx(1))]


def test_a_line_becomes_rows():
    model = small(V=5, L=2, min_n=0, max_n=0, buckets=0)
    classifier = FastTextClassifier(model)
    assert classifier.rows("the  word4\tunknown __label__0 __label__none naïve").tolist() == [0, 4, 1, 3]
    assert classifier.rows("the\u00a0naïve").tolist() == [3]  # no white space to fastText
    assert classifier.rows("the </s> naïve").tolist() == [0, 3]  # the line ends there
    other = FastTextClassifier(model, label_prefix="#")
    assert other.rows("#none the __label__0").tolist() == [0, 3]
    runs = FastTextClassifier(small(V=5, L=2, min_n=0, max_n=0, word_ngrams=3)).rows("the unknown")
    assert runs[:2].tolist() == [0, 3]
    assert len(runs) == 2 + 3  # the unknown, the unknown </s>, unknown </s>
    silent = FastTextClassifier(small(V=3, L=2, min_n=0, max_n=0, buckets=0))  # no </s> there
    assert silent.predict("unknown") == []
    assert silent.probabilities("") is None


def test_what_a_classifier_cannot_do():
    with pytest.raises(VectorError, match="a skipgram model with 0 labels cannot predict labels"):
        FastTextClassifier(small())
    classifier = FastTextClassifier(small(L=2))
    with pytest.raises(VectorError, match="one line at a time"):
        classifier.predict("two\nlines")
    for k in (0, -2):
        with pytest.raises(VectorError, match=f"k {k} asks for no labels"):
            classifier.predict("the", k=k)
