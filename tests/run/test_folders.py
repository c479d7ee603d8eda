"""Model folders, loaded and saved through the library: whatever a folder says reaches the next one."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.run.translators import write_translator
from typer.testing import CliRunner

import wordloom
from wordloom.cli import app
from wordloom.errors import CheckpointError
from wordloom.models import build, config_from
from wordloom.run import average
from wordloom.text import Tokenizer
from wordloom.weights import load_model, save_model

SHAPE: dict[str, Any] = {"vocab_size": 40, "max_seq_len": 24, "dim": 12, "n_layers": 2, "n_heads": 3}


def edit(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; ... removes one."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def test_average_names_the_option_that_replaces_a_checkpoint(tmp_path: Path) -> None:
    for seed in range(3):
        model = build(config_from("gpt2", **SHAPE), generator=torch.Generator().manual_seed(seed))
        save_model(model, tmp_path / str(seed))
    sources = [tmp_path / "0", tmp_path / "1"]
    given = ["average", *map(str, sources), "--out", str(tmp_path / "2")]
    refused = CliRunner().invoke(app, given)
    assert isinstance(refused.exception, CheckpointError)
    assert "--force" in str(refused.exception)
    with pytest.raises(CheckpointError, match=r"overwrite=True"):
        average(sources, tmp_path / "2")
    done = CliRunner().invoke(app, [*given, "--force"])
    assert done.exit_code == 0, done.output
    mean = load_model(tmp_path / "2").state_dict()
    for name, tensor in mean.items():
        a, b = (load_model(folder).state_dict()[name] for folder in sources)
        torch.testing.assert_close(tensor, (a + b) / 2)


# -- generation settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_without_a_generation_config_the_end_tokens_are_those_of_config_json(
    family: str, several: bool, tmp_path: Path
) -> None:
    save_model(build(config_from(family, **SHAPE)), tmp_path)
    (tmp_path / "generation_config.json").unlink()
    free = wordloom.load(tmp_path).generate([1, 2, 3], temperature=0.0, max_new_tokens=8)
    end = free[3]
    edit(tmp_path / "config.json", eos_token_id=[39, end] if several else end)
    lm = wordloom.load(tmp_path)
    assert lm.generate([1, 2, 3], temperature=0.0, max_new_tokens=8) == free[: free.index(end) + 1]
    lm.save_pretrained(tmp_path / "again")
    assert wordloom.load(tmp_path / "again").generate([1, 2, 3], temperature=0.0, max_new_tokens=8)[-1] == end


@pytest.mark.parametrize("with_tokenizer", [False, True])
def test_saving_a_loaded_model_keeps_its_generation_config(with_tokenizer: bool, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["the cat sat on a mat"], kind="char") if with_tokenizer else None
    save_model(build(config_from("llama", **SHAPE)), tmp_path / "a", tokenizer=tokenizer)
    kept = {"eos_token_id": [3, 7], "temperature": 0.6, "top_k": 5, "top_p": 0.9, "do_sample": True,
            "suppress_tokens": [4], "max_length": 20, "stop_strings": ["."]}  # fmt: skip
    edit(tmp_path / "a/generation_config.json", **kept)
    before = json.loads((tmp_path / "a/generation_config.json").read_text())
    wordloom.load(tmp_path / "a").save_pretrained(tmp_path / "b")
    assert json.loads((tmp_path / "b/generation_config.json").read_text()) == before
    assert json.loads((tmp_path / "b/config.json").read_text())["eos_token_id"] == [3, 7]
    wordloom.load(tmp_path / "b").save_pretrained(tmp_path / "b", overwrite=True)
    assert json.loads((tmp_path / "b/generation_config.json").read_text()) == before


def test_settings_of_generation_that_are_not_supported_are_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_model(build(config_from("gpt2", **SHAPE)), tmp_path)
    edit(tmp_path / "generation_config.json", suppress_tokens=[4], bad_words_ids=[[5]], temperature=0.5)
    with caplog.at_level(logging.WARNING):
        lm = wordloom.load(tmp_path)
        lm.generate([1, 2], max_new_tokens=2)
        lm.generate([1, 2], max_new_tokens=2)
        list(lm.stream([1, 2], max_new_tokens=2))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert str(tmp_path) in said[0]
    assert "suppress_tokens, bad_words_ids" in said[0]


@pytest.mark.parametrize("forced", [True, False])
def test_saving_a_loaded_translator_keeps_its_generation_config(forced: bool, tmp_path: Path) -> None:
    write_translator(tmp_path / "a")
    changes: dict[str, Any] = {"num_beams": 3, "bad_words_ids": [[0]], "max_length": 9, "length_penalty": 0.5}
    edit(
        tmp_path / "a/generation_config.json", **changes, **({} if forced else {"forced_eos_token_id": None})
    )
    before = json.loads((tmp_path / "a/generation_config.json").read_text())
    translator = wordloom.load(tmp_path / "a")
    translator.save_pretrained(tmp_path / "b")
    assert json.loads((tmp_path / "b/generation_config.json").read_text()) == before
    assert wordloom.load(tmp_path / "b").forced_eos_id == translator.forced_eos_id
