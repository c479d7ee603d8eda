"""The names of models and adapters, as they are given on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wordloom.errors import WordloomError
from wordloom.serve.models import Source


def read_sources(checkpoints: Sequence[str], adapters: Sequence[str]) -> dict[str, Source]:
    """Return the folders to serve by name; a folder without a name has its own.

    Raises WordloomError for a folder that does not exist, and for a name that is given twice.
    """
    folders: dict[str, Path] = {}
    for given in checkpoints:
        name, folder = _named(given)
        if not folder.exists():
            raise WordloomError(f"there is no folder '{folder}'; name the folder of a model")
        name = name or folder.resolve().name
        if name in folders:
            raise WordloomError(f"two models are called {name!r}; name one of them: NAME={folder}")
        folders[name] = folder
    found: dict[str, dict[str, Path]] = {name: {} for name in folders}
    for given in adapters:
        name, folder = _named(given)
        if not name:
            raise WordloomError(f"--adapter {given}: give it a name: NAME={given}")
        if not folder.exists():
            raise WordloomError(f"--adapter {given}: there is no folder '{folder}'")
        base = next(iter(folders))
        if len(folders) > 1:
            base, slash, name = name.partition("/")
            if not slash or base not in folders:
                known = ", ".join(folders)
                raise WordloomError(
                    f"--adapter {given}: say whose adapter it is: MODEL/NAME=FOLDER of {known}"
                )
        if name in folders or any(name in some for some in found.values()):
            raise WordloomError(f"--adapter {given}: the name {name!r} is taken")
        found[base][name] = folder
    return {name: Source(folder, found[name]) for name, folder in folders.items()}


def _named(given: str) -> tuple[str, Path]:
    """Return the name and the folder of ``NAME=FOLDER``; a folder that exists may hold an equals sign."""
    name, equals, folder = given.partition("=")
    if not equals or Path(given).exists():
        return "", Path(given)
    return name, Path(folder)
