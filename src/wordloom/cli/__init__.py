"""The command ``wordloom``: one thin file per verb; parse, call one library function, print.

Nothing heavy is imported until a verb runs, so ``wordloom --help`` answers at once.
"""

from __future__ import annotations

import os
import sys

import typer

from wordloom.cli import chat, data, demo, evaluate, generate, inspect, tokenize, train
from wordloom.errors import WordloomError

__all__ = ["app", "main"]

app = typer.Typer(
    name="wordloom",
    help="Train, evaluate, generate from and look inside language models of your own.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("train")(train.command)
app.command("evaluate")(evaluate.command)
app.command("generate")(generate.command)
app.command("chat")(chat.command)
app.add_typer(tokenize.app, name="tokenize", help="Train, apply and compare tokenizers.")
app.add_typer(data.app, name="data", help="Named data sets, and text prepared into token shards.")
app.command("inspect")(inspect.command)
app.command("demo")(demo.command)


@app.callback(invoke_without_command=True)
def _options(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from wordloom import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command; a user's mistake is one red line and exit code 2."""
    try:
        app()
    except WordloomError as error:
        red, plain = (
            ("\033[31m", "\033[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
        )
        print(f"{red}wordloom: {error}{plain}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe, such as head, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
