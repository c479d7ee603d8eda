"""Preference tuning: rewards grow apart, the reference stays, and a run resumes to the same bits."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.run.tasks.test_instruction import RECORDS, recipe_in

from wordloom.errors import CheckpointError, DataError, RecipeError
from wordloom.run import train
from wordloom.run.tasks.preference import last_answer
from wordloom.text import Tokenizer
from wordloom.text.chat import ChatIds, Message, encode_chat, shipped_source, template_of

PAIRS = [
    {"instruction": record["instruction"], "input": record.get("input", ""),
     "chosen": record["output"] + " yes", "rejected": "no " + record["output"]}
    for record in RECORDS
]  # fmt: skip
RECIPE = """
seed = 3
[data]
train = "{place}/pairs.json"
template = "plain"
validation_fraction = 0.2
[train]
objective = "preference"
steps = 6
seq_len = 192
batch_size = 3
learning_rate = 1e-3
precision = "fp32"
evaluate_every = 3
save_every = 3
beta = 0.5
"""


def preference_recipe(place: Path, family: str = "llama") -> str:
    recipe_in(place, family)
    (place / "pairs.json").write_text(json.dumps(PAIRS))
    (place / "preference.toml").write_text(RECIPE.format(place=place))
    return str(place / "preference.toml")


@pytest.mark.parametrize("settings", [[], ["lora.rank=4"], ["lora.rank=4", "lora.base=int8"]])
def test_rewards_grow_apart(settings: list[str], tmp_path: Path) -> None:
    recipe = preference_recipe(tmp_path)
    asked = [*settings, "train.steps=60", "train.learning_rate=1e-2", "train.evaluate_every=0"]
    done = train(recipe, asked, out=tmp_path / "run", start_from=tmp_path / "body")
    assert done.metrics["reward_accuracy"] == 1
    assert done.metrics["reward_margin"] > 0.5
    assert done.metrics["loss"] < 0.6931
    assert done.metrics["answer_loss"] > 0


@pytest.mark.parametrize("family", ["gpt2", "rnn"])
def test_the_first_loss_is_that_of_equal_models(family: str, tmp_path: Path) -> None:
    recipe = preference_recipe(tmp_path, family)
    done = train(
        recipe,
        ["train.steps=1", "train.learning_rate=1e-12"],
        out=tmp_path / "run",
        start_from=tmp_path / "body",
    )
    assert done.metrics["loss"] == pytest.approx(0.693147, abs=1e-4)
    assert done.metrics["reward_margin"] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("settings", [[], ["lora.rank=2"]])
def test_a_run_cut_short_ends_with_the_same_bits(settings: list[str], tmp_path: Path) -> None:
    recipe, body = preference_recipe(tmp_path), tmp_path / "body"
    asked = [*settings, "train.keep_last=9"]
    weights = "adapter_model.safetensors" if settings else "model.safetensors"
    train(recipe, asked, out=tmp_path / "whole", start_from=body)
    train(recipe, asked, out=tmp_path / "cut", start_from=body)
    (tmp_path / "cut" / weights).unlink()
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step-6")
    train(recipe, asked, out=tmp_path / "cut", resume=True)
    one, other = (load_file(tmp_path / name / weights) for name in ("whole", "cut"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("settings", [[], ["lora.rank=2"]])
def test_a_run_does_not_resume_over_another_start(settings: list[str], tmp_path: Path) -> None:
    recipe, body = preference_recipe(tmp_path), tmp_path / "body"
    train(recipe, settings, out=tmp_path / "run", start_from=body)
    resumed = [*settings, "train.steps=9"]
    body.rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match=r"the run needs the weights of .*body, which does not exist"):
        train(recipe, resumed, out=tmp_path / "run", resume=True)
    shutil.copytree(tmp_path / "away", body)
    weights = load_file(body / "model.safetensors")
    save_file({name: -tensor for name, tensor in weights.items()}, body / "model.safetensors")
    with pytest.raises(CheckpointError, match="the model that the run starts from is not the one"):
        train(recipe, resumed, out=tmp_path / "run", resume=True)
    shutil.copy(tmp_path / "away" / "model.safetensors", body)
    assert train(recipe, resumed, out=tmp_path / "run", resume=True).step == 9


def test_only_the_last_answer_of_a_conversation_is_compared() -> None:
    rng = random.Random()
    tokenizer = Tokenizer.train(
        [text for pair in PAIRS for text in pair.values()], kind="bpe", vocab_size=300
    )
    for name in ("plain", "alpaca", "llama2"):
        template = template_of(tokenizer, shipped_source(name))
        for _ in range(10):
            texts = ["".join(rng.choices([" ", "\n", "a", "green", ":"], k=4)) + "." for _ in range(4)]
            earlier = [Message("user", texts[0]), Message("assistant", texts[1]), Message("user", texts[2])]
            chat = encode_chat(tokenizer, template, [*earlier, Message("assistant", texts[3])])
            scored = [i for i, is_scored in zip(chat.ids, last_answer(chat).scored, strict=True) if is_scored]
            assert tokenizer.decode(scored, skip_special_tokens=True).strip() == texts[3].strip()
            assert scored[-1] == tokenizer.eos_id
    nothing = ChatIds([1, 2], [False, False])
    assert last_answer(nothing) == nothing


def test_answers_that_the_template_or_truncation_makes_equal_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, body = preference_recipe(tmp_path), tmp_path / "body"
    same = {"instruction": "Count.", "chosen": "yes", "rejected": "yes "}
    late = {"instruction": "Count.", "chosen": "one " * 99 + "a", "rejected": "one " * 99 + "b"}
    for pair, settings in ((same, []), (late, ["train.seq_len=40", "data.too_long=cut"])):
        (tmp_path / "pairs.json").write_text(json.dumps([pair, *PAIRS]))
        train(recipe, [*settings, "train.steps=1"], out=tmp_path / f"run{len(settings)}", start_from=body)
        assert "equal: 1 pair has the same tokens in both answers and is left out" in capsys.readouterr().err
        (tmp_path / "pairs.json").write_text(json.dumps([pair] * 10))
        with pytest.raises(
            DataError, match="none of the 8 preferences of the train part is left: 8 have two"
        ):
            train(recipe, settings, out=tmp_path / "none", start_from=body)
    (tmp_path / "pairs.json").write_text(json.dumps([{**same, "rejected": "yes"}] * 3))
    says = (
        r"data.train: holds no preferences \(3 record\(s\) whose two answers are equal, left out\); give at"
    )
    with pytest.raises(RecipeError, match=says):
        train(recipe, out=tmp_path / "none", start_from=body)


def test_mistakes_are_named(tmp_path: Path) -> None:
    recipe, body = preference_recipe(tmp_path), tmp_path / "body"
    for scratch in ([], ["tokenizer.kind=byte", "model.family=llama"]):
        with pytest.raises(RecipeError, match="tunes a trained model; name it with --from"):
            train(recipe, scratch, out=tmp_path / "run")
    with pytest.raises(
        DataError, match=r"all \d+ preferences are longer than the 5 tokens that train.seq_len"
    ):
        train(recipe, ["train.seq_len=5", "data.too_long=drop"], out=tmp_path / "run", start_from=body)
    with pytest.raises(RecipeError, match=r"the template adds tokens that the reference .* does not have"):
        train(recipe, ["data.template=chatml"], out=tmp_path / "run", start_from=body)
    with pytest.raises(RecipeError, match="packing"):
        train(recipe, ["data.packing=false"], out=tmp_path / "run", start_from=body)
