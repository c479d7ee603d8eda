"""``wordloom chat CHECKPOINT``: type a beginning, watch the model go on."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from wordloom.cli.generate import dim, primed, sampling_flags

__all__ = ["command"]


def command(
    checkpoint: Annotated[Path, typer.Argument(help="A folder with a trained model.")],
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Stop after this many.  [default: 256, or what max_seq_len leaves]")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.  [default: 0.8]")] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Draw from the k likeliest; 0 is off.  [default: 50]")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest that reach probability p; 1 is off.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answers.")] = None,
    past: Annotated[
        str | None,
        typer.Option(help="Past max_seq_len: error, or slide the window (exact, slower).  [default: error]"),
    ] = None,
    specials: Annotated[
        str, typer.Option(help="Special tokens written in a line: refuse, text or interpret.")
    ] = "refuse",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto (as stored), fp32, bf16 or fp16.")] = "auto",
) -> None:
    """Chat with a model: it continues each line that you type.  Ctrl-C stops an answer, Ctrl-D leaves.

    The model continues text; it was not taught to converse, and no line remembers the one before.
    Without a terminal every line of stdin is a prompt, and its continuation goes to stdout.
    """
    from wordloom.errors import GenerationError, WordloomError
    from wordloom.generate import settings, stream_text
    from wordloom.run import LanguageModel, load_as
    from wordloom.training.stopping import stop_on_signals

    given = sampling_flags(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        past=past,
    )
    lm = load_as(LanguageModel, checkpoint, device=device, dtype=dtype)
    if lm.tokenizer is None:
        raise GenerationError(f"{checkpoint} has no tokenizer: use 'wordloom generate --ids'")
    settled = settings(lm.generation_defaults, {**given, "samples": 1}, tokenizer=lm.tokenizer)
    if settled.ignored_line is not None:
        dim(settled.ignored_line)
    terminal = sys.stdin.isatty()
    if terminal:
        dim(settled.line())
        dim("Ctrl-C stops an answer, Ctrl-D leaves")
    for row, prompt in enumerate(_lines(terminal)):
        try:
            # a seed's next line is its next row: the same line twice need not give the same answer
            pieces = primed(
                stream_text(
                    lm.model,
                    lm.tokenizer,
                    prompt,
                    settled.sampling,
                    eos_ids=settled.eos_ids,
                    first_row=row,
                    specials=specials,
                )
            )
            stop = threading.Event()
            with stop_on_signals(stop, [signal.SIGINT] if terminal else []):
                print(prompt, end="", flush=True)
                for text in pieces:
                    print(text, end="", flush=True)
                    if stop.is_set():
                        break
        except KeyboardInterrupt:  # before the answer's first piece, or a second time
            if not terminal:
                raise
        except WordloomError as error:
            if not terminal:
                raise
            dim(str(error))
            continue
        print(flush=True)


def _lines(terminal: bool) -> Iterator[str]:
    """Yield what is typed or piped, line by line, until its end."""
    if not terminal:
        yield from (line.removesuffix("\n") for line in sys.stdin)
        return
    with suppress(ImportError):
        import readline  # noqa: F401 - line editing and history
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        if line:
            yield line
