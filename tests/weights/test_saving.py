"""Writing folders: whole or not at all."""

import errno
import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from safetensors.torch import save_file as really_save_file

from wordloom.errors import CheckpointError
from wordloom.models import build, config_from
from wordloom.weights import load_config, load_model, save_model, saving

SHAPE: dict[str, Any] = {"vocab_size": 11, "max_seq_len": 8, "dim": 12, "n_layers": 2, "n_heads": 2}
CONFIG = config_from("gpt2", **SHAPE)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class FakeTokenizer:
    vocab_size, bos_id, eos_id, pad_id = 11, None, 0, 3

    def save_pretrained(self, folder: Any) -> None:
        (Path(folder) / "tokenizer.json").write_text("{}")


def test_the_files_of_a_folder(tmp_path: Path) -> None:
    generation = {"temperature": 0.7, "top_k": 40}
    save_model(build(CONFIG), tmp_path / "a/b", tokenizer=FakeTokenizer(), generation=generation)
    files = contents(tmp_path / "a/b")
    assert sorted(files) == ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"]
    config = json.loads(files["config.json"])
    assert (config["model_type"], config["architectures"]) == ("gpt2", ["GPT2LMHeadModel"])
    assert config["dtype"] == "float32"
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (None, 0, 3)
    assert json.loads(files["generation_config.json"]) == {"eos_token_id": 0, "pad_token_id": 3, **generation}
    with safe_open(tmp_path / "a/b/model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118


def test_layers_that_are_one_are_written_for_each(tmp_path: Path) -> None:
    model = build(CONFIG)
    model.blocks[1] = model.blocks[0]
    save_model(model, tmp_path / "shared")
    tokens = torch.randint(0, 11, (2, 5))
    torch.testing.assert_close(load_model(tmp_path / "shared")(tokens), model(tokens))


def test_shards_are_no_larger_than_asked_and_the_index_is_whole(tmp_path: Path) -> None:
    model = build(CONFIG)
    save_model(model, tmp_path / "m", max_shard_size=3000)
    index = json.loads((tmp_path / "m/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * sum(p.numel() for p in model.parameters())
    files = sorted((tmp_path / "m").glob("*.safetensors"))
    assert {path.name for path in files} == set(index["weight_map"].values())
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    for path in files:
        tensors = load_file(path)
        assert all(index["weight_map"][name] == path.name for name in tensors)
        assert len(tensors) == 1 or sum(t.nbytes for t in tensors.values()) <= 3000
    assert all(torch.equal(a, b) for a, b in zip(
        model.state_dict().values(), load_model(tmp_path / "m").state_dict().values(), strict=True
    ))  # fmt: skip


def test_an_existing_checkpoint_is_not_overwritten_unasked(tmp_path: Path) -> None:
    save_model(build(CONFIG), tmp_path, max_shard_size=3000)
    (tmp_path / "metrics.jsonl").write_text("{}")
    before = contents(tmp_path)
    llama = build(config_from("llama", **SHAPE))
    with pytest.raises(
        CheckpointError, match=r"already holds files of a checkpoint \(config.* and \d+ more\)"
    ):
        save_model(llama, tmp_path)
    assert contents(tmp_path) == before
    save_model(llama, tmp_path, overwrite=True)
    assert sorted(contents(tmp_path)) == [
        "config.json", "generation_config.json", "metrics.jsonl", "model.safetensors",
    ]  # fmt: skip
    assert load_model(tmp_path).config == llama.config
    (tmp_path / "pytorch_model.bin").write_text("old")
    (tmp_path / "config.json").unlink()
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"already holds files of a checkpoint \(pytorch_model\.bin\)"):
        save_model(llama, tmp_path)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is a file"):
        save_model(llama, tmp_path / "metrics.jsonl", overwrite=True)


@pytest.mark.parametrize(
    "name",
    ["generation_config.json", "tokenizer.json", "recipe.toml", "modules.json", "vocabulary.json",
     "source_tokenizer/tokenizer.json"],
)  # fmt: skip
def test_a_file_of_another_content_is_not_replaced_unasked(tmp_path: Path, name: str) -> None:
    given: dict[str, Any] = {"tokenizer": FakeTokenizer(), "files": {"recipe.toml": "[train]"}}
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(
        CheckpointError, match=r"\((\w+\.(json|toml)|source_tokenizer)\); choose another folder"
    ):
        save_model(build(CONFIG), tmp_path, **given)
    assert contents(tmp_path) == {name: b"mine"}
    save_model(build(CONFIG), tmp_path, overwrite=True, **given)
    assert b"mine" not in contents(tmp_path).values()


def test_a_file_of_the_same_content_is_no_obstacle_and_all_files_have_one_mode(tmp_path: Path) -> None:
    FakeTokenizer().save_pretrained(tmp_path)
    save_model(build(CONFIG), tmp_path, tokenizer=FakeTokenizer(), max_shard_size=3000)
    (tmp_path / "other").touch()
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


def test_a_folder_with_other_things_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("")
    (tmp_path / "checkpoints").mkdir()
    save_model(build(CONFIG), tmp_path)
    assert load_model(tmp_path).config == CONFIG


def test_a_failure_half_way_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(build(CONFIG), tmp_path)
    before = contents(tmp_path)

    def full(tensors: Any, path: Path, **rest: Any) -> None:
        if "00003" in path.name:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        really_save_file(tensors, path, **rest)

    monkeypatch.setattr(saving, "save_file", full)
    with pytest.raises(CheckpointError, match=r"could not be written: .*No space left on device"):
        save_model(build(CONFIG), tmp_path, max_shard_size=3000, overwrite=True)
    assert contents(tmp_path) == before


def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    """Not a mock: the system refuses to let files grow."""
    config = config_from("llama", **SHAPE | {"vocab_size": 50_000})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(CheckpointError, match="could not be written"):
            save_model(build(config), tmp_path / "m")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(tmp_path) == {}


KILLED = """
import os, shutil, sys
from pathlib import Path
import torch
from wordloom.models import build, config_from
from wordloom.text import Tokenizer
from wordloom.weights import save_model

SHAPE = {"vocab_size": 40, "max_seq_len": 8, "dim": 12, "n_layers": 1, "n_heads": 2}
POOLING = {"modules.json": "[]", "1_Pooling/config.json": "{}"}
SOURCE = {"share_embeddings": False, "source_vocab_size": 40}


def tokenizer(text):
    return Tokenizer.train([text], kind="char", special_tokens=["<pad>", "</s>"])


SAVES = {
    "sharded": ("gpt2", {}, {"max_shard_size": 3000, "tokenizer": tokenizer("old")}),
    "translator": ("transformer", SOURCE, {"tokenizer": tokenizer("a"), "source_tokenizer": tokenizer("b")}),
    "another": ("transformer", SOURCE, {"tokenizer": tokenizer("ab"), "source_tokenizer": tokenizer("cde")}),
    "encoder": ("bert", {}, {"files": POOLING, "tokenizer": tokenizer("encoder")}),
}


def save(name, folder):
    family, settings, given = SAVES[name]
    seed = torch.Generator().manual_seed(len(name))
    model = build(config_from(family, **SHAPE, **settings), generator=seed)
    save_model(model, folder, overwrite=True, **given)


def counted(call, at):
    def counting(*arguments, **named):
        if counting.left[0] == at:
            os._exit(9)
        counting.left[0] += 1
        return call(*arguments, **named)
    return counting


place, old, new = Path(sys.argv[1]), *sys.argv[2:]
for name in (old, new):
    save(name, place / name)
step, ended = 0, 9
while ended:
    folder = place / f"after {step}"
    shutil.copytree(place / old, folder)
    (folder / "metrics.jsonl").write_text("{}")
    child = os.fork()
    if not child:
        left = [0]
        for name in ("replace", "rename", "unlink", "rmdir", "mkdir", "fsync", "open"):
            call = counted(getattr(os, name), step)
            call.left = left
            setattr(os, name, call)
        save(new, folder)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    step += 1
"""


@pytest.mark.parametrize(("old", "new"), [("sharded", "encoder"), ("translator", "another")])
def test_a_save_killed_at_any_step_leaves_the_old_checkpoint_or_the_new(
    old: str, new: str, tmp_path: Path, forked: Any
) -> None:
    done = forked(tmp_path, old, new, code=KILLED).completed()
    assert done.returncode == 0, done.stderr
    steps = sorted(tmp_path.glob("after *"), key=lambda path: int(path.name.split()[1]))
    before, after = contents(tmp_path / old) | {"metrics.jsonl": b"{}"}, contents(steps[-1])
    assert after.items() >= contents(tmp_path / new).items()
    found = []
    for folder in steps:
        load_model(folder)
        left = {name: data for name, data in contents(folder).items() if not name.startswith(".wordloom-")}
        assert left in (before, after), folder.name
        found.append(left == after)
    assert found == sorted(found)  # the old one, then the new one
    assert not found[0]
    assert found.count(True) > 10  # also in the middle of the moves
    for folder in steps[:: len(steps) // 4]:
        save_model(build(CONFIG), folder, overwrite=True)
        assert load_model(folder).config == CONFIG
        assert not list(folder.glob(".wordloom-*"))


def test_every_file_and_the_folder_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = set()
    fsync = os.fsync

    def record(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record)
    save_model(build(CONFIG), tmp_path / "m", tokenizer=FakeTokenizer())
    assert {path.stat().st_ino for path in [tmp_path / "m", *(tmp_path / "m").iterdir()]} <= synced


def test_another_state_of_the_same_shapes(tmp_path: Path) -> None:
    averaged = {name: torch.full_like(tensor, 0.5) for name, tensor in build(CONFIG).state_dict().items()}
    save_model((CONFIG, averaged), tmp_path / "m", dtype=torch.bfloat16)
    model = load_model(tmp_path / "m")
    assert all((p == 0.5).all() and p.dtype == torch.bfloat16 for p in model.parameters())
    assert json.loads((tmp_path / "m/config.json").read_text())["dtype"] == "bfloat16"
    del averaged["final_norm.bias"]
    with pytest.raises(CheckpointError, match=r"the state to save lacks final_norm\.bias"):
        save_model((CONFIG, averaged), tmp_path / "n")
    averaged["final_norm.bias"] = torch.zeros(13)
    with pytest.raises(CheckpointError, match=r"final_norm\.bias is \[13\], expected \[12\]"):
        save_model((CONFIG, averaged), tmp_path / "n")
    assert not (tmp_path / "n").exists()


def test_views_of_one_tensor_are_saved_each_for_itself(tmp_path: Path) -> None:
    config = config_from("llama", **SHAPE)
    state = dict(build(config).state_dict())
    names = [f"blocks.0.attention.{name}_proj.weight" for name in "qkv"]
    fused = torch.randn(36, 12)
    state.update(zip(names, fused.chunk(3), strict=True))
    save_model((config, state), tmp_path / "m")
    loaded = load_model(tmp_path / "m").state_dict()
    assert torch.equal(torch.cat([loaded[name] for name in names]), fused)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_shard_size": "lots"}, "'500MB' or '5GB', not 'lots'"),
        ({"max_shard_size": "0GB"}, "not '0GB'"),
        ({"max_shard_size": -1}, "not -1"),
        ({"dtype": torch.int8}, "not torch.int8"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        save_model(build(CONFIG), tmp_path / "m", **settings)
    assert words in str(caught.value)
    assert not (tmp_path / "m").exists()


SIZES = {"5GB": 5 * 10**9, "1.5 MiB": 1_572_864, "200mb": 2 * 10**8, 7: 7}


@pytest.mark.parametrize(("size", "expected"), SIZES.items())
def test_sizes(size: Any, expected: int) -> None:
    assert saving._bytes(size) == expected


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    tokenizer = FakeTokenizer()
    tokenizer.vocab_size = 12
    with pytest.raises(CheckpointError, match="the tokenizer has 12 ids, the model a vocab_size of 11"):
        save_model(build(CONFIG), tmp_path / "m", tokenizer=tokenizer)


def test_models_of_our_own_keep_our_names_and_keys(tmp_path: Path) -> None:
    config = config_from("gpt", **SHAPE, positions="sinusoidal", output_bias=True)
    model = build(config)
    save_model(model, tmp_path / "m")
    written = json.loads((tmp_path / "m/config.json").read_text())
    assert (written["model_type"], written["dim"], written["positions"]) == ("wordloom-gpt", 12, "sinusoidal")
    assert set(load_file(tmp_path / "m/model.safetensors")) == set(model.state_dict()) - {"lm_head.weight"}
    assert load_config(tmp_path / "m") == config
