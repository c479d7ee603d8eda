"""Adapters in a training run: the base stays, the folder is peft's, and a run resumes to the same bits."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import peft
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.run.tasks.test_instruction import RECORDS, recipe_in
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import wordloom
from wordloom.cli import app
from wordloom.errors import CheckpointError, RecipeError
from wordloom.models import build
from wordloom.run import train
from wordloom.run.sweep.sweep import sweep
from wordloom.weights import load_config, save_model

ADAPTER = ["lora.rank=3", "lora.alpha=6", "data.template=plain"]


def test_a_sweep_of_adapters_ends(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    grid = {"train.learning_rate": [1e-2, 1e-3]}
    given = [*ADAPTER, "train.steps=3", "train.evaluate_every=3"]
    for _ in range(2):  # the second call trains nothing again
        result = sweep(recipe, grid, given, out=tmp_path / "sweep", start_from=tmp_path / "body")
        assert [run.state for run in result.runs] == ["done", "done"]
        assert not result.stopped
        assert result.best is not None


@pytest.mark.parametrize("family", ["llama", "gpt2", "rnn"])
def test_an_adapter_learns_the_answers_and_its_base_stays(family: str, tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, family)
    train(recipe, ["train.steps=60", "train.learning_rate=1e-2", *ADAPTER[2:]], out=tmp_path / "first",
          start_from=tmp_path / "body")  # fmt: skip
    shutil.rmtree(tmp_path / "body")
    shutil.copytree(tmp_path / "first", tmp_path / "body")
    others = [{**record, "output": record["output"][::-1]} for record in RECORDS]
    (tmp_path / "chat.json").write_text(json.dumps(others))
    before = {path.name: path.read_bytes() for path in (tmp_path / "body").glob("*.*")}
    settings = ["train.steps=80", "train.learning_rate=2e-2", "train.evaluate_every=20", *ADAPTER]
    targets = ["lora.targets=['input_proj', 'lm_head']"] if family == "rnn" else []
    done = train(recipe, [*settings, *targets], out=tmp_path / "run", start_from=tmp_path / "body")
    lines = [json.loads(line) for line in (done.folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]
    assert {path.name: path.read_bytes() for path in (tmp_path / "body").glob("*.*")} == before
    files = {path.name for path in done.folder.iterdir()}
    assert files >= {
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer.json",
        "chat_template.jinja",
    }
    assert not {"config.json", "model.safetensors"} & files
    lm = wordloom.load(done.folder)
    base = wordloom.load(tmp_path / "body")
    ids = torch.randint(0, 50, (1, 9))
    assert not torch.allclose(lm.model(ids), base.model(ids), atol=1e-3)
    assert lm.generation_defaults["eos_token_id"] == [lm.tokenizer.eos_id]
    if family != "rnn":
        theirs = peft.PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(tmp_path / "body"), done.folder
        )
        with torch.no_grad():
            torch.testing.assert_close(lm.model(ids), theirs.eval()(ids).logits, rtol=1e-4, atol=1e-4)


def test_the_command_merges_and_reports_the_largest_change(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    body, out = tmp_path / "body", tmp_path / "merged"
    settings = [*ADAPTER, "train.learning_rate=0.05", "data.system=Be brief."]
    done = train(recipe, settings, out=tmp_path / "run", start_from=body)
    arguments = ["merge", str(body), "--adapter", str(done.folder), "--out", str(out)]
    (out / ".wordloom-writing-x").mkdir(parents=True)  # of a command that was killed
    (out / ".wordloom-writing-x" / "model.safetensors").write_bytes(b"half")
    said = CliRunner().invoke(app, arguments)
    assert not (out / ".wordloom-writing-x").exists()
    assert said.exit_code == 0, said.exception
    assert "adapter     default: 14 of 15 linear modules" in said.stdout
    found = re.search(r"largest change of a logit by merging: (\S+) in fp32, (\S+) as stored", said.stdout)
    assert found is not None
    assert 0 <= float(found[1]) < 1e-4
    ids = torch.randint(0, 50, (2, 7))
    merged, adapted = wordloom.load(out), wordloom.load(done.folder)
    torch.testing.assert_close(merged.model(ids), adapted.model(ids), rtol=1e-4, atol=1e-5)
    assert merged.tokenizer.chat_template == adapted.tokenizer.chat_template
    assert merged.generation_defaults["eos_token_id"] == adapted.generation_defaults["eos_token_id"]
    assert merged.system == adapted.system == "Be brief."
    assert f"wordloom chat {out}" in said.stdout
    scored = [CliRunner().invoke(app, ["evaluate", str(each), "--json"]) for each in (done.folder, out)]
    one, other = (json.loads(each.stdout)["scores"][0] for each in scored)
    assert one["name"] == other["name"] == "loss"
    assert one["value"] == pytest.approx(other["value"], rel=1e-4)
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, CheckpointError)
    assert "already holds files of a checkpoint" in str(again.exception)
    file = done.folder / "adapter_model.safetensors"
    with safe_open(file, "pt") as stored:
        metadata, tensors = stored.metadata(), load_file(file)
    next(iter(tensors.values()))[0, 0] = float("nan")
    save_file(tensors, file, metadata)
    damaged = CliRunner().invoke(app, [*arguments[:4], "--out", str(tmp_path / "nan")])
    assert "NaN or infinite" in str(damaged.exception)
    assert not (tmp_path / "nan").exists()
    other = tmp_path / "other"
    save_model(build(load_config(body), generator=torch.Generator().manual_seed(9)), other)
    wrong = CliRunner().invoke(app, ["merge", str(other), *arguments[2:4], "--out", str(tmp_path / "no")])
    assert "was trained on another base than" in str(wrong.exception)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    "settings", [[], ["lora.dropout=0.3", "lora.dora=true"], ["lora.base=int8"], ["train.ema=0.9"]]
)
def test_a_run_cut_short_ends_with_the_same_bits(settings: list[str], tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    asked, body = [*ADAPTER, *settings, "train.keep_last=9"], tmp_path / "body"
    train(recipe, asked, out=tmp_path / "whole", start_from=body)
    train(recipe, asked, out=tmp_path / "cut", start_from=body)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / "cut" / name).unlink()
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step-6")
    train(recipe, asked, out=tmp_path / "cut", resume=True)
    one, other = (tmp_path / name / "adapter_model.safetensors" for name in ("whole", "cut"))
    assert one.read_bytes() == other.read_bytes()


def test_the_best_adapter_is_kept(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    settings = [*ADAPTER, "train.keep_best=true", "train.learning_rate=0.5", "train.schedule=constant"]
    done = train(recipe, [*settings, "train.keep_last=9"], out=tmp_path / "run", start_from=tmp_path / "body")
    kept = load_file(done.folder / "adapter_model.safetensors")
    steps = [
        load_file(path / "adapter_model.safetensors") for path in (done.folder / "checkpoints").iterdir()
    ]
    assert any(all(torch.equal(kept[name], step[name]) for name in kept) for step in steps)


def test_the_base_is_found_from_every_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_in(tmp_path)
    monkeypatch.chdir(tmp_path)
    train(recipe, ADAPTER, out="run", start_from="body")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    theirs = peft.AutoPeftModelForCausalLM.from_pretrained("../run").eval()
    ids = torch.randint(0, 50, (1, 9))
    with torch.no_grad():
        ours = wordloom.load("../run").model(ids)
        torch.testing.assert_close(ours, theirs(ids).logits, rtol=1e-4, atol=1e-4)
    path = tmp_path / "run" / "adapter_config.json"
    for relative in ("../body", "body"):  # to the adapter's folder, and to the working directory
        path.write_text(
            json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": relative}), encoding="utf-8"
        )
        monkeypatch.chdir(tmp_path if relative == "body" else tmp_path / "elsewhere")
        torch.testing.assert_close(wordloom.load(tmp_path / "run").model(ids), ours)


def test_a_part_of_a_module_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, "gpt2")
    train(recipe, ADAPTER, out=tmp_path / "run", start_from=tmp_path / "body")
    before = {path.name for path in (tmp_path / "run").iterdir()}
    for targets in ("['q_proj']", "['q_proj', 'v_proj', 'up_proj']", "['blocks.0.attention.k_proj']"):
        with pytest.raises(RecipeError, match=r"lora.targets \['.*'\]: peft adapts .*c_attn as a whole"):
            train(
                recipe,
                [*ADAPTER, f"lora.targets={targets}"],
                out=tmp_path / "run",
                start_from=tmp_path / "body",
                force=True,
            )
    assert {path.name for path in (tmp_path / "run").iterdir()} == before


def test_mistakes_are_named(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    body = tmp_path / "body"
    scratch = ["tokenizer.kind=byte", "model.family=llama", "data.template=plain"]
    with pytest.raises(RecipeError, match=r"\[lora\] adapts a trained model; name it with --from"):
        train(recipe, [*ADAPTER[:2], *scratch], out=tmp_path / "run")
    with pytest.raises(RecipeError, match=r"the template adds tokens to the vocabulary of \d+, and \[lora\]"):
        train(recipe, ["lora.rank=2", "data.template=chatml"], out=tmp_path / "run", start_from=body)
    with pytest.raises(RecipeError, match=r"trains in fp32 or bf16, not train.precision"):
        train(recipe, [*ADAPTER, "train.precision=bf16-pure"], out=tmp_path / "run", start_from=body)
    done = train(recipe, ADAPTER, out=tmp_path / "run", start_from=body)
    with pytest.raises(
        CheckpointError, match="holds an adapter, not a model; merge it first: wordloom merge BASE"
    ):
        train(recipe, ADAPTER, out=tmp_path / "second", start_from=done.folder)
    said = CliRunner().invoke(app, ["inspect", str(done.folder), "positions"])
    assert "not running text, but that of train.objective 'instruction'; name a file" in str(said.exception)
    config = json.loads((done.folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(tmp_path / "nowhere")
    (done.folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"holds an adapter of .*nowhere, where no model is"):
        wordloom.load(done.folder)
