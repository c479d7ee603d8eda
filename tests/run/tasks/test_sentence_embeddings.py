"""Vectors of texts, trained: losses beside sentence-transformers' own, folders that it reads, runs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from tests.run.bodies import ends_alike_when_cut_short, scored_at_the_command, write_body
from typer.testing import CliRunner

import wordloom
from wordloom.cli import app
from wordloom.data.batches.labelled import LabelBatch
from wordloom.data.batches.sequences import Sequences
from wordloom.data.rows.scored import text_numbers
from wordloom.errors import CheckpointError, DataError, RecipeError
from wordloom.recipe import load_recipe
from wordloom.run import train
from wordloom.run.checkpoint.average import average
from wordloom.run.models import embedder as embedding
from wordloom.run.models.sentence_folder import SentenceSettings, pooling_files, pooling_of
from wordloom.run.tasks.masked import validation_scores
from wordloom.sentence_objectives import Contrastive, CosineSimilarity, contrast, text_vectors
from wordloom.weights import load_model

TRIPLES = [
    ("the cat sat", "a cat sits", "dogs run far"),
    ("a dog ran", "dogs run", "the cat slept"),
    ("a dog ran", "dogs run far", "a cat sits"),  # the first text of the row before
    ("the old cat", "a cat sits", "a dog ran"),  # the second text of the first row
    ("they run far", "dogs ran far", "the old cat"),
    ("the cat slept", "cats sleep", "they run"),
]
SCORES = [4.5, 5.0, 1.0, 4.0, 2.5, 0.0]
TEXTS = [text for row in TRIPLES for text in row]
RECIPE = """
name = "sentences"
seed = 3
[data]
train = "{place}/train.tsv"
text_column = ["one", "two"]
validation_fraction = 0.5
[train]
objective = "contrastive"
steps = 6
seq_len = 12
batch_size = 4
learning_rate = 3e-3
precision = "fp32"
evaluate_every = 3
save_every = 3
"""


OWN = """
name = "own"
[data]
train = "{place}/old.txt"
separator = "line"
validation_fraction = 0.0
[tokenizer]
kind = "wordpiece"
vocab_size = 60
[model]
family = "bert"
dim = 16
n_layers = 1
n_heads = 2
max_seq_len = 16
[train]
objective = "masked_lm"
steps = 2
seq_len = 12
batch_size = 4
precision = "fp32"
evaluate_every = 0
"""


def write_pooling(folder: Path, settings: SentenceSettings) -> None:
    """The files of ``settings`` beside a model whose vectors have 16 components."""
    (folder / "1_Pooling").mkdir(exist_ok=True)
    for name, text in pooling_files(16, settings).items():
        (folder / name).write_text(text)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    """A recipe, its rows, the body that it begins with, and its run."""
    place = tmp_path_factory.mktemp("sentences")
    rows = [
        (*row, str(score), "no" if score < 4 else "yes") for row, score in zip(TRIPLES, SCORES, strict=True)
    ]
    lines = [("one", "two", "three", "score", "alike"), *rows, *rows]
    (place / "train.tsv").write_text("".join("\t".join(line) + "\n" for line in lines))
    (place / "recipe.toml").write_text(RECIPE.format(place=place))
    write_body(place / "body", TEXTS)
    train(str(place / "recipe.toml"), out=place / "run", start_from=place / "body")
    return place


def batch_of(rows: list[tuple[str, ...]], tokenizer: Any, targets: Any = None) -> LabelBatch:
    """The rows as the objectives take them, by the plainest padding."""
    ids = [[tokenizer.cls_id, *tokenizer.encode_ids(text), tokenizer.sep_id] for row in rows for text in row]
    tokens = torch.zeros(len(ids), max(map(len, ids)), dtype=torch.long)
    for row, its in zip(tokens, ids, strict=True):
        row[: len(its)] = torch.tensor(its)
    lengths = torch.tensor([len(its) for its in ids])
    attend = torch.arange(tokens.shape[1]) < lengths[:, None]
    shape = (len(rows), len(rows[0]), -1)
    numbers = torch.from_numpy(text_numbers(rows)) if targets is None else targets
    return LabelBatch(Sequences(tokens.view(shape), attend.view(shape)), numbers)


# ------------------------------------------------------------------------------------- beside theirs


@pytest.fixture(scope="module")
def theirs(place):
    """sentence-transformers' model of the run's folder, as it is."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    return sentence_transformers.SentenceTransformer(str(place / "run"), device="cpu")


