"""Compiled decoding of models whose attention has a pattern, against the modules without a cache."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from wordloom.generate import Sampling, generate
from wordloom.generate.fast import Accelerated, accelerate, causal
from wordloom.generate.fast.threads import Threads
from wordloom.models import GPT2Config, GPTConfig, LlamaConfig, build
from wordloom.nn.attention import set_attention_backend

PATTERNS = [
    "band:1", "band:5", "band:7+global:3", "dilated:3:4", "block:6", "random:3:1", "bigbird:3:2:2",
    "global:2", "band:4,full", "band:3*2,block:5", "dilated:2:3+band:4+global:1", "random:2:0+random:3:1",
]  # fmt: skip
VOCABULARY, LENGTH = 17, 90


def a_model(rng: random.Random, pattern: str, *, max_seq_len: int = LENGTH, kind: str = "") -> Any:
    heads, kv_heads = rng.choice([(1, 1), (3, 1), (4, 2), (5, 5)])
    head_dim = 2 * rng.choice([1, 3, 4, 8, 11])
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY, "max_seq_len": max_seq_len, "dim": heads * head_dim, "n_heads": heads,
        "n_layers": rng.choice([1, 2, 3]), "attention": pattern,
    }  # fmt: skip
    configs = {
        "gpt": lambda: GPTConfig(**shape), "gpt2": lambda: GPT2Config(**shape),
        "llama": lambda: LlamaConfig(n_kv_heads=kv_heads, hidden_dim=rng.choice([7, 32]), **shape),
    }  # fmt: skip
    model = build(configs[kind or rng.choice(list(configs))]()).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0, 0.5)
    return model


def by_program(model: Any) -> Any:
    program = accelerate(model)
    assert isinstance(program, Accelerated)
    return program


def exact(model: Any, tokens: Tensor) -> Tensor:
    """Return logits in float64."""
    wide = copy.deepcopy(model).double()
    set_attention_backend(wide, "exact")
    found: Tensor = wide(tokens)
    return found


def error_of(model: Any, tokens: Tensor) -> float:
    """Return the largest error of the modules in float32, which says how far a model strays.

    A norm over two numbers that are almost equal multiplies the last bit of a sum by hundreds.
    """
    return float((model(tokens).double() - exact(model, tokens)).abs().max())


def close(found: Tensor, wanted: Tensor, error: float, where: str) -> None:
    torch.testing.assert_close(
        found.double(), wanted, atol=1e-4 + 5 * error, rtol=1e-4, msg=lambda m: f"{where}: {m}"
    )


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # shown when the test fails
    torch.manual_seed(seed)
    rng = random.Random(seed)
    monkeypatch.setattr(causal, "threads_for", lambda _weights: Threads(rng.choice([1, 2])))
    return rng


@torch.inference_mode()
def test_rows_in_chunks_far_past_what_a_ring_holds(rng: random.Random) -> None:
    for pattern in PATTERNS * 2:
        model = a_model(rng, pattern)
        program, B = by_program(model), rng.choice([1, 2, 3])
        tokens = torch.randint(0, VOCABULARY, (B, LENGTH))
        error = error_of(model, tokens)
        wanted, where = exact(model, tokens), f"{type(model).__name__} {pattern}, {B} rows"
        cache, t, sizes = program.new_cache(B, rng.choice([1, 20, LENGTH])), 0, []
        while t < LENGTH:
            n = min(rng.choice([1, 1, 1, 2, 5, 32, 40]), LENGTH - t)
            sizes.append(n)
            found = program.lm_head(program.hidden(tokens[:, t : t + n], cache=cache))
            close(found, wanted[:, t : t + n], error, f"{where}, {sizes}")
            t += n
            if rng.random() < 0.1:
                order = torch.tensor(rng.sample(range(B), B))
                cache.select(order)
                tokens, wanted = tokens[order], wanted[order]


@torch.inference_mode()
def test_rows_of_different_lengths(rng: random.Random) -> None:
    for pattern in PATTERNS:
        model = a_model(rng, pattern)
        program, lengths = by_program(model), [rng.randint(1, 60) for _ in range(3)]
        texts = torch.randint(0, VOCABULARY, (3, LENGTH))
        wanted, cache = [exact(model, text[None])[0] for text in texts], program.new_cache(0, 4)
        for text, n in zip(texts, lengths, strict=True):
            joining = program.new_cache(1, 4)
            program.hidden(text[None, :n], cache=joining)
            cache.join(joining)
        where, error = f"{type(model).__name__} {pattern}", error_of(model, texts)
        for step in range(25):
            at = [n + step for n in lengths]
            tokens = torch.stack([text[t] for text, t in zip(texts, at, strict=True)])
            found = program.lm_head(program.hidden(tokens[:, None], cache=cache))[:, 0]
            expected = torch.stack([each[t] for each, t in zip(wanted, at, strict=True)])
            close(found, expected, error, f"{where}, {at}")


@pytest.mark.parametrize("fast", [True, False])
def test_a_llama_with_bounded_caches_writes_past_its_longest_text(rng: random.Random, *, fast: bool) -> None:
    for pattern in ("band:3", "band:3+global:1", "block:4,dilated:2:2", "performer:5,band:2"):
        model = a_model(rng, pattern, max_seq_len=8, kind="llama")
        prompt = torch.randint(0, VOCABULARY, (5,)).tolist()
        greedy = Sampling(temperature=0, max_new_tokens=60)
        (found,) = generate(model, [prompt], greedy, fast=fast)
        with torch.inference_mode():
            logits = exact(model, torch.tensor([[*prompt, *found.ids]]))[0, len(prompt) - 1 : -1]
        assert len(found.ids) == 60
        chosen = logits.gather(1, torch.tensor(found.ids)[:, None])[:, 0]
        torch.testing.assert_close(chosen, logits.amax(dim=1), atol=1e-3, rtol=0)
