"""Pages of HTML that need no network and no other file."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from wordloom.errors import WordloomError
from wordloom.inspect.figures import drawn_figure
from wordloom.vectors.whole_files import new_file

MOST_BYTES = 32 << 20
"""The largest page; browsers become slow above it."""


def page(title: str, body: str, script: str = "") -> str:
    """Return a whole page; raise WordloomError if it is larger than MOST_BYTES."""
    style = resource("page.css")
    code = f"<script type=module>\n{script}</script>\n" if script else ""
    text = (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n"
        f"<main>\n<h1>{escape(title)}</h1>\n{body}\n</main>\n{code}</html>\n"
    )
    size = len(text.encode())
    if size > MOST_BYTES:
        raise WordloomError(
            f"the page would have {size / 2**20:.0f} MiB, and {MOST_BYTES >> 20} are allowed; give a shorter "
            "text or fewer layers"
        )
    return text


def write_page(text: str, path: str | Path) -> None:
    """Write a page into a file."""
    with new_file(Path(path)) as file:
        file.write(text.encode())


def resource(name: str) -> str:
    """Return a style or script of this folder."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def data_as_html(name: str, data: Any) -> str:
    """Return ``data`` as an element that the script of the page reads by its id, ``name``."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f'<script type="application/json" id="{name}">{text.replace("<", chr(92) + "u003c")}</script>\n'


def table_as_html(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column names the rows."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    lines = [
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
        for name, *cells in rows
    ]
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    return (
        f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>\n"
    )


def figure_as_html(make: Callable[[], Any], words: Sequence[str], title: str) -> str:
    """Return a figure as a drawing inside the page."""
    file = io.BytesIO()
    drawn_figure(make, words, file, ".svg")
    drawing = file.getvalue().decode()
    drawing = drawing[drawing.index("<svg") :]
    return f'<figure role="img" aria-label="{escape(title)}">{drawing}</figure>\n'
