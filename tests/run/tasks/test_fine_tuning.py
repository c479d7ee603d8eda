"""A pretrained body with a head, trained on labelled texts and pairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.run import bodies
from tests.run.bodies import SHAPE
from torch.nn import functional as F
from typer.testing import CliRunner

import wordloom
from wordloom.cli import app
from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.framed import MarkedInputs
from wordloom.data.batches.labelled import LabelBatch
from wordloom.errors import CheckpointError, ConfigError, DataError, RecipeError
from wordloom.models import GPT2Config, TaskConfig, build
from wordloom.objectives import objective
from wordloom.run import train
from wordloom.weights import load_config, load_model

ROWS = [("the cat sat", "yes"), ("a dog ran far", "no"), ("the cat slept", "yes"), ("dogs run", "no")] * 4
PAIRS = [("the cat sat", "a cat sits", "same"), ("the cat sat", "dogs run", "other")] * 8
RECIPE = """
name = "tuned"
seed = 3
[data]
train = "{place}/train.tsv"
{columns}
split = "tail"
validation_fraction = 0.25
[train]
objective = "classification"
steps = 6
seq_len = 16
batch_size = 4
learning_rate = 3e-3
precision = "fp32"
evaluate_every = 3
save_every = 3
"""


TEXTS = [text for text, _ in ROWS] + [text for *pair, _ in PAIRS for text in pair]


def write_body(folder: Path, kind: str = "bert") -> None:
    bodies.write_body(folder, TEXTS, kind)


def recipe_in(place: Path, *, pairs: bool = False) -> str:
    rows = PAIRS if pairs else ROWS
    columns = ["one", "two", "label"] if pairs else ["text", "label"]
    lines = ["\t".join(columns), *("\t".join(row) for row in rows)]
    (place / "train.tsv").write_text("\n".join(lines) + "\n")
    named = 'text_column = ["one", "two"]' if pairs else ""
    (place / "recipe.toml").write_text(RECIPE.format(place=place, columns=named))
    return str(place / "recipe.toml")


@pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2"])
@pytest.mark.parametrize("pairs", [False, True])
def test_every_body_is_tuned_and_read_again(tmp_path, kind, pairs):
    write_body(tmp_path / "body", kind)
    recipe = recipe_in(tmp_path, pairs=pairs)
    result = train(recipe, out=tmp_path / "run", start_from=tmp_path / "body")
    assert {"loss", "accuracy"} <= set(result.metrics) <= {"loss", "accuracy", "f1", "matthews"}
    config = load_config(tmp_path / "run")
    assert isinstance(config, TaskConfig)
    assert config.labels == (("other", "same") if pairs else ("no", "yes"))
    classifier = wordloom.load(tmp_path / "run")
    texts = [tuple(pair) for *pair, _ in PAIRS[:2]] if pairs else [text for text, _ in ROWS[:4]]
    alone = [classifier.predict([text])[0] for text in texts]
    for one, other in zip(classifier.predict(texts), alone, strict=True):
        assert one.label == other.label
        assert one.probability == pytest.approx(other.probability, abs=1e-5)
    before, after = (
        load_file(tmp_path / "body/model.safetensors"),
        load_file(tmp_path / "run/model.safetensors"),
    )
    moved = [name for name in before.keys() & after.keys() if not torch.equal(before[name], after[name])]
    assert moved  # the body learns, too
    # what was learnt goes on: the same head, or another
    again = train(recipe, ["train.steps=1"], out=tmp_path / "again", start_from=tmp_path / "run")
    assert again.step == 1


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_tuned_body_goes_on_learning_its_language(tmp_path, kind, capsys):
    write_body(tmp_path / "body", kind)
    train(recipe_in(tmp_path), ["train.steps=1"], out=tmp_path / "tuned", start_from=tmp_path / "body")
    (tmp_path / "text.txt").write_text("\n".join(TEXTS * 20))
    objective = "masked_lm" if kind == "bert" else "causal_lm"
    (tmp_path / "lm.toml").write_text(f"""
