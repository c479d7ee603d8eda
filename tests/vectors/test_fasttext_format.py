"""fastText's binary models: what the C++ tool and gensim write we read, what we write they read."""

import base64
import gzip
import json
import struct
import tempfile
import warnings
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wordloom.errors import VectorError
from wordloom.vectors import (
    FastTextArgs,
    FastTextClassifier,
    FastTextModel,
    FastTextVectors,
    UnknownWordError,
    huffman,
    load_fasttext,
    load_vectors,
    load_word2vec,
    save_fasttext,
)

# Models of fastText 0.9.2 (the C++ tool, through its Python module, one thread) and what it answered, by
# getWordVector, getSubwords and predict.  Trained on 120 made-up lines, three of them in Latin-1.
REAL = json.loads(Path(__file__).with_name("fasttext_models.json").read_text())
SUPERVISED = [name for name, real in REAL["models"].items() if "predictions" in real]

ODD = ["naïve", "日本語", "🙂", "\u00a0", "</s>", "a b", "\n", "", "caf\udce9", "__label__x", "<a>"]
raw_bytes = st.binary(max_size=8).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = (st.sampled_from(ODD) | raw_bytes | text).filter(lambda name: "\0" not in name)
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


def real_model(name):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # café in Latin-1
        path = Path(folder, "m.bin")
        path.write_bytes(base64.b64decode(REAL["models"][name]["file"]))
        return load_fasttext(path)


@st.composite
def models(draw, model=None, words=names, least=0):
    found = draw(st.lists(words, min_size=max(1, least), max_size=6, unique=True))
    model = model or draw(st.sampled_from(["cbow", "skipgram", "supervised"]))
    split = draw(st.integers(least, len(found))) if model == "supervised" else len(found)
    buckets, dim = draw(st.integers(0, 9)), draw(st.integers(1, 4))
    args = FastTextArgs(
        model=model,
        loss=draw(st.sampled_from(["hs", "ns", "softmax", "ova"])),
        dim=dim,
        buckets=buckets,
        min_n=draw(st.integers(0, 4)),
        max_n=draw(st.integers(0, 6)) if buckets else 0,
        word_ngrams=draw(st.integers(1, 3)) if buckets else 1,
        window=draw(st.integers(1, 9)),
        sample=draw(st.floats(0, 1)),
    )
    counts = np.sort(draw(arrays(np.int64, len(found), elements=st.integers(1, 2**40))))[::-1]
    classes = len(found) - split if model == "supervised" else split
    return FastTextModel(
        args=args,
        words=found[:split],
        counts=counts[:split],
        labels=found[split:],
        label_counts=counts[split:],
        input_matrix=draw(arrays(np.float32, (split + buckets, dim), elements=numbers)),
        output_matrix=draw(arrays(np.float32, (classes, dim), elements=numbers)),
        n_tokens=draw(st.integers(0, 2**50)),
    )


def small(V=5, L=0, seed=0, **settings):
    """A model with random rows."""
    settings = {"dim": 4, "buckets": 30, "model": "supervised" if L else "skipgram", **settings}
    args = FastTextArgs(**settings)
    rng = np.random.default_rng(seed)
    rows = V + args.buckets, L if L else V
    matrices = [rng.normal(size=(n, args.dim)).astype(np.float32) for n in rows]
    return FastTextModel(
        args=args,
        words=["the", "naïve", "日本語", "</s>", *(f"word{n}" for n in range(4, V))][:V],
        counts=np.arange(V, 0, -1),
        labels=[f"__label__{n}" for n in range(L)],
        label_counts=np.arange(L, 0, -1),
        input_matrix=matrices[0],
        output_matrix=matrices[1],
        n_tokens=1000,
    )


def equal(a, b):
    assert asdict(a.args) == asdict(b.args)
    assert (list(a.words), list(a.labels), a.n_tokens) == (list(b.words), list(b.labels), b.n_tokens)
    assert a.counts.tolist() == b.counts.tolist()
    assert a.label_counts.tolist() == b.label_counts.tolist()
    for name in ("input_matrix", "output_matrix"):
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes()  # -0.0 too


