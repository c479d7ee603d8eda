"""Compare training speed with transformers and litgpt, at equal shapes, precision and threads.

    python benchmarks/training.py [--shape gpt2-char ...] [--precision fp32 bf16] [--rounds 5] [--quick]

Each side has its own process.  The processes take turns of one step, so that other programs on the machine
slow all sides equally, and medians over rounds are compared.

There are two comparisons.  "as a user gets them" gives Wordloom the allocator settings that its command sets,
and leaves the others as they are; Wordloom without these settings is also timed.  "same allocator settings"
gives the settings to all sides.  The limit is the time of the step's matrix products and attention calls
alone, in the same process.

litgpt needs ``python benchmarks/peers/install_litgpt.py`` once.  A library that is not installed is skipped
with a message.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from entry import in_one_line

HERE = Path(__file__).parent
PEERS = ("transformers", "litgpt")


class Contestant:
    """A worker process and its measurements."""

    def __init__(
        self, side: str, *, shape: str, precision: str, allocator: str, compiled: bool, threads: int,
        sides: str = "training_sides",
    ):  # fmt: skip
        self.side, self.allocator, self.compiled = side, allocator, compiled
        settings = {"side": side, "shape": shape, "precision": precision, "allocator": allocator,
                    "compiled": compiled, "threads": threads, "sides": sides}  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "training_worker.py"), json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
        )  # fmt: skip
        self.samples: list[dict[str, float]] = []
        self.start = self._answer()

    @property
    def name(self) -> str:
        plain = ", system allocator" if self.side == "wordloom" and self.allocator == "system" else ""
        return self.side + (" compiled" if self.compiled else "") + plain

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return (
            json.loads(line) if line else {"missing": f"the process ended (exit code {self.process.wait()})"}
        )

    def ask(self, what: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self._answer()

    def median(self, key: str) -> float:
        return statistics.median(sample[key] for sample in self.samples)

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()


def compete(contestants: list[Contestant], *, rounds: int, steps: int, settle: bool) -> None:
    """Run the contestants in turns; every other round has the reverse order.

    ``settle``: a turn begins with a step that does not count.  What a peer gives back to the system at the
    end of its own occupies the machine for seconds more: a step of ours after it took 15 % longer than alone.
    """
    for _ in range(rounds):
        for contestant in contestants:
            if settle:
                contestant.ask("steps 1")
            contestant.samples.append(contestant.ask(f"steps {steps}"))
        contestants.reverse()


def measure(shape: str, precision: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Return both comparisons at one shape and precision as flat records."""
    from training_sides import SHAPES

    tokens = SHAPES[shape].tokens
    modes = (False, True) if given.compiled else (False,)
    for comparison, theirs in (("as a user gets them", "system"), ("same allocator settings", "tuned")):
        with ExitStack() as stack:
            contestants = []
            sides = [("wordloom", "tuned"), *((peer, theirs) for peer in given.peers)]
            if theirs == "system" and not given.compiled:  # with both modes there is no memory left for it
                sides.append(("wordloom", "system"))  # what our settings gain, and the memory that they cost
            for side, allocator in sides:
                for compiled in modes:
                    contestant = Contestant(
                        side, shape=shape, precision=precision, compiled=compiled, threads=given.threads,
                        allocator=allocator,
                    )  # fmt: skip
                    stack.callback(contestant.close)
                    if "missing" in contestant.start:
                        print(f"{contestant.name} left out: {contestant.start['missing']}", file=sys.stderr)
                    else:
                        contestants.append(contestant)
            compete(contestants, rounds=given.rounds, steps=given.steps, settle=theirs == "system")
            for c in contestants:
                limit = c.ask("limit") if c.side == "wordloom" or given.limits else {}
                yield {
                    "shape": shape, "precision": precision, "comparison": comparison, "side": c.name,
                    "allocator": c.allocator, "parameters": c.start["parameters"],
                    "first_step_seconds": round(c.start["first_step"], 3),
                    "step_seconds": round(c.median("seconds"), 5), "cpu_seconds": round(c.median("cpu"), 5),
                    "fastest_seconds": round(min(s["seconds"] for s in c.samples), 5),
                    "tokens_per_second": round(tokens / c.median("seconds"), 1),
                    "limit_seconds": round(limit["wall"], 5) if limit else None,
                    "limit_cpu_seconds": round(limit["cpu"], 5) if limit else None,
                    "limit_parts": limit.get("parts"),
                    "system_seconds": round(c.median("system"), 5), "page_faults": round(c.median("faults")),
                    "peak_gib": round(max(s["peak_bytes"] for s in c.samples) / 2**30, 3),
                    "threads": given.threads, "rounds": given.rounds,
                }  # fmt: skip


