"""``wordloom plan RECIPE --gpus N``: the memory and the speed of a run on GPUs that are not there."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument

from wordloom.cli import options
from wordloom.cli.options import argument, option
from wordloom.cli.usage import UsageError, refuse

if TYPE_CHECKING:
    from wordloom.run.planning.gpus import Gpu
    from wordloom.run.planning.plan import ClusterPlan

_GIB = 2**30


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
    gpus: int = option(1, "The number of GPUs of all machines together.", min=1),
    gpu: str | None = option(
        None, "The kind of GPU, such as a100-40gb, a100-80gb, h100-80gb, h200-141gb or rtx4090-24gb."
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
    three settings to change, each with the memory after it.  A preset is planned with one row of the longest
    length on each GPU, and 20 tokens per parameter.
    """
    from wordloom.run.planning.plan import Hardware, plan_recipe

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
    _say(
        f"{plan.recipe.name}: {plan.shape.parameters:,} parameters, on {hardware.gpus} × {gpu}{machines}",
        f"train.shard {s.shard}, {s.precision}, {blocks}, micro-batches of {rows}",
        "",
    )
    table = plain_table(None, "memory of a GPU", "GiB", "share")
    for kind, size in plan.memory.by_kind.items():
        if size:
            table.add_row(kind, f"{size / _GIB:,.2f}", f"{size / plan.memory.total:.0%}")
    table.add_section()
    table.add_row(f"peak, in the {plan.memory.moment}", f"{plan.memory.total / _GIB:,.2f}", "", style="bold")
    verdict = "fits" if plan.fits else "does not fit"
    table.add_row(f"usable: {verdict}", f"{plan.available / _GIB:,.2f}", "", style="bold")
    print_unwrapped(table, console)
    _say(
        "",
        f"main memory {plan.memory.start / _GIB:,.1f} GiB on a machine to build the model, "
        f"{plan.memory.checkpoint / _GIB:,.1f} while a checkpoint is written",
        f"compute     {speed.flops_per_token:.3g} FLOPs per token, "
        f"{speed.flops_per_token * speed.tokens:.3g} per step of {speed.tokens:,} tokens",
        f"speed       {speed.tokens_per_second:,.0f} tokens per second, {_duration(speed.step_seconds)} a "
        f"step, at {hardware.utilisation:.0%} of the peak FLOP rate while computing",
        *_network(plan),
        *_run(plan),
        *(f"note        {note}" for note in plan.notes),
    )
    if not plan.fits:
        _say("", "To make it fit, the most effective change first:")
        changes = plain_table(None, "change", "GiB", "")
        for change in plan.changes:
            fits = "fits" if change.fits else "does not fit"
            changes.add_row(change.setting, f"{change.total / _GIB:,.2f}", fits)
        if plan.together is not None:
            fits = "fits" if plan.together <= plan.available else "does not fit"
            changes.add_row("all of them", f"{plan.together / _GIB:,.2f}", fits)
        print_unwrapped(changes, console)


def _network(plan: ClusterPlan) -> list[str]:
    """Return the lines on communication, if there is any."""
    speed = plan.speed
    if plan.hardware.gpus == 1:
        return []
    compute = speed.parts * (speed.forward.compute + speed.backward.compute)
    waiting = speed.parts * (speed.forward.communication + speed.backward.communication)
    if speed.hides:
        verdict = "hides behind compute"
    else:
        verdict = "takes longer than compute, which waits for it"
    return [
        f"network     {speed.traffic / 1e9:,.1f} GB sent by each GPU in a step: {_duration(waiting)} beside "
        f"{_duration(compute)} of compute; it {verdict}",
        f"            it hides with {speed.least_tokens:,} tokens or more in a micro-batch of a GPU (now "
        f"{speed.micro_tokens:,}); {_duration(speed.parts * speed.exposed)} a step cannot hide",
    ]


def _run(plan: ClusterPlan) -> list[str]:
    """Return the line on the whole run, if its length is known."""
    if plan.tokens is None or plan.seconds is None or plan.steps is None:
        return []
    hours = plan.seconds / 3600 * plan.hardware.gpus
    return [
        f"run         {plan.steps:,} steps = {plan.tokens:,} tokens = "
        f"{plan.speed.flops_per_token * plan.tokens:.3g} FLOPs: {_duration(plan.seconds)}, "
        f"{hours:,.{0 if hours > 100 else 1}f} GPU hours"
    ]


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for unit, size in (("s", 120.0), ("min", 7200.0), ("h", 172800.0)):
        if seconds < size:
            return f"{seconds / {'s': 1, 'min': 60, 'h': 3600}[unit]:.3g} {unit}"
    return f"{seconds / 86400:,.1f} days"


def _say(*lines: str) -> None:
    for line in lines:
        typer.echo(line)
