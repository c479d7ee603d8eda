"""The folder of a comparison: its settings, what is measured, and how it is continued."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from wordloom.errors import CheckpointError
from wordloom.files import write_text
from wordloom.run.compare.settings import Settings

SETTINGS = "compare.json"
# Settings that may change when a comparison is continued.
_ADDED = ("families", "recipes", "tasks")  # those of before stay
_FREE = (*_ADDED, "seeds")


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


def has_begun(folder: Path) -> bool:
    """Return whether a run of the comparison in ``folder`` has begun; those that time a step do not count."""
    runs = [
        path.parent.name for name in ("trials", "models") for path in (folder / name).glob("*/recipe.toml")
    ]
    return not all(re.search(r"-timing-\d+$", name) for name in runs)


def continued(folder: Path, settings: Settings) -> Settings:
    """Return ``settings`` with the families, recipes and tasks that the comparison in ``folder`` has already.

    What an earlier call left in a folder without runs is removed, except for steps that were timed with equal
    settings.  Raises CheckpointError for a folder with other settings.
    """
    file = folder / SETTINGS
    wanted = json.loads(json.dumps(settings.as_dict()))
    if not file.exists() and any(path.name != ".lock" for path in folder.iterdir()):
        raise CheckpointError(f"{folder} is not empty and holds no comparison; choose another --out")
    if not has_begun(folder):
        for name in ("tokenizer", "scores", "entries", *(() if _is_kept(file, wanted) else ("trials",))):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "text.json").unlink(missing_ok=True)
        return settings
    known = kept(file, remedy="choose another --out")
    changed = [key for key in wanted if known.get(key) != wanted[key] and key not in _FREE]
    if changed:
        shown = ", ".join(f"{key} {known.get(key)!r} -> {wanted[key]!r}" for key in changed)
        raise CheckpointError(
            f"{folder} holds a comparison with other settings ({shown}); give the same ones, or choose "
            "another --out"
        )
    every: dict[str, Any] = {key: list(dict.fromkeys([*known[key], *wanted[key]])) for key in _ADDED}
    return replace(settings, **every, seeds=max(known["seeds"], settings.seeds))


def _is_kept(file: Path, wanted: dict[str, Any]) -> bool:
    """Return whether ``file`` holds the ``wanted`` settings."""
    try:
        return kept(file) == wanted
    except CheckpointError:
        return False
