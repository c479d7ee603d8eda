"""``wordloom inspect CHECKPOINT positions``: how much a model gains from a longer context."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from wordloom.cli import options
from wordloom.cli.inspect.texts import texts_to_read
from wordloom.cli.options import option
from wordloom.cli.tables import plain_table, print_unwrapped
from wordloom.cli.usage import check_plot, short_names

if TYPE_CHECKING:
    from wordloom.evaluate.positions import PositionBits
    from wordloom.text import Specials


def command(
    ctx: typer.Context,
    file: str | None = option(
        None, "A file or data set to read.  [default: the validation data of the recipe]"
    ),
    first: int | None = option(None, "Read only the first N documents.", min=1),
    window: int | None = option(
        None, "How many tokens the model reads at once.  [default: the model's max_seq_len]", min=1
    ),
    attention: list[str] | None = option(
        None,
        "Other attention for the model, such as band:256; 'full' for full attention. Repeatable.",
        metavar="PATTERN",
    ),
    beside: options.BESIDE = None,
    specials: options.VIEW_SPECIALS = None,
    plot: options.PLOT = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show bits per byte by the number of tokens read before."""
    from wordloom.inspect.score_plots import draw_positions, position_groups

    check_plot(ctx, plot, force=force)
    folders = [ctx.obj, *(beside or [])]
    names = short_names(folders)
    found: dict[str, list[PositionBits]] = {}
    for folder in folders:
        for kind in attention or (None,):
            name = names[folder]
            if kind is not None:
                name = kind if len(folders) == 1 else f"{name}, {kind}"
            found[name] = _bits(folder, kind, file, first, window, specials)
    if plot is not None:
        draw_positions(plot, found)
    if json:
        print(json_module.dumps({name: [bits._asdict() for bits in each] for name, each in found.items()}))
        return
    table = plain_table("Bits per byte", "tokens before", *found)
    for first_position, stop in position_groups(found):
        values = [_at(each, first_position, stop) for each in found.values()]
        table.add_row(f"{first_position:,} to {stop - 1:,}", *values)
    print_unwrapped(table, Console())
    if plot is not None:
        typer.echo(f"wrote {plot}", err=True)


def _at(groups: list[PositionBits], first: int, stop: int) -> str:
    """Return the bits of one group, or an empty text for a window without this group."""
    same = (group for group in groups if (group.first, group.stop) == (first, stop))
    return next((f"{group.bits_per_byte:.4f}" for group in same), "")


def _bits(
    folder: str,
    attention: str | None,
    file: str | None,
    first: int | None,
    window: int | None,
    specials: Specials | None,
) -> Any:
    from wordloom.evaluate.positions import bits_by_position
    from wordloom.models.building.attention import set_attention
    from wordloom.run import LanguageModel, load_as

    lm = load_as(LanguageModel, folder, purpose="the view 'positions'")
    if attention is not None:
        set_attention(lm.model, attention)
    documents, chosen = texts_to_read(folder, file, first, specials=specials)
    return bits_by_position(lm.model, lm.text_tokenizer, documents, window=window, specials=chosen)
