"""Texts become the words that a run made of its own."""

from __future__ import annotations

import json

import numpy as np
import pytest

from wordloom.errors import VectorError
from wordloom.run.vectors.train import train_vectors
from wordloom.vectors import (
    KeyedVectors,
    TextEmbedder,
    WordRule,
    convert_vectors,
    load_vectors,
    save_vectors,
    save_word2vec,
    word_rule,
)

TEXT = "We saw New York , not York alone\nIn New York we saw the Old Town\n" * 30
ASKED = "New York new-york!"
RULES = {  # settings of the run, and what ASKED becomes
    "cased": ({"lower": False}, ["New", "York", "new", "york"]),
    "whitespace": ({"split": "whitespace", "lower": True}, ["new", "york", "new-york!"]),
    "phrases": ({"phrases": 1, "phrase_threshold": 0.1}, ["new_york", "new_york"]),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A small run of each kind."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORDLOOM_CACHE", str(folder / "cache"))
        for name, (words, _) in RULES.items():
            recipe = {"name": name, "data": {"train": str(folder / "text.txt")}, "words": words}
            vectors = {"dim": 4, "epochs": 1, "threads": 1, "device": "cpu"}
            train_vectors({**recipe, "vectors": vectors}, out=folder / name)
    return folder


@pytest.mark.parametrize(("name", "words"), [(name, words) for name, (_, words) in RULES.items()])
def test_the_rule_of_a_run_and_of_what_it_is_converted_to(runs, tmp_path, name, words):
    rule = word_rule(runs / name)
    assert rule is not None
    assert rule(ASKED) == words
    convert_vectors(runs / name, tmp_path / "copy")
    again = word_rule(tmp_path / "copy")
    assert again is not None
    assert (again(ASKED), str(again)) == (words, str(rule))
    wv = load_vectors(tmp_path / "copy")
    known = [wv[word] for word in words if word in wv]
    assert known
    assert np.allclose(TextEmbedder(wv, split=again).encode(ASKED), np.mean(known, axis=0), atol=1e-6)


def test_where_nothing_says_how_words_were_made(tmp_path):
    wv = KeyedVectors(["a"], np.ones((1, 2), np.float32))
    save_word2vec(wv, tmp_path / "a.bin")
    save_vectors(wv, tmp_path / "folder")
    assert word_rule(tmp_path / "a.bin") is None
    assert word_rule(tmp_path / "folder") is None
    convert_vectors(tmp_path / "a.bin", tmp_path / "other")
    assert word_rule(tmp_path / "other") is None


def test_vectors_that_replace_a_runs_have_their_own_rule(runs, tmp_path):
    save_word2vec(KeyedVectors(["a"], np.ones((1, 2), np.float32)), tmp_path / "a.bin")
    convert_vectors(runs / "cased", tmp_path / "run")
    (tmp_path / "run" / "recipe.toml").write_bytes((runs / "phrases" / "recipe.toml").read_bytes())
    assert str(word_rule(tmp_path / "run")) == "split 'words', case kept"
    convert_vectors(tmp_path / "a.bin", tmp_path / "run", to="folder", force=True)
    assert word_rule(tmp_path / "run") is None


def test_a_rule_of_ones_own():
    assert WordRule()("A New-York") == ["a", "new", "york"]
    assert str(WordRule(lower=False)) == "split 'words', case kept"


def test_a_damaged_rule_is_told(runs, tmp_path):
    convert_vectors(runs / "phrases", tmp_path / "copy")
    (tmp_path / "copy" / "phrases.json").unlink()
    with pytest.raises(VectorError, match=r"settings for splitting text in .* are damaged"):
        word_rule(tmp_path / "copy")
    about = json.loads((tmp_path / "copy" / "vectors.json").read_text())
    del about["word_rule"]["lower"]
    (tmp_path / "copy" / "vectors.json").write_text(json.dumps(about))
    with pytest.raises(VectorError, match="are damaged"):
        word_rule(tmp_path / "copy")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("words = ")
    with pytest.raises(VectorError, match="are damaged"):
        word_rule(tmp_path / "run")
