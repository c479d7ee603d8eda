"""Training on two ranks of one thread each, beside one process with two threads: the cost of several ranks.

The sides take turns, each in new processes.  A round is the median seconds of a step, after warm-up; a line
of JSON for each side has the median of the rounds, their range, and the ratio to one process.

    python benchmarks/distributed.py [--rounds 3] [--steps 10]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
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
from wordloom.training.ranks import joined_ranks
from wordloom.training.trainer import Trainer

B, T, V = 16, 256, 8192
WARM_UP = 3
SIDES = {"one process, 2 threads": (1, "none"), "2 ranks, none": (2, "none"), "2 ranks, full": (2, "full")}


class RandomBatches:
    """Windows of random tokens."""

    samples_per_epoch = 1 << 20

    def batch(self, start: int, count: int) -> CausalBatch:
        tokens = torch.randint(V, (count, T + 1), generator=torch.Generator().manual_seed(start))
        return CausalBatch(tokens[:, :-1], tokens[:, 1:])

    def document_ids(self, start: int, count: int) -> list[str]:
        return []


def work(shard: str, steps: int) -> None:
    """Train on this rank, and print the median seconds of a step on the first one."""
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
        seconds = []
        for step in range(WARM_UP + steps):
            began = time.perf_counter()
            trainer.train_step()
            if step >= WARM_UP:
                seconds.append(time.perf_counter() - began)
        if ranks.is_first:
            print(f"seconds {statistics.median(seconds)}", flush=True)


def one_round(side: str, steps: int) -> float:
    """Return the median seconds of a step."""
    ranks, shard = SIDES[side]
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [str(Path(__file__)), "--work", shard, "--steps", str(steps)]
    threads = {"OMP_NUM_THREADS": str(2 // ranks)}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **threads}, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("seconds ")]
    if done.returncode or not found:
        raise WordloomError(f"{side}: {done.stderr.strip().splitlines()[-1]}")
    return float(found[0].split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        work(given.work, given.steps)
        return
    rounds: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(given.rounds):
        for side in SIDES:
            rounds[side].append(one_round(side, given.steps))
    base = statistics.median(next(iter(rounds.values())))
    for side, seconds in rounds.items():
        line = {
            "side": side,
            "tokens_per_second": round(B * T / statistics.median(seconds)),
            "seconds_a_step": round(statistics.median(seconds), 3),
            "range": [round(min(seconds), 3), round(max(seconds), 3)],
            "to_one_process": round(statistics.median(seconds) / base, 3),
        }
        print(json.dumps(line))


if __name__ == "__main__":
    in_one_line(main)
