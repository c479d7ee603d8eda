"""``wordloom plan RECIPE --gpus N``: the memory and the speed of a run on GPUs that are not there."""

from __future__ import annotations

import json as json_module
import math
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument

from wordloom.cli import options
from wordloom.cli.options import argument, option
from wordloom.cli.usage import UsageError, refuse

if TYPE_CHECKING:
    from wordloom.run.planning.gpus import Gpu
    from wordloom.run.planning.plan import ClusterPlan

_GIB, _MIB = 2**30, 2**20
_NAME = 11  # characters of the name of a line


def command(
    ctx: typer.Context,
    recipe: Annotated[
        str,
        Argument(
            help="The name of a built-in recipe, a .toml file, the folder of a run, or a preset such as "
            "llama2-70b."
        ),
    ],
    overrides: list[str] | None = argument(
        None, "Settings that replace those of the recipe, such as train.shard=full.", metavar="[KEY=VALUE]..."
    ),
    gpus: int = option(1, "The number of GPUs of all machines together.", min=1, max=1_000_000),
    gpu: str | None = option(
        None,
        "The kind of GPU: a100-40gb, a100-80gb, h100-80gb, h200-141gb, b200-180gb, mi300x-192gb, l4-24gb, "
        "a10g-24gb, l40s-48gb, rtx3090-24gb or rtx4090-24gb.",
    ),
    gpus_per_machine: int = option(8, "The GPUs of a machine.", min=1),
    utilisation: float = option(
        0.4, "The share of the peak FLOP rate that the computation reaches.", min=0.01, max=1.0
    ),
    memory: float | None = option(None, "The memory of a GPU in GiB.", min=0.1),
    flops: float | None = option(
        None, "The peak rate of a GPU in TFLOP/s, of dense products in the recipe's precision.", min=0.001
    ),
    bandwidth: float | None = option(
        None, "GB/s that a GPU sends to others of its machine, in one direction.", min=0.001
    ),
    network: float | None = option(
        None, "GB/s that a GPU sends to other machines.  [default: that of the GPU, or --bandwidth]",
        min=0.001,
    ),
    json: options.JSON = False,
) -> None:  # fmt: skip
    """Predict memory, speed and duration of training on GPUs.

    No GPU, data or tokenizer is needed, and no weight is allocated.  If the run does not fit, the plan names
    up to three settings to change, those that keep the result first, and the number of GPUs that would do.  A
    preset is planned with one row of the longest
    length on each GPU, and 20 tokens per parameter.
    """
    from wordloom.run.planning.plan import Hardware, plan_recipe

    figures = {"--memory": memory, "--flops": flops, "--bandwidth": bandwidth, "--network": network}
    for flag, value in figures.items():
        if value is not None and not math.isfinite(value):
            raise UsageError(f"{flag} is {value}; give a number")
    if gpus == 1:
        refuse(ctx, "one GPU has no machine beside it", "network", "gpus_per_machine")
    hardware = Hardware(
        gpu=_gpu(gpu, memory=memory, flops=flops, bandwidth=bandwidth, network=network, alone=gpus == 1),
        gpus=gpus,
        per_machine=gpus_per_machine,
        utilisation=utilisation,
    )
    plan = plan_recipe(
        recipe, overrides or (), hardware=hardware, say=lambda line: typer.echo(line, err=True)
    )
    if json:
        typer.echo(json_module.dumps(plan.as_dict()))
    else:
        _print(plan, gpu or f"GPU of {memory:g} GiB")


def _gpu(
    name: str | None,
    *,
    memory: float | None,
    flops: float | None,
    bandwidth: float | None,
    network: float | None,
    alone: bool,
) -> Gpu:
    """Return the GPU that the options describe; those beside ``--gpu`` replace its figures."""
    from dataclasses import replace

    from wordloom.run.planning.gpus import GPUS, Gpu, gpu_called

    if name is not None:
        known = gpu_called(name)
        return replace(
            known,
            memory=memory or known.memory,
            bf16=flops or known.bf16,
            fp32=flops or known.fp32,
            bandwidth=bandwidth or known.bandwidth,
            network=network or known.network,
        )
    given = {"--memory": memory, "--flops": flops, "--bandwidth": bandwidth or (1.0 if alone else None)}
    if missing := [flag for flag, value in given.items() if value is None]:
        raise UsageError(
            f"give --gpu ({', '.join(GPUS)}), or own hardware by --memory, --flops and, of several "
            f"GPUs, --bandwidth; missing: {', '.join(missing)}"
        )
    assert memory is not None
    assert flops is not None
    near = bandwidth or 1.0
    return Gpu(memory=memory, bf16=flops, fp32=flops, bandwidth=near, network=network or near)


