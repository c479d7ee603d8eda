"""The README names commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_two_commands_of_the_makefile_are_in_the_readme() -> None:
    readme, makefile = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "Makefile"))
    named = re.findall(r"^    make (\w+)", readme, re.MULTILINE)
    assert {"demo", "test"} <= set(named)
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
