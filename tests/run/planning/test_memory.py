"""The planned memory of a rank, compared with PyTorch's simulation of the trainer's step."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.run.planning.simulated_step import config_of

from wordloom.models import skeleton
from wordloom.recipe import TrainSettings
from wordloom.run.planning.memory import Memory, layout_of, peak_memory
from wordloom.run.planning.shapes import shape_of

ROOT = Path(__file__).parents[3]


def draw(rng: random.Random) -> dict[str, Any]:
    """Return a model and settings drawn at random, with odd sizes."""
    family = rng.choice(["gpt", "gpt2", "llama", "llama"])
    n_heads, head_dim = rng.choice([2, 3, 4, 6, 8]), 2 * rng.randint(12, 48)
    precision = rng.choice(["bf16", "bf16", "fp32", "bf16-pure", "bf16-head"])
    T = rng.randint(100, 900)
    model: dict[str, Any] = {
        "vocab_size": rng.randint(500, 40_000), "dim": n_heads * head_dim, "n_layers": rng.randint(1, 9),
        "n_heads": n_heads, "max_seq_len": T, "hidden_dim": rng.randint(200, 3000),
    }  # fmt: skip
    if family == "llama":
        model["n_kv_heads"] = rng.choice([k for k in range(1, n_heads + 1) if n_heads % k == 0])
    if family != "gpt":
        model["tie_embeddings"] = rng.random() < 0.5
    ranks, rows, parts = rng.choice([2, 3, 5, 8, 16, 64]), rng.randint(1, 4), rng.randint(1, 3)
    optimizer = rng.choice(["adamw", "adamw", "sgd", "muon"])
    train = {
        "steps": 1, "seq_len": T, "batch_size": ranks * rows * parts, "micro_batch_size": rows,
        "precision": precision, "shard": rng.choice(["none", "full", "full", "hybrid"]), "device": "cpu",
        "gradient_checkpointing": rng.random() < 0.3, "optimizer": optimizer,
    }  # fmt: skip
    if optimizer == "sgd":
        train["momentum"] = rng.choice([0.0, 0.9])
    per_machine = rng.choice([n for n in range(1, ranks + 1) if ranks % n == 0])
    return {
        "family": family, "model": model, "train": train, "ranks": ranks, "rows": rows, "parts": parts,
        "per_machine": per_machine,
    }  # fmt: skip


def planned(case: dict[str, Any]) -> Memory:
    settings = TrainSettings.model_validate(case["train"])
    return peak_memory(
        shape_of(skeleton(config_of(case))), settings,
        layout_of(settings.shard, case["ranks"], case["per_machine"]),
        rows=case["rows"], parts=case["parts"], compiled=False,
    )  # fmt: skip
