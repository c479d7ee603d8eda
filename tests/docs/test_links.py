"""Links between pages lead to files and headings that exist; examples import names that exist."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
    if path.is_file()
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def without_code(text: str) -> str:
    """Return a page without its code blocks, in which brackets are no links."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link}: no such file"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_import_in_an_example_exists(page: Path) -> None:
    for block in re.findall(
        r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        block = re.sub(r"^(>>>|\.\.\.) ", "", block, flags=re.MULTILINE) if ">>>" in block else block
        for line in re.findall(r"^ *(?:from|import) wordloom.*$", block, re.MULTILINE):
            for statement in ast.parse(line.strip()).body:
                if isinstance(statement, ast.ImportFrom):
                    module = importlib.import_module(str(statement.module))
                    for alias in statement.names:
                        assert hasattr(module, alias.name), f"{statement.module} has no {alias.name}"
