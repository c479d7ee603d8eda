"""Compare generation with transformers' generate: same weights, prompts, precision, threads and process.

    python benchmarks/decoding.py [--preset llama-125m] [--prompt 32] [--new 128] [--batch 1 8]
                                  [--dtype fp32 bf16] [--rounds 5] [--threads N] [--profile]

Rounds alternate.  Medians are printed, with one JSON line per batch size and precision.  ``ratio`` is
Wordloom's tokens per second divided by transformers', including the prompt.  ``prefill_ms`` is the time to
the first token.  ``limit`` is the rate at which a step would only read every weight once, at the memory
bandwidth measured here.  ``--profile`` adds the time of each part of a Wordloom step.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from entry import in_one_line
from turns import in_turns

from wordloom.generate import Sampling, steps
from wordloom.generate.fast import accelerate
from wordloom.kernels.threads import one_thread
from wordloom.models import PRESETS, build
from wordloom.weights import save_model

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def bandwidth(megabytes: int = 1024, rounds: int = 7) -> float:
    """Return the gigabytes per second that all threads read together: the best of ``rounds``."""
    data = torch.ones(megabytes * 2**20 // 4)
    return data.numel() * 4 / min(seconds(data.sum) for _ in range(rounds)) / 1e9


def seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="llama-125m")
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)

    from transformers import AutoModelForCausalLM

    model = build(PRESETS[given.preset], generator=torch.Generator().manual_seed(0)).eval()
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, folder + "/model")
        theirs = AutoModelForCausalLM.from_pretrained(folder + "/model", dtype=torch.float32).eval()
    theirs.generation_config.eos_token_id = theirs.generation_config.pad_token_id = None
    read = sum(p.numel() for p in model.parameters()) - model.token_embedding.weight.numel()
    if model.lm_head.weight is model.token_embedding.weight:
        read += model.lm_head.weight.numel()
    speed = bandwidth()
    report({"machine_gb_per_s": round(speed, 1), "threads": given.threads})
    for name in given.dtype:
        model, theirs = model.to(DTYPES[name]), theirs.to(DTYPES[name])
        for B in given.batch:
            cell = measure(model, theirs, B, given)
            limit = B * speed * 1e9 / (read * DTYPES[name].itemsize)
            about = {"preset": given.preset, "dtype": name, "batch": B}
            report({**about, "prompt": given.prompt, "new": given.new, **cell, "limit": round(limit)})
            if given.profile:
                report({**about, "profile_ms": profile(model, B, given)})


def report(line: dict[str, Any]) -> None:
    """Print one JSON line with the machine's load, because measurements on a busy machine mean nothing."""
    print(json.dumps({**line, "load": round(os.getloadavg()[0], 1)}), flush=True)


def measure(model: Any, theirs: Any, B: int, given: argparse.Namespace) -> dict[str, Any]:
    """Return medians of alternating rounds, and how many rows have equal tokens on both sides."""
    vocabulary = model.config.vocab_size
    prompts = torch.randint(0, vocabulary, (B, given.prompt), generator=torch.Generator().manual_seed(1))

    def ours(new: int) -> list[list[int]]:
        made: list[list[int]] = [[] for _ in range(B)]
        for step in steps(model, prompts.tolist(), Sampling(temperature=0, max_new_tokens=new)):
            made[step.row].append(step.id)
        return made

    def their(new: int) -> list[list[int]]:
        with torch.inference_mode():
            whole = theirs.generate(
                prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=new, do_sample=False
            )
        return whole[:, given.prompt :].tolist()

    same = sum(a == b for a, b in zip(ours(8), their(8), strict=True))  # this is the warm-up, too
    # the previous call affects caches and the allocator, so each side goes first in turn
    calls = {
        "our_prefill": partial(ours, 1),
        "their_prefill": partial(their, 1),
        "ours": partial(ours, given.new),
        "theirs": partial(their, given.new),
    }
    median = in_turns({side: partial(seconds, call) for side, call in calls.items()}, given.rounds)
    tokens = B * given.new
    return {
        "ours_tokens_per_s": round(tokens / median["ours"], 1),
        "theirs_tokens_per_s": round(tokens / median["theirs"], 1),
        "ratio": round(median["theirs"] / median["ours"], 2),
        "prefill_ms": [round(1e3 * median["our_prefill"], 1), round(1e3 * median["their_prefill"], 1)],
        "prefill_ratio": round(median["their_prefill"] / median["our_prefill"], 2),
        "rows_with_equal_first_8_tokens": same,
        "rounds": given.rounds,
    }


def profile(model: Any, B: int, given: argparse.Namespace) -> dict[str, float]:
    """Return the milliseconds of one Wordloom decoding step: each part timed alone, and the complete step."""
    from wordloom.generate.sampling import next_ids

    program = accelerate(model)
    rounds, times = 40, {"layers": 0.0, "head": 0.0, "choice": 0.0}
    with torch.inference_mode():
        cache = program.new_cache(B, given.prompt + rounds + 1)
        tokens = torch.ones(B, given.prompt, dtype=torch.int64)
        program.hidden(tokens, cache=cache)
        sampling = Sampling(temperature=0)
        for _ in range(rounds):
            began = time.perf_counter()
            hidden = program.hidden(tokens[:, :1], cache=cache)[:, -1]
            layers = time.perf_counter()
            logits = program.lm_head(hidden)
            head = time.perf_counter()
            with one_thread():
                next_ids(logits.float(), [[0]] * B, sampling, [])
                logits.logsumexp(dim=-1)
            end = time.perf_counter()
            for part, spent in (("layers", layers - began), ("head", head - layers), ("choice", end - head)):
                times[part] += 1e3 * spent / rounds
    times["step"] = sum(times.values())
    return {part: round(value, 3) for part, value in times.items()}


if __name__ == "__main__":
    in_one_line(main)
