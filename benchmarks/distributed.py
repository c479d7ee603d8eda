"""The cost of several ranks: two of one thread each beside one process with two threads, and checkpoints.

The sides take turns, each in new processes.  A round is the median seconds of a step after warm-up, the
seconds that a checkpoint holds up training, and the seconds of all steps with one checkpoint, until it is on
disk.  A line of JSON for each side has the medians of the rounds, the range of a step, and ratios: of a step
to one process, and of all steps to two ranks that wait until the first one has written the checkpoint.

    python benchmarks/distributed.py [--rounds 3] [--steps 10]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from entry import in_one_line

from wordloom.data.batches.causal import CausalBatch
from wordloom.errors import WordloomError
from wordloom.models import LlamaConfig, build
from wordloom.objectives import causal_lm
from wordloom.recipe import TrainSettings
from wordloom.training.checkpoint import write_checkpoint
from wordloom.training.ranks import joined_ranks
from wordloom.training.trainer import Trainer
from wordloom.weights import save_model

B, T, V = 16, 256, 8192
WARM_UP = 3
SIDES = {
    "one process, 2 threads": (1, "none", "whole"),
    "2 ranks, none": (2, "none", "parts"),
    "2 ranks, full": (2, "full", "parts"),
    "2 ranks, full, waiting for checkpoints": (2, "full", "whole"),
}


class RandomBatches:
    """Windows of random tokens."""

    samples_per_epoch = 1 << 20

    def batch(self, start: int, count: int) -> CausalBatch:
        tokens = torch.randint(V, (count, T + 1), generator=torch.Generator().manual_seed(start))
        return CausalBatch(tokens[:, :-1], tokens[:, 1:])

    def document_ids(self, start: int, count: int) -> list[str]:
        return []


def work(shard: str, save: str, steps: int) -> None:
    """Train on this rank, and print the figures of a round on the first one."""
    with joined_ranks() as ranks:
        torch.set_num_threads(2 // ranks.size)
        config = LlamaConfig(vocab_size=V, dim=256, n_layers=8, n_heads=4, hidden_dim=704, max_seq_len=T)
        settings: Any = {
            "steps": 1000, "seq_len": T, "batch_size": B, "device": "cpu", "precision": "fp32",
            "shard": shard,
        }  # fmt: skip
        trainer = Trainer(
            build(config, generator=torch.Generator().manual_seed(0)), causal_lm, RandomBatches(),
            TrainSettings(**settings), total_steps=1000, ranks=ranks,
        )  # fmt: skip
        for _ in range(WARM_UP):
            trainer.train_step()
        seconds, first = [], time.perf_counter()
        with tempfile.TemporaryDirectory() as place:
            run, pause = Path(place), 0.0
            for step in range(steps):
                began = time.perf_counter()
                trainer.train_step()
                seconds.append(time.perf_counter() - began)
                if step == 0:
                    began = time.perf_counter()
                    write_checkpoint(
                        trainer, run, write_model=save_model, facts={}, keep_last=1, best_step=None,
                        consolidate=save == "whole",
                    )  # fmt: skip
                    pause = time.perf_counter() - began
            trainer.finish_saving()
            figures = {"step": statistics.median(seconds), "pause": pause, "all": time.perf_counter() - first}
        if ranks.is_first:
            print(f"figures {json.dumps(figures)}", flush=True)


def one_round(side: str, steps: int) -> dict[str, float]:
    """Return the figures of one round."""
    ranks, shard, save = SIDES[side]
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [str(Path(__file__)), "--work", shard, save, "--steps", str(steps)]
    threads = {"OMP_NUM_THREADS": str(2 // ranks)}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **threads}, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("figures ")]
    if done.returncode or not found:
        raise WordloomError(f"{side}: {done.stderr.strip().splitlines()[-1]}")
    figures: dict[str, float] = json.loads(found[0].removeprefix("figures "))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        work(*given.work, given.steps)
        return
    rounds: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(given.rounds):
        for side in SIDES:
            rounds[side].append(one_round(side, given.steps))
    medians = {
        side: {name: statistics.median(each[name] for each in figures) for name in figures[0]}
        for side, figures in rounds.items()
    }
    alone, *_, waiting = medians.values()
    for side, median in medians.items():
        steps = [each["step"] for each in rounds[side]]
        line = {
            "side": side,
            "tokens_per_second": round(B * T / median["step"]),
            "seconds_a_step": round(median["step"], 3),
            "range": [round(min(steps), 3), round(max(steps), 3)],
            "to_one_process": round(median["step"] / alone["step"], 3),
            "checkpoint_pause_seconds": round(median["pause"], 3),
            f"seconds_of_{given.steps}_steps": round(median["all"], 3),
            "to_waiting": round(median["all"] / waiting["all"], 3),
        }
        print(json.dumps(line))


if __name__ == "__main__":
    in_one_line(main)
