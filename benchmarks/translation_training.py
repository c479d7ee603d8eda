"""Compare training the translation Transformer with a torch.nn.Transformer loop on the same batches.

    python benchmarks/translation_training.py [--side ...] [--rounds 5] [--steps 2] [--allocator system|tuned]
                                              [--limits] [--quick]

The model is that of the recipe transformer-multi30k (dim 256, 3 + 3 layers, 8 heads, feed-forward 512, one
tied vocabulary of 8,000 pieces), on batches of about 4,000 target tokens.  The data set must be present.

The plain loop is PyTorch's tutorial "Language Translation with nn.Transformer", with tied embeddings and
output as in Wordloom: batch_first, causal and padding masks, nn.CrossEntropyLoss with label smoothing, fused
Adam, clipped gradients.  nn.Transformer also applies dropout to attention weights and inside the
feed-forward layer, which the paper does not.  The side "as written" keeps this dropout; the other plain sides
use Wordloom's.  The plain loop on random batches, with as many unsorted pairs a step, shows the cost of
padding.

All sides share one process and one allocator, and take turns of a few steps on the same batches.  Medians
over rounds count real target tokens per second, without padding.  ``limit`` is the summed time of the step's
matrix products alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from entry import in_one_line
from torch import Tensor, nn
from turns import in_turns

from wordloom.data import IGNORE, PairBatch, PairBatches, prepare_pairs
from wordloom.models import TransformerConfig, build
from wordloom.nn import sinusoidal_positions
from wordloom.objectives import objective
from wordloom.progress import TrainingProgress
from wordloom.recipe import TrainSettings, load_recipe
from wordloom.run.tasks.translation.task import pair_corpus, recipe_vocabularies
from wordloom.training.allocator import tune_allocator
from wordloom.training.trainer import Trainer

RECIPE = "transformer-multi30k"
BATCH_TOKENS, SMOOTHING, CLIP, RATE = 4000, 0.1, 1.0, 1e-4
Step = Callable[[], int]  # takes an optimizer step and returns the number of its real target tokens


class Plain(nn.Module):
    """The model of PyTorch's tutorial; ``everywhere`` keeps all dropout of nn.Transformer."""

    def __init__(self, config: TransformerConfig, *, everywhere: bool) -> None:
        super().__init__()
        c = config
        self.embedding = nn.Embedding(c.vocab_size, c.dim)
        nn.init.normal_(self.embedding.weight, 0.0, c.dim**-0.5)
        self.transformer = nn.Transformer(
            c.dim, c.n_heads, c.n_layers, c.decoder_layers, c.ffn_dim, c.dropout, batch_first=True
        )
        if not everywhere:
            for module in self.transformer.modules():
                if isinstance(module, nn.MultiheadAttention):
                    module.dropout = 0.0
                if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                    module.dropout.p = 0.0
        self.head = nn.Linear(c.dim, c.vocab_size, bias=False)
        self.head.weight = self.embedding.weight
        self.dropout = nn.Dropout(c.dropout)
        self.register_buffer("positions", sinusoidal_positions(c.max_seq_len, c.dim))

    def embedded(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] -> [B, T, D]."""
        x = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(x + self.positions[: tokens.shape[1]])

    def forward(self, source: Tensor, prefix: Tensor, padding: Tensor) -> Tensor:
        """source [B, S], prefix [B, T], padding [B, S] True where nothing is -> logits [B, T, V]."""
        T = prefix.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(T)
        out = self.transformer(
            self.embedded(source), self.embedded(prefix), tgt_mask=causal, tgt_is_causal=True,
            src_key_padding_mask=padding, memory_key_padding_mask=padding,
        )  # fmt: skip
        return self.head(out)


def plain_side(
    batches: list[PairBatch], config: TransformerConfig, precision: str, *, everywhere: bool
) -> Step:
    torch.manual_seed(0)
    model = Plain(config, everywhere=everywhere)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98), fused=True)
    criterion = nn.CrossEntropyLoss(ignore_index=IGNORE, label_smoothing=SMOOTHING)
    turn = cycle(batches)

    def step() -> int:
        batch = next(turn)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits = model(batch.source, batch.prefix, ~batch.source_attend)
            loss = criterion(logits.flatten(0, 1), batch.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return real(batch)

    return step


def our_side(batches: list[PairBatch], config: TransformerConfig, precision: str) -> Step:
    turn = cycle(batches)
    last: list[PairBatch] = []

    class Batches:
        samples_per_epoch = 1 << 30

        def batch(self, start: int, count: int) -> PairBatch:
            last[:] = [next(turn)]
            return last[0]

        def document_ids(self, start: int, count: int) -> list[str]:
            return []

    settings = TrainSettings(
        steps=1 << 20, batch_size=1, batch_tokens=BATCH_TOKENS, objective="translation",
        label_smoothing=SMOOTHING, learning_rate=RATE, beta2=0.98, weight_decay=0.0, clip=CLIP,
        schedule="constant", precision=precision, device="cpu",
    )  # fmt: skip
    model = build(config)
    made = objective("translation", label_smoothing=SMOOTHING)
    trainer = Trainer(model, made, Batches(), settings, total_steps=1 << 20)

    def step() -> int:
        trainer.train_step()
        return real(last[0])

    return step


def cycle(batches: list[PairBatch]) -> Iterator[PairBatch]:
    while True:
        yield from batches


def real(batch: PairBatch) -> int:
    return int((batch.targets != IGNORE).sum())


def recipe_batches(precision_steps: int) -> tuple[list[PairBatch], list[PairBatch], TransformerConfig]:
    """Return the recipe's first batches, as many random batches of the same sizes, and the model."""
    recipe = load_recipe(RECIPE)
    progress = TrainingProgress()
    corpus = pair_corpus(recipe)
    vocabularies = recipe_vocabularies(recipe, corpus, progress)
    shards = prepare_pairs(corpus, vocabularies.source, vocabularies.target, part="train")
    ours = PairBatches(shards, batch_tokens=BATCH_TOKENS, seed=recipe.seed)
    made = [ours.batch(i, 1) for i in range(precision_steps)]
    settings = {key: value for key, value in recipe.model.items() if key != "family"}
    config = TransformerConfig(**settings, vocab_size=vocabularies.target.vocab_size)
    every = [ours.batch(i, 1) for i in range(ours.samples_per_epoch)]
    return made, shuffled(every, made), config


