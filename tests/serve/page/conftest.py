"""A real server of tiny models, and Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.serve.page.driver import Driver
from tests.serve.servers import command, running
from tests.serve.tiny import save_talker, save_tiny

from wordloom.serve.limits import Limits

CONTEXT = 16384  # holds 500 messages


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    found = {
        "chat": save_talker(place / "chat", max_seq_len=CONTEXT),
        "base": save_talker(place / "base", template=None),
        "rnn": save_tiny(place / "rnn", "rnn", template=None),
    }
    found["twin"] = found["base"]
    (found["chat"] / "generation_config.json").write_text('{"temperature": 0.7, "top_k": 20}')
    (found["chat"] / "metrics.jsonl").write_text(json.dumps({"kind": "train", "step": 7, "loss": 1.5}) + "\n")
    return found


@pytest.fixture(scope="session")
def server(folders: dict[str, Path]) -> Iterator[str]:
    models = [f"{name}={folder}" for name, folder in folders.items()]
    with command(*models, env={"WORDLOOM_API_KEY": ""}) as (address, _, _):
        yield f"{address}/"


@pytest.fixture(scope="session")
def server_with_key(folders: dict[str, Path]) -> Iterator[str]:
    with running({"chat": folders["chat"]}, Limits(keys=("open sesame",))) as found:
        yield f"{found.url}/"


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
