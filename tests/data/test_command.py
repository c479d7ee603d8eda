"""The command ``wordloom data``, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wordloom.text import Tokenizer

RUN = "from wordloom.cli import main; main()"


def wordloom(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    Tokenizer.train([], kind="byte").save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def test_list() -> None:
    plain = wordloom("data", "list")
    assert plain.returncode == 0, plain.stderr
    for word in ("tiny-shakespeare", "~24 GB", "2 of 3", "CC BY-SA 4.0"):
        assert word in plain.stdout
    listed = {row["name"]: row for row in json.loads(wordloom("data", "list", "--json").stdout)}
    assert listed["gutenberg"]["separator"] == "<|endoftext|>"
    assert listed["alpaca"]["parts"]["all"][0]["sha256"] is None


def test_prepare_twice(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.txt").write_text("hello world\n" * 100)
    first = wordloom("data", "prepare", tmp_path / "a.txt", "--tokenizer", tokenizer)
    assert first.returncode == 0, first.stderr
    assert "train: 1 document in 1 file" in first.stdout
    assert "validation: 1 document in 1 file" in first.stdout
    assert first.stdout.count("written:") == 2
    second = wordloom("data", "prepare", tmp_path / "a.txt", "--tokenizer", tokenizer, "--json")
    made = json.loads(second.stdout)
    assert [entry["reused"] for entry in made] == [True, True]
    assert sum(entry["ledger"]["bytes"] for entry in made) == 1200


def test_prepare_options_reach_the_corpus(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "v.txt").write_text("one\ntwo\n\nthree\n")
    done = wordloom(
        *("data", "prepare", "--tokenizer", tokenizer, "--field", "a", "--field", "b", "--json"),
        *("--validation", tmp_path / "v.txt", "--separator", "line", "--", "-.jsonl"),
        stdin='{"a": "x", "b": "y"}\n{"a": "", "b": ""}\n',
    )
    train, validation = (entry["ledger"] for entry in json.loads(done.stdout))
    assert (train["documents"], train["bytes"]) == (2, 4)
    assert (validation["documents"], validation["dropped"]) == (3, {"empty document(s)": 1})


def test_a_mistake_is_one_line_and_code_two(tmp_path: Path, tokenizer: Path) -> None:
    for arguments in (
        ("data", "prepare", "missing.txt", "--tokenizer", tokenizer),
        ("data", "fetch", "bookscorpus"),
    ):
        done = wordloom(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("wordloom: ")
        assert done.stderr.count("\n") == 1


def test_importing_data_imports_nothing_heavy() -> None:
    code = (
        "import sys; import wordloom.data, wordloom.data.corpus, wordloom.data.catalogue; "
        "heavy = {'torch', 'numpy', 'pyarrow', 'pooch', 'zstandard', 'mwparserfromhell'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    code = "import sys; import wordloom.data.shards; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
