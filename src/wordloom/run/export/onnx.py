"""Write an encoder as one ONNX file, which onnxruntime and other engines run.

The file is the model's computation in PyTorch's plain operators.  Inputs and outputs have the names that
transformers and sentence-transformers use: ``input_ids``, ``attention_mask`` and ``token_type_ids`` [B, T];
``last_hidden_state`` [B, T, D], and ``sentence_embedding`` [B, D] for a folder of sentence-transformers.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wordloom.errors import CheckpointError
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
_LARGEST = 2_000_000_000  # bytes of a file of protocol buffers; beyond, weights are in a second file


class ExportedEncoder(NamedTuple):
    """What was written.

    Attributes:
        path: the file.
        bytes: its size.
        outputs: the names of the outputs.
        largest: the largest difference of an output from Wordloom's on random texts, as onnxruntime computes
            it; None without onnxruntime.
    """

    path: Path
    bytes: int
    outputs: list[str]
    largest: float | None


def export_onnx(folder: str | Path, out: str | Path, *, force: bool = False) -> ExportedEncoder:
    """Write the encoder in ``folder`` into the file ``out``, in float32, for any number of texts and tokens.

    Raises CheckpointError: a model that is no encoder, one with other than full attention, an adapter, a file
    that exists unless ``force``; and without the packages onnx and onnxscript.
    """
    _require_packages()
    out = check_out(out, force=force)
    checkpoint = read_checkpoint(folder)
    if checkpoint.base is not None:
        raise CheckpointError(f"{folder} holds an adapter; merge it into its base first (wordloom merge)")
    _check(checkpoint.config, folder)
    model: Any = load_model(checkpoint.folder, dtype=torch.float32).eval()
    plain = PlainEncoder(model, pooling_of(checkpoint.folder)).eval()
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens", max=model.config.max_seq_len)
    part = out.with_name(f".{out.name}.part")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's, on names of axes and on its own deprecations
            program: Any = torch.onnx.export(
                plain,
                _example(model.config, rows=3, tokens=min(7, model.config.max_seq_len)),
                dynamo=True,
                verbose=False,
                opset_version=_OPSET,
                input_names=["input_ids", "attention_mask", "token_type_ids"],
                output_names=plain.outputs,
                dynamic_shapes=({0: batch, 1: tokens},) * 3,
            )
        large = 4 * sum(p.numel() for p in model.parameters()) > _LARGEST
        if large:  # the weights stand in a file beside, which has the name of the first
            program.save(str(out), external_data=True)
        else:
            program.save(str(part), external_data=False)
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return ExportedEncoder(out, out.stat().st_size, plain.outputs, _compared(out, plain, model.config))


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
        return (x,) if self.settings is None else (x, self._pooled(x, attend))

    def _attended(self, layer: Any, x: Tensor, hidden_keys: Tensor) -> Tensor:
        """x [B, T, D] -> [B, T, D]."""
        H = self.model.config.n_heads
        q, k, v = (
            _linear(part, x).view(*x.shape[:2], H, -1).transpose(1, 2)  # [B, H, T, E]
            for part in (layer.q_proj, layer.k_proj, layer.v_proj)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + hidden_keys
        return _linear(layer.o_proj, (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))

    def _pooled(self, x: Tensor, attend: Tensor) -> Tensor:
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
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise CheckpointError(f"ONNX needs the package {error.name}: pip install 'wordloom[onnx]'") from None


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
def _compared(path: Path, plain: PlainEncoder, config: Any) -> float | None:
    """Return the largest difference of the file's outputs from those of the model on real tokens."""
    try:
        import onnxruntime
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    largest = 0.0
    for rows, tokens in ((1, 1), (2, config.max_seq_len), (5, max(1, config.max_seq_len // 3))):
        given = _example(config, rows=rows, tokens=tokens)
        names = [each.name for each in session.get_inputs()]
        found = session.run(None, dict(zip(names, (each.numpy() for each in given), strict=True)))
        expected = plain.model.hidden(given[0], given[2], given[1].bool()).numpy()
        difference = np.abs(found[0] - expected) * given[1].numpy()[..., None]
        largest = max(largest, float(difference.max()))
    return largest
