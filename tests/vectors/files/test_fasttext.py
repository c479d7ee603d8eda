"""fastText's binary models: what the C++ tool and gensim write we read, what we write they read."""

import base64
import gzip
import struct
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.vectors.fasttext_models import (
    REAL,
    equal,
    gensims_files,
    models,
    names,
    real_model,
    small,
)

from wordloom.errors import VectorError
from wordloom.vectors import (
    FastTextClassifier,
    FastTextVectors,
    UnknownWordError,
    convert_vectors,
    load_fasttext,
    load_vectors,
    load_word2vec,
    open_vectors,
    save_fasttext,
)

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


def test_a_large_matrix_is_written_and_scan_in_parts(tmp_path):
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


@pytest.mark.parametrize("name", REAL["models"])
def test_fasttexts_own_files_are_written_byte_for_byte(name, tmp_path):
    """So what we write it reads.  By hand, fastText 0.9.2 also read 18 models that were never its own, of all
    losses, with and without n-grams and runs of words: it gave the vectors of 82 words to 1.2e-7 of their
    size, the same rows for each word, and the probabilities of 5 labels for 8 lines to 1.4e-7 of what
    ``as_fasttext_says`` in test_fasttext_classifier.
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
    eighths = np.round(np.clip(model.input_matrix, -1e4, 1e4) * 8) / 8  # sums are exact, in whatever order
    model = replace(model, input_matrix=eighths)
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


@pytest.mark.parametrize("name", ["lee_fasttext.bin", "lee_fasttext.bin.gz"])
def test_models_older_than_the_magic_number_are_refused(name, tmp_path):
    path = tmp_path / name
    content = (gensims_files() / "lee_fasttext.bin").read_bytes()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    loads = (load_fasttext, load_vectors, open_vectors, load_word2vec, FastTextClassifier.load)
    for load in (*loads, lambda path: convert_vectors(path, tmp_path / "dest.txt")):
        with pytest.raises(VectorError, match=rf"{name}': a fastText model from before 2017.*give the \.vec"):
            load(path)
    assert [file.name for file in tmp_path.iterdir()] == [name]
