"""Tensors in files of ranks: every division of every shape is read whole, and as PyTorch reads it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load

from wordloom.errors import CheckpointError
from wordloom.weights.tensors import RankFiles

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64)


def write(folder: Path, tensors: dict[str, torch.Tensor], ranks: int, rng: random.Random) -> None:
    """Write a random division of ``tensors`` over ``ranks`` files; the last parts may be empty."""
    files: list[dict[str, torch.Tensor]] = [{} for _ in range(ranks)]
    starts: list[dict[str, object]] = [{} for _ in range(ranks)]
    for name, tensor in tensors.items():
        if tensor.dim() == 0 or rng.random() < 0.2:
            rank = rng.randrange(ranks)
            files[rank][name], starts[rank][name] = tensor, {"saved_offsets": [0] * tensor.dim()}
            continue
        axis = rng.randrange(tensor.dim())
        size = tensor.shape[axis]
        cuts = sorted(rng.sample(range(1, size), rng.randint(0, min(ranks, size) - 1)))
        edges = [0, *cuts, *[size] * (ranks - len(cuts))]
        for rank in range(ranks):
            start, stop = edges[rank], edges[rank + 1]
            files[rank][name] = tensor.narrow(axis, start, stop - start).contiguous()
            starts[rank][name] = {"saved_offsets": [start * (i == axis) for i in range(tensor.dim())]}
    for rank in range(ranks):
        header = {"DCP_SHARDING_INFO": json.dumps(starts[rank]), "DCP_VERSION": "1.0", "format": "pt"}
        save_file(files[rank], folder / f"shard-{rank + 1:05d}.safetensors", metadata=header)


def test_any_division_is_read_whole(tmp_path: Path, rng: random.Random) -> None:
    shapes = [
        [rng.choice([1, 1, 2, 3, 7, 13]) for _ in range(rng.randint(0, 3))] for _ in range(rng.randint(1, 9))
    ]
    tensors = {
        f"model.{i}": (99 * torch.randn(shape)).to(rng.choice(DTYPES)) for i, shape in enumerate(shapes)
    }
    write(tmp_path, tensors, rng.randint(1, 5), rng)
    found = RankFiles(tmp_path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
        assert found.entries[name].shape == tuple(tensor.shape)
    assert set(RankFiles(tmp_path, "model.").entries) == {name.removeprefix("model.") for name in tensors}
    theirs = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    load(theirs, storage_reader=HuggingFaceStorageReader(str(tmp_path)), no_dist=True)
    assert all(torch.equal(theirs[name], found[name]) for name in tensors)


def test_what_is_missing_is_named(tmp_path: Path, rng: random.Random) -> None:
    whole = torch.randn(rng.randint(4, 9), 3)
    header = {"DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": [2, 0]}})}
    save_file({"w": whole[2:].contiguous()}, tmp_path / "shard-00002.safetensors", metadata=header)
    with pytest.raises(CheckpointError, match="numbers of w, which has"):
        RankFiles(tmp_path)
    save_file({"w": whole}, tmp_path / "shard-00002.safetensors")
    with pytest.raises(CheckpointError, match="does not say where its parts"):
        RankFiles(tmp_path)
