"""``wordloom lab superposition features|phases|polytopes``: toy models of superposition."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer
from rich.table import Table

from wordloom.cli import options
from wordloom.cli.lab.outputs import OUT_HELP, SEED_HELP, check_out, write_out
from wordloom.cli.options import MOST_SEED, option
from wordloom.cli.tables import plain_table, print_unwrapped

if TYPE_CHECKING:
    from wordloom.lab.superposition.claims import Claim
    from wordloom.lab.superposition.features import Features
    from wordloom.lab.superposition.phases import Phases
    from wordloom.lab.superposition.polytopes import Polytopes

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_STEPS_HELP = "How many training steps to take."
_PLATEAU_COLUMNS = ("3/4", "2/3", "1/2", "2/5", "3/8")


class _Result(Protocol):
    """The result of an experiment."""

    @property
    def claims(self) -> list[Claim]: ...

    def as_dict(self) -> dict[str, Any]: ...


@app.command("features")
def features(
    ctx: typer.Context,
    out: Path | None = option(None, OUT_HELP, metavar="FOLDER"),
    steps: int = option(3_000, _STEPS_HELP, min=1),
    seed: int = option(0, SEED_HELP, min=0, max=MOST_SEED),
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Represent 20 features in 5 dimensions.

    Trains a linear model and ReLU models at several densities, from dense to sparse. The features have the
    importance 0.7^i. The table shows how many features each model represents, and how many of them share
    directions.
    """
    check_out(ctx, out, str(ctx.info_name), force=force)
    from wordloom.lab.superposition.features import run_features
    from wordloom.lab.superposition.figures import draw_features

    with _Steps(2 * steps) as on_step:
        result = run_features(steps=steps, seed=seed, on_step=on_step)
    _finish(result, out, draw_features, _features_table, json=json)


@app.command("phases")
def phases(
    ctx: typer.Context,
    out: Path | None = option(None, OUT_HELP, metavar="FOLDER"),
    steps: int = option(600, _STEPS_HELP, min=1),
    seed: int = option(0, SEED_HELP, min=0, max=MOST_SEED),
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Draw phase diagrams of one extra feature.

    Trains models of 2 features in 1 dimension and of 3 features in 2 dimensions, by the density of all
    features and the importance of the last one. The table compares the best of ten random starts with the
    closed-form losses of hand-built solutions.
    """
    check_out(ctx, out, str(ctx.info_name), force=force)
    from wordloom.lab.superposition.figures import draw_phases
    from wordloom.lab.superposition.phases import run_phases

    with _Steps(2 * steps) as on_step:
        result = run_phases(steps=steps, seed=seed, on_step=on_step)
    _finish(result, out, draw_phases, _phases_table, json=json)


@app.command("polytopes")
def polytopes(
    ctx: typer.Context,
    out: Path | None = option(None, OUT_HELP, metavar="FOLDER"),
    steps: int = option(3_000, _STEPS_HELP, min=1),
    seed: int = option(0, SEED_HELP, min=0, max=MOST_SEED),
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Measure the dimensions per feature.

    Trains models of 400 equally important features in 30 dimensions at several densities. The table shows
    the dimensions per feature, and how many features have the dimensionality of each polytope that the paper
    names.
    """
    check_out(ctx, out, str(ctx.info_name), force=force)
    from wordloom.lab.superposition.figures import draw_polytopes
    from wordloom.lab.superposition.polytopes import run_polytopes

    with _Steps(steps) as on_step:
        result = run_polytopes(steps=steps, seed=seed, on_step=on_step)
    _finish(result, out, draw_polytopes, _polytopes_table, json=json)


class _Steps:
    """Shows progress on standard error; the block gets a callback for the number of finished steps."""

    def __init__(self, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

        from wordloom.progress import ProgressBar

        self.total = total
        self._bar = ProgressBar("training", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())

    def __enter__(self) -> Callable[[int], None]:
        return lambda step: self._bar.show(step, self.total, f"step {step:,}/{self.total:,}")

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _finish(
    result: _Result,
    out: Path | None,
    draw: Callable[[Any, Path], None],
    table: Callable[[Any], Table],
    *,
    json: bool,
) -> None:
    """Print the result as tables or as JSON, and write the files into ``out``."""
    found = result.as_dict()
    if json:
        print(json_module.dumps(found))
    else:
        print_unwrapped(table(result))
        print()
        print_unwrapped(_claims_table(result.claims))
    write_out(out, found["experiment"], lambda path: draw(result, path), found)


def _claims_table(claims: Sequence[Claim]) -> Table:
    table = plain_table("The paper's claims", "claim", "measured")
    table.columns[1].justify = "left"
    for claim in claims:
        table.add_row(*claim)
    return table


def _features_table(result: Features) -> Table:
    table = plain_table(
        "20 features in 5 dimensions; the relative loss is 1 for a model that represents nothing",
        "model", "density 1 - S", "relative loss", "represented", "dedicated", "sharing", "antipodal pairs",
    )  # fmt: skip
    for model in result.models:
        represented, dedicated = len(model.represented), len(model.dedicated)
        table.add_row(
            model.name, f"{model.density:g}", f"{model.loss:.3f}", str(represented), str(dedicated),
            str(represented - dedicated), str(model.pairs),
        )  # fmt: skip
    return table


def _phases_table(result: Phases) -> Table:
    from wordloom.lab.superposition.phases import NAMES

    table = plain_table(
        f"The extra feature: share of the {result.diagrams[0].trained.numel()} grid points",
        "models", *NAMES, "agreement", "median loss / theory", "largest",
    )  # fmt: skip
    for diagram in result.diagrams:
        size = f"{diagram.features} features in {diagram.features - 1}"
        for name, found in (("trained", diagram.trained), ("theory", diagram.theory)):
            shares = [f"{float((found == i).float().mean()):.0%}" for i in range(len(NAMES))]
            trained = (
                f"{diagram.agreement:.1%}", f"{float(diagram.ratio.median()):.3f}",
                f"{float(diagram.ratio.max()):.3f}",
            )  # fmt: skip
            table.add_row(f"{size}, {name}", *shares, *(trained if name == "trained" else ()))
    return table


def _polytopes_table(result: Polytopes) -> Table:
    table = plain_table(
        "400 features in 30 dimensions; the last columns count the features within 0.01 of each D_i",
        "1 / (1 - S)", "dims per feature", "||W||^2", "sum of D_i", "represented", *_PLATEAU_COLUMNS,
    )  # fmt: skip
    for model in result.models:
        table.add_row(
            f"{1 / model.density:.2f}", f"{model.dims_per_feature:.3f}", f"{model.effective_features:.1f}",
            f"{float(model.dimensionality.sum()):.2f}", str(int(model.represented.sum())),
            *map(str, model.on_plateau.values()),
        )  # fmt: skip
    return table
