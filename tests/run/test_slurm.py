"""The script for Slurm, run by bash with commands in place of Slurm's that record how they are called."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from wordloom.errors import ConfigError
from wordloom.run.slurm import sbatch_script

SRUN = """#!/bin/bash
echo "$@" >> calls
echo "$TORCH_ELASTIC_SHUTDOWN_TIMEOUT" > grace
trap 'echo saved >> calls; exit 143' TERM
touch running
for ((i = 0; i < 600; i++)); do [ -e finish ] && exit "$(cat finish)"; sleep 0.05; done
"""


SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then echo node7; echo node8; else echo "$@" >> calls; fi
"""


@pytest.fixture
def job(tmp_path: Path) -> subprocess.Popen[bytes]:
    """The script under way, in a folder of its own."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in {
        "srun": SRUN,
        "scontrol": SCONTROL,
    }.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    script = sbatch_script(
        "my recipe.toml", ["train.shard=full"], name="mine", out=Path("runs/a run"), nodes=2, gpus=4,
        partition="gpu", setup=["touch prepared"],
    )  # fmt: skip
    assert "#SBATCH --partition=gpu\n" in script
    (tmp_path / "job.sh").write_text(script)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        ["bash", "job.sh"], cwd=tmp_path,
        env={"PATH": path, "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "node[7-8]"},
    )  # fmt: skip
    until(tmp_path / "running")
    return process


def until(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.05)
    raise AssertionError(path)


def test_a_job_at_its_limit_saves_and_waits_again(job: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert (tmp_path / "prepared").exists()
    job.send_signal(signal.SIGTERM)
    assert job.wait(60) == 0
    first, saved, again = (tmp_path / "calls").read_text().splitlines()
    assert first.startswith("--kill-on-bad-exit=1 torchrun --nnodes 2 --nproc-per-node 4 --rdzv-id 12-0")
    assert first.endswith(
        "--rdzv-endpoint node7:20012 -m wordloom train my recipe.toml train.shard=full --out runs/a run"
    )
    # without a longer time, torchrun kills ranks 30 seconds after the signal
    assert (tmp_path / "grace").read_text() == "300\n"
    assert saved == "saved"
    assert again == "requeue 12"


@pytest.mark.parametrize("code", [0, 2])
def test_a_job_that_ends_by_itself_does_not_wait_again(
    code: int, job: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (tmp_path / "finish").write_text(str(code))
    assert job.wait(60) == code
    assert len((tmp_path / "calls").read_text().splitlines()) == 1


def test_a_run_that_is_there_is_continued(tmp_path: Path) -> None:
    script = sbatch_script("r", name="r", out=tmp_path, nodes=1)
    (tmp_path / "recipe.toml").touch()
    chosen = script[script.index("out=") : script.index("first=")] + 'echo "$resume"'
    lines = script[script.index("resume=") : script.index("srun")]
    done = subprocess.run(["bash", "-c", f"{chosen}\n{lines}\necho $resume"], capture_output=True, text=True)
    assert done.stdout.split() == ["--resume"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"time": "banana"}, "'banana' is no time of Slurm; allowed: 90"),
        ({"time": "1:2:3:4"}, "is no time of Slurm"),
        ({"time": "-3"}, "is no time of Slurm"),
        ({"time": "1 2"}, "is no time of Slurm"),
        ({"time": "5:00", "grace": 300}, "the time limit 5:00 ends before the signal 300 seconds earlier"),
        ({"time": "0-0:01"}, "ends before the signal"),
        ({"partition": "p q; rm"}, "--partition 'p q; rm' is no name of Slurm"),
        ({"account": "$(x)"}, "--account"),
        ({"more": ["mem=0"]}, "--sbatch 'mem=0' is no option of sbatch"),
    ],
)
def test_what_slurm_would_misread_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        sbatch_script("r", **{"name": "r", "out": Path("runs"), "nodes": 1, **given})
    assert says in str(error.value)


@pytest.mark.parametrize("time", ["90", "10:30", "1:30:00", "2-12", "2-12:30", "2-12:30:59", "UNLIMITED"])
def test_times_of_slurm(time: str) -> None:
    script = sbatch_script("r", name="r", out=Path("runs"), nodes=1, time=time, more=["--mem=0", "--qos=low"])
    assert f"#SBATCH --time={time}\n" in script
    assert "#SBATCH --exclusive\n" in script
    assert "#SBATCH --mem=0\n#SBATCH --qos=low\n" in script


def test_text_of_several_lines_is_refused() -> None:
    with pytest.raises(ConfigError, match="has several lines"):
        sbatch_script("r", name="a\n#SBATCH --exclusive", out=Path("runs"), nodes=1)
