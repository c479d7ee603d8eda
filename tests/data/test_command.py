"""The command ``wordloom data``, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wordloom.data import DATASETS
from wordloom.text import Tokenizer

Command = Callable[..., Any]


@pytest.fixture
def wordloom(command: Command) -> Command:
    def run(*arguments: str | Path, stdin: str = "", columns: int = 200) -> Any:
        done = command(*arguments, stdin=stdin.encode(), COLUMNS=str(columns))
        return subprocess.CompletedProcess([], done.returncode, done.stdout.decode(), done.stderr)

    return run


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    Tokenizer.train([], kind="byte").save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@pytest.mark.parametrize("columns", [80, 200])
def test_list_has_a_line_for_each_set(wordloom: Command, columns: int) -> None:
    plain = wordloom("data", "list", columns=columns)
    assert plain.returncode == 0, plain.stderr
    lines = plain.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    head = next(number for number, line in enumerate(lines) if line.startswith("python-docs "))
    assert [line.split()[0] for line in lines[head : head + len(DATASETS)]] == list(DATASETS)
    (enwiki,) = (line for line in lines if line.startswith("enwiki "))
    assert enwiki.split()[1:6] == ["~24", "GB", "no", "English", "Wikipedia,"]
    listed = {row["name"]: row for row in json.loads(wordloom("data", "list", "--json").stdout)}
    assert listed["gutenberg"]["separator"] == "<|endoftext|>"
    assert listed["alpaca"]["parts"]["all"][0]["sha256"] is None


def test_list_tells_all_about_one_set(wordloom: Command) -> None:
    told = wordloom("data", "list", "wikitext-2", columns=40).stdout
    for file in DATASETS["wikitext-2"].files:
        assert f"    {file.url}\n" in told
        assert f"    sha256 {file.sha256 or 'is not known'}" in told
    for line in ("licence    CC BY-SA", "size       ~13 MB", "wikitext-2/train"):
        assert line in told.splitlines()
    assert "not distributable: point to your copy" in wordloom("data", "list", "bookscorpus").stdout
    (row,) = json.loads(wordloom("data", "list", "lambada", "--json").stdout)
    assert row["field"] == ["context", "continuation"]
    done = wordloom("data", "list", "wikitext2")
    assert done.returncode == 2
    assert done.stderr == "wordloom: no data set 'wikitext2'; did you mean 'wikitext-2'?\n"


def test_prepare_twice(wordloom: Command, tmp_path: Path, tokenizer: Path) -> None:
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


def test_prepare_options_reach_the_corpus(wordloom: Command, tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "v.txt").write_text("one\ntwo\n\nthree\n")
    done = wordloom(
        *("data", "prepare", "--tokenizer", tokenizer, "--field", "a", "--field", "b", "--json"),
        *("--validation", tmp_path / "v.txt", "--separator", "line", "--", "-.jsonl"),
        stdin='{"a": "x", "b": "y"}\n{"a": "", "b": ""}\n',
    )
    train, validation = (entry["ledger"] for entry in json.loads(done.stdout))
    assert (train["documents"], train["bytes"]) == (2, 4)
    assert (validation["documents"], validation["dropped"]) == (3, {"empty document(s)": 1})


def test_tasks_and_merge(wordloom: Command, tmp_path: Path, tokenizer: Path) -> None:
    rows, out = tmp_path / "a.jsonl", tmp_path / "out"
    rows.write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(100)))
    settings = ("data", "prepare", rows, "--tokenizer", tokenizer, "--out", out)
    second = wordloom(*settings, "--task", "2/2")
    assert second.returncode == 0, second.stderr
    assert second.stdout.endswith(f"task 2/2 is complete: {out / 'shares' / '00002-of-00002'}\n")
    missing = wordloom("data", "merge", out)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr == (
        f"wordloom: 1 of 2 tasks is not complete: 1; run wordloom data prepare with --task 1/2 --out {out}, "
        "and merge again\n"
    )
    other = wordloom(*settings, "--task", "1/2", "--specials", "text")
    assert other.returncode == 2
    assert (
        "was begun with another special tokens: 'refuse', not 'text'; delete it to start again"
        in other.stderr
    )
    assert wordloom(*settings, "--task", "1/2").returncode == 0
    again = json.loads(wordloom(*settings, "--task", "1/2", "--json").stdout)
    assert again["reused"] is True
    assert "task 1/2 was complete: " in wordloom(*settings, "--task", "1/2").stdout
    merged = wordloom("data", "merge", out)
    assert "shares: 2" in merged.stdout
    assert merged.stdout.endswith(f"merged: {out}\n")
    whole = wordloom("data", "prepare", rows, "--tokenizer", tokenizer, "--split", "hash", "--json")
    parts = json.loads(wordloom("data", "merge", out, "--json").stdout)["parts"]
    assert [entry["ledger"] for entry in json.loads(whole.stdout)] == [
        parts[name]["ledger"] for name in ("train", "validation")
    ]


def test_a_mistake_is_one_line_and_code_two(wordloom: Command, tmp_path: Path, tokenizer: Path) -> None:
    text, rows = tmp_path / "a.txt", tmp_path / "a.jsonl"
    text.write_text("hello world\n" * 100)
    rows.write_text('{"text": "hello"}\n')
    task = ("--task", "1/2", "--out", tmp_path / "out")
    for arguments in (
        ("data", "prepare", "missing.txt", "--tokenizer", tokenizer),
        ("data", "fetch", "bookscorpus"),
        ("data", "prepare", text, "--tokenizer", tokenizer, "--validation", "missing.txt"),
        ("data", "prepare", text, "--tokenizer", tokenizer, "--field", "body"),
        ("data", "prepare", rows, "--tokenizer", tokenizer, "--separator", "line"),
        ("data", "prepare", text, "--tokenizer", tokenizer, "--task", "1/2"),
        ("data", "prepare", text, "--tokenizer", tokenizer, "--task", "0/2", "--out", tmp_path / "out"),
        ("data", "prepare", text, "--tokenizer", "bpe", *task),
        ("data", "prepare", text, "--tokenizer", tokenizer, *task, "--split", "tail"),
        ("data", "prepare", "-", "--tokenizer", tokenizer, *task),
        ("data", "merge", tmp_path),
        ("data", "prepare", "--tokenizer", tokenizer, "-.jsonl"),
    ):
        done = wordloom(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("wordloom: ")
        assert done.stderr.count("\n") == 1
    assert "put the sources last, after '--': " in done.stderr


def test_importing_data_imports_nothing_heavy() -> None:
    code = (
        "import sys; import wordloom.data, wordloom.data.text.corpus, wordloom.data.sets.catalogue; "
        "heavy = {'torch', 'numpy', 'pyarrow', 'pooch', 'zstandard', 'mwparserfromhell'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    code = "import sys; import wordloom.data.shards.prepare; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
