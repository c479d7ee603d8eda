"""Columns of tables: those of the run by default, one option in every verb, and header rows."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from pyarrow import parquet
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.errors import DataError, WordloomError
from wordloom.models import BertConfig, TaskConfig, build
from wordloom.run.models.sentence_folder import SentenceSettings, pooling_files
from wordloom.text import Tokenizer
from wordloom.weights import save_model

TEXTS = ["a fine film", "a dull film", "fine and warm", "dull and cold", "so warm", "so cold"]
LABELS = ["good", "bad", "good", "bad", "good", "bad"]
# columns called "text" and "label" hold something else
TABLE = "text,label,body,gold\n" + "".join(
    f'{other},{"good" if n < 4 else "bad"},"{text}",{label}\n'
    for n, (text, label, other) in enumerate(zip(TEXTS, LABELS, TEXTS[::-1], strict=True))
)
BAG = """
[data]
train = "{folder}/train.csv"
validation_fraction = 0.0
text_column = {text}
label_column = {label}
{header}
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
RECIPE = """
[data]
train = "{train}"
validation_fraction = 0.0
{columns}
[train]
objective = "{task}"
epochs = 1
seq_len = 24
"""


def run(*arguments: Any, text: str = "") -> Any:
    done = CliRunner().invoke(app, list(map(str, arguments)), input=text, env={"COLUMNS": "200"})
    if isinstance(done.exception, WordloomError):
        raise done.exception
    return done


