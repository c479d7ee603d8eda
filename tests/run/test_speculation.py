"""Speculation by name: the text stays the same, n-grams are kept, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.run.conftest import write_corpus, write_recipe
from typer.testing import CliRunner

import wordloom
from wordloom.cli import app
from wordloom.errors import DeviceError, GenerationError, WordloomError
from wordloom.run import train


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))
    recipe = write_recipe(tmp_path, write_corpus(tmp_path))
    return train(recipe, ["train.steps=3"], out=tmp_path / "run").folder


def test_commands_and_python_write_what_they_would_without(run: Path, tmp_path: Path) -> None:
    def generated(*more: str) -> Any:
        asked = ["--prompt", "The", "--seed", "3", "--max-new-tokens", "9", "--samples", "2", "--json"]
        done = CliRunner().invoke(app, ["generate", str(run), *asked, *more])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["completions"]

    plain = generated()
    assert generated("--speculate", "lookup") == generated("--speculate", "corpus") == plain
    (kept,) = (tmp_path / "cache" / "ngrams").glob("*/ngrams.npz")
    before = kept.stat().st_mtime_ns
    lm = wordloom.load(run)
    for kind in ("lookup", "corpus"):
        settings: dict[str, Any] = {"seed": 3, "max_new_tokens": 9}
        text = lm.generate("The", **settings)
        assert lm.generate("The", **settings, speculate=kind) == text
        assert "".join(lm.stream("The", **settings, speculate=kind)) == text
        assert lm.generate([5, 6], **settings, speculate=kind) == lm.generate([5, 6], **settings)
        done = CliRunner().invoke(
            app, ["chat", str(run), "--seed", "3", "--speculate", kind], input="The\nA\n"
        )
        assert (
            done.stdout == CliRunner().invoke(app, ["chat", str(run), "--seed", "3"], input="The\nA\n").stdout
        )
    assert kept.stat().st_mtime_ns == before
    kept.write_bytes(b"damaged")
    assert generated("--speculate", "corpus") == plain
    assert kept.stat().st_size > 100


def test_what_is_refused(run: Path, tmp_path: Path) -> None:
    lm = wordloom.load(run)
    with pytest.raises(GenerationError, match="unknown speculation 'look'; did you mean 'lookup'"):
        lm.generate("The", speculate="look")
    with pytest.raises(GenerationError, match="unknown speculation 3; allowed: lookup, corpus"):
        lm.generate("The", speculate=3)  # type: ignore[arg-type]
    recipe = run / "recipe.toml"
    kept = recipe.read_text()
    recipe.write_text(kept.replace("corpus", "missing"))
    with pytest.raises(GenerationError, match=r"'corpus' reads the training text: .*; or use 'lookup'"):
        lm.generate("The", speculate="corpus")
    recipe.write_text(kept)
    with pytest.raises(DeviceError, match=r"unknown dtype torch\.bfloat16; allowed: auto, fp32, bf16"):
        wordloom.load(run, dtype=torch.bfloat16)
    recipe.unlink()
    with pytest.raises(GenerationError, match=r"'corpus' needs the recipe of a run on text, which .* lacks"):
        lm.generate("The", speculate="corpus")
    done = CliRunner().invoke(app, ["generate", str(run), "--next", "3", "--speculate", "lookup"])
    assert isinstance(done.exception, WordloomError) or done.exit_code == 2