# -- our own round trip ----------------------------------------------------------------------------------


@given(models(), st.sampled_from(["m.bin", "m.bin.gz"]))
@settings(deadline=None)
def test_what_is_written_is_read(model, name):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # words that are no UTF-8
        path = Path(folder, name)
        save_fasttext(model, path)
        read = load_fasttext(path)
        equal(read, model)
        assert [file.name for file in Path(folder).iterdir()] == [name]
        save_fasttext(read, path)  # over the very file that is mapped
        equal(load_fasttext(path), model)


def test_matrices_are_mapped_not_read(tmp_path):
    save_fasttext(small(V=6), tmp_path / "m.bin")
    model = load_fasttext(tmp_path / "m.bin")
    for rows in (model.input_matrix, model.wv.vectors_vocab, model.wv.vectors_ngrams, model.output_matrix):
        assert not rows.flags.owndata
        assert not rows.flags.writeable
    assert np.shares_memory(model.wv.vectors_ngrams, model.input_matrix)
    model.wv["unknown"], model.wv["the"]
    assert "vectors" not in vars(model.wv)


def test_a_large_matrix_is_written_and_looked_through_in_parts(tmp_path):
    model = small(dim=300, buckets=30_000)
    save_fasttext(model, tmp_path / "m.bin")
    equal(load_fasttext(tmp_path / "m.bin"), model)
    raw = bytearray((tmp_path / "m.bin").read_bytes())
    place = len(raw) - 4 * 300 * (5 + 10) - 17  # ten rows before the end of the input matrix
    raw[place : place + 4] = struct.pack("<f", np.nan)
    (tmp_path / "m.bin").write_bytes(raw)
    with pytest.raises(VectorError, match="row 29,996 of the input matrix is not finite"):
        load_fasttext(tmp_path / "m.bin")
    assert load_fasttext(tmp_path / "m.bin", check=False).args.dim == 300


def test_load_vectors_reads_models(tmp_path):
    model = small()
    for name in ("m.bin", "m.bin.gz", "unnamed"):
        save_fasttext(model, tmp_path / name)
        wv = load_vectors(tmp_path / name)
        assert isinstance(wv, FastTextVectors)
        assert wv.counts.tolist() == [5, 4, 3, 2, 1]
        np.testing.assert_array_equal(wv["unknown"], model.wv["unknown"])
        with pytest.raises(VectorError, match=r"is a fastText model, .* read it with load_vectors"):
            load_word2vec(tmp_path / name)


# -- fastText itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REAL["models"])
def test_fasttexts_own_vectors(name):
    model = real_model(name)
    for word, expected in zip(REAL["words"], REAL["models"][name]["vectors"], strict=True):
        if expected is None:  # its Python module takes no such word
            assert word == "caf\udce9"
            assert word in model.words
        elif any(expected):
            np.testing.assert_allclose(model.wv[word], expected, rtol=2e-6, atol=1e-7)
            assert word in model.wv
        else:  # zeros for a word of which it knows no part
            assert word not in model.wv
            with pytest.raises(UnknownWordError):
                model.wv[word]


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


@pytest.mark.parametrize("name", REAL["models"])
def test_fasttexts_own_files_are_written_byte_for_byte(name, tmp_path):
    """So what we write it reads.  By hand, fastText 0.9.2 also read 18 models that were never its own, of all
    losses, with and without n-grams and runs of words: it gave the vectors of 82 words to 1.2e-7 of their
    size, the same rows for each word, and the probabilities of 5 labels for 8 lines to 1.4e-7 of what
    :func:`as_fasttext_says`.
    """
    save_fasttext(real_model(name), tmp_path / "m.bin")
    assert (tmp_path / "m.bin").read_bytes() == base64.b64decode(REAL["models"][name]["file"])


