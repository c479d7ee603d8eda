"""A real server of tiny models, and Chromium."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.serve.page.driver import Driver
from tests.serve.tiny import save_talker, save_tiny

from wordloom.serve.app import create_app
from wordloom.serve.limits import Limits
from wordloom.serve.metrics import Metrics
from wordloom.serve.models import Models, Source
from wordloom.serve.server import listening

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CONTEXT = 16384  # holds 500 messages


@contextlib.contextmanager
def running(folders: dict[str, Path]) -> Iterator[str]:
    """Run the server in a process of its own, and give its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    models = [f"{name}={folder}" for name, folder in folders.items()]
    command = [sys.executable, "-m", "wordloom", "serve", *models, "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if name != "WORDLOOM_API_KEY"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}/"
    try:
        for _ in range(600):
            assert process.poll() is None, "the server has ended"
            with contextlib.suppress(OSError), urllib.request.urlopen(address + "health"):
                break
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=40)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    found = {
        "chat": save_talker(place / "chat", max_seq_len=CONTEXT),
        "base": save_talker(place / "base", template=None),
        "rnn": save_tiny(place / "rnn", "rnn", template=None),
    }
    (found["chat"] / "generation_config.json").write_text('{"temperature": 0.7, "top_k": 20}')
    (found["chat"] / "metrics.jsonl").write_text(json.dumps({"kind": "train", "step": 7, "loss": 1.5}) + "\n")
    return found


@pytest.fixture(scope="session")
def server(folders: dict[str, Path]) -> Iterator[str]:
    with running(folders) as address:
        yield address


@pytest.fixture(scope="session")
def server_with_key(folders: dict[str, Path]) -> Iterator[str]:
    """A server in a thread of this process, which starts faster."""
    limits = Limits(keys=("open sesame",))
    models = Models({"chat": Source(folders["chat"])}, limits, Metrics())
    server = uvicorn.Server(uvicorn.Config(create_app(models, limits), log_level="warning", ws="none"))
    listener = listening("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join(timeout=30)
    models.close(0.0)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the page, is missing")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: the page is not tested")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def driver(chromium: Any, server: str, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A window with the page; errors and requests to other origins fail the test.

    A mark ``window`` has settings of the browser's context.
    """
    mark = request.node.get_closest_marker("window")
    context = chromium.new_context(**({} if mark is None else mark.kwargs))
    made = Driver(context.new_page(), server)
    yield made
    context.close()
    made.check()
