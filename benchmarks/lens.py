"""The logit lens over many tokens: nats, ranks and agreement of every layer, beside transformers.

Both sides read the same windows of random tokens with the same GPT-2 of 10 million parameters, in float32:
of 8,192 subwords, or of nanoGPT's 65 characters.
The other side asks transformers for all hidden states, and applies the final norm and the head to each.  The
sides take turns.  ``products_s`` is the time that the matrix products alone take at the machine's speed.

    python benchmarks/lens.py [--vocabulary characters] [--tokens 100000] [--rounds 3] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from entry import in_one_line

from wordloom.inspect.layers.lens import lens_summary
from wordloom.models import GPT2Config, build
from wordloom.models.building.cost import flops_per_token
from wordloom.weights import save_model

CONFIGS = {
    "subwords": GPT2Config(vocab_size=8192, dim=288, n_heads=9, n_layers=8, max_seq_len=256),
    "characters": GPT2Config(vocab_size=65, dim=384, n_heads=6, n_layers=6, max_seq_len=256),
}
ROWS = 8  # windows that the other side reads at once


def by_transformers(model: Any, windows: list[list[int]]) -> np.ndarray:
    """Return the bits per token after each layer; ranks and agreement are computed too."""
    nats = torch.zeros(model.config.n_layer + 1, dtype=torch.float64)
    with torch.inference_mode():
        for start in range(0, len(windows), ROWS):
            tokens = torch.tensor(windows[start : start + ROWS])
            targets = tokens[:, 1:].flatten()
            states = list(model.transformer(tokens[:, :-1], output_hidden_states=True).hidden_states)
            states[:-1] = [model.transformer.ln_f(x) for x in states[:-1]]  # the last one has its norm
            best = model.lm_head(states[-1]).flatten(0, 1).argmax(-1)
            for layer, x in enumerate(states):
                logits = model.lm_head(x).flatten(0, 1)
                nats[layer] += torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
                (logits > logits.gather(1, targets[:, None])).sum(1)
                (logits.argmax(-1) == best).sum()
    return (nats / (len(windows) * (len(windows[0]) - 1)) / math.log(2)).numpy()


def timed(side: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = side()
    return time.perf_counter() - began, found


def products(config: GPT2Config, tokens: int) -> float:
    """Return the seconds that the products of ``tokens`` take at the speed of a large one."""
    a, b = torch.randn(2048, config.dim), torch.randn(4 * config.dim, config.dim)
    torch.nn.functional.linear(a, b)
    seconds = statistics.median(timed(lambda: torch.nn.functional.linear(a, b))[0] for _ in range(9))
    rate = 2 * 2048 * config.dim * 4 * config.dim / seconds
    forward = flops_per_token(config, context=config.max_seq_len // 2)
    heads = (config.n_layers + 1) * 2 * config.dim * config.vocab_size
    return tokens * (forward.layers + forward.attention + heads) / rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--vocabulary", choices=list(CONFIGS), default="subwords")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    config = CONFIGS[asked.vocabulary]
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(asked.threads)
    model = build(config, generator=torch.Generator().manual_seed(1)).eval()
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, folder)
        peer = AutoModelForCausalLM.from_pretrained(folder).eval()
    width = config.max_seq_len + 1
    rng = np.random.default_rng(1)
    windows = rng.integers(0, config.vocab_size, (max(1, asked.tokens // (width - 1)), width)).tolist()
    sides = {
        "ours": lambda: lens_summary(model, windows),
        "transformers": lambda: by_transformers(peer, windows),
    }
    for side in (lambda: lens_summary(model, windows[:ROWS]), lambda: by_transformers(peer, windows[:ROWS])):
        side()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(asked.rounds):
        found = {}
        for name, side in sides.items():
            taken, found[name] = timed(side)
            seconds[name].append(taken)
        np.testing.assert_allclose(found["ours"].bits, found["transformers"], rtol=1e-5)
    ours, other = (statistics.median(seconds[name]) for name in sides)
    predicted = len(windows) * (width - 1)
    pairs = zip(*map(sorted, seconds.values()), strict=True)
    line = {
        "vocabulary": config.vocab_size,
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": predicted,
        "threads": asked.threads,
        "ours_s": round(ours, 1),
        "transformers_s": round(other, 1),
        "speedup": round(other / ours, 2),
        "range": [round(b / a, 2) for a, b in pairs],
        "products_s": round(products(config, predicted), 1),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    in_one_line(main)
