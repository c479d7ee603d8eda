"""JSON files in the folder of a comparison: its settings, and the measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wordloom.errors import CheckpointError
from wordloom.files import write_text


def keep(file: Path, values: dict[str, Any]) -> None:
    """Write ``values`` into ``file``, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(values, indent=1, ensure_ascii=False))


def kept(file: Path, *, remedy: str = "remove it, and the same command makes it again") -> dict[str, Any]:
    """Return what :func:`keep` wrote; raises CheckpointError with the ``remedy`` for a damaged file."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(values, dict):
            return values
        problem = "it holds no table"
    except (OSError, ValueError) as error:
        problem = str(error)
    raise CheckpointError(f"cannot read {file}: {problem}; {remedy}")
