"""The command ``wordloom``: one thin file per verb; parse, call one library function, print.

Nothing heavy is imported until a verb runs, so ``wordloom --help`` answers at once.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from typing import Any

import typer
from typer import Option

from wordloom.cli import (
    average,
    card,
    compare,
    convert,
    demo,
    evaluate,
    export,
    generate,
    merge,
    plan,
    predict,
    push,
    serve,
    slurm,
    sweep,
    tokenize,
    train,
    translate,
)
from wordloom.cli.chat import command as chat
from wordloom.cli.data import command as data
from wordloom.cli.embed import command as embed
from wordloom.cli.help import use_help_pages
from wordloom.cli.inspect import command as inspect
from wordloom.cli.lab import command as lab
from wordloom.cli.usage import UsageError, usage_line
from wordloom.cli.vectors import command as vectors
from wordloom.errors import RankError, WordloomError

__all__ = ["app", "main"]

# Advice on system errors that may occur anywhere.
_ADVICE = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.ENAMETOOLONG: "give a shorter name",
}

app = typer.Typer(
    name="wordloom",
    help="Train, evaluate, generate from and look inside language models of your own.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("train")(train.command)
app.command("sweep")(sweep.command)
app.command("compare")(compare.command)
app.command("plan")(plan.command)
app.command("slurm")(slurm.command)
app.command("evaluate")(evaluate.command)
app.command("predict")(predict.command)
app.command("generate")(generate.command)
app.command("chat")(chat.command)
app.command("serve")(serve.command)
app.command("translate")(translate.command)
app.add_typer(tokenize.app, name="tokenize", help="Train, apply and compare tokenizers.")
app.add_typer(data.app, name="data", help="List, download and prepare data sets.")
app.add_typer(
    vectors.app, name="vectors", help="Train word vectors.  Query them, or the token vectors of any model."
)
app.command("embed")(embed.command)
app.command("average")(average.command)
app.command("convert")(convert.command)
app.command("merge")(merge.command)
app.command("export")(export.command)
app.command("card")(card.command)
app.command("push")(push.command)
app.add_typer(inspect.app, name="inspect")
app.add_typer(lab.app, name="lab", help="Reproduce the figures of papers with small experiments.")
app.command("demo")(demo.command)
use_help_pages(app)


@app.callback(invoke_without_command=True)
def _options(version: bool = Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from wordloom import __version__

        typer.echo(__version__)
        raise typer.Exit


def _spin_briefly() -> None:
    """Let PyTorch's threads spin for microseconds while they wait, and then sleep.

    GNU OpenMP's threads spin for milliseconds by default, on a core that another thread may need: beside one
    busy process, a training step took ten times as long.  PyTorch reads the variable when it is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def main() -> None:
    """Run the command; print a user's mistake as one red line and exit with code 2."""
    _spin_briefly()
    _open_closed_streams()
    code: Any = 2
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()  # here, so that a closed pipe is still handled
    except RankError as error:  # the rank that ended first has printed why
        logging.getLogger("wordloom").info("%s", error)
        code = 2
    except WordloomError as error:
        _print_error(str(error))
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a verb: its help
            print(error, file=sys.stderr)
        else:
            _print_error(usage_line(error))
    except typer.Abort as abort:  # typer raises it at an end of file; older versions also at Ctrl-C
        if isinstance(abort.__cause__, EOFError):
            raise abort.__cause__ from None
        code = 130
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = _closed_pipe()
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0)
        if advice is None:
            raise
        _print_error(f"{error.strerror}{f': {error.filename}' if error.filename else ''}; {advice}")
    except SystemExit as stop:
        if not isinstance(stop.__context__, BrokenPipeError):  # typer exits with 1 then
            raise
        code = _closed_pipe()
    sys.exit(code)


def _open_closed_streams() -> None:
    """Open the null device for a standard stream that the shell closed (``>&-``)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  open to the end


def _print_error(message: str) -> None:
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
    print(f"{red}wordloom: {message}{plain}", file=sys.stderr)


def _closed_pipe() -> int:
    """Return the exit code after the reader of a pipe, such as head, closed it; write nothing more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
