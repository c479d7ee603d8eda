"""What several ranks do not train is refused before anything is written, with what to do instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.run.conftest import write_corpus, write_recipe

from wordloom.errors import RecipeError
from wordloom.recipe import load_recipe
from wordloom.run.ranks import refuse_alone
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
