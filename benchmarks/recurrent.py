"""Compare training and generation of an LSTM with a plain PyTorch loop: same model, batches and threads.

    python benchmarks/recurrent.py [--shape small medium] [--side ...] [--rounds 7] [--steps 10]
                                   [--allocator system|tuned] [--generation] [--quick]

The plain loop is that of PyTorch's word_language_model example: nn.Embedding, nn.LSTM, nn.Linear and
nn.CrossEntropyLoss, detached state, clipped gradients and SGD.  Wordloom runs the trainer's step.  The shapes
are those of Zaremba et al. (2014): 2 x 200, batch 20, 20 steps, and 2 x 650, batch 20, 35 steps, vocabulary
10,000.

All sides share one process and one allocator, and take turns of a few steps.  Medians over rounds are
compared with the plain loop in the same precision; bf16 and mixed precision also with fp32.  ``limit`` is the
summed time of the step's matrix products alone.  ``--generation`` reports tokens per second from one prompt,
beside the plain model called token by token.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from entry import in_one_line
from torch import Tensor, nn
from turns import in_turns

from wordloom.generate import Sampling, steps
from wordloom.models import PRESETS, RNNConfig, build
from wordloom.recipe import TrainSettings
from wordloom.training.allocator import tune_allocator

SHAPES = {"small": (200, 20, 20), "medium": (650, 20, 35), "tiny": (16, 4, 5)}  # dim, batch, steps
VOCABULARY, CLIP, RATE = 10_000, 0.25, 1.0
PROMPT = [1, 2, 3]
Step = Callable[[], Any]


class Plain(nn.Module):
    """The model of PyTorch's examples/word_language_model."""

    def __init__(self, vocab: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, dim, 2)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """tokens [T, B] -> logits [T, B, V]."""
        x, state = self.lstm(self.embedding(tokens), state)
        return self.head(x), state