def test_words_that_are_no_utf8_are_told_of(tmp_path):
    (tmp_path / "m.bin").write_bytes(base64.b64decode(REAL["models"]["skipgram"]["file"]))
    with pytest.warns(UserWarning, match=r"1 words are not UTF-8, the first being 'caf\\udce9'"):
        load_fasttext(tmp_path / "m.bin")


def test_a_label_in_an_unsupervised_model():
    """fastText takes words that begin with __label__ for labels there too: wiki.fr.bin has one."""
    model = real_model("skipgram")
    assert list(model.labels) == ["__label__"]
    assert model.label_counts.tolist() == [model.label_counts[0]]
    assert len(model.output_matrix) == len(model.words)
    assert "__label__" not in model.wv.key_to_index


# -- gensim ----------------------------------------------------------------------------------------------


def gensim_fasttext():
    return pytest.importorskip("gensim.models.fasttext")


@given(models("skipgram", words=names.filter(lambda name: name.isprintable() and name != "</s>")))
@settings(deadline=None, max_examples=60)
def test_gensim_reads_ours(model):
    if not model.args.subwords:  # gensim then wants no buckets
        model = replace(
            model,
            args=replace(model.args, buckets=0, max_n=0, min_n=3, word_ngrams=1),
            input_matrix=model.input_matrix[: len(model.words)],
        )
    model = replace(model, input_matrix=np.clip(model.input_matrix, -1e6, 1e6))  # sums stay finite
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.bin")
        save_fasttext(model, path)
        theirs = gensim_fasttext().load_facebook_vectors(str(path))
        full = gensim_fasttext().load_facebook_model(str(path))
    assert theirs.index_to_key == list(model.words)
    assert [theirs.get_vecattr(word, "count") for word in model.words] == model.counts.tolist()
    assert (full.corpus_total_words, full.window) == (model.n_tokens, model.args.window)
    np.testing.assert_allclose(model.wv.vectors, theirs.vectors, rtol=1e-6, atol=1e-3)
    output = full.syn1 if model.args.loss == "hs" else full.syn1neg
    np.testing.assert_array_equal(output, model.output_matrix)
    for word in ("unknown", "naïve", "日"):
        if word in model.wv:
            np.testing.assert_allclose(model.wv[word], theirs[word], rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    "settings", [{}, {"hs": 1, "negative": 0}, {"sg": 1, "bucket": 0}, {"sg": 1, "min_n": 1}]
)
def test_we_read_gensims(settings, tmp_path):
    gensim = gensim_fasttext()
    rng = np.random.default_rng(0)
    words = ["naïve", "日本語", "🙂", *map(str, range(100, 140))]
    corpus = [list(rng.choice(words, size=8)) for _ in range(60)]
    settings = {"bucket": 100, **settings}
    theirs = gensim.FastText(corpus, vector_size=6, min_count=1, epochs=1, workers=1, seed=1, **settings)
    gensim.save_facebook_model(theirs, str(tmp_path / "m.bin"))
    model = load_fasttext(tmp_path / "m.bin")
    assert list(model.words) == theirs.wv.index_to_key
    assert model.counts.tolist() == [theirs.wv.get_vecattr(word, "count") for word in model.words]
    assert model.args.model == ("skipgram" if theirs.sg else "cbow")
    assert model.args.loss == ("hs" if theirs.hs else "ns")
    assert (model.args.dim, model.args.buckets, model.n_tokens) == (6, settings["bucket"], 480)
    np.testing.assert_array_equal(model.output_matrix, theirs.syn1 if theirs.hs else theirs.syn1neg)
    np.testing.assert_allclose(model.wv.vectors, theirs.wv.vectors, rtol=1e-6, atol=1e-8)
    if settings["bucket"]:
        np.testing.assert_allclose(model.wv["unknown"], theirs.wv["unknown"], rtol=1e-5, atol=1e-8)
    else:
        assert "unknown" not in model.wv
        save_fasttext(
            model, tmp_path / "again.bin"
        )  # fastText divides by the buckets wherever there are n-grams
        assert load_fasttext(tmp_path / "again.bin").args.max_n == 0


