"""Load a server with streaming clients, and measure what it promises.

    python benchmarks/serving.py load CHECKPOINT [--clients 64] [--seconds 120]
    python benchmarks/serving.py prompts CHECKPOINT [--prompts 10000]
    python benchmarks/serving.py idle CHECKPOINT [--chats 5000]
    python benchmarks/serving.py faults CHECKPOINT [--clients 64]

- "load": clients with prompts and answers of mixed lengths; a tenth of them hang up in the middle.  Each
  complete answer is compared with that of the same request alone, asked afterwards.  The first answer that is
  lost, cut or crossed ends the run.  The times to the first token and between tokens are printed.
- "prompts": distinct prompts one after another.  The server's anonymous memory is printed at each tenth.
- "idle": conversations in token ids that each wait after a first turn, kept as beginnings of texts; then some
  go on.  The time to the first token of the second turns is printed, and how many tokens were read for it.
- "faults": a flood of requests at once, and then a client with streams that is ended by SIGKILL.  The answers
  are counted by status, and the seconds until all slots are free and an answer is again that of before.

The server is the command, in a process of its own, on loopback.  Clients and server share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import re
import shlex
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from entry import in_one_line
from serving_client import call, quantiles, report, server, stream

from training import machine

WORDS = ("the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "as", "with", "his")


def a_request(rng: random.Random, number: int, room: int) -> dict[str, Any]:
    """Return a request with a canary, of random length."""
    words = " ".join(rng.choices(WORDS, k=rng.choice([4, 20, 60, room // 8])))
    return {
        "model": "model", "prompt": f"{number} {rng.randrange(10**9)}. {words}", "seed": number,
        "max_tokens": rng.choice([1, 8, 32, 96]), "temperature": rng.choice([0, 0.8]),
    }  # fmt: skip


async def load(port: int, clients: int, seconds: float, room: int, seed: int) -> None:
    rng, counts = random.Random(seed), Counter[str]()
    firsts: list[float] = []
    gaps: list[float] = []
    done: list[tuple[dict[str, Any], str]] = []
    until, numbers, written = time.perf_counter() + seconds, iter(range(10**9)), 0

    async def client() -> None:
        nonlocal written
        while time.perf_counter() < until:
            body = a_request(rng, next(numbers), room)
            leaves = rng.randint(1, 20) if rng.random() < 0.1 else None
            began = last = time.perf_counter()
            text, n, reason = "", 0, None
            async for at, event in stream(port, body):
                if "status" in event:
                    counts[str(event["status"])] += 1
                    await asyncio.sleep(0.2)
                    break
                if "error" in event:
                    raise SystemExit(f"a request failed: {event}")
                (firsts if not n else gaps).append(at - (began if not n else last))
                n, last = n + 1, at
                choice = event["choices"][0]
                text, reason = text + choice["text"], choice["finish_reason"] or reason
                if leaves is not None and n >= leaves:
                    counts["hung up"] += 1
                    break
            else:
                if reason is None:
                    raise SystemExit(f"an answer was cut: {body}")
                counts["complete"] += 1
                done.append((body, text))
            written += n

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    spent = time.perf_counter() - began
    compared = 0
    for body, text in done:
        _, answer = await call(port, "POST", "/v1/completions", body)
        if answer["choices"][0]["text"] != text:
            raise SystemExit(f"an answer differs from that of the request alone: {body}: {text!r}")
        compared += 1
    report({
        "test": "load", "clients": clients, "seconds": round(spent, 1), **counts, "events": written,
        "events_per_second": round(written / spent, 1), "equal_to_solo": compared,
        "first_ms": quantiles(firsts), "between_ms": quantiles(gaps),
    })  # fmt: skip


async def prompts(port: int, pid: int, n: int, room: int, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(n + 1):
        if number % max(1, n // 10) == 0:
            report({"test": "prompts", "prompts": number, "anonymous_mib": round(_anonymous(pid), 1)})
        if number < n:
            body = {**a_request(rng, number, room), "max_tokens": 2}
            await call(port, "POST", "/v1/completions", body)


async def idle(port: int, pid: int, n: int, seed: int) -> None:
    rng = random.Random(seed)
    before, waiting = _anonymous(pid), iter(range(n))
    texts: dict[int, list[int]] = {}

    async def client() -> None:
        for number in waiting:
            prompt = f"{number} {rng.randrange(10**9)}. " + " ".join(rng.choices(WORDS, k=80))
            _, found = await call(port, "POST", "/tokenize", {"model": "model", "text": prompt})
            body = {
                "model": "model", "prompt": found["ids"], "seed": number, "max_tokens": 40,
                "alternatives": 1,
            }  # fmt: skip
            _, answer = await call(port, "POST", "/v1/completions", body)
            texts[number] = found["ids"] + [each["id"] for each in answer["choices"][0]["tokens"]]

    await asyncio.gather(*(client() for _ in range(32)))
    kept = _anonymous(pid) - before
    firsts, read = [], []
    for number in rng.sample(range(n), min(n, 200)):
        began = time.perf_counter()
        body = {
            "model": "model", "prompt": [*texts[number], *texts[0][:10]], "seed": 1, "max_tokens": 4,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        first = None
        async for at, event in stream(port, body):
            first = first or at - began
            if event.get("usage"):
                usage = event["usage"]
                read.append(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])
        firsts.append(first or 0.0)
    report({
        "test": "idle", "chats": n, "kept_mib": round(kept, 1), "resumed": len(firsts),
        "first_ms": quantiles(firsts), "tokens_read": statistics.median(read),
        "most_tokens_read": max(read),
    })  # fmt: skip


async def faults(port: int, clients: int, room: int, seed: int) -> None:
    rng = random.Random(seed)
    probe = {"model": "model", "prompt": "The sea", "seed": 1, "max_tokens": 16}
    _, expected = await call(port, "POST", "/v1/completions", probe)

    async def recovered(began: float) -> float:
        while await in_use(port):
            await asyncio.sleep(0.01)
        _, again = await call(port, "POST", "/v1/completions", probe)
        if again["choices"] != expected["choices"]:
            raise SystemExit("the answer after the fault differs from the one before")
        return round(time.perf_counter() - began, 3)

    for n in (10 * clients, 40 * clients):
        bodies = [{**a_request(rng, number, room), "max_tokens": 32} for number in range(n)]
        answers = await asyncio.gather(
            *(call(port, "POST", "/v1/completions", body) for body in bodies), return_exceptions=True
        )
        ended = time.perf_counter()
        counts = Counter(
            type(each).__name__ if isinstance(each, BaseException) else each[0] for each in answers
        )
        report({"test": "flood", "requests": n, **{str(k): v for k, v in counts.items()},
                "recovered_s": await recovered(ended)})  # fmt: skip

    context = multiprocessing.get_context("spawn")
    client = context.Process(target=stream_all, args=(port, clients, room // 2))
    client.start()
    while await in_use(port) == 0:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    used = await in_use(port)
    client.kill()
    client.join()
    ended = time.perf_counter()
    report({"test": "killed client", "streams": clients, "slots_in_use": used,
            "recovered_s": await recovered(ended)})  # fmt: skip


def stream_all(port: int, clients: int, tokens: int) -> None:
    """Read so many streams at once, until the process is ended."""

    async def one(number: int) -> None:
        async for _ in stream(port, {"model": "model", "prompt": f"{number}. The sea", "max_tokens": tokens}):
            pass

    async def together() -> None:
        await asyncio.gather(*map(one, range(clients)))

    asyncio.run(together())


async def in_use(port: int) -> int:
    """Return how many texts are being written or wait."""
    _, text = await call(port, "GET", "/metrics")
    found = re.findall(rb"^wordloom_(?:slots_in_use|queue_length)\{.*?\} ([\d.]+)", text, re.MULTILINE)
    return int(sum(map(float, found)))


def _anonymous(pid: int) -> float:
    """Return the anonymous resident memory of a process in MiB."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("test", choices=["load", "prompts", "idle", "faults"])
    parser.add_argument("checkpoint")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--chats", type=int, default=5_000)
    parser.add_argument("--room", type=int, default=256, help="the context of the model")
    parser.add_argument("--options", default="", help='of the server: --options="--slots 64"')
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    report({"benchmark": "serving", "checkpoint": given.checkpoint, **machine(), "cpus": os.cpu_count()})
    options = shlex.split(given.options)
    if given.test == "idle" and "--prefix-mb" not in options:
        options += ["--prefix-mb", "2000"]
    with server(given.checkpoint, *options) as (port, pid):
        if given.test == "load":
            asyncio.run(load(port, given.clients, given.seconds, given.room, given.seed))
        elif given.test == "prompts":
            asyncio.run(prompts(port, pid, given.prompts, given.room, given.seed))
        elif given.test == "faults":
            asyncio.run(faults(port, given.clients, given.room, given.seed))
        else:
            asyncio.run(idle(port, pid, given.chats, given.seed))


if __name__ == "__main__":
    in_one_line(main)
