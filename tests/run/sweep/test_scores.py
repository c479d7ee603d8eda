"""Which figures of a sweep's runs are compared, which are left out, and which are not alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.run.bodies import write_body
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.run.sweep.sweep import sweep

RECIPE = """
name = "bag"
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
steps = 2
batch_size = 3
objective = "classification"
learning_rate = 0.05
device = "cpu"
log_every = 1
evaluate_every = 2
"""
TRAIN = "a fine film\tgood\na dull film\tbad\nfine and warm\tgood\ndull and cold\tbad\n" * 5
COLUMNS = ("data.text_column=1", "data.label_column=2")  # an override of data.train leaves them out
DEV = "fine\tgood\ndull\tbad\na cold film\tbad\nwarm but dull, dull\tgood\n"

_METRICS = "wordloom.run.models.heads.classification.TextClassifier.metrics"


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    """No power is cut here, and dozens of runs would wait for the disk."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


@pytest.fixture
def recipe(tmp_path) -> Path:
    (tmp_path / "train.tsv").write_text(TRAIN)
    (tmp_path / "dev.tsv").write_text(DEV)
    (tmp_path / "bag.toml").write_text(RECIPE.format(folder=tmp_path))
    return tmp_path / "bag.toml"


def evaluating(monkeypatch, *figures: dict[str, float]) -> None:
    """Each run's only evaluation tells the next of ``figures``."""
    told = iter(figures)
    monkeypatch.setattr(_METRICS, lambda *_: next(told))


def test_a_model_that_takes_all_rows_for_one_class_is_compared(recipe, tmp_path):
    """Its correlation is 0, which is better than being wrong throughout."""
    (tmp_path / "dev.tsv").write_text("dull\tgood\nfine\tbad\n")  # the wrong way round
    (tmp_path / "all.tsv").write_text("dull\tgood\n" * 9 + "cold\tbad\n")
    result = sweep(
        recipe,
        {"data.train": [str(tmp_path / "train.tsv"), str(tmp_path / "all.tsv")], "seed": [1, 2, 3]},
        [f"data.validation={tmp_path}/dev.tsv", *COLUMNS, "train.steps=40", "train.learning_rate=0.1"],
        out=tmp_path / "out",
        metric="matthews",
        median="seed",
    )
    assert [group.median for group in result.groups] == [-1.0, 0.0]
    assert result.best in result.groups[1].runs
    assert result.undefined == []


def test_settings_without_a_median_are_told(recipe, tmp_path, monkeypatch):
    nan = float("nan")
    values = [0.5, nan, 0.25, 0.25]
    evaluating(monkeypatch, *({"loss": 1.0, "spearman": value} for value in values))
    monkeypatch.setattr(
        "wordloom.run.sweep.sweep._scores_before_training", lambda recipe: ["loss", "spearman"]
    )
    arguments = ["sweep", str(recipe), "train.weight_decay=0.0,0.1", "seed=1,2", "--metric", "spearman",
                 "--median", "seed", "--out", str(tmp_path / "out")]  # fmt: skip
    for _ in range(2):  # the second time nothing is left to train
        told = CliRunner().invoke(app, arguments)
        assert told.exit_code == 0, told.output
        lines = [line for line in told.output.splitlines() if "left out" in line]
        assert lines == [
            "left out: train.weight_decay=0.0: spearman is undefined in 1 of 2 runs, which leaves no median"
        ]
        assert f"best: {tmp_path}/out/weight_decay=0.1,seed=1" in told.output.replace("\n", "")


def other_rows(tmp_path: Path) -> str:
    (tmp_path / "other.tsv").write_text(TRAIN.replace("film", "book") + "warm\tgood\n")
    return str(tmp_path / "other.tsv")


