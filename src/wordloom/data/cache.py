"""Where derived and downloaded data are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """Where derived data lie: ``given``, else ``$WORDLOOM_CACHE``, else the user's cache folder."""
    if given is not None:
        return Path(given).expanduser()
    if chosen := os.environ.get("WORDLOOM_CACHE"):
        return Path(chosen).expanduser()
    if root := os.environ.get("XDG_CACHE_HOME"):
        return Path(root) / "wordloom"
    if os.name == "nt" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "wordloom"
    return Path.home() / ".cache" / "wordloom"