def _print(plan: ClusterPlan, gpu: str) -> None:
    """Print the plan as a table of memory and lines of text."""
    from rich.console import Console

    from wordloom.cli.tables import plain_table, print_unwrapped

    console = Console()
    s, hardware, speed = plan.recipe.train, plan.hardware, plan.speed
    machines = f" in {plan.layout.machines} machines" if plan.layout.machines > 1 else ""
    rows = f"{plan.rows} row{'s' * (plan.rows > 1)} of {s.seq_len:,} tokens"
    blocks = "eager" if s.compile == "off" else "compiled"
    print(f"{plan.recipe.name}: {plan.shape.parameters:,} parameters, on {hardware.gpus:,} × {gpu}{machines}")
    print(f"train.shard {s.shard}, {s.precision}, {blocks}, micro-batches of {rows}\n")
    unit, size_of_unit = ("GiB", _GIB) if plan.memory.total >= _GIB else ("MiB", _MIB)
    table = plain_table(None, "memory of a GPU", unit, "share")
    for kind, size in plan.memory.by_kind.items():
        if size:
            table.add_row(kind, f"{size / size_of_unit:,.2f}", f"{size / plan.memory.total:.0%}")
    table.add_section()
    peak = f"{plan.memory.total / size_of_unit:,.2f}"
    table.add_row(f"peak, in the {plan.memory.moment}", peak, _verdict(plan.fits), style="bold")
    table.add_row("usable", f"{plan.available / size_of_unit:,.2f}", "")
    print_unwrapped(table, console)
    print()
    lines = [
        ("main memory", f"{_bytes(plan.memory.start)} of a machine to build the model, "
                        f"{_bytes(plan.memory.checkpoint)} while a checkpoint is written"),
        ("compute", f"{speed.flops_per_token:.3g} FLOPs per token, "
                    f"{speed.flops_per_token * speed.tokens:.3g} per step of {speed.tokens:,} tokens"),
        ("speed", f"{speed.tokens_per_second:,.0f} tokens per second, {_duration(speed.step_seconds)} a "
                  f"step, at {hardware.utilisation:.0%} of the peak FLOP rate while computing"),
        *_network(plan),
        *_run(plan),
        *(("note", note) for note in plan.notes),
    ]  # fmt: skip
    for name, text in lines:
        indent = " " * (_NAME + 1)
        print(textwrap.fill(f"{name:{_NAME}} {text}", max(60, console.width), subsequent_indent=indent))
    if not plan.fits:
        _print_changes(plan)


def _print_changes(plan: ClusterPlan) -> None:
    from wordloom.cli.tables import plain_table, print_unwrapped

    table = plain_table(None, "to make it fit, one after another", "GiB", "")
    for change in plan.changes:
        table.add_row(change.setting, f"{change.total / _GIB:,.2f}", _verdict(change.fits))
    if plan.changes:
        print()
        print_unwrapped(table)
    if plan.enough is not None:
        print(f"\nIt fits on {plan.enough:,} of these GPUs with train.shard=full, and an equal result.")


def _verdict(fits: bool) -> str:
    return "fits" if fits else "does not fit"


def _bytes(size: int) -> str:
    return f"{size / _GIB:,.1f} GiB" if size >= _GIB else f"{size / _MIB:,.1f} MiB"


def _network(plan: ClusterPlan) -> list[tuple[str, str]]:
    """Return the line on communication, if there is any."""
    speed = plan.speed
    if plan.hardware.gpus == 1:
        return []
    compute = speed.parts * (speed.forward.compute + speed.backward.compute)
    waiting = speed.parts * (speed.forward.communication + speed.backward.communication)
    if speed.hides:
        verdict = "hides behind compute"
    else:
        verdict = "takes longer than compute, which waits for it"
    sent = f"{speed.traffic / 1e9:,.1f} GB" if speed.traffic >= 1e9 else f"{speed.traffic / 1e6:,.1f} MB"
    return [(
        "network",
        f"{sent} sent by each GPU in a step: {_duration(waiting)} beside {_duration(compute)} of compute; it "
        f"{verdict}. It hides with {speed.least_tokens:,} tokens or more in a micro-batch of a GPU (now "
        f"{speed.micro_tokens:,}). The first and the last of it, {_duration(speed.parts * speed.exposed)} a "
        "step, have no compute beside them",
    )]  # fmt: skip


def _run(plan: ClusterPlan) -> list[tuple[str, str]]:
    """Return the line on the whole run, if its length is known."""
    if plan.tokens is None or plan.seconds is None or plan.steps is None:
        return []
    hours = plan.seconds / 3600 * plan.hardware.gpus
    return [(
        "run",
        f"{plan.steps:,} steps = {plan.tokens:,} tokens = "
        f"{plan.speed.flops_per_token * plan.tokens:.3g} FLOPs: {_duration(plan.seconds)}, "
        f"{hours:,.{0 if hours > 100 else 1}f} GPU hours",
    )]  # fmt: skip


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for unit, size in (("s", 120.0), ("min", 7200.0), ("h", 172800.0)):
        if seconds < size:
            return f"{seconds / {'s': 1, 'min': 60, 'h': 3600}[unit]:.3g} {unit}"
    return f"{seconds / 86400:,.1f} days"
