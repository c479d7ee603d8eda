"""Write a tokenizer folder, replacing each file completely or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wordloom.errors import TokenizerError
from wordloom.files import write_text


def write_tokenizer(
    folder: Path, definition: dict[str, Any], config: dict[str, Any], chat_template: str | None
) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and, if there is one, ``chat_template.jinja``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "tokenizer.json", json.dumps(definition, ensure_ascii=False, indent=1))
        write_text(folder / "tokenizer_config.json", json.dumps(config, ensure_ascii=False, indent=2) + "\n")
        if chat_template is not None:
            write_text(folder / "chat_template.jinja", chat_template)
    except OSError as error:
        raise TokenizerError(
            f"cannot write the tokenizer to '{folder}': {error.strerror or error}; choose another folder"
        ) from error
