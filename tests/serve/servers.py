"""Real servers on loopback for the tests: in a thread of this process, or as the command."""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import torch
import uvicorn
from tests.run.tasks.test_instruction import TEXTS

from wordloom.models import GPT2Config, LlamaConfig, RNNConfig, build
from wordloom.serve.app import create_app
from wordloom.serve.connections import TimedProtocol
from wordloom.serve.limits import Limits
from wordloom.serve.metrics import Metrics
from wordloom.serve.models import Models, Source
from wordloom.serve.server import listening
from wordloom.text import Tokenizer
from wordloom.text.chat import shipped_source
from wordloom.weights import save_model

STARTING = 300.0  # seconds; a fresh machine compiles the decoding programs first

CONFIGS: dict[str, Any] = {
    "llama": lambda V: LlamaConfig(
        vocab_size=V, dim=24, n_layers=2, n_heads=3, n_kv_heads=1, max_seq_len=256
    ),
    "gpt2": lambda V: GPT2Config(vocab_size=V, dim=20, n_layers=1, n_heads=2, max_seq_len=192),
    "lstm": lambda V: RNNConfig(vocab_size=V, dim=24, hidden_dim=32, n_layers=2, cell="lstm"),
}


def assistant(folder: Path, family: str = "llama", *, template: str | None = "plain", seed: int = 1) -> Path:
    """Write a model with random weights, whose tokenizer has a chat template, and return its folder."""
    tokenizer = Tokenizer.train(TEXTS, kind="bpe", vocab_size=300)
    if template is not None:
        tokenizer = tokenizer.with_chat_template(shipped_source(template))
    model = build(CONFIGS[family](tokenizer.vocab_size), generator=torch.Generator().manual_seed(seed))
    save_model(model, folder, tokenizer=tokenizer)
    return folder


class Running:
    """A server in a thread of this process."""

    def __init__(self, models: Models, port: int) -> None:
        self.models, self.port = models, port
        self.url = f"http://127.0.0.1:{port}"

    def engine(self, name: str) -> Any:
        return self.models.loaded[name].engine

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, **options)

    def openai_client(self) -> openai.OpenAI:
        """Return a client of OpenAI's package, which asks once."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60, **options)


@contextmanager
def running(
    sources: dict[str, Source | Path], limits: Limits | None = None, *, origins: Sequence[str] = ()
) -> Iterator[Running]:
    """Serve ``sources`` until the block ends."""
    limits = limits or Limits()
    given = {name: each if isinstance(each, Source) else Source(each) for name, each in sources.items()}
    models = Models(given, limits, Metrics())
    app = create_app(models, limits, origins=origins, first=[next(iter(given))])
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=5, http=TimedProtocol)
    )
    listener = listening("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        found = Running(models, listener.getsockname()[1])
        wait_until(lambda: found.get("/health").status_code == 200, STARTING)
        yield found
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        models.close(0.0)
        listener.close()


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    """Wait until ``condition()`` is true; fails after ``seconds``."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if condition():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.01)
    raise AssertionError("the condition did not become true")


@contextmanager
def command(*arguments: object, env: dict[str, str] | None = None) -> Iterator[tuple[str, Any, list[str]]]:
    """Run ``wordloom serve`` on a free port; give its address, the process, and the lines it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "wordloom", "serve", *map(str, arguments), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})},
    )  # fmt: skip
    lines: queue.Queue[str] = queue.Queue()
    said: list[str] = []

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            lines.put(line)

    threading.Thread(target=listen, daemon=True).start()
    try:
        line = lines.get(timeout=STARTING)
        found = re.search(r"http://\S+?(?=/ )", line)
        assert found, line
        url = found[0]
        wait_until(lambda: httpx.get(f"{url}/health").status_code == 200, STARTING)
        yield url, process, said
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def events(response: httpx.Response) -> Iterator[Any]:
    """Yield the data of each server-sent event; ``[DONE]`` ends them."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            if line == "data: [DONE]":
                return
            yield json.loads(line.removeprefix("data: "))
