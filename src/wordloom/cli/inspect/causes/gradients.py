"""``wordloom inspect CHECKPOINT gradients``: how far back gradients reach."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wordloom.cli import options
from wordloom.cli.inspect.texts import texts_to_read
from wordloom.cli.options import option
from wordloom.cli.tables import plain_table
from wordloom.cli.usage import check_plot, short_names
from wordloom.errors import GenerationError

if TYPE_CHECKING:
    from wordloom.inspect import GradientFlow


def command(
    ctx: typer.Context,
    prompt: str | None = option(None, "The text that the model reads."),
    file: str | None = option(
        None, "A file or data set to read instead.  [default: the validation data of the recipe]"
    ),
    distance: int = option(64, "How many tokens to look back.", min=1),
    windows: int = option(32, "At how many places of the text to measure.", min=1),
    beside: options.BESIDE = None,
    plot: options.PLOT = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Show how far back the gradient of a token's loss reaches."""
    from wordloom.inspect import draw_gradients, gradient_flow
    from wordloom.run import LanguageModel, load_as

    check_plot(ctx, plot, force=force)
    if prompt is not None and file is not None:
        raise GenerationError("both --prompt and --file name a text to read; give one of them")
    flows: dict[str, GradientFlow] = {}
    folders = [ctx.obj, *(beside or [])]
    names = short_names(folders)
    for folder in folders:
        lm = load_as(LanguageModel, folder, purpose="the view 'gradients'")
        tokenizer = lm.text_tokenizer
        text = prompt if prompt is not None else _text(folder, file)
        ids = tokenizer.encode(text, specials="text").ids
        flows[names[folder]] = gradient_flow(lm.model, ids, distance=distance, windows=windows)
    if plot is not None:
        draw_gradients(plot, flows)
    if json:
        facts = {
            name: {**vars(flow), "recurrences": [vars(each) for each in flow.recurrences]}
            for name, flow in flows.items()
        }
        print(json_module.dumps(facts))
        return
    console = Console()
    for name, flow in flows.items():
        print_gradients(console, name, flow)
    if plot is not None:
        typer.echo(f"wrote {plot}", err=True)


_MAX_CHARACTERS = 1 << 20  # enough text for every window


def _text(folder: str, file: str | None) -> str:
    """Return the beginning of ``file``, or of the validation text of the recipe."""
    parts: list[str] = []
    for document in texts_to_read(folder, file)[0]:
        parts.append(
            document.text if isinstance(document.text, str) else document.text.decode(errors="replace")
        )
        if sum(map(len, parts)) > _MAX_CHARACTERS:
            break
    return "\n".join(parts)[:_MAX_CHARACTERS]


def print_gradients(console: Console, name: str, flow: GradientFlow) -> None:
    """Print gradient norms by distance, their decay factor, and where they fall below 1 %."""
    furthest = len(next(iter(flow.norms.values()))) - 1
    distances = [d for d in (0, *(2**i for i in range(32))) if d <= furthest]
    console.print(Text(f"{name}: gradient of the loss at a token, {flow.windows} of them", style="bold"))
    console.print(_fitting_table(console, flow, distances), crop=False)
    for recurrence in flow.recurrences:
        console.print(str(recurrence), highlight=False)
    console.print(f"longest way back: {flow.steps:,} steps\n", highlight=False)


def _fitting_table(console: Console, flow: GradientFlow, distances: list[int]) -> Table:
    """Return a table with as many of ``distances`` as fit the console."""
    for n in range(len(distances), 0, -1):
        table = _table(flow, [distances[round(i * (len(distances) - 1) / max(1, n - 1))] for i in range(n)])
        table.width = console.measure(table, options=console.options.update_width(1000)).maximum
        if table.width <= console.width:
            break
    return table


def _table(flow: GradientFlow, distances: list[int]) -> Table:
    table = plain_table(None, "tokens back", *map(str, distances), "a token", "<1 % from")
    for what, norms in flow.norms.items():
        reach = flow.reach(what)
        cells = [f"{norms[d]:.2g}" for d in distances]
        table.add_row(what, *cells, f"×{flow.factor(what):.3f}", "nowhere" if reach is None else str(reach))
    return table
