"""Let a base model continue each line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from wordloom.cli.chat.answers import print_pieces
from wordloom.cli.chat.lines import read_lines
from wordloom.cli.generate import print_note

if TYPE_CHECKING:
    from wordloom.generate import Settings
    from wordloom.generate.speculation import NewDrafter
    from wordloom.run import LanguageModel
    from wordloom.text import Specials


def continue_lines(
    lm: LanguageModel, chosen: Settings, drafter: NewDrafter | None, *, specials: Specials, terminal: bool
) -> None:
    """Continue each line that is typed or piped, and print the line with its continuation."""
    from wordloom.errors import WordloomError
    from wordloom.generate import stream_text

    if terminal:
        print_note(chosen.line())
        print_note("Ctrl-C stops an answer, Ctrl-D leaves")

    def continued(row: int, prompt: str) -> Iterator[str]:
        # a seed's next line is its next row: the same line twice need not give the same answer
        yield from stream_text(
            lm.model,
            lm.text_tokenizer,
            prompt,
            chosen.sampling,
            eos_ids=chosen.eos_ids,
            fit_new_tokens=chosen.fit_new_tokens,
            first_row=row,
            specials=specials,
            speculate=drafter,
        )

    for row, prompt in enumerate(read_lines(terminal)):
        try:
            # the work begins within print_pieces, which Ctrl-C ends
            print_pieces(continued(row, prompt), terminal=terminal, before=prompt)
        except WordloomError as error:
            if not terminal:
                raise
            print_note(str(error))
