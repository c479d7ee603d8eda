"""Write an encoder as one ONNX file, which onnxruntime and other engines run.

The file is the model's computation in PyTorch's plain operators.  Inputs and outputs have the names that
transformers and sentence-transformers use: ``input_ids``, ``attention_mask`` and ``token_type_ids`` [B, T];
``last_hidden_state`` [B, T, D], and ``sentence_embedding`` [B, D] for a folder of sentence-transformers.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wordloom.errors import CheckpointError
from wordloom.files import sync, sync_tree
from wordloom.models.bert import BertConfig
from wordloom.run.checkpoint.loaders import read_checkpoint
from wordloom.run.export.writing import check_out
from wordloom.run.models.sentence_folder import SentenceSettings, pooling_of
from wordloom.weights import load_model

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
_OPSET = 18
_LARGEST = 2_000_000_000  # bytes of weights that a file of protocol buffers holds


class ExportedEncoder(NamedTuple):
    """A file that :func:`export_onnx` wrote.

    Attributes:
        path: its path.
        weights: a second file, for weights of more than 2 GB; None without one.
        bytes: the size of the files.
        outputs: the names of the outputs.
        largest: the largest difference of an output from Wordloom's on random texts, as onnxruntime computes
            it; None without onnxruntime.
    """

    path: Path
    weights: Path | None
    bytes: int
    outputs: list[str]
    largest: float | None


def export_onnx(folder: str | Path, out: str | Path, *, force: bool = False) -> ExportedEncoder:
    """Write the encoder in ``folder`` into the file ``out``, in float32, for any number of texts and tokens.

    Weights of more than 2 GB stand in a second file, ``out`` with ``.data`` behind its name.
    Raises CheckpointError: a model that is no encoder, one with other than full attention, an adapter, a file
    of the folder, one that exists unless ``force``; and without the packages onnx and onnxscript.
    """
    _require_packages()
    out = check_out(out, model=folder, force=force)
    checkpoint = read_checkpoint(folder)
    if checkpoint.base is not None:
        raise CheckpointError(f"{folder} holds an adapter; merge it into its base first (wordloom merge)")
    _check(checkpoint.config, folder)
    model: Any = load_model(checkpoint.folder, dtype=torch.float32).eval()
    weights = None
    if 4 * sum(p.numel() for p in model.parameters()) > _LARGEST:
        weights = check_out(out.with_name(f"{out.name}.data"), model=folder, force=force)
    plain = PlainEncoder(model, pooling_of(checkpoint.folder)).eval()
    program = _exported(plain)
    # the first file names the second, so both are written under their own names
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as place:
        program.save(str(Path(place) / out.name), external_data=weights is not None)
        sync_tree(Path(place))
        for path in filter(None, (weights, out)):
            Path(place, path.name).replace(path)
    sync(out.parent)
    size = sum(path.stat().st_size for path in filter(None, (weights, out)))
    return ExportedEncoder(out, weights, size, plain.outputs, _compared(out, plain))


def _exported(plain: PlainEncoder) -> Any:
    """Return the ONNX program of an encoder, for every number of texts and of tokens."""
    longest = plain.model.config.max_seq_len
    axes = {0: torch.export.Dim("batch")}
    if longest > 1:  # PyTorch has no axis of a free size up to 1
        axes[1] = torch.export.Dim("tokens", max=longest)
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's, on names of axes and on its own deprecations
            return torch.onnx.export(
                plain,
                _example(plain.model.config, rows=3, tokens=min(7, longest)),
                dynamo=True,
                verbose=False,
                opset_version=_OPSET,
                input_names=["input_ids", "attention_mask", "token_type_ids"],
                output_names=plain.outputs,
                dynamic_shapes=(axes,) * 3,
            )
    finally:
        log.setLevel(level)


class PlainEncoder(nn.Module):
    """An encoder of the BERT family in PyTorch's plain operators; the tests compare it with the model.

    With the ``settings`` of a sentence-transformers folder it also returns the vector of each text.
    """

    def __init__(self, model: Any, settings: SentenceSettings | None = None) -> None:
        super().__init__()
        self.model: Any = model
        self.settings = settings
        self.outputs = ["last_hidden_state", *(["sentence_embedding"] if settings else [])]
        self.activation = _ACTIVATIONS[model.config.activation]

    def forward(self, tokens: Tensor, attend: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        """Tokens, mask and segments [B, T] int64 -> vectors [B, T, D], and perhaps [B, D]."""
        m, c = self.model, self.model.config
        first = c.position_offset
        positions = m.position_embedding.weight[first : first + tokens.shape[1]]  # [T, D]
        x = m.token_embedding.weight[tokens] + positions + m.segment_embedding.weight[segments]
        x = _norm(m.embedding_norm, x)
        hidden_keys = (1.0 - attend[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min  # [B, 1, 1, T]
        for block in m.blocks:
            x = _norm(block.attention_norm, x + self._attended(block.attention, x, hidden_keys))
            up = self.activation(_linear(block.feed_forward.up_proj, x))
            x = _norm(block.ffn_norm, x + _linear(block.feed_forward.down_proj, up))
        return (x,) if self.settings is None else (x, self.pooled(x, attend))

    def _attended(self, layer: Any, x: Tensor, hidden_keys: Tensor) -> Tensor:
        """x [B, T, D] -> [B, T, D]."""
        H = self.model.config.n_heads
        q, k, v = (
            _linear(part, x).view(*x.shape[:2], H, -1).transpose(1, 2)  # [B, H, T, E]
            for part in (layer.q_proj, layer.k_proj, layer.v_proj)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + hidden_keys
        return _linear(layer.o_proj, (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))

    def pooled(self, x: Tensor, attend: Tensor) -> Tensor:
        """x [B, T, D] -> the vectors of the texts [B, D]."""
        assert self.settings is not None
        mask = attend[..., None].to(x.dtype)  # [B, T, 1]
        if self.settings.pooling == "mean":
            pooled = (x * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        elif self.settings.pooling == "sum":
            pooled = (x * mask).sum(1)
        elif self.settings.pooling == "max":
            pooled = (x + (1.0 - mask) * torch.finfo(x.dtype).min).amax(1)
        elif self.settings.pooling == "cls":
            pooled = x[:, 0]
        else:  # last
            last = (attend.sum(1) - 1)[:, None, None].expand(-1, 1, x.shape[-1])
            pooled = x.gather(1, last)[:, 0]
        return F.normalize(pooled, dim=-1) if self.settings.normalize else pooled


def _linear(layer: Any, x: Tensor) -> Tensor:
    return F.linear(x, layer.weight, layer.bias)


def _norm(layer: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), layer.weight, layer.bias, layer.eps)


def _require_packages() -> None:
    for name in ("onnx", "onnxscript"):
        if find_spec(name) is None:
            raise CheckpointError(f"ONNX needs the package {name}: pip install onnx onnxscript onnxruntime")


def _check(config: Any, folder: str | Path) -> None:
    if not isinstance(config, BertConfig):
        raise CheckpointError(
            f"{folder} holds no encoder; ONNX is for BERT and RoBERTa, and a GPT-2 or LLaMA takes --to gguf"
        )
    if {str(pattern) for pattern in config.patterns} != {"full"} or config.global_projections:
        raise CheckpointError(f"ONNX has full attention, and {folder} has '{config.attention}'")
    if config.activation not in _ACTIVATIONS:
        raise CheckpointError(
            f"ONNX has no activation '{config.activation}' here; allowed: {', '.join(_ACTIVATIONS)}"
        )


def _example(config: Any, *, rows: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return random texts with padding, on which the computation is followed or compared."""
    draw = torch.Generator().manual_seed(rows * 1000 + tokens)
    ids = torch.randint(config.vocab_size, (rows, tokens), generator=draw)
    attend = torch.ones(rows, tokens, dtype=torch.int64)
    if tokens > 1:
        attend[-1, tokens // 2 + 1 :] = 0
    segments = torch.randint(config.type_vocab_size, (rows, tokens), generator=draw)
    return ids, attend, segments


@torch.inference_mode()
def _compared(path: Path, plain: PlainEncoder) -> float | None:
    """Return the largest difference of the file's outputs from those of the model; padding is left out."""
    try:
        import onnxruntime
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    config, largest = plain.model.config, 0.0
    for rows, tokens in ((1, 1), (2, config.max_seq_len), (5, max(1, config.max_seq_len // 3))):
        given = _example(config, rows=rows, tokens=tokens)
        names = [each.name for each in session.get_inputs()]
        states, *vectors = session.run(None, dict(zip(names, (each.numpy() for each in given), strict=True)))
        expected = plain.model.hidden(given[0], given[2], given[1].bool())
        differences = [np.abs(states - expected.numpy()) * given[1].numpy()[..., None]]
        differences += [np.abs(each - plain.pooled(expected, given[1]).numpy()) for each in vectors]
        largest = max(largest, *(float(each.max()) for each in differences))
    return largest
