"""`wordloom vectors` and `wordloom embed` as a user runs them; gensim's answers on the same vectors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.errors import DataError, VectorError, WordloomError
from wordloom.models import LlamaConfig, build
from wordloom.text import Tokenizer
from wordloom.vectors import KeyedVectors, TextEmbedder, UnknownWordError, open_vectors, save_word2vec
from wordloom.weights import save_model

WORDS = [
    "king",
    "queen",
    "man",
    "woman",
    "boy",
    "girl",
    "prince",
    "princess",
    "apple",
    "pear",
    "plum",
    "fruit",
    "newborn",
    "human",
    "year-old",
]


@pytest.fixture(scope="module")
def wv():
    rng = np.random.default_rng(0)
    return KeyedVectors(WORDS, (rng.normal(size=(15, 8)) * rng.uniform(0.5, 2, (15, 1))).astype(np.float32))


@pytest.fixture(scope="module")
def vectors(wv, tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "words.bin"
    save_word2vec(wv, path)
    return path


@pytest.fixture(scope="module")
def gensims(vectors):
    models = pytest.importorskip("gensim.models")
    return models.KeyedVectors.load_word2vec_format(str(vectors), binary=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    text = "the king and the queen. A king is making kings\n" * 20
    tokenizer = Tokenizer.train([text], kind="bpe", vocab_size=300)
    shape = {"max_seq_len": 32, "dim": 24, "n_layers": 1, "n_heads": 4, "hidden_dim": 40}
    config = LlamaConfig(vocab_size=tokenizer.vocab_size, **shape)
    save_model(build(config, generator=torch.Generator().manual_seed(0)), folder, tokenizer=tokenizer)
    return folder


def run(*arguments, columns="100", **more):
    command = [str(argument) for argument in arguments]
    return CliRunner().invoke(app, command, catch_exceptions=False, env={"COLUMNS": columns}, **more)


def answers(*arguments):
    command, *rest = arguments
    printed = json.loads(run("vectors", command, "--json", *rest).stdout)
    return {answer["word"]: answer["score"] for answer in printed["answers"]}


# -- similar, analogy, dot ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "positive", "negative"),
    [
        (["king"], ["king"], []),
        (["king", "queen"], ["king", "queen"], []),
        (["king", "-man", "+woman"], ["king", "woman"], ["man"]),
        (["king", "-", "man", "+", "woman"], ["king", "woman"], ["man"]),
        (["king - man + woman"], ["king", "woman"], ["man"]),
        (["--positive", "king", "--positive", "woman", "--negative", "man"], ["king", "woman"], ["man"]),
        (["king", "--negative", "year-old"], ["king"], ["year-old"]),
        (["2*king", "-0.5*man"], [("king", 2.0)], [("man", -0.5)]),
        (["--", "king", "-man"], ["king"], ["man"]),
        (["-man", "king", "--restrict-vocab=15", "-boy"], ["king"], ["man", "boy"]),
        (["king", "--json", "-year-old", "--restrict-vocab", 15], ["king"], ["year-old"]),
    ],
)
def test_similar_words_are_gensims(vectors, gensims, written, positive, negative):
    expected = dict(gensims.most_similar(positive=positive, negative=negative, topn=5))
    assert answers("similar", vectors, "--top-k", 5, *written) == pytest.approx(expected, abs=1e-6)


def test_similar_words_by_other_measures(vectors, wv, gensims):
    plain = wv.vectors[:6] @ wv["king"]
    found = answers("similar", vectors, "king", "--dot", "--restrict-vocab", 6)
    assert found == pytest.approx(dict(zip(WORDS[1:6], plain[1:].tolist(), strict=True)), abs=1e-6)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    restricted = dict(gensims.most_similar("king", topn=10, restrict_vocab=4))
    assert answers("similar", vectors, "king", "--restrict-vocab", 4) == pytest.approx(restricted, abs=1e-6)


def test_analogies_are_gensims(vectors, gensims):
    expected = dict(gensims.most_similar(positive=["king", "woman"], negative=["man"], topn=3))
    for written in (["king", "man", "woman"], ["king", "-man", "+woman"], ["king - man + woman"]):
        found = answers("analogy", vectors, *written, "--top-k", 3)
        assert found == pytest.approx(expected, abs=1e-6)
    expected = dict(gensims.most_similar_cosmul(positive=["king", "woman"], negative=["man"], topn=3))
    found = answers("analogy", vectors, "king", "man", "woman", "--top-k", 3, "--cosmul")
    assert found == pytest.approx(expected, rel=1e-4)
    with pytest.raises(VectorError, match="a sum with signs, not 2 words"):
        run("vectors", "analogy", vectors, "king", "man")
    with pytest.raises(VectorError, match="takes no weights"):
        run("vectors", "analogy", vectors, "2*king", "-man", "--cosmul")


def test_answers_for_people(vectors):
    said = run("vectors", "analogy", vectors, "king", "man", "woman", "--top-k", 2).stdout
    assert "king - man + woman" in said
    assert (
        len([line for line in said.splitlines() if line.strip().split(" ")[0] in WORDS]) == 3
    )  # the heading


def test_dot_products(vectors, wv):
    printed = json.loads(run("vectors", "dot", vectors, "king", "apple", "girl", "--json").stdout)
    assert [tuple(pair["words"]) for pair in printed["pairs"]] == list(
        combinations(["king", "apple", "girl"], 2)
    )
    for pair in printed["pairs"]:
        a, b = (wv[word].astype(np.float64) for word in pair["words"])
        assert pair["dot"] == pytest.approx(a @ b, abs=1e-5)
        assert pair["cosine"] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)
        assert printed["lengths"][pair["words"][0]] == pytest.approx(np.linalg.norm(a), abs=1e-5)
    people = run("vectors", "dot", vectors, "king", "apple").stdout
    assert f"{wv['king'] @ wv['apple']:.4f}" in people
    assert f"{wv.similarity('king', 'apple'):.4f}" in people
    with pytest.raises(VectorError, match="a dot product takes two words, not 1"):
        run("vectors", "dot", vectors, "king")


def test_a_model_is_asked_the_same_way(checkpoint):
    tokens = open_vectors(checkpoint)
    expected = dict(tokens.most_similar(" king", topn=4))
    assert answers("similar", checkpoint, "king", "--top-k", 4) == pytest.approx(expected)
    assert answers("similar", checkpoint, " king", "--top-k", 4) == pytest.approx(expected)
    head = dict(open_vectors(checkpoint, rows="head").most_similar(" king", topn=4))
    assert answers("similar", checkpoint, "king", "--top-k", 4, "--rows", "head") == pytest.approx(head)
    assert head != expected
    result = run("vectors", "similar", checkpoint, "king")
    assert "note: 'king' refers to the token ' king'; there is also '##king'" in result.stderr
    assert "' the'" in run("vectors", "similar", checkpoint, "king", "--top-k", len(tokens)).stdout
    assert "note" not in run("vectors", "similar", checkpoint, "' king'".strip("'")).stdout


# -- evaluate ----------------------------------------------------------------------------------------------


def test_evaluation_of_files(vectors, wv, tmp_path):
    questions = (
        ": royal\nking man queen woman\nking boy queen girl\n: gram1-odd\napple pear plum fruit\nx y z w\n"
    )
    (tmp_path / "q.txt").write_text(questions)
    (tmp_path / "p.tsv").write_text("king\tqueen\t9\nking\tapple\t1\npear\tplum\t7\nking\tunheardof\t3\n")
    command = ["evaluate", vectors, "--analogies", tmp_path / "q.txt", "--pairs", tmp_path / "p.tsv"]
    printed = json.loads(run("vectors", *command, "--json").stdout)
    expected = wv.evaluate_word_analogies(tmp_path / "q.txt")
    [found] = printed["analogies"].values()
    assert [s["correct"] for s in found["sections"]] == [len(s.correct) for s in expected.sections[:-1]]
    assert (found["asked"], found["skipped"]) == (3, 1)
    assert found["accuracy"] == expected.accuracy
    [pairs] = printed["pairs"].values()
    assert pairs["spearman"] == pytest.approx(wv.evaluate_word_pairs(tmp_path / "p.tsv").spearman[0])
    assert (pairs["compared"], pairs["oov"]) == (3, 0.25)
    people = run("vectors", *command).stdout
    for line in ("royal", "gram1-odd", "semantic", "syntactic", "all", "15 of 15 words used"):
        assert line in people
    alone = run("vectors", "evaluate", vectors, "--pairs", tmp_path / "p.tsv", "--case-sensitive").stdout
    assert "royal" not in alone
    assert "case sensitive" in alone


def test_evaluation_by_the_named_data_sets(tmp_path, monkeypatch):
    folder = os.environ.get("WORDLOOM_DATA")
    if not folder:
        pytest.skip("WORDLOOM_DATA is not set")
    words = (
        "boy girl brother sister king queen man woman tiger cat computer keyboard old new smart intelligent"
    )
    rng = np.random.default_rng(0)
    save_word2vec(KeyedVectors(words.split(), rng.normal(size=(16, 4))), tmp_path / "v.txt")
    printed = json.loads(run("vectors", "evaluate", tmp_path / "v.txt", "--json").stdout)
    assert list(printed["analogies"]) == ["questions-words"]
    assert len(printed["analogies"]["questions-words"]["sections"]) == 14
    assert printed["analogies"]["questions-words"]["asked"] == 12  # four pairs of the family section
    assert list(printed["pairs"]) == ["wordsim353", "simlex999"]
    save_word2vec(KeyedVectors(["boy", "girl"], np.eye(2)), tmp_path / "two.txt")
    few = json.loads(run("vectors", "evaluate", tmp_path / "two.txt", "--json").stdout)
    assert few["analogies"]["questions-words"]["accuracy"] is None
    assert few["pairs"] == {}
    assert len(few["notes"]) == 2
    assert "pairs have vectors, and two are needed" in few["notes"][0]
    with pytest.raises(VectorError, match="pairs have vectors, and two are needed"):
        run("vectors", "evaluate", tmp_path / "two.txt", "--pairs", "simlex999")
    monkeypatch.delenv("WORDLOOM_DATA")
    with pytest.raises(DataError, match=r"run `wordloom data fetch google-analogies`"):
        run("vectors", "evaluate", tmp_path / "v.txt")
    with pytest.raises(DataError, match="no file and no data set 'simlex99'; did you mean 'simlex999'"):
        run("vectors", "evaluate", tmp_path / "v.txt", "--pairs", "simlex99")


def test_a_model_is_evaluated_on_whole_words(checkpoint, tmp_path):
    (tmp_path / "p.tsv").write_text("king\tqueen\t9\nking\tthe\t1\nqueen\tand\t2\n")
    printed = json.loads(
        run("vectors", "evaluate", checkpoint, "--pairs", tmp_path / "p.tsv", "--json").stdout
    )
    tokens = open_vectors(checkpoint)
    cosines = [
        tokens.similarity(*pair) for pair in ((" king", " queen"), (" king", " the"), (" queen", " and"))
    ]
    assert printed["pairs"][str(tmp_path / "p.tsv")]["pearson"] == pytest.approx(
        np.corrcoef(cosines, [9, 1, 2])[0, 1], abs=1e-5
    )


# -- neighbours, axis --------------------------------------------------------------------------------------


def test_neighbours_and_their_map(vectors, wv, tmp_path):
    printed = json.loads(
        run("vectors", "neighbours", vectors, "king", "apple", "--top-k", 3, "--json").stdout
    )
    for word in ("king", "apple"):
        found = {near["word"]: near["cosine"] for near in printed["neighbours"][word]}
        assert found == pytest.approx(dict(wv.most_similar(word, topn=3)))
        assert set(found) <= set(printed["points"])
    assert sum(printed["explained"]) < 1
    pytest.importorskip("matplotlib")
    for name in ("map.png", "map.svg"):
        result = run("vectors", "neighbours", vectors, "king", "apple", "--plot", tmp_path / name)
        assert f"plotted to {tmp_path / name}" in result.stderr
        assert (tmp_path / name).stat().st_size > 10_000
    pytest.importorskip("sklearn")
    command = ["neighbours", vectors, "king", "apple", "--method", "tsne", "--seed", 5, "--json"]
    drawn = json.loads(run("vectors", *command, "--plot", tmp_path / "t.png").stdout)
    assert drawn["explained"] is None
    assert drawn["plot"] == str(tmp_path / "t.png")
    assert drawn["points"] == json.loads(run("vectors", *command).stdout)["points"]


def test_axes(vectors, wv, tmp_path):
    command = ["axis", vectors, "boy", "girl", "apple", "--from", "king+man", "--to", "queen+woman"]
    printed = json.loads(run("vectors", *command, "--toward", "newborn,human", "--json").stdout)
    assert [axis["name"] for axis in printed["axes"]] == ["newborn", "human", "king + man → queen + woman"]
    unit = {word: wv.get_vector(word, norm=True) for word in WORDS}
    away = (unit["queen"] + unit["woman"] - unit["king"] - unit["man"]) / 2
    away /= np.linalg.norm(away)
    for row in printed["words"]:
        u = unit[row["word"]]
        assert row["cosines"] == pytest.approx([u @ unit["newborn"], u @ unit["human"], u @ away], abs=1e-6)
    people = run("vectors", *command).stdout.splitlines()
    values = [float(line.split()[1]) for line in people if line.split() and line.split()[0] in WORDS]
    assert values == sorted(values, reverse=True)
    assert len(values) == 3
    assert any("█" in line for line in people)
    pytest.importorskip("matplotlib")
    run("vectors", *command, "--plot", tmp_path / "axis.svg")
    assert "<svg" in (tmp_path / "axis.svg").read_text()


def test_mistaken_words_and_options(vectors, checkpoint, tmp_path):
    with pytest.raises(UnknownWordError, match=r"'qeen' is not in the vocabulary; did you mean 'queen'\?"):
        run("vectors", "similar", vectors, "qeen")
    with pytest.raises(VectorError, match="has no ending that names a picture format"):
        run("vectors", "neighbours", vectors, "king", "--plot", tmp_path / "map.gif")
    with pytest.raises(WordloomError, match="there is no map: leave out --method"):
        run("vectors", "neighbours", vectors, "king", "--method", "tsne")
    with pytest.raises(WordloomError, match="not random: leave out --seed"):
        run("vectors", "neighbours", vectors, "king", "--json", "--seed", 3)
    with pytest.raises(VectorError, match="not a model with head rows"):
        run("vectors", "similar", vectors, "king", "--rows", "head")
    with pytest.raises(VectorError, match="no word is given"):
        run("vectors", "similar", vectors)
    with pytest.raises(VectorError, match="the weight of 'king' is 0"):
        run("vectors", "similar", vectors, "0*king")
    for verb, options in (("similar", []), ("similar", ["--dot"]), ("analogy", [])):
        with pytest.raises(VectorError, match="'king - king' is the zero vector"):
            run("vectors", verb, vectors, "king - king", *options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["similar", "V", "king", "--topk", "5"], "did you mean --top-k"),
        (["similar", "V", "king", "--top-k", "-5"], "greater than or equal to 1, not '-5'"),
        (["similar", "V", "kign"], "did you mean 'king'?"),
        (["similar", "nowhere.bin", "king"], "cannot read 'nowhere.bin'"),
        (["analogy", "V"], "missing argument 'WORD...'"),
        (["axis", "V", "king", "--from", "man"], "1 axes have a start and 0 an end"),
    ],
)
def test_a_mistake_is_one_red_line(printed, vectors, arguments, says):
    arguments = [str(vectors) if argument == "V" else argument for argument in arguments]
    done = printed("vectors", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_vector_files_are_asked_and_drawn_without_torch(vectors, tmp_path):
    pytest.importorskip("matplotlib")
    code = (
        "import sys\nfrom wordloom.cli import app\n"
        f"app(['vectors', 'neighbours', {str(vectors)!r}, 'king', '--plot', {str(tmp_path / 'm.png')!r}],"
        " standalone_mode=False)\n"
        f"app(['embed', {str(vectors)!r}, '-'], standalone_mode=False)\n"
        "print('modules:', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, input="king queen\n", timeout=120
    )
    modules = done.stdout.partition("modules:")[2].split()
    assert "wordloom.inspect.vector_plots" in modules
    assert not {"torch", "numba", "sklearn", "matplotlib.pyplot", "gensim"} & set(modules), done.stderr


# -- embed -------------------------------------------------------------------------------------------------

TEXTS = ["The king, the queen", "", "an apple and a pear", "unheard of", "Girl or boy or girl"]


@pytest.fixture
def lines(tmp_path) -> Path:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    return tmp_path / "texts.txt"


@pytest.mark.parametrize("method", ["mean", "sum"])
def test_embedding_a_file(vectors, wv, lines, tmp_path, method):
    expected, _ = TextEmbedder(wv, method).encode_batch(TEXTS)
    command = ["embed", vectors, lines, "--method", method, "--batch-size", 2]
    result = run(*command, "--out", tmp_path / "e.npy")
    assert np.allclose(np.load(tmp_path / "e.npy"), expected, atol=1e-6)
    assert result.stdout == ""
    assert (
        "5 texts, 16 words, 9 of them unknown; rows of zeros for texts without known words" in result.stderr
    )
    assert "known words: 2, 4" in result.stderr
    assert f"5 vectors of 8 components written to {tmp_path / 'e.npy'}" in result.stderr
    printed = [json.loads(line) for line in run(*command).stdout.splitlines() if line.startswith("{")]
    assert [line["text"] for line in printed] == TEXTS
    assert np.allclose([line["embedding"] for line in printed], expected, atol=1e-6)
    run(*command, "--normalize", "--out", tmp_path / "e.tsv")
    units = np.loadtxt(tmp_path / "e.tsv", delimiter="\t")
    assert np.linalg.norm(units, axis=1) == pytest.approx([1, 0, 1, 0, 1], abs=1e-5)


def test_smooth_inverse_frequency_of_a_file(vectors, wv, lines, tmp_path):
    counts = {word: 100 - i for i, word in enumerate(WORDS)}
    (tmp_path / "counts.txt").write_text("".join(f"{word} {n}\n" for word, n in counts.items()))
    embedder = TextEmbedder(wv, "sif", a=0.01, frequencies=counts)
    embedder.fit(TEXTS)
    expected, _ = embedder.encode_batch(TEXTS)
    command = ["embed", vectors, "--method", "sif", "--a", 0.01, "--counts", tmp_path / "counts.txt"]
    keeping = [*command, lines, "--out", tmp_path / "e.npy", "--save-component", tmp_path / "c.npy"]
    assert "estimated" not in run(*keeping).stderr
    assert np.allclose(np.load(tmp_path / "e.npy"), expected, atol=1e-5)
    # standard input is read twice through a file of its own
    run(*command, "-", "--out", tmp_path / "stdin.npy", input=lines.read_text())
    assert np.array_equal(np.load(tmp_path / "stdin.npy"), np.load(tmp_path / "e.npy"))
    (tmp_path / "one.txt").write_text(TEXTS[0])
    for known in (["--component", tmp_path / "c.npy"], ["--fit-on", lines]):
        run(*command, tmp_path / "one.txt", *known, "--force", "--out", tmp_path / "one.npy")
        assert np.allclose(np.load(tmp_path / "one.npy"), expected[:1], atol=1e-5)
    plain = run("embed", vectors, lines, "--method", "sif")
    assert "frequencies are estimated from ranks, by Zipf's law" in plain.stderr


def test_a_models_tokens_embed_texts(checkpoint, tmp_path):
    (tmp_path / "t.txt").write_text("the king\n")
    run("embed", checkpoint, tmp_path / "t.txt", "--method", "mean", "--out", tmp_path / "e.npy")
    tokens = open_vectors(checkpoint)
    ids = tokens.tokenizer.encode_ids("the king")
    assert np.allclose(np.load(tmp_path / "e.npy")[0], tokens.vectors[ids].mean(axis=0), atol=1e-6)
    with pytest.raises(WordloomError, match="tokenizer splits the texts: leave out --cased"):
        run("embed", checkpoint, tmp_path / "t.txt", "--cased")


def test_mistakes_in_embedding(vectors, lines, tmp_path):
    with pytest.raises(WordloomError, match="--method mean uses no frequencies: leave out --a, --fit-on"):
        run("embed", vectors, lines, "--a", 0.1, "--fit-on", lines)
    with pytest.raises(WordloomError, match="exists; choose another name, or replace it with --force"):
        run("embed", vectors, lines, "--out", lines)
    assert lines.read_text().startswith("The king")
    with pytest.raises(VectorError, match=r"cannot hold vectors"):
        run("embed", vectors, lines, "--out", tmp_path / "e.csv")
    with pytest.raises(DataError, match=r"no file or named data set '.*none.txt'"):
        run("embed", vectors, tmp_path / "none.txt", "--out", tmp_path / "e.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]
