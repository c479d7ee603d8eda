"""Vectors from one format into another: gensim reads every result, and what is left out is said."""

from __future__ import annotations

import json
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from safetensors.numpy import save_file
from tests.vectors.fasttext_models import small

from wordloom.errors import VectorError
from wordloom.recipe.vectors import VectorSettings
from wordloom.vectors import (
    FastTextVectors,
    KeyedVectors,
    Subwords,
    convert_vectors,
    load_fasttext,
    load_vectors,
    open_vectors,
    save_fasttext,
    save_vectors,
    save_word2vec,
)
from wordloom.vectors.word2vec.sampling import huffman

V, D, BUCKETS = 40, 6, 70
WORDS = [f"wörd{number}" for number in range(V)]


@pytest.fixture
def plain() -> KeyedVectors:
    random = np.random.default_rng(0)
    return KeyedVectors(WORDS, random.normal(size=(V, D)).astype(np.float32))


@pytest.fixture
def fasttext() -> FastTextVectors:
    random = np.random.default_rng(1)
    own, ngrams = (random.normal(size=(n, D)).astype(np.float32) for n in (V, BUCKETS))
    counts = np.sort(random.integers(1, 900, V))[::-1].copy()
    return FastTextVectors(WORDS, own, ngrams, Subwords(2, 4, BUCKETS), counts=counts)


def gensims(path: Path, to: str):
    """What gensim makes of a file."""
    models = pytest.importorskip("gensim.models")
    if to == "fasttext":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return models.fasttext.load_facebook_model(str(path)).wv
    return models.KeyedVectors.load_word2vec_format(
        str(path), binary=to == "word2vec", no_header=to == "glove"
    )


def saved(vectors: KeyedVectors, kind: str, folder: Path) -> Path:
    """``vectors`` in a file or folder of each kind that can be read."""
    path = folder / {"folder": "source", "word2vec": "source.bin"}.get(kind, "source.txt")
    if kind == "folder":
        save_vectors(vectors, path)
    else:
        save_word2vec(vectors, path, binary=kind == "word2vec", header=kind != "glove")
    return path


@pytest.mark.parametrize("kind", ["folder", "word2vec", "word2vec-text", "glove"])
@pytest.mark.parametrize("to", ["word2vec", "word2vec-text", "glove", "fasttext"])
@pytest.mark.parametrize("packed", ["", ".gz"], ids=["", "gz"])
def test_gensim_reads_what_any_source_becomes(plain, kind: str, to: str, packed: str, tmp_path) -> None:
    dest = tmp_path / f"dest.x{packed}"
    done = convert_vectors(saved(plain, kind, tmp_path), dest, to=to)
    assert (done.format, done.words, done.dim) == (to, V, D)
    if not (packed and to == "fasttext"):  # which gensim says it reads, and does not
        theirs = gensims(dest, to)
        assert theirs.index_to_key == WORDS
        for word in WORDS:
            assert np.array_equal(theirs[word], plain[word])
    assert load_vectors(dest).vectors.tobytes() == plain.vectors.tobytes()
    assert ("n-grams" in " ".join(done.notes)) == (to == "fasttext")


@pytest.mark.parametrize("to", ["word2vec", "word2vec-text", "glove"])
def test_n_grams_are_not_lost_in_silence(fasttext, to: str, tmp_path) -> None:
    save_vectors(fasttext, tmp_path / "source")
    done = convert_vectors(tmp_path / "source", tmp_path / "dest.x", to=to)
    assert any("n-grams are left out (70 rows)" in note for note in done.notes)
    assert any("the counts of words" in note for note in done.notes)
    theirs = gensims(tmp_path / "dest.x", to)
    for word in WORDS:
        assert np.array_equal(theirs[word], fasttext[word])


def test_fasttext_vectors_stay_whole_in_fasttexts_format_and_back(fasttext, tmp_path) -> None:
    save_vectors(fasttext, tmp_path / "source")
    done = convert_vectors(tmp_path / "source", tmp_path / "dest.bin")
    assert done.format == "fasttext"
    assert len(done.notes) == 1
    assert "the output matrix is zeros: the source has none" in done.notes[0]
    theirs = gensims(tmp_path / "dest.bin", "fasttext")
    for word in [*WORDS, "never", "seen"]:
        np.testing.assert_allclose(theirs[word], fasttext[word], rtol=1e-5, atol=1e-6)
    assert [theirs.get_vecattr(word, "count") for word in WORDS] == fasttext.counts.tolist()
    back = convert_vectors(tmp_path / "dest.bin", tmp_path / "back")
    assert (back.format, back.notes) == ("folder", [])
    wv = load_vectors(tmp_path / "back")
    assert wv.subwords == fasttext.subwords
    for name in ("vectors_vocab", "vectors_ngrams", "counts"):
        assert np.array_equal(getattr(wv, name), getattr(fasttext, name))


