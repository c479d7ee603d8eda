"""`wordloom sweep`, as a user runs it."""

from __future__ import annotations

import json
import shlex

import pytest
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.errors import WordloomError
from wordloom.training.trainer import Trainer

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
steps = 1
batch_size = 4
objective = "classification"
device = "cpu"
"""


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False, env={"COLUMNS": "40"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text("a fine film\tgood\na dull film\tbad\nwarm\tgood\ncold\tbad\n")
    (folder / "bag.toml").write_text(RECIPE.format(folder=folder))
    return folder


def test_a_grid_with_its_table(folder, monkeypatch):
    def refuse(self):
        raise AssertionError("trained again")

    command = ("sweep", folder / "bag.toml", "train.learning_rate=0.1,0.5", "seed=1,2", "train.clip=none",
               "--out", folder / "out")  # fmt: skip
    planned = run(*command, "--dry-run")
    assert planned.exit_code == 0
    assert "4 of 4 to train" in planned.stderr
    assert not (folder / "out").exists()
    done = run(*command)
    assert done.exit_code == 0
    assert "sweep       4 runs in" in done.stderr
    assert "run 4 of 4: learning_rate=0.5,seed=2" in done.stderr
    assert "of training left" in done.stderr
    assert f"wordloom predict {shlex.quote(str(folder / 'out'))}/learning_rate=0.5,seed=1 FILE" in done.stderr
    marked = [line for line in done.stdout.splitlines() if "*" in line]  # whole in a narrow window
    assert [line.split()[1:3] for line in marked] == [["0.5", "1"]]
    assert "learning_rate" in done.stdout
    assert "…" not in done.stdout

    monkeypatch.setattr(Trainer, "train_step", refuse)
    printed = json.loads(run(*command, "--json").stdout)
    assert printed["best"]["settings"] == {"train.learning_rate": 0.5, "seed": 1}
    assert [run["state"] for run in printed["runs"]] == ["done"] * 4
    over = run(*command, "--median", "seed", "--metric", "accuracy").stdout
    assert "median accuracy" in over
    assert "2 of 2" in over
    seeds = ("sweep", folder / "bag.toml", "seed=3,4", "--median", "seed", "--out", folder / "seeds")
    monkeypatch.undo()
    (row,) = [line for line in run(*seeds).stdout.splitlines() if "2 of 2" in line]
    assert row.split()[0] == "*"  # of one recipe: its median, lowest and highest


def test_a_failed_run_ends_with_code_1(folder, monkeypatch):
    monkeypatch.setattr(Trainer, "train_step", lambda self: self._refuse(float("nan"), 1.0))
    failed = run("sweep", folder / "bag.toml", "train.learning_rate=0.1,0.5", "--out", folder / "failed")
    assert failed.exit_code == 1
    assert "failed: learning_rate=0.5: step 1" in failed.stderr
    assert "to repeat it, remove its folder" in failed.stderr
    with pytest.raises(WordloomError, match="give --maximize or --minimize, not both"):
        run("sweep", folder / "bag.toml", "seed=1,2", "--maximize", "--minimize")
