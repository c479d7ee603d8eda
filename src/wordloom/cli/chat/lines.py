"""The lines that a user types, with line editing and history, or pipes in."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from wordloom.cli.usage import decoded_stdin


def read_lines(terminal: bool) -> Iterator[str]:
    """Yield the lines that are typed, without empty ones, or piped."""
    if not terminal:
        with decoded_stdin():
            for number, line in enumerate(sys.stdin):
                yield (line if number else line.removeprefix("\ufeff")).removesuffix("\n")
        return
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession()
    while True:
        try:
            line = session.prompt("> ")
        except EOFError:
            return
        except KeyboardInterrupt:
            continue
        if line.strip():
            yield line
