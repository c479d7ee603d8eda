"""Write the reference pages in docs/reference, each generated from the code that it describes.

python scripts/reference.py                  write every page
python scripts/reference.py command-line     write one page
python scripts/reference.py --check          exit with 1 if a page is stale
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs/reference"


def command_line() -> str:
    """Return the page of all commands, their arguments, options and examples."""
    from typer.main import get_command

    from wordloom.cli import app

    intro = (
        "# Command line\n\n"
        "`scripts/reference.py` generates this page from the help of each command. `wordloom COMMAND --help` "
        "prints the text below.\n"
    )
    root = get_command(app)
    context = root.make_context("wordloom", [], resilient_parsing=True)
    return "\n".join([intro, *_commands(root, context)])


def _commands(group: Any, context: Any) -> Iterator[str]:
    """Yield the section of every command below ``group``."""
    for name, command in group.commands.items():
        child = type(context)(command, info_name=name, parent=context)
        if hasattr(command, "commands"):
            yield f"## {child.command_path}\n\n{_paragraphs(command.help)}\n"
            yield from _commands(command, child)
        else:
            yield _command(command, child)


def _command(command: Any, context: Any) -> str:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    depth = "###" if context.parent.parent is not None else "##"
    parts = [f"{depth} {context.command_path}", f"`{usage}`", _paragraphs(command.help)]
    for title, records in command.help_sections(context).items():
        rows = (f"| `{_cell(name)}` | {_cell(text)} |" for name, text in records)
        parts.append("\n".join([f"| {title} | |", "| --- | --- |", *rows]))
    examples = "\n".join(f"wordloom {example}" for example in command.examples(context))
    if examples:
        parts.append(f"```\n{examples}\n```")
    return "\n\n".join(parts) + "\n"


def _paragraphs(text: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*")


# The pages by name: each function returns the page's Markdown.
PAGES: dict[str, Callable[[], str]] = {
    "command-line": command_line,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=", ".join(PAGES))
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    given = parser.parse_args()
    if unknown := set(given.pages) - PAGES.keys():
        parser.error(f"unknown page {', '.join(unknown)}; allowed: {', '.join(PAGES)}")
    stale = []
    for name in given.pages or PAGES:
        path, text = FOLDER / f"{name}.md", PAGES[name]()
        if given.check:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(path)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    for path in stale:
        print(f"{path} is stale; run python scripts/reference.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
