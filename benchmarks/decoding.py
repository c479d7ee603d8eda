"""Compare generation with transformers and llama.cpp: same weights, prompts, precision and threads.

    python benchmarks/decoding.py [--preset llama-125m | --run RUN] [--prompt 32] [--new 128] [--batch 1 8]
                                  [--dtype fp32 bf16 int8] [--rounds 5] [--threads N] [--profile]

Rounds alternate.  Medians are printed, with one JSON line per batch size and precision.  A ``ratio`` is
Wordloom's tokens per second divided by the other side's, including the prompt.  ``prefill_ms`` is the time to
the first token.  ``limit`` is the rate at which a step would only read every weight once, at the memory
bandwidth measured here.  ``--profile`` adds the time of each part of a Wordloom step.

llama.cpp (``benchmarks/peers/install_llama_cpp.py``) runs LLaMAs in a process of its own, with matrices in
BF16 beside our bf16 and in Q8_0.  Beside our 8 bits, transformers runs in bf16.  ``--run`` takes a trained
run instead of random weights; then the mean KL divergence to float32 and the share of equal likeliest tokens
are measured on its validation text.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from entry import in_one_line
from turns import in_turns

from wordloom import load
from wordloom.generate import Sampling, steps
from wordloom.generate.fast import accelerate
from wordloom.kernels.threads import one_thread
from wordloom.models import PRESETS, LlamaConfig, build
from wordloom.models.building.quantized import quantize_model
from wordloom.run.export.gguf import Kind, write_gguf
from wordloom.weights import load_model, save_model

PEERS = Path(__file__).parent / "peers"
GGUF_KINDS: dict[str, Kind] = {"BF16": "bf16", "Q8_0": "q8_0"}
TEXT_TOKENS = 256
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.bfloat16}  # of transformers' side
BYTES = {"fp32": 4, "bf16": 2, "int8": 1 + 2 / 64}  # a weight


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
    parser.add_argument("--run")
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

    if given.run:
        model = load(given.run).model.float()
    else:
        model = build(PRESETS[given.preset], generator=torch.Generator().manual_seed(0)).eval()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(model, folder / "model")
        theirs = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
        theirs.generation_config.eos_token_id = theirs.generation_config.pad_token_id = None
        read = sum(p.numel() for p in model.parameters()) - model.token_embedding.weight.numel()
        if model.lm_head.weight is model.token_embedding.weight:
            read += model.lm_head.weight.numel()
        speed = bandwidth()
        report({"machine_gb_per_s": round(speed, 1), "threads": given.threads})
        peers = {kind: LlamaCpp(model, folder, kind, given) for kind in llama_cpp_kinds(model, given.dtype)}
        if given.run:
            exact = text_logits(model, given)
            for kind, peer in peers.items():
                report({"side": f"llama.cpp {kind}", **agreement(peer.logits(given), exact)})
        for name in given.dtype:
            model, theirs = load_model(folder / "model"), theirs.to(DTYPES[name])
            if name == "int8":
                quantize_model(model)
            else:
                model = model.to(DTYPES[name])
            about = {"model": given.run or given.preset, "dtype": name}
            if given.run and name != "fp32":
                report({"side": f"wordloom {name}", **agreement(text_logits(model, given), exact)})
            for B in given.batch:
                cell = measure(model, theirs, peers, name, B, given)
                limit = B * speed * 1e9 / (read * BYTES[name])
                line = {**about, "batch": B, "prompt": given.prompt, "new": given.new, **cell}
                report({**line, "limit": round(limit)})
                if given.profile:
                    report({**about, "batch": B, "profile_ms": profile(model, B, given)})


def llama_cpp_kinds(model: Any, dtypes: list[str]) -> list[str]:
    """Return the kinds of weights that llama.cpp is measured with; none without it and for other models."""
    if not isinstance(model.config, LlamaConfig) or not (PEERS / ".llama_cpp").exists():
        print("llama.cpp is left out: see benchmarks/peers/install_llama_cpp.py", file=sys.stderr)
        return []
    return [kind for kind in GGUF_KINDS if kind == "Q8_0" or "bf16" in dtypes]


class LlamaCpp:
    """A process that runs llama.cpp on the weights of ``model``; see ``peers/llama_cpp_side.py``."""

    def __init__(self, model: Any, folder: Path, kind: str, given: argparse.Namespace) -> None:
        path, self.folder = folder / f"{kind}.gguf", folder
        vocabulary = {"ggml.model": "no_vocab"}  # the file is for token ids
        write_gguf(model, path, kind=GGUF_KINDS[kind], name="model", tokenizer=vocabulary)
        length = max(given.prompt + given.new, TEXT_TOKENS)
        sizes = [str(given.threads), str(max(given.batch)), str(length)]
        command = [sys.executable, str(PEERS / "llama_cpp_side.py"), str(path), *sizes]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit("llama.cpp ended without an answer; its message stands above")
        return json.loads(answer)

    def seconds(self, prompts: list[list[int]], new: int) -> float:
        return float(self.ask(prompts=prompts, new=new)["seconds"])

    def logits(self, given: argparse.Namespace) -> torch.Tensor:
        file = self.folder / "logits.npy"
        parts = []
        for ids in texts(given):
            self.ask(logits=ids, to=str(file))
            parts.append(torch.from_numpy(np.load(file)))
        return torch.cat(parts)


def texts(given: argparse.Namespace) -> list[list[int]]:
    """Return texts of ``TEXT_TOKENS`` ids each from the validation data of the run."""
    from wordloom.cli.inspect.texts import texts_to_read

    lm = load(given.run)
    ids: list[int] = []
    for document in texts_to_read(given.run, None, 2)[0]:
        ids += lm.text_tokenizer.encode(str(document.text)[:40_000], specials="text").ids[: 4 * TEXT_TOKENS]
    return [ids[at : at + TEXT_TOKENS] for at in range(0, len(ids) - TEXT_TOKENS + 1, TEXT_TOKENS)]


def text_logits(model: Any, given: argparse.Namespace) -> torch.Tensor:
    """Return our logits [N, V] after every token of the texts, as decoding computes them."""
    program, parts = accelerate(model), []
    with torch.inference_mode():
        for ids in texts(given):
            cache = program.new_cache(1, len(ids))
            for token in ids:
                hidden = program.hidden(torch.tensor([[token]]), cache=cache)
                parts.append(program.lm_head(hidden)[0].float().clone())
    return torch.cat(parts)


def agreement(found: torch.Tensor, exact: torch.Tensor) -> dict[str, Any]:
    """Return the mean KL divergence from ``exact``, and the share of equal likeliest tokens."""
    p, q = exact.double().log_softmax(dim=-1), found.double().log_softmax(dim=-1)
    return {
        "tokens": len(exact),
        "mean_kl": float((p.exp() * (p - q)).sum(dim=-1).mean()),
        "top1_agreement": round(float((found.argmax(-1) == exact.argmax(-1)).float().mean()), 5),
    }


def report(line: dict[str, Any]) -> None:
    """Print one JSON line with the machine's load, because measurements on a busy machine mean nothing."""
    print(json.dumps({**line, "load": round(os.getloadavg()[0], 1)}), flush=True)


