"""A script for the scheduler Slurm that trains on many machines, and continues after a time limit."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from wordloom.errors import ConfigError

_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --exclusive
#SBATCH --time={time}
#SBATCH --output={name}-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@{grace}
{more}
# {grace} s before the time limit, and when the job is preempted, this shell gets SIGTERM and passes it on:
# all ranks finish the step and save.  The job then waits in the queue again, and continues where it stopped.
out={out}
stopped=
trap 'stopped=1; kill -TERM "$job"' TERM
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))  # two jobs on one machine have two ports
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={grace}  # torchrun kills ranks 30 s after the signal by default
resume=
if [ -e "$out/recipe.toml" ]; then resume=--resume; fi
{setup}
srun --kill-on-bad-exit=1 torchrun --nnodes {nodes} --nproc-per-node {gpus} \\
    --rdzv-id "$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}" --rdzv-backend c10d \\
    --rdzv-endpoint "$first:$port" -m wordloom train {recipe} --out "$out" $resume &
job=$!
wait "$job"
code=$?
if [ -n "$stopped" ]; then
    wait "$job"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$code"
"""


def sbatch_script(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    name: str,
    out: Path,
    nodes: int,
    gpus: int = 8,
    time: str = "24:00:00",
    partition: str | None = None,
    account: str | None = None,
    setup: Sequence[str] = (),
    grace: int = 300,
    more: Sequence[str] = (),
) -> str:
    """Return a script for ``sbatch`` that trains ``recipe`` into the folder ``out``.

    Args:
        recipe: as of :func:`wordloom.run.train`.
        overrides: settings that replace those of the recipe.
        name: of the job.
        out: the folder of the run, which all machines see.
        nodes: the number of machines.
        gpus: of each machine; each has one rank.
        time: the time limit of the job, in Slurm's format.
        partition, account: those of Slurm.
        setup: lines of shell that run before, such as the activation of an environment.
        grace: the seconds between the signal and the time limit, in which the ranks save.
        more: further options of sbatch, such as ``--mem=0``.

    Raises ConfigError for text that would break the lines of the script, for a time that Slurm cannot read,
    and for one that ends before the signal.
    """
    for given in (name, str(out), time, partition or "", account or "", *overrides, recipe, *more):
        if "\n" in given:
            raise ConfigError(f"{given!r} has several lines; write one")
    for key, value in (("partition", partition), ("account", account)):
        if value is not None and not re.fullmatch(r"[\w.,@+-]+", value):
            raise ConfigError(f"--{key} {value!r} is no name of Slurm; write it without blanks and quotes")
    for option in more:
        if not option.startswith("--"):
            raise ConfigError(
                f"--sbatch {option!r} is no option of sbatch; begin it with --, such as --mem=0"
            )
    if _seconds(time) <= grace:
        raise ConfigError(
            f"the time limit {time} ends before the signal {grace} seconds earlier; give a longer --time or "
            "a shorter --grace"
        )
    lines = [f"--{key}={value}" for key, value in (("partition", partition), ("account", account)) if value]
    return _SCRIPT.format(
        name=shlex.quote(name), nodes=nodes, gpus=gpus, time=time, out=shlex.quote(str(out)), grace=grace,
        recipe=shlex.join([recipe, *overrides]), setup="\n".join(setup),
        more="\n".join(f"#SBATCH {line}" for line in [*lines, *more]),
    )  # fmt: skip


def _seconds(time: str) -> int:
    """Return the length of a time of Slurm: minutes, minutes:seconds, hours:minutes:seconds, or days before
    them."""
    if time == "UNLIMITED":
        return sys.maxsize
    days, dash, rest = time.rpartition("-")
    fields = rest.split(":")
    if not all(field.isdecimal() for field in fields) or len(fields) > 3 or (dash and not days.isdecimal()):
        raise ConfigError(
            f"--time {time!r} is no time of Slurm; allowed: 90 (minutes), 1:30:00 or 2-12:00:00 (days-hours)"
        )
    numbers = [int(field) for field in fields]
    short = not dash and len(numbers) < 3  # without days, one or two numbers begin with minutes
    units = (60, 1) if short else (3600, 60, 1)
    return 86400 * int(days or 0) + sum(n * unit for n, unit in zip(numbers, units, strict=False))
