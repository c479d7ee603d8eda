"""Write a GPT-2 or a LLaMA as one GGUF file, which llama.cpp and the programs on top of it read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from wordloom.errors import CheckpointError
from wordloom.files import sync, temporary
from wordloom.run.checkpoint.loaders import read_checkpoint
from wordloom.run.export.gguf_layout import layout_of, tensors_of
from wordloom.run.export.gguf_tokenizer import tokenizer_fields
from wordloom.run.export.writing import check_out
from wordloom.run.models.tokenizers import folder_tokenizer
from wordloom.weights import load_model

Kind = Literal["f32", "f16", "bf16", "q8_0"]
_BLOCK = 32  # numbers of a row that share a scale in q8_0
_VERSION = 2  # of the layout of quantized tensors


class Exported(NamedTuple):
    """A file that :func:`export_gguf` wrote.

    Attributes:
        path: its path.
        architecture: the name of the model in llama.cpp.
        bytes: its size.
        kinds: how many tensors have each kind of numbers.
        notes: what a user of the file must know.
    """

    path: Path
    architecture: str
    bytes: int
    kinds: dict[str, int]
    notes: tuple[str, ...]


def export_gguf(folder: str | Path, out: str | Path, *, kind: Kind = "f16", force: bool = False) -> Exported:
    """Write the model in ``folder`` with its tokenizer into the file ``out``.

    Matrices have numbers of ``kind``; vectors and positions are float32, as llama.cpp requires.  With
    ``"q8_0"``, matrices whose rows are no multiple of 32 numbers are float16.  One weight is in memory at a
    time.

    Raises CheckpointError: a model or tokenizer that llama.cpp does not have, an adapter, weights beyond the
    range of ``kind``, a file of the folder, one that exists unless ``force``; and without the package gguf.
    """
    _package()
    out = check_out(out, model=folder, force=force)
    checkpoint = read_checkpoint(folder)
    if checkpoint.base is not None:
        raise CheckpointError(f"{folder} holds an adapter; merge it into its base first (wordloom merge)")
    architecture = layout_of(checkpoint.config).architecture
    tokenizer = folder_tokenizer(checkpoint.folder, checkpoint.config.vocab_size)
    if tokenizer is None:
        raise CheckpointError(
            f"{folder} has no tokenizer, which a GGUF file contains; put its tokenizer.json there"
        )
    fields = tokenizer_fields(tokenizer, checkpoint.config.vocab_size)
    model = load_model(checkpoint.folder, mapped=True)

    name = checkpoint.folder.resolve().name
    counts = write_gguf(model, out, kind=kind, name=name, tokenizer=fields)
    return Exported(out, architecture, out.stat().st_size, counts, _notes(architecture, tokenizer))


def write_gguf(
    model: Any, out: Path, *, kind: Kind, name: str, tokenizer: Mapping[str, Any]
) -> dict[str, int]:
    """Write a GPT-2 or a LLaMA into the file ``out``; return how many tensors have each kind of numbers.

    ``name`` is that of the model, and ``tokenizer`` has the keys behind ``tokenizer.`` and their values.
    Raises CheckpointError as :func:`export_gguf`; ``out`` is replaced once the new file is whole.
    """
    gguf, layout = _package(), layout_of(model.config)
    counts = Counter[str]()
    with temporary(out) as beside:
        writer = gguf.GGUFWriter(beside, layout.architecture)
        _describe(writer, name, kind)
        for key, value in layout.settings:
            _add(writer, f"{layout.architecture}.{key}", value)
        for key, value in tokenizer.items():
            _add(writer, f"tokenizer.{key}", value)
        for tensor_name, tensor in tensors_of(model, layout):
            stored = _kind_of(tensor_name, tensor, kind)
            counts[stored] += 1
            raw = getattr(gguf.GGMLQuantizationType, stored.upper())
            size = math.prod(gguf.quants.quant_shape_to_byte_shape(tensor.shape, raw))
            writer.add_tensor_info(tensor_name, tensor.shape, np.dtype(np.float32), size, raw_dtype=raw)
        with closing(writer):
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for tensor_name, tensor in tensors_of(model, layout):
                stored = _kind_of(tensor_name, tensor, kind)
                writer.write_tensor_data(_encoded(gguf, tensor_name, tensor, stored))
        sync(beside)
        beside.replace(out)
    sync(out.parent)
    return dict(counts)


_LARGEST = {"f16": 65_504, "q8_0": 127 * 65_504}  # the scale of a block in q8_0 is an f16


def _package() -> Any:
    try:
        import gguf
    except ImportError:
        raise CheckpointError("GGUF needs the package gguf: pip install gguf") from None
    return gguf


def _describe(writer: Any, name: str, kind: Kind) -> None:
    import gguf

    writer.add_name(name)
    file_type = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}[kind]
    writer.add_file_type(getattr(gguf.LlamaFileType, file_type))
    writer.add_quantization_version(_VERSION)


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _kind_of(name: str, tensor: Tensor, kind: Kind) -> Kind:
    """Return the kind of the numbers of a tensor."""
    if tensor.dim() < 2 or name.startswith("position_embd"):
        return "f32"
    if kind == "q8_0" and tensor.shape[-1] % _BLOCK:
        return "f16"
    return kind


def _encoded(gguf: Any, name: str, tensor: Tensor, kind: Kind) -> NDArray[Any]:
    """Return the numbers of a tensor as they are stored; raises CheckpointError for those out of range."""
    numbers = tensor.detach().float().numpy()
    if kind == "f32":
        return numbers
    largest = _LARGEST.get(kind)
    if largest is not None and not bool((tensor.detach().abs() <= largest).all()):
        raise CheckpointError(
            f"the tensor {name} has numbers beyond {largest:,}, which {kind} cannot store; choose bf16 or f32"
        )
    if kind == "f16":
        return numbers.astype(np.float16)
    encoded: NDArray[Any] = gguf.quants.quantize(numbers, getattr(gguf.GGMLQuantizationType, kind.upper()))
    return encoded


def _notes(architecture: str, tokenizer: Any) -> tuple[str, ...]:
    notes = []
    if architecture == "granite_swa":
        notes.append(
            "the bands need a llama.cpp that knows the architecture granite_swa; older ones refuse the file"
        )
    if tokenizer.eos_id is None and tokenizer.kind != "llama":
        notes.append(
            "the tokenizer has no end-of-text token, and llama.cpp takes token 11 for it: it ends each text "
            "there.  Train with an end-of-text token in tokenizer.special_tokens"
        )
    if tokenizer.kind == "char":
        notes.append("llama.cpp leaves out characters that the vocabulary does not have")
    return tuple(notes)
