"""Rows of tables and of JSON lines at ``wordloom embed``: read as ``wordloom predict`` reads them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import wordloom
from wordloom.cli.embed import command as embed
from wordloom.cli.vectors import documents as vectors_documents
from wordloom.errors import DataError, VectorError, WordloomError
from wordloom.models import BertConfig, build
from wordloom.text import Tokenizer
from wordloom.vectors import KeyedVectors, save_word2vec
from wordloom.weights import save_model

TEXTS = ["the cat sat", "a dog ran", "the dog slept"]
LONG = "the cat sat " * 10

only = typer.Typer()
only.command("embed")(embed.command)
only.command("documents")(vectors_documents.documents)


def run(*arguments: Any, text: str = "") -> Any:
    result = CliRunner().invoke(only, ["embed", *map(str, arguments)], input=text)
    if isinstance(result.exception, WordloomError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def written(*arguments: Any, text: str = "") -> list[str]:
    """The texts beside the vectors."""
    return [json.loads(line)["text"] for line in run(*arguments, text=text).stdout.splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder, word vectors and bags, and the same texts in files of every kind."""
    place = tmp_path_factory.mktemp("rows")
    tokenizer = Tokenizer.train(TEXTS * 4, kind="wordpiece", vocab_size=80)
    size: dict[str, Any] = {"dim": 16, "n_layers": 1, "n_heads": 2, "max_seq_len": 24}
    save_model(build(BertConfig(vocab_size=tokenizer.vocab_size, **size)), place / "M", tokenizer=tokenizer)
    words = sorted({word for text in TEXTS for word in text.split()})
    rows = np.random.default_rng(0).normal(size=(len(words), 4)).astype(np.float32)
    save_word2vec(KeyedVectors(words, rows), place / "words.bin")
    (place / "t.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    made = CliRunner().invoke(only, ["documents", str(place / "t.txt"), "--out", str(place / "bags")])
    assert made.exit_code == 0, made.output
    lines = [json.dumps({"text": text, "said": text.upper()}) for text in TEXTS]
    (place / "t.jsonl").write_text("\n".join(lines))
    (place / "t.tsv").write_text("n\tsaid\n" + "".join(f"{n}\t{text}\n" for n, text in enumerate(TEXTS)))
    (place / "t.csv").write_text("n,said\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(TEXTS)))
    return place


@pytest.mark.parametrize("vectors", ["M", "words.bin", "bags"])
def test_rows_are_the_texts_that_stand_there(place: Path, vectors: str) -> None:
    assert written(place / vectors, place / "t.txt") == TEXTS
    assert written(place / vectors, place / "t.jsonl") == TEXTS  # not the objects' own source
    assert written(place / vectors, "--", "-.jsonl", text=(place / "t.jsonl").read_text()) == TEXTS
    upper = [text.upper() for text in TEXTS]
    assert written(place / vectors, place / "t.jsonl", "--field", "said") == upper
    for name, column in (("t.jsonl", "text"), ("t.tsv", "said"), ("t.csv", "said")):
        assert written(place / vectors, place / name, "--text-column", column) == TEXTS
    by_number = (place / vectors, place / "t.tsv", "--text-column", 2)
    assert written(*by_number, "--header") == TEXTS
    assert written(*by_number, "--no-header") == ["said", *TEXTS]


def test_rows_of_parquet(place: Path, tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"text": TEXTS, "said": TEXTS[::-1]}), tmp_path / "t.parquet")
    assert written(place / "M", tmp_path / "t.parquet") == TEXTS
    assert written(place / "M", tmp_path / "t.parquet", "--text-column", "said") == TEXTS[::-1]


def test_the_vectors_are_those_of_the_texts(place: Path, tmp_path: Path) -> None:
    run(place / "M", place / "t.jsonl", "--out", tmp_path / "e.npy")
    expected = wordloom.load(place / "M").embed(TEXTS).vectors
    np.testing.assert_allclose(np.load(tmp_path / "e.npy"), expected, atol=1e-6)


def test_rows_of_standard_input_are_read_twice(place: Path, tmp_path: Path) -> None:
    given = (place / "words.bin", "--method", "sif", "--out")
    run(*given, tmp_path / "file.npy", place / "t.jsonl")
    run(*given, tmp_path / "stdin.npy", "--", "-.jsonl", text=(place / "t.jsonl").read_text())
    assert np.array_equal(np.load(tmp_path / "stdin.npy"), np.load(tmp_path / "file.npy"))