def score(name: str, *arguments: Any) -> Any:
    done = run("evaluate", *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return {one["name"]: one["value"] for one in json.loads(done.stdout)["scores"]}[name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a bag of words by names and by numbers, and heads of an encoder that know nothing."""
    folder = tmp_path_factory.mktemp("columns")
    (folder / "train.csv").write_text(TABLE)
    for name, text, label, header in (("names", '"body"', '"gold"', ""), ("numbers", 3, 4, "header = true")):
        (folder / f"{name}.toml").write_text(BAG.format(folder=folder, text=text, label=label, header=header))
        assert run("train", folder / f"{name}.toml", "--out", folder / name).exit_code == 0
    tokenizer = Tokenizer.train(TEXTS * 4, kind="wordpiece", vocab_size=80)
    size: dict[str, Any] = {"dim": 16, "n_layers": 1, "n_heads": 2, "max_seq_len": 24}
    body = BertConfig(vocab_size=tokenizer.vocab_size, **size)
    labels = {"token_classification": {"0": "O", "1": "B-PET"}, "classification": {"0": "bad", "1": "good"}}
    for task, columns in {
        "token_classification": "text_column = 2\nlabel_column = 3",
        "classification": 'text_column = ["one", "two"]\nlabel_column = "gold"',
        "regression": 'text_column = "said"\nlabel_column = "alike"',
    }.items():
        pooled = BertConfig(**{**vars(body), "pooler": task != "token_classification"})
        model = build(
            TaskConfig(body=pooled, task=task, id2label=labels.get(task, {})),
            generator=torch.Generator().manual_seed(0),
        )
        save_model(model, folder / task, tokenizer=tokenizer)
        recipe = RECIPE.format(train=folder / "x.tsv", columns=columns, task=task)
        (folder / task / "recipe.toml").write_text(recipe)
    save_model(build(body), folder / "encoder", tokenizer=tokenizer)
    return folder


@pytest.mark.parametrize("name", ["names", "numbers"])
def test_evaluate_reads_the_columns_of_the_run(folder, name):
    assert score("accuracy", folder / name, folder / "train.csv") == 1.0
    told = run("evaluate", folder / name, folder / "train.csv").stderr
    text, label = ("'body'", "'gold'") if name == "names" else (3, 4)
    assert f"columns: text {text}; label {label} (by default those in {folder / name}/recipe.toml)" in told
    given = ("--text-column", "text", "--label-column", "label", "--header")
    assert score("accuracy", folder / name, folder / "train.csv", *given) < 0.9


def test_columns_of_the_run_are_read_where_a_file_can_have_them(folder, tmp_path):
    rows = [json.dumps({"text": text, "label": label}) for text, label in zip(TEXTS, LABELS, strict=True)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    assert score("accuracy", folder / "numbers", tmp_path / "rows.jsonl") == 1.0
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/good.txt").write_text("fine\nwarm\n")
    (tmp_path / "lists/bad.txt").write_text("dull\n")
    assert score("accuracy", folder / "names", tmp_path / "lists", "--label-column", "file") == 1.0
    # a column that is given stands beside one of the run
    assert score("accuracy", folder / "names", folder / "train.csv", "--label-column", 4) == 1.0


def test_every_command_reads_the_columns_of_the_run_from_every_kind_of_file(folder, tmp_path):
    """The file's own "text" holds other texts; plain text beside the tables is read by its lines."""
    rows = [{"text": "other", "body": text, "gold": label} for text, label in zip(TEXTS, LABELS, strict=True)]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "r.json").write_text(json.dumps(rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "r.parquet")
    lines = ["text,body,gold", *(f"other,{text},{label}" for text, label in zip(TEXTS, LABELS, strict=True))]
    (tmp_path / "r.csv").write_text("\n".join(lines))
    (tmp_path / "r.txt").write_text("\n".join(TEXTS))
    names = folder / "names"
    plain = {verb: run(verb, names, tmp_path / "r.txt").stdout for verb in ("predict", "embed")}
    for ending in ("jsonl", "json", "parquet", "csv"):
        path = tmp_path / f"r.{ending}"
        assert score("accuracy", names, path) == 1.0
        told = run("predict", names, tmp_path / "r.txt", path)
        assert told.stdout == 2 * plain["predict"], ending
        assert "columns: text 'body' (by default those in" in told.stderr
        assert run("embed", names, path).stdout == plain["embed"], ending
        if ending != "csv":
            assert run("predict", names, path, "--field", "text").stdout != plain["predict"]
    pairs = [{"text": "other", "one": text, "two": "so cold", "gold": "good"} for text in TEXTS]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    (tmp_path / "p.tsv").write_text("two\tone\n" + "".join(f"so cold\t{text}\n" for text in TEXTS))
    of_pairs = [
        run("predict", folder / "classification", tmp_path / f"p.{e}").stdout for e in ("jsonl", "tsv")
    ]
    assert of_pairs[0] == of_pairs[1]


def test_every_command_reads_the_field_of_the_run(tmp_path):
    encoder, table = tmp_path / "encoder", tmp_path / "f.jsonl"
    tokenizer = Tokenizer.train(TEXTS * 4, kind="wordpiece", vocab_size=80)
    size: dict[str, Any] = {"dim": 16, "n_layers": 1, "n_heads": 2, "max_seq_len": 24}
    body = BertConfig(vocab_size=tokenizer.vocab_size, masked_lm_head=True, **size)
    save_model(build(body), encoder, tokenizer=tokenizer)
    recipe = RECIPE.format(train=table, columns='field = "body"', task="masked_lm")
    (encoder / "recipe.toml").write_text(recipe)
    for verb, mask in (("evaluate", ""), ("embed", ""), ("predict", " [MASK]")):
        rows = [{"body": text + mask, "text": f"so cold{mask}"} for text in TEXTS]
        table.write_text("\n".join(map(json.dumps, rows)))
        found = {
            how: run(verb, encoder, table, *how.split()).stdout
            for how in ("", "--field body", "--field text")
        }
        if verb == "evaluate":
            found = {how: re.findall(r"perplexity +(\S+)", printed) for how, printed in found.items()}
        assert found[""] == found["--field body"] != found["--field text"]


def test_words_and_scores_are_read_from_the_columns_of_the_run(folder, tmp_path):
    (tmp_path / "w.conll").write_text("1 fine O x\n2 film B-PET y\n\n1 warm O z\n")
    given = ("--text-column", 2, "--label-column", 3)
    tagger = folder / "token_classification"
    assert score("loss", tagger, tmp_path / "w.conll") == score("loss", tagger, tmp_path / "w.conll", *given)
    assert "columns: text 2; label 3" in run("evaluate", tagger, tmp_path / "w.conll").stderr
    words = [line.split("\t")[0] for line in run("predict", tagger, tmp_path / "w.conll").stdout.splitlines()]
    assert words == ["fine", "film", "", "warm", ""]
    (tmp_path / "s.csv").write_text("text,score,said,alike\nx,0,a film,1.5\ny,0,so warm,2.5\nz,0,so cold,4\n")
    given = ("--text-column", "said", "--label-column", "alike")
    scorer, table = folder / "regression", tmp_path / "s.csv"
    assert score("pearson", scorer, table) == score("pearson", scorer, table, *given)


def test_similarity_reads_the_columns_of_the_run(folder, tmp_path):
    (tmp_path / "s.csv").write_text(
        "one,two,alike\na film,so warm,1\nso cold,so warm,3\nso cold,so cold,5\na film,dull film,4\n"
    )
    run_folder = tmp_path / "run"
    run_folder.symlink_to(folder / "encoder")
    recipe = RECIPE.format(
        train="x.csv",
        columns='text_column = ["one", "two"]\nlabel_column = "alike"',
        task="cosine_similarity",
    )
    try:
        (folder / "encoder" / "recipe.toml").write_text(recipe)
        given = ("--text-column", "one,two", "--label-column", "alike")
        task = ("--task", "similarity")
        assert score("spearman", run_folder, tmp_path / "s.csv", *task) == score(
            "spearman", run_folder, tmp_path / "s.csv", *task, *given
        )
    finally:
        (folder / "encoder" / "recipe.toml").unlink()


def test_text_columns_are_repeated_or_joined_by_commas(folder, tmp_path):
    (tmp_path / "p.csv").write_text("n,one,two,gold\n1,a film,so warm,good\n2,dull,so cold,bad\n")
    pairs, path = folder / "classification", tmp_path / "p.csv"
    repeated, joined = ("--text-column", "one", "--text-column", "two"), ("--text-column", "one,two")
    found = {
        (score("loss", pairs, path, *how), run("predict", pairs, path, *how).stdout)
        for how in (repeated, joined, ())  # and those of the run
    }
    assert len(found) == 1
    assert score("loss", pairs, path, "--text-column", "two") != found.pop()[0]
    three = (*repeated, "--text-column", "n")
    for verb in ("predict", "evaluate"):
        done = run(verb, pairs, path, *three)
        assert done.exit_code == 2
        assert "reads rows of one or two texts, and 3 columns are given" in done.stderr
        assert "reads rows of one text, and 2 columns" in run(verb, folder / "names", path, *joined).stderr
    assert "reads rows of one text" in run("embed", folder / "encoder", path, *joined).stderr
    assert "numbered from 1" in run("predict", pairs, path, "--text-column", "one,").stderr
    assert "numbered from 1" in run("predict", pairs, path, "--text-column", 0).stderr


@pytest.mark.parametrize("first", ["n\tsaid\n", "id\ttext\n", "\tbody\n"])
def test_a_header_is_no_text(folder, tmp_path, first):
    path = tmp_path / "t.tsv"
    path.write_text(first + "".join(f"{n}\t{text}\n" for n, text in enumerate(TEXTS)))
    column = ("--text-column", 2)
    for arguments in (("predict", folder / "names"), ("embed", folder / "encoder")):
        with pytest.raises(DataError, match=r"t\.tsv:1: the first row looks like the names .*--no-header"):
            run(*arguments, path, *column)
        lines = {
            how: run(*arguments, path, *column, how).stdout.splitlines()
            for how in ("--header", "--no-header")
        }
        assert len(lines["--header"]) == len(TEXTS)
        assert lines["--no-header"][1:] == lines["--header"]
    with pytest.raises(DataError, match=r"t\.tsv:1: the first row looks like the names"):
        run("embed", folder / "encoder", path, *column, "--cluster", 2)
    for verb in ("predict", "embed"):
        with pytest.raises(WordloomError, match="no table is read: leave out --header"):
            run(verb, folder / "names", "-", "--header", text="so warm\n")


def test_a_first_row_is_no_header_where_it_looks_like_the_others(folder, tmp_path):
    path = tmp_path / "t.tsv"
    for rows in (["so warm\t1"], ["1\ttext", "2\tso cold"], ["a\tb", "c\td"], ["", ""], ["x\tso warm"] * 8):
        path.write_text("\n".join(rows) + "\n")
        done = run("predict", folder / "names", path, "--text-column", 1)
        assert (done.exit_code, len(done.stdout.splitlines())) == (0, len(rows)), (rows, done.stderr)


def test_predict_reads_the_words_that_train_and_evaluate_read(folder, tmp_path):
    path = tmp_path / "w.jsonl"
    rows = [{"tokens": ["so", "warm"], "labels": ["O", "B-PET"]}, {"text": "a film"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    tagger = folder / "token_classification"
    lines = [json.loads(line) for line in run("predict", tagger, path, "--json").stdout.splitlines()]
    assert [[word["word"] for word in line["words"]] for line in lines] == [["so", "warm"], ["a", "film"]]
    read = run("predict", tagger, "--", "-.jsonl", text=path.read_text()).stdout
    assert read == run("predict", tagger, path).stdout
    path.write_text('{"tokens": ["so", 3]}')
    with pytest.raises(DataError, match=r"w\.jsonl:1, field 'tokens\[1\]': holds a number"):
        run("predict", tagger, path)
    path.write_text('{"tokens": []}')
    with pytest.raises(DataError, match=r"w\.jsonl:1, field 'tokens': holds no word"):
        run("predict", tagger, path)


def test_pairs_for_a_sentence_model_name_the_task(folder, tmp_path):
    (tmp_path / "p.tsv").write_text("one\ttwo\talike\na film\tso warm\t1\n")
    (tmp_path / "p.jsonl").write_text('{"one": "a film", "two": "so warm", "alike": 1}\n')
    sentences = tmp_path / "sentences"
    shutil.copytree(folder / "encoder", sentences)
    for name, text in pooling_files(16, SentenceSettings("mean", True, 24)).items():
        (sentences / name).parent.mkdir(exist_ok=True)
        (sentences / name).write_text(text)
    named = ("--text-column", "one,two", "--label-column", "alike")
    for path, options in (("p.tsv", ()), ("p.jsonl", ()), ("p.jsonl", named), ("p.tsv", named)):
        with pytest.raises(WordloomError, match="pairs of texts and their scores take --task similarity"):
            run("evaluate", sentences, tmp_path / path, *options)
    with pytest.raises(WordloomError, match=r"no file .*nowhere"):
        run("evaluate", folder / "encoder", tmp_path / "nowhere.txt")


def test_advice_is_not_refused_where_it_is_given(folder, tmp_path):
    (tmp_path / "nul.txt").write_bytes(b"so\0warm\n")
    (tmp_path / "nul.tsv").write_bytes(b"text\nso\0warm\n")
    for arguments in (("nul.txt",), ("nul.tsv", "--text-column", "text")):
        for verb, model in (("embed", "encoder"), ("predict", "names")):
            with pytest.raises(DataError, match="a NUL at byte") as caught:
                run(verb, folder / model, tmp_path / arguments[0], *arguments[1:])
            assert "encoding" not in str(caught.value)
    with pytest.raises(DataError, match="--encoding-errors bytes"):
        run("evaluate", folder / "encoder", tmp_path / "nul.txt")


def test_views_say_which_models_they_read(folder):
    for model, kind in (
        ("encoder", "an encoder"),
        ("names", "a bag-of-words classifier"),
        ("regression", "a model for regression"),
    ):
        views = ["gradients"] if model == "encoder" else ["gradients", "attention"]
        for view in views:
            says = f"holds {kind}, and the view '{view}' needs .*a causal language model; try `wordloom "
            with pytest.raises(WordloomError, match=says):
                run("inspect", folder / model, view, "--prompt", "so warm")
    run("inspect", folder / "encoder", "attention", "--prompt", "so warm")
