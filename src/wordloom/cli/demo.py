"""``wordloom demo``: train a small LLaMA on Python's documentation, evaluate it and generate text."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from wordloom.cli.generate import start_now
from wordloom.cli.options import option

if TYPE_CHECKING:
    from wordloom.run import LanguageModel


def command(
    minutes: float = option(3.0, "How many minutes to train.", min=0.05),
    force: bool = option(False, "Train again if there is a finished run.", "--force"),
) -> None:
    """Train a small LLaMA on the documentation inside Python.  Evaluate it, and generate text."""
    from wordloom.progress import TrainingProgress
    from wordloom.run import LanguageModel, load_as
    from wordloom.run.demo import train_demo

    out = Console(highlight=False)
    progress = TrainingProgress()
    unit = "minute" if minutes == 1 else "minutes"
    progress.say(f"training a small LLaMA for about {minutes:g} {unit}; Ctrl-C saves and stops")
    result, folder = train_demo(minutes, force=force, progress=progress)
    if result is not None and result.stopped:
        progress.say(
            f"stopped at step {result.step:,} of {result.total_steps:,}; run the same command to continue"
        )
        return
    if result is None:
        progress.say(f"{folder} holds a finished run; --force trains it again")
    lm = load_as(LanguageModel, folder)
    _print_comparison(out, lm, minutes)
    _print_sample(out, lm)
    _print_next(out, folder)


def _print_comparison(out: Console, lm: LanguageModel, minutes: float) -> None:
    from rich.table import Table

    from wordloom.run.demo import compare

    with Console(stderr=True, highlight=False).status("evaluating"):
        models = sorted(compare(lm), key=lambda model: model.bits_per_byte)
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("bits/byte", justify="right")
    table.add_column("", style="dim")
    for model in models:
        table.add_row(model.name, f"{model.bits_per_byte:.3f}", "best" if model is models[0] else "")
    out.print(
        "\nbits per byte of held-out text; lower is better",
        style="italic",
    )
    out.print(table)
    out.print("\n".join(model.signature for model in models if model.signature), style="dim", soft_wrap=True)
    if models[0].name != "this model":
        longer = next((option for option in (10, 30, 60) if option > minutes), minutes * 2)
        out.print(
            f"the training was too short to beat {models[0].name}; train longer: "
            f"make demo MINUTES={longer:g}",
            soft_wrap=True,
        )


def _print_sample(out: Console, lm: LanguageModel) -> None:
    from wordloom.run.demo import DEMO_PROMPT

    pieces = start_now(lm.stream(DEMO_PROMPT, max_new_tokens=120, seed=1, past="slide"))
    out.print("\nthe model writes:", style="bold")
    out.print(DEMO_PROMPT, end="", markup=False, soft_wrap=True)
    for text in pieces:
        sys.stdout.write(text)
        sys.stdout.flush()


def _print_next(out: Console, folder: Path) -> None:
    from wordloom.run.demo import DEMO_PROMPT

    out.print("\n\nnext:", style="bold")
    if shutil.which("wordloom") is None:
        activate = Path(sys.prefix) / "bin" / "activate"
        out.print(f"  source {activate}", markup=False, soft_wrap=True, end="")
        out.print("   # so that the shell finds wordloom", style="dim", markup=False, soft_wrap=True)
    own_text = "data.train=my.txt tokenizer.vocab_size=2048 --out runs/mine"
    for command_line, what in (
        (f"wordloom chat {folder}", "type the beginning of a text"),
        (f"wordloom serve {folder}", "the same in a browser, with the probability of each token"),
        (f'wordloom generate {folder} --prompt "{DEMO_PROMPT}" --seed 2', "another sample"),
        (f"wordloom evaluate {folder} README.md", "loss and bits per byte of any text"),
        (f"wordloom inspect {folder} lens --prompt '{DEMO_PROMPT}'", "what each layer would predict"),
        (
            f"wordloom train first-chat --from {folder}",
            "teach it to answer, after: data fetch instruction-1100",
        ),
        (f"wordloom train quickstart {own_text}", "your own text"),
    ):
        out.print(f"  {command_line}", markup=False, soft_wrap=True, end="")
        out.print(f"   # {what}", style="dim", markup=False, soft_wrap=True)
