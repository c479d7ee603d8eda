"""``wordloom inspect RUN gradients``: how far back losses reach."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wordloom.cli.inspect.causal import load_causal
from wordloom.cli.tables import plain_table
from wordloom.cli.usage import names_of
from wordloom.errors import CheckpointError, GenerationError

if TYPE_CHECKING:
    from wordloom.inspect import GradientFlow

__all__ = ["inspect_gradients", "print_gradients"]


def inspect_gradients(
    folders: list[str],
    prompt: str | None,
    file: str | None,
    distance: int,
    windows: int,
    plot: Path | None,
    *,
    json: bool,
) -> None:
    from wordloom.inspect import draw_gradients, gradient_flow

    if prompt is not None and file is not None:
        raise GenerationError("both --prompt and --file name a text to read; give one of them")
    flows: dict[str, GradientFlow] = {}
    names = names_of(folders)
    for folder in folders:
        lm = load_causal(folder, "gradients")
        if lm.tokenizer is None:
            raise CheckpointError(f"'{folder}' has no tokenizer to read the text with")
        text = prompt if prompt is not None else _text(folder, file)
        ids = lm.tokenizer.encode(text, specials="text").ids
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
        typer.echo(f"drawn into {plot}", err=True)


_READ = 1 << 20  # characters of a text that are enough to measure at some places


def _text(folder: str, file: str | None) -> str:
    """The beginning of a text, or of the validation text of the checkpoint's recipe."""
    from wordloom.data import documents
    from wordloom.recipe import load_recipe
    from wordloom.run.prepare import recipe_corpus

    recipe = Path(folder) / "recipe.toml"
    if file is None and not recipe.exists():
        raise CheckpointError(f"{folder} has no recipe.toml that names a validation text; give --file")
    found = documents([file]) if file else recipe_corpus(load_recipe(str(recipe))).documents("validation")
    parts: list[str] = []
    for document in found:
        parts.append(
            document.text if isinstance(document.text, str) else document.text.decode(errors="replace")
        )
        if sum(map(len, parts)) > _READ:
            break
    return "\n".join(parts)[:_READ]


def print_gradients(console: Console, name: str, flow: GradientFlow) -> None:
    """Norms at as many distances as fit, by what factor they fall and where they are a hundredth."""
    furthest = len(next(iter(flow.norms.values()))) - 1
    distances = [d for d in (0, *(2**i for i in range(32))) if d <= furthest]
    console.print(Text(f"{name}: gradient of the loss at a token, {flow.windows} of them", style="bold"))
    console.print(_fitting_table(console, flow, distances), crop=False)
    for recurrence in flow.recurrences:
        console.print(str(recurrence), highlight=False)
    console.print(f"longest way back: {flow.steps:,} steps\n", highlight=False)


def _fitting_table(console: Console, flow: GradientFlow, distances: list[int]) -> Table:
    """With as many of ``distances``, from the first to the last, as leave every cell whole."""
    for n in range(len(distances), 0, -1):
        made = _table(flow, [distances[round(i * (len(distances) - 1) / max(1, n - 1))] for i in range(n)])
        made.width = console.measure(made, options=console.options.update_width(1000)).maximum
        if made.width <= console.width:
            break
    return made


def _table(flow: GradientFlow, distances: list[int]) -> Table:
    made = plain_table(None, "tokens back", *map(str, distances), "a token", "<1 % from")
    for what, norms in flow.norms.items():
        reach = flow.reach(what)
        cells = [f"{norms[d]:.2g}" for d in distances]
        made.add_row(what, *cells, f"×{flow.factor(what):.3f}", "nowhere" if reach is None else str(reach))
    return made
