"""The command ``wordloom``: one thin file per verb; parse, call one library function, print.

Nothing heavy is imported until a verb runs, so ``wordloom --help`` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import typer

from wordloom.cli import average, chat, data, demo, generate, predict, sweep, tokenize, train, translate
from wordloom.cli.embed import command as embed
from wordloom.cli.evaluate import command as evaluate
from wordloom.cli.help import use_help_pages
from wordloom.cli.inspect import command as inspect
from wordloom.cli.usage import UsageError, usage_line
from wordloom.cli.vectors import command as vectors
from wordloom.errors import WordloomError

__all__ = ["app", "main"]

# What a person can do about errors of the system that may come up anywhere.
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
app.command("evaluate")(evaluate.command)
app.command("predict")(predict.command)
app.command("generate")(generate.command)
app.command("chat")(chat.command)
app.command("translate")(translate.command)
app.add_typer(tokenize.app, name="tokenize", help="Train, apply and compare tokenizers.")
app.add_typer(data.app, name="data", help="Named data sets, and text prepared into token shards.")
app.add_typer(vectors.app, name="vectors", help="Ask word vectors, and the token vectors of any model.")
app.command("embed")(embed.command)
app.command("average")(average.command)
app.add_typer(inspect.app, name="inspect")
app.command("demo")(demo.command)
use_help_pages(app)


@app.callback(invoke_without_command=True)
def _options(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from wordloom import __version__

        typer.echo(__version__)
        raise typer.Exit


def _wait_briefly() -> None:
    """Have PyTorch's threads wait for one another awake for some microseconds, then asleep.

    By default GNU OpenMP's spin for milliseconds, on the core that the one they wait for may need: beside one
    other busy process a training step took ten times as long.  Read when PyTorch is loaded, so set here.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def main() -> None:
    """Run the command; a user's mistake is one red line and exit code 2."""
    _wait_briefly()
    _open_closed_streams()
    code: Any = 2
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()  # here, where a reader that has gone is still met
    except WordloomError as error:
        _complain(str(error))
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a verb: its help
            print(error, file=sys.stderr)
        else:
            _complain(usage_line(error))
    except typer.Abort as abort:  # what typer makes of an end of file anywhere, and older ones of Ctrl-C
        if isinstance(abort.__cause__, EOFError):
            raise abort.__cause__ from None
        code = 130
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = _reader_has_gone()
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0)
        if advice is None:
            raise
        _complain(f"{error.strerror}{f': {error.filename}' if error.filename else ''}; {advice}")
    except SystemExit as stop:
        if not isinstance(stop.__context__, BrokenPipeError):  # typer exits with 1 then
            raise
        code = _reader_has_gone()
    sys.exit(code)


def _open_closed_streams() -> None:
    """Give a standard stream that the shell closed (``>&-``), which Python makes None, to the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  open to the end


def _complain(message: str) -> None:
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
    print(f"{red}wordloom: {message}{plain}", file=sys.stderr)


def _reader_has_gone() -> int:
    """The exit code when the reader of a pipe, such as head, wants no more; nothing is written to it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