def run(fasttext, folder: Path, *, tree: bool = False, inputs=None) -> np.ndarray:
    """A run's folder as training leaves it; returns the output vectors in its checkpoint."""
    save_vectors(fasttext, folder)
    vectors = {"architecture": "cbow", "hierarchical_softmax": tree, "window": 7, "epochs": 3, "negative": 4}
    recipe = {"vectors": {**vectors, "sample": 0.001}, "words": {"min_count": 2}}
    (folder / "recipe.toml").write_text(tomli_w.dumps(recipe))
    outputs = np.random.default_rng(2).normal(size=(V - tree, D)).astype(np.float32)
    (folder / "checkpoints").mkdir()
    if inputs is None:
        inputs = np.concatenate([fasttext.vectors_vocab, fasttext.vectors_ngrams])
    save_file({"inputs": inputs, "outputs": outputs}, folder / "checkpoints" / "vectors.safetensors")
    return outputs


@pytest.mark.parametrize(("constants", "sample"), [(None, 1e-3), ("word2vec.c", 1e-3), ("fasttext", 1e-4)])
def test_a_threshold_that_the_recipe_leaves_to_its_constants(fasttext, tmp_path, constants, sample) -> None:
    run(fasttext, tmp_path / "run")
    recipe = tomllib.loads((tmp_path / "run" / "recipe.toml").read_text())
    del recipe["vectors"]["sample"]
    recipe["vectors"] |= {} if constants is None else {"constants": constants}
    (tmp_path / "run" / "recipe.toml").write_text(tomli_w.dumps(recipe))
    convert_vectors(tmp_path / "run", tmp_path / "dest.bin")
    assert load_fasttext(tmp_path / "dest.bin").args.sample == sample
    resolved = VectorSettings(**({} if constants is None else {"constants": constants})).resolved()
    assert resolved.sample == sample


def test_a_runs_output_matrix_and_settings_go_with_it(fasttext, tmp_path) -> None:
    outputs = run(fasttext, tmp_path / "run")
    done = convert_vectors(tmp_path / "run", tmp_path / "dest.bin")
    assert done.notes == ["the output matrix is the run's, from checkpoints/vectors.safetensors"]
    model = load_fasttext(tmp_path / "dest.bin")
    assert np.array_equal(model.output_matrix, outputs)
    args = model.args
    assert (args.model, args.loss, args.window, args.epochs) == ("cbow", "ns", 7, 3)
    assert (args.negative, args.sample, args.min_count) == (4, 0.001, 2)
    theirs = pytest.importorskip("gensim.models").fasttext.load_facebook_model(str(tmp_path / "dest.bin"))
    assert np.array_equal(theirs.syn1neg, outputs)
    assert (theirs.sg, theirs.window) == (0, 7)


def test_the_tree_predicts_the_same_word_by_fasttexts_signs(fasttext, tmp_path) -> None:
    outputs = run(fasttext, tmp_path / "run", tree=True)
    convert_vectors(tmp_path / "run", tmp_path / "dest.bin")
    model = load_fasttext(tmp_path / "dest.bin")
    assert model.args.loss == "hs"
    starts, nodes, codes = huffman(fasttext.counts)
    x = np.random.default_rng(3).normal(size=D)

    def logs(scores):  # log sigmoid
        return -np.logaddexp(0, -scores)

    for word in range(V):
        path = slice(starts[word], starts[word + 1])
        code = codes[path].astype(float)
        ours = logs((1 - 2 * code) * (outputs[nodes[path]] @ x)).sum()  # as training has it, and word2vec
        fasttexts = logs((2 * code - 1) * (model.output_matrix[nodes[path]] @ x)).sum()
        assert fasttexts == pytest.approx(ours)