def gensims_files():
    return Path(pytest.importorskip("gensim").__file__).parent / "test/test_data"


@pytest.mark.parametrize(
    "name", ["crime-and-punishment", "toy-model", "toy-model-pretrained", "lee_fasttext_new"]
)
def test_models_that_fasttext_wrote_for_gensim(name, tmp_path):
    path = gensims_files() / f"{name}.bin"
    model = load_fasttext(path)
    theirs = gensim_fasttext().load_facebook_vectors(str(path))
    assert list(model.words) == theirs.index_to_key
    plain = [row for row, word in enumerate(model.words) if word != "</s>"]  # where gensim adds n-grams
    np.testing.assert_allclose(model.wv.vectors[plain], theirs.vectors[plain], rtol=1e-6, atol=1e-8)
    for word in ("landlord", "преступление", "x"):
        np.testing.assert_allclose(model.wv[word], theirs[word], rtol=1e-6, atol=1e-8)
    printed = path.with_suffix(".vec")
    if name == "crime-and-punishment":  # by fastText itself, to five digits, </s> too
        expected = load_word2vec(printed)
        assert expected.index_to_key == list(model.words)
        np.testing.assert_allclose(model.wv.vectors, expected.vectors, rtol=1e-4, atol=1e-6)
        assert "</s>" in model.wv.key_to_index
    save_fasttext(model, tmp_path / "m.bin")
    ours, fasttexts = (tmp_path / "m.bin").read_bytes(), path.read_bytes()
    assert ours[8:] == fasttexts[8:]
    assert fasttexts[4] == (11 if name == "lee_fasttext_new" else 12)
    assert ours[4] == 12


def test_a_classifier_that_fasttext_wrote_for_gensim():
    with pytest.warns(UserWarning, match="5 words are not UTF-8"):
        model = load_fasttext(gensims_files() / "pang_lee_polarity_fasttext.bin")
    assert list(model.labels) == ["__label__pos", "__label__neg"]
    assert (len(model.words), model.args.buckets, model.args.loss) == (1694, 0, "softmax")
    p = FastTextClassifier(model).probabilities("a film")
    assert p.sum() == pytest.approx(1)


def test_models_older_than_the_magic_number_are_refused():
    for load in (load_fasttext, load_vectors):
        with pytest.raises(VectorError, match=r"lee_fasttext.bin' ?.*give the \.vec file"):
            load(gensims_files() / "lee_fasttext.bin")


# -- the classifier --------------------------------------------------------------------------------------


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
    with pytest.raises(VectorError, match="a model of kind 'skipgram' with 0 labels predicts none"):
        FastTextClassifier(small())
    classifier = FastTextClassifier(small(L=2))
    with pytest.raises(VectorError, match="one line at a time"):
        classifier.predict("two\nlines")
    for k in (0, -2):
        with pytest.raises(VectorError, match=f"k {k} asks for no labels"):
            classifier.predict("the", k=k)


# -- what is broken --------------------------------------------------------------------------------------

ENTRY = b"a\0" + struct.pack("<qb", 3, 0)
FLOATS = struct.pack("<2f", 1, 2)


def a_file(
    magic=793712314, version=12, args=(2, 5, 5, 5, 5, 1, 2, 2, 1, 3, 6, 100), sizes=(1, 1, 0, 3, -1),
    entries=ENTRY, input=(0, 2, 2, 2 * FLOATS), output=(0, 1, 2, FLOATS), end=b"",
):  # fmt: skip
    content = struct.pack("<2i", magic, version) + struct.pack("<12id", *args, 1e-4)
    content += struct.pack("<3iqq", *sizes) + entries
    for quantized, rows, columns, values in (input, output):
        content += struct.pack("<?qq", quantized, rows, columns) + values
    return content + end