HEADINGS = ("shape", "precision", "side", "tokens/s", "ours is", "by CPU time", "step/limit", "by CPU time",
            "faults", "peak GiB")  # fmt: skip


def table(records: Iterable[dict[str, Any]]) -> str:
    """Print a table for each comparison; ratios divide Wordloom's median by each other library's."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for r in records:
        groups.setdefault((r["comparison"], r["shape"], r["precision"]), []).append(r)
    parts: dict[str, list[tuple[str, ...]]] = {}
    for (comparison, shape, precision), group in groups.items():
        ours = [r for r in group if r["side"].startswith("wordloom") and r["allocator"] == "tuned"]
        best = min(ours, key=lambda r: r["step_seconds"])
        for r in sorted(group, key=lambda r: r["step_seconds"]):
            ratios = ["", "", "", ""]
            if r not in ours:
                ratios[0] = f"{r['step_seconds'] / best['step_seconds']:.2f}x"
                ratios[1] = f"{r['cpu_seconds'] / best['cpu_seconds']:.2f}x"
            if r["limit_seconds"]:
                ratios[2] = f"{r['step_seconds'] / r['limit_seconds']:.2f}"
                ratios[3] = f"{r['cpu_seconds'] / r['limit_cpu_seconds']:.2f}"
            figures = (f"{r['page_faults']:,}", f"{r['peak_gib']:.2f}")
            rate = f"{r['tokens_per_second']:,.0f}"
            parts.setdefault(comparison, []).append((shape, precision, r["side"], rate, *ratios, *figures))
    rows = [HEADINGS, *(row for part in parts.values() for row in part)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]

    def line(row: tuple[str, ...]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()

    return "\n".join(
        f"\n{name}\n{line(HEADINGS)}\n" + "\n".join(map(line, part)) for name, part in parts.items()
    )


def machine() -> dict[str, Any]:
    """Return facts about the machine; ``bf16`` says whether this CPU computes in bfloat16."""
    import torch

    from wordloom.nn.linear import has_fast_bf16

    names = [line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")]
    return {
        "cpu": names[0] if names else "unknown",
        "cores": os.cpu_count(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "bf16": "arithmetic" if has_fast_bf16(torch.device("cpu")) else "none",
        "torch": torch.__version__,
        "load_average": os.getloadavg()[0],
    }


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def main() -> None:
    sys.path.insert(0, str(HERE))
    from training_sides import SHAPES

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES)[:3])
    parser.add_argument("--precision", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side")
    parser.add_argument("--steps", type=int, default=1, help="optimizer steps in a turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--compiled", action="store_true", help="also run every side under torch.compile")
    parser.add_argument(
        "--limits", action="store_true", help="also measure the limits of the other libraries"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one tiny shape in fp32, to check that everything runs"
    )
    given = parser.parse_args()
    if given.quick:
        given.shape, given.precision, given.rounds = ["tiny"], ["fp32"], 3

    print(json.dumps({"benchmark": "training", **machine()}))
    records = []
    for shape in given.shape:
        for precision in given.precision:
            for record in measure(shape, precision, given):
                print(json.dumps(record), flush=True)
                records.append(record)
    print(table(sorted(records, key=lambda r: r["comparison"])))


if __name__ == "__main__":
    in_one_line(main)