def test_figures_of_other_validation_rows_are_told(recipe, tmp_path):
    """An override of data.train leaves out the recipe's data.validation: each run holds out its own rows."""
    grid = {"data.train": [str(tmp_path / "train.tsv"), other_rows(tmp_path)]}
    apart = sweep(recipe, grid, COLUMNS, out=tmp_path / "apart")
    hashes = [run.signature.partition("text:")[2] for run in apart.runs]
    assert apart.measured_differently == f"text: {', '.join(hashes)}"
    dev = f"data.validation={tmp_path}/dev.tsv"
    assert sweep(recipe, grid, [*COLUMNS, dev], out=tmp_path / "alike").measured_differently == ""
    arguments = ["sweep", str(recipe), f"data.train={','.join(grid['data.train'])}", *COLUMNS]
    told = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "apart")])
    assert f"measured differently (text: {', '.join(hashes)})" in " ".join(told.output.split())


def test_a_validation_file_that_changes_between_two_calls_is_told(recipe, tmp_path):
    out = tmp_path / "out"
    assert sweep(recipe, {"train.learning_rate": [0.05, 0.1]}, out=out).measured_differently == ""
    (tmp_path / "dev.tsv").write_text(DEV.replace("warm but dull, dull\tgood", "warm but dull, dull\tbad"))
    wider = sweep(recipe, {"train.learning_rate": [0.05, 0.1, 0.2]}, out=out)
    assert wider.measured_differently.startswith("text: ")
    assert wider.runs[0].signature == wider.runs[1].signature != wider.runs[2].signature


def test_the_same_rows_are_alike_whatever_reads_them(recipe, tmp_path):
    """Neither the seed nor what a model makes of a text decides which rows are held out."""
    grid = {"seed": [1, 2], "model.max_ngram": [1, 2]}
    for split in ("tail", "hash"):
        fraction = ["data.validation=none", "data.validation_fraction=0.4", f"data.split={split}"]
        result = sweep(recipe, grid, fraction, out=tmp_path / split)
        assert result.measured_differently == ""
        assert "text:" in result.runs[0].signature


def asked(numbers: range) -> str:
    """A SQuAD file."""
    answer = {"text": "film", "answer_start": 5}
    qas = [{"id": f"{n}", "question": f"what {n}", "answers": [answer]} for n in numbers]
    return json.dumps({"data": [{"title": "", "paragraphs": [{"context": "warm film", "qas": qas}]}]})


def lines(line: str) -> Callable[[range], str]:
    return lambda numbers: "".join(line.format(number) for number in numbers)


@pytest.mark.parametrize(
    ("objective", "ending", "columns", "text"),
    [
        ("regression", "tsv", "text_column = 1\nlabel_column = 2", lines("warm and fine\t{}\n")),
        ("cosine_similarity", "tsv", "text_column = [1, 3]\nlabel_column = 2", lines("warm\t{}\tcold\n")),
        ("token_classification", "txt", "", lines("film{}\tO\nwarm\tB-X\n\n")),
        ("multiple_choice", "csv", "", lines("warm {},fine,film,B\n")),
        ("question_answering", "json", "max_query = 8\ndoc_stride = 8", asked),
    ],
)
def test_rows_of_other_objectives_are_told_apart(tmp_path, objective, ending, columns, text):
    for name, numbers in (("learnt", range(19)), ("dev", range(2, 5)), ("new", range(3, 6))):
        (tmp_path / f"{name}.{ending}").write_text(text(numbers))
    write_body(tmp_path / "body", ["warm and fine film cold what 0 1 2 3 4 5 6 7 8 9"] * 3, max_seq_len=32)
    (tmp_path / "tuned.toml").write_text(
        f'name = "tuned"\n[data]\ntrain = "{tmp_path}/learnt.{ending}"\n{columns}\n'
        f'[train]\nobjective = "{objective}"\nsteps = 1\nseq_len = 32\nbatch_size = 2\n'
    )

    def swept(name: str, key: str, *values: object) -> str:
        dev = [] if key == "data.validation" else [f"data.validation={tmp_path}/dev.{ending}"]
        grid = {key: list(values)}
        return sweep(
            tmp_path / "tuned.toml", grid, dev, start_from=tmp_path / "body", out=tmp_path / name
        ).measured_differently

    files = [f"{tmp_path}/{name}.{ending}" for name in ("dev", "new")]
    assert swept("apart", "data.validation", *files).startswith("text: ")
    assert swept("seeds", "seed", 1, 2) == ""
    assert swept("lengths", "train.seq_len", 24, 32) == ""
