"""The command itself: quick help, one-line errors, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "transformers", "pydantic", "tokenizers", "numba")


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
    "arguments", [["--help"], ["train", "--help"], ["tokenize", "--help"], ["inspect", "--help"]]
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


def test_every_verb_has_a_line():
    said = run("--help").stdout
    for verb in ("train", "evaluate", "generate", "chat", "tokenize", "data", "inspect", "demo"):
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
def test_a_mistake_is_one_line_and_exit_code_2(arguments, says, tmp_path):
    done = run(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("wordloom: ")


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
