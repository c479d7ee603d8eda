"""Numbers of texts and pairs: a regression head, trained on scored rows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.run.bodies import SHAPE, ends_alike_when_cut_short, loaded, scored_at_the_command, write_body
from torch.nn import functional as F

import wordloom
from wordloom.data import ScoredCorpus
from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.framed import MarkedInputs
from wordloom.data.batches.labelled import LabelBatch
from wordloom.errors import DataError, DataTypeError, RecipeError
from wordloom.models import GPT2Config, TaskConfig, build
from wordloom.objectives import objective
from wordloom.recipe import load_recipe
from wordloom.run import train
from wordloom.run.models.heads.regression import TextRegressor
from wordloom.weights import load_config

PAIRS = [
    ("the cat sat", "a cat sits", 4.5),
    ("the cat sat", "dogs run", 0.25),
    ("dogs run", "a dog ran", 3.0),
    ("a cat", "it rains", 0.0),
] * 4
TEXTS = [text for *pair, _ in PAIRS for text in pair]
RECIPE = """
name = "scored"
seed = 3
[data]
train = "{place}/train.tsv"
text_column = ["one", "two"]
label_column = "alike"
validation_fraction = 0.25
[train]
objective = "regression"
steps = 6
seq_len = 16
batch_size = 4
learning_rate = 3e-3
precision = "fp32"
evaluate_every = 3
save_every = 3
"""


def recipe_in(place: Path) -> str:
    lines = ["one\ttwo\talike", *(f"{a}\t{b}\t{score}" for a, b, score in PAIRS)]
    (place / "train.tsv").write_text("\n".join(lines) + "\n")
    (place / "recipe.toml").write_text(RECIPE.format(place=place))
    return str(place / "recipe.toml")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    place = tmp_path_factory.mktemp("regression")
    write_body(place / "body", TEXTS)
    result = train(recipe_in(place), out=place / "run", start_from=place / "body")
    return place, result


def test_scores_are_learnt_and_said(tuned):
    place, result = tuned
    assert set(result.metrics) == {"loss", "pearson", "spearman"}
    scorer = loaded(TextRegressor, place / "run")
    pairs = [(a, b) for a, b, _ in PAIRS[:4]]
    found = scorer.score(pairs)
    assert found.shape == (4,)
    np.testing.assert_allclose(found, [float(scorer.score([pair])[0]) for pair in pairs], atol=1e-5)
    corpus = ScoredCorpus(
        sources=str(place / "train.tsv"), validation_fraction=0.25, text=["one", "two"], label="alike"
    )
    scores = scorer.evaluate(corpus.part("validation"))
    assert scores["loss"].value == pytest.approx(np.mean((found - [4.5, 0.25, 3.0, 0.0]) ** 2), rel=1e-4)
    assert {name: scores[name].value for name in scores} == pytest.approx(result.metrics, rel=1e-5)
    ledger = json.loads((place / "run/ledger.json").read_text())
    assert (ledger["train"]["lowest"], ledger["train"]["highest"]) == (0, 4.5)
    assert ledger["validation"]["rows"] == 4
    assert scorer.score([]).shape == (0,)
    with pytest.raises(DataError, match="texts is one string"):
        scorer.score("a text")
    with pytest.raises(DataTypeError, match="texts must be a list of strings, not None"):
        scorer.score(None)
    with pytest.raises(DataTypeError, match=r"texts\[1\] must be a str or tuple or list, not None"):
        scorer.score(["a text", None])


def test_a_table_of_a_header_alone_is_named(tuned, tmp_path):
    place, _ = tuned
    (tmp_path / "header.tsv").write_text("one\ttwo\talike\n")
    rows = [f"data.validation={tmp_path}/header.tsv", "data.validation_fraction=0.1"]
    with pytest.raises(DataError, match=r"header\.tsv': there are no rows; give at least one"):
        train(recipe_in(tmp_path), rows, out=tmp_path / "run", start_from=place / "body")
    corpus = ScoredCorpus(
        sources=str(place / "train.tsv"), validation_fraction=0.01, text="one", label="alike"
    )
    with pytest.raises(DataError, match=r"train\.tsv': the validation part has no rows \(tail: 0\.01 of"):
        wordloom.load(place / "run").evaluate(corpus.part("validation"))


def test_all_rows_of_a_corpus_are_scored_unless_a_part_is_asked_for(tuned):
    place, _ = tuned
    scorer = wordloom.load(place / "run")
    corpus = ScoredCorpus(
        sources=place / "train.tsv", validation_fraction=0.25, text=["one", "two"], label="alike"
    )
    whole, first, last = (
        scorer.evaluate(some).counts["rows"]
        for some in (corpus, corpus.part("train"), corpus.part("validation"))
    )
    assert whole == first + last == scorer.evaluate(corpus).counts["rows"]
    assert last > 0


def test_what_the_recipe_holds_out_is_scored_at_the_command(tuned):
    place, result = tuned
    scores = scored_at_the_command(place / "run")
    assert scores["loss"] == pytest.approx(result.metrics["loss"], rel=1e-5)
    given = ("--text-column", "one,two", "--label-column", "alike")
    assert set(scored_at_the_command(place / "run", place / "train.tsv", *given)) == set(result.metrics)


def test_a_run_cut_short_ends_with_the_same_bits(tuned):
    place, _ = tuned
    assert ends_alike_when_cut_short(str(place / "recipe.toml"), place, place / "run")


def test_transformers_reads_a_tuned_folder(tuned):
    transformers = pytest.importorskip("transformers")
    place, _ = tuned
    model = transformers.AutoModelForSequenceClassification.from_pretrained(place / "run").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "run")
    given = tokenizer(*zip(*(pair[:2] for pair in PAIRS[:3]), strict=True), padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = model(**given, labels=torch.tensor([4.5, 0.25, 3.0]))
    assert theirs.logits.shape == (3, 1)
    ours = loaded(TextRegressor, place / "run").score([pair[:2] for pair in PAIRS[:3]])
    np.testing.assert_allclose(ours, theirs.logits[:, 0], rtol=1e-4, atol=1e-5)
    assert float(theirs.loss) == pytest.approx(np.mean((ours - [4.5, 0.25, 3.0]) ** 2), rel=1e-4)


def test_a_causal_model_reads_both_orders(tmp_path):
    transformers = pytest.importorskip("transformers")
    write_body(tmp_path / "body", TEXTS, "gpt2", max_seq_len=32)
    recipe = recipe_in(tmp_path)
    both = ["data.both_orders=true", "train.steps=2", "train.seq_len=32", "train.evaluate_every=2"]
    lm = "train.language_model_weight=0.5"
    train(recipe, [*both, lm], out=tmp_path / "run", start_from=tmp_path / "body")
    scorer = loaded(TextRegressor, tmp_path / "run")
    assert scorer.config.both_orders
    pairs = [(a, b) for a, b, _ in PAIRS[:3]]
    found = scorer.score(pairs)
    np.testing.assert_allclose(found, scorer.score([(b, a) for a, b in pairs]), atol=1e-5)
    # what transformers gives for each order adds up to it, since the head is a product alone
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run").eval()
    mark = scorer.tokenizer.eos_id

    def theirs(*pair: str) -> float:
        ids = [i for text in pair for i in [*scorer.tokenizer.encode(text).ids, mark]]
        ids = ([] if scorer.tokenizer.bos_id is None else [scorer.tokenizer.bos_id]) + ids
        with torch.no_grad():
            return float(model(torch.tensor([ids])).logits)

    assert found[0] == pytest.approx(theirs(*pairs[0]) + theirs(*pairs[0][::-1]), abs=1e-5)
    with pytest.raises(DataError, match="has 1 text, and this model reads two"):
        scorer.score(["one alone"])
    changed = [*both, 'train.objective="classification"', "train.evaluate_every=0"]
    train(recipe, changed, out=tmp_path / "classes", start_from=tmp_path / "body")
    assert load_config(tmp_path / "classes").both_orders
    classifier = wordloom.load(tmp_path / "classes")
    shares = [classifier.probabilities([pair, pair[::-1]]) for pair in pairs]
    np.testing.assert_allclose([one[0] for one in shares], [one[1] for one in shares], atol=1e-5)
    write_body(tmp_path / "bert", TEXTS)
    with pytest.raises(RecipeError, match="both_orders is for a causal model, which a bert is not"):
        train(recipe, both, out=tmp_path / "no", start_from=tmp_path / "bert")


def test_the_loss_is_the_squared_error_of_every_row():
    """Whatever its score: -100, which marks what is not scored elsewhere, is a number here."""
    config = TaskConfig(
        body=GPT2Config(vocab_size=20, **SHAPE), task="regression", language_model=True, both_orders=True
    )
    model = build(config, generator=torch.Generator().manual_seed(1)).eval()
    tokens = torch.tensor([[[1, 2, 3], [3, 2, 1]], [[4, 5, 0], [5, 4, 0]]])
    attend = tokens != 0
    batch = LabelBatch(MarkedInputs(tokens, None, attend), torch.tensor([1.5, float(IGNORE)]))
    loss = objective("regression")(model, batch)
    wanted = ((model(tokens, None, attend) - batch.targets) ** 2).sum()
    torch.testing.assert_close(loss.total, wanted)
    assert int(loss.count) == 2
    beside = objective("regression", language_model_weight=0.5)(model, batch)
    torch.testing.assert_close(beside.total[0], wanted)
    rows = tokens.flatten(0, 1)
    following = torch.where(rows[:, 1:] == 0, IGNORE, rows[:, 1:])
    nats = F.cross_entropy(
        model.body(rows)[:, :-1].flatten(0, 1), following.flatten(), ignore_index=IGNORE, reduction="sum"
    )
    torch.testing.assert_close(beside.total[1], 0.5 * nats)
    assert beside.count.tolist() == [2, 6]


@pytest.mark.parametrize("setting", ["data.both_orders=true", "train.language_model_weight=0.5"])
def test_settings_of_one_vector_of_a_text_are_refused_elsewhere(setting):
    with pytest.raises(RecipeError, match=rf"{setting.split('=')[0]} is not a setting of .*'causal_lm'"):
        load_recipe("quickstart", [setting])


def test_mistakes_are_told(tuned, tmp_path):
    place, _ = tuned

    def refused(*changes: str) -> str:
        with pytest.raises((RecipeError, DataError)) as caught:
            train(str(place / "recipe.toml"), changes, out=tmp_path / "no", start_from=place / "body")
        return str(caught.value)

    for setting in ("data.max_query=9", 'data.separator="x"', "train.label_smoothing=0.1"):
        assert "is not a setting of train.objective 'regression'" in refused(setting)
    assert "'score'" in refused('data.label_column="score"')
    (tmp_path / "val.tsv").write_text("one\ttwo\talike\na cat\tdogs run\tmuch\n")
    told = refused(f'data.validation="{tmp_path}/val.tsv"', "data.validation_fraction=0.1")
    assert "val.tsv:2" in told
    assert "'much'" in told


@pytest.mark.skipif("WORDLOOM_DATA" not in os.environ, reason="WORDLOOM_DATA is not set")
def test_sts_b_is_learnt_as_it_is(tuned, tmp_path):
    place, _ = tuned
    changes = ['data.train="glue-stsb/dev"', "data.validation_fraction=0.01", "data.text_column=none"]
    few = ["data.label_column=none", "train.steps=1", 'data.too_long="cut"', "train.evaluate_every=1"]
    result = train(
        str(place / "recipe.toml"), [*changes, *few], out=tmp_path / "run", start_from=place / "body"
    )
    ledger = json.loads((tmp_path / "run/ledger.json").read_text())
    assert [ledger[part]["rows"] for part in ("train", "validation")] == [1485, 15]
    assert (ledger["train"]["lowest"], ledger["train"]["highest"]) == (0, 5)
    assert set(result.metrics) == {"loss", "pearson", "spearman"}
