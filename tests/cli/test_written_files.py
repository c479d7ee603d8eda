"""Files that are there already: every verb that writes one refuses, and takes --force."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.errors import WordloomError
from wordloom.models import BertConfig, GPT2Config, TaskConfig, build
from wordloom.text import Tokenizer
from wordloom.vectors import KeyedVectors, save_word2vec
from wordloom.weights import save_model

TEXTS = ["a fine film", "a dull film", "so warm", "so cold"]
COMMANDS: dict[str, list[Any]] = {
    "evaluate": ["evaluate", "classifier", "rows.tsv", "--plot", "FILE.svg"],
    "attention": ["inspect", "gpt2", "attention", "--prompt", "a fine film", "--plot", "FILE.svg"],
    "gradients": [
        "inspect",
        "gpt2",
        "gradients",
        "--file",
        "texts.txt",
        "--distance",
        2,
        "--plot",
        "FILE.pdf",
    ],
    "embed": ["embed", "encoder", "texts.txt", "--out", "FILE.npy"],
    "neighbours": ["vectors", "neighbours", "words.bin", "fine", "--plot", "FILE.svg"],
    "axis": ["vectors", "axis", "words.bin", "fine", "--toward", "film", "--plot", "FILE.svg"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    tokenizer = Tokenizer.train(TEXTS * 4, kind="wordpiece", vocab_size=80)
    size: dict[str, Any] = {"vocab_size": 80, "dim": 16, "n_layers": 1, "n_heads": 2, "max_seq_len": 24}
    body = BertConfig(**{**size, "vocab_size": tokenizer.vocab_size})
    head = TaskConfig(body=body, task="classification", id2label={"0": "bad", "1": "good"})
    torch.manual_seed(0)
    save_model(build(body), folder / "encoder", tokenizer=tokenizer)
    save_model(build(head), folder / "classifier", tokenizer=tokenizer)
    bytes_ = Tokenizer.train(TEXTS * 4, kind="bpe", vocab_size=280)
    gpt2 = GPT2Config(**{**size, "vocab_size": bytes_.vocab_size})
    save_model(build(gpt2), folder / "gpt2", tokenizer=bytes_)
    words = sorted({word for text in TEXTS for word in text.split()})
    rows = np.random.default_rng(0).normal(size=(len(words), 4)).astype(np.float32)
    save_word2vec(KeyedVectors(words, rows), folder / "words.bin")
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    (folder / "rows.tsv").write_text("text\tlabel\na fine film\tgood\nso cold\tbad\n")
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_that_is_there_is_replaced_by_force_alone(folder, monkeypatch, name):
    monkeypatch.chdir(folder)
    arguments = [str(one).replace("FILE", name) for one in COMMANDS[name]]
    path = folder / arguments[-1]
    path.write_text("mine")
    refused = CliRunner().invoke(app, arguments)
    assert isinstance(refused.exception, WordloomError)
    assert f"'{path.name}' exists; choose another name, or replace it with --force" in str(refused.exception)
    assert path.read_text() == "mine"
    done = CliRunner().invoke(app, [*arguments, "--force"], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    assert path.read_bytes() not in (b"mine", b"")
    path.unlink()
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    assert path.exists()


def test_no_file_is_written_twice_or_over_what_is_read(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "link.npy").unlink(missing_ok=True)
    (folder / "link.npy").symlink_to("texts.txt")
    sif = ["--method", "sif", "--save-component"]
    for arguments, says in (
        (["words.bin", "texts.txt", "--out", "same.npy", *sif, "./same.npy"], "named for two files"),
        (["words.bin", "texts.txt", "--out", "link.npy"], "read and written"),
        (["words.bin", "rows.tsv", "--out", "rows.tsv", "--text-column", "text"], "read and written"),
        (["words.bin", "rows.tsv", *sif, "c.npy", "--fit-on", "texts.txt", "--out", "texts.txt"], "read and"),
        (["words.bin", "texts.txt", *sif, "c.txt", "--out", "e.npy"], r"writes a .npy file, not 'c\.txt'"),
    ):
        before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        done = CliRunner().invoke(app, ["embed", *arguments, "--force"])
        assert re.search(says, f"{done.exception}{done.stderr}"), arguments
        assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    asked = ["evaluate", "classifier", "rows.tsv", "--plot", "rows.tsv", "--force"]
    with pytest.raises(WordloomError, match="picture format"):
        CliRunner().invoke(app, asked, catch_exceptions=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_pipe_is_refused_and_the_target_of_a_link_is_written(folder, monkeypatch, tmp_path, name):
    monkeypatch.chdir(folder)
    arguments = [str(one) for one in COMMANDS[name]]
    ending = arguments[-1].removeprefix("FILE")
    pipe, link, target = (tmp_path / f"{each}{ending}" for each in ("pipe", "link", "target"))
    os.mkfifo(pipe)
    with pytest.raises(WordloomError, match="is a device, a pipe or a socket; name a file"):
        CliRunner().invoke(app, [*arguments[:-1], str(pipe), "--force"], catch_exceptions=False)
    target.write_text("mine")
    link.symlink_to(target)
    done = CliRunner().invoke(app, [*arguments[:-1], str(link), "--force"], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    assert link.is_symlink()
    assert target.read_bytes() not in (b"mine", b"")


def test_the_files_of_a_model_are_not_replaced(folder, monkeypatch):
    monkeypatch.chdir(folder)
    saved = folder / "saved"
    for arguments in (
        ["vectors", "convert", "words.bin", "saved", "--force"],
        ["embed", "saved", "texts.txt", "--out", "saved/vectors.npy", "--force"],
    ):
        done = CliRunner().invoke(app, arguments)
        before = {path: path.read_bytes() for path in saved.iterdir()}
    assert "'saved/vectors.npy' would be read and written; choose another name" in str(done.exception)
    assert {path: path.read_bytes() for path in saved.iterdir()} == before
    os.mkfifo(folder / "pipe.bin")
    done = CliRunner().invoke(app, ["vectors", "convert", "words.bin", "pipe.bin", "--force"])
    assert "'pipe.bin' is a device, a pipe or a socket" in str(done.exception)
    (folder / "pipe.bin").unlink()


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "embed"])
def test_a_plot_is_refused_before_any_work(folder, monkeypatch, name):
    monkeypatch.chdir(folder)
    arguments = list(map(str, COMMANDS[name]))[:-1]
    for path, says in (
        ("x.gif", r"'x\.gif' has no ending that names a picture format"),
        ("plot", "'plot' has no ending"),
    ):
        with pytest.raises(WordloomError, match=says):
            CliRunner().invoke(app, [*arguments, path], catch_exceptions=False)
        assert not (folder / path).exists()
    if name in ("evaluate", "attention"):
        with pytest.raises(WordloomError, match="no file is written: leave out --force"):
            CliRunner().invoke(app, [*arguments[:-1], "--force"], catch_exceptions=False)