def changed(place, value):
    args = [2, 5, 5, 5, 5, 1, 2, 2, 1, 3, 6, 100]
    args[place] = value
    return a_file(args=args)


NAN = struct.pack("<2f", 1, float("nan"))
PRUNED = ENTRY + struct.pack("<4i", 0, 0, 5, 1)
BAD = {
    "empty": (b"", "not a fastText model"),
    "a text": (b"2 2\na 1 2\nb 3 4\n", "not a fastText model"),
    "magic alone": (struct.pack("<i", 793712314), "cut short in the first bytes"),
    "a later version": (a_file(version=13), "of version 13; versions 11 and 12 are read"),
    "an earlier version": (a_file(version=10), "of version 10; versions 11 and 12 are read"),
    "no settings": (a_file()[:40], "cut short in the settings"),
    "no dimension": (changed(0, 0), "damaged: FastTextArgs.*a dim of 1 or more"),
    "no loss": (changed(6, 0), "damaged: there is no loss 0"),
    "no such loss": (changed(6, 5), "damaged: there is no loss 5"),
    "no such model": (changed(7, 4), "damaged: there is no loss 2 or no model 4"),
    "buckets below 0": (changed(8, -5), "damaged: buckets -5 is out of range"),
    "other buckets": (changed(8, 7), "the input matrix is 2 x 2 where 8 x 2 belong"),
    "n-grams below 0": (changed(9, -1), "damaged: min_n -1 is out of range"),
    "no dictionary": (a_file()[:70], "cut short in the dictionary"),
    "entries do not add up": (a_file(sizes=(2, 1, 0, 3, -1)), "damaged: 2 entries are 1 words and 0 labels"),
    "fewer than none": (a_file(sizes=(0, -1, 1, 3, -1)), "damaged: 0 entries are -1 words and 1 labels"),
    "a huge dictionary": (
        a_file(sizes=(2**30, 2**30, 0, 3, -1)),
        "1,073,741,824 words and labels do not fit",
    ),
    "a cut dictionary": (a_file(sizes=(3, 3, 0, 3, -1), entries=b"a" * 40)[:-50], "cut short in word 1 of 3"),
    "a word that never ends": (
        a_file(entries=b"", input=(1, -1, -1, b"\xff" * 8))[:92] + b"\xff" * 20,
        "cut short",
    ),
    "neither word nor label": (a_file(entries=b"a\0" + struct.pack("<qb", 3, 2)), "damaged at word 1 of 1"),
    "a count below 0": (a_file(entries=b"a\0" + struct.pack("<qb", -3, 0)), "damaged at word 1 of 1"),
    "a label before": (
        a_file(sizes=(2, 1, 1, 3, -1), entries=b"l\0" + struct.pack("<qb", 3, 1) + ENTRY),
        "words do not stand before labels",
    ),
    "a word twice": (
        a_file(
            sizes=(2, 2, 0, 3, -1),
            entries=2 * ENTRY,
            input=(0, 3, 2, 3 * FLOATS),
            output=(0, 2, 2, 2 * FLOATS),
        ),
        "the word 'a' is there twice",
    ),
    "pruned": (a_file(sizes=(1, 1, 0, 3, 2), entries=PRUNED), "pruned to 2 n-grams; train it again without"),
    "pruned to none": (a_file(sizes=(1, 1, 0, 3, 0)), "pruned to 0 n-grams"),
    "pruned and quantized": (
        a_file(sizes=(1, 1, 0, 3, 2), entries=PRUNED, input=(1, 2, 2, b"")),
        r"pruned to 2 n-grams and quantized \(.ftz\); give the .bin",
    ),
    "pruned and cut": (a_file(sizes=(1, 1, 0, 3, 2**62), entries=PRUNED), "cut short in the input matrix"),
    "quantized": (a_file(input=(1, 2, 2, b"")), r"quantized \(.ftz\)"),
    "really quantized": (
        base64.b64decode(REAL["quantized"]),
        r"quantized \(.ftz\).*give the .bin it was made of",
    ),
    "output quantized": (a_file(output=(1, 1, 2, FLOATS)), r"quantized \(.ftz\)"),
    "another dimension": (
        a_file(input=(0, 2, 3, 3 * FLOATS)),
        "the input matrix is 2 x 3 where 2 x 2 belong",
    ),
    "another output": (a_file(output=(0, 2, 2, 2 * FLOATS)), "the output matrix is 2 x 2 where 1 x 2 belong"),
    "rows below 0": (a_file(input=(0, -1, -4, FLOATS)), "the input matrix is -1 x -4 where"),
    "input cut": (
        a_file(output=(0, 1, 2, b""))[:-20],
        "cut short in the input matrix: 13 bytes of 16 are there",
    ),
    "no output": (a_file()[:-25], "cut short in the output matrix"),
    "output cut": (a_file()[:-1], "cut short in the output matrix: 7 bytes of 8 are there"),
    "more": (a_file(end=b"more"), "goes on for 4 bytes after the output matrix"),
    "not finite": (a_file(input=(0, 2, 2, NAN + FLOATS)), r"row 1 \('a'\) of the input matrix is not finite"),
    "an n-gram not finite": (
        a_file(input=(0, 2, 2, FLOATS + NAN)),
        "row 2 of the input matrix is not finite",
    ),
    "output not finite": (a_file(output=(0, 1, 2, NAN)), "row 1 of the output matrix is not finite"),
    "cut gzip": (gzip.compress(a_file(), mtime=0)[:-9], "cut short or damaged"),
    "runs without buckets": (
        a_file(args=(2, 5, 5, 5, 5, 2, 2, 3, 0, 0, 0, 100), input=(0, 1, 2, FLOATS), output=(0, 0, 2, b"")),
        "damaged: word_ngrams 2 needs buckets",
    ),
}


