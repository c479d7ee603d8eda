"""``wordloom demo``: train a small LLaMA on Python's documentation, evaluate it and generate text."""

from __future__ import annotations

from typing import Annotated

import typer

from wordloom.cli.generate import start_now

__all__ = ["command"]


def command(
    minutes: Annotated[float, typer.Option(help="How many minutes to train.", min=0.05)] = 3.0,
    force: Annotated[bool, typer.Option("--force", help="Train again if there is a finished run.")] = False,
) -> None:
    """Train a small LLaMA on the documentation inside Python, evaluate it, and generate text."""
    import sys

    from rich.console import Console
    from rich.table import Table

    from wordloom.progress import TrainingProgress
    from wordloom.run import LanguageModel, load_as
    from wordloom.run.demo import DEMO_PROMPT, compare, train_demo

    out = Console(highlight=False)
    progress = TrainingProgress()
    progress.say(f"training a small LLaMA for about {minutes:g} minutes; Ctrl-C saves and stops")
    result, folder = train_demo(minutes, force=force, progress=progress)
    if result is not None and result.stopped:
        progress.say(
            f"stopped at step {result.step:,} of {result.total_steps:,}; run the same command to continue"
        )
        return
    if result is None:
        progress.say(f"{folder} holds a finished run; --force trains it again")
    lm = load_as(LanguageModel, folder)

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("bits/byte", justify="right")
    table.add_column("", style="dim")
    models = []
    with progress.console.status("evaluating"):
        for model in compare(lm):
            models.append(model)
    best = min(models, key=lambda model: model.bits_per_byte)
    for model in sorted(models, key=lambda model: model.bits_per_byte):
        mark = "best" if model is best else ""
        table.add_row(model.name, f"{model.bits_per_byte:.3f}", mark)
    out.print(
        "\nbits per byte of held-out text; the end of a document counts as a byte; lower is better",
        style="italic",
    )
    out.print(table)
    out.print("\n".join(model.signature for model in models if model.signature), style="dim", soft_wrap=True)
    if best.name != "this model":
        out.print(
            f"{minutes:g} minutes are not enough to beat {best.name}; train longer: "
            f"make demo MINUTES={_longer(minutes):g}",
            soft_wrap=True,
        )

    pieces = start_now(lm.stream(DEMO_PROMPT, max_new_tokens=120, seed=1, past="slide"))
    out.print("\nthe model writes:", style="bold")
    out.print(DEMO_PROMPT, end="", markup=False, soft_wrap=True)
    for text in pieces:
        sys.stdout.write(text)
        sys.stdout.flush()
    out.print("\n\nnext:", style="bold")
    for command_line, what in (
        (f"wordloom chat {folder}", "type the beginning of a text"),
        (f'wordloom generate {folder} --prompt "{DEMO_PROMPT}" --seed 2', "another sample"),
        (f"wordloom evaluate {folder} README.md", "loss and bits per byte of any text"),
        (f"wordloom inspect {folder}", "where its parameters are"),
        (
            "wordloom train quickstart data.train=my.txt tokenizer.vocab_size=2048 --out runs/mine",
            "your own text",
        ),
    ):
        out.print(f"  {command_line}", markup=False, soft_wrap=True, end="")
        out.print(f"   # {what}", style="dim", markup=False, soft_wrap=True)


def _longer(minutes: float) -> float:
    return next((option for option in (10, 30, 60) if option > minutes), minutes * 2)