def shuffled(every: list[PairBatch], like: list[PairBatch]) -> list[PairBatch]:
    """Return batches of random pairs with the sizes of ``like``, padded to the longest pair."""
    rows = [
        (batch.source[i][batch.source_attend[i]], batch.prefix[i], batch.targets[i])
        for batch in every
        for i in range(len(batch.source))
    ]
    random.Random(0).shuffle(rows)
    found = []
    for batch in like:
        taken, rows = rows[: len(batch.source)], rows[len(batch.source) :]
        lengths = [int((targets != IGNORE).sum()) for _, _, targets in taken]
        pad = nn.utils.rnn.pad_sequence
        source = pad([s for s, _, _ in taken], batch_first=True)
        attend = pad([torch.ones_like(s, dtype=torch.bool) for s, _, _ in taken], batch_first=True)
        prefix = pad([p[:n] for (_, p, _), n in zip(taken, lengths, strict=True)], batch_first=True)
        targets = pad(
            [t[:n] for (_, _, t), n in zip(taken, lengths, strict=True)],
            batch_first=True,
            padding_value=IGNORE,
        )
        found.append(PairBatch(source, attend, prefix, targets))
    return found


def share(batches: list[PairBatch]) -> float:
    """Return the share of target positions that hold tokens."""
    return sum(map(real, batches)) / sum(batch.targets.numel() for batch in batches)


def run_turn(step: Step, count: int) -> float:
    """Return the real target tokens per second."""
    began = time.perf_counter()
    tokens = sum(step() for _ in range(count))
    return tokens / (time.perf_counter() - began)


SIDES = {
    "plain as written fp32": ("fp32", True, False),
    "plain fp32": ("fp32", False, False),
    "plain fp32, random batches": ("fp32", False, True),
    "wordloom fp32": ("fp32", None, False),
    "plain bf16": ("bf16", False, False),
    "wordloom bf16": ("bf16", None, False),
}


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="optimizer steps in a turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--allocator", choices=["system", "tuned"], default="system")
    parser.add_argument("--limits", action="store_true", help="also time the products of a step alone")
    parser.add_argument("--quick", action="store_true", help="a tiny model, to check that everything runs")
    given = parser.parse_args()
    if given.allocator == "tuned":
        tune_allocator()
    torch.set_num_threads(given.threads)
    turns = given.rounds * given.steps
    bucketed, mixed, config = recipe_batches(max(turns, 8))
    if given.quick:
        given.rounds = 1
        config = TransformerConfig(vocab_size=config.vocab_size, dim=32, n_layers=1, n_heads=2, dropout=0.2)
    print(json.dumps({
        "benchmark": "translation training", "threads": given.threads, "allocator": given.allocator,
        "torch": torch.__version__, "load_average": os.getloadavg()[0],
        "real_target_tokens": {"ours": round(share(bucketed), 3), "random": round(share(mixed), 3)},
    }))  # fmt: skip
    sides: dict[str, Step] = {}
    for side in given.side:
        precision, everywhere, at_random = SIDES[side]
        batches = mixed if at_random else bucketed
        if everywhere is None:
            sides[side] = our_side(batches, config, precision)
        else:
            sides[side] = plain_side(batches, config, precision, everywhere=everywhere)
    for step in sides.values():
        run_turn(step, len(bucketed))  # run every shape once
    medians = in_turns(
        {side: partial(run_turn, step, given.steps) for side, step in sides.items()}, given.rounds
    )
    for side, median in medians.items():
        record: dict[str, Any] = {"side": side, "target_tokens_per_second": round(median)}
        if side.startswith("wordloom"):
            precision = side.split()[-1]
            record["ratios"] = {
                other: round(median / rate, 2)
                for other, rate in medians.items()
                if other.startswith("plain") and precision in other
            }
            if given.limits:
                from matmul_limit import limit_seconds

                record["limit_ms"] = round(1e3 * limit_seconds(sides[side])["wall"], 1)
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    in_one_line(main)
