"""A classifier of sequences through the door of every model: train, stop, resume, load, use."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.run.test_train import lines
from typer.testing import CliRunner

import wordloom
from wordloom.cli import app
from wordloom.data.rows.labelled import LabelledCorpus, labelled_rows
from wordloom.errors import CheckpointError, ConfigError, DataError, WordloomError
from wordloom.run import TextClassifier, load_as, train

RECIPE = """
seed = 5
[data]
train = "{folder}"
label_column = "file"
split = "hash"
validation_fraction = 0.25
[tokenizer]
kind = "char"
[model]
family = "rnn_classifier"
dim = 8
hidden_dim = 12
dropout = 0.1
[train]
objective = "classification"
steps = 45
batch_size = 24
micro_batch_size = 10
learning_rate = 0.02
seq_len = 16
device = "cpu"
precision = "fp32"
log_every = 3
evaluate_every = 4
save_every = 5
"""
ENDS = {"Low": ["ka", "po"], "Middle": ["ki", "pa"], "High": ["ko", "pi"]}


@pytest.fixture(scope="module")
def names(tmp_path_factory) -> Path:
    """Words whose first and last syllables tell their label: Low.txt, Middle.txt, High.txt."""
    folder = tmp_path_factory.mktemp("names")
    draw = random.Random(3)
    for label, (first, last) in ENDS.items():
        words = {first + "".join(draw.choices("aiokp", k=draw.randrange(6))) + last for _ in range(90)}
        (folder / f"{label}.txt").write_text("\n".join(sorted(words)) + "\n")
    return folder


@pytest.fixture
def recipe(names, tmp_path) -> Path:
    path = tmp_path / "names.toml"
    path.write_text(RECIPE.format(folder=names))
    return path


def test_a_finished_folder(recipe, names, tmp_path):
    result = train(recipe, out=tmp_path / "run")
    run = result.folder
    ledger = json.loads((run / "ledger.json").read_text())
    rows = list(labelled_rows(names, label="file"))
    assert ledger["train"]["rows"] + ledger["validation"]["rows"] == len(rows)
    assert ledger["train"]["unit"] == "tokens"
    figures = [row for row in lines(run) if row["kind"] == "evaluate"]
    assert figures[0]["accuracy"] < 0.7 < 0.9 < figures[-1]["accuracy"]
    assert "|texts:to-16|" in figures[-1]["signature"]
    train_losses = [row["loss"] for row in lines(run) if row["kind"] == "train"]
    assert train_losses[0] == pytest.approx(np.log(3), rel=0.1)
    classifier = wordloom.load(run)
    assert classifier.labels == ("High", "Low", "Middle")
    assert classifier.tokenizer.kind == "char"
    assert classifier.predict(["kapo", "kipa", "kopi"])[1].label == "Middle"
    assert classifier.predict([]) == []
    assert classifier.probabilities([""]).sum() == pytest.approx(1.0)


def test_its_figures_are_those_of_its_probabilities(recipe, tmp_path):
    result = train(recipe, out=tmp_path / "run")
    classifier = load_as(TextClassifier, tmp_path / "run")
    from wordloom.recipe import load_recipe
    from wordloom.run.prepare import corpus_of

    corpus = corpus_of(load_recipe(tmp_path / "run"), LabelledCorpus)
    rows = list(corpus.rows("validation"))
    found = classifier.probabilities([row.texts[0] for row in rows])
    for at in (0, 3):  # padded or not, beside whatever other text
        alone = classifier.probabilities([rows[at].texts[0]])
        np.testing.assert_allclose(alone[0], found[at], rtol=1e-5)
    targets = [classifier.labels.index(row.label) for row in rows]
    chosen = found[range(len(rows)), targets]
    assert -np.log(chosen).mean() == pytest.approx(result.metrics["loss"], rel=1e-5)
    assert (found.argmax(1) == targets).mean() == pytest.approx(result.metrics["accuracy"])
    scores = classifier.evaluate(corpus.part("validation"))
    assert scores["accuracy"].value == pytest.approx(result.metrics["accuracy"])
    assert scores["loss"].value == pytest.approx(result.metrics["loss"], rel=1e-6)
    confusion = scores.details["confusion"]
    assert confusion["labels"] == ["High", "Low", "Middle"]
    assert np.trace(confusion["counts"]) == scores.counts["right"]
    assert np.sum(confusion["counts"], axis=1).tolist() == [targets.count(c) for c in range(3)]


@pytest.mark.threads2
@pytest.mark.parametrize(
    "settings", [[], ["model.cell=gru", "model.pooling=max", "train.ema=0.9"], ["train.precision=bf16"]]
)
def test_stopped_and_resumed_ends_like_one_left_alone(recipe, tmp_path, monkeypatch, settings):
    settings = [*settings, "train.steps=12"]
    straight = train(recipe, settings, out=tmp_path / "straight")

    from wordloom.training.hooks import Log

    write = Log.write

    def stop_at_six(self, trainer, line):
        write(self, trainer, line)
        if line["step"] == 6:
            trainer.stop()

    with monkeypatch.context() as patch:
        patch.setattr(Log, "write", stop_at_six)
        stopped = train(recipe, settings, out=tmp_path / "resumed")
    assert (stopped.stopped, stopped.step) == (True, 6)
    resumed = train(recipe, settings, out=tmp_path / "resumed", resume=True)
    assert lines(straight.folder) == lines(tmp_path / "resumed")
    last = f"checkpoints/step-{resumed.step}"
    for name in ("model.safetensors", f"{last}/trainer/state.safetensors"):
        assert (straight.folder / name).read_bytes() == (tmp_path / "resumed" / name).read_bytes(), name


def test_micro_batches_add_up_to_the_batch(recipe, tmp_path):
    settings = ["train.steps=5", "model.dropout=0.0"]
    cut = train(recipe, settings, out=tmp_path / "cut").folder
    whole = train(recipe, [*settings, "train.micro_batch_size=none"], out=tmp_path / "whole").folder
    a, b = (wordloom.load(run).model.state_dict() for run in (cut, whole))
    for name, weight in a.items():
        torch.testing.assert_close(weight, b[name], rtol=1e-4, atol=1e-5)


def test_from_a_checkpoint_and_saved_again(recipe, names, tmp_path):
    first = train(recipe, ["train.steps=5"], out=tmp_path / "first").folder
    bare = tmp_path / "bare.toml"
    text = recipe.read_text()
    bare.write_text(text[: text.index("[model]")] + text[text.index("[train]") :])
    second = train(bare, ["train.steps=1"], out=tmp_path / "second", start_from=first).folder
    a, b = wordloom.load(first), wordloom.load(second)
    assert a.tokenizer.fingerprint == b.tokenizer.fingerprint
    assert a.config == b.config
    a.save_pretrained(tmp_path / "copy")
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "copy" / file).read_bytes() == (first / file).read_bytes()
    narrow = load_as(TextClassifier, first, dtype="bf16")
    np.testing.assert_allclose(narrow.probabilities(["kapo"]), a.probabilities(["kapo"]), atol=0.02)


def test_long_texts_are_an_error_or_cut_as_asked(recipe, tmp_path):
    with pytest.raises(DataError, match=r"High\.txt:\d+: has \d tokens and train\.seq_len allows 4"):
        train(recipe, ["train.seq_len=4"], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    cut = ["train.seq_len=4", "data.too_long=cut", "train.steps=1"]
    ledger = json.loads((train(recipe, cut, out=tmp_path / "run").folder / "ledger.json").read_text())
    assert ledger["train"]["cut"] > 20
    assert ledger["train"]["terms"] == 4 * ledger["train"]["rows"]


def test_long_texts_are_scored_as_in_training(recipe, names, tmp_path):
    """Also those of a file; --too-long overrides the recipe, and predictions read whole texts."""
    draw = random.Random(seed := random.randrange(2**32))
    for label, (first, last) in ENDS.items():
        rows = [first + "".join(draw.choices("aiokp", k=draw.randrange(3, 40))) + last for _ in range(60)]
        (tmp_path / f"{label}.txt").write_text("\n".join(rows) + "\n")
    settings = ["data.too_long=cut", "train.steps=6", f"data.train={tmp_path}/*.txt", "train.seq_len=9",
                "data.label_column=file"]  # fmt: skip
    result = train(recipe, settings, out=tmp_path / "run")
    logged = [row for row in lines(result.folder) if row["kind"] == "evaluate"][-1]

    def scored(*given):
        done = CliRunner().invoke(app, ["evaluate", *map(str, (result.folder, *given)), "--json"])
        if done.exit_code:
            raise done.exception
        return json.loads(done.stdout)["scores"]

    for score in scored():
        if score["name"] in ("loss", "accuracy"):
            assert score["value"] == pytest.approx(logged[score["name"]], rel=1e-5), seed
        assert "|texts:to-9|" in score["signature"]
    file = (tmp_path / "High.txt", "--label-column", "file")
    assert scored(*file) == scored(*file, "--too-long", "cut")
    with pytest.raises(DataError, match=r"tokens and train\.seq_len allows 9"):
        scored(*file, "--too-long", "error")

    classifier = load_as(TextClassifier, result.folder)
    text = "ka" + 20 * "i"
    whole, beginning = classifier.probabilities([text, text[:9]])
    assert not np.allclose(whole, beginning)
    with pytest.raises(ConfigError, match="reads texts of any length"):
        classifier.too_long = "cut"


@pytest.mark.parametrize("family", ["rnn_classifier", "bag_of_words"])
def test_rows_that_repeat_another_are_left_out_as_asked(recipe, names, tmp_path, family):
    for label in ENDS:
        (tmp_path / f"{label}.txt").write_text((names / f"{label}.txt").read_text() * 2)
    changes = ["train.steps=1", "data.unique=true", f"model.family={family}", f"data.train={tmp_path}/*.txt",
               "data.label_column=file"]  # fmt: skip
    if family == "bag_of_words":
        changes += ["model.dim=none", "model.hidden_dim=none", "model.dropout=none", "train.seq_len=256"]
    ledger = json.loads((train(recipe, changes, out=tmp_path / "run").folder / "ledger.json").read_text())
    rows = list(labelled_rows(names, label="file"))
    assert sum(part["rows"] for part in ledger.values()) == len(rows)
    assert sum(part["repeated"] for part in ledger.values()) == len(rows)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["model.pooling=lost"], "unknown pooling 'lost'; did you mean 'last'"),
        (["model.features=tfidf"], "unknown setting 'features' of model family 'rnn_classifier'"),
        (["model.vocab_size=7"], "model.vocab_size is decided by the training rows"),
        (["train.optimizer=lbfgs", "train.precision=fp32"], '"lbfgs" is for model.family "bag_of_words"'),
        (["train.attention_backend=flash"], r"attention_backend is not a setting of model.family 'rnn_class"),
        (["data.label_prefix=true"], "label_prefix is not a setting of"),
        (["data.label_column=none"], r'holds no table to read; .* take label_column "file"'),
    ],
)
def test_mistakes_are_one_clear_line(recipe, tmp_path, overrides, says):
    with pytest.raises(WordloomError, match=says) as caught:
        train(recipe, overrides, out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_what_bags_alone_can_do_is_told(recipe, tmp_path):
    run = train(recipe, ["train.steps=1"], out=tmp_path / "run").folder
    classifier = wordloom.load(run)
    for use in (lambda: classifier.top_words(3), lambda: classifier.nearest("ka", ["ka"]),
                lambda: classifier.vectorize(["ka"])):  # fmt: skip
        with pytest.raises(CheckpointError, match=r"run is a rnn_classifier, .* only a bag_of_words has"):
            use()
    with pytest.raises(CheckpointError, match="needs a causal language model; try `wordloom predict"):
        wordloom.run.load_as(wordloom.run.LanguageModel, run)
    other = json.loads((run / "config.json").read_text()) | {"vocab_size": 3}
    (run / "config.json").write_text(json.dumps(other))
    with pytest.raises(CheckpointError):
        wordloom.load(run)
