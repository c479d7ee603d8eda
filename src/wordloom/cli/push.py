"""``wordloom push CHECKPOINT OWNER/NAME``."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument

from wordloom.cli import options
from wordloom.cli.options import option

_NAMED = 10  # files that stay here


def command(
    checkpoint: options.CHECKPOINT,
    repository: Annotated[str, Argument(help="The repository, OWNER/NAME; it is made if it does not exist.")],
    also: list[str] = option([], "Upload files of this pattern too. Repeatable.", metavar="PATTERN"),
    private: bool = option(False, "Make a new repository private.", "--private"),
    message: str | None = option(None, "The message of the commit."),
    endpoint: str | None = option(
        None, "The address of the hub.  [default: $HF_ENDPOINT, else https://huggingface.co]", metavar="URL"
    ),
    dry_run: bool = option(False, "Only list the files.", "--dry-run"),
) -> None:
    """Upload a checkpoint with its model card to a hub.

    The files of the model and its card are uploaded. The checkpoints and logs of a run stay here, and so does
    any other file unless --also names it. The token is that of `hf auth login`, or $HF_TOKEN.
    """
    from wordloom.run.share.push import check_repository, files_to_push, left_open, push

    files, others = files_to_push(checkpoint, also)
    check_repository(repository)
    for each in files:
        typer.echo(f"{each.bytes:>15,}  {each.name}")
    if others:
        more = f" and {len(others) - _NAMED:,} more" if len(others) > _NAMED else ""
        typer.echo(f"note: not uploaded without --also: {', '.join(others[:_NAMED])}{more}", err=True)
    for gap in left_open(checkpoint):
        typer.echo(f"note: the card has to be filled in: {gap}", err=True)
    if dry_run:
        return
    address = push(checkpoint, repository, also=also, private=private, message=message, endpoint=endpoint)
    typer.echo(f"pushed: {address}")
