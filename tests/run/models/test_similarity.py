"""Cosines of texts' vectors beside people's scores."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.run.bodies import write_body
from typer.testing import CliRunner

import wordloom
from wordloom.cli import app
from wordloom.data import ScoredCorpus
from wordloom.errors import DataError, WordloomError
from wordloom.run.checkpoint.evaluate import similarity_scores

PAIRS = [
    ("the cat sat", "a cat sits", 4.5),
    ("a dog ran", "the cat sat", 1.0),
    ("dogs run", "a dog ran", 3.5),
] * 2


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    place = tmp_path_factory.mktemp("similarity")
    write_body(place / "body", [text for a, b, _ in PAIRS for text in (a, b)])
    rows = "".join(f"{a}\t{b}\t{score}\n" for a, b, score in PAIRS)
    (place / "pairs.tsv").write_text("one\ttwo\tscore\n" + rows)
    return place


def test_correlations_are_those_of_cosines(place):
    encoder = wordloom.load(place / "body")
    corpus = ScoredCorpus(sources=place / "pairs.tsv", text=["one", "two"], label="score")  # all its rows
    scores = similarity_scores(encoder.embedder(), corpus)
    a, b = (encoder.embed([row[i] for row in PAIRS]).vectors for i in (0, 1))
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    wanted = np.corrcoef(cosines, [score for *_, score in PAIRS])[0, 1]
    assert scores["pearson"].value == pytest.approx(wanted, abs=1e-5)
    assert scores.counts["rows"] == 6
    assert scores.counts["texts"] == 4  # each is read once
    with pytest.raises(DataError, match="similarity needs two"):
        similarity_scores(encoder.embedder(), ScoredCorpus(
            sources=place / "pairs.tsv", split="files", text="one", label="score"))  # fmt: skip


def test_at_the_command(place):
    def ran(*arguments: object) -> str:
        done = CliRunner().invoke(app, ["evaluate", str(place / "body"), *map(str, arguments)])
        if done.exit_code:
            raise done.exception
        return done.stdout

    given = ("--task", "similarity", "--label-column", "score", "--text-column", "one,two", "--json")
    told = json.loads(ran(place / "pairs.tsv", *given))
    assert [score["name"] for score in told["scores"]] == ["pearson", "spearman"]
    long = place / "long.tsv"
    long.write_text((place / "pairs.tsv").read_text() + f"{'the cat ' * 99}\ta dog\t1.5\n")
    with pytest.raises(DataError, match=r"long.tsv:8, column 'one' has 198 tokens.*--too-long"):
        ran(long, *given)
    empty = place / "empty.tsv"
    empty.write_text((place / "pairs.tsv").read_text() + "a dog\t \t1.5\n")
    for more in ((), ("--too-long", "cut")):
        with pytest.raises(DataError, match=r"empty.tsv:8, column 'two': the text is empty; give one"):
            ran(empty, *given, *more)
    (place / "empty.jsonl").write_text('{"one": "", "two": "a dog", "score": 1}\n')
    with pytest.raises(DataError, match=r"empty.jsonl:1, column 'one': the text is empty; give one"):
        ran(place / "empty.jsonl", *given)
    (place / "bad.jsonl").write_text('{"one": "a cat", "two": "a dog", "score": 1}\n{"one": "a\n')
    with pytest.raises(DataError, match=r"bad.jsonl:2: not valid JSON"):
        ran(place / "bad.jsonl", *given)
    assert json.loads(ran(long, *given, "--too-long", "cut"))["counts"]["rows"] == 7
    with pytest.raises(WordloomError, match="leave out --window"):
        ran(place / "pairs.tsv", *given, "--window", 3)
    with pytest.raises(WordloomError, match="needs scored pairs"):
        ran("--task", "similarity")
