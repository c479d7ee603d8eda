"""The power goes: SIGKILL at any moment, in the middle of a save, a full disk, SIGTERM.  Nothing is lost."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.run.conftest import write_corpus, write_recipe
from tests.run.test_train import lines

from wordloom.run import train

SAVED = (
    "model.safetensors",
    "checkpoints/step-24/model.safetensors",
    "checkpoints/step-24/trainer/state.safetensors",
)

# Kills itself with SIGKILL at the Nth call of a function of the checkpoint module: no handler, no clean-up.
KILL_AT = """
import os, signal, sys
import wordloom.training.checkpoint as checkpoint
place, count = sys.argv.pop(1), int(sys.argv.pop(1))
original = getattr(checkpoint, place)
def dying(*args, **kwargs):
    global count
    count -= 1
    if count == 0:
        if place == "save_file":  # half of the file is there
            args[1].write_bytes(b"\\0" * 100)
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(checkpoint, place, dying)
from wordloom.cli import main
main()
"""


# The runs that nothing happens to are trained once, and the cache of tokens is filled by them.


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    return write_recipe(folder, write_corpus(folder))


@pytest.fixture(scope="module")
def straight(recipe) -> Path:
    return train(recipe, out=recipe.parent / "straight").folder


@pytest.fixture(scope="module")
def of_one_layer(recipe) -> Path:
    return train(recipe, ["model.n_layers=1"], out=recipe.parent / "one-layer").folder


@pytest.fixture
def kill_at(forked, recipe):
    """A function that trains in a process of its own that dies at the ``count``-th call of ``place``."""

    def kill(place: str, count: int, run: Path) -> None:
        killed = forked(place, count, "train", recipe, "--out", run, code=KILL_AT).completed()
        assert killed.returncode == -signal.SIGKILL, killed.stderr

    return kill


def wait_for_lines(run: Path, process, *, beyond: int = 0) -> None:
    metrics = run / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while process.returncode is None and (not metrics.exists() or metrics.stat().st_size <= beyond):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def assert_same(straight: Path, run: Path) -> None:
    assert lines(straight) == lines(run)
    for name in SAVED:
        assert (straight / name).read_bytes() == (run / name).read_bytes(), name
    left_over = [path for path in run.rglob("*") if path.name.startswith(".writing") or path.suffix == ".tmp"]
    assert left_over == []


@pytest.mark.parametrize(
    ("place", "count"),
    [("save_file", 2), ("publish_folder", 1), ("publish_folder", 3), ("_discard", 5)],
    ids=["half-written", "before the first rename", "before a later rename", "while pruning"],
)
def test_killed_in_the_middle_of_a_save(kill_at, recipe, tmp_path, straight, place, count):
    run = tmp_path / "run"
    kill_at(place, count, run)
    for step in (run / "checkpoints").glob("step-*"):
        assert (step / "trainer" / "state.json").exists()
    train(recipe, out=run, resume=True)
    assert_same(straight, run)


def test_killed_at_random_moments(forked, recipe, tmp_path, straight):
    run = tmp_path / "run"
    moments = random.Random()
    metrics = run / "metrics.jsonl"
    for _ in range(2):
        resume = ["--resume"] if (run / "recipe.toml").exists() else []
        start = metrics.stat().st_size if metrics.exists() else 0
        process = forked("train", recipe, "--out", run, *resume)
        wait_for_lines(run, process, beyond=start)
        wait = moments.random() * 0.5
        print(f"killing {wait:.4f} s after the first line")  # shown when the test fails
        time.sleep(wait)
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()
    train(recipe, out=run, resume=True)
    assert_same(straight, run)


def test_a_full_disk_is_one_line_and_loses_nothing(forked, kill_at, recipe, tmp_path, straight):
    """A limit on file size stands for the disk: the kernel refuses the write in the middle of the file."""
    run = tmp_path / "run"
    kill_at("publish_folder", 3, run)  # steps 5 and 10 are saved
    limited = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "from wordloom.cli import main\n"
        "main()\n"
    )
    full = forked("train", recipe, "--out", run, "--resume", code=limited).completed()
    assert full.returncode == 2, full.stderr
    last = full.stderr.strip().splitlines()[-1]
    assert "could not write" in last
    assert "step-10" in last
    assert "Traceback" not in full.stderr
    assert (run / "checkpoints" / "step-10" / "model.safetensors").exists()
    train(recipe, out=run, resume=True)
    for name in SAVED:
        assert (straight / name).read_bytes() == (run / name).read_bytes(), name


@pytest.mark.parametrize(
    ("limit", "message"), [(100, "cannot begin a run in"), (5_000, "could not write .*metrics.jsonl")]
)
def test_a_full_disk_beside_a_save_is_one_line_too(forked, recipe, tmp_path, straight, limit, message):
    """``straight`` has filled the cache of tokens, which is written before."""
    limited = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "import wordloom.run\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "from wordloom.cli import main\n"
        "main()\n"
    )
    run = tmp_path / "run"
    changed = ["train.log_every=1", "train.save_every=0"]
    full = forked("train", recipe, *changed, "--out", run, code=limited).completed()
    assert full.returncode == 2, full.stderr
    assert re.search(message, full.stderr.strip().splitlines()[-1])
    assert "Traceback" not in full.stderr
    train(recipe, changed, out=run, resume=(run / "recipe.toml").exists())
    assert (run / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_before_the_steps(forked, recipe, tmp_path, number):
    """Nothing is under way then: a run that has a checkpoint is stopped there, a new one has nothing."""
    run = train(recipe, ["train.steps=3"], out=tmp_path / "run").folder
    slow = (
        "import os, sys, wordloom.run\n"
        "def preparing(*_):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    import time; time.sleep(60)\n"
        "sys.modules['wordloom.run.train'].make_plan = lambda *_, **__: preparing()\n"
        "from wordloom.cli import main\n"
        "main()\n"
    )
    resumed = forked("train", recipe, "train.steps=9", "--out", run, "--resume", code=slow).completed()
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stderr.splitlines()[-2:] == [
        "stopped at step 3 of 3; to continue:", f"  wordloom train {run} --resume"
    ]  # fmt: skip
    fresh = forked("train", recipe, "--out", tmp_path / "new", code=slow).completed()
    assert fresh.returncode == 130
    assert fresh.stderr.splitlines()[-1] == "stopped before anything was saved"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_resume_command(forked, recipe, tmp_path, of_one_layer, number):
    """The printed command is run as it is: it knows the overrides too."""
    run = tmp_path / "run"
    process = forked("train", recipe, "train.log_every=1", "model.n_layers=1", "--out", run)
    wait_for_lines(run, process)
    assert process.returncode is None, process.communicate()
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 0, said
    if "stopped at step" in said:  # else it was done before the signal came
        command = said.strip().splitlines()[-1].split()
        assert command[0] == "wordloom"
        done = forked(*command[1:]).completed()
        assert done.returncode == 0, done.stderr
    for name in SAVED:
        assert (of_one_layer / name).read_bytes() == (run / name).read_bytes(), name


def test_a_reader_that_goes_does_not_end_the_run(recipe, tmp_path):
    run = tmp_path / "run"
    start = [sys.executable, "-m", "wordloom", "train", str(recipe)]
    command = [*start, "train.log_every=1", "train.steps=8", "--out", str(run)]
    process = subprocess.Popen(command, env=dict(os.environ), stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.readline()
    process.stderr.close()  # as `wordloom train ... 2>&1 | head -1` does
    assert process.wait(timeout=120) == 0
    assert (run / "model.safetensors").exists()