def test_the_folder_is_read_by_sentence_transformers(place, theirs):
    assert [type(module).__name__ for module in theirs] == ["Transformer", "Pooling", "Normalize"]
    assert theirs.max_seq_length == 12
    encoder = wordloom.load(place / "run")
    ours = encoder.embed(TEXTS).vectors
    assert np.abs(ours - theirs.encode(TEXTS)).max() < 1e-6
    with pytest.raises(DataError, match="the model reads 10 at once"):
        encoder.embed(["cat " * 11])
    encoder.save_pretrained(place / "again")
    assert pooling_of(place / "again") == SentenceSettings("mean", True, 12)
    given = ("--task", "similarity", "--text-column", "one,two", "--label-column", "score")
    assert set(scored_at_the_command(place / "run", place / "train.tsv", *given)) == {"pearson", "spearman"}


@pytest.mark.parametrize("texts", [2, 3])
@pytest.mark.parametrize("symmetric", [False, True])
def test_loss_and_gradients_are_theirs(place, theirs, texts, symmetric):
    """Of rows without a wrong negative: theirs does not leave those out."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    rows = [row[:texts] for row in (TRIPLES[0], TRIPLES[1], TRIPLES[4])]
    model: Any = load_model(place / "run")
    batch = batch_of(rows, wordloom.load(place / "run").tokenizer)
    loss = Contrastive(scale=15.0, symmetric=symmetric)(model, batch)
    (loss.total / loss.count).backward()
    both = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    compare = MultipleNegativesRankingLoss(theirs, scale=15.0, **(both if symmetric else {}))
    columns = [theirs.preprocess(list(column)) for column in zip(*rows, strict=True)]
    theirs.zero_grad()
    wanted = compare(columns, torch.zeros(3))
    wanted.backward()
    assert (loss.total / loss.count).item() == pytest.approx(wanted.item(), rel=1e-5)
    embedding = theirs[0].auto_model.embeddings.word_embeddings.weight
    torch.testing.assert_close(model.token_embedding.weight.grad, embedding.grad, atol=1e-5, rtol=1e-4)


def test_squared_errors_of_cosines_are_theirs(place, theirs):
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

    rows = [row[:2] for row in TRIPLES]
    scores = torch.tensor(SCORES) / 5
    model: Any = load_model(place / "run")
    loss = CosineSimilarity()(model, batch_of(rows, wordloom.load(place / "run").tokenizer, scores))
    columns = [theirs.preprocess(list(column)) for column in zip(*rows, strict=True)]
    wanted = CosineSimilarityLoss(theirs)(columns, scores)
    assert (loss.total / loss.count).item() == pytest.approx(wanted.item(), rel=1e-5)


def test_newer_folders_of_theirs_are_read(place, theirs):
    """From version 6 on the pooling is a word, and the limit the tokenizer's."""
    theirs.save_pretrained(str(place / "theirs"), create_model_card=False)
    assert pooling_of(place / "theirs") == SentenceSettings("mean", True, 12)
    made = wordloom.load(place / "theirs").embed(TEXTS[:3]).vectors
    assert np.abs(made - theirs.encode(TEXTS[:3])).max() < 1e-6


# ------------------------------------------------------------------------------------- the objective


def test_wrong_negatives_are_left_out():
    """By the plainest loop: what equals a row's first or second text, or is the second of an equal first."""
    numbers = text_numbers(TRIPLES)
    vectors = torch.nn.functional.normalize(torch.randn(6, 3, 8), dim=-1)
    logits = contrast(vectors, torch.from_numpy(numbers), 20.0)
    left_out = []
    for i, (first, second, _) in enumerate(TRIPLES):
        for j, row in enumerate(TRIPLES):
            for k in (1, 2):
                mine = i == j and k == 1
                wrong = not mine and (row[k] in (first, second) or (k == 1 and row[0] == first))
                found = logits[i, j + 6 * (k - 1)]
                left_out += [(i, j, k)] * wrong
                wanted = -torch.inf if wrong else 20.0 * float(vectors[i, 0] @ vectors[j, k])
                assert float(found) == pytest.approx(wanted, abs=1e-5)
    assert {(0, 3, 1), (1, 2, 1), (0, 2, 2)} <= set(left_out)
    nats = Contrastive(symmetric=True).nats(logits)
    assert torch.isfinite(nats).all()


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_company_changes_no_vector(place, pooling):
    """As the embedder pools, which reads each text by itself."""
    encoder = wordloom.load(place / "run")
    tokens, attend = batch_of(TRIPLES, encoder.tokenizer).inputs
    with torch.no_grad():
        found = text_vectors(encoder.model, tokens, attend, pooling)
    alone = [encoder.embed([text], pooling=pooling).vectors[0] for text in TEXTS[:4]]
    np.testing.assert_allclose(found.flatten(0, 1)[:4], alone, atol=1e-5)


