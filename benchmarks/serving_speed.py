"""Compare the server's speed with llama.cpp's and transformers': same weights, prompts and threads.

    python benchmarks/serving_speed.py [--preset llama-125m] [--dtype int8] [--streams 1 8 16 64] [--new 128]
                                       [--prompt 32] [--rounds 5] [--threads N] [--without transformers]

Each server is the command, in a process of its own, on loopback.  So many streams at once each ask for the
greedy continuation of a prompt of their own.  A side's figure is all new tokens divided by the time until the
last stream ends, the prompts included; rounds alternate and medians are printed.  "offline" is our generation
of the same number of prompts as one batch, without a server.  ``overhead_ms`` is what the server adds to a
token of one stream: the time of the request less that offline, divided by the new tokens.

The weights are random, with the tokenizer of LLaMA 2 and no end of text.  llama.cpp has matrices in F32
beside our fp32, in BF16 beside our bf16, and in Q8_0 beside our 8 bits.  transformers has no 8 bits on a CPU
and runs in bf16 beside them.  ``python benchmarks/peers/install_llama_cpp.py --server`` builds its server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from entry import in_one_line
from serving import WORDS
from serving_client import free_port, report, running, server, stream
from turns import in_turns

from training import machine
from wordloom.data.sets.fetch import local_files
from wordloom.generate import Sampling, steps
from wordloom.models import PRESETS, build
from wordloom.models.building.quantized import quantize_model
from wordloom.run.export.gguf import Kind, export_gguf
from wordloom.text import Tokenizer
from wordloom.weights import load_model, save_model

PEERS = Path(__file__).parent / "peers"
LLAMA_SERVER = PEERS / ".llama_cpp_server" / "llama-server"


class Side(NamedTuple):
    """A server: its port, and the fields that its requests have beside those of all."""

    port: int
    fields: dict[str, Any]


GGUF_KINDS: dict[str, Kind] = {"fp32": "f32", "bf16": "bf16", "int8": "q8_0"}
OTHER_NAMES = {"fp32": "float32", "bf16": "bfloat16", "int8": "bfloat16"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="llama-125m")
    parser.add_argument("--dtype", choices=GGUF_KINDS, default="int8")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16, 64])
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--without", choices=["llama.cpp", "transformers"], nargs="*", default=[])
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    report({"benchmark": "serving_speed", **machine(), **vars(given)})
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name) / "model"
        tokenizer = write_checkpoint(folder, given.preset)
        servers = {"wordloom": stack.enter_context(ours(folder, given))}
        if "llama.cpp" not in given.without:
            if LLAMA_SERVER.exists():
                servers["llama.cpp"] = stack.enter_context(llama_cpp(folder, given))
            else:
                print("llama.cpp is left out: run peers/install_llama_cpp.py --server", file=sys.stderr)
        if "transformers" not in given.without:
            servers["transformers"] = stack.enter_context(transformers(folder, given))
        offline = offline_batch(folder, given)
        for n in given.streams:
            compare(n, servers, offline, tokenizer, given)


def write_checkpoint(folder: Path, preset: str) -> Tokenizer:
    """Write the model with random weights, so that any program can load it and none finds an end of text."""
    vocabulary = local_files("llama-tokenizer")[0]
    tokenizer = Tokenizer.from_pretrained(vocabulary)
    model = build(PRESETS[preset], generator=torch.Generator().manual_seed(0)).eval()
    save_model(model, folder, tokenizer=tokenizer)
    shutil.copy(vocabulary, folder / "tokenizer.model")
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        values = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**values, "eos_token_id": None}))
    return tokenizer


@contextmanager
def ours(folder: Path, given: argparse.Namespace) -> Iterator[Side]:
    slots = ["--slots", str(max(given.streams))]
    with server(str(folder), "--dtype", given.dtype, *slots, threads=given.threads) as (port, _):
        yield Side(port, {"model": "model", "stream_options": {"include_usage": True}})


@contextmanager
def llama_cpp(folder: Path, given: argparse.Namespace) -> Iterator[Side]:
    path, port, n = folder.parent / "model.gguf", free_port(), max(given.streams)
    export_gguf(folder, path, kind=GGUF_KINDS[given.dtype], force=True)
    threads = ["--threads", str(given.threads), "--threads-batch", str(given.threads)]
    room = ["--parallel", str(n), "--ctx-size", str(n * (given.prompt + given.new + 16))]
    command = [str(LLAMA_SERVER), "--model", str(path), "--port", str(port), *threads, *room]
    with running(command, port):
        yield Side(port, {"ignore_eos": True, "stream_options": {"include_usage": True}})


@contextmanager
def transformers(folder: Path, given: argparse.Namespace) -> Iterator[Side]:
    port = free_port()
    command = [
        *(sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder), "--device", "cpu"),
        *("--port", str(port), "--dtype", OTHER_NAMES[given.dtype]),
    ]
    threads = {"OMP_NUM_THREADS": str(given.threads), "HF_HUB_OFFLINE": "1"}
    with running(command, port, {**os.environ, **threads}):
        yield Side(port, {"model": str(folder)})


def offline_batch(folder: Path, given: argparse.Namespace) -> Callable[[list[list[int]]], float]:
    """Return what measures our generation of prompts as one batch, in seconds."""
    model = load_model(folder)
    if given.dtype == "int8":
        quantize_model(model)
    elif given.dtype == "bf16":
        model = model.to(torch.bfloat16)
    sampling = Sampling(temperature=0, max_new_tokens=given.new)

    def seconds(prompts: list[list[int]]) -> float:
        began = time.perf_counter()
        made = sum(1 for _ in steps(model, prompts, sampling))
        if made != len(prompts) * given.new:
            raise SystemExit(f"the batch has {made} new tokens, not {len(prompts) * given.new}")
        return time.perf_counter() - began

    return seconds


def compare(
    n: int, servers: dict[str, Side], offline: Any, tokenizer: Tokenizer, given: argparse.Namespace
) -> None:
    """Measure ``n`` streams at once on every server, in turns, and print a line."""
    rng = random.Random(n)

    def prompts() -> list[str]:
        """Return new prompts, so that none finds its beginning in a cache."""
        made: list[str] = []
        while len(made) < n:
            text = " ".join(rng.choices(WORDS, k=given.prompt - 1))
            if len(tokenizer.encode_ids(text)) == given.prompt - 1:  # and the beginning of text
                made.append(text)
        return made

    def served(name: str) -> float:
        return asyncio.run(asked(servers[name], prompts(), given.new))

    def batch() -> float:
        return float(offline([tokenizer.encode_ids(text) for text in prompts()]))

    sides: dict[str, Callable[[], float]] = {name: partial(served, name) for name in servers}
    sides["offline"] = batch
    for side in sides.values():
        side()  # the warm-up
    seconds = in_turns(sides, given.rounds)
    speeds = {name: n * given.new / each for name, each in seconds.items()}
    line: dict[str, Any] = {"streams": n, "dtype": given.dtype}
    line["tokens_per_s"] = {name: round(each, 1) for name, each in speeds.items()}
    line["ratios"] = {name: round(speeds["wordloom"] / each, 2) for name, each in speeds.items()}
    if n == 1:
        line["overhead_ms"] = round(1e3 * (seconds["wordloom"] - seconds["offline"]) / given.new, 3)
    report({**line, "load": round(os.getloadavg()[0], 1)})


async def asked(side: Side, prompts: list[str], new: int) -> float:
    """Return the seconds until all streams have ended."""

    async def one(prompt: str) -> None:
        body = {"prompt": prompt, "max_tokens": new, "temperature": 0, **side.fields}
        last = b""
        async for _, event in stream(side.port, body, parse=False):
            last = event
        found = json.loads(last).get("usage") or {}
        if found.get("completion_tokens") not in (None, new):
            raise SystemExit(f"an answer has {found['completion_tokens']} tokens, not {new}")

    began = time.perf_counter()
    await asyncio.gather(*(one(prompt) for prompt in prompts))
    return time.perf_counter() - began


if __name__ == "__main__":
    in_one_line(main)
