"""Views that are written while a model trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.run.conftest import write_corpus, write_recipe

import wordloom
from wordloom.errors import CheckpointError, WordloomError
from wordloom.inspect import head_history, head_scores, lens
from wordloom.inspect.token_names import namer
from wordloom.run import train

VIEWS = ["lens", "attention", "contributions"]


def test_views_are_written_at_every_evaluation(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    prompt = "the cat sat on the mat and saw"
    text.write_text(f"{prompt}\n")
    specs = [*(f"{view}:{text}" for view in VIEWS), "heads", "geometry"]
    settings = ["train.steps=5", "train.evaluate_every=2", f"train.inspect={json.dumps(specs)}"]
    run = train(write_recipe(tmp_path, write_corpus(tmp_path)), settings, out=tmp_path / "run").folder
    for name in (*(f"{view}-text" for view in VIEWS), "heads", "geometry"):
        files = sorted(path.name for path in (run / "views" / name).iterdir())
        assert files == sorted(f"step-{step:08d}.{end}" for step in (2, 4, 5) for end in ("json", "png"))
        for path in (run / "views" / name).glob("*.png"):
            assert path.read_bytes().startswith(b"\x89PNG")
    seen = head_history(run)
    assert seen.steps == (2, 4, 5)
    (run / "views" / "heads" / "step-00000004.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot read"):
        head_history(run)
    (run / "views" / "heads" / "step-00000004.json").unlink()
    last = json.loads((run / "views" / "lens-text" / "step-00000005.json").read_text())
    lm = wordloom.load(run)
    seen = lens(lm.model, lm.tokenizer.prompt_ids(prompt), namer(lm.tokenizer))
    assert last["step"] == 5
    assert last["tokens"] == list(seen.tokens)
    for name, score in head_scores(lm.model).scores.items():
        torch.testing.assert_close(head_history(run).scores[name][-1], score, rtol=1e-4, atol=1e-5)
    assert last["nats"] == [pytest.approx(row, abs=1e-5) for row in seen.nats.tolist()]
    plain = train(write_recipe(tmp_path, write_corpus(tmp_path)), settings[:2], out=tmp_path / "plain").folder
    assert (plain / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("spec", "says"), [
    ("lense:text.txt", "unknown view 'lense:text.txt'; allowed: lens:FILE, attention:FILE"),
    ("lens", "unknown view 'lens'; allowed: lens:FILE, attention:FILE"),
    ("heads:text.txt", "unknown view 'heads:text.txt'"),
    ("lens:nowhere.txt", "'nowhere.txt' cannot be read"),
    ("lens:{long}", "tokens and the model takes"),
    ("lens:{wide}", "at most 128"),
    ("lens:{empty}", "give a text that is not empty"),
])  # fmt: skip
def test_a_mistake_ends_the_run_before_it_begins(tmp_path: Path, spec: str, says: str) -> None:
    (tmp_path / "long.txt").write_text("a b " * 500)
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "wide.txt").write_text("ab " * 100)
    spec = spec.format(**{name: tmp_path / f"{name}.txt" for name in ("long", "empty", "wide")})
    recipe = write_recipe(tmp_path, write_corpus(tmp_path))
    with pytest.raises(WordloomError, match="train.inspect: .*" + says.replace("'", ".")):
        train(recipe, [f"train.inspect={json.dumps([spec])}", "model.max_seq_len=300"], out=tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.toml").exists()


def test_views_of_one_name_are_refused(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, write_corpus(tmp_path))
    with pytest.raises(WordloomError, match="two views would be written into 'heads'"):
        train(recipe, ['train.inspect=["heads", "heads"]'], out=tmp_path / "run")
