"""Reading folders: the good ones bit for bit, the bad ones refused with the reason."""

import contextlib
import json
import logging
import random
import shutil
import struct
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from wordloom.errors import CheckpointError
from wordloom.models import build, config_from
from wordloom.weights import load_model, load_parameter, load_state, save_model
from wordloom.weights.tensors import open_tensors

SHAPE: dict[str, Any] = {"vocab_size": 11, "max_seq_len": 8, "dim": 12, "n_layers": 2, "n_heads": 2}
CONFIGS = {
    "gpt": config_from("gpt", **SHAPE),
    "gpt-own": config_from("gpt", **SHAPE, positions="sinusoidal", output_bias=True),
    "gpt2": config_from("gpt2", **SHAPE),
    "gpt2-own": config_from("gpt2", **SHAPE, bias=False, activation="swish_learnt"),
    "llama": config_from("llama", **SHAPE, n_kv_heads=1),
    "llama-tied": config_from("llama", **SHAPE, tie_embeddings=True, dropout=0.1),
}


def random_model(config: Any, seed: int = 0) -> Any:
    model = build(config, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A GPT-2 in one file."""
    save_model(random_model(CONFIGS["gpt2"]), tmp_path / "m")
    return tmp_path / "m"


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A LLaMA in several."""
    save_model(random_model(CONFIGS["llama"]), tmp_path / "s", max_shard_size="2KB")
    return tmp_path / "s"


def refuse(folder: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)
    for each in words:
        assert each in str(caught.value), str(caught.value)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_bit_comes_back(name: str, tmp_path: Path) -> None:
    model = random_model(CONFIGS[name])
    with torch.no_grad():  # what a comparison by value would miss
        model.token_embedding.weight[0, :4] = torch.tensor([-0.0, 1e-45, torch.inf, torch.nan])
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.config == model.config
    assert not loaded.training
    again = build(CONFIGS[name])
    load_state(again, tmp_path / "m")
    for other in (loaded, again):
        for key, tensor in model.state_dict().items():
            stored = other.state_dict()[key]
            assert stored.is_contiguous()
            assert torch.equal(stored.view(torch.int32), tensor.view(torch.int32)), key
        tied = other.lm_head.weight is other.token_embedding.weight
        assert tied == model.config.tie_embeddings
    assert all(p.requires_grad for p in loaded.parameters())
    loaded(torch.zeros(1, 3, dtype=torch.long)).sum().backward()


@pytest.mark.parametrize("name", CONFIGS)
def test_one_parameter_by_its_name(name: str, tmp_path: Path) -> None:
    model = random_model(CONFIGS[name])
    save_model(model, tmp_path / "m", max_shard_size="2KB")
    for key, tensor in model.state_dict().items():
        assert torch.equal(load_parameter(tmp_path / "m", key), tensor), key
    with pytest.raises(CheckpointError, match=r"no parameter 'token_embeddings.weight'; did you mean"):
        load_parameter(tmp_path / "m", "token_embeddings.weight")


def test_dtype_is_kept_or_chosen(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    state["transformer.wte.weight"] = state["transformer.wte.weight"].bfloat16()
    save_file(state, folder / "model.safetensors")
    mixed = load_model(folder)
    assert mixed.token_embedding.weight.dtype == torch.bfloat16
    assert mixed.final_norm.weight.dtype == torch.float32
    assert {p.dtype for p in load_model(folder, dtype=torch.float16).parameters()} == {torch.float16}


def test_the_model_does_not_lean_on_the_file(folder: Path) -> None:
    model = load_model(folder)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with (folder / "model.safetensors").open("r+b") as file:
        file.write(b"\0" * (folder / "model.safetensors").stat().st_size)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_one_tensor_at_a_time_is_mapped(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref] = []
    kind = type(open_tensors(shards))
    read = kind.read

    def watched(self: Any, name: str) -> torch.Tensor:
        assert sum(reference() is not None for reference in alive) <= 1
        tensor = read(self, name)
        alive.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(kind, "read", watched)
    load_model(shards)
    assert len(alive) == len(open_tensors(shards).entries)


def test_what_is_not_used_is_told_in_one_line(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = load_file(folder / "model.safetensors")
    extra = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 8, 8, dtype=torch.bool) for i in range(2)}
    save_file(state | extra | {"score.weight": torch.ones(3, 12)}, folder / "model.safetensors")
    load_model(folder)  # a warning is heard without asking
    load_model(folder)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.endswith("3 tensors not used: a causal mask, a sequence classification head")


def test_masks_that_are_computed_anew_are_no_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = load_file(folder / "model.safetensors")
    extra = {"transformer.h.0.attn.bias": torch.ones(1, 1, 8, 8, dtype=torch.bool)}
    save_file(state | extra, folder / "model.safetensors")
    load_model(folder)
    assert not caplog.records


def cut(share: float) -> Callable[[Path], None]:
    def do(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])

    return do


