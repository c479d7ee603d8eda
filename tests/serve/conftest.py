"""A server with a model of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.kinds import write_adapter, write_all
from tests.serve.servers import Running, running

import wordloom
from wordloom.serve.limits import Limits
from wordloom.serve.models import Models, Source


class Kinds(Running):
    """A server with a model of every kind, and their folders."""

    folders: dict[str, Path]

    def __init__(self, models: Models, port: int) -> None:
        super().__init__(models, port)
        self._loaded: dict[str, Any] = {}
        self.client = httpx.Client(base_url=self.url, timeout=60, verify=False)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.client.post(path, json=body, **options)

    def post_raw(self, path: str, content: bytes | str) -> httpx.Response:
        """Post a body as it is."""
        return self.client.post(path, content=content, headers={"content-type": "application/json"})

    def load(self, name: str) -> Any:
        """Return the model as Python loads it, once."""
        if name not in self._loaded:
            base = name.removesuffix("-adapted")
            adapter = None if base == name else self.folders[base].parent.parent / name
            self._loaded[name] = wordloom.load(self.folders[base], adapter=adapter)
        return self._loaded[name]

    def ask(self, path: str, model: str, **body: Any) -> Any:
        """Return the answer to a request, which must succeed."""
        answer = self.post(path, {"model": model, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refusal(self, path: str, **body: Any) -> dict[str, Any]:
        """Return the error of a request, which must be refused as a mistake."""
        answer = self.post(path, body)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert set(error) >= {"message", "type", "param", "code"}
        return error


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinds]:
    """A server with all models of :mod:`tests.serve.kinds`, and adapters of two of them."""
    place = tmp_path_factory.mktemp("kinds")
    (place / "models").mkdir()
    folders = write_all(place / "models")
    sources = {name: Source(folder) for name, folder in folders.items()}
    for base in ("gpt2", "bert"):
        write_adapter(place / f"{base}-adapted", folders[base])
        sources[base] = Source(folders[base], {f"{base}-adapted": place / f"{base}-adapted"})
    with running(sources, Limits(max_tokens=64)) as found:
        server = Kinds(found.models, found.port)
        server.folders = folders
        with server.client:
            yield server
