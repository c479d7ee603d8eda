"""Texts after the special token of their label: prepared, learnt, written and scored by label."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tests.run.test_train import lines
from typer.testing import CliRunner

import wordloom
from wordloom.cli import app
from wordloom.data import prepare
from wordloom.data.rows.labelled import LabelledCorpus
from wordloom.data.rows.labelled_documents import LabelledDocuments
from wordloom.errors import DataError, WordloomError
from wordloom.evaluate import perplexity
from wordloom.run import train
from wordloom.text import Tokenizer

RECIPE = """
seed = 5
[data]
train = "{folder}"
label_column = "file"
label_prefix = true
split = "hash"
validation_fraction = 0.25
document_mask = true
[tokenizer]
kind = "char"
[model]
family = "rnn"
dim = 8
hidden_dim = 24
n_layers = 1
[train]
objective = "truncated_bptt"
steps = 80
seq_len = 12
batch_size = 8
learning_rate = 0.02
device = "cpu"
precision = "fp32"
evaluate_every = 80
sample_every = 80
sample_prompt = "<B>"
sample_tokens = 8
"""


@pytest.fixture
def names(tmp_path, monkeypatch) -> Path:
    """A.txt holds words of a and x, B.txt those of b and y."""
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "names"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for label, letters in (("A", "ax"), ("B", "by")):
        words = ["".join(draw.choice(list(letters), draw.integers(2, 6))) for _ in range(60)]
        (folder / f"{label}.txt").write_text("\n".join(words))
    return folder


@pytest.fixture
def recipe(names, tmp_path) -> Path:
    path = tmp_path / "names.toml"
    path.write_text(RECIPE.format(folder=names))
    return path


def documents(folder: Path, **settings) -> LabelledDocuments:
    return LabelledDocuments(LabelledCorpus(sources=folder, label="file", **settings))


def test_every_text_stands_between_its_label_and_an_end(names):
    corpus = documents(names, validation_fraction=0.0)
    tokenizer = Tokenizer.train(["abxy"], kind="char", special_tokens=["<|endoftext|>", "<A>", "<B>"])
    shards = prepare(corpus, tokenizer, part="train")
    texts = [(name, line) for name in "AB" for line in (names / f"{name}.txt").read_text().split("\n")]
    assert len(shards.ends) == len(texts)
    for document, (label, text) in enumerate(texts):
        ids = shards.tokens(*shards.document_span(document))
        assert [tokenizer.id_to_token(i) for i in ids] == [f"<{label}>", *text, "<|endoftext|>"]
    assert shards.document_name(60).endswith("B.txt#0")
    assert "each document follows the special token of its label" in shards.ledger.notes
    assert [d.text for d in corpus.documents("train")] == [f"<{label}>{text}" for label, text in texts]
    assert prepare(corpus, tokenizer, part="train").reused
    before = corpus.part_fingerprint("train")
    (names / "A.txt").rename(names / "A0.txt")  # the same texts, of another label
    renamed = documents(names, validation_fraction=0.0)
    with pytest.raises(DataError, match="no special token '<A0>' for the label 'A0'"):
        renamed.check(tokenizer)
    assert renamed.part_fingerprint("train") != before


def test_a_label_that_means_something_else_is_refused(names):
    (names / "A.txt").rename(names / "unk.txt")
    corpus = documents(names, validation_fraction=0.0)
    tokenizer = Tokenizer.train(["abxy"], kind="char", special_tokens=["<unk>", "<B>"])
    with pytest.raises(DataError, match="'unk' would precede texts as '<unk>', which has another"):
        corpus.check(tokenizer)


def test_it_writes_and_scores_by_label(recipe, tmp_path):
    result = train(recipe, out=tmp_path / "run")
    sampled = next(row["text"] for row in lines(result.folder) if row["kind"] == "sample")
    assert sampled.startswith("<B>")
    assert set(sampled[3:]) <= set("by")
    arguments = [
        "generate",
        str(result.folder),
        "--specials",
        "interpret",
        "--samples",
        "4",
        "--seed",
        "1",
        "--json",
    ]
    for label, letters in (("A", "ax"), ("B", "by")):
        printed = CliRunner().invoke(app, [*arguments, "--prompt", f"<{label}>"], catch_exceptions=False)
        made = json.loads(printed.stdout)["completions"]
        assert all(set(one["text"]) <= set(letters) for one in made)
        assert all(one["finish_reason"] == "eos" for one in made)

    printed = CliRunner().invoke(app, ["evaluate", str(result.folder), "--json"], catch_exceptions=False)
    facts = json.loads(printed.stdout)
    loss = next(score["value"] for score in facts["scores"] if score["name"] == "loss")
    assert loss == pytest.approx(result.metrics["loss"], rel=1e-5)  # labels are scored in neither
    assert loss < math.log(4)
    lm = wordloom.load(result.folder)
    assert set(lm.generate("<A>", specials="interpret", seed=1)) <= set("ax")
    with pytest.raises(WordloomError, match="holds the special token '<A>'"):
        lm.generate("<A>")
    from wordloom.recipe import load_recipe
    from wordloom.run.prepare import corpus_of

    held_out = list(corpus_of(load_recipe(result.folder), LabelledCorpus).rows("validation"))
    nats, size = {"A": 0.0, "B": 0.0}, 0
    tokens = dict.fromkeys(nats, 0)
    for row in held_out:
        ids = [*lm.tokenizer.encode_ids(row.texts[0]), lm.tokenizer.eos_id]
        start = lm.tokenizer.token_to_id(f"<{row.label}>")
        size += len(row.texts[0])
        nats[row.label] -= lm.score([start], [ids])[0].total
        tokens[row.label] += len(ids)
    for label, of_label in facts["labels"].items():
        assert of_label["loss"] == pytest.approx(nats[label] / tokens[label], rel=1e-5)
        assert of_label["texts"] == sum(row.label == label for row in held_out)
    assert loss == pytest.approx(sum(nats.values()) / sum(tokens.values()), rel=1e-5)
    bits = next(score for score in facts["scores"] if score["name"] == "bits_per_byte")
    assert bits["value"] == pytest.approx(sum(nats.values()) / math.log(2) / size, rel=1e-5)
    assert "|start:label|" in bits["signature"]
    printed = CliRunner().invoke(app, ["evaluate", str(result.folder), "--start", "eos"])
    assert "start 'eos': a label has no token before it; leave it out" in str(printed.exception)
    with pytest.raises(WordloomError, match="start 'label' needs texts behind a token of the tokenizer, not"):
        perplexity(lm.model, lm.tokenizer, ["ax"], start="label")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["data.separator=line"], "data.separator has no effect beside data.label_prefix"),
        (["data.too_long=cut"], "data.too_long is not a setting of train.objective"),
        (
            ["data.label_prefix=false"],
            "data.label_column has no effect without data.label_prefix",
        ),
        (["data.encoding_errors=bytes"], "rows take strict or replace"),
        (["tokenizer.kind=none", "tokenizer.path={tokenizer}"], "no special token '<A>' for the label 'A'"),
        (["data.label_column=none"], r'take label_column "file"'),
    ],
)
def test_mistakes_are_one_clear_line(recipe, tmp_path, overrides, says):
    Tokenizer.train(["abxy"], kind="char").save_pretrained(tmp_path / "tokenizer")
    overrides = [override.format(tokenizer=tmp_path / "tokenizer") for override in overrides]
    with pytest.raises(WordloomError, match=says) as caught:
        train(recipe, overrides, out=tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_a_special_token_inside_a_text_is_refused_by_name(recipe, names, tmp_path):
    (names / "A.txt").write_text("\n".join(["ax"] * 20 + ["a<B>x"]))
    with pytest.raises(WordloomError, match=r"A\.txt, document 20: the text holds the special token '<B>'"):
        train(recipe, ["data.validation_fraction=0.0", "train.evaluate_every=0"], out=tmp_path / "run")
