"""Write a tokenizer folder, replacing each file completely or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from wordloom.errors import TokenizerError


def write(
    folder: Path, definition: dict[str, Any], config: dict[str, Any], chat_template: str | None
) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and, if there is one, ``chat_template.jinja``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / "tokenizer.json", json.dumps(definition, ensure_ascii=False, indent=1))
        _replace(folder / "tokenizer_config.json", json.dumps(config, ensure_ascii=False, indent=2) + "\n")
        if chat_template is not None:
            _replace(folder / "chat_template.jinja", chat_template)
    except OSError as error:
        raise TokenizerError(
            f"cannot write the tokenizer to '{folder}': {error.strerror or error}; choose another folder"
        ) from error


def _replace(path: Path, text: str) -> None:
    """Write to a temporary file beside ``path``, flush it to disk, and rename it to ``path``."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes files that other users cannot read
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
