"""``wordloom inspect CHECKPOINT words``: one word in several sentences."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from wordloom.cli import options
from wordloom.cli.inspect.showing import HTML, check_outputs, show
from wordloom.errors import GenerationError

if TYPE_CHECKING:
    from wordloom.text import Tokenizer


def command(
    ctx: typer.Context,
    texts: Annotated[list[str], Argument(metavar="TEXT...", help="Two or more texts with the word.")],
    word: Annotated[str, Option(help="The word, such as mole.")],
    plot: options.PLOT = None,
    html: HTML = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show how the vectors of a word differ between texts."""
    from wordloom.inspect import word_in_texts
    from wordloom.run import LanguageModel, TextEncoder, load

    check_outputs(ctx, plot, html, force=force)
    loaded = load(ctx.obj)
    if not isinstance(loaded, LanguageModel | TextEncoder):
        raise GenerationError(
            f"the view 'words' reads language models and encoders, not a {type(loaded).__name__}"
        )
    found = [place_of(loaded.text_tokenizer, text, word) for text in texts]
    rows, places = [ids for ids, _ in found], [place for _, place in found]
    if isinstance(loaded, TextEncoder):
        rows, places = [loaded.framed(ids) for ids in rows], [place + 1 for place in places]
    view = word_in_texts(loaded.model, rows, places, word, texts)
    show(view, plot=plot, html=html, json=json)


def place_of(tokenizer: Tokenizer, text: str, word: str) -> tuple[list[int], int]:
    """Return the ids of ``text`` as a prompt, and where the last token of the first ``word`` in it stands.

    Raises GenerationError for a text without the word.
    """
    match = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)
    if match is None:
        raise GenerationError(f"the word {word!r} does not occur in {text!r}")
    encoded = tokenizer.encode(text, specials="text")
    ids = tokenizer.prompt_ids(text, specials="text")
    first, stop = match.span()
    inside = [at for at, (start, end) in enumerate(encoded.offsets) if start < stop and end > first]
    return ids, inside[-1] + len(ids) - len(encoded.ids)
