"""A bag of words through the door that every model comes through: train, stop, resume, load, use."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import cosine_similarity

import wordloom
from wordloom.data.rows.labelled import labelled_rows
from wordloom.errors import CheckpointError, DataError, DeviceError, RecipeError, WordloomError
from wordloom.run import LanguageModel, TextClassifier, load_as, train

WORDS = {
    "sport": ["goal", "team", "match", "ball", "won"],
    "food": ["soup", "bread", "salt", "oven", "ate"],
    "law": ["court", "judge", "rule", "claim", "sued"],
}
COMMON = ["the", "a", "of", "and", "was", "The", "in", "it"]
TIMING = {"seconds", "seconds_left", "tokens_per_second", "data_wait_share", "memory_mb"}

RECIPE = """
seed = 5
[data]
train = "{folder}/train.tsv"
validation = "{folder}/dev.tsv"
[tokenizer]
kind = "word"
split = "whitespace"
lower = true
[model]
family = "bag_of_words"
[train]
steps = 60
objective = "classification"
optimizer = "lbfgs"
l2 = 1e-3
device = "cpu"
log_every = 3
evaluate_every = 4
save_every = 5
"""
ADAMW = [
    *("train.optimizer=adamw", "train.l2=1e-4", "train.batch_size=48", "train.micro_batch_size=20"),
    *("train.learning_rate=0.05", "train.weight_decay=0.01", "train.ema=0.9", "train.steps=24"),
]


def sentence(draw: random.Random, label: str) -> str:
    words = [draw.choice(WORDS[label] if draw.random() < 0.25 else COMMON) for _ in range(12)]
    words += draw.choices(WORDS[draw.choice(list(WORDS))], k=2)  # noise
    draw.shuffle(words)
    return " ".join(words)


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    draw = random.Random(3)
    for name, n in (("train", 300), ("dev", 90)):
        lines = ["text\tlabel"]
        for _ in range(n):
            label = draw.choice(list(WORDS))
            lines.append(f"{sentence(draw, label)}\t{label}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def recipe(rows, tmp_path) -> Path:
    path = tmp_path / "bag.toml"
    path.write_text(RECIPE.format(folder=rows))
    return path


def lines(folder: Path) -> list[dict]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMING} for row in found]


def texts_and_labels(path) -> tuple[list[str], list[str]]:
    found = list(labelled_rows(path))
    return [row.texts[0] for row in found], [str(row.label) for row in found]


@pytest.mark.parametrize("features", ["tfidf", "binary", "counts"])
def test_it_finds_what_scikit_learn_finds(recipe, rows, tmp_path, features):
    n, strength = 300, 2.0
    result = train(
        recipe,
        [f"model.features={features}", f"train.l2={1 / (strength * n)}", "train.tolerance=1e-5",
         "train.steps=300"],
        out=tmp_path / "run",
    )  # fmt: skip
    assert not result.stopped
    assert result.step < 300  # it converged
    texts, labels = texts_and_labels(rows / "train.tsv")
    dev_texts, dev_labels = texts_and_labels(rows / "dev.tsv")
    kind = TfidfVectorizer if features == "tfidf" else CountVectorizer
    peer = kind(token_pattern=r"\S+", **({"binary": True} if features == "binary" else {}))
    theirs = LogisticRegression(C=strength, tol=1e-8, max_iter=1000).fit(peer.fit_transform(texts), labels)
    classifier = wordloom.load(result.folder)
    assert classifier.labels == tuple(theirs.classes_) == ("food", "law", "sport")
    expected = theirs.predict_proba(peer.transform(dev_texts))
    np.testing.assert_allclose(classifier.probabilities(dev_texts), expected, atol=2e-3)
    accuracy = np.mean(
        [p.label == label for p, label in zip(classifier.predict(dev_texts), dev_labels, strict=True)]
    )
    assert result.metrics["accuracy"] == pytest.approx(accuracy)
    assert accuracy == theirs.score(peer.transform(dev_texts), dev_labels) > 0.6
    ours = classifier.vectorize(dev_texts)
    order = [peer.vocabulary_[term] for term in classifier.vectorizer.terms]
    assert abs(ours - peer.transform(dev_texts)[:, order]).max() < 1e-6  # the idf went through the disk


def test_a_finished_folder(recipe, tmp_path):
    run = train(recipe, out=tmp_path / "run").folder
    for name in ("config.json", "model.safetensors", "vocabulary.json", "recipe.toml", "metrics.jsonl",
                 "ledger.json"):  # fmt: skip
        assert (run / name).is_file(), name
    assert not (run / "tokenizer.json").exists()
    kinds = [row["kind"] for row in lines(run)]
    assert {"train", "evaluate"} == set(kinds)
    figures = [row for row in lines(run) if row["kind"] == "evaluate"]
    assert figures[-1]["accuracy"] > 0.6
    assert figures[-1]["loss"] < 0.5 < np.log(3)
    ledger = json.loads((run / "ledger.json").read_text())
    assert ledger["train"]["rows"] == 300
    assert sum(ledger["train"]["labels"].values()) == 300
    assert ledger["validation"]["rows"] == 90
    assert ledger["train"]["unknown"] == 0


def stopped_at(step: int, recipe, settings, out, monkeypatch):
    """A run that is stopped after ``step``, as by Ctrl-C."""
    from wordloom.training import Trainer

    whole = Trainer.train_step

    def train_step(self):
        record = whole(self)
        if self.step == step:
            self.stop()
        return record

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", train_step)
        return train(recipe, settings, out=out)


@pytest.mark.parametrize("settings", [[], ["train.micro_batch_size=70"], ADAMW], ids=["full", "cut", "adamw"])
def test_stopped_and_resumed_ends_like_one_left_alone(recipe, tmp_path, monkeypatch, settings):
    straight = train(recipe, settings, out=tmp_path / "straight")
    stopped = stopped_at(7, recipe, settings, tmp_path / "resumed", monkeypatch)
    assert stopped.stopped
    assert stopped.step == 7
    resumed = train(recipe, settings, out=tmp_path / "resumed", resume=True)
    assert (resumed.step, resumed.stopped) == (straight.step, False)
    assert lines(straight.folder) == lines(resumed.folder)
    last = f"checkpoints/step-{straight.step}"
    for name in ("model.safetensors", "vocabulary.json", f"{last}/model.safetensors",
                 f"{last}/trainer/state.safetensors"):  # fmt: skip
        assert (straight.folder / name).read_bytes() == (resumed.folder / name).read_bytes(), name
    again = train(recipe, settings, out=tmp_path / "resumed", resume=True)
    assert again.step == straight.step


def test_a_run_ended_early_holds_the_best_point_and_not_the_one_being_tried(recipe, tmp_path):
    run = train(recipe, ["train.steps=6", "train.evaluate_every=2"], out=tmp_path / "run").folder
    last = [row for row in lines(run) if row["kind"] == "evaluate"][-1]
    texts, labels = texts_and_labels(wordloom.load_recipe(recipe).data.validation)
    classifier = wordloom.load(run)
    numbers = [classifier.labels.index(label) for label in labels]
    chosen = classifier.probabilities(texts)[range(len(texts)), numbers]
    assert -np.log(chosen).mean() == pytest.approx(last["loss"], rel=1e-9)
    tried = wordloom.load(run / "checkpoints" / "step-6")
    assert not torch.equal(tried.model.classifier.weight, classifier.model.classifier.weight)


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_a_tokenizers_tokens_as_words(recipe, tmp_path, kind):
    changes = [f"tokenizer.kind={kind}", "tokenizer.split=none", "train.steps=15", "model.max_ngram=2"]
    changes += ["tokenizer.vocab_size=300"] if kind == "bpe" else []
    run = train(recipe, changes, out=tmp_path / "run").folder
    assert (run / "tokenizer.json").is_file()
    classifier = wordloom.load(run)
    assert classifier.tokenizer.kind == kind
    assert any(len(term) > 1 and " " in term for term in classifier.vectorizer.terms)
    assert classifier.predict(["goal team match"])[0].label == "sport"


def test_from_a_checkpoint(recipe, rows, tmp_path, capsys):
    first = train(recipe, out=tmp_path / "first")
    bare = tmp_path / "bare.toml"
    text = recipe.read_text()
    bare.write_text(text[: text.index("[model]")] + text[text.index("[train]") :])
    second = train(bare, ["train.steps=2", f"data.train={rows / 'dev.tsv'}"], out=tmp_path / "second",
                   start_from=first.folder)  # fmt: skip
    a, b = wordloom.load(first.folder), wordloom.load(second.folder)
    assert a.vectorizer.terms == b.vectorizer.terms
    assert torch.equal(a.model.idf, b.model.idf)
    with pytest.raises(CheckpointError, match="features 'tfidf', the model has 'binary'"):
        train(recipe, ["model.features=binary"], out=tmp_path / "third", start_from=first.folder)


def test_nearest_documents(recipe, rows, tmp_path):
    classifier = wordloom.load(train(recipe, ["train.steps=5"], out=tmp_path / "run").folder)
    texts, _ = texts_and_labels(rows / "dev.tsv")
    query = "the judge of the court sued the team"
    found = classifier.nearest(query, texts, topn=7)
    cosines = cosine_similarity(classifier.vectorize([query]), classifier.vectorize(texts))[0]
    assert [n.index for n in found] == np.argsort(-cosines, kind="stable")[:7].tolist()
    assert [n.similarity for n in found] == pytest.approx(cosines[[n.index for n in found]])
    assert classifier.nearest(query, classifier.vectorize(texts), topn=7) == found
    assert classifier.nearest(texts[4], texts, topn=1)[0].similarity == pytest.approx(1.0)
    assert classifier.nearest("zebra", texts) == []
    assert [n.index for n in classifier.nearest("goal", ["soup", "goal goal", ""])] == [1]
    with pytest.raises(DataError, match="topn 0"):
        classifier.nearest(query, texts, topn=0)
    with pytest.raises(DataError, match="features, the model"):
        classifier.nearest(query, classifier.vectorize(texts)[:, :3])


def test_top_words_of_each_label(recipe, tmp_path):
    classifier = wordloom.load(train(recipe, out=tmp_path / "run").folder)
    words = classifier.top_words(5)
    assert {label: {word for word, _ in found} for label, found in words.items()} == {
        label: set(own) for label, own in WORDS.items()
    }
    for found in words.values():
        weights = [weight for _, weight in found]
        assert weights == sorted(weights, reverse=True)
        assert weights[-1] > 0
    assert len(classifier.top_words(10_000)["law"]) == len(classifier.vectorizer)


def test_saved_again_it_is_the_same(recipe, tmp_path):
    classifier = wordloom.load(train(recipe, ["train.steps=5"], out=tmp_path / "run").folder)
    classifier.save_pretrained(tmp_path / "copy")
    wordloom.save(classifier, tmp_path / "other")
    for name in ("copy", "other"):
        for file in ("model.safetensors", "vocabulary.json", "config.json"):
            assert (tmp_path / name / file).read_bytes() == (tmp_path / "run" / file).read_bytes()
    with pytest.raises(CheckpointError, match="already holds files of a checkpoint"):
        classifier.save_pretrained(tmp_path / "copy")


def test_texts_are_lists(recipe, tmp_path):
    classifier = wordloom.load(train(recipe, ["train.steps=2"], out=tmp_path / "run").folder)
    for use in (classifier.predict, classifier.vectorize):
        with pytest.raises(DataError, match="texts is one string"):
            use("one text")
        with pytest.raises(DataError, match=r"texts\[1\] must be a str.*, not None"):
            use(["one text", None])
    assert classifier.predict([]) == []
    assert classifier.probabilities([""]).sum() == pytest.approx(1.0)


def test_each_kind_of_model_has_its_own_door(recipe, tmp_path):
    run = train(recipe, ["train.steps=2"], out=tmp_path / "run").folder
    with pytest.raises(CheckpointError, match=r"needs a causal language model; try `wordloom predict"):
        load_as(LanguageModel, run)
    with pytest.raises(DeviceError, match="computes in fp32, not in bf16"):
        load_as(TextClassifier, run, dtype="bf16")
    (run / "vocabulary.json").write_text(
        json.dumps({"split": "words", "lower": False, "max_ngram": 1, "terms": ["a"]})
    )
    with pytest.raises(CheckpointError, match="they do not belong together"):
        wordloom.load(run)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["model.family=seq2seq"], "'seq2seq' is not a classifier; allowed: bag_of_words"),
        (["model.family=bag_of_word"], "'bag_of_word' is unknown; did you mean 'bag_of_words'"),
        (["model.features=tf-idf"], "did you mean 'tfidf'"),
        (["model.vocab_size=7"], "model.vocab_size is decided by the training rows"),
        (["tokenizer.special_tokens=['<x>']"], "a bag of words has none"),
        (["tokenizer.min_frequency=10000"], "leaves no word of"),
        (["data.label_column=lable"], r"train\.tsv:1: no column 'lable'.*did you mean 'label'"),
        (["data.text_column=1", "data.label_column=7"], "has 2 fields and no column 7"),
        (["data.train=nowhere.tsv"], "no table or named data set 'nowhere.tsv'"),
        (["data.train=glue-rte/train"], "has 2 texts; this model reads one"),
        (["data.encoding_errors=bytes"], "is for running text"),
        (["data.train=-.csv"], "standard input only once; name a file"),
        (["train.precision=bf16", "train.optimizer=adamw"], "trains in fp32"),
        (["train.keep_best=true"], "whose loss only falls"),
        (["train.seq_len=64"], "train.seq_len is not a setting of model.family 'bag_of_words'"),
        (["data.specials=text"], r"data\.specials is not a setting of"),
    ],
)
def test_mistakes_are_one_clear_line(recipe, tmp_path, overrides, says):
    if "glue" in overrides[0] and not os.environ.get("WORDLOOM_DATA"):
        pytest.skip("WORDLOOM_DATA is not set")
    with pytest.raises(WordloomError, match=says) as caught:
        train(recipe, overrides, out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_label_unseen_in_training_is_named_with_its_line(recipe, rows, tmp_path):
    other = tmp_path / "other.tsv"
    other.write_text("text\tlabel\nthe goal\tsport\nthe soup\tfoood\n")
    where = r"other\.tsv:3, column 'label'"
    says = f"{where}: the label 'foood' was not seen in training; did you mean 'food'"
    with pytest.raises(DataError, match=says):
        train(recipe, [f"data.validation={other}"], out=tmp_path / "run")


def test_a_share_of_the_rows_can_be_held_out(recipe, tmp_path):
    changes = ["data.validation=none", "data.split=hash", "data.validation_fraction=0.25", "train.steps=3"]
    run = train(recipe, changes, out=tmp_path / "run").folder
    ledger = json.loads((run / "ledger.json").read_text())
    assert ledger["train"]["rows"] + ledger["validation"]["rows"] == 300
    assert 40 < ledger["validation"]["rows"] < 110


def test_resume_refuses_other_rows(recipe, rows, tmp_path):
    mine = tmp_path / "mine.tsv"
    mine.write_text((rows / "train.tsv").read_text())
    changes = [f"data.train={mine}", f"data.validation={rows / 'dev.tsv'}", "train.steps=3"]
    train(recipe, changes, out=tmp_path / "run")
    mine.write_text(mine.read_text() + "the goal\tsport\n")
    with pytest.raises(CheckpointError, match="the training text is not the one"):
        train(recipe, changes, out=tmp_path / "run", resume=True)


def test_minutes_and_epochs_are_budgets_too(recipe, tmp_path):
    quiet = ["train.evaluate_every=0", "train.tolerance=0"]
    epochs = train(recipe, ["train.epochs=4", *quiet], out=tmp_path / "epochs")
    assert epochs.step == 4  # an epoch is a step
    epochs = train(recipe, ["train.epochs=4", *ADAMW[:-1]], out=tmp_path / "more")
    assert epochs.step == 25  # 300 rows in batches of 48
    minutes = train(recipe, ["train.minutes=0.002", *quiet], out=tmp_path / "minutes")
    assert minutes.step == minutes.total_steps >= 1


def test_sst2_is_as_good_as_scikit_learn(tmp_path):
    """The shipped recipe against scikit-learn's defaults on the same split."""
    if not os.environ.get("WORDLOOM_DATA"):
        pytest.skip("WORDLOOM_DATA is not set")
    result = train("bag-of-words-sst2", out=tmp_path / "run")
    texts, labels = texts_and_labels("sst2/train")
    dev_texts, dev_labels = texts_and_labels("sst2/dev")
    for kind in (CountVectorizer, TfidfVectorizer):
        peer = kind()
        theirs = LogisticRegression().fit(peer.fit_transform(texts), labels)
        assert result.metrics["accuracy"] >= theirs.score(peer.transform(dev_texts), dev_labels)
    assert result.metrics["accuracy"] == pytest.approx(0.7936, abs=0.004)
    with pytest.raises(RecipeError, match="reads all samples"):
        wordloom.load_recipe("bag-of-words-sst2", ["train.objective=causal_lm"])
