"""The plan of a tuning run: memory of the whole model, of an adapter, and of an adapter over 8 bits."""

from __future__ import annotations

import json
import re
from pathlib import Path

import psutil
import pytest
import torch
from tests.run.tasks.test_instruction import RECORDS, recipe_in

import wordloom
from wordloom.errors import DeviceError
from wordloom.models import PRESETS, LlamaConfig, build
from wordloom.models.building.quantized import int8_bytes, quantize_model
from wordloom.recipe import load_recipe
from wordloom.recipe.training import TrainSettings
from wordloom.run import train
from wordloom.text import Tokenizer
from wordloom.training.plan import tuning_memory
from wordloom.weights import config_to_json, load_model, save_model

WAYS = {"full": [], "lora": ["lora.rank=3"], "lora_int8": ["lora.rank=3", "lora.base=int8"]}


def test_the_plan_compares_the_three_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = recipe_in(tmp_path)
    found: dict[str, list[int]] = {}
    for way, settings in WAYS.items():
        train(recipe, ["train.steps=1", *settings], out=tmp_path / way, start_from=tmp_path / "body")
        said = capsys.readouterr().err
        (line,) = re.findall(r"^tuning +memory for (.*)$", said, re.MULTILINE)
        found[way] = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) MB", line)]
        (own,) = re.findall(r"^memory +([\d,]+) MB", said, re.MULTILINE)
        assert found[way][list(WAYS).index(way)] == int(own.replace(",", ""))
    assert all(len(sizes) == 3 for sizes in found.values())


def test_predictions_from_shapes_equal_the_bytes_of_a_built_model() -> None:
    config = LlamaConfig(vocab_size=101, dim=36, n_layers=3, n_heads=3, n_kv_heads=1, hidden_dim=50)
    settings = TrainSettings.model_validate({"objective": "instruction", "steps": 1, "seq_len": 8})
    model = build(config)
    weights = sum(p.numel() for p in model.parameters())
    for rank, dora in ((1, False), (5, True), (64, False)):
        ways = tuning_memory(config, settings, rank=rank, targets=["*_proj"], dora=dora)
        linear = [m for n, m in model.named_modules() if n.endswith("_proj")]
        adapter = sum(rank * (m.in_features + m.out_features) + dora * m.out_features for m in linear)
        assert ways.full == 16 * weights
        assert ways.lora == 4 * weights + 16 * adapter
        packed = int8_bytes(config)
        assert packed is not None
        assert ways.lora_int8 == packed + 16 * adapter


def test_a_model_in_8_bits_is_read_from_its_files_weight_by_weight(tmp_path: Path) -> None:
    config = LlamaConfig(vocab_size=67, dim=42, n_layers=2, n_heads=3, n_kv_heads=1, hidden_dim=33)
    save_model(build(config, generator=torch.Generator().manual_seed(1)).bfloat16(), tmp_path / "m")
    mapped, copied = load_model(tmp_path / "m", mapped=True), load_model(tmp_path / "m", dtype=torch.float32)
    quantize_model(mapped)
    quantize_model(copied)
    expected = copied.state_dict()
    assert expected.keys() == mapped.state_dict().keys()
    for name, tensor in mapped.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
        assert tensor.dtype == expected[name].dtype
    lm = wordloom.load(tmp_path / "m", dtype="int8")
    before = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    for file in (tmp_path / "m").glob("*.safetensors"):  # nothing of it is mapped any more
        size = file.stat().st_size
        with file.open("r+b") as handle:
            handle.write(b"\xff" * size)
    for name, tensor in lm.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_recipe_of_alpaca_is_planned_without_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe("alpaca-7b")
    assert (recipe.train.learning_rate, recipe.train.epochs, recipe.train.batch_size) == (2e-5, 3, 128)
    assert recipe.train.seq_len == 512
    steps = -(-3 * 52_002 // recipe.train.batch_size)
    assert recipe.train.warmup_steps == pytest.approx(0.03 * steps, abs=1)  # 3 % of 1,219 steps
    ways = tuning_memory(PRESETS["llama-7b"], recipe.train, rank=8, targets=["*_proj"])
    parameters = 6_738_415_616
    assert ways.full == 16 * parameters
    assert 4 * parameters < ways.lora < 4.1 * parameters
    assert ways.lora_int8 is not None
    assert parameters < ways.lora_int8 < 1.1 * parameters

    folder = tmp_path / "llama-7b"
    Tokenizer.train([text for record in RECORDS for text in record.values()], kind="bpe").save_pretrained(
        folder
    )
    (folder / "config.json").write_text(json.dumps(config_to_json(PRESETS["llama-7b"])))
    (tmp_path / "records.json").write_text(json.dumps(RECORDS))
    available = psutil.virtual_memory()._replace(available=24 * 2**30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: available)
    overrides = [f"data.train={tmp_path}/records.json", "train.device=cpu"]
    for more, needed in (([], "100.4"), (["lora.rank=8"], "25.4")):
        with pytest.raises(DeviceError) as caught:
            train("alpaca-7b", [*overrides, *more], out=tmp_path / "run", start_from=folder)
        assert f"this run needs about {needed} GiB and 24.0 GiB are free" in str(caught.value)
        assert '[lora] needs about 25.4 GiB, and with lora.base = "int8" 6.8 GiB' in str(caught.value)