# ------------------------------------------------------------------------------------- runs


def test_an_average_pools_as_its_run(place):
    average([place / "run"], place / "average")
    assert pooling_of(place / "average") == SentenceSettings("mean", True, 12)


def test_a_run_cut_short_ends_with_the_same_bits(place):
    assert ends_alike_when_cut_short(str(place / "recipe.toml"), place, place / "run")


def test_what_is_scored_and_told(place, tmp_path):
    """Rows that belong together by their scores: the others' scores are compared with as well."""
    write_body(tmp_path / "body", TEXTS, "roberta")
    changes = ['data.label_column="score"', "data.positive=4", 'model.pooling="max"', "train.symmetric=true"]
    result = train(str(place / "recipe.toml"), changes, out=tmp_path / "run", start_from=tmp_path / "body")
    ledger = json.loads((tmp_path / "run/ledger.json").read_text())
    assert [ledger["train"][name] for name in ("rows", "others", "beside", "shared")] == [3, 3, 0, 2]
    assert [ledger["validation"][name] for name in ("rows", "others", "beside")] == [6, 0, 3]
    encoder = wordloom.load(tmp_path / "run")
    assert pooling_of(tmp_path / "run") == SentenceSettings("max", True, 12)
    a, b = (encoder.embed([row[i] for row in TRIPLES]).vectors for i in (0, 1))
    wanted = np.corrcoef((a * b).sum(1), SCORES)[0, 1]
    assert result.metrics["pearson"] == pytest.approx(wanted, abs=1e-4)
    alike = [0, 1, 3]
    logits = contrast(
        torch.from_numpy(np.stack([a[alike], b[alike]], 1)),
        torch.from_numpy(text_numbers([TRIPLES[i][:2] for i in alike])),
        20.0,
    )
    assert result.metrics["loss"] == pytest.approx(
        float(Contrastive(symmetric=True).nats(logits).mean()), rel=1e-3
    )
    assert result.metrics["accuracy"] == pytest.approx(
        float((logits.argmax(1) == torch.arange(3)).float().mean())
    )


def test_scores_are_learnt(place, tmp_path):
    changes = [
        'train.objective="cosine_similarity"',
        'data.label_column="score"',
        "data.score_range=[-5.0, 5.0]",
    ]
    result = train(str(place / "recipe.toml"), changes, out=tmp_path / "run", start_from=place / "body")
    encoder = wordloom.load(tmp_path / "run")
    a, b = (encoder.embed([row[i] for row in TRIPLES]).vectors for i in (0, 1))
    errors = ((a * b).sum(1) - (np.array(SCORES) + 5) / 10) ** 2
    assert result.metrics["loss"] == pytest.approx(errors.mean(), rel=1e-4)
    assert {"pearson", "spearman"} <= set(result.metrics)
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if row["kind"] == "evaluate"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "changes",
    [
        ('data.text_column=["one", "two", "three"]', 'data.label_column="alike"', 'data.positive="yes"'),
        (
            'data.text_column=["one", "one"]',
            "data.validation_fraction=0.0",
        ),  # dropout alone tells the two apart
    ],
)
def test_other_rows(place, tmp_path, changes):
    few = ["train.steps=1", "train.evaluate_every=0", "train.save_every=0"]
    result = train(
        str(place / "recipe.toml"), [*few, *changes], out=tmp_path / "run", start_from=place / "body"
    )
    assert result.step == 1
    assert set(result.metrics) <= {"loss", "accuracy"}


