"""Write the reference pages in docs/reference, each generated from the code that it describes.

python scripts/reference.py                  write every page
python scripts/reference.py command-line     write one page
python scripts/reference.py --check          exit with 1 if a page is stale
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

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


def recipe_keys() -> str:
    """Return the page of the keys of all recipes, table by table."""
    from wordloom.recipe import Recipe
    from wordloom.recipe.vectors import VectorRecipe

    intro = (
        "# Recipe keys\n\n"
        "`scripts/reference.py` generates this page from the descriptions in `wordloom.recipe`. Set a key in "
        "the recipe's file, or on the command line as `table.key=value`. A key that has no effect beside the "
        'other keys is an error; the column "only with" names its condition.\n'
    )
    parts = [intro, "## Recipes of models\n\nFor `wordloom train` and `wordloom sweep`.\n"]
    parts += [*_table(Recipe), _model_keys()]
    parts += ["## Recipes of word vectors\n\nFor `wordloom vectors train`.\n", *_table(VectorRecipe)]
    return "\n".join(parts)


def _table(kind: Any, path: str = "", union: Any = None) -> Iterator[str]:
    """Yield the section of the keys of a table, and those of the tables inside it."""
    from wordloom.recipe.table import table_of, union_of

    kinds = [kind] if union is None else list(dict.fromkeys(union.classes.values()))
    if path:
        yield f"### [{path}]\n"
    rows = ["| key | type | default | only with | meaning |", "| --- | --- | --- | --- | --- |"]
    fields = {name: field for each in reversed(kinds) for name, field in each.model_fields.items()}
    for name in dict.fromkeys(name for each in kinds for name in each.model_fields):
        if table_of(fields[name]) is None:
            rows += _rows(name, kind, union)
    yield "\n".join([*rows, ""])
    for name, field in fields.items():
        if (inner := table_of(field)) is not None:
            yield from _table(inner, f"{path}.{name}" if path else name, union_of(field))


def _rows(name: str, kind: Any, union: Any) -> Iterator[str]:
    """Yield the row of a key; a key with other values in some classes of a union has a row for each."""
    from wordloom.recipe.table import descriptions

    variants: dict[tuple[str, str], tuple[Any, list[str]]] = {}
    classes = {"": kind} if union is None else union.classes
    for owner, each in classes.items():
        if (field := each.model_fields.get(name)) is not None:
            key = _type(field.annotation), descriptions(each)[name]
            variants.setdefault(key, (field, []))[1].append(owner)
    for (values, meaning), (field, owners) in variants.items():
        cells = f"`{name}`", _cell(values), _default(field), _conditions(field, union, owners)
        yield f"| {' | '.join(cells)} | {_cell(meaning)} |"


def _conditions(field: Any, union: Any, owners: Sequence[str]) -> str:
    """Return the conditions under which a key has an effect: first the objectives, then other keys.

    ``owners`` are the objectives whose class of ``union`` has the key.
    """
    from wordloom.recipe.table import OnlyIf

    conditions = [part for part in field.metadata if isinstance(part, OnlyIf)]
    if union is None:
        return "; ".join(map(_only_if, conditions))
    texts = []
    for condition in conditions:
        if condition.key == union.key:
            owners = tuple(owner for owner in owners if owner in condition.values)
        elif "." in condition.key:
            texts.append(_only_if(condition))
        else:  # a key that only some of the classes have
            of = [owner for owner in owners if condition.key in union.classes[owner].model_fields]
            texts.append(_only_if(condition) + ("" if len(of) == len(owners) else f" for {', '.join(of)}"))
    if len(owners) < len(union.classes):
        texts.insert(0, _only_if(OnlyIf(union.key, tuple(owners))))
    return "; ".join(texts)


def _only_if(condition: Any) -> str:
    """Return the condition of a key in a few words."""
    if condition.excluded:
        return f"`{condition.key}` other than {', '.join(map(str, condition.excluded))}"
    if not condition.values:
        return f"`{condition.key}`"
    if condition.values[0] in (None, False):
        return f"no `{condition.key}`"
    return f"`{condition.key}` {', '.join(map(str, condition.values))}"


def _type(annotation: Any) -> str:
    """Return the values that a key takes."""
    if annotation is type(None):
        return ""
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        return ", ".join(map(str, parts))
    if get_origin(annotation) is list:
        return f"list of {_type(parts[0])}"
    if get_origin(annotation) is dict:
        return "table"
    if parts:
        return " or ".join(filter(None, map(_type, parts)))
    return str(annotation.__name__)


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "" if value is None or value == {} else f"`{json.dumps(value)}`"


def _model_keys() -> str:
    """Return the section of the settings of each model family."""
    from wordloom.models import MODELS, PRESETS

    rows = []
    for family, entry in MODELS.items():
        keys = (
            f"`{field.name}`" + ("" if field.default is MISSING else f" {field.default}")
            for field in fields(entry.config)
        )
        rows.append(f"| `{family}` | {_cell(', '.join(keys))} |")
    return "\n".join(
        [
            "### [model]\n",
            "`family` names a model family, or `preset` a shape: "
            + ", ".join(f"`{name}`" for name in PRESETS),
            "\nThe other keys are those of the family's config, here with their defaults.\n",
            "| family | keys |",
            "| --- | --- |",
            *rows,
            "",
        ]
    )


def _paragraphs(text: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*")


# The pages by name: each function returns the page's Markdown.
PAGES: dict[str, Callable[[], str]] = {
    "command-line": command_line,
    "recipe-keys": recipe_keys,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=", ".join(PAGES))
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    arguments = parser.parse_args()
    if unknown := set(arguments.pages) - PAGES.keys():
        parser.error(f"unknown page {', '.join(unknown)}; allowed: {', '.join(PAGES)}")
    stale = []
    for name in arguments.pages or PAGES:
        path, text = FOLDER / f"{name}.md", PAGES[name]()
        if arguments.check:
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
