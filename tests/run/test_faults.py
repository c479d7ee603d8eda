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

from wordloom.run import train

from .test_train import lines

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


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def kill_at(folder: Path, place: str, count: int, recipe: Path, run: Path) -> None:
    """Train in a process of its own that dies at the ``count``-th call of ``place``."""
    script = folder / "kill.py"
    script.write_text(KILL_AT)
    command = [sys.executable, script, place, str(count), "train", str(recipe), "--out", str(run)]
    killed = subprocess.run(command, env=environment(), capture_output=True, timeout=200)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()


@pytest.fixture
def straight(recipe, tmp_path) -> Path:
    return train(recipe(), out=tmp_path / "straight").folder


def assert_same(straight: Path, run: Path) -> None:
    assert lines(straight) == lines(run)
    for name in SAVED:
        assert (straight / name).read_bytes() == (run / name).read_bytes(), name
    left_over = [path for path in run.rglob("*") if path.name.startswith(".writing") or path.suffix == ".tmp"]
    assert left_over == []


@pytest.mark.parametrize(
    ("place", "count"),
    [("save_file", 2), ("sync_folder", 1), ("sync_folder", 3), ("_discard", 5)],
    ids=["half-written", "before the first rename", "before a later rename", "while pruning"],
)
def test_killed_in_the_middle_of_a_save(recipe, tmp_path, straight, place, count):
    run = tmp_path / "run"
    kill_at(tmp_path, place, count, recipe(), run)
    for step in (run / "checkpoints").glob("step-*"):
        assert (step / "trainer" / "state.json").exists()
    train(recipe(), out=run, resume=True)
    assert_same(straight, run)


def test_killed_at_random_moments(recipe, tmp_path, straight):
    run = tmp_path / "run"
    moments = random.Random()
    command = [sys.executable, "-m", "wordloom", "train", str(recipe()), "--out", str(run)]
    for _ in range(2):
        resume = ["--resume"] if (run / "recipe.toml").exists() else []
        process = subprocess.Popen([*command, *resume], env=environment(), stderr=subprocess.PIPE)
        metrics = run / "metrics.jsonl"
        deadline = time.monotonic() + 120
        start = metrics.stat().st_size if metrics.exists() else 0
        while process.poll() is None and (not metrics.exists() or metrics.stat().st_size <= start):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        wait = moments.random() * 0.5
        print(f"killing {wait:.4f} s after the first line")  # shown when the test fails
        time.sleep(wait)
        process.kill()
        process.communicate()
    train(recipe(), out=run, resume=True)
    assert_same(straight, run)


def test_a_full_disk_is_one_line_and_loses_nothing(recipe, tmp_path, straight):
    """A limit on file size stands for the disk: the kernel refuses the write in the middle of the file."""
    run = tmp_path / "run"
    kill_at(tmp_path, "sync_folder", 3, recipe(), run)  # steps 5 and 10 are saved
    limited = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "from wordloom.cli import main\n"
        "main()\n"
    )
    arguments = ["train", str(recipe()), "--out", str(run), "--resume"]
    full = subprocess.run(
        [sys.executable, "-c", limited, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert full.returncode == 2, full.stderr
    last = full.stderr.strip().splitlines()[-1]
    assert "could not write" in last
    assert "step-10" in last
    assert "Traceback" not in full.stderr
    assert (run / "checkpoints" / "step-10" / "model.safetensors").exists()
    train(recipe(), out=run, resume=True)
    for name in SAVED:
        assert (straight / name).read_bytes() == (run / name).read_bytes(), name


@pytest.mark.parametrize(
    ("limit", "message"), [(100, "cannot begin a run in"), (5_000, "could not write .*metrics.jsonl")]
)
def test_a_full_disk_beside_a_save_is_one_line_too(recipe, tmp_path, straight, limit, message):
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
    arguments = ["train", str(recipe()), "train.log_every=1", "train.save_every=0", "--out", str(run)]
    full = subprocess.run(
        [sys.executable, "-c", limited, *arguments], env=environment(), capture_output=True, text=True
    )
    assert full.returncode == 2, full.stderr
    assert re.search(message, full.stderr.strip().splitlines()[-1])
    assert "Traceback" not in full.stderr
    train(
        recipe(), ["train.log_every=1", "train.save_every=0"], out=run, resume=(run / "recipe.toml").exists()
    )
    assert (run / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_before_the_steps(recipe, tmp_path, number):
    """Nothing is under way then: a run that has a checkpoint is stopped there, a new one has nothing."""
    run = train(recipe(), ["train.steps=3"], out=tmp_path / "run").folder
    slow = (
        "import os, sys, wordloom.run\n"
        "def preparing(*_):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    import time; time.sleep(60)\n"
        "sys.modules['wordloom.run.train'].make_plan = lambda *_, **__: preparing()\n"
        "from wordloom.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", slow, "train", str(recipe())]
    given = {"env": environment(), "capture_output": True, "text": True, "timeout": 100}
    resumed = subprocess.run([*command, "train.steps=9", "--out", str(run), "--resume"], **given)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stderr.splitlines()[-2:] == [
        "stopped at step 3 of 3; to go on:", f"  wordloom train {run} --out {run} --resume"
    ]  # fmt: skip
    fresh = subprocess.run([*command, "--out", str(tmp_path / "new")], **given)
    assert fresh.returncode == 130
    assert fresh.stderr.splitlines()[-1] == "stopped before anything was saved"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_how_to_go_on(recipe, tmp_path, number):
    """The printed command is run as it is: it knows the overrides too."""
    changed = ["model.n_layers=1"]
    straight = train(recipe(), changed, out=tmp_path / "straight").folder
    run = tmp_path / "run"
    start = [sys.executable, "-m", "wordloom", "train", str(recipe())]
    command = [*start, "train.log_every=1", *changed, "--out", str(run)]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    if "stopped at step" in said:  # else it was done before the signal came
        command = said.strip().splitlines()[-1].split()
        assert command[0] == "wordloom"
        done = subprocess.run([sys.executable, "-m", *command], env=environment(), timeout=200, check=False)
        assert done.returncode == 0
    for name in SAVED:
        assert (straight / name).read_bytes() == (run / name).read_bytes(), name


def test_a_reader_that_goes_does_not_end_the_run(recipe, tmp_path):
    run = tmp_path / "run"
    start = [sys.executable, "-m", "wordloom", "train", str(recipe())]
    command = [*start, "train.log_every=1", "--out", str(run)]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.readline()
    process.stderr.close()  # as `wordloom train ... 2>&1 | head -1` does
    assert process.wait(timeout=120) == 0
    assert (run / "model.safetensors").exists()
