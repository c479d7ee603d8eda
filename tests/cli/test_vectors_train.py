"""`wordloom vectors train` as a user runs it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import tomllib
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from wordloom.cli import main
from wordloom.recipe.vectors import VectorSettings
from wordloom.vectors import load_vectors


@pytest.fixture
def start(forked, tmp_path, monkeypatch):
    """A function that starts ``wordloom vectors ARGUMENTS``, or ``code`` in its place."""
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    return partial(forked, "vectors", cwd=tmp_path)


@pytest.fixture
def wordloom(start):
    """A function that runs it to its end."""

    def run(*arguments, **more):
        process = start(*arguments, **more)
        said, errors = process.communicate()
        return subprocess.CompletedProcess([], process.returncode, said, errors)

    return run


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "tale.txt"
    path.write_text("the cat sat on the mat and the dog sat on the log\n" * 4000, encoding="utf-8")
    return path


def test_flags_alone_train_vectors_that_can_be_asked(wordloom, text, tmp_path):
    done = wordloom("train", "--corpus", text, "--dim", 12, "--epochs", 2, "--threads", 2)
    assert done.returncode == 0, done.stderr
    assert "skipgram, 5 negatives shared by a window, numba kernel on 2 threads" in done.stderr
    assert "not deterministic" in done.stderr
    assert "words/s" in done.stderr
    recipe = tomllib.loads((tmp_path / "runs" / "tale" / "recipe.toml").read_text())
    assert recipe["vectors"]["dim"] == 12
    asked = wordloom("similar", "runs/tale", "cat", "--top-k", 1)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.split()[:2] == ["cat", "cosine"]
    assert asked.stdout.split()[-2] in ["the", "sat", "on", "mat", "and", "dog", "log"]
    refused = wordloom("predict", "runs/tale", text)
    assert refused.returncode == 2
    assert "'runs/tale' holds word vectors and no classifier; give a run of" in refused.stderr


def test_a_recipe_and_settings_of_ones_own(wordloom, text, tmp_path):
    (tmp_path / "mine.toml").write_text('[data]\ntrain = "tale.txt"\n[vectors]\ndim = 30\nepochs = 1\n')
    done = wordloom("train", "mine.toml", "vectors.dim=8", "--architecture", "cbow")
    assert done.returncode == 0, done.stderr
    assert load_vectors(tmp_path / "runs" / "mine").vectors.shape[1] == 8
    assert "cbow" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train"], "give a recipe, or --corpus FILE"),
        (["train", "vectors.dim=5"], "give a recipe, or --corpus FILE"),
        (["train", "nowhere.toml"], "no recipe file nowhere.toml"),
        (["train", "word2vec-gutenburg"], "did you mean 'word2vec-gutenberg'"),
        (["train", "quickstart"], "the recipe 'quickstart' is for 'wordloom train'"),
        (["train", "--resume"], "there is no run to resume. Give its folder"),
        (["train", "--out", "nowhere", "--resume"], "nowhere holds no run to resume"),
        (["train", "--corpus", "tale.txt", "--dim", "1000000000000"], "lower vectors.dim (--dim)"),
        (["train", "--corpus", "nowhere.txt"], "nowhere.txt"),
        (["train", "--corpus", "tale.txt", "--dim", "0"], "vectors.dim"),
        (["train", "--corpus", "tale.txt", "--algorithm", "word3vec"], "'word2vec'"),
        (["train", "--corpus", "tale.txt", "--min-count", "1000000"], "lower min_count"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(text, tmp_path, arguments, says, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["wordloom", "vectors", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert says in told
    assert "Traceback" not in told
    assert len([line for line in told.splitlines() if line.startswith("wordloom: ")]) == 1


@pytest.mark.parametrize(
    ("name", "content", "option"),
    [
        ("latin.txt", "caf\xe9 the cat sat\n".encode("latin-1") * 99, ["--encoding-errors", "replace"]),
        ("rows.jsonl", b'{"body": "the cat sat on the mat"}\n' * 99, ["--field", "body"]),
    ],
)
def test_an_option_that_a_message_advises_is_there(tmp_path, monkeypatch, capsys, name, content, option):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))
    Path(name).write_bytes(content)
    given = ["wordloom", "vectors", "train", "--corpus", name, "--dim", "3", "--epochs", "1"]
    for more, code in (([], 2), (option, 0)):
        monkeypatch.setattr(sys, "argv", [*given, *more])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr().err
        assert ended.value.code in (code, None if code == 0 else code), told
        assert code == 0 or option[0] in told


def test_ctrl_c_saves_and_the_command_it_prints_goes_on(start, wordloom, text, tmp_path):
    running = start("train", "--corpus", text, "--epochs", 100_000, "--dim", 50, "--deterministic")
    metrics = tmp_path / "runs" / "tale" / "metrics.jsonl"
    for _ in range(600):
        if metrics.exists() and metrics.stat().st_size > 0:
            break
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate()
    assert running.returncode == 0, errors
    assert "stopped at" in errors
    assert (tmp_path / "runs" / "tale" / "checkpoints" / "vectors.safetensors").exists()
    question, _, command = errors.splitlines()[-3:]
    assert question == "  wordloom vectors similar runs/tale WORD"
    asked = wordloom("similar", "runs/tale", "cat")
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.split()[0] == "cat"
    assert asked.stderr.startswith("note: training stopped at ")
    assert asked.stderr.strip().endswith(command.strip())
    assert command == "  wordloom vectors train --out runs/tale --resume"
    again = start(*command.split()[2:])
    before = metrics.stat().st_size
    for _ in range(600):
        if metrics.stat().st_size > before:
            break
        time.sleep(0.1)
    again.send_signal(signal.SIGTERM)
    _, errors = again.communicate()
    assert again.returncode == 0, errors
    assert "resuming at" in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("during", "kept"), [("Phrases.learn", "settings"), ("prepare", "settings and vocabulary")]
)
def test_a_signal_before_training_keeps_what_is_known(wordloom, text, tmp_path, number, during, kept):
    slow = (
        "import os, time\n"
        "from wordloom.run.vectors import vector_run as module\n"
        "def waits(*_, **__):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    time.sleep(60)\n"
        f"module.{during} = waits\n"
        "from wordloom.cli import main\n"
        "main()\n"
    )
    done = wordloom("train", "--corpus", "tale.txt", "--phrases", 1, code=slow)
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()[-3:]
    assert said == [
        f"kept        {kept}; the interrupted step starts again on --resume",
        "stopped before training began; to resume:",
        "  wordloom vectors train --out runs/tale --resume",
    ]
    assert (tmp_path / "runs" / "tale" / "vocabulary.tsv").exists() == ("vocabulary" in kept)
    asked = wordloom("similar", "runs/tale", "cat")
    assert asked.returncode == 2
    assert said[-1].strip() in asked.stderr
    again = wordloom(*said[-1].split()[2:])
    assert again.returncode == 0, again.stderr
    assert "cat" in load_vectors(tmp_path / "runs" / "tale")


def test_a_signal_before_training_leaves_the_run_that_force_would_replace(wordloom, text, tmp_path):
    assert wordloom("train", "--corpus", text, "--epochs", 1).returncode == 0
    run = tmp_path / "runs" / "tale"
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    slow = (
        "import os, time\n"
        "from wordloom.run.vectors import vector_run as module\n"
        "module.prepare = lambda *_, **__: (os.kill(os.getpid(), 15), time.sleep(60))\n"
        "from wordloom.cli import main\n"
        "main()\n"
    )
    done = wordloom("train", "--corpus", "tale.txt", "--force", code=slow)
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1] == "stopped before training began: the run in runs/tale is unchanged"
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_the_help_names_every_algorithm(wordloom):
    said = " ".join(wordloom("train", "--help").stdout.split()).replace("- ", "-")
    allowed = get_args(VectorSettings.model_fields["algorithm"].annotation)
    assert f"{', '.join(allowed[:-1])} or {allowed[-1]}." in said
    assert "line, blank-line, file, or" in said


def test_a_line_is_a_text_unless_something_else_is_said(wordloom, text, tmp_path):
    for out, flags, texts in (
        ("lines", [], 4000),
        ("one", ["--separator", "file"], 1),
        ("marked", ["--separator", "the cat sat on the mat and the dog sat on the log"], 0),
    ):
        done = wordloom("train", "--corpus", text, "--epochs", 1, "--out", out, *flags)
        if texts:
            assert f"in {texts:,} text" in done.stderr
        else:
            assert "holds no words" in done.stderr