MISTAKES = [
    (["train.batch_size=1"], "batch_size 1 leaves no other text in the batch"),
    (
        ["train.micro_batch_size=2"],
        "micro_batch_size would limit the negatives of a text to its micro-batch",
    ),
    (['model.pooling="median"'], "unknown model.pooling 'median'"),
    (["model.head_dropout=0.1"], "model.head_dropout is of a head"),
    (['data.text_column="one"'], r"has 1 text\(s\), and two or more are compared"),
    (['data.label_column="score"'], "data.label_column says nothing without data.positive"),
    (['data.label_column="alike"', 'data.positive="maybe"'], "'maybe' and the labels there: no, yes"),
    (['data.label_column="score"', "data.positive=9"], "data.positive is 9 and the scores go to 5"),
    (["train.seq_len=3"], r":2, column 'one': has \d+ tokens and train.seq_len allows 3"),
    (['data.text_column=["one", "four"]'], "no column 'four'.*data.text_column"),
    (['train.objective="cosine_similarity"', 'data.positive="x"'], "data.positive is not a setting of"),
    (
        ['train.objective="cosine_similarity"', 'data.label_column="score"', "data.score_range=[0.0, 4.0]"],
        "the score 4.5 is outside of 0 to 4",
    ),
    (['train.objective="regression"', "train.symmetric=true"], "train.symmetric is not a setting of"),
    (["data.validation_fraction=0.1"], r"the validation part has 1 row\(s\) whose texts belong together"),
]


@pytest.mark.parametrize(("changes", "message"), MISTAKES)
def test_mistakes_are_told(place, tmp_path, changes, message):
    with pytest.raises((RecipeError, DataError), match=message):
        train(str(place / "recipe.toml"), changes, out=tmp_path / "no", start_from=place / "body")


def test_texts_and_bodies_that_are_refused(place, tmp_path):
    (tmp_path / "train.tsv").write_text("one\ttwo\na cat\tdogs run\na dog\t\n")
    given = [
        f'data.train="{tmp_path}/train.tsv"',
        'data.text_column=["one", "two"]',
        "data.validation_fraction=0.0",
    ]
    off = ["train.evaluate_every=0"]
    with pytest.raises(DataError, match=r"train\.tsv:3, column 'two': its text is empty"):
        train(str(place / "recipe.toml"), [*given, *off], out=tmp_path / "no", start_from=place / "body")
    write_body(tmp_path / "gpt2", TEXTS, "gpt2")
    with pytest.raises(RecipeError, match="is for an encoder, which a gpt2 is not"):
        train(str(place / "recipe.toml"), [], out=tmp_path / "no", start_from=tmp_path / "gpt2")
    with pytest.raises(RecipeError, match="masks no tokens; give scored pairs and --task similarity"):
        validation_scores(wordloom.load(place / "run"), load_recipe(place / "run"))


def test_saving_keeps_how_texts_become_vectors(place, tmp_path):
    write = SentenceSettings("cls", True, 8)
    shutil.copytree(place / "run", tmp_path / "one")
    write_pooling(tmp_path / "one", write)
    encoder = wordloom.load(tmp_path / "one")
    wordloom.save(encoder, tmp_path / "two")
    assert pooling_of(tmp_path / "two") == write
    again = wordloom.load(tmp_path / "two").embed(TEXTS[:3]).vectors
    np.testing.assert_array_equal(encoder.embed(TEXTS[:3]).vectors, again)


def test_a_prompt_before_every_text_is_refused(place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    settings = tmp_path / "run/config_sentence_transformers.json"
    prompts = {"query": "query: ", "document": ""}
    for name in (None, "document", "query"):
        settings.write_text(json.dumps({"prompts": prompts, "default_prompt_name": name}))
        if name == "query":
            with pytest.raises(CheckpointError, match="puts the prompt 'query: ' before every text"):
                wordloom.load(tmp_path / "run").embed(TEXTS[:2])
        else:
            assert pooling_of(tmp_path / "run") == pooling_of(place / "run")


def test_a_limit_of_none_is_that_of_the_tokenizer(place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    (tmp_path / "run/sentence_bert_config.json").write_text(json.dumps({"max_seq_length": None}))
    path = tmp_path / "run/tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": 9}))
    assert pooling_of(tmp_path / "run").limit == 9


