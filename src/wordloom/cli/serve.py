"""``wordloom serve CHECKPOINT [NAME=CHECKPOINT ...]``."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from wordloom.cli import options
from wordloom.cli.options import option

KEY = "WORDLOOM_API_KEY"


def command(
    checkpoints: Annotated[
        list[str],
        Argument(
            help="The folders of models, each perhaps under a name of its own.",
            metavar="CHECKPOINT|NAME=CHECKPOINT",
        ),
    ],
    adapter: list[str] = option(
        [],
        "An adapter of a model, under a name. With several models: MODEL/NAME=FOLDER.",
        metavar="NAME=FOLDER",
    ),
    host: str = option("127.0.0.1", "The address to listen at; 0.0.0.0: all of this machine."),
    port: int = option(8000, "The port to listen at.", min=0, max=65535),
    api_key_file: Path | None = option(
        None,
        f"A file of API keys, one a line; lines with # in front are comments.  [default: the key in {KEY}]",
        metavar="FILE",
    ),
    no_key: bool = option(False, "Listen beyond this machine although no key is asked for.", "--no-key"),
    allowed_host: list[str] = option([], "A further name by which the server may be called."),
    cors_origin: list[str] = option([], "A site whose pages may call the API: https://example.org."),
    context: int | None = option(None, "The longest text in tokens.  [default: the model's]", min=2),
    slots: int = option(32, "How many texts a model continues at once.", min=1),
    queue: int = option(128, "How many requests wait before others are refused.", min=0),
    max_tokens: int = option(4096, "The most new tokens of a request.", min=1),
    max_choices: int = option(16, "The most choices of a request (n).", min=1),
    max_body_mb: float = option(4.0, "The largest request in megabytes.", min=0.001),
    timeout: float = option(600.0, "The longest time of a request in seconds.", min=0.1),
    prefix_mb: float = option(256.0, "Megabytes that keep the beginnings of texts.", min=0),
    memory_gb: float | None = option(
        None, "Gigabytes of weights; the model that was used longest ago leaves.  [default: no bound]", min=0
    ),
    drain: int = option(30, "Seconds that running requests have after SIGTERM.", min=0),
    log_requests: bool = option(
        False, "Log the model and the times of each request, not its text.", "--log-requests"
    ),
    selfcheck: bool = option(
        False, "Check on this model that requests get the same tokens together and alone; then exit.",
        "--selfcheck",
    ),
    device: options.DEVICE = "auto",
    dtype: options.DTYPE = "auto",
) -> None:  # fmt: skip
    """Serve models over HTTP, with OpenAI's API and a page.

    Requests to a model are computed together, and each gets the tokens that it would get alone.  Ctrl-C or
    SIGTERM ends the server when the running requests are done.
    """
    from wordloom.errors import WordloomError
    from wordloom.serve.limits import Limits, allowed_hosts
    from wordloom.serve.metrics import Metrics
    from wordloom.serve.models import Models, check_sources
    from wordloom.serve.names import read_sources
    from wordloom.serve.server import is_loopback, serve

    sources = read_sources(checkpoints, adapter)
    keys = _keys(api_key_file)
    if not is_loopback(host) and not keys and not no_key:
        raise WordloomError(
            f"--host {host} lets other machines use the server without a key; set {KEY} or --api-key-file, "
            "or say --no-key"
        )
    for name, given in (("max-body-mb", max_body_mb), ("prefix-mb", prefix_mb), ("memory-gb", memory_gb)):
        if given is not None and not math.isfinite(given):
            raise WordloomError(f"--{name} {given}: give a finite number")
    check_sources(sources, device)
    any_host = no_key and not is_loopback(host) and not allowed_host  # other machines call it by any name
    limits = Limits(
        context=context,
        max_tokens=max_tokens,
        choices=max_choices,
        slots=slots,
        queue=queue,
        body_bytes=int(max_body_mb * 1e6),
        seconds=timeout,
        prefix_bytes=int(prefix_mb * 1e6),
        model_bytes=None if memory_gb is None else int(memory_gb * 1e9),
        drain_seconds=drain,
        keys=keys,
        hosts=() if any_host else allowed_hosts(host, allowed_host, keys),
    )
    if selfcheck:
        from wordloom.serve.selfcheck import check_all

        check_all(sources, limits, device=device, dtype=dtype, say=typer.echo)
        return
    models = Models(sources, limits, Metrics(), device=device, dtype=dtype)
    first = [next(iter(sources))]
    serve(
        models, limits, host=host, port=port, origins=cors_origin,
        log_requests=log_requests, first=first, say=_say,
    )  # fmt: skip


def _say(line: str) -> None:
    """Print a line; a server whose output nobody reads goes on."""
    try:
        typer.echo(line)
    except OSError:
        typer.echo(line, err=True)


def _keys(file: Path | None) -> tuple[str, ...]:
    """Return the API keys of a file, or else that of the environment."""
    from wordloom.errors import WordloomError

    if file is None:
        key = os.environ.get(KEY, "").strip()
        return _sendable((key,) if key else (), KEY)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WordloomError(f"--api-key-file {file} cannot be read: {error}") from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.strip().startswith("#"))
    if not keys:
        raise WordloomError(f"--api-key-file {file} holds no key; write one a line")
    return _sendable(keys, f"--api-key-file {file}")


def _sendable(keys: tuple[str, ...], source: str) -> tuple[str, ...]:
    """Return the keys; raise WordloomError for one that no client can send in a header."""
    from wordloom.errors import WordloomError

    if not all(key.isascii() and key.isprintable() for key in keys):
        raise WordloomError(
            f"{source} has a key that clients cannot send; use ASCII letters, digits and punctuation"
        )
    return keys
