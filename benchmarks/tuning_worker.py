"""Tune with one library in its own process: answer each line ``steps N`` with a line of JSON.

tuning.py starts this script.  The library's own loop runs; at the end of a step it waits for the next line.
All that the loop does between two steps, such as reading the next batch, is measured.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from entry import in_one_line
from training_worker import tune


def memory(name: str) -> int:
    """Return ``VmRSS`` (resident now) or ``VmHWM`` (its peak) of this process in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


class Turns:
    """A callback for the end of a step: it reports after the first step, then after every turn.

    Args:
        answer: writes a line of JSON.
        tokens: the tokens of each sample, in the order of training.
        rows: samples of a step.
        facts: what the first report adds.
        before: the memory of the process before the model was built.
    """

    def __init__(self, answer: Any, tokens: list[int], rows: int, facts: dict[str, Any], before: int) -> None:
        self.answer, self.facts, self.before = answer, facts, before
        batches = len(tokens) // rows
        self.batches = [sum(tokens[i * rows : (i + 1) * rows]) for i in range(batches)]
        self.step = self.first = 0
        self.until = 1
        self.began = time.perf_counter()
        self.usage = resource.getrusage(resource.RUSAGE_SELF)

    def __call__(self, loss: float) -> None:
        self.step += 1
        if self.step < self.until:
            return
        wall = time.perf_counter() - self.began
        after, count = resource.getrusage(resource.RUSAGE_SELF), self.until - self.first
        cpu = after.ru_utime + after.ru_stime - self.usage.ru_utime - self.usage.ru_stime
        done = (self.batches[step % len(self.batches)] for step in range(self.first, self.step))
        self.answer({
            **(self.facts if self.first == 0 else {}),
            "loss": loss,
            "tokens": sum(done),
            "seconds": wall / count,
            "cpu": cpu / count,
            "peak_bytes": memory("VmHWM") - self.before,
            "process_bytes": memory("VmHWM"),
        })  # fmt: skip
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        self.first, self.until = self.step, self.step + int(line.split()[1])
        self.began = time.perf_counter()
        self.usage = resource.getrusage(resource.RUSAGE_SELF)


def main() -> None:
    given = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # send what the libraries print to stderr
    if given.pop("allocator") == "tuned":
        tune()
    import torch

    torch.set_num_threads(given["threads"])
    sys.path.insert(0, str(Path(__file__).parent))
    import tuning_sides

    def answer(values: dict[str, Any]) -> None:
        print(json.dumps(values), file=answers, flush=True)

    side = given.pop("side")
    shape = tuning_sides.SHAPES[given.pop("shape")]
    paths = {name: Path(given.pop(name)) for name in ("base", "data")}
    work = tuning_sides.Work(**given, **paths, shape=shape)
    try:
        for library in {"wordloom": ("wordloom.run.train",), "trl": ("datasets", "peft", "trl")}[side]:
            __import__(library)
        import_more(side)
        before = memory("VmRSS")
        torch.manual_seed(0)
        ready = tuning_sides.SIDES[side](work)
    except ImportError as error:
        answer({"missing": str(error)})
        return
    parameters = list(ready.model.parameters())
    facts = {
        "parameters": sum(p.numel() for p in parameters),
        "trained": sum(p.numel() for p in parameters if p.requires_grad),
        "digest": ready.digest,
        "separate_loss": ready.separate_loss(),
        "building_bytes": memory("VmHWM") - before,
        "library_bytes": before,
    }
    ready.train(Turns(answer, list(ready.tokens), shape.rows(work.packed), facts, before))


def import_more(side: str) -> None:
    """Import the parts that the libraries import at the first use, so that they do not count as training.

    The first fused AdamW imports torch._dynamo, and Wordloom's first kernel imports numba.  They take 80 and
    50 MiB.  Machine code that is made later counts as memory of training.
    """
    import torch

    layer = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    layer(torch.ones(2, 8)).sum().backward()
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()
    if side == "wordloom":
        import numba  # noqa: F401
    if side == "trl":
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM  # noqa: F401
        from trl import SFTConfig, SFTTrainer  # noqa: F401


if __name__ == "__main__":
    in_one_line(main)
