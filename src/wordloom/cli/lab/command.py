"""``wordloom lab``: small experiments that reproduce a paper's figures."""

from __future__ import annotations

import typer

from wordloom.cli.lab import capacity, superposition

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(capacity.app, name="capacity", help="Measure the knowledge per parameter (Allen-Zhu 2024).")
app.add_typer(
    superposition.app, name="superposition", help="Train toy models that superpose features (Elhage 2022)."
)
