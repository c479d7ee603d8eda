"""The examples of the page about serving are answered."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.serve.conftest import Kinds

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
NAMES = {
    "first-chat": "llama",
    "encoder": "bert",
    "sentiment": "classification",
    "similarity": "regression",
    "names": "token_classification",
    "choices": "multiple_choice",
    "squad": "question_answering",
    "translator": "transformer",
}
EXAMPLES = re.findall(r"^curl .*?}'$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_answered(kinds: Kinds, example: str) -> None:
    _, url, _, header, _, body = shlex.split(example)
    assert header == "content-type: application/json"
    request = json.loads(body)
    name = request.pop("model")
    answer = kinds.ask(url.removeprefix("http://localhost:8000"), NAMES.get(name, name), **request)
    assert answer.get("data") or answer.get("answers") or answer.get("choices") or answer["weights"]


def test_every_endpoint_is_in_the_table(kinds: Kinds) -> None:
    paths = kinds.get("/openapi.json").json()["paths"]
    generation = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize")
    ours = {path for path, methods in paths.items() if "post" in methods} - {*generation}
    found = set(re.findall(r"`(/[\w/-]+)`", PAGE.read_text(encoding="utf-8")))
    assert {path for path in paths if "{" not in path} <= found
    section = PAGE.read_text(encoding="utf-8").partition("## Endpoints for")[2]
    assert ours == set(re.findall(r"^\| `(/[\w/-]+)`", section, re.MULTILINE))