def measure(
    model: Any, theirs: Any, peers: dict[str, LlamaCpp], dtype: str, B: int, given: argparse.Namespace
) -> dict[str, Any]:
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
    sides: dict[str, Callable[[], float]] = {side: partial(seconds, call) for side, call in calls.items()}
    beside = {kind: peer for kind, peer in peers.items() if kind == "Q8_0" or dtype == "bf16"}
    for kind, peer in beside.items():
        peer.seconds(prompts.tolist(), 8)  # the warm-up
        sides[f"{kind}_prefill"] = partial(peer.seconds, prompts.tolist(), 1)
        sides[kind] = partial(peer.seconds, prompts.tolist(), given.new)
    median = in_turns(sides, given.rounds)
    tokens = B * given.new
    others: dict[str, Any] = {}
    for kind in beside:
        others[f"llama_cpp_{kind}_tokens_per_s"] = round(tokens / median[kind], 1)
        others[f"llama_cpp_{kind}_ratio"] = round(median[kind] / median["ours"], 2)
        others[f"llama_cpp_{kind}_prefill_ms"] = round(1e3 * median[f"{kind}_prefill"], 1)
        others[f"llama_cpp_{kind}_prefill_ratio"] = round(
            median[f"{kind}_prefill"] / median["our_prefill"], 2
        )
    return {
        "ours_tokens_per_s": round(tokens / median["ours"], 1),
        "theirs_tokens_per_s": round(tokens / median["theirs"], 1),
        "ratio": round(median["theirs"] / median["ours"], 2),
        "prefill_ms": [round(1e3 * median["our_prefill"], 1), round(1e3 * median["their_prefill"], 1)],
        "prefill_ratio": round(median["their_prefill"] / median["our_prefill"], 2),
        "rows_with_equal_first_8_tokens": same,
        **others,
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
                next_ids(logits.float(), [[0]] * B, sampling, [], [1] * B)
                logits.logsumexp(dim=-1)
            end = time.perf_counter()
            for part, spent in (("layers", layers - began), ("head", head - layers), ("choice", end - head)):
                times[part] += 1e3 * spent / rounds
    times["step"] = sum(times.values())
    return {part: round(value, 3) for part, value in times.items()}


if __name__ == "__main__":
    in_one_line(main)