def test_the_file_that_is_broken_below_is_whole(tmp_path):
    (tmp_path / "m.bin").write_bytes(a_file())
    model = load_fasttext(tmp_path / "m.bin")
    assert (list(model.words), model.args.model, model.args.loss) == (["a"], "skipgram", "ns")


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_clear_error(tmp_path, name):
    content, says = BAD[name]
    path = tmp_path / "model.any"
    path.write_bytes(content)
    with pytest.raises(VectorError, match=says) as caught:
        load_fasttext(path)
    assert "\n" not in str(caught.value)
    assert "model.any" in str(caught.value)
    if content.startswith(struct.pack("<i", 793712314)) and len(content) > 4:
        with pytest.raises(VectorError, match=says):
            load_vectors(path)


@given(models(), st.data())
@settings(deadline=None)
def test_a_model_cut_or_continued_is_refused(model, data):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "m.bin")
        save_fasttext(model, path)
        whole = path.read_bytes()
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
        with pytest.raises(VectorError):
            load_fasttext(path)
        path.write_bytes(whole + data.draw(st.binary(min_size=1, max_size=20)))
        with pytest.raises(VectorError, match="goes on for"):
            load_fasttext(path)


@given(models(), st.data())
@settings(deadline=None, max_examples=200)
def test_no_bytes_end_in_another_error(model, data):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "m.bin")
        save_fasttext(model, path)
        raw = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(raw) - 1))
        some = data.draw(st.binary(min_size=1, max_size=12))
        raw[place : place + len(some)] = some
        path.write_bytes(raw)
        with suppress(VectorError):
            load_vectors(path)


def test_old_classifiers_had_no_ngrams(tmp_path):
    """Version 11 says it had, as FastText::loadModel knows."""
    model = small(V=4, L=2)
    save_fasttext(model, tmp_path / "m.bin")
    raw = bytearray((tmp_path / "m.bin").read_bytes())
    raw[4] = 11
    (tmp_path / "m.bin").write_bytes(raw)
    read = load_fasttext(tmp_path / "m.bin")
    assert (read.args.max_n, model.args.max_n) == (0, 6)
    np.testing.assert_array_equal(read.wv.vectors, model.input_matrix[:4])


