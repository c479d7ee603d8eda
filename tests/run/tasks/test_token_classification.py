"""Labels of words: a head on every token, trained on tagged texts."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.run.bodies import SHAPE, ends_alike_when_cut_short, loaded, scored_at_the_command, write_body
from torch.nn import functional as F
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.data import tagged_texts
from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.framed import MarkedInputs
from wordloom.data.batches.labelled import LabelBatch
from wordloom.errors import DataError, RecipeError
from wordloom.evaluate import entities
from wordloom.models import BertConfig, TaskConfig, build
from wordloom.objectives import objective
from wordloom.run import train
from wordloom.run.models.heads.token_classification import TokenClassifier, words_of
from wordloom.run.sweep.sweep import sweep

ROWS = [
    [("Anna", "B-PER"), ("Lind", "I-PER"), ("went", "O"), ("to", "O"), ("Oslo", "B-LOC")],
    [("it", "O"), ("rains", "O"), ("in", "O"), ("Rome", "B-LOC")],
    [("Bo", "B-PER"), ("sleeps", "O")],
    [("cats", "O"), ("sleep", "O"), ("in", "O"), ("Oslo", "B-LOC"), (".", "O")],
] * 4
TEXTS = [" ".join(word for word, _ in row) for row in ROWS]
RECIPE = """
name = "tagged"
seed = 3
[data]
train = "{place}/train.conll"
validation_fraction = 0.25
[train]
objective = "token_classification"
steps = 6
seq_len = 16
batch_size = 4
learning_rate = 3e-2
precision = "fp32"
evaluate_every = 3
save_every = 3
"""


def write_rows(path: Path, rows: list[list[tuple[str, str]]]) -> str:
    path.write_text("\n\n".join("\n".join(f"{word} {tag}" for word, tag in row) for row in rows) + "\n")
    return str(path)


def recipe_in(place: Path) -> str:
    write_rows(place / "train.conll", ROWS)
    (place / "recipe.toml").write_text(RECIPE.format(place=place))
    return str(place / "recipe.toml")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    place = tmp_path_factory.mktemp("tagging")
    write_body(place / "body", TEXTS)
    result = train(recipe_in(place), out=place / "run", start_from=place / "body")
    return place, result


def test_labels_are_learnt_and_given(tuned):
    place, result = tuned
    assert set(result.metrics) <= {"loss", "accuracy", "f1"}
    tagger = loaded(TokenClassifier, place / "run")
    assert tagger.labels == ("B-LOC", "B-PER", "I-PER", "O")
    given = list(tagged_texts(str(place / "train.conll")))[:4]  # the last four are these again
    found = tagger.predict([text.words for text in given])
    for text, words in zip(given, found, strict=True):
        assert [(one.start, one.end) for one in words] == text.spans
        for one, other in zip(words, tagger.predict([text.text])[0], strict=True):  # alone, and divided here
            assert other[:2] == one[:2]
            assert other.probability == pytest.approx(one.probability, abs=1e-5)
    scores = tagger.evaluate(given)
    right = [tag for text in given for tag in text.labels]
    taken = [one.label for words in found for one in words]
    assert scores["accuracy"].value == np.mean([a == b for a, b in zip(right, taken, strict=True)])
    hits = sum(len({*entities(text.labels)} & {*entities([one.label for one in words])})
               for text, words in zip(given, found, strict=True))  # fmt: skip
    there = sum(len(entities(text.labels)) + len(entities([one.label for one in words]))
                for text, words in zip(given, found, strict=True))  # fmt: skip
    assert scores["entity_f1"].value == pytest.approx(2 * hits / there)
    named = {"loss": scores["loss"].value, "accuracy": scores["accuracy"].value}
    assert {**named, "f1": scores["entity_f1"].value} == pytest.approx(result.metrics, rel=1e-5)
    assert tagger.predict([]) == []
    ledger = json.loads((place / "run/ledger.json").read_text())
    assert ledger["train"]["labels"] == {"B-LOC": 9, "B-PER": 6, "I-PER": 3, "O": 30}


def test_what_the_recipe_holds_out_is_scored_at_the_command(tuned):
    place, result = tuned
    scores = scored_at_the_command(place / "run")
    assert scores["loss"] == pytest.approx(result.metrics["loss"], rel=1e-5)


def test_a_sweep_tells_that_words_behind_a_cut_are_not_scored(tuned, tmp_path):
    """Else the shorter rows, with fewer words to be right about, may be called the better ones."""
    place, _ = tuned

    def swept(name, lengths, *settings):
        few = ["train.steps=1", "train.evaluate_every=0", "train.save_every=0", *settings]
        where = {"start_from": place / "body", "out": tmp_path / name}
        return sweep(place / "recipe.toml", {"train.seq_len": lengths}, few, **where)

    assert "texts: to-5, to-16" in swept("cut", [5, 16], "data.too_long=cut").measured_differently
    assert swept("whole", [12, 16]).measured_differently == ""


def test_a_run_cut_short_ends_with_the_same_bits(tuned):
    place, _ = tuned
    assert ends_alike_when_cut_short(str(place / "recipe.toml"), place, place / "run")


def test_transformers_reads_a_tuned_folder(tuned):
    transformers = pytest.importorskip("transformers")
    place, _ = tuned
    model = transformers.AutoModelForTokenClassification.from_pretrained(place / "run").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "run")
    words = [word for word, _ in ROWS[0]]
    given = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        theirs = model(**given).logits[0].softmax(-1)
    firsts = [given.word_ids().index(number) for number in range(len(words))]
    for one, token in zip(loaded(TokenClassifier, place / "run").predict([words])[0], firsts, strict=True):
        assert one.label == model.config.id2label[int(theirs[token].argmax())]
        assert one.probability == pytest.approx(float(theirs[token].max()), abs=1e-5)


def test_long_texts_are_windows_or_cut_as_asked(tuned, tmp_path):
    place, _ = tuned
    long = write_rows(tmp_path / "long.conll", [[pair for row in ROWS for pair in row]])
    tagger = loaded(TokenClassifier, place / "run")
    with pytest.raises(DataError, match=r"text 1.*tokens in 64 words"):
        tagger.predict([next(tagged_texts(long)).words])
    tagger.too_long = "window"
    (text,) = tagged_texts(long)
    (words,) = tagger.predict([text.words])
    assert [one.word for one in words] == list(text.words)
    assert all(one.label in tagger.labels for one in words)
    assert tagger.evaluate([text]).counts["words"] == len(words)
    tagger.too_long = "cut"
    cut = tagger.predict([text.words])[0]
    read = sum(one.label is not None for one in cut)
    assert 0 < read < len(words)
    assert cut[read:] == [one._replace(label=None, probability=None) for one in cut[read:]]
    assert any(note.startswith("truncated:") for note in tagger.evaluate([text]).notes)
    # a last word that lost some of its tokens is cut; one of which there is no token is not
    part = ["it"] * (14 - 1) + ["Annasleeps"]
    whole = ["it", "rains", "\u200b"]
    assert len(tagger.tokenizer.encode("Annasleeps").ids) > 1
    for _ in range(2):
        first, second = tagger.predict([part, whole])
        assert (first.truncated, second.truncated) == (True, False)
        assert first[-1].label is not None
        assert second[-1].label is None
    changes = [
        f'data.train="{long}"',
        "data.validation_fraction=0",
        "train.evaluate_every=0",
        "train.steps=1",
    ]
    window = 'data.too_long="window"'
    train(str(place / "recipe.toml"), [*changes, window], out=tmp_path / "run", start_from=place / "body")
    ledger = json.loads((tmp_path / "run/ledger.json").read_text())["train"]
    assert (ledger["windowed"], ledger["lost"], sum(ledger["labels"].values())) == (1, 0, 64)
    assert ledger["model_rows"] > 1


def test_the_loss_is_over_the_first_tokens_of_words():
    body = BertConfig(vocab_size=20, **SHAPE, pooler=False)
    model = build(TaskConfig(body=body, task="token_classification", id2label={"0": "a", "1": "b", "2": "c"}))
    model.eval()
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])
    targets = torch.tensor([[IGNORE, 2, 0, IGNORE], [1, IGNORE, IGNORE, IGNORE]])
    loss = objective("token_classification")(
        model, LabelBatch(MarkedInputs(tokens, None, tokens != 0), targets)
    )
    logits = model(tokens, None, tokens != 0)
    picked = torch.stack([logits[0, 1], logits[0, 2], logits[1, 0]])
    torch.testing.assert_close(loss.total, F.cross_entropy(picked, torch.tensor([2, 0, 1]), reduction="sum"))
    assert int(loss.count) == 3


def test_a_causal_model_tags_what_is_no_entity(tuned, tmp_path):
    place, _ = tuned
    write_body(tmp_path / "body", TEXTS, "gpt2", max_seq_len=48)
    path = write_rows(
        tmp_path / "pos.conll", [[("Anna", "NE"), ("went", "VB")], [("it", "PP"), ("rains", "VB")]] * 4
    )
    changes = [f'data.train="{path}"', "train.steps=1", "train.seq_len=48", "train.evaluate_every=1"]
    result = train(str(place / "recipe.toml"), changes, out=tmp_path / "run", start_from=tmp_path / "body")
    assert set(result.metrics) == {"loss", "accuracy"}
    assert [one.word for one in loaded(TokenClassifier, tmp_path / "run").predict(["it  rains"])[0]] == [
        "it",
        "rains",
    ]


@given(st.text())
def test_words_of_running_text_stand_where_they_say(text):
    found = words_of(text)
    assert all(text[start:end] == word and word.strip() for word, start, end in found)
    assert "".join(word for word, _, _ in found) == "".join(text.split())
    assert [word for word, _, _ in words_of("U.S. cats' mother-in-law, 3.5! हिन्दी")] == [
        "U.S", ".", "cats", "'", "mother-in-law", ",", "3.5", "!", "हिन्दी",
    ]  # fmt: skip


def test_mistakes_are_told(tuned, tmp_path):
    place, _ = tuned

    def refused(*changes: str) -> str:
        with pytest.raises((RecipeError, DataError)) as caught:
            train(str(place / "recipe.toml"), changes, out=tmp_path / "no", start_from=place / "body")
        return str(caught.value)

    for setting in ("data.unique=true", "data.max_query=9", "train.language_model_weight=0.5"):
        assert "is not a setting of train.objective 'token_classification'" in refused(setting)
    assert "'data.too_long' cannot be 'window'; allowed: error, cut" in refused(
        'train.objective="classification"', 'data.too_long="window"'
    )
    assert "words are in one column, not in 2" in refused('data.text_column=["a", "b"]')
    path = write_rows(tmp_path / "val.conll", [[("Anna", "O")], [("it", "O"), ("Rome", "B-LOK")]])
    told = refused(f'data.validation="{path}"', "data.validation_fraction=0.1")
    assert "val.conll:4: the label 'B-LOK' of 'Rome' was not seen in training" in told
    tagger = loaded(TokenClassifier, place / "run")
    with pytest.raises(DataError, match="texts is one string"):
        tagger.predict("a text")
    with pytest.raises(DataError, match="text 2: holds no word"):
        tagger.predict(["a text", "  "])


@pytest.mark.skipif("WORDLOOM_DATA" not in os.environ, reason="WORDLOOM_DATA is not set")
def test_pairs_of_texts_are_no_words(tuned):
    place, _ = tuned
    done = CliRunner().invoke(app, ["predict", str(place / "run"), "glue-rte/dev"])
    assert isinstance(done.exception, DataError)
    assert "holds texts in the columns" in str(done.exception)


@pytest.mark.skipif("WORDLOOM_DATA" not in os.environ, reason="WORDLOOM_DATA is not set")
def test_words_of_brown_as_they_are(tuned, tmp_path):
    place, _ = tuned
    rows = [list(zip(text.words, text.labels, strict=True)) for text in islice(tagged_texts("brown"), 12)]
    path = write_rows(tmp_path / "brown.conll", rows)
    few = ["data.validation_fraction=0", "train.evaluate_every=0", "train.steps=1", 'data.too_long="window"']
    train(
        str(place / "recipe.toml"),
        [f'data.train="{path}"', *few],
        out=tmp_path / "run",
        start_from=place / "body",
    )
    tagger = loaded(TokenClassifier, tmp_path / "run")
    tagger.too_long = "window"
    assert set(tagger.labels) == {tag for row in rows for _, tag in row}
    assert tagger.evaluate(list(tagged_texts(path))).counts["texts"] == 12
