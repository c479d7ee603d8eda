"""Run one library in its own process: answer each line ``steps N`` or ``limit`` with a line of JSON.

training.py and encoders.py start this script.  The allocator must be set before the first tensor, so a
process has one setting.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from entry import in_one_line

SOURCE = Path(__file__).parents[1] / "src" / "wordloom"


def tune() -> None:
    """Apply Wordloom's allocator settings without importing Wordloom into another library's process."""
    spec = importlib.util.spec_from_file_location("allocator", SOURCE / "training" / "allocator.py")
    assert spec is not None
    assert spec.loader is not None
    allocator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(allocator)
    allocator.tune_allocator()


def main() -> None:
    given = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # send what the libraries print to stderr
    if given["allocator"] == "tuned":
        tune()
    import torch

    torch.set_num_threads(given["threads"])
    sys.path.insert(0, str(Path(__file__).parent))
    sides = importlib.import_module(given["sides"])

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        torch.manual_seed(0)
        model, step = sides.SIDES[given["side"]](
            sides.SHAPES[given["shape"]], given["precision"], given["compiled"]
        )
    except ImportError as error:
        say({"missing": str(error)})
        return
    began = time.perf_counter()
    step()
    say({"parameters": sum(p.numel() for p in model.parameters()), "first_step": time.perf_counter() - began})
    for line in sys.stdin:
        if line.startswith("limit"):
            from matmul_limit import limit_seconds

            say(limit_seconds(step))
            continue
        before = resource.getrusage(resource.RUSAGE_SELF)
        began = time.perf_counter()
        count = int(line.split()[1])
        for _ in range(count):
            step()
        wall = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_SELF)
        say({
            "seconds": wall / count,
            "cpu": (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / count,
            "system": (after.ru_stime - before.ru_stime) / count,
            "faults": (after.ru_minflt - before.ru_minflt) / count,
            "peak_bytes": after.ru_maxrss * 1024,
        })  # fmt: skip


if __name__ == "__main__":
    in_one_line(main)