def test_a_missing_file(tmp_path):
    for load in (load_fasttext, load_vectors):
        with pytest.raises(VectorError, match=r"cannot read '.*nowhere.bin': No such file"):
            load(tmp_path / "nowhere.bin")
    with pytest.raises(VectorError, match=r"cannot read .*: Is a directory"):
        load_fasttext(tmp_path)


@pytest.mark.parametrize("word", ["a\0b", "\ud800", "\udcc3\udca9"])  # the last would be read as é
def test_words_that_a_model_cannot_keep(tmp_path, word):
    with pytest.raises(VectorError, match="half a character"):
        save_fasttext(replace(small(V=1), words=[word]), tmp_path / "m.bin")
    with pytest.raises(VectorError, match="half a character"):
        save_fasttext(replace(small(V=1, L=1), labels=[word]), tmp_path / "m.bin")
    assert not list(tmp_path.iterdir())


def test_a_save_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    model = small()
    save_fasttext(model, tmp_path / "m.bin")

    def full(*_):
        raise OSError(28, "No space left on device")

    broken = small()
    broken.output_matrix[2, 1] = np.inf
    for wrong, says in (
        (broken, "row 3 of the output matrix is not finite"),
        (replace(model, words=["a", "b", "c", "d", "a"]), "'a' is there twice"),
        (replace(small(V=4, L=1), labels=["the"]), "'the' is there twice"),
    ):
        with pytest.raises(VectorError, match=says):
            save_fasttext(wrong, tmp_path / "m.bin")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(VectorError, match=r"cannot write to .*: No space left on device"):
        save_fasttext(small(seed=1), tmp_path / "m.bin")
    assert [file.name for file in tmp_path.iterdir()] == ["m.bin"]
    equal(load_fasttext(tmp_path / "m.bin"), model)


def test_models_that_do_not_fit():
    good = small(V=4, L=2)
    for changes, says in (
        ({"counts": np.ones(3, np.int64)}, "4 words have 3 counts"),
        ({"label_counts": None}, "2 labels have 0 counts"),
        (
            {"input_matrix": good.input_matrix[1:]},
            r"an input matrix of shape \(33, 4\) does not fit 4 words, 30",
        ),
        (
            {"output_matrix": good.output_matrix[1:]},
            r"an output matrix of shape \(1, 4\) does not fit 2 labels",
        ),
        ({"args": replace(good.args, model="cbow")}, r"\(2, 4\) does not fit 4 words"),
        ({"args": replace(good.args, dim=5)}, "an input matrix"),
    ):
        with pytest.raises(VectorError, match=says):
            replace(good, **changes)
    for given_args, says in (
        ({"model": "skip-gram"}, "unknown model 'skip-gram'; did you mean 'skipgram'"),
        ({"loss": "hierarchical"}, "unknown loss 'hierarchical'; allowed: hs, ns, softmax, ova"),
        ({"dim": 0}, "a dim of 1 or more"),
        ({"epochs": 2**31}, "numbers of 31 bits"),
        ({"buckets": -1}, "buckets -1 is out of range"),
        ({"word_ngrams": 2, "buckets": 0}, "word_ngrams 2 needs buckets"),
    ):
        with pytest.raises(VectorError, match=says):
            FastTextArgs(**given_args)
    with pytest.raises(VectorError, match="there is not a single vector here"):
        _ = small(V=0, L=2).wv
    assert repr(good) == "FastTextModel(supervised, 4 words, 2 labels, 30 buckets, 4 components)"


def test_a_model_without_words(tmp_path):
    save_fasttext(small(V=0, L=2), tmp_path / "m.bin")
    assert FastTextClassifier(load_fasttext(tmp_path / "m.bin")).predict("word", k=-1)  # by its n-grams
    with pytest.raises(VectorError, match=r"m.bin': there is not a single vector here"):
        load_vectors(tmp_path / "m.bin")