@pytest.mark.parametrize("vectors", ["M", "words.bin", "bags"])
@pytest.mark.parametrize("more", [(), ("--cluster", 2)])
def test_rows_that_are_no_texts_are_refused(place: Path, tmp_path: Path, vectors: str, more: tuple) -> None:
    if more:
        pytest.importorskip("sklearn")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": "b\n')
    (tmp_path / "number.jsonl").write_text('{"text": 7}\n')
    (tmp_path / "latin.txt").write_bytes(b"na\xefve\n")
    for path, options, says in (
        (tmp_path / "bad.jsonl", (), "bad.jsonl:2: not valid JSON"),
        (tmp_path / "number.jsonl", (), "number.jsonl:1: field 'text' holds a number, not text"),
        (place / "t.jsonl", ("--field", "x"), "t.jsonl:1: no field 'x'; the fields there are: text, s"),
        (place / "t.tsv", (), "is a table; say which column holds its texts: --text-column"),
        (place / "t.tsv", ("--text-column", "x"), "t.tsv:1: no column 'x'"),
        (place / "t.txt", ("--text-column", "x"), "has a suffix that is not read here"),
        (place / "t.tsv", ("--text-column", 2, "--field", "x"), "where the texts are: leave out --field"),
        (tmp_path / "latin.txt", (), "latin.txt: byte 2 .*--encoding-errors replace"),
    ):
        with pytest.raises(WordloomError, match=says):
            run(place / vectors, path, *options, *more)
    if not more:
        replaced = written(place / vectors, tmp_path / "latin.txt", "--encoding-errors", "replace")
        assert replaced == ["na\ufffdve"]


@pytest.mark.skipif("WORDLOOM_DATA" not in os.environ, reason="WORDLOOM_DATA is not set")
@pytest.mark.parametrize("vectors", ["M", "words.bin", "bags"])
def test_pairs_of_texts_are_refused(place: Path, vectors: str) -> None:
    with pytest.raises(DataError, match=r"holds texts in the columns .* and .*; name one: --text-column"):
        run(place / vectors, "glue-rte/dev")


def test_what_is_no_folder_is_said_before_options_are_refused(place: Path, tmp_path: Path) -> None:
    for options in ((), ("--level", "token"), ("--method", "mean"), ("--text-column", "text")):
        with pytest.raises(VectorError, match=r"nosuch' does not exist; give a trained model's folder"):
            run(tmp_path / "nosuch", place / "t.jsonl", *options)
        with pytest.raises(VectorError, match="holds neither word vectors"):
            run(tmp_path, place / "t.jsonl", *options)


@pytest.mark.parametrize("level", ["text", "token"])
def test_a_text_that_is_too_long_is_named(place: Path, tmp_path: Path, level: str) -> None:
    (tmp_path / "t.txt").write_text(f"a dog\n\n{LONG}\n")
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\n\n' + json.dumps({"text": LONG}))
    (tmp_path / "t.tsv").write_text(f"n\tsaid\n1\t{LONG}\n")
    for name, options, where in (
        ("t.txt", (), ":3"),
        ("t.txt", ("--batch-size", 1), ":3"),
        ("t.jsonl", (), ":3, field 'text'"),
        ("t.tsv", ("--text-column", "said"), ":2, column 'said'"),
    ):
        with pytest.raises(DataError, match=f"{name}{where} has 30 tokens and the model reads 22"):
            run(place / "M", tmp_path / name, "--level", level, *options)
    with pytest.raises(DataError, match=r"^standard input:1 has 30 tokens"):
        run(place / "M", "-", "--level", level, text=LONG)


def test_labelled_rows_are_clustered_by_the_field_that_is_named(place, tmp_path):
    others = TEXTS[::-1]
    rows = [{"text": one, "body": text, "label": "x"} for one, text in zip(others, TEXTS, strict=True)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    asked = (place / "M", tmp_path / "rows.jsonl", "--cluster", 2, "--label-column", "label")
    for options, read in ((("--field", "body"), TEXTS), (("--text-column", "body"), TEXTS), ((), others)):
        found = tmp_path / "found.jsonl"
        run(*asked, *options, "--out", found, "--force")
        assert [json.loads(line)["text"] for line in found.read_text().splitlines()] == read
