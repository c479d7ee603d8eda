"""The cost of attention by context: sparse, low-rank, full, with a dense mask, and transformers' Longformer.

Every step reads the same number of tokens, as texts of T tokens each, so that the time of linear attention
does not depend on T.  Each measurement has its own process, and the sides take turns.  ``layer`` is one
attention layer with its projections, forward and backward; ``step`` is a training step of a LLaMA of 2
layers.  A measurement with steps longer than 20 seconds is made once, in the first round.  One JSON
line for each side and T, then the fitted exponents: time grows as T to that power per text.

    python benchmarks/attention.py [--what layer step] [--lengths 512 ... 32768] [--tokens 32768] [--rounds 3]
                                   [--plot FILE [--read LINES]]

``--plot`` draws the seconds by length; with ``--read``, those that an earlier call printed into a file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from entry import in_one_line

LENGTHS = [512, 1024, 2048, 4096, 8192, 16384, 32768]
WINDOW, DIM, HEADS, VOCABULARY = 256, 256, 4, 4096
MOST = {"masked": 8192, "longformer": 16384, "full": 32768}  # tokens of the longest text of a side
SIDES = {
    "layer": ("band", "nystrom", "performer", "full", "masked", "longformer"),
    "step": ("band", "performer", "full", "masked"),
}
KINDS = {"band": f"band:{WINDOW}", "nystrom": "nystrom:64", "performer": "performer:128", "full": "full"}
STEPS = 3  # that are timed in a process, if they take less than SECONDS together; the least counts
SECONDS = 8
LONG_STEP = 20  # seconds


def layer(side: str, T: int, B: int) -> Callable[[], object]:
    """Return a function that runs one attention layer over B texts of T tokens, forward and backward."""
    import torch

    from wordloom.nn import Attention, Visibility, set_attention_backend
    from wordloom.nn.attention import patterns_of_layers

    x = torch.randn(B, T, DIM, requires_grad=True)
    if side == "longformer":
        from transformers import LongformerConfig
        from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

        config = LongformerConfig(
            hidden_size=DIM, num_attention_heads=HEADS, attention_window=[2 * WINDOW],
            attention_probs_dropout_prob=0.0, max_position_embeddings=T + 2,
        )  # fmt: skip
        theirs = LongformerSelfAttention(config, layer_id=0)
        mask = torch.zeros(B, T)
        settings = {"is_index_masked": mask < 0, "is_index_global_attn": mask > 0, "is_global_attn": False}

        def forward() -> Any:
            return theirs(x, attention_mask=mask, **settings)[0]

        parameters = [p for name, p in theirs.named_parameters() if "global" not in name]
    else:
        (pattern,) = patterns_of_layers(KINDS.get(side, KINDS["band"]), 1, causal=False, longest=T)
        ours = Attention(dim=DIM, n_heads=HEADS, bias=True, pattern=pattern)
        if side == "masked":
            set_attention_backend(ours, "flash")

        def forward() -> Any:
            return ours(x, visibility=Visibility())

        parameters = list(ours.parameters())

    def run() -> None:
        torch.autograd.grad(forward().sum(), [x, *parameters])

    return run


def step(side: str, T: int, B: int) -> Callable[[], object]:
    """Return a function that trains a LLaMA for one step on B texts of T tokens."""
    import torch
    from torch.nn import functional as F

    from wordloom.models import LlamaConfig, build
    from wordloom.nn import set_attention_backend

    torch.manual_seed(0)
    model = build(LlamaConfig(
        vocab_size=VOCABULARY, max_seq_len=T, dim=DIM, n_layers=2, n_heads=HEADS, hidden_dim=688,
        attention=KINDS.get(side, KINDS["band"]),
    ))  # fmt: skip
    if side == "masked":
        set_attention_backend(model, "flash")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, VOCABULARY, (B, T + 1))

    def run() -> None:
        for row in tokens.split(max(1, 8192 // T)):  # the logits of 8,192 tokens at a time
            logits = model(row[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), row[:, 1:].flatten())
            (loss * len(row) / B).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def worker(what: str, side: str, T: int, tokens: int) -> None:
    """Print the least seconds of a step, and the memory in MiB that it added to the process."""
    from wordloom.training import tune_allocator

    tune_allocator()  # as training does
    run = {"layer": layer, "step": step}[what](side, T, max(1, tokens // T))
    before, times = _resident(), list[float]()
    for _ in range(1 + STEPS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
        if sum(times[1:]) > SECONDS:
            break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": min(times[1:]), "memory_mib": round(peak - before)}))


def _resident() -> float:
    import psutil

    return float(psutil.Process().memory_info().rss) / 2**20


def measured(what: str, side: str, T: int, tokens: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--worker", json.dumps([what, side, T, tokens])]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        raise SystemExit(f"{what} {side} {T}: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def exponent(points: dict[int, float]) -> float:
    """Return the power of T with which the time of a text grows, by least squares; tokens are constant."""
    xs, ys = [math.log(T) for T in points], [math.log(seconds) for seconds in points.values()]
    x, y = statistics.mean(xs), statistics.mean(ys)
    slope = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)
    return 1 + slope


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--what", nargs="+", choices=["layer", "step"], default=["layer", "step"])
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--read", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        worker(*json.loads(asked.worker))
        return
    lines: list[dict[str, Any]] = []
    if asked.read is not None:
        lines = [json.loads(line) for line in asked.read.read_text().splitlines()]
        asked.what = []
    for what in asked.what:
        found: dict[str, dict[int, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
        for T in asked.lengths:
            sides = [side for side in SIDES[what] if MOST.get(side, T) >= T]
            for _ in range(asked.rounds):
                for side in sides:
                    known = found[side][T]
                    if not known or known[0]["seconds"] < LONG_STEP:
                        known.append(measured(what, side, T, asked.tokens))
                sides.reverse()
            for side in sides:
                each = found[side][T]
                line = {"what": what, "side": side, "T": T, "tokens": asked.tokens}
                line["seconds"] = round(statistics.median(one["seconds"] for one in each), 4)
                line["memory_mib"] = statistics.median(one["memory_mib"] for one in each)
                print(json.dumps(line), flush=True)
                lines.append(line)
        for side, by_length in found.items():
            medians = {T: statistics.median(one["seconds"] for one in each) for T, each in by_length.items()}
            ratio = {}
            for T, seconds in medians.items():
                if T in found["band"]:
                    band = statistics.median(one["seconds"] for one in found["band"][T])
                    ratio[T] = round(seconds / band, 2)
            power = round(exponent(medians), 3) if len(medians) > 1 else None
            line = {"what": what, "side": side, "exponent": power, "times_of_band": ratio}
            print(json.dumps(line), flush=True)
    if asked.plot is not None:
        draw(asked.plot, [line for line in lines if "T" in line])


def draw(path: Path, lines: list[dict[str, Any]]) -> None:
    """Draw seconds by length, one panel for each kind of work."""
    from wordloom.inspect import figures

    names = {
        "band": f"band of {WINDOW}",
        "nystrom": "Nyström, 64 landmarks",
        "performer": "Performer, 128 features",
        "full": "full",
        "masked": "the band as a dense mask",
        "longformer": "transformers' Longformer",
    }
    titles = {"layer": "one layer, forward and backward", "step": "a training step, 2 layers"}

    def figure() -> Any:
        made = figures.new_figure((7.6, 3.6))
        shown = [what for what in titles if any(line["what"] == what for line in lines)]
        for place, what in enumerate(shown):
            panel = made.add_subplot(1, len(shown), place + 1)
            for i, side in enumerate(names):
                points = {
                    line["T"]: line["seconds"]
                    for line in lines
                    if (line["what"], line["side"]) == (what, side)
                }
                if points:
                    panel.plot(
                        list(points), list(points.values()), color=figures.COLOURS[i],
                        marker=figures.MARKS[i], markersize=4, linewidth=1.4, label=names[side],
                    )  # fmt: skip
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            lengths = sorted({line["T"] for line in lines})
            panel.set_xticks(lengths, [str(T) if T % 1024 else f"{T // 1024}k" for T in lengths])
            panel.set_yticks([1, 3, 10, 30], ["1", "3", "10", "30"])
            panel.minorticks_off()
            panel.tick_params(labelsize=figures.FONT - 1)
            panel.set_title(titles[what], fontsize=figures.FONT + 1)
            panel.set_xlabel("tokens in a text", fontsize=figures.FONT)
            if place == 0:
                panel.set_ylabel(f"seconds for {lines[0]['tokens']:,} tokens", fontsize=figures.FONT)
                panel.legend(frameon=False, fontsize=figures.FONT - 1.5)
            figures.hide_frame(panel)
        return made

    figures.save_figure(figure, [], path)


if __name__ == "__main__":
    in_one_line(main)
