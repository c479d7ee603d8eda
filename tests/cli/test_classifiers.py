"""`wordloom train`, `evaluate`, `predict` and `inspect` on a classifier, as a user runs them."""

from __future__ import annotations

import json

import pytest
from scipy.sparse import load_npz
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.data.rows.labelled import labelled_rows
from wordloom.errors import CheckpointError, DataError, WordloomError
from wordloom.run import TextClassifier, load_as

TRAIN = (
    "a fine film\tgood\na dull film\tbad\nfine and warm\tgood\ndull and cold\tbad\nwarm\tgood\ncold\tbad\n"
)
DEV = "fine\tgood\ndull\tbad\na cold film\tbad\nwarm but dull, dull\tgood\n"
RECIPE = """
[data]
train = "{folder}/train.tsv"
validation = "{folder}/dev.tsv"
text_column = 1
label_column = 2
[tokenizer]
kind = "word"
[model]
family = "bag_of_words"
[train]
steps = 20
objective = "classification"
optimizer = "lbfgs"
l2 = 1e-2
device = "cpu"
"""


def run(*arguments, text: str | None = None):
    return CliRunner().invoke(
        app, [str(a) for a in arguments], catch_exceptions=False, env={"COLUMNS": "80"}, input=text
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The rows, the recipe, and the run in ``run``."""
    folder = tmp_path_factory.mktemp("classifier")
    (folder / "train.tsv").write_text(TRAIN)
    (folder / "dev.tsv").write_text(DEV)
    (folder / "bag.toml").write_text(RECIPE.format(folder=folder))
    result = run("train", folder / "bag.toml", "--out", folder / "run")
    assert result.exit_code == 0
    assert "words; labels: bad 3, good 3" in result.stderr
    assert f"wordloom predict {folder / 'run'} FILE" in result.stderr.replace("\n", "")
    assert f"wordloom serve {folder / 'run'}" in result.stderr.replace("\n", "")
    return folder


def test_evaluate_without_a_file_takes_the_recipes_validation_rows(folder):
    printed = json.loads(run("evaluate", folder / "run", "--json").stdout)
    scores = {score["name"]: score for score in printed["scores"]}
    assert printed["task"] == "classification"
    assert printed["counts"]["rows"] == 4
    assert scores["accuracy"]["value"] == 0.75
    assert scores["accuracy"]["interval"][0] < 0.75 < scores["accuracy"]["interval"][1]
    assert scores["macro_f1"]["value"] == pytest.approx((2 * 2 / 5 + 2 * 1 / 3) / 2)
    assert scores["accuracy"]["signature"].startswith("accuracy|rows:")
    people = run("evaluate", folder / "run").stdout
    assert "0.7500" in people
    assert "good: 1 of 2 found, 1 predicted" in people


def test_of_rows_of_one_text_one_column_is_read(folder, tmp_path):
    (tmp_path / "rows.tsv").write_text("one\ttwo\nfine\tdull\n")
    columns = ("--text-column", "one", "--text-column", "two")
    refused = run("predict", folder / "run", tmp_path / "rows.tsv", *columns)
    assert refused.exit_code == 2
    assert "reads rows of one text, and 2 columns are given" in " ".join(refused.stderr.split())
    assert run("predict", folder / "run", tmp_path / "rows.tsv", *columns[:2]).exit_code == 0


def test_evaluate_a_file_by_its_columns(folder, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('Sentence,Class\nfine,good\n"dull, dull",bad\n')
    columns = ("--text-column", "Sentence", "--label-column", "Class")
    printed = json.loads(run("evaluate", folder / "run", path, *columns, "--json").stdout)
    assert (printed["counts"]["rows"], printed["scores"][0]["value"]) == (2, 1.0)
    numbered = ("--text-column", 1, "--label-column", 2, "--header")
    assert (
        json.loads(run("evaluate", folder / "run", path, *numbered, "--json").stdout)["counts"]["rows"] == 2
    )
    with pytest.raises(DataError, match=r":1: the first row looks like the names of the columns"):
        run("evaluate", folder / "run", path)
    with pytest.raises(DataError, match=r":1: no column 'text'"):
        run("evaluate", folder / "run", path, "--text-column", "text")
    path.write_text("text,label\nfine,great\n")
    with pytest.raises(DataError, match=r":2, column 'label': the label 'great' was not seen"):
        run("evaluate", folder / "run", path, "--label-column", "label")


def test_evaluate_draws_what_is_taken_for_what(folder, tmp_path):
    path = tmp_path / "confusion.svg"
    printed = json.loads(run("evaluate", folder / "run", "--plot", path, "--json").stdout)
    assert printed["confusion"] == {"labels": ["bad", "good"], "counts": [[2, 0], [1, 1]]}
    assert "3 of 4 correct (75.0%)" in path.read_text()
    with pytest.raises(WordloomError, match=r"'x\.gif' has no ending that names a picture format"):
        run("evaluate", folder / "run", "--plot", "x.gif")


def test_a_list_of_texts_has_its_name_for_a_label(folder, tmp_path):
    (tmp_path / "good.txt").write_text("fine\nwarm\n")
    (tmp_path / "bad.txt").write_text("dull\n")
    printed = json.loads(run("evaluate", folder / "run", tmp_path, "--label-column", "file", "--json").stdout)
    assert (printed["counts"]["rows"], printed["scores"][0]["value"]) == (3, 1.0)


def test_evaluate_refuses_what_does_nothing(folder):
    with pytest.raises(WordloomError, match="scored on labelled rows: leave out --window, --field"):
        run("evaluate", folder / "run", folder / "dev.tsv", "--window", 8, "--field", "x")
    with pytest.raises(WordloomError, match="says what to read and how: leave out --text-column"):
        run("evaluate", folder / "run", "--text-column", "x")


def test_predict_answers_line_by_line(folder, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("a fine film\n\na dull one\n")
    classifier = load_as(TextClassifier, folder / "run")
    expected = classifier.predict(["a fine film", "", "a dull one"])
    lines = run("predict", folder / "run", path).stdout.splitlines()
    assert lines == [f"{p.label}\t{p.probability:.4f}" for p in expected]
    assert [line.split("\t")[0] for line in lines][::2] == ["good", "bad"]
    assert run("predict", folder / "run", text="a fine film\n").stdout == lines[0] + "\n"
    printed = [
        json.loads(line) for line in run("predict", folder / "run", path, "--json").stdout.splitlines()
    ]
    assert [fact["text"] for fact in printed] == ["a fine film", "", "a dull one"]
    assert printed[0]["label"] == "good"
    assert printed[0]["probability"] == printed[0]["probabilities"]["good"]
    assert sum(printed[0]["probabilities"].values()) == pytest.approx(1.0)


def test_predict_is_for_classifiers(folder, tmp_path):
    from wordloom.models import LlamaConfig, build
    from wordloom.weights import save_model

    save_model(build(LlamaConfig(vocab_size=9, max_seq_len=8, dim=8, n_layers=1, n_heads=2)), tmp_path / "lm")
    with pytest.raises(CheckpointError, match="holds a causal language model, which predicts no labels"):
        run("predict", tmp_path / "lm", text="x\n")
    with pytest.raises(CheckpointError, match=r"needs a causal language model; try `wordloom predict"):
        run("generate", folder / "run", "--prompt", "x")


def test_inspect_shows_the_words_and_the_parameters(folder):
    words = json.loads(run("inspect", folder / "run", "top-words", "--top-k", 2, "--json").stdout)
    assert {label: [word for word, _ in found] for label, found in words.items()} == {
        label: [word for word, _ in found]
        for label, found in load_as(TextClassifier, folder / "run").top_words(2).items()
    }
    assert {word for word, _ in words["bad"]} == {"dull", "cold"}
    people = run("inspect", folder / "run", "top-words").stdout
    assert "dull" in people
    assert "weight" in people
    table = run("inspect", folder / "run").stdout
    n = len(load_as(TextClassifier, folder / "run").vectorizer)
    assert f"{2 * n + 2}" in table
    assert "labels: bad, good" in table
    assert json.loads(run("inspect", folder / "run", "--json").stdout)["total"] == 2 * n + 2
    for view, option in (("top-words", "--prompt"), ("parameters", "--top-k")):
        assert f"No such option: {option}" in run("inspect", folder / "run", view, option, 3).stderr


def test_what_predict_prints_for_labelled_rows_is_what_evaluate_counts(folder, tmp_path):
    rows = list(labelled_rows(folder / "dev.tsv", text=1, label=2))
    path = tmp_path / "texts.txt"
    path.write_text("".join(row.texts[0] + "\n" for row in rows))
    found = [line.split("\t")[0] for line in run("predict", folder / "run", path).stdout.splitlines()]
    right = sum(label == row.label for label, row in zip(found, rows, strict=True))
    assert json.loads(run("evaluate", folder / "run", "--json").stdout)["counts"]["right"] == right


def test_embed_makes_the_rows_that_the_classifier_weighs(folder, tmp_path):
    (tmp_path / "t.txt").write_text("a fine film\nzebra\ncold, dull\n")
    run("embed", folder / "run", tmp_path / "t.txt", "--out", tmp_path / "rows.npz")
    expected = load_as(TextClassifier, folder / "run").vectorize(["a fine film", "zebra", "cold, dull"])
    assert expected.nnz == 5
    assert abs(load_npz(tmp_path / "rows.npz") - expected).max() == 0
