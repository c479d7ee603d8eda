"""The planned memory of a rank, compared with PyTorch's simulation of the trainer's step."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import Forked
from tests.run.planning.simulated_step import config_of

from wordloom.models import skeleton
from wordloom.models.building.lora import add_adapter, matching_layers
from wordloom.nn.lora import LoraSettings
from wordloom.recipe import TrainSettings
from wordloom.run.planning.blocks import kept_bytes
from wordloom.run.planning.layout import layout_of
from wordloom.run.planning.memory import Memory, peak_memory
from wordloom.run.planning.shapes import WIDTHS, shape_of

ROOT = Path(__file__).parents[3]


def draw(rng: random.Random) -> dict[str, Any]:
    """Return a model and settings drawn at random, with odd sizes."""
    family = rng.choice(["gpt", "gpt2", "llama", "llama"])
    n_heads, head_dim = rng.choice([2, 3, 4, 6, 8]), 2 * rng.randint(12, 48)
    precision = rng.choice(["bf16", "bf16", "fp32", "bf16-pure", "bf16-head"])
    T = rng.randint(100, 900)
    model: dict[str, Any] = {
        "vocab_size": rng.randint(500, 40_000), "dim": n_heads * head_dim, "n_layers": rng.randint(1, 3),
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
    case = {
        "family": family, "model": model, "train": train, "ranks": ranks, "rows": rows, "parts": parts,
        "per_machine": per_machine,
    }  # fmt: skip
    if precision != "bf16-pure" and optimizer != "muon" and rng.random() < 0.2:
        case["lora"] = rng.randint(1, 16)
    return case


def planned(case: dict[str, Any], *, compiled: bool = False) -> Memory:
    settings = TrainSettings.model_validate(case["train"])
    model = skeleton(config_of(case))
    if "lora" in case:
        with torch.device("meta"):
            add_adapter(model, LoraSettings(rank=case["lora"]), matching_layers(model, ["*_proj"]))
    return peak_memory(
        shape_of(model), settings, layout_of(settings.shard, case["ranks"], case["per_machine"]),
        rows=case["rows"], parts=case["parts"], compiled=compiled,
    )  # fmt: skip


def simulated(*cases: dict[str, Any]) -> list[int]:
    """Return the peak of each case in another process, which keeps the fake ranks to itself."""
    code = "import runpy; runpy.run_module('tests.run.planning.simulated_step', run_name='__main__')"
    done = Forked(code=code, cwd=ROOT, stdin=json.dumps(cases).encode()).completed()
    assert done.returncode == 0, done.stderr[-2000:]
    peaks: list[int] = json.loads(done.stdout.splitlines()[-1])
    return peaks


def large(preset: str, ranks: int, n_layers: int, *, seq_len: int, **train: Any) -> dict[str, Any]:
    settings = {
        "steps": 1, "seq_len": seq_len, "batch_size": ranks, "precision": "bf16", "shard": "full",
        "device": "cpu", **train,
    }  # fmt: skip
    return {
        "preset": preset, "model": {"n_layers": n_layers}, "ranks": ranks, "rows": 1, "parts": 1,
        "per_machine": 8, "train": settings,
    }  # fmt: skip


def test_the_memory_of_llama_7b_and_70b_is_that_of_the_simulation() -> None:
    """All layers of 7B on 8 ranks; of 70B on 64, two depths show what each of its 80 layers adds."""
    whole = large("llama-7b", 8, 32, seq_len=2048)
    again = large("llama2-70b", 64, 6, seq_len=4096, gradient_checkpointing=True)
    short, long = (large("llama2-70b", 64, n_layers, seq_len=4096) for n_layers in (5, 7))
    peaks = simulated(whole, again, short, long)
    for case, peak in zip((whole, again, short, long), peaks, strict=True):
        assert planned(case).total == pytest.approx(peak, rel=0.05), case
    _, _, first, second = peaks
    expected = second + (80 - 7) * (second - first) // 2
    assert planned(large("llama2-70b", 64, 80, seq_len=4096)).total == pytest.approx(expected, rel=0.02)


def test_the_memory_of_any_model_and_settings_is_that_of_the_simulation(rng: random.Random) -> None:
    cases = [draw(rng) for _ in range(4)]
    for case, peak in zip(cases, simulated(*cases), strict=True):
        assert planned(case).total == pytest.approx(peak, rel=0.06), case


def test_a_compiled_block_keeps_what_the_compiler_saves(rng: random.Random) -> None:
    """The graph is cut as for a GPU, and runs without its compiled kernels."""
    family, precision = rng.choice(["gpt2", "llama"]), rng.choice(["bf16", "bf16-pure"])
    n_heads, T = rng.choice([2, 4]), rng.randint(100, 200)
    model: dict[str, Any] = {
        "vocab_size": 50, "dim": 32 * n_heads, "n_layers": 1, "n_heads": n_heads, "max_seq_len": T,
        "hidden_dim": rng.randint(150, 500),
    }  # fmt: skip
    if family == "llama":
        model["n_kv_heads"] = rng.choice([1, 2])
    case = {"compiled_block": precision, "family": family, "model": model, "rows": 2, "seq_len": T}
    (saved,) = simulated(case)
    shape = shape_of(skeleton(config_of(case)))
    widths = WIDTHS[precision]
    kept = kept_bytes(shape.block, widths, compiled=True)
    if widths.residual == 4:
        kept += 4 * shape.block.dim  # the input of the block, which the block before has made
    assert kept * 2 * T == pytest.approx(saved, rel=0.001), case