def test_a_checkpoint_of_other_vectors_is_not_taken(fasttext, tmp_path) -> None:
    run(fasttext, tmp_path / "run", inputs=np.ones((V + BUCKETS, D), np.float32))
    done = convert_vectors(tmp_path / "run", tmp_path / "dest.bin")
    assert "belongs to other vectors" in done.notes[0]
    assert not load_fasttext(tmp_path / "dest.bin").output_matrix.any()


def test_a_model_of_fasttexts_own_keeps_everything(tmp_path) -> None:
    model = small(V=5, L=3)
    save_fasttext(model, tmp_path / "source.bin")
    done = convert_vectors(tmp_path / "source.bin", tmp_path / "dest.bin")
    assert (done.format, done.notes) == ("fasttext", [])
    assert (tmp_path / "dest.bin").read_bytes() == (tmp_path / "source.bin").read_bytes()
    done = convert_vectors(tmp_path / "source.bin", tmp_path / "dest.vec")
    assert "3 labels and their rows are left out" in done.notes[0]


def test_nothing_is_overwritten_unasked(plain, tmp_path) -> None:
    source, dest = saved(plain, "folder", tmp_path), tmp_path / "dest.txt"
    dest.write_text("mine")
    with pytest.raises(VectorError, match="exists already"):
        convert_vectors(source, dest)
    assert dest.read_text() == "mine"
    assert convert_vectors(source, dest, force=True).format == "word2vec-text"
    with pytest.raises(VectorError, match="is the source"):
        convert_vectors(dest, dest, force=True)
    with pytest.raises(VectorError, match="is a file"):
        convert_vectors(source, dest, to="folder", force=True)
    with pytest.raises(VectorError, match="is a folder"):
        convert_vectors(dest, source, to="glove", force=True)


def test_the_words_of_a_model_stand_without_their_spaces(tmp_path) -> None:
    from wordloom.models import LlamaConfig, build
    from wordloom.text import Tokenizer
    from wordloom.weights import save_model

    tokenizer = Tokenizer.train(["the king and the queen " * 20], kind="bpe", vocab_size=270)
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size, dim=16, n_layers=1, n_heads=2, n_kv_heads=2, hidden_dim=16,
        max_seq_len=16,
    )  # fmt: skip
    save_model(build(config), tmp_path / "model", tokenizer=tokenizer)
    done = convert_vectors(tmp_path / "model", tmp_path / "dest.bin")
    assert done.format == "word2vec"
    assert "lose their spaces" in done.notes[0]
    theirs = gensims(tmp_path / "dest.bin", "word2vec")
    assert done.words == len(theirs) == len(open_vectors(tmp_path / "model").words())
    assert np.array_equal(theirs["the"], open_vectors(tmp_path / "model").words()["the"])
    kept = convert_vectors(tmp_path / "model", tmp_path / "folder")
    assert kept.notes == []
    assert load_vectors(tmp_path / "folder").index_to_key == open_vectors(tmp_path / "model").index_to_key


@pytest.mark.parametrize("name", ["dest.txt", "dest.npz", "taken.txt", "folder"])
def test_a_source_that_is_not_there_is_what_is_said(name: str, tmp_path) -> None:
    (tmp_path / "taken.txt").write_text("mine")
    (tmp_path / "folder").mkdir()
    with pytest.raises(VectorError, match=r"nosuch' does not exist; give a file or folder of vectors"):
        convert_vectors(tmp_path / "nosuch", tmp_path / name)


@pytest.mark.parametrize("name", ["dest.npz", "dest.bin.zip", "dest.gz"])
def test_a_name_that_says_no_format_is_refused(plain, name: str, tmp_path) -> None:
    with pytest.raises(VectorError, match="--to folder"):
        convert_vectors(saved(plain, "folder", tmp_path), tmp_path / name)
    with pytest.raises(VectorError, match="did you mean 'glove'"):
        convert_vectors(saved(plain, "folder", tmp_path), tmp_path / name, to="glowe")


def test_a_word_that_a_format_cannot_keep_leaves_no_file(tmp_path) -> None:
    save_vectors(KeyedVectors(["new york"], np.ones((1, 2), np.float32)), tmp_path / "source")
    with pytest.raises(VectorError, match="new york"):
        convert_vectors(tmp_path / "source", tmp_path / "dest.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
    assert json.loads((tmp_path / "source" / "vectors.json").read_text())["words"] == 1