def windows(dim: int, batch: int, length: int, vocab: int) -> Tensor:
    """Return token ids [many, batch, length + 1] with Zipf-like frequencies."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(64, batch, length + 1, generator=generator)
    return (vocab**drawn).long().sub(1).clamp(0, vocab - 1)


def plain_side(shape: tuple[int, int, int], vocab: int, precision: str) -> Step:
    dim, batch, length = shape
    torch.manual_seed(0)
    model, rows = Plain(vocab, dim), windows(dim, batch, length, vocab)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, fused=True)
    criterion = nn.CrossEntropyLoss()
    state: list[Any] = [None]
    turn = [0]

    def step() -> None:
        window = rows[turn[0] % len(rows)].t()
        turn[0] += 1
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits, kept = model(window[:-1], state[0])
            loss = criterion(logits.flatten(0, 1), window[1:].flatten())
        state[0] = tuple(part.detach() for part in kept)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    return step


def our_side(shape: tuple[int, int, int], vocab: int, precision: str) -> Step:
    from wordloom.data import ContiguousBatch
    from wordloom.objectives import objective
    from wordloom.training.trainer import Trainer

    dim, batch, length = shape
    rows = windows(dim, batch, length, vocab)

    class Batches:
        samples_per_epoch = 1 << 30

        def batch(self, start: int, count: int) -> ContiguousBatch:
            window = rows[start // batch % len(rows)]
            return ContiguousBatch(window[:, :-1], window[:, 1:], None, None, 0, start == 0)

        def document_ids(self, start: int, count: int) -> list[str]:
            return []

    settings = TrainSettings(
        steps=1 << 20, seq_len=length, batch_size=batch, objective="truncated_bptt", optimizer="sgd",
        learning_rate=RATE, weight_decay=0.0, clip=CLIP, schedule="constant", precision=precision,
        device="cpu",
    )  # fmt: skip
    model = build(RNNConfig(vocab_size=vocab, dim=dim, forget_bias=0.0))
    return Trainer(model, objective("truncated_bptt"), Batches(), settings, total_steps=1 << 20).train_step


SIDES: dict[str, tuple[Any, str]] = {
    "plain fp32": (plain_side, "fp32"),
    "wordloom fp32": (our_side, "fp32"),
    "wordloom fp32, softmax bf16": (our_side, "bf16-head"),
    "plain bf16": (plain_side, "bf16"),
    "wordloom bf16": (our_side, "bf16"),
}


def seconds(step: Step, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - began) / count


def training(given: argparse.Namespace) -> None:
    for name in given.shape:
        shape = SHAPES[name]
        vocab = 97 if name == "tiny" else VOCABULARY
        sides = {side: SIDES[side][0](shape, vocab, SIDES[side][1]) for side in given.side}
        for step in sides.values():
            seconds(step, 3)
        turns = {side: partial(seconds, step, given.steps) for side, step in sides.items()}
        medians = in_turns(turns, given.rounds)
        for side, median in medians.items():
            precision = "bf16" if side.endswith(" bf16") and "softmax" not in side else "fp32"
            record: dict[str, Any] = {
                "shape": name, "side": side, "step_ms": round(1e3 * median, 3),
                "tokens_per_second": round(shape[1] * shape[2] / median),
            }  # fmt: skip
            for what, other in (
                ("ratio_to_plain", f"plain {precision}"),
                ("ratio_to_plain_fp32", "plain fp32"),
            ):
                if other in medians and other != side:
                    record[what] = round(medians[other] / median, 2)
            if given.limits and side.startswith("wordloom"):
                from matmul_limit import limit_seconds

                limit = limit_seconds(sides[side])
                record |= {
                    "limit_ms": round(1e3 * limit["wall"], 3),
                    "step_of_limit": round(median / limit["wall"], 2),
                }
            print(json.dumps(record), flush=True)


@torch.no_grad()
def generation(given: argparse.Namespace) -> None:
    """Generate greedily from one prompt."""
    for name in given.shape:
        if name == "tiny":
            continue
        config = PRESETS[f"lstm-ptb-{name}"]
        model = build(config).eval()
        plain = Plain(config.vocab_size, config.dim).eval()

        def ours(model: Any = model) -> None:
            for _ in steps(model, [PROMPT], Sampling(max_new_tokens=given.new, temperature=0.0)):
                pass

        def theirs(plain: Any = plain) -> None:
            tokens, state = torch.tensor(PROMPT)[:, None], None
            for _ in range(given.new):
                logits, state = plain(tokens, state)
                tokens = logits[-1:].argmax(-1)

        ours(), theirs()
        medians = in_turns({"wordloom": partial(seconds, ours, 1), "plain": partial(seconds, theirs, 1)},
                           given.rounds)  # fmt: skip
        rates = {side: round(given.new / median, 1) for side, median in medians.items()}
        print(json.dumps({
            "shape": name, "generation": rates,
            "ratio": round(medians["plain"] / medians["wordloom"], 2),
        }), flush=True)  # fmt: skip


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["small", "medium"])
    parser.add_argument("--side", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps in a turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--allocator", choices=["system", "tuned"], default="system")
    parser.add_argument("--limits", action="store_true", help="also time the products of a step alone")
    parser.add_argument("--generation", action="store_true")
    parser.add_argument("--new", type=int, default=256, help="tokens to generate")
    parser.add_argument("--quick", action="store_true", help="a tiny shape, to check that everything runs")
    given = parser.parse_args()
    if given.allocator == "tuned":
        tune_allocator()
    torch.set_num_threads(given.threads)
    if given.quick:
        given.shape, given.rounds, given.steps = ["tiny"], 2, 2
    print(json.dumps({"benchmark": "recurrent", "threads": given.threads, "allocator": given.allocator,
                      "torch": torch.__version__, "load_average": os.getloadavg()[0]}))  # fmt: skip
    (generation if given.generation else training)(given)


if __name__ == "__main__":
    in_one_line(main)
