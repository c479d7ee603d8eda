"""``wordloom chat CHECKPOINT``: type the beginning of a text, and the model continues it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import typer

from wordloom.cli import options
from wordloom.cli.generate import given_settings, print_note, start_now
from wordloom.cli.usage import decoded_stdin


def command(
    ctx: typer.Context,
    checkpoint: options.CHECKPOINT,
    max_new_tokens: options.MAX_NEW_TOKENS = None,
    temperature: options.TEMPERATURE = None,
    top_k: options.TOP_K = None,
    top_p: options.TOP_P = None,
    seed: options.SEED = None,
    past: options.PAST = None,
    speculate: options.SPECULATE = None,
    specials: options.SPECIALS = "refuse",
    device: options.DEVICE = "auto",
    dtype: options.DTYPE = "auto",
) -> None:
    """Chat with a model: it continues each line that you type. Ctrl-C stops an answer, Ctrl-D leaves.

    The model continues text. It is not trained to converse, and it does not see earlier lines. Without a
    terminal, each line of standard input is a prompt.
    """
    from wordloom.errors import GenerationError, WordloomError
    from wordloom.generate import settings, stream_text
    from wordloom.run import LanguageModel, load_as
    from wordloom.training.stopping import stop_on_signals

    given = given_settings(ctx, "max_new_tokens", "temperature", "top_k", "top_p", "seed", "past")
    lm = load_as(LanguageModel, checkpoint, device=device, dtype=dtype)
    if lm.tokenizer is None:
        raise GenerationError(f"{checkpoint} has no tokenizer: use 'wordloom generate --ids'")
    chosen = settings(lm.generation_defaults, {**given, "samples": 1}, tokenizer=lm.tokenizer)
    if chosen.ignored_line is not None:
        print_note(chosen.ignored_line)
    terminal = sys.stdin.isatty()
    if terminal:
        print_note(chosen.line())
        print_note("Ctrl-C stops an answer, Ctrl-D leaves")
    sampling, eos_ids, drafter = chosen.sampling, chosen.eos_ids, lm.drafter(speculate)
    for row, prompt in enumerate(_lines(terminal)):
        try:
            # a seed's next line is its next row: the same line twice need not give the same answer
            pieces = stream_text(
                lm.model,
                lm.tokenizer,
                prompt,
                sampling,
                eos_ids=eos_ids,
                first_row=row,
                specials=specials,
                speculate=drafter,
            )
            pieces = start_now(pieces)
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
            print_note(str(error))
            continue
        print(flush=True)


def _lines(terminal: bool) -> Iterator[str]:
    """Yield the lines that are typed or piped."""
    if not terminal:
        with decoded_stdin():
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
