"""``wordloom data merge``."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

from typer import Argument

from wordloom.cli import options
from wordloom.cli.options import option


def merge(
    folder: Annotated[Path, Argument(help="The folder that all tasks of `data prepare --out` wrote.")],
    verify: bool = option(False, "Also read all bytes and compare them with their checksums.", "--verify"),
    json: options.JSON = False,
) -> None:
    """Join the shares that the tasks of `data prepare` wrote.

    The command checks that all are complete and of the right size, writes an index, and copies no tokens.  A
    recipe names the folder as data.train.
    """
    from wordloom.data.shards.merge import merge_shares

    index = merge_shares(folder, verified=verify)
    if json:
        parts: dict[str, object] = {}
        for name, part in index.parts.items():
            facts = {"shares": len(part.shares), "fingerprint": part.fingerprint}
            parts[name] = {**facts, "ledger": part.ledger.as_dict()}
        print(json_module.dumps({"folder": str(folder), "parts": parts}))
        return
    for part in index.parts.values():
        print("\n".join(part.ledger.lines()))
        print(f"shares: {len(part.shares):,}\n")
    print(f"merged: {folder}")