def test_lower_casing_that_the_tokenizer_does_not_do_is_refused(place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    settings = tmp_path / "run/sentence_bert_config.json"
    settings.write_text(json.dumps({"max_seq_length": 8, "do_lower_case": True}))
    path = tmp_path / "run/tokenizer.json"
    definition = json.loads(path.read_text())
    for lower in (False, True):
        definition["normalizer"]["lowercase"] = lower
        path.write_text(json.dumps(definition))
        if lower:
            assert pooling_of(tmp_path / "run").limit == 8
        else:
            with pytest.raises(CheckpointError, match="has do_lower_case, and the tokenizer there"):
                pooling_of(tmp_path / "run")


@pytest.mark.parametrize("ending", ["npy", "jsonl", "tsv", "parquet"])
def test_more_texts_at_once_than_are_pooled_together(place, tmp_path, monkeypatch, ending):
    monkeypatch.setattr(embedding, "_POOL_TEXTS", 3)
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    made = []
    for size in (2, len(TEXTS) + 5):
        out = tmp_path / f"{size}.{ending}"
        done = CliRunner().invoke(
            app, ["embed", str(place / "run"), str(tmp_path / "texts.txt"), "--out", str(out),
                  "--batch-size", str(size)])  # fmt: skip
        assert done.exit_code == 0, done.output
        made.append(out)
    assert made[0].read_bytes() == made[1].read_bytes() or ending == "parquet"
    if ending == "parquet":
        first, second = (pyarrow.parquet.read_table(path).to_pylist() for path in made)
        assert [row["text"] for row in first] == [row["text"] for row in second] == TEXTS


def test_settings_of_a_folder(tmp_path):
    for settings in (SentenceSettings("max", False, None), SentenceSettings("last", True, 128)):
        write_pooling(tmp_path, settings)
        assert pooling_of(tmp_path) == settings


@pytest.mark.skipif("WORDLOOM_DATA" not in os.environ, reason="WORDLOOM_DATA is not set")
def test_a_set_with_labels_says_which_are_alike(place, tmp_path):
    with pytest.raises(DataError, match=r"its rows have labels; say in which .* data\.positive"):
        train(
            str(place / "recipe.toml"),
            ['data.train="glue-mrpc/dev"'],
            out=tmp_path / "no",
            start_from=place / "body",
        )


@pytest.mark.parametrize("objective", ["contrastive", "cosine_similarity"])
@pytest.mark.parametrize("share", [None, 0.5])
def test_what_vectors_of_texts_forget_is_told_and_rehearsed(place, tmp_path, objective, share):
    """The old loss is that of the checkpoint's own head, which the folder keeps; its vectors are as ever."""
    (tmp_path / "old.txt").write_text("\n".join(TEXTS * 6))
    rehearsed = "" if share is None else f'train = "{tmp_path}/old.txt"\n'
    recipe = (place / "recipe.toml").read_text().replace("contrastive", objective)
    old = f'[old_task]\nseparator = "line"\nvalidation = "{tmp_path}/held.txt"\n{rehearsed}'
    (tmp_path / "held.txt").write_text("\n".join(TEXTS))
    (tmp_path / "recipe.toml").write_text(recipe + old)
    (tmp_path / "own.toml").write_text(OWN.format(place=tmp_path))
    body = train(str(tmp_path / "own.toml"), out=tmp_path / "body").folder
    changes = ['data.label_column="score"'] if objective == "cosine_similarity" else []
    changes += [] if share is None else [f"train.rehearsal_share={share}"]
    run = train(str(tmp_path / "recipe.toml"), changes, out=tmp_path / "run", start_from=body).folder
    told = json.loads((run / "old_task.json").read_text())
    assert told["before"] != told["after"]
    encoder = wordloom.load(run)
    assert encoder.config.masked_lm_head
    assert len(encoder.fill("the [MASK] sat")[0]) == 5
    sentence_transformers = pytest.importorskip("sentence_transformers")
    theirs = sentence_transformers.SentenceTransformer(str(run), device="cpu")
    assert np.abs(encoder.embed(TEXTS).vectors - theirs.encode(TEXTS)).max() < 1e-6


def test_too_few_scored_rows_to_hold_any_out_are_told(place, tmp_path):
    (tmp_path / "few.tsv").write_text(
        "".join(["one\ttwo\tscore\n", *("the cat\ta dog\t1\n" for _ in range(5))])
    )
    changes = [f"data.train={tmp_path}/few.tsv", "data.label_column=score", "data.validation_fraction=0.1",
               "train.objective=cosine_similarity", 'data.text_column=["one", "two"]']  # fmt: skip
    with pytest.raises(DataError, match=r"few\.tsv': the validation part has no rows \(.*\); give more rows"):
        train(str(place / "recipe.toml"), changes, out=tmp_path / "no", start_from=place / "body")
