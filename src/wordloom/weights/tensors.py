"""Read the files of a folder: JSON, and weights tensor by tensor from safetensors or pytorch_model.bin.

A checkpoint that ranks wrote has a file of each rank in ``trainer/ranks``, with a part of every tensor.
Their headers, of PyTorch's distributed checkpoints, say where in the whole tensor a part begins.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from wordloom.errors import CheckpointError
from wordloom.files import finish_replacement
from wordloom.weights.renaming import listed

SAFETENSORS = "model.safetensors"
INDEX = SAFETENSORS + ".index.json"
_BIN = "pytorch_model.bin"
_BIN_INDEX = _BIN + ".index.json"
RANKS = "trainer/ranks"
WEIGHT = "model."  # before our name of a weight, in a file of a rank

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}

_POINTER_START = b"version "
_POINTER = "it is a Git LFS pointer, not the weights; fetch them with 'git lfs pull'"


class Stored(NamedTuple):
    """A stored tensor that has not been read; ``dtype`` is torch's name if it is a float."""

    shape: tuple[int, ...]
    dtype: str
    file: Path


class StoredTensors(Protocol):
    """The tensors of a folder by their stored names."""

    entries: dict[str, Stored]

    def read(self, name: str) -> Tensor:
        """Return the tensor on the CPU, as stored and memory-mapped; clone it to outlive the file."""


class _Safetensors:
    def __init__(self, files: list[Path]) -> None:
        self.entries: dict[str, Stored] = {}
        for path in files:
            with _open(path) as file:
                for name in file.keys():  # noqa: SIM118  (not a dict)
                    entry = file.get_slice(name)
                    dtype = _DTYPES.get(entry.get_dtype(), entry.get_dtype())
                    _add(self.entries, name, Stored(tuple(entry.get_shape()), dtype, path))

    def read(self, name: str) -> Tensor:
        # opened for each tensor, so that only the pages of one tensor are resident
        with _open(self.entries[name].file) as file:
            return file.get_tensor(name)


class _Pickled:
    """``torch.save`` files, read without running any code in them."""

    def __init__(self, files: list[Path]) -> None:
        self.entries: dict[str, Stored] = {}
        self.tensors: dict[str, Tensor] = {}
        for path in files:
            for name, tensor in _unpickle(path).items():
                dtype = str(tensor.dtype).removeprefix("torch.")
                _add(self.entries, name, Stored(tuple(tensor.shape), dtype, path))
                self.tensors[name] = tensor

    def read(self, name: str) -> Tensor:
        return self.tensors[name]


class RankFiles(Mapping[str, Tensor]):
    """Tensors in parts, one file of each rank, that are read when they are asked for.

    Attributes:
        entries: the whole tensors whose names begin with ``prefix``, without it.
    """

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self._prefix = prefix
        self._parts: dict[str, list[tuple[tuple[slice, ...], Path]]] = {}
        self.entries: dict[str, Stored] = {}
        held: dict[str, int] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with _open(path) as file:
                places = _places(file, path)
                for full in file.keys():  # noqa: SIM118  (not a dict)
                    if not full.startswith(prefix):
                        continue
                    name, entry = full.removeprefix(prefix), file.get_slice(full)
                    start, size = places[full]["saved_offsets"], entry.get_shape()
                    end = [s + n for s, n in zip(start, size, strict=True)]
                    before = self.entries[name].shape if name in self.entries else end
                    shape = tuple(max(pair) for pair in zip(before, end, strict=True))
                    dtype = _DTYPES.get(entry.get_dtype(), entry.get_dtype())
                    self.entries[name] = Stored(shape, dtype, path)
                    self._parts.setdefault(name, []).append((tuple(map(slice, start, end)), path))
                    held[name] = held.get(name, 0) + math.prod(size)
        for name, entry in self.entries.items():
            if held[name] != math.prod(entry.shape):
                raise CheckpointError(
                    f"the files in {folder} hold {held[name]:,} numbers of {name}, which has "
                    f"{math.prod(entry.shape):,}; put back those of all ranks"
                )

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __getitem__(self, name: str) -> Tensor:
        return self.read(name)

    def read(self, name: str) -> Tensor:
        """Return the whole tensor."""
        parts = self._parts[name]
        if len(parts) == 1:
            return self._part(name, parts[0][1])
        first = self._part(name, parts[0][1])
        whole = first.new_empty(self.entries[name].shape)
        for place, path in parts:
            whole[place] = self._part(name, path)
        return whole

    def _part(self, name: str, path: Path) -> Tensor:
        with _open(path) as file:
            return file.get_tensor(self._prefix + name)