def spoil_header(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8:10] = b"[["
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut(0.9), "it is truncated: "),
        (cut(0.01), "end inside the header"),
        (cut(0.0), "end inside the header"),
        (lambda path: path.write_bytes(b"\xff" * 1000), "end inside the header"),
        (spoil_header, "its header is corrupt"),
        (
            lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid x\n"),
            "Git LFS pointer",
        ),
    ],
)
def test_damaged_safetensors_are_refused_and_change_nothing(
    damage: Callable[[Path], None], words: str, folder: Path
) -> None:
    model = random_model(CONFIGS["gpt2"], seed=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    damage(folder / "model.safetensors")
    refuse(folder, "model.safetensors", words)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_state(model, folder)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_damaged_shard_is_refused_before_any_other_is_read(shards: Path) -> None:
    last = sorted(shards.glob("*.safetensors"))[-1]
    cut(0.8)(last)
    model = random_model(CONFIGS["llama"], seed=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    refuse(shards, last.name, "truncated")
    with pytest.raises(CheckpointError):
        load_state(model, shards)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_an_index_that_disagrees_with_its_files(shards: Path) -> None:
    path = shards / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    first, second = sorted(set(index["weight_map"].values()))[:2]
    name = next(name for name, file in index["weight_map"].items() if file == first)

    def rewrite(weight_map: Any) -> None:
        path.write_text(json.dumps(index | {"weight_map": weight_map}))

    rewrite(index["weight_map"] | {name: second})
    refuse(shards, f"places {name} in {second}, which does not hold it")
    rewrite(index["weight_map"] | {name: "../" + first})
    refuse(shards, "files outside its folder: ../model-00001")
    rewrite([1])
    refuse(shards, 'no usable "weight_map"')
    rewrite(index["weight_map"])
    shutil.copy(shards / first, shards / "keep")
    (shards / first).unlink()
    refuse(shards, f"names files that are not there: {first}")
    shutil.move(shards / "keep", shards / first)
    load_model(shards)
    path.unlink()
    refuse(shards, "holds no weights; looked for model.safetensors,")


def test_shapes_and_names_that_are_not_the_configs(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    path = folder / "model.safetensors"
    save_file(state | {"transformer.wte.weight": torch.zeros(12, 12)}, path)
    refuse(folder, "transformer.wte.weight is [12, 12], expected [11, 12]")
    save_file({k: v for k, v in state.items() if "ln_f" not in k} | {"transformer.x": torch.ones(1)}, path)
    refuse(folder, "lacks transformer.ln_f.bias, transformer.ln_f.weight", "the unknown transformer.x")
    config = json.loads((folder / "config.json").read_text())
    save_file(state, path)
    (folder / "config.json").write_text(json.dumps(config | {"n_layer": 1}))
    refuse(folder, "do not fit its config.json", "unknown transformer.h.1.attn.c_attn.bias")
    (folder / "config.json").write_text(json.dumps(config | {"n_layer": 3}))
    refuse(folder, "lacks transformer.h.2.")


def test_quantised_weights_are_refused(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    state["transformer.wpe.weight"] = state["transformer.wpe.weight"].to(torch.int8)
    save_file(state, folder / "model.safetensors")
    refuse(folder, "stores transformer.wpe.weight as I8", "quantised")


def test_a_tied_copy_on_disk_must_be_equal(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    state["lm_head.weight"] = state["transformer.wte.weight"].clone()
    save_file(state, folder / "model.safetensors")
    load_model(folder)
    state["lm_head.weight"][3, 3] += 1
    save_file(state, folder / "model.safetensors")
    refuse(folder, "lm_head.weight differs from transformer.wte.weight", '"tie_word_embeddings": false')
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    assert load_model(folder).lm_head.weight[3, 3] == state["lm_head.weight"][3, 3]


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_pickles_are_read_without_running_their_code(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save(state, path)
    assert torch.equal(load_model(folder).final_norm.weight, state["transformer.ln_f.weight"])
    torch.save(state | {"x": Malicious(folder / "was-here")}, path)
    refuse(folder, "pytorch_model.bin holds more than tensors and is not loaded")
    assert not (folder / "was-here").exists()
    torch.save({"model": state}, path)
    refuse(folder, "is not a table of tensors by name")
    torch.save(state, path)
    cut(0.5)(path)
    refuse(folder, "pytorch_model.bin cannot be read: truncated or corrupt")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("zipped", [True, False])
def test_damaged_pickles_are_refused_with_the_reason(zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    state = {
        "a.weight": torch.randn(4, 3),
        "a.bias": torch.zeros(4),
        "b": torch.ones(2, dtype=torch.bfloat16),
    }
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin ") as caught:
            open_tensors(tmp_path)
        assert "\n" not in str(caught.value)
    rng = random.Random(0)
    for _ in range(1000):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(CheckpointError):  # it may have hit a number, which no file can tell
            open_tensors(tmp_path)


def test_files_that_are_no_table_of_tensors_by_name(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    path.write_bytes(b"")
    refuse(folder, "pytorch_model.bin cannot be read: truncated or corrupt (EOFError)")
    path.write_text("version https://git-lfs.github.com/spec/v1\noid x\n")
    refuse(folder, "pytorch_model.bin cannot be read: it is a Git LFS pointer")
    torch.save({0: torch.zeros(2)}, path)
    refuse(folder, "is not a table of tensors by name")


def test_pickles_in_shards(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(state)
    weight_map = {name: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        torch.save({name: state[name] for name in names if weight_map[name] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(load_model(folder).final_norm.weight, state["transformer.ln_f.weight"])


def test_load_state_wants_the_same_model_and_exact_bits(tmp_path: Path) -> None:
    config = CONFIGS["llama"]
    save_model(random_model(config), tmp_path / "m")
    with pytest.raises(CheckpointError, match="holds a llama, the model is a gpt2"):
        load_state(build(CONFIGS["gpt2"]), tmp_path / "m")
    for change, words in {
        "rope_theta": (5000.0, r"rope_theta 10000\.0, the model has 5000\.0"),
        "norm_eps": (1e-3, "norm_eps"),
        "n_kv_heads": (2, "n_kv_heads 1, the model has 2"),
    }.items():
        other = config_from("llama", **vars(config) | {change: words[0]})
        with pytest.raises(CheckpointError, match=words[1]):
            load_state(build(other), tmp_path / "m")
    said_otherwise = {"hidden_dim": config.ffn_dim, "head_dim": config.head_width}
    for settings in ({"dropout": 0.2, "max_seq_len": 64}, said_otherwise):
        load_state(build(config_from("llama", **vars(config) | settings)), tmp_path / "m")
    with pytest.raises(CheckpointError, match=r"up_proj\.weight is \[256, 12\], expected \[255, 12\]"):
        load_state(build(config_from("llama", **vars(config) | {"hidden_dim": 255})), tmp_path / "m")
    with pytest.raises(CheckpointError, match=r"as float32, which torch\.bfloat16 cannot hold exactly"):
        load_state(build(config).bfloat16(), tmp_path / "m")
    save_model(random_model(config), tmp_path / "low", dtype=torch.bfloat16)
    wide = build(config)
    load_state(wide, tmp_path / "low")
    assert torch.equal(wide.lm_head.weight, load_model(tmp_path / "low").lm_head.weight.float())


def test_a_header_that_promises_more_than_the_file_holds(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    needed = len(content)
    path.write_bytes(content[:-4])
    refuse(folder, f"it is truncated: {needed - 4:,} of {needed:,} bytes")
    assert length < needed


def test_a_translation_model_continues_no_text(tmp_path: Path) -> None:
    from wordloom.models import TransformerConfig
    from wordloom.run import LanguageModel, load_as

    save_model(build(TransformerConfig(vocab_size=11, dim=8, n_layers=1, n_heads=2)), tmp_path)
    with pytest.raises(
        CheckpointError, match="holds a translation model, and this command needs a causal language model"
    ):
        load_as(LanguageModel, tmp_path)
