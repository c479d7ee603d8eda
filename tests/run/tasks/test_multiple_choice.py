"""The right choice among several: a multiple-choice head, trained on questions with answers."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.run.bodies import SHAPE, ends_alike_when_cut_short, loaded, scored_at_the_command, write_body
from torch.nn import functional as F

from wordloom.data import choice_rows
from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.framed import MarkedInputs
from wordloom.data.batches.labelled import LabelBatch
from wordloom.errors import DataError, EvaluationError, RecipeError
from wordloom.models import GPT2Config, TaskConfig, build
from wordloom.objectives import objective
from wordloom.run import train
from wordloom.run.models.heads.multiple_choice import MultipleChoice

ROWS = [
    {"query": "the cat sat", "choices": ["on a mat", "under rain"], "gold": 0},
    {"query": "a dog ran", "choices": ["dogs read", "it was far", "no"], "gold": 1},
    {"query": "it rains", "choices": ["the mat is dry", "the mat is wet"], "gold": 1},
    {"query": "dogs run", "choices": ["far", "a book", "cats"], "gold": 0},
] * 4
TEXTS = [text for row in ROWS for text in (row["query"], *row["choices"])]
RECIPE = """
name = "chosen"
seed = 3
[data]
train = "{place}/train.jsonl"
validation_fraction = 0.25
[train]
objective = "multiple_choice"
steps = 6
seq_len = 16
batch_size = 4
micro_batch_size = 3
learning_rate = 3e-3
precision = "fp32"
evaluate_every = 3
save_every = 3
"""


def recipe_in(place: Path) -> str:
    (place / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (place / "recipe.toml").write_text(RECIPE.format(place=place))
    return str(place / "recipe.toml")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    place = tmp_path_factory.mktemp("choosing")
    write_body(place / "body", TEXTS)
    result = train(recipe_in(place), out=place / "run", start_from=place / "body")
    return place, result


def test_choices_are_learnt_and_made(tuned):
    place, result = tuned
    assert set(result.metrics) == {"loss", "accuracy"}
    chooser = loaded(MultipleChoice, place / "run")
    rows = list(choice_rows(str(place / "train.jsonl")))[:4]
    found = chooser.predict(rows)
    for row, one in zip(rows, found, strict=True):  # whatever stands beside a question
        alone = chooser.ask(row.context, row.choices)
        assert one.probabilities == pytest.approx(alone.probabilities, abs=1e-5)
        assert len(one.probabilities) == len(row.choices)
        assert sum(one.probabilities) == pytest.approx(1)
        assert (one.number, one.probability) == (int(np.argmax(one.probabilities)), max(one.probabilities))
    scores = chooser.evaluate(rows)  # the last four rows are these again
    assert {name: scores[name].value for name in scores} == pytest.approx(result.metrics, rel=1e-5)
    nats = [-math.log(one.probabilities[row.answer]) for row, one in zip(rows, found, strict=True)]
    assert scores["loss"].value == pytest.approx(np.mean(nats), rel=1e-5)
    with pytest.raises(EvaluationError, match="no question of these has an answer"):
        chooser.evaluate([row._replace(answer=None) for row in rows])
    assert chooser.predict([]) == []
    ledger = json.loads((place / "run/ledger.json").read_text())
    assert (ledger["train"]["rows"], ledger["train"]["labels"]) == (12, {"2 choices": 6, "3 choices": 6})


def test_what_the_recipe_holds_out_is_scored_at_the_command(tuned):
    place, result = tuned
    scores = scored_at_the_command(place / "run")
    assert scores["loss"] == pytest.approx(result.metrics["loss"], rel=1e-5)
    short = ["train.seq_len=7", 'data.too_long="cut"']
    cut = train(str(place / "recipe.toml"), short, out=place / "short", start_from=place / "body")
    assert scored_at_the_command(place / "short")["loss"] == pytest.approx(cut.metrics["loss"], rel=1e-5)
    with pytest.raises(RecipeError, match=r"data\.train: rows are read more than once, standard input only"):
        train(str(place / "recipe.toml"), ['data.train="-"'], out=place / "no", start_from=place / "body")


def test_a_run_cut_short_ends_with_the_same_bits(tuned):
    place, _ = tuned
    assert ends_alike_when_cut_short(str(place / "recipe.toml"), place, place / "run")


def test_transformers_reads_a_tuned_folder(tuned):
    transformers = pytest.importorskip("transformers")
    place, _ = tuned
    model = transformers.AutoModelForMultipleChoice.from_pretrained(place / "run").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "run")
    row = list(choice_rows(str(place / "train.jsonl")))[1]
    given = tokenizer(*zip(*row.pairs, strict=True), padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = model(**{name: value[None] for name, value in given.items()}).logits.softmax(-1)
    ours = loaded(MultipleChoice, place / "run").predict([row])[0].probabilities
    np.testing.assert_allclose(ours, theirs[0], rtol=1e-4, atol=1e-5)


def test_the_loss_is_over_the_choices_that_there_are(tmp_path):
    """Also beside the auxiliary loss, of a causal model, which is over the tokens of every choice."""
    config = TaskConfig(body=GPT2Config(vocab_size=20, **SHAPE), task="multiple_choice", language_model=True)
    model = build(config, generator=torch.Generator().manual_seed(1))
    tokens = torch.tensor([[[1, 2, 3], [4, 5, 0], [0, 0, 0]], [[1, 6, 0], [2, 7, 8], [9, 0, 0]]])
    attend = tokens != 0
    batch = LabelBatch(MarkedInputs(tokens, None, attend), torch.tensor([1, 2]))
    model.eval()
    loss = objective("multiple_choice")(model, batch)
    first = F.cross_entropy(model(tokens[:1, :2], None, attend[:1, :2]), torch.tensor([1]))
    second = F.cross_entropy(model(tokens[1:], None, attend[1:]), torch.tensor([2]))
    torch.testing.assert_close(loss.total, first + second)
    beside = objective("multiple_choice", language_model_weight=0.5)(model, batch)
    torch.testing.assert_close(beside.total[0], loss.total)
    assert beside.count.tolist() == [2, 2 + 1 + 1 + 2]
    beside.total.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    unknown = objective("multiple_choice")(model, batch._replace(targets=torch.tensor([1, IGNORE])))
    torch.testing.assert_close(unknown.total, first)
    write_body(tmp_path / "body", TEXTS, "gpt2", max_seq_len=48)
    few = ["train.steps=2", "train.seq_len=48", "train.evaluate_every=2", "train.language_model_weight=0.5"]
    train(recipe_in(tmp_path), few, out=tmp_path / "run", start_from=tmp_path / "body")
    assert (
        len(loaded(MultipleChoice, tmp_path / "run").ask("the cat", ["sat", "ran", "slept"]).probabilities)
        == 3
    )


def test_mistakes_are_told(tuned, tmp_path):
    place, _ = tuned

    def refused(*changes: str) -> str:
        with pytest.raises((RecipeError, DataError)) as caught:
            train(str(place / "recipe.toml"), changes, out=tmp_path / "no", start_from=place / "body")
        return str(caught.value)

    for setting in ("data.doc_stride=9", 'data.label_column="x"', "data.both_orders=true"):
        assert "is not a setting of train.objective 'multiple_choice'" in refused(setting)
    told = refused("train.seq_len=5")
    assert "train.jsonl:1, choice 1: has 9 tokens and train.seq_len allows 5" in told
    assert "0.01 of 16 questions is none; give more of them" in refused("data.validation_fraction=0.01")
    assert "data.split is not a setting of train.objective" in refused('data.split="hash"')
    twice = refused(f'data.validation="{place}/train.jsonl"', "data.validation_fraction=0.1")
    assert "train.jsonl: is both a training and a validation file" in twice
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/link.jsonl").symlink_to(place / "train.jsonl")
    for name in "ab":  # links in circles
        (tmp_path / "folder" / name).symlink_to(tmp_path)
    for held_out in (tmp_path / "folder", tmp_path / "f*r", tmp_path / "**/*.jsonl"):
        twice = refused(f'data.validation="{held_out}"', "data.validation_fraction=0.1")
        assert "link.jsonl: is both a training and a validation file" in twice
    (tmp_path / "val.jsonl").write_text('{"query": "a cat", "choices": ["sat", "ran"]}\n')
    told = refused(f'data.validation="{tmp_path}/val.jsonl"', "data.validation_fraction=0.1")
    assert "val.jsonl:1: has no answer" in told


@pytest.mark.skipif("WORDLOOM_DATA" not in os.environ, reason="WORDLOOM_DATA is not set")
def test_questions_as_they_are(tuned, tmp_path):
    place, _ = tuned
    changes = ['data.train="copa/eval"', "train.steps=1", 'data.too_long="cut"', "train.evaluate_every=1"]
    result = train(str(place / "recipe.toml"), changes, out=tmp_path / "run", start_from=place / "body")
    assert set(result.metrics) == {"loss", "accuracy"}
