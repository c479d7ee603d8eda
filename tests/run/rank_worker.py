"""Train the runs of a JSON file, one after another; torchrun starts this on every rank.

``"rank 0"`` and ``"rank 1"`` of a run hold settings of one rank alone, ``"version"`` that of the packages of
rank 1, and ``"limit"`` the largest file that rank 0 can write.  With ``"held"``, a folder, rank 1 writes a
checkpoint when a file of its name is there.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

import wordloom.run.ranks
from wordloom.errors import RankError, WordloomError
from wordloom.nn import quantized
from wordloom.run import train
from wordloom.training import optimizers


def main(path: Path) -> None:
    torch.set_num_threads(1)
    quantized.MOST_EXACT_ROWS = sys.maxsize  # or weights in 8 bits would be multiplied in two ways, by rows
    optimizers.has_fast_bf16 = lambda _: False  # or Muon would round a difference of 1e-8 up
    runs, rank = json.loads(path.read_text()), os.environ["RANK"]
    if len(runs) > 1:  # one group for all
        torch.distributed.init_process_group("gloo")
    for run in runs:
        if "limit" in run and rank == "0":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (run["limit"], run["limit"]))
        if "held" in run and rank == "1":
            hold_checkpoints(Path(run["held"]))
        if "version" in run and rank == "1":
            wordloom.run.ranks.version = lambda name, given=run["version"]: given
        settings = [*run["settings"], *run.get(f"rank {rank}", [])]
        train(run["recipe"], settings, out=run["out"], start_from=run["start"], resume=run["resume"])


def hold_checkpoints(released: Path) -> None:
    write = HuggingFaceStorageWriter.write_data

    def write_later(self: Any, *args: Any) -> Any:
        name = Path(self.path).parents[1].name.removeprefix(".writing-")
        while not (released / name).exists():
            time.sleep(0.02)
        return write(self, *args)

    HuggingFaceStorageWriter.write_data = write_later


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except RankError:
        sys.exit(2)
    except WordloomError as error:
        print(f"wordloom: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
