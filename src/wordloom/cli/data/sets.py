"""``wordloom data list|fetch``."""

from __future__ import annotations

import json as json_module
import shutil
import textwrap
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from typer import Argument

from wordloom.cli import options
from wordloom.cli.options import argument
from wordloom.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from wordloom.data import DatasetFile, DatasetInfo


def list_(
    name: str | None = argument(None, "A data set whose licence, parts and files to show."),
    json: options.JSON = False,
) -> None:
    """List the named data sets, or describe one."""
    from wordloom.data import DATASETS
    from wordloom.data.sets.fetch import is_here

    if name is not None and name not in DATASETS:
        raise DataError(f"no data set '{name}'; {did_you_mean(name, DATASETS)}")
    if json:
        facts = []
        for each, info in DATASETS.items() if name is None else [(name, DATASETS[name])]:
            here = [part for part in info.parts if is_here(f"{each}/{part}")]
            facts.append({"name": each, **asdict(info), "bytes": info.bytes, "here": here})
        print(json_module.dumps(facts))
    elif name is None:
        _print_table()
    else:
        _print_details(name)


def _print_table() -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from wordloom.data import DATASETS

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, expand=True)
    table.add_column("name", no_wrap=True)
    table.add_column("size", no_wrap=True, justify="right")
    table.add_column("here", no_wrap=True)
    table.add_column("what", no_wrap=True, ratio=1)  # the remaining width; the details show the full title
    for name, info in DATASETS.items():
        table.add_row(name, _size(info), _here(name, info), Text(info.title))
    Console().print(table)
    print(
        "\n`wordloom data list NAME` shows licence, parts, URLs and sha256.\n"
        "Commands read a set as NAME, or one of its parts as NAME/PART.\n"
        "Sizes are those of the raw content; ~ is approximate."
    )


def _print_details(name: str) -> None:
    from wordloom.data import DATASETS

    info = DATASETS[name]
    fields = [info.field] if isinstance(info.field, str) else info.field
    facts = {
        "what": info.title,
        "task": info.task,
        "licence": info.licence,
        "origin": info.origin,
        "cited": info.citation,
        "size": _size(info),
        "here": _here(name, info),
        "layout": info.layout,
        "field": "" if info.field == "text" else ", ".join(fields),
        "separator": info.separator or "",
        "note": info.notes,
    }
    width = shutil.get_terminal_size().columns
    wrap: dict[str, Any] = {"subsequent_indent": " " * 11}
    wrap |= {"break_long_words": False, "break_on_hyphens": False}  # URLs, above all
    for label, text in facts.items():
        if text:
            print(textwrap.fill(text, width, initial_indent=f"{label:11}", **wrap))
    for part, files in info.parts.items():
        print(f"\n{name}/{part}" if len(info.parts) > 1 else f"\n{name}")
        for file in files:
            print(f"  {file.path}" + (f", {file.bytes:,} bytes" if file.bytes else ""))
            if file.made_here:
                print("    made on this machine from what Python carries")
                continue
            print(f"    {file.url or _derived_from(file)}")
            print(f"    sha256 {file.sha256 or 'is not known; fetch prints what it finds'}")


def _derived_from(file: DatasetFile) -> str:
    if not file.sources:
        return "written on this machine"
    return f"derived from {', '.join(str(source.url) for source in file.sources)}"


def _here(name: str, info: DatasetInfo) -> str:
    from wordloom.data.sets.fetch import is_here

    count = sum(is_here(f"{name}/{part}") for part in info.parts)
    if 0 < count < len(info.parts):
        return f"{count} of {len(info.parts)}"
    return "yes" if count else "no"


def _size(info: DatasetInfo) -> str:
    if info.bytes is None:
        return "?"
    value, unit = float(info.bytes), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    exact = all(file.bytes for file in info.files)
    return f"{'' if exact else '~'}{value:.{int(value < 10)}f} {unit}"


def fetch(
    names: Annotated[list[str], Argument(help="Data sets: NAME for all parts, or NAME/PART.")],
    json: options.JSON = False,
) -> None:
    """Download missing data sets.  Check the sha256 of all their files."""
    from wordloom.data import fetch as fetch_dataset

    console = Console(stderr=True)
    fetched = []
    for name in names:
        for file in fetch_dataset(name, progress=partial(console.print, markup=False, soft_wrap=True)):
            fetched.append({"name": name, **file._asdict(), "path": str(file.path)})
            if not json:
                how = "downloaded" if file.downloaded else "already here"
                proof = (
                    "sha256 verified"
                    if file.state == "verified"
                    else f"no official sha256 is known; this file has {file.sha256}"
                )
                print(f"{file.path}: {file.bytes:,} bytes, {how}, {proof}")
    if json:
        print(json_module.dumps(fetched))
