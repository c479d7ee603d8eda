"""The text of a run of word vectors: what divides it, and phrases joined while it is read."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from wordloom.data import prepare
from wordloom.data.files.source import Source
from wordloom.data.text.corpus import Corpus
from wordloom.recipe.vectors import load_vector_recipe
from wordloom.run.vectors import word_corpus as module
from wordloom.run.vectors.train import train_vectors
from wordloom.run.vectors.word_corpus import word_corpus
from wordloom.vectors import WordVocabulary, load_vectors
from wordloom.vectors.corpus import vocabulary
from wordloom.vectors.corpus.phrases import Phrases

PAGE = "a b\nc d\n\ne f\n***\nx\n"
SOURCE = Source(path="page.txt", name="page.txt", format="text")


def corpus_of(path, *overrides):
    return word_corpus(load_vector_recipe({"name": "t", "data": {"train": str(path)}}, overrides))


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("overrides", "texts"),
    [
        ([], ["ab", "cd", "ef", "x"]),
        (["data.separator=line"], ["ab", "cd", "ef", "x"]),
        (["data.separator=blank-line"], ["abcd", "efx"]),
        (["data.separator=file"], ["abcdefx"]),
        (["data.separator=***"], ["abcdef", "x"]),
        (["vectors.algorithm=fasttext-supervised"], ["abcdefx"]),  # its lines end in the middle of a text
    ],
)
def test_what_divides_a_text(tmp_path, overrides, texts):
    (tmp_path / "page.txt").write_text(PAGE)
    corpus = corpus_of(tmp_path / "page.txt", *overrides)
    shards = prepare(corpus, WordVocabulary(list("abcdefx"), [1] * 7), part="all", specials="text")
    spans = [shards.document_span(n) for n in range(len(shards.ends))]
    assert ["".join("abcdefx"[i] for i in shards.tokens(*span)) for span in spans] == texts
    joined = "".join(word for text in corpus.texts() for word in text.split() if word != "***")
    assert joined == "abcdefx"


@pytest.mark.parametrize(
    ("overrides", "separators"),
    [
        ([], ["***", "line"]),
        (["data.separator=file"], ["***", None]),
    ],
)
def test_a_data_set_is_divided_as_it_says_itself(monkeypatch, overrides, separators):
    found = [Source(path="a", name="a", format="text", separator="***"), SOURCE]
    monkeypatch.setattr(Corpus, "_training_files", found)
    assert [source.separator for source in corpus_of("any", *overrides).files()] == separators


def test_phrases_are_joined_as_in_the_whole_text(tmp_path, monkeypatch):
    """Cut after every few letters, and after lines: what divides texts divides phrases, nothing else does."""
    random = np.random.default_rng(0)
    words = [str(word) for word in random.choice(list("abcd"), 500)]
    (tmp_path / "text.txt").write_text(" ".join(words[:300]) + "\n" + " ".join(words[300:]))
    passes = [Phrases({("a", "b"): 1.0, ("c", "c"): 1.0}), Phrases({("a_b", "c_c"): 1.0, ("d", "a_b"): 1.0})]
    for separator, edges in (("file", [0, 500]), ("line", [0, 300, 500])):
        texts = [words[a:b] for a, b in pairwise(edges)]
        expected = [passes[1].join(passes[0].join(text)) for text in texts]
        known = WordVocabulary.count([" ".join(text) for text in texts], min_count=1, phrases=passes)
        for size in (7, 1 << 16):
            monkeypatch.setattr(module, "SEGMENT", size)
            monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / f"cache-{separator}-{size}"))
            corpus = corpus_of(tmp_path / "text.txt", f"data.separator={separator}")
            plain = corpus.part_fingerprint("all")
            corpus.phrases.extend(passes)
            assert corpus.part_fingerprint("all") != plain
            counted = WordVocabulary.count(corpus.texts(), min_count=1, split="whitespace", lower=False)
            assert (counted.words, counted.counts.tolist()) == (known.words, known.counts.tolist())
            shards = prepare(corpus, corpus.encoder(known), part="all", specials="text")
            spans = [shards.document_span(n) for n in range(len(shards.ends))]
            assert [[known.words[i] for i in shards.tokens(*span)] for span in spans] == expected


def test_no_text_is_held_whole_for_its_phrases(tmp_path, monkeypatch):
    """A file without a line end is the longest text there is."""
    (tmp_path / "text.txt").write_text("new york is new and old york is not new york " * 20_000)
    longest = []

    def split_words(text, **how):
        longest.append(len(text))
        return real(text, **how)

    real = vocabulary.split_words
    monkeypatch.setattr(vocabulary, "split_words", split_words)
    monkeypatch.setattr(module, "split_words", split_words)
    recipe = {
        "name": "t",
        "data": {"train": str(tmp_path / "text.txt"), "separator": "file"},
        "words": {"phrases": 2, "phrase_threshold": 1e-5},
        "vectors": {"dim": 8, "epochs": 1, "threads": 1, "device": "cpu"},
    }
    train_vectors(recipe, out=tmp_path / "run")
    assert any("new_york" in word for word in load_vectors(tmp_path / "run").index_to_key)
    assert max(longest) < 3 * module.SEGMENT


def test_a_file_is_there_until_it_is_not(tmp_path):
    names = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    for name in names:
        (tmp_path / name).write_text("word")
    corpus = corpus_of(tmp_path)
    assert corpus.has(names)
    (tmp_path / "a.txt").unlink()
    assert not corpus.has(names)
    (tmp_path / "b.txt").unlink()
    assert not corpus.has(names)
    assert not corpus_of("-").has(["-"])  # standard input is read once
