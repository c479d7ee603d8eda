"""``wordloom export CHECKPOINT --to gguf``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from wordloom.cli import options
from wordloom.cli.options import option


def command(
    checkpoint: options.CHECKPOINT,
    to: Literal["gguf"] = option("gguf", "The format: gguf, one file for llama.cpp."),
    out: Path | None = option(None, "The new file.  [default: CHECKPOINT/NAME-DTYPE.gguf]", metavar="FILE"),
    dtype: Literal["f32", "f16", "bf16", "q8_0"] = option(
        "f16", "The numbers of matrices; q8_0 has 8 bits and a scale for 32 numbers."
    ),
    force: options.FORCE = False,
) -> None:
    """Write a model as one file for another runtime.

    GGUF is the format of llama.cpp, and of ollama and LM Studio, which use it. It contains the tokenizer. A
    GPT-2 or a LLaMA can be written, also with bands of attention (band:N) in some layers or all.
    """
    from wordloom.run.export.gguf import export_gguf

    out = out or checkpoint / f"{checkpoint.resolve().name}-{dtype}.gguf"
    done = export_gguf(checkpoint, out, kind=dtype, force=force)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(done.kinds.items()))
    typer.echo(f"wrote {done.path}: {done.architecture}, {done.bytes / 1e6:,.1f} MB, tensors: {kinds}")
    for note in done.notes:
        typer.echo(f"note: {note}")
