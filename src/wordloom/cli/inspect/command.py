"""``wordloom inspect CHECKPOINT|PRESET [VIEW]``: one subcommand for each view."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument
from typer.core import TyperGroup

from wordloom.cli.inspect import attention, heads, parameters, pattern, positions, scores, top_words
from wordloom.cli.inspect.causes import ablate, attribution, gradients, patch
from wordloom.cli.inspect.layers import contributions, lens, probe, words
from wordloom.cli.inspect.neurons import geometry, knowledge, memories
from wordloom.errors import WordloomError

_DEFAULT_VIEW = "parameters"
_OF_PRESETS = ("parameters", "pattern")  # views that need no weights


class _Views(TyperGroup):
    """A group whose subcommand, the view, stands behind the model and may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        views = self.list_commands(ctx)
        if args and args[0] in views and set(args) & set(ctx.help_option_names):
            args = ["MODEL", *args]  # wordloom inspect VIEW --help
        elif args and not args[0].startswith("-") and (len(args) == 1 or args[1].startswith("-")):
            given = next((name for name in args[1:] if name in views), None)  # behind its options
            if given is not None:
                args.remove(given)
            args = [args[0], given or _DEFAULT_VIEW, *args[1:]]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_Views, no_args_is_help=True, rich_markup_mode=None, subcommand_metavar="[VIEW]")


@app.callback()
def _model(
    ctx: typer.Context,
    model: Annotated[
        str,
        Argument(
            metavar="CHECKPOINT|PRESET",
            help="The folder of a trained model, or the name of a preset such as llama-7b.",
        ),
    ],
) -> None:
    """Show the inside of a model.  The default view is its parameters."""
    ctx.obj = model
    if ctx.invoked_subcommand not in _OF_PRESETS and not Path(model).exists():
        from wordloom.models import PRESETS

        if model in PRESETS:
            raise WordloomError(
                f"{model} is a preset, which has no weights to look into; give a trained model, "
                f"or take one of the views {' and '.join(_OF_PRESETS)}"
            )


app.command("parameters")(parameters.command)
app.command("pattern")(pattern.command)
app.command("attention")(attention.attention)
app.command("lens")(lens.command)
app.command("contributions")(contributions.command)
app.command("attribution")(attribution.command)
app.command("memories")(memories.command)
app.command("ablate")(ablate.command)
app.command("patch")(patch.command)
app.command("heads")(heads.command)
app.command("words")(words.command)
app.command("probe")(probe.command)
app.command("geometry")(geometry.command)
app.command("knowledge")(knowledge.command)
app.command("alignment")(attention.alignment)
app.command("gradients")(gradients.command)
app.command("positions")(positions.command)
app.command("lengths")(scores.lengths)
app.command("top-words")(top_words.command)
app.command("forgetting")(scores.forgetting)
