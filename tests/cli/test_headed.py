"""Numbers, choices and labels of words at the command; answers are in tests/run/test_answering.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import wordloom
from wordloom.cli import app
from wordloom.errors import CheckpointError, DataError, WordloomError
from wordloom.models import BertConfig, TaskConfig, build
from wordloom.models.task_model import SUMMARIES
from wordloom.text import Tokenizer
from wordloom.weights import save_model

TEXTS = ["the cat sat on a mat", "a dog ran", "dogs slept"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each task, of weights that know nothing."""
    place = tmp_path_factory.mktemp("headed")
    tokenizer = Tokenizer.train(TEXTS * 4, kind="wordpiece", vocab_size=80)
    for task in ("regression", "multiple_choice", "token_classification"):
        body = BertConfig(
            vocab_size=tokenizer.vocab_size,
            dim=16,
            n_layers=1,
            n_heads=2,
            max_seq_len=24,
            pooler=task in SUMMARIES,
        )
        labels = {"0": "O", "1": "B-PET"} if task == "token_classification" else {}
        config = TaskConfig(body=body, task=task, id2label=labels)
        model = build(config, generator=torch.Generator().manual_seed(0))
        save_model(model, place / task, tokenizer=tokenizer)
    (place / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    return place


def ran(*arguments: Any, text: str = "") -> str:
    done = CliRunner().invoke(app, list(map(str, arguments)), input=text)
    if done.exit_code:
        raise done.exception
    return done.stdout


def test_numbers(place, tmp_path):
    scorer = wordloom.load(place / "regression")
    lines = ran("predict", place / "regression", place / "texts.txt").splitlines()
    assert lines == [f"{number:.4f}" for number in scorer.score(TEXTS)]
    (tmp_path / "pairs.tsv").write_text("a dog ran\tdogs slept\nthe cat\ta mat\n")
    columns = ("--text-column", 1, "--text-column", 2)
    told = ran("predict", place / "regression", tmp_path / "pairs.tsv", *columns, "--json").splitlines()
    pairs = [("a dog ran", "dogs slept"), ("the cat", "a mat")]
    assert [json.loads(line)["score"] for line in told] == pytest.approx(
        scorer.score(pairs).tolist(), abs=1e-6
    )
    assert ran("predict", place / "regression", text="a dog ran\n").splitlines() == lines[1:2]
    rows = "".join(f"{a}\t{b}\t{i}.5\n" for i, (a, b) in enumerate(pairs * 2))
    (tmp_path / "scored.tsv").write_text("text\tother\tscore\n" + rows)
    given = ("--text-column", "text,other", "--label-column", "score", "--json")
    told = json.loads(ran("evaluate", place / "regression", tmp_path / "scored.tsv", *given))
    assert (told["task"], told["counts"]["rows"]) == ("regression", 4)
    with pytest.raises(CheckpointError, match=r"has no recipe\.toml that says what is held out"):
        ran("evaluate", place / "regression")
    with pytest.raises(WordloomError, match="leave out --top"):
        ran("predict", place / "regression", place / "texts.txt", "--top", 2)


def test_choices(place, tmp_path):
    (tmp_path / "q.csv").write_text("the cat,sat,ran,slept,B\nwhat ran,a dog,a mat,dogs,A\n")
    lines = [
        line.split("\t")
        for line in ran("predict", place / "multiple_choice", tmp_path / "q.csv").splitlines()
    ]
    assert [choices[int(number) - 1] for (number, _, _), choices in
            zip(lines, (["sat", "ran", "slept"], ["a dog", "a mat", "dogs"]), strict=True)] == [
        text for *_, text in lines
    ]  # fmt: skip
    fact = json.loads(ran("predict", place / "multiple_choice", tmp_path / "q.csv", "--json").splitlines()[0])
    assert sum(fact["probabilities"]) == pytest.approx(1, abs=1e-5)
    assert fact["choice"] == int(lines[0][0]) - 1
    scores = json.loads(ran("evaluate", place / "multiple_choice", tmp_path / "q.csv", "--json"))["scores"]
    assert {score["name"] for score in scores} == {"accuracy", "loss"}
    with pytest.raises(DataError, match="give a FILE of questions with choices"):
        ran("predict", place / "multiple_choice")


def test_labels_of_words(place, tmp_path):
    told = ran("predict", place / "token_classification", place / "texts.txt")
    blocks = [block.splitlines() for block in told.strip().split("\n\n")]
    assert [[line.split("\t")[0] for line in block] for block in blocks] == [text.split() for text in TEXTS]
    assert {line.split("\t")[1] for block in blocks for line in block} <= {"O", "B-PET"}
    fact = json.loads(
        ran("predict", place / "token_classification", place / "texts.txt", "--json").splitlines()[0]
    )
    assert all(TEXTS[0][word["start"] : word["end"]] == word["word"] for word in fact["words"])
    (tmp_path / "some.conll").write_text("the O\ncat B-PET\n\nmat O\n")
    scores = json.loads(ran("evaluate", place / "token_classification", tmp_path / "some.conll", "--json"))
    assert "accuracy" in {score["name"] for score in scores["scores"]}
