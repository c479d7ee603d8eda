"""Requests that break the rules of the API, made from its schema by schemathesis."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.serve.servers import assistant, running

from wordloom.serve.limits import Limits


def naming(schema: Any, model: str) -> Any:
    """Return the schema with the name of a model that exists wherever one is asked for."""
    if isinstance(schema, list):
        return [naming(each, model) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: naming(value, model) for key, value in schema.items()}
    if isinstance(found.get("properties"), dict) and "model" in found["properties"]:
        found["properties"]["model"] = {"enum": [model]}
    return found


def test_no_request_is_answered_with_an_error_of_the_server(tmp_path: Path) -> None:
    folder, file = assistant(tmp_path / "llama"), tmp_path / "schema.json"
    with running({"llama": folder}, Limits(max_tokens=8, seconds=20)) as found:
        file.write_text(json.dumps(naming(found.get("/openapi.json").json(), "llama")))
        ran = subprocess.run(
            [
                Path(sys.executable).parent / "schemathesis", "run", file, "--url", found.url,
                "--mode", "all", "--checks", "not_a_server_error", "--max-examples", "40",
                "--phases", "fuzzing", "--request-timeout", "30", "--no-color",
            ],
            capture_output=True, text=True, check=False, timeout=280,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr
        generated = re.search(r"([\d,]+) generated", ran.stdout)
        assert generated is not None, ran.stdout
        assert int(generated[1].replace(",", "")) > 200
        assert found.get("/health").status_code == 200
        completed = found.post("/v1/completions", {"model": "llama", "prompt": "a", "max_tokens": 2})
        assert completed.status_code == 200
