"""``wordloom export CHECKPOINT --to gguf|onnx``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from wordloom.cli import options
from wordloom.cli.options import option
from wordloom.cli.usage import refuse
from wordloom.errors import CheckpointError


def command(
    ctx: typer.Context,
    checkpoint: options.CHECKPOINT,
    to: Literal["gguf", "onnx"] = option(
        "gguf", "The format. gguf: a GPT-2 or a LLaMA for llama.cpp; onnx: an encoder for onnxruntime."
    ),
    out: Path | None = option(
        None, "The new file.  [default: CHECKPOINT/NAME-DTYPE.gguf or CHECKPOINT/NAME.onnx]", metavar="FILE"
    ),
    dtype: Literal["f32", "f16", "bf16", "q8_0"] = option(
        "f16", "The numbers of matrices in a gguf; q8_0 has 8 bits and a scale for 32 numbers."
    ),
    force: options.FORCE = False,
) -> None:
    """Write a model as one file for another runtime.

    GGUF is the format of llama.cpp, and of ollama and LM Studio, which use it. It contains the tokenizer. A
    GPT-2 or a LLaMA can be written, also with bands of attention (band:N) in some layers or all. ONNX is for
    encoders: onnxruntime computes the vectors of tokens, and of texts if the folder says how to pool them.
    """
    if not checkpoint.is_dir():
        raise CheckpointError(f"{checkpoint} is no folder; give that of a trained model")
    name = checkpoint.resolve().name
    if to == "onnx":
        from wordloom.run.export.onnx import export_onnx

        refuse(ctx, "the numbers of an onnx file are f32", "dtype")
        encoder = export_onnx(checkpoint, out or checkpoint / f"{name}.onnx", force=force)
        paths = " and ".join(str(path) for path in (encoder.path, encoder.weights) if path is not None)
        typer.echo(f"wrote {paths}: {encoder.bytes / 1e6:,.1f} MB, {' and '.join(encoder.outputs)}")
        if encoder.largest is not None:
            typer.echo(f"largest difference from Wordloom, as onnxruntime computes it: {encoder.largest:.1e}")
        return
    from wordloom.run.export.gguf import export_gguf

    done = export_gguf(checkpoint, out or checkpoint / f"{name}-{dtype}.gguf", kind=dtype, force=force)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(done.kinds.items()))
    typer.echo(f"wrote {done.path}: {done.architecture}, {done.bytes / 1e6:,.1f} MB, tensors: {kinds}")
    for note in done.notes:
        typer.echo(f"note: {note}")
