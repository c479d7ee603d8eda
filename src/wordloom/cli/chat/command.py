"""``wordloom chat CHECKPOINT``: converse with an assistant, or let a base model continue each line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import typer

from wordloom.cli import options
from wordloom.cli.chat.continuing import continue_lines
from wordloom.cli.chat.conversing import converse
from wordloom.cli.generate import given_settings, print_note
from wordloom.cli.options import option
from wordloom.cli.usage import refuse


def command(
    ctx: typer.Context,
    checkpoint: options.CHECKPOINT,
    adapter: Path | None = option(None, "The folder of an adapter of the model, such as one of peft's."),
    system: str | None = option(
        None,
        "The system message, which tells an assistant how to answer; an empty text means none.  [default: "
        "that of its training, if any]",
    ),
    when_full: Literal["stop", "drop", "slide"] = option(
        "stop",
        "When an assistant's context is full: stop, drop the oldest turns, or slide the window.",
    ),
    max_new_tokens: int | None = option(
        None,
        "Stop after this many tokens.  [default: the end of the context; 256 for a base model and "
        "with --when-full slide]",
    ),
    temperature: options.TEMPERATURE = None,
    top_k: options.TOP_K = None,
    top_p: options.TOP_P = None,
    seed: options.SEED = None,
    past: options.PAST = None,
    speculate: options.SPECULATE = None,
    specials: options.SPECIALS = "refuse",
    device: options.DEVICE = "auto",
    dtype: options.DTYPE = "auto",
    json: bool = option(
        False,
        'Without a terminal: each line is {"content": "a question"}, and each answer an object.',
        "--json",
    ),
) -> None:
    """Chat with a model. Ctrl-C stops an answer, Ctrl-D leaves; /help lists the commands.

    An assistant, whose tokenizer has a chat template, answers and keeps the conversation. A base model
    continues each line, and does not see earlier ones. Without a terminal, each line of standard input is a
    turn.
    """
    from wordloom.errors import GenerationError
    from wordloom.generate import settings
    from wordloom.run import LanguageModel, load_as

    names = ("max_new_tokens", "temperature", "top_k", "top_p", "seed", "past")
    given = given_settings(ctx, *names)
    lm = load_as(LanguageModel, checkpoint, adapter=adapter, device=device, dtype=dtype)
    if lm.tokenizer is None:
        raise GenerationError(f"{checkpoint} has no tokenizer: use 'wordloom generate --ids'")
    chosen = settings(lm.generation_defaults, given, tokenizer=lm.tokenizer)
    if chosen.ignored_line is not None:
        print_note(chosen.ignored_line)
    terminal = sys.stdin.isatty()
    if lm.tokenizer.chat_template is None:
        refuse(ctx, "a model without a chat template continues text", "system", "when_full", "json")
        print_note("the model has no chat template: it continues each line and sees no earlier one")
        continue_lines(lm, chosen, lm.drafter(speculate), specials=specials, terminal=terminal)
        return
    refuse(ctx, "an assistant reads special tokens as text, and --when-full says what a full context does",
           "specials", "past")  # fmt: skip
    if terminal:
        refuse(ctx, "answers on a terminal are text", "json")
    converse(
        lm, chosen, lm.drafter(speculate), system=system, when_full=when_full, terminal=terminal, json=json
    )
