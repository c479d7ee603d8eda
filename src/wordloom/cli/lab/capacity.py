"""``wordloom lab capacity train|compare|biographies``: bits of knowledge per parameter."""

from __future__ import annotations

import json as json_module
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from typer import Argument, Option

from wordloom.cli import options
from wordloom.cli.lab.outputs import OUT_HELP, SEED_HELP, check_out, write_out
from wordloom.cli.options import MOST_SEED, option
from wordloom.cli.tables import plain_table, print_unwrapped
from wordloom.cli.usage import is_given, refuse_existing
from wordloom.errors import WordloomError

if TYPE_CHECKING:
    from wordloom.lab.capacity.comparing import Comparison
    from wordloom.lab.capacity.result import Result

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_SETTINGS = (
    "data", "family", "people", "exposures", "seed", "dim", "layers", "batch_size", "learning_rate",
    "weight_decay", "precision",
)  # fmt: skip


@app.command("train")
def train(
    ctx: typer.Context,
    out: Annotated[Path, Option(help="The folder of the run.", metavar="FOLDER")],
    people: int = option(2_000, "The number of people whose facts the model learns.", min=1),
    exposures: int = option(1_000, "How often training shows each person.", min=1),
    data: str = option("bioD", "The facts: bioD (without prose) or bioS (English biographies)."),
    family: str = option("gpt2", "The model: gpt2 (with rotary positions), llama or lstm."),
    seed: int = option(0, SEED_HELP, min=0, max=MOST_SEED),
    dim: int = option(64, "The width of the embeddings and layers.", min=1),
    layers: int = option(2, "The number of layers.", min=1),
    batch_size: int | None = option(
        None,
        "Rows in an optimizer step: people (bioD) or windows (bioS).  [default: a 50th or 500th of people]",
        min=1,
    ),
    learning_rate: float = option(1e-3, "The peak learning rate."),
    weight_decay: float = option(0.02, "The decoupled weight decay."),
    precision: str = option("fp32", "The precision of training: fp32 or bf16."),
    device: str = option("cpu", "The device: cpu, cuda or cuda:1."),
    resume: bool = option(False, "Continue the run in the folder.", "--resume"),
    json: options.JSON = False,
) -> None:
    """Train a model on synthetic facts.

    Reports the bits of knowledge that the model stores, and the bits per parameter, also with the weights
    rounded to 8 and to 4 bits. Ctrl-C saves and stops; --resume continues with an identical result.
    """
    from wordloom.lab.capacity.experiment import run

    values = {"people": people, "exposures": exposures}
    given = {name: ctx.params[name] for name in _SETTINGS if is_given(ctx, name)}
    result = run(out, given if resume else values | given, resume=resume, device=device)
    if result is None:
        typer.echo(f"  wordloom lab capacity train --out {shlex.quote(str(out))} --resume", err=True)
    elif json:
        print(json_module.dumps(result.as_dict()))
    else:
        print_unwrapped(_result_table(result))


@app.command("compare")
def compare(
    ctx: typer.Context,
    runs: Annotated[Path, Argument(help="The folder of one or more finished runs.", metavar="FOLDER")],
    out: Path | None = option(None, OUT_HELP, metavar="FOLDER"),
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Compare the bits per parameter of finished runs.

    The capacity of a model is the plateau of the bits per parameter over the number of people.
    """
    from wordloom.lab.capacity.comparing import compare as compare_runs
    from wordloom.lab.capacity.figures import draw_capacity

    check_out(ctx, out, "capacity", force=force)
    result = compare_runs(runs)
    if json:
        print(json_module.dumps(result.as_dict()))
    else:
        print_unwrapped(_comparison_table(result))
    write_out(out, "capacity", lambda path: draw_capacity(result, path), result.as_dict())


@app.command("biographies")
def biographies(
    out: Annotated[Path, Option(help="The .jsonl file to write.", metavar="FILE")],
    people: int = option(10_000, "The number of people.", min=1),
    exposures: int = option(1, "How many biographies of each person to write.", min=1),
    seed: int = option(0, "The random seed; the same seed gives the same texts.", min=0, max=MOST_SEED),
    force: options.FORCE = False,
) -> None:
    """Write synthetic biographies in English.

    Each line has a biography (text) and the first and last character of each fact in it (spans). 'wordloom
    train' reads the file as a corpus. Each exposure has all people in a new order, with new sentences.
    """
    from wordloom.files import whole_file
    from wordloom.lab.capacity.facts.biographies import Biographies

    if out.suffix != ".jsonl":
        raise WordloomError(f"'{out}' is no .jsonl file; choose another name for --out")
    refuse_existing(out, force=force)
    source = Biographies(people, seed=seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(out) as file:
        for exposure in range(exposures):
            for biography in source.exposure(exposure).biographies():
                file.write(json_module.dumps(biography._asdict()).encode() + b"\n")
    typer.echo(f"wrote {out}", err=True)


def _result_table(result: Result) -> Table:
    s, most = result.settings, result.most
    table = plain_table(
        f"{s.family}, {result.parameters:,} parameters: {s.people:,} people, {s.exposures:,} exposures",
        "", "bits of names", "bits of values", "bits", "bits per parameter", "of all facts",
    )  # fmt: skip
    stored = {name: knowledge.stored for name, knowledge in result.kinds.items()}
    for name, bits in {"all facts": most, **stored}.items():
        table.add_row(
            name, f"{bits.names:,.0f}", f"{bits.values:,.0f}", f"{bits.total:,.0f}",
            f"{bits.total / result.parameters:.3f}", f"{bits.total / most.total:.1%}",
        )  # fmt: skip
    return table


def _comparison_table(result: Comparison) -> Table:
    from wordloom.lab.capacity.result import KINDS

    table = plain_table(
        "Bits per parameter, means over the seeds",
        "runs", "people", "seeds", "parameters", "all facts", *KINDS,
    )  # fmt: skip
    for curve in result.curves:
        for point in curve.points:
            parameters = sorted({each.parameters for each in point.results})
            table.add_row(
                curve.name, f"{point.people:,}", str(len(point.results)),
                " to ".join(f"{count:,}" for count in dict.fromkeys((parameters[0], parameters[-1]))),
                f"{point.most:.3f}", *(f"{point.bits(kind):.3f}" for kind in KINDS),
            )  # fmt: skip
    return table
