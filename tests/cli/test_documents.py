"""`wordloom vectors documents`, and `wordloom embed` by bags of words and as a run made its words."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.sparse import load_npz
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.data import DocumentBags
from wordloom.errors import CheckpointError, DataError, VectorError, WordloomError
from wordloom.text import Tokenizer
from wordloom.vectors import KeyedVectors, TextEmbedder, WordRule, save_vectors, save_word2vec

TEXTS = [
    "The film was slow and sad",
    "a warm film about love",
    "stocks fell on Monday",
    "",
    "Love, love, love: a film",
]


def run(*arguments, **more):
    command = [str(argument) for argument in arguments]
    return CliRunner().invoke(app, command, catch_exceptions=False, env={"COLUMNS": "100"}, **more)


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    return tmp_path / "texts.txt"


# -- documents ---------------------------------------------------------------------------------------------


def test_the_nearest_documents(lines):
    bags = DocumentBags.fit(TEXTS)
    asked = ["a film about LOVE", "zebra"]
    printed = json.loads(run("vectors", "documents", lines, *asked, "--top-k", 2, "--json").stdout)
    assert printed["documents"] == 5
    [films, zebras] = printed["answers"]
    assert films["text"] == asked[0]
    assert [near["text"] for near in films["nearest"]] == [TEXTS[1], TEXTS[4]]
    expected = bags.nearest(asked[0], 2)
    assert [(near["document"], near["cosine"]) for near in films["nearest"]] == [
        (near.index + 1, pytest.approx(near.similarity)) for near in expected
    ]
    assert zebras["nearest"] == []
    assert "'zebra' shares no word with any document" in printed["notes"]
    people = run("vectors", "documents", lines, *asked)
    assert f"{expected[0].similarity:.4f}" in people.stdout
    assert TEXTS[1] in people.stdout
    assert "5 documents, 16 words, features tfidf" in people.stderr
    assert "'zebra' shares no word" in people.stderr


def test_how_documents_are_counted(lines, tmp_path):
    (tmp_path / "t.tsv").write_text("".join(f"{text}\t1\n" for text in TEXTS))
    tokenizer = Tokenizer.train(TEXTS, kind="char")
    tokenizer.save_pretrained(tmp_path / "tokens")
    for given, source, settings in (
        (["--features", "counts", "--cased"], lines, {"features": "counts", "lower": False}),
        (
            ["--features", "binary", "--split", "whitespace"],
            lines,
            {"features": "binary", "split": "whitespace"},
        ),
        (["--max-ngram", 2, "--min-count", 2], lines, {"max_ngram": 2, "min_count": 2}),
        (["--tokenizer", tmp_path / "tokens"], lines, {"tokenizer": tokenizer}),
        (["--field", 1], tmp_path / "t.tsv", {}),
    ):
        printed = json.loads(run("vectors", "documents", source, "a film, Love", *given, "--json").stdout)
        found = [(near["document"], near["cosine"]) for near in printed["answers"][0]["nearest"]]
        expected = DocumentBags.fit(TEXTS, **settings).nearest("a film, Love")
        assert found == [(near.index + 1, pytest.approx(near.similarity)) for near in expected]
        assert len(found) > 1


def test_what_was_counted_is_kept(lines, tmp_path, monkeypatch):
    folder = tmp_path / "bags"
    kept = run("vectors", "documents", lines, "--out", folder)
    assert f"written to {folder}" in kept.stderr
    assert kept.stdout == ""
    fresh = json.loads(run("vectors", "documents", lines, "love", "--json").stdout)
    again = json.loads(run("vectors", "documents", folder, "love", "--json").stdout)
    assert again["answers"] == fresh["answers"]
    with pytest.raises(WordloomError, match="are counted already: leave out --features, --cased"):
        run("vectors", "documents", folder, "love", "--features", "counts", "--cased")
    with pytest.raises(CheckpointError, match="holds bags of words already"):
        run("vectors", "documents", lines, "--out", folder)
    run("vectors", "documents", lines, "--out", folder, "--force", "--features", "counts")
    assert DocumentBags.from_pretrained(folder).features == "counts"
    monkeypatch.chdir(folder)  # where the documents are is known from anywhere
    here = json.loads(run("vectors", "documents", ".", "love", "--json").stdout)
    assert here["answers"][0]["nearest"][0]["text"] == fresh["answers"][0]["nearest"][0]["text"]
    gone = lines.rename(tmp_path / "elsewhere.txt")
    left = json.loads(run("vectors", "documents", folder, "love", "--json").stdout)
    assert [near["text"] for near in left["answers"][0]["nearest"]] == [None, None]
    assert any("no longer at" in note for note in left["notes"])
    gone.rename(lines)
    lines.write_text("other texts\nabout love\n")
    with pytest.raises(DataError, match="have changed since they were counted; count again"):
        run("vectors", "documents", folder, "love")
    DocumentBags.fit(TEXTS).save_pretrained(tmp_path / "bare")  # nothing says where its texts are
    bare = json.loads(run("vectors", "documents", tmp_path / "bare", "love", "--json").stdout)
    assert [near["text"] for near in bare["answers"][0]["nearest"]] == [None, None]


def test_mistakes_in_asking_for_documents(lines, tmp_path):
    with pytest.raises(DataError, match="there is no query text"):
        run("vectors", "documents", lines)
    with pytest.raises(WordloomError, match="without --out nothing is written: leave out --force"):
        run("vectors", "documents", lines, "love", "--force")
    with pytest.raises(DataError, match="standard input only once; give a file"):
        run("vectors", "documents", "-", "love")
    with pytest.raises(DataError, match="half of a surrogate pair"):
        run("vectors", "documents", lines, "caf\udcff")
    with pytest.raises(DataError, match="is plain text, which has no fields"):
        run("vectors", "documents", lines, "love", "--field", "²")
    with pytest.raises(DataError, match=r"no file or named data set '.*none/x.txt'"):
        run("vectors", "documents", "none/x.txt", "love")
    with pytest.raises(WordloomError, match="the tokenizer splits texts: leave out --cased"):
        run("vectors", "documents", lines, "love", "--tokenizer", tmp_path, "--cased")


# -- embed by bags -----------------------------------------------------------------------------------------


def test_embedding_by_bags(lines, tmp_path):
    bags = DocumentBags.fit(TEXTS)
    bags.save_pretrained(tmp_path / "bags")
    (tmp_path / "new.txt").write_text("a sad film\nzebras\nlove stocks love\n")
    command = ["embed", tmp_path / "bags", tmp_path / "new.txt", "--batch-size", 2]
    said = run(*command, "--out", tmp_path / "new.npz")
    expected = bags.vectorize(["a sad film", "zebras", "love stocks love"])
    assert abs(load_npz(tmp_path / "new.npz") - expected).max() == 0
    assert (
        "3 texts, 7 words, 1 of them unknown; rows of zeros for texts without known words: 2" in said.stderr
    )
    assert f"3 rows of {len(bags.vectorizer)} words written to {tmp_path / 'new.npz'}" in said.stderr
    printed = [json.loads(line) for line in run(*command).stdout.splitlines() if line.startswith("{")]
    assert [line["text"] for line in printed] == ["a sad film", "zebras", "love stocks love"]
    assert printed[1]["words"] == {}
    assert printed[2]["words"] == pytest.approx(
        {term: expected[2, bags.vectorizer.ids[term]] for term in ("love", "stocks")}
    )
    run(*command, "--out", tmp_path / "new.jsonl")
    assert [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()] == printed
    DocumentBags.fit(TEXTS, features="counts").save_pretrained(tmp_path / "counts")
    counts = ["embed", tmp_path / "counts", tmp_path / "new.txt", "--normalize", "--out", tmp_path / "u.npz"]
    run(*counts)
    squares = load_npz(tmp_path / "u.npz").power(2).sum(axis=1)
    assert np.ravel(squares) == pytest.approx([1, 0, 1])
    (tmp_path / "none.txt").write_text("")
    run("embed", tmp_path / "bags", tmp_path / "none.txt", "--out", tmp_path / "none.npz")
    assert load_npz(tmp_path / "none.npz").shape == (0, len(bags.vectorizer))


def test_mistakes_in_embedding_by_bags(lines, tmp_path):
    DocumentBags.fit(TEXTS).save_pretrained(tmp_path / "bags")
    with pytest.raises(WordloomError, match="holds bags of words: leave out --method, --cased"):
        run("embed", tmp_path / "bags", lines, "--method", "sum", "--cased")
    with pytest.raises(
        VectorError, match=r"has an ending that cannot hold sparse rows.*allowed: \.npz, \.jsonl"
    ):
        run("embed", tmp_path / "bags", lines, "--out", tmp_path / "e.tsv")


# -- embed as a run made its words -------------------------------------------------------------------------

RECIPE = "[words]\nsplit = '{}'\nlower = {}\nphrases = {}\n"


@pytest.fixture
def cased(tmp_path):
    """Vectors of a run that kept case and joined phrases."""
    words = ["New", "new", "york", "York", "New_York", "york,", "love"]
    wv = KeyedVectors(words, np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32))
    save_vectors(wv, tmp_path / "run")
    (tmp_path / "run" / "recipe.toml").write_text(RECIPE.format("words", "false", 1))
    (tmp_path / "run" / "phrases.json").write_text('[[["New", "York", 12.5]]]')
    (tmp_path / "t.txt").write_text("New York, love new York\n")
    return wv


@pytest.mark.parametrize(
    ("given", "words", "says"),
    [
        ([], ["New_York", "love", "new", "York"], "run: split 'words', case kept, phrases joined"),
        (["--cased"], ["New_York", "love", "new", "York"], "run: split 'words', case kept, phrases joined"),
        (["--no-phrases"], ["New", "York", "love", "new", "York"], "joined): split 'words', case kept"),
        (["--uncased"], ["new", "york", "love", "new", "york"],
         "run (split 'words', case kept, phrases joined): split 'words', lower case, phrases joined"),
        (["--split", "whitespace", "--uncased", "--no-phrases"], ["new", "york,", "love", "new", "york"],
         "joined): split 'whitespace', lower case"),
    ],
)  # fmt: skip
def test_texts_become_words_as_the_run_made_them(cased, tmp_path, given, words, says):
    result = run("embed", tmp_path / "run", tmp_path / "t.txt", "--out", tmp_path / "e.npy", *given)
    assert np.allclose(np.load(tmp_path / "e.npy")[0], cased[words].mean(axis=0), atol=1e-6)
    [told] = [line for line in result.stderr.splitlines() if "split as in" in line]
    assert told.endswith(says)


def test_of_a_file_words_are_lower_case_and_nothing_is_told(cased, tmp_path):
    save_word2vec(cased, tmp_path / "v.bin")
    result = run("embed", tmp_path / "v.bin", tmp_path / "t.txt", "--out", tmp_path / "e.npy")
    expected = TextEmbedder(cased, split=WordRule()).encode("new york love new york")
    assert np.allclose(np.load(tmp_path / "e.npy")[0], expected, atol=1e-6)
    assert "split as in" not in result.stderr
    with pytest.raises(WordloomError, match="has no phrases: leave out --no-phrases"):
        run("embed", tmp_path / "v.bin", tmp_path / "t.txt", "--no-phrases")


def test_one_text_has_nothing_to_share(cased, tmp_path):
    with pytest.raises(VectorError, match="nothing for one text with a known word"):
        run("embed", tmp_path / "run", tmp_path / "t.txt", "--method", "sif", "--out", tmp_path / "e.npy")
    assert not (tmp_path / "e.npy").exists()
