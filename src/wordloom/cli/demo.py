"""``wordloom demo``: train a small LLaMA on Python's own documentation, measure it, let it write."""

from __future__ import annotations

from typing import Annotated

import typer

from wordloom.cli.generate import primed

__all__ = ["command"]


def command(
    minutes: Annotated[float, typer.Option(help="Time for training.", min=0.05)] = 3.0,
    force: Annotated[
        bool, typer.Option("--force", help="Train again where a finished run is there.")
    ] = False,
) -> None:
    """Train a small LLaMA on English that every Python carries, measure it, and let it write."""
    import sys

    from rich.console import Console
    from rich.table import Table

    from wordloom.run import LanguageModel, load_as
    from wordloom.run.demo import DEMO_PROMPT, compare, train_demo
    from wordloom.run.progress import TrainingProgress

    out = Console(highlight=False)
    progress = TrainingProgress()
    progress.say(f"training a small LLaMA for about {minutes:g} minutes; Ctrl-C saves and stops")
    result, folder = train_demo(minutes, force=force, progress=progress)
    if result is not None and result.stopped:
        progress.say(
            f"stopped at step {result.step:,} of {result.total_steps:,}; the same command goes on from there"
        )
        return
    if result is None:
        progress.say(f"{folder} holds a finished run; --force trains it anew")
    lm = load_as(LanguageModel, folder)

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("bits/byte", justify="right")
    table.add_column("", style="dim")
    contenders = []
    with progress.console.status("measuring"):
        for contender in compare(lm):
            contenders.append(contender)
    best = min(contenders, key=lambda contender: contender.bits_per_byte)
    for contender in sorted(contenders, key=lambda contender: contender.bits_per_byte):
        mark = "best" if contender is best else ""
        table.add_row(contender.name, f"{contender.bits_per_byte:.3f}", mark)
    out.print(
        "\nheld-out text: bits per byte, the end of a document being one; lower is better", style="italic"
    )
    out.print(table)
    out.print("\n".join(c.signature for c in contenders if c.signature), style="dim", soft_wrap=True)
    if best.name != "this model":
        out.print(
            f"{minutes:g} minutes are not enough to overtake the {best.name}; give it longer: "
            f"make demo MINUTES={_longer(minutes):g}",
            soft_wrap=True,
        )

    pieces = primed(lm.stream(DEMO_PROMPT, max_new_tokens=120, seed=1, past="slide"))
    out.print("\nthe model writes:", style="bold")
    out.print(DEMO_PROMPT, end="", markup=False, soft_wrap=True)
    for text in pieces:
        sys.stdout.write(text)
        sys.stdout.flush()
    out.print("\n\nnext:", style="bold")
    for command_line, what in (
        (f"wordloom chat {folder}", "type a beginning, it goes on"),
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
