"""Recipes that several ranks do not train are refused, and one rank of a machine builds the model."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.run.conftest import write_corpus, write_recipe

from wordloom.errors import RecipeError
from wordloom.models import LlamaConfig, build
from wordloom.models.building.build import without_weights
from wordloom.recipe import load_recipe
from wordloom.run.ranks import is_sent_weights, refuse_alone
from wordloom.training.ranks import Ranks

OLD = ["old_task.validation=old.txt"]
REFUSED = [
    (
        ["train.objective=truncated_bptt", "train.batch_size=5", "train.micro_batch_size=1"],
        3,
        "give each rank a row",
    ),
    (
        ["train.objective=truncated_bptt", "train.batch_size=2", "train.micro_batch_size=2"],
        3,
        "give each rank a row",
    ),
    (['train.inspect=["heads"]', "train.shard=full"], 2, "leave one out"),
    ([*OLD, "old_task.train=old.txt", "train.rehearsal_share=0.2"], 2, "leave out torchrun"),
]
TAKEN = [
    ["train.optimizer=muon"],
    ["train.objective=truncated_bptt", "train.batch_size=6"],
    ['train.inspect=["heads"]'],
    OLD,
]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path, write_corpus(tmp_path), "rnn")


@pytest.mark.parametrize(("settings", "ranks", "advice"), REFUSED)
def test_what_one_process_must_train_is_refused(
    settings: list[str], ranks: int, advice: str, recipe: Path
) -> None:
    with pytest.raises(RecipeError, match=advice):
        refuse_alone(load_recipe(recipe, settings), Ranks(0, ranks))


def test_a_search_along_a_line_is_refused() -> None:
    with pytest.raises(RecipeError, match="leave out torchrun, or take adamw or sgd"):
        refuse_alone(load_recipe("bag-of-words-sst2", []), Ranks(0, 2))


@pytest.mark.parametrize("settings", TAKEN)
def test_what_ranks_can_train_is_taken(settings: list[str], recipe: Path) -> None:
    refuse_alone(load_recipe(recipe, settings), Ranks(1, 3))


def test_one_rank_of_a_machine_builds_weights_that_are_shared_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path, write_corpus(tmp_path), "llama")
    for rank, shard, sent in (
        ("0", "full", False),
        ("1", "full", True),
        ("2", "hybrid", True),
        ("1", "none", False),
    ):
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert is_sent_weights(load_recipe(recipe, [f"train.shard={shard}"])) == sent
    assert not is_sent_weights(load_recipe(recipe, ["train.shard=full", "lora.rank=2"]))
    assert not is_sent_weights(load_recipe(recipe, ["train.shard=full", *OLD]))
    config = LlamaConfig(vocab_size=7, dim=4, n_heads=1, n_layers=1)
    with without_weights():
        assert all(parameter.is_meta for parameter in build(config).parameters())
    assert not any(parameter.is_meta for parameter in build(config).parameters())