def _places(file: safe_open, path: Path) -> dict[str, Any]:
    try:
        header: Any = file
        places: dict[str, Any] = json.loads(header.metadata()["DCP_SHARDING_INFO"])
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path} does not say where its parts of tensors begin") from None
    return places


def open_tensors(folder: Path) -> StoredTensors:
    """Return the weights of ``folder``, in transformers' order of preference.

    Raises CheckpointError for a missing, truncated or corrupt file, and for an index that disagrees with its
    files.
    """
    if (folder / SAFETENSORS).exists():
        return _Safetensors([folder / SAFETENSORS])
    if (folder / INDEX).exists():
        return _indexed(folder / INDEX, _Safetensors)
    if (folder / _BIN).exists():
        return _Pickled([folder / _BIN])
    if (folder / _BIN_INDEX).exists():
        return _indexed(folder / _BIN_INDEX, _Pickled)
    if (folder / RANKS).is_dir():
        return RankFiles(folder / RANKS, WEIGHT)
    raise CheckpointError(
        f"{folder} holds no weights; looked for {SAFETENSORS}, {INDEX}, {_BIN} and {_BIN_INDEX}"
    )


def _indexed(index: Path, kind: type[_Safetensors] | type[_Pickled]) -> StoredTensors:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f'{index} has no usable "weight_map" from tensor names to files')
    shards = sorted(set(weight_map.values()))
    elsewhere = [name for name in shards if Path(name).name != name]
    if elsewhere:
        raise CheckpointError(f"{index} names files outside its folder: {listed(elsewhere)}")
    missing = [name for name in shards if not (index.parent / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{index} names files that are not there: {listed(missing)}; copy them beside it"
        )
    stored = kind([index.parent / name for name in shards])
    for name, shard in weight_map.items():
        if name not in stored.entries or stored.entries[name].file.name != shard:
            raise CheckpointError(f"{index} places {name} in {shard}, which does not hold it")
    return stored


def _add(entries: dict[str, Stored], name: str, entry: Stored) -> None:
    if name in entries:
        raise CheckpointError(f"the tensor {name} is in two files, {entries[name].file} and {entry.file}")
    entries[name] = entry


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {_why_unreadable(path) or error}") from None


def _why_unreadable(path: Path) -> str | None:
    """Return the problem with a safetensors file, in more words than the library's own message."""
    if not path.is_file():
        return None
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if start == _POINTER_START:
            return _POINTER
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > size - 8:
            return f"it is truncated, or no safetensors file: {size:,} bytes end inside the header"
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            needed = 8 + length + max(ends, default=0)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            return "its header is corrupt; fetch or save the file again"
    if size < needed:
        return f"it is truncated: {size:,} of {needed:,} bytes"
    return None


def _unpickle(path: Path) -> dict[str, Tensor]:
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if start == _POINTER_START:
        raise CheckpointError(f"{path} cannot be read: {_POINTER}")
    zipped = start.startswith(b"PK\x03\x04")  # files older than PyTorch 1.6 cannot be mapped
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:
        # damaged bytes raise anything in the unpickler: IndexError, KeyError, AssertionError, ...
        foreign = re.search(r"GLOBAL (\S+)", str(error))  # a class or function outside tensors
        if foreign:
            raise CheckpointError(
                f"{path} holds more than tensors and is not loaded, because unpickling {foreign[1]} could "
                "run its code"
            ) from None
        raise CheckpointError(
            f"{path} cannot be read: truncated or corrupt ({_first_words(error)})"
        ) from None
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise CheckpointError(f"{path} is not a table of tensors by name; save model.state_dict() alone")
    return content


def _first_words(error: Exception) -> str:
    """Return PyTorch's complaint without its advice, such as to unpickle unsafely."""
    words = str(error).rpartition("WeightsUnpickler error:")[2].strip().partition("\n")[0].partition(". ")[0]
    return f"{type(error).__name__}: {words}".removesuffix(": ")


def complete(folder: Path) -> None:
    """Finish a save into ``folder`` that was interrupted; raises CheckpointError if that is impossible."""
    try:
        finish_replacement(folder)
    except OSError as error:
        raise CheckpointError(
            f"a save into {folder} was interrupted and cannot be completed ({error.strerror or error}); make "
            "the folder writable and load it again"
        ) from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raise CheckpointError if it is missing or holds something else."""
    if not path.parent.is_dir():
        problem = "is a file, not a folder" if path.parent.exists() else "does not exist"
        raise CheckpointError(
            f"{path.parent} {problem}; give the folder that holds config.json and the weights"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} is no checkpoint folder: it has no {path.name}") from None
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not a {type(content).__name__}")
    return content
