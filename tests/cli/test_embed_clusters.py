"""`wordloom embed --cluster` as a user runs it: word vectors, bags of words; tables, mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from wordloom.cli.embed import command as embed
from wordloom.cli.vectors import documents as vectors_documents
from wordloom.errors import DataError, VectorError, WordloomError
from wordloom.vectors import KeyedVectors, save_word2vec

pytest.importorskip("sklearn")

TEXTS = ["apple pear", "king queen", "pear plum", "queen king queen", "plum apple", "king king"]
LABELS = ["fruit", "court", "fruit", "court", "fruit", "fruit"]


only = typer.Typer()  # to make all the commands again for each run takes longer than the runs
only.command("embed")(embed.command)
only.command("documents")(vectors_documents.documents)


def run(*arguments: Any) -> Any:
    result = CliRunner().invoke(only, list(map(str, arguments)))
    if isinstance(result.exception, WordloomError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Word vectors, texts, and the same texts as a table with labels."""
    path = tmp_path_factory.mktemp("clusters")
    rows = np.array([[5, 1], [5, 0], [4, 1], [-5, 1], [-5, 2]], np.float32)
    save_word2vec(KeyedVectors(["apple", "pear", "plum", "king", "queen"], rows), path / "words.bin")
    (path / "t.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    table = "".join(f"{a}\t{b}\n" for a, b in zip(TEXTS, LABELS, strict=True))
    (path / "t.tsv").write_text("said\tkind\n" + table)
    return path


def test_columns_may_be_numbers(folder: Path) -> None:
    asked = ["embed", folder / "words.bin", folder / "t.tsv", "--cluster", 2, "--json"]
    by_name = run(*asked, "--text-column", "said", "--label-column", "kind")
    by_number = run(*asked, "--text-column", 1, "--label-column", 2, "--header")
    assert json.loads(by_number.stdout)["nmi"] == json.loads(by_name.stdout)["nmi"]


def test_groups_of_a_table(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    asked = ["embed", folder / "words.bin", folder / "t.tsv", "--cluster", 2]
    asked += ["--text-column", "said", "--label-column", "kind"]
    files = ["--plot", tmp_path / "c.svg", "--out", tmp_path / "c.jsonl"]
    shown = run(*asked, *files)
    assert "court 67%, fruit 33%" in shown.stdout
    assert "NMI 0.4787, adjusted Rand index 0.3243 with the labels" in shown.stdout
    assert "wrote" in shown.stderr
    assert (tmp_path / "c.svg").read_text().count("<text") > 4
    rows = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]
    assert [row["cluster"] for row in rows] == [1, 2, 1, 2, 1, 2]
    assert [(row["number"], row["text"], row["label"]) for row in rows] == list(
        zip(range(1, 7), TEXTS, LABELS, strict=True)
    )
    facts = json.loads(run(*asked, "--json").stdout)
    assert [group["size"] for group in facts["clusters"]] == [3, 3]
    assert {word["word"] for word in facts["clusters"][1]["words"]} == {"king", "queen"}
    nearest = facts["clusters"][0]["nearest"]
    assert [row["distance"] for row in nearest] == sorted(
        row["distance"] for row in rows if row["cluster"] == 1
    )
    assert nearest[0]["text"] == TEXTS[nearest[0]["number"] - 1]
    with pytest.raises(WordloomError, match="exists; choose another name, or replace it with --force"):
        run(*asked, "--plot", tmp_path / "c.svg")


def test_groups_by_words(folder: Path, tmp_path: Path) -> None:
    run("documents", folder / "t.txt", "--out", tmp_path / "bags")
    for vectors in (tmp_path / "bags", folder / "words.bin"):
        sif = ["--method", "sif"] if vectors.suffix else []
        out = tmp_path / f"{vectors.name}.tsv"
        arguments = ["embed", vectors, folder / "t.txt", "--cluster", 2, "--cluster-method", "agglomerative"]
        assert "NMI" not in run(*arguments, "--out", out, *sif).stdout
        header, *rows = out.read_text().splitlines()
        assert header == "number\tcluster\tdistance"
        assert [row.split("\t")[0] for row in rows] == list("123456")
        assert {row.split("\t")[1] for row in rows} == {"1", "2"}


def test_mistakes(folder: Path, tmp_path: Path) -> None:
    words, texts = folder / "words.bin", folder / "t.txt"
    grouped = ["embed", words, texts, "--cluster"]
    (tmp_path / "gap.txt").write_text("king\n\nqueen\n")
    for arguments, error, message in (
        (["embed", words, texts, "--seed", 1], WordloomError, "without --cluster K .*: leave out --seed"),
        ([*grouped, 2, "--level", "text"], WordloomError, "--cluster groups texts: leave out --level"),
        ([*grouped, 2, "--projection", "tsne"], WordloomError, "without --plot nothing is drawn"),
        ([*grouped, 1], DataError, "give 2 or more"),
        ([*grouped, 7], DataError, "6 texts cannot be 7 clusters"),
        (
            ["embed", words, tmp_path / "gap.txt", "--cluster", 2],
            DataError,
            "gap.txt:2: the text is empty",
        ),
        ([*grouped, 2, "--out", tmp_path / "c.npy"], DataError, r"has an ending that cannot hold clusters"),
        ([*grouped, 2, "--plot", tmp_path / "c.gif"], VectorError, "no ending that names a picture"),
        ([*grouped, 2, "--label-column", "kind"], DataError, "has a suffix that is not read here"),
        (["embed", words, "names", "--cluster", 2], DataError, "holds no labelled rows"),
    ):
        with pytest.raises(error, match=message):
            run(*arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["gap.txt"]
