"""``wordloom translate CHECKPOINT [FILE|-]``."""

from __future__ import annotations

import json as json_module
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wordloom.cli.generate import dim, sampling_flags
from wordloom.cli.usage import refuse

if TYPE_CHECKING:
    from wordloom.data import Document
    from wordloom.run import Translation

__all__ = ["command"]

_EARLY: dict[str, Any] = {"true": True, "false": False, "never": "never"}


def command(
    ctx: typer.Context,
    checkpoint: Annotated[Path, typer.Argument(help="The folder of a trained translation model.")],
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A file with one text per line, or .jsonl.  [default: stdin]",
            show_default=False,
        ),
    ] = "-",
    field: Annotated[str, typer.Option(help="Where .jsonl and .parquet rows keep their text.")] = "text",
    beams: Annotated[int, typer.Option(help="Hypotheses kept at a time; 1 is greedy.", min=1)] = 5,
    length_penalty: Annotated[
        float, typer.Option(help="Scores are divided by length to this power; above 1 favours long texts.")
    ] = 1.0,
    early_stopping: Annotated[
        Literal["true", "false", "never"],
        typer.Option(help="Stop at as many as beams; when no better is likely; or when none is possible."),
    ] = "false",
    n_best: Annotated[int, typer.Option(help="How many translations of each text.", min=1)] = 1,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Stop after this many.  [default: by the source's length]", min=1)
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Draw translations in place of a search; 0 is greedy.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Draw from the k likeliest; 0 is off.  [default: 50]")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest that reach probability p; 1 is off.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same translations.")] = None,
    too_long: Annotated[
        Literal["error", "split"],
        typer.Option(help="Texts longer than the model reads: refused, or cut at sentence ends and joined."),
    ] = "error",
    batch_size: Annotated[int, typer.Option(help="Texts translated at once.", min=1)] = 32,
    encoding_errors: Annotated[
        Literal["strict", "replace"], typer.Option(help="What to do with text that is not UTF-8.")
    ] = "strict",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto (as stored), fp32, bf16, fp16.")] = "auto",
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per text, with every translation's score.")
    ] = False,
) -> None:
    """Translate line by line, in order; an empty line stays empty.  With --n-best each becomes as many lines,
    empty ones where fewer were found.  Standard input is answered as it comes."""
    from wordloom.data import documents

    drawing = sampling_flags(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    if temperature is None:
        refuse(ctx, "without --temperature nothing is drawn", *drawing)
        how: dict[str, Any] = {"beams": beams, "length_penalty": length_penalty, "n_best": n_best,
                               "early_stopping": _EARLY[early_stopping],
                               "max_new_tokens": max_new_tokens}  # fmt: skip
    else:
        search = ("beams", "length_penalty", "early_stopping")
        refuse(ctx, "with --temperature translations are drawn, not searched for", *search)
        how = {"sampling": _sampling(drawing, n_best, max_new_tokens)}

    from wordloom.run import Translator, load_as

    translator = load_as(Translator, checkpoint, device=device, dtype=dtype)
    untold: deque[Document] = deque()  # read, and their translations not yet printed
    told = 0

    def texts() -> Iterator[str]:
        reading: dict[str, Any] = {"separator": "line", "encoding_errors": encoding_errors}
        for document in documents([source], field=field, bytes_allowed=False, **reading):
            untold.append(document)
            yield str(document.text)

    found = translator.translate(
        texts(),
        **how,
        overlong=too_long,
        batch_size=batch_size,
        live=source == "-" or source.startswith("-."),
        place=lambda number: _place(untold[number - told - 1]),
    )
    for translations in found:
        text = str(untold.popleft().text)
        told += 1
        if json:
            made = [one._asdict() for one in translations]
            print(json_module.dumps({"source": text, "translations": made}, ensure_ascii=False), flush=True)
        else:
            print(_lines(translations, n_best), flush=True)


def _sampling(drawing: dict[str, Any], samples: int, max_new_tokens: int | None) -> Any:
    from wordloom.generate import Sampling
    from wordloom.generate.sampling import new_seed

    if "seed" not in drawing:
        drawing["seed"] = new_seed()
        dim(f"seed {drawing['seed']}")
    return Sampling(**drawing, samples=samples, max_new_tokens=max_new_tokens)


def _lines(translations: list[Translation], count: int) -> str:
    """``count`` lines, the last ones empty where there are fewer translations."""
    lines = [one.line for one in translations]
    return "\n".join(lines + [""] * (count - len(lines)))


def _place(document: Document) -> str:
    """A text for an error message."""
    from wordloom.data.files.source import describe
    from wordloom.errors import position

    file = "standard input" if document.source == "-" else document.source
    plain = describe(document.source).format == "text"
    return position(file, document.index + 1, unit="line" if plain else "text")
