"""A script for the scheduler Slurm that trains on many machines, and continues after a time limit."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from wordloom.errors import ConfigError

_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
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
resume=
if [ -e "$out/recipe.toml" ]; then resume=--resume; fi
{setup}
srun --kill-on-bad-exit=1 torchrun --nnodes {nodes} --nproc-per-node {gpus} \\
    --rdzv-id "$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}" --rdzv-backend c10d \\
    --rdzv-endpoint "$first:{port}" -m wordloom train {recipe} --out "$out" $resume &
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
    port: int = 29500,
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
        port: a free port of the first machine.

    Raises ConfigError for text that would break the lines of the script.
    """
    for given in (name, str(out), time, partition or "", account or "", *overrides, recipe):
        if "\n" in given:
            raise ConfigError(f"{given!r} has several lines; write one")
    more = [
        f"#SBATCH --{key}={value}" for key, value in (("partition", partition), ("account", account)) if value
    ]
    return _SCRIPT.format(
        name=shlex.quote(name), nodes=nodes, gpus=gpus, time=time, out=shlex.quote(str(out)), grace=grace,
        port=port, recipe=shlex.join([recipe, *overrides]), more="\n".join(more), setup="\n".join(setup),
    )  # fmt: skip
