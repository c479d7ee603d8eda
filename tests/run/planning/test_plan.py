"""Plans of recipes and presets: speed, advice, and the recipes that no plan knows."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from wordloom.data import Corpus
from wordloom.data.shards.merge import merge_shares
from wordloom.data.shards.tasks import prepare_share
from wordloom.data.text.shares import ShareNumber
from wordloom.errors import CheckpointError, DeviceError, RecipeError
from wordloom.models import PRESETS, family_of
from wordloom.models.building.cost import flops_per_token
from wordloom.models.llama import LlamaConfig
from wordloom.recipe import Recipe
from wordloom.run.planning.gpus import GPUS, Gpu, gpu_called
from wordloom.run.planning.plan import ClusterPlan, Hardware, plan_recipe
from wordloom.run.planning.shapes import FAMILIES
from wordloom.run.planning.speed import LINK_SHARE
from wordloom.text import Tokenizer

H100 = gpu_called("h100-80gb")
CAUSAL = [name for name, config in PRESETS.items() if family_of(config) in FAMILIES]


def plan(name: str, *overrides: str, gpus: int = 8, gpu: Gpu = H100, **hardware: Any) -> ClusterPlan:
    return plan_recipe(name, overrides, hardware=Hardware(gpu=gpu, gpus=gpus, **hardware))


@pytest.mark.parametrize("name", CAUSAL)
def test_every_causal_preset_has_a_plan(name: str) -> None:
    found = plan(name, "train.shard=full", gpus=64, gpu=gpu_called("b200"))
    values = json.loads(json.dumps(found.as_dict()))
    assert values["parameters"] == found.shape.parameters
    assert values["bytes_per_rank"]["total"] == sum(found.memory.by_kind.values()) > 0
    # fp32 weights, and AdamW's moments, of this rank
    kept = values["bytes_per_rank"]["weights"] + values["bytes_per_rank"]["optimizer state"]
    assert kept == 12 * found.shape.elements(64)
    assert values["start_host_bytes"] == 4 * found.shape.parameters
    assert values["checkpoint_host_bytes"] == 8 * 2 * kept  # of each rank a copy, and its file
    gathered = plan(name, "train.shard=full", "train.consolidate=true", gpus=64, gpu=gpu_called("b200"))
    assert gathered.memory.checkpoint == 12 * found.shape.parameters
    copies = plan(name, "train.shard=none", gpus=64, gpu=gpu_called("b200"))
    every = 12 * found.shape.parameters
    assert copies.memory.checkpoint == 8 * every + 8 * every // 64  # copies, and each number once in a file
    assert copies.memory.start == 8 * 4 * found.shape.parameters
    assert 12 * found.shape.parameters <= 64 * kept < 1.2 * 12 * found.shape.parameters  # rows are not split
    assert values["tokens"] == pytest.approx(20 * found.shape.parameters, rel=0.01)
    assert found.fits == (found.memory.total <= 0.9 * 180 * 2**30)


def test_a_known_size_is_planned_without_text_or_tokenizer(tmp_path: Path) -> None:
    """From a file, with the size of the vocabulary that its tokenizer will have."""
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        '[data]\ntrain = "nowhere/*.txt"\n[tokenizer]\nkind = "bpe"\nvocab_size = 5000\n'
        '[model]\nfamily = "llama"\ndim = 64\nn_layers = 2\nn_heads = 2\n'
        "[train]\nsteps = 100\nseq_len = 128\nbatch_size = 12\n"
    )
    found = plan(str(recipe), gpus=4)
    assert found.shape.vocab_size == 5000
    assert (found.rows, found.parts) == (3, 1)
    assert found.tokens == 100 * 12 * 128
    assert plan(str(recipe), "model.vocab_size=700", gpus=4).shape.vocab_size == 700
    with pytest.raises(RecipeError, match="size of the vocabulary is not known"):
        plan(str(recipe), "tokenizer.kind=char", "tokenizer.vocab_size=none", gpus=4)


def test_the_batch_is_shared_out_as_the_trainer_does(rng: random.Random) -> None:
    gpus, batch, micro = rng.randint(2, 9), rng.randint(10, 60), rng.randint(1, 3)
    found = plan("gpt2", f"train.batch_size={batch}", f"train.micro_batch_size={micro}", gpus=gpus,
                 per_machine=gpus)  # fmt: skip
    most = -(-batch // gpus)
    assert found.parts == -(-most // micro)
    assert found.rows == min(most, micro)
    assert bool(found.notes) == bool(batch % gpus)


# -- speed -------------------------------------------------------------------------------------------------


def test_communication_hides_from_a_number_of_tokens_on(rng: random.Random) -> None:
    """For each weight, FSDP moves 2 bytes beside 2 operations, then 6 bytes beside 4 operations."""
    tera, gigabytes = rng.uniform(100, 1000), rng.uniform(5, 100)
    gpu = Gpu(memory=1000, bf16=tera, fp32=tera, bandwidth=gigabytes, network=gigabytes)
    found = plan("llama-65b", "train.shard=full", "train.seq_len=64", gpus=512, gpu=gpu, per_machine=1)
    expected = (6 / 4) * 0.4 * tera * 1e12 / (gigabytes * 1e9 * LINK_SHARE)
    assert found.speed.least_tokens == pytest.approx(expected, rel=0.03)
    assert found.speed.hides == (found.speed.least_tokens <= 64)
    enough = plan("llama-65b", "train.shard=full", f"train.seq_len={min(2048, found.speed.least_tokens)}",
                  f"train.batch_size={512 * 64}", "train.micro_batch_size=64",
                  gpus=512, gpu=gpu, per_machine=1)  # fmt: skip
    assert enough.speed.hides == (enough.speed.micro_tokens >= enough.speed.least_tokens)


def test_a_step_takes_the_longer_of_compute_and_communication(rng: random.Random) -> None:
    slow = Gpu(memory=80, bf16=1000, fp32=100, bandwidth=0.01, network=0.01)
    found = plan("gpt2", "train.shard=full", gpus=4, gpu=slow)
    assert not found.speed.hides
    sent = found.speed.traffic / (0.01e9 * LINK_SHARE)
    assert found.speed.step_seconds == pytest.approx(sent, rel=0.1)
    alone = plan("gpt2", gpus=1, gpu=slow, utilisation=(share := rng.uniform(0.1, 1)))
    assert alone.speed.traffic == 0
    assert alone.speed.model_utilisation == pytest.approx(share)


def test_hybrid_sharding_gathers_within_a_machine() -> None:
    """Its all-reduce of float32 gradients crosses the network with as many bytes as all of full sharding."""
    slow = Gpu(memory=80, bf16=989, fp32=67, bandwidth=450, network=1)
    full, hybrid = (
        plan("llama2-7b", f"train.shard={shard}", gpus=32, gpu=slow) for shard in ("full", "hybrid")
    )
    assert hybrid.speed.forward.communication < full.speed.forward.communication / 40
    assert hybrid.speed.step_seconds == pytest.approx(full.speed.step_seconds, rel=0.1)
    assert hybrid.memory.total > full.memory.total


# torchtitan, docs/performance.md: Llama 3.1 8B, FSDP, 2 rows of 8,192 tokens, selective recomputation.
# (GPUs, tokens per second of a GPU, GiB): without torch.compile.
TITAN = ((8, 5762, 82.4), (128, 5605, 67.0))
LLAMA3 = LlamaConfig(
    vocab_size=128256, max_seq_len=8192, dim=4096, n_layers=32, n_heads=32, n_kv_heads=8, hidden_dim=14336
)


def test_published_figures_of_torchtitan(tmp_path: Path) -> None:
    """Its recomputation and loss are not ours: its memory lies between that with and without recomputation.

    The published figures count memory that the allocator reserves, the plan what is in use.
    """
    recipe = Recipe.model_validate({
        "name": "llama3", "data": {"train": "text"}, "model": {"family": "llama", **_given(LLAMA3)},
        "train": {"steps": 1, "seq_len": 8192, "batch_size": 16, "micro_batch_size": 2, "shard": "full",
                  "compile": "off"},
    })  # fmt: skip
    path = tmp_path / "llama3.toml"
    path.write_text(recipe.to_toml())
    totals = []
    for gpus, tokens_per_second, gib in TITAN:
        batch = f"train.batch_size={2 * gpus}"
        most = plan(str(path), batch, gpus=gpus)
        least = plan(str(path), batch, "train.gradient_checkpointing=true", gpus=gpus)
        assert least.memory.total < gib * 2**30 < most.memory.total
        assert most.speed.hides  # the larger cluster is 3 % slower
        reached = flops_per_token(LLAMA3, context=8192).training * tokens_per_second / 989e12
        assert 0.32 < reached < 0.35  # the page says 33 %
        totals.append(most.memory.total)
    difference = totals[0] - totals[1]
    each = LLAMA3_PARAMETERS * (1 / 8 - 1 / 128)
    assert 12 * each == pytest.approx(difference, rel=0.01)  # weights and moments; gradients come later
    assert 12 * each < (82.4 - 67.0) * 2**30 < 18 * each


LLAMA3_PARAMETERS = 8_030_261_248


def _given(config: LlamaConfig) -> dict[str, Any]:
    return {key: value for key, value in vars(config).items() if value is not None}


# -- advice ------------------------------------------------------------------------------------------------


def test_advice_is_what_plans_with_the_settings_say(rng: random.Random) -> None:
    """Each change is planned with those before it; all sets of three that change less do not fit."""
    gpus = rng.choice([1, 2, 4, 8])
    name = rng.choice(["llama-13b", "llama2-13b", "llama-7b", "gpt2-xl", "gpt2-large"])
    given = [f"train.batch_size={4 * gpus}", "train.micro_batch_size=4"]
    if rng.random() < 0.5:
        given.append("train.precision=fp32")
    small = Gpu(memory=rng.choice([8, 16, 40]), bf16=100, fp32=50, bandwidth=30, network=10)
    found = plan(name, *given, gpus=gpus, gpu=small)
    if found.fits:
        assert found.changes == ()
        return
    assert 1 <= len(found.changes) <= 3
    settings = [change.setting for change in found.changes]
    for number, change in enumerate(found.changes, start=1):
        names = {setting.split("=")[0] for setting in settings[:number]}
        others = [each for each in given if each.split("=")[0] not in names]
        after = plan(name, *others, *settings[:number], gpus=gpus, gpu=small)
        assert after.memory.total == change.total
        assert after.fits == change.fits
    assert not any(change.fits for change in found.changes[:-1])
    if found.enough is not None:
        more = ["train.shard=full", "train.gradient_checkpointing=true", "train.micro_batch_size=1"]
        more += ["train.precision=bf16"]
        batch = f"train.batch_size={4 * gpus}"
        half = found.enough // 2
        assert plan(name, batch, *more, gpus=found.enough, gpu=small).fits
        assert half == gpus or not plan(name, batch, *more, gpus=half, gpu=small).fits


def test_settings_that_keep_the_result_are_advised_first() -> None:
    """Not a shorter text or another optimizer, for a model that only has to be shared out."""
    found = plan("llama2-70b", gpus=64)
    assert [change.setting for change in found.changes] == [
        "train.shard=full", "train.gradient_checkpointing=true"
    ]  # fmt: skip
    assert found.changes[-1].fits
    assert found.enough is None
    tuned = plan("alpaca-7b", gpus=1, gpu=gpu_called("rtx4090"))
    assert "lora.rank=8" in {change.setting for change in tuned.changes}
    assert not tuned.changes[-1].fits  # no three settings suffice
    assert tuned.enough == 8


def test_a_budget_in_minutes_and_very_short_steps() -> None:
    found = plan("quickstart", "train.minutes=3")
    assert found.steps == pytest.approx(180 / found.speed.step_seconds, rel=0.01)
    assert any("starting its computations" in note for note in found.notes)
    assert not plan("llama2-7b", "train.shard=full").notes


def test_the_vocabulary_of_a_prepared_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three\n" * 50)
    tokenizer = Tokenizer.train(["one two three"], kind="bpe", vocab_size=262)
    corpus = Corpus(sources=tmp_path / "a.txt", separator="line", split="hash", validation_fraction=0)
    out = tmp_path / "prepared"
    prepare_share(corpus, tokenizer, ShareNumber(1, 1), out=out, parts=("train",))
    merge_shares(out)
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        f'[data]\ntrain = "{out}"\n[model]\nfamily = "llama"\ndim = 64\nn_layers = 2\nn_heads = 2\n'
        "[train]\nsteps = 100\nseq_len = 128\nbatch_size = 12\n"
    )
    assert plan(str(recipe), gpus=4).shape.vocab_size == tokenizer.vocab_size


def test_no_advice_where_a_run_fits() -> None:
    found = plan("gpt2", gpus=1)
    assert found.fits
    assert found.changes == ()


def test_an_adapter_needs_less(tmp_path: Path) -> None:
    """The base of alpaca-7b is not there: its name is that of a preset."""
    whole, adapter = plan("alpaca-7b", gpus=1), plan("alpaca-7b", "lora.rank=8", gpus=1)
    assert adapter.memory.by_kind["optimizer state"] < whole.memory.by_kind["optimizer state"] / 100
    assert adapter.shape.elements(trained=True) < 0.01 * whole.shape.parameters
    assert whole.fits or "lora.rank=8" in {change.setting for change in whole.changes}


# -- what cannot be planned --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (["rnn-ptb-small"], RecipeError, "knows the train.objectives"),
        (
            ["gru-ptb-small", "train.objective=causal_lm", "data.restart_share=0.1"],
            RecipeError,
            "causal Transformers gpt, gpt2, llama",
        ),
        (["mrpc"], RecipeError, "'classification'"),
        (["bert-base"], RecipeError, "'masked_lm"),
        (["roberta-base"], RecipeError, "'roberta'"),
        (["alpaca-7b", "lora.base=int8"], RecipeError, "set lora.base=full"),
        (["alpaca-7b", "start_from=nowhere"], CheckpointError, "nowhere, which does not exist"),
        (["llama2-70bb"], RecipeError, "no recipe or preset is called 'llama2-70bb'; did you mean"),
        (["nothing"], RecipeError, "give a .toml file, a recipe, or a preset: gpt, gpt2"),
        (["gpt2", "train.seq_len=5000"], RecipeError, "longer than model.max_seq_len"),
        (["gpt2", "model.attention=performer:16"], RecipeError, "knows exact attention"),
    ],
)
def test_what_no_plan_knows_is_refused(given: list[str], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        plan(*given)


def test_hardware_that_cannot_be_is_refused() -> None:
    with pytest.raises(DeviceError, match="does not divide into machines of 8"):
        plan("gpt2", gpus=12)
    with pytest.raises(DeviceError, match="give --network"):
        plan("gpt2", gpus=16, gpu=gpu_called("rtx4090"))
    with pytest.raises(DeviceError, match=r"unknown GPU 'a100'.*a100-40gb"):
        gpu_called("a100")
    assert gpu_called("H100") == GPUS["h100-80gb"]
