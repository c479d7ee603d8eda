"""Save the tensors of several ranks while they train: each rank writes a file with its parts.

The files are those of PyTorch's distributed checkpoints, as safetensors.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import async_save

from wordloom.errors import CheckpointError, RankError
from wordloom.training.ranks import Ranks, is_lost
from wordloom.weights.integrity import file_hash


class BackgroundSave:
    """One save at a time, by a thread of each rank; all ranks call the methods together."""

    def __init__(self, ranks: Ranks) -> None:
        # messages of the threads must not mix with those of training
        self._ranks = replace(ranks, group=dist.new_group(backend="gloo"))
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, tensors: dict[str, Tensor], folder: Path, finish: Callable[[PartFiles], None]) -> None:
        """Copy ``tensors`` to main memory, write them into ``folder``, and call ``finish`` in the background.

        Waits for the save before, and raises its error.
        """
        self.wait()
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        given: dict[str, Any] = dict(sorted(tensors.items()))  # in one order, also after a resume
        written = async_save(given, storage_writer=writer, process_group=self._ranks.group)
        assert isinstance(written, Future)
        files = PartFiles(self._ranks, folder, written)
        self._thread = threading.Thread(target=self._run, args=(finish, files), name="save")
        self._thread.start()

    def _run(self, finish: Callable[[PartFiles], None], files: PartFiles) -> None:
        try:
            finish(files)
        except BaseException as error:  # also those of PyTorch's that are no Exception
            self._error = error  # raised by wait

    @property
    def failed(self) -> bool:
        """Whether the save has ended with an error on this rank."""
        return self._error is not None

    def wait(self) -> None:
        """Wait for the end of a save, and raise its error."""
        if self._thread is not None:
            self._thread.join()
        self._thread, error, self._error = None, self._error, None
        if error is not None:
            raise error


class PartFiles:
    """The files of a save that is being written.

    Attributes:
        ranks: those of the run, for messages in the background.
    """

    def __init__(self, ranks: Ranks, folder: Path, written: Future[Any]) -> None:
        self.ranks = ranks
        self._folder = folder
        self._written = written

    def hashes(self) -> dict[str, str]:
        """Wait until the files of all ranks are on disk, and return the sha256 of each by its name.

        Raises CheckpointError on the first rank, and RankError on others, if one of them could not write.
        """
        try:
            self._written.result()
        except CheckpointException as error:
            rank, (reason, _) = min(error.failures.items())
            if is_lost(reason):
                raise reason from None
            if not self.ranks.is_first:
                raise RankError(str(reason)) from reason
            raise CheckpointError(f"rank {rank}: {reason}") from None
        own = self._name(self.ranks.rank)
        digests = torch.zeros(self.ranks.size, 32, dtype=torch.uint8)
        with self.ranks.together():
            if (self._folder / own).exists():  # a rank without parts writes none
                _sort_metadata(self._folder / own)
                digest = bytearray.fromhex(file_hash(self._folder / own))
                digests[self.ranks.rank] = torch.frombuffer(digest, dtype=torch.uint8)
        digests = self.ranks.summed(digests)
        return {self._name(i): bytes(row.tolist()).hex() for i, row in enumerate(digests) if row.any()}

    @staticmethod
    def _name(rank: int) -> str:
        return f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"


def _sort_metadata(path: Path) -> None:
    """Sort the metadata of a safetensors file, which the library writes in an order of its own each time."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        written = file.read(length)
        header = json.loads(written)
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(length)
        if len(text) == length:
            file.seek(8)
            file.write(text)