[data]
train = "{tmp_path}/text.txt"
validation_fraction = 0.0
[train]
objective = "{objective}"
steps = 1
seq_len = 16
batch_size = 4
learning_rate = 1e-12
precision = "fp32"
""")
    shape = [f"model.{key}={value}" for key, value in {**SHAPE, "vocab_size": 60}.items()]
    tuned = load_model(tmp_path / "tuned").body.state_dict()
    for out, given in (("taken", []), ("told", [*shape, f'model.family="{kind}"'])):
        vocabulary = load_config(tmp_path / "body").vocab_size
        given = [each.replace("vocab_size=60", f"vocab_size={vocabulary}") for each in given]
        train(str(tmp_path / "lm.toml"), given, out=tmp_path / out, start_from=tmp_path / "tuned")
        assert "left out: " in capsys.readouterr().err
        body = load_model(tmp_path / out).state_dict()
        assert all(torch.allclose(body[name], tuned[name], atol=1e-6) for name in body.keys() & tuned.keys())
        assert "blocks.0.attention.q_proj.weight" in body.keys() & tuned.keys()
    wrong = ["train.objective=causal_lm" if kind == "bert" else "train.objective=masked_lm"]
    reason = "'bert' reads texts in both directions|the tokenizer has no mask token"
    with pytest.raises((RecipeError, DataError), match=reason):
        train(str(tmp_path / "lm.toml"), wrong, out=tmp_path / "no", start_from=tmp_path / "tuned")


def test_a_run_cut_short_ends_with_the_same_bits(tmp_path):
    write_body(tmp_path / "body")
    recipe = recipe_in(tmp_path, pairs=True)
    train(recipe, out=tmp_path / "whole", start_from=tmp_path / "body")
    train(recipe, ["train.keep_last=9"], out=tmp_path / "cut", start_from=tmp_path / "body")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "cut" / name).unlink()
    import shutil

    shutil.rmtree(tmp_path / "cut/checkpoints/step-6")
    train(recipe, ["train.keep_last=9"], out=tmp_path / "cut", resume=True, start_from=tmp_path / "body")
    whole, cut = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_a_fresh_body_is_what_the_recipe_says(tmp_path):
    recipe = recipe_in(tmp_path)
    told = ['tokenizer.kind="wordpiece"', "tokenizer.vocab_size=60", "train.steps=2"]
    shape = [f"model.{key}={value}" for key, value in SHAPE.items()]
    train(recipe, [*told, *shape, 'model.family="bert"', "model.head_dropout=0.3"], out=tmp_path / "run")
    config = load_config(tmp_path / "run")
    assert (config.body.dim, config.head_dropout, config.body.pooler) == (16, 0.3, True)
    with pytest.raises(RecipeError, match=r"no \[tokenizer\]: begin with a checkpoint"):
        train(recipe, ['model.family="bert"'], out=tmp_path / "none")


def test_the_auxiliary_loss_is_gpts(tmp_path):
    """L = L_task + weight * L_lm, of the same texts, each a mean over its own items."""
    model = build(
        TaskConfig(
            body=GPT2Config(vocab_size=20, **SHAPE), id2label={"0": "a", "1": "b"}, language_model=True
        )
    ).eval()
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])
    attend = torch.tensor([[True] * 4, [True, True, False, False]])
    batch = LabelBatch(MarkedInputs(tokens, None, attend), torch.tensor([1, 0]))
    loss = objective("classification", language_model_weight=0.5)(model, batch)
    alone = objective("classification")(model, batch)
    torch.testing.assert_close(loss.total[0], alone.total)
    logits = model.body(tokens)
    targets = torch.tensor([[2, 3, 4, IGNORE], [6, IGNORE, IGNORE, IGNORE]])
    wanted = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")
    torch.testing.assert_close(loss.total[1], 0.5 * wanted)
    assert loss.count.tolist() == [2, 4]
    write_body(tmp_path / "body", "gpt2")
    recipe = recipe_in(tmp_path)
    weight = "train.language_model_weight=0.5"
    train(recipe, [weight, "train.steps=2"], out=tmp_path / "run", start_from=tmp_path / "body")
    assert load_config(tmp_path / "run").language_model
    assert load_model(tmp_path / "run").has_lm_head
    with pytest.raises(RecipeError, match=r"language_model_weight.*less than or equal to 1"):
        train(recipe, ["train.language_model_weight=1.5"], out=tmp_path / "no", start_from=tmp_path / "body")
    write_body(tmp_path / "bert")
    with pytest.raises(RecipeError, match="is for a causal model, which a bert is not"):
        train(recipe, [weight], out=tmp_path / "no", start_from=tmp_path / "bert")


def test_mistakes_are_told(tmp_path):
    write_body(tmp_path / "body")
    recipe = recipe_in(tmp_path)

    def refused(*changes: str) -> str:
        with pytest.raises((ConfigError, RecipeError, DataError, CheckpointError)) as caught:
            train(recipe, changes, out=tmp_path / "no", start_from=tmp_path / "body", force=True)
        return str(caught.value)

    assert "rows of 17 tokens are longer than model.max_seq_len 16" in refused("train.seq_len=17")
    assert "has dim 16, the model has 32" in refused("model.dim=32")
    assert "holds a bert, and model.family is 'gpt2'" in refused('model.family="gpt2"')
    assert "train.seq_len allows 3" in refused("train.seq_len=3")
    (tmp_path / "val.tsv").write_text("text\tlabel\nthe cat\tperhaps\n")
    validation = (f'data.validation="{tmp_path}/val.tsv"', "data.validation_fraction=0.1")
    assert "'perhaps'" in refused(*validation)
    assert f"{tmp_path}/val.tsv" in refused(*validation)
    (tmp_path / "val.tsv").write_text("text\tlabel\n")
    assert f"'{tmp_path}/val.tsv': there are no rows" in refused(*validation)
    assert f"'{tmp_path}/val.tsv': there are no rows" in refused(
        f'data.train="{tmp_path}/val.tsv"', "data.validation_fraction=0", "train.evaluate_every=0"
    )
    (tmp_path / "val.tsv").write_text("text\tlabel\n \tyes\n")
    assert "val.tsv:2, column 'text': the text is empty" in refused(*validation)
    assert "data.validation: rows are read more than once" in refused('data.validation="-"', validation[1])
    assert "model.pooler is decided by train.objective 'classification'" in refused("model.pooler=false")
    assert "'num_labels'; the labels are read from the training rows" in refused("model.num_labels=3")
    (tmp_path / "own.tsv").write_text("text\tlabel\nyes\tthe cat\nno\ta dog\nyes\tdogs\n")
    own = (f'data.train="{tmp_path}/own.tsv"', "data.validation_fraction=0", "train.evaluate_every=0")
    assert "each of the 3 training rows has a label of its own" in refused(*own)


def test_what_is_held_out_is_read_as_in_training(tmp_path):
    """Also at the command: cut at train.seq_len, of a model that reads more."""
    write_body(tmp_path / "body")
    short = ["train.seq_len=4", 'data.too_long="cut"']
    result = train(recipe_in(tmp_path), short, out=tmp_path / "run", start_from=tmp_path / "body")
    scores = bodies.scored_at_the_command(tmp_path / "run")
    told = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run")]).stdout
    assert "rows are longer than the limit and lost their end" in told
    assert scores["loss"] == pytest.approx(result.metrics["loss"], rel=1e-6)
    assert json.loads((tmp_path / "run/ledger.json").read_text())["validation"]["cut"] > 0


def test_transformers_reads_a_tuned_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    write_body(tmp_path / "body")
    train(recipe_in(tmp_path, pairs=True), out=tmp_path / "run", start_from=tmp_path / "body")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    pairs = [tuple(pair) for *pair, _ in PAIRS[:2]]
    given = tokenizer([a for a, _ in pairs], [b for _, b in pairs], padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = model(**given).logits.softmax(-1)
    ours = wordloom.load(tmp_path / "run").probabilities(pairs)
    torch.testing.assert_close(torch.from_numpy(ours).float(), theirs, rtol=1e-4, atol=1e-5)
    told = json.loads((tmp_path / "run/config.json").read_text())
    assert told["architectures"] == ["BertForSequenceClassification"]
    assert told["label2id"] == {"other": 0, "same": 1}
