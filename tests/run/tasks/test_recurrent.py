"""Recurrent models through the whole run: windows that carry their state, stopped, resumed, scored."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from tests.run.test_train import lines, parameters_in_memory
from torch.nn import functional as F

import wordloom
from wordloom.evaluate import perplexity
from wordloom.kernels import programs
from wordloom.models import RNNConfig, build, config_from
from wordloom.objectives import TruncatedBPTT
from wordloom.progress import TrainingProgress
from wordloom.recipe import load_recipe
from wordloom.run import train
from wordloom.run.prepare import prepare_recipe, recipe_corpus
from wordloom.run.tasks.building import model_settings

RECIPE = """
description = "tests"
seed = 5
[data]
train = "{corpus}"
split = "hash"
validation_fraction = 0.2
[tokenizer]
kind = "bpe"
vocab_size = 300
[model]
family = "rnn"
cell = "{cell}"
dim = 16
n_layers = 2
dropout = 0.1
[train]
objective = "truncated_bptt"
epochs = 2.5
seq_len = 48
batch_size = 6
micro_batch_size = 4
learning_rate = 1e-2
schedule = "epoch_decay"
flat_epochs = 1
device = "cpu"
precision = "fp32"
log_every = 3
evaluate_every = 20
sample_every = 12
sample_prompt = "The cat"
sample_tokens = 8
save_every = 5
"""


@pytest.fixture
def recurrent(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))

    def make(cell: str = "lstm") -> Path:
        path = tmp_path / f"{cell}.toml"
        path.write_text(RECIPE.format(corpus=corpus, cell=cell), encoding="utf-8")
        return path

    return make


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
def test_a_finished_folder(recurrent, tmp_path, cell):
    before = parameters_in_memory()
    result = train(recurrent(cell), out=tmp_path / "run")
    assert not result.stopped
    assert len(parameters_in_memory()) == len(before)
    rows = lines(tmp_path / "run")
    losses = [row["loss"] for row in rows if row["kind"] == "evaluate"]
    assert losses[-1] < losses[0]
    assert "|state:carried|" in next(row["signature"] for row in rows if row["kind"] == "evaluate")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model_type"] == "wordloom-rnn"
    lm = wordloom.load(tmp_path / "run")
    assert lm.config.cell == cell
    text = lm.generate("The cat", max_new_tokens=8, temperature=0)
    assert text == "".join(lm.stream("The cat", max_new_tokens=8, temperature=0))
    assert len(lm.next_tokens("The cat", 3)) == 3


def test_the_last_evaluation_is_what_evaluate_says_of_the_joined_text(recurrent, tmp_path):
    result = train(recurrent(), ["train.evaluate_every=1000000"], out=tmp_path / "run")
    recipe = load_recipe(tmp_path / "run")
    lm = wordloom.load(tmp_path / "run")
    _, parts = prepare_recipe(recipe, tokenizer=lm.tokenizer, progress=TrainingProgress())
    ids = torch.from_numpy(parts["validation"].shards.tokens()[:].astype("int64"))
    read = torch.cat([torch.tensor([lm.tokenizer.eos_id]), ids[1:-1]])  # the text begins with the end token
    with torch.no_grad():
        logits = lm.model.eval()(read[None])[0]
    whole = float(F.cross_entropy(logits, ids[1:]))
    assert result.metrics["loss"] == pytest.approx(whole, rel=1e-5)
    # the same text by `evaluate --joined`, whose first token follows an end of text
    texts = list(recipe_corpus(recipe).documents("validation"))
    scores = perplexity(lm.model, lm.tokenizer, texts, joined=True)
    first = torch.cat([torch.tensor([lm.tokenizer.eos_id]), ids])
    with torch.no_grad():
        logits = lm.model(first[None, :-1])[0]
    assert scores.counts["tokens"] == len(ids)
    assert scores["loss"].value == pytest.approx(float(F.cross_entropy(logits, first[1:])), rel=1e-5)
    assert "|documents:joined|" in scores["loss"].signature
    assert "|window:whole|" in scores["loss"].signature


def test_windows_one_after_another_are_one_long_one(recurrent, tmp_path):
    recipe = load_recipe(recurrent(), ["model.dropout=0.0", "data.restart_share=0.0"])
    tokenizer, parts = prepare_recipe(recipe, tokenizer=None, progress=TrainingProgress())
    batches = parts["train"]
    model = build(
        RNNConfig(vocab_size=tokenizer.vocab_size, dim=16),
        generator=torch.Generator().manual_seed(0),
    )
    objective, total, count = TruncatedBPTT(), 0.0, 0
    with torch.no_grad():
        for step in range(2 * batches.windows):  # the second epoch begins anew
            for start, rows in ((0, 4), (4, 2)):
                loss = objective(model, batches.batch(step * 6 + start, rows))
                total, count = total + float(loss.total), count + int(loss.count)
        n = batches.length
        ids = torch.from_numpy(batches.shards.tokens()[: 6 * n + 1].astype("int64"))
        logits = model(ids[:-1].view(6, n))
        whole = F.cross_entropy(logits.flatten(0, 1), ids[1:])
    assert count == 2 * 6 * n
    assert total / count == pytest.approx(float(whole), rel=1e-5)
    assert math.isfinite(total)


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
def test_a_window_that_begins_anew_knows_nothing_of_the_window_before(recurrent, cell):
    recipe = load_recipe(recurrent(cell), ["model.dropout=0.0", "data.restart_share=0.4"])
    tokenizer, parts = prepare_recipe(recipe, tokenizer=None, progress=TrainingProgress())
    batches = parts["train"]
    assert batches.start_id == tokenizer.eos_id
    assert parts["validation"].batch(0, 1).restarts is None
    assert int(parts["validation"].batch(0, 1).tokens[0, 0]) == tokenizer.eos_id
    model = build(
        RNNConfig(vocab_size=tokenizer.vocab_size, dim=16, cell=cell),
        generator=torch.Generator().manual_seed(0),
    )
    objective, seen = TruncatedBPTT(), set()
    state = None
    with torch.no_grad():
        for step in range(4):
            batch = batches.batch(6 * step, 6)
            objective(model, batch)
            before, state = state, [[part.clone() for part in layer] for layer in objective.carried]
            for row in range(6):
                begins_anew = step == 0 or bool(batch.restarts[row])
                cache = model.new_cache(1, batch.tokens.shape[1])
                if not begins_anew:
                    for layer, parts_of in zip(cache.layers, before, strict=True):
                        layer.state = tuple(part[row : row + 1] for part in parts_of)
                model.hidden(batch.tokens[row : row + 1], cache=cache)
                for layer, parts_of in zip(cache.layers, state, strict=True):
                    for ours, theirs in zip(layer.state, parts_of, strict=True):
                        torch.testing.assert_close(ours, theirs[row : row + 1], rtol=1e-5, atol=1e-6)
                if step:
                    seen.add(begins_anew)
    assert seen == {True, False}


def test_a_model_of_one_long_document_reads_a_text_behind_the_end_token(recurrent, tmp_path):
    # the end token is nowhere in such a text
    text = " ".join(f"the {animal} sat on the mat." for animal in ("cat", "dog", "hen") * 400)
    (tmp_path / "one.txt").write_text(text, encoding="utf-8")
    settings = [
        *("data.split=tail", "data.separator=file", f"data.train={tmp_path / 'one.txt'}", "train.epochs=8"),
        *(
            "tokenizer.kind=byte",
            "tokenizer.vocab_size=none",
            "train.schedule=constant",
            "model.dropout=0.0",
            "train.sample_every=0",
        ),
    ]
    scores = {}
    for share in (0.0, 0.3):
        run = train(recurrent(), [*settings, f"data.restart_share={share}"], out=tmp_path / f"{share}")
        lm = wordloom.load(run.folder)
        first = lm.tokenizer.prompt_ids("the")[0]
        assert (first == lm.tokenizer.eos_id) == (share > 0)  # what it has learned to begin with
        logged = next(row["signature"] for row in lines(run.folder) if row["kind"] == "evaluate")
        assert ("|start:eos|" in logged) == (share > 0)
        found = perplexity(lm.model, lm.tokenizer, ["the cat sat on"], start="eos", end="none")
        scores[share] = found["loss"].value
    assert scores[0.3] < 0.7 * scores[0.0], scores


def test_a_tokenizer_of_another_model_begins_texts_as_the_new_model_learned(recurrent, tmp_path):
    short = ["train.epochs=none", "train.steps=1", "train.schedule=constant"]
    first = train(recurrent(), short, out=tmp_path / "lstm").folder
    assert wordloom.load(first).tokenizer.start_id is not None
    of_first = ["tokenizer.kind=none", "tokenizer.vocab_size=none", f"tokenizer.path={first}"]
    for settings in (
        ["train.objective=causal_lm"],
        ["data.restart_share=0.0"],
        ["data.document_mask=true"],
    ):
        other = train(recurrent(), [*short, *of_first, *settings], out=tmp_path / settings[0][:12]).folder
        tokenizer = wordloom.load(other).tokenizer
        assert tokenizer.start_id is None, settings
        assert tokenizer.fingerprint == wordloom.load(first).tokenizer.fingerprint


@pytest.mark.threads2
@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["train.precision=bf16"],
        ["model.cell=gru", "data.document_mask=true"],
        ["train.optimizer=sgd", "train.momentum=0.9"],
    ],
)
def test_stopped_in_an_epoch_and_resumed_ends_like_one_left_alone(recurrent, tmp_path, monkeypatch, settings):
    straight = train(recurrent(), settings, out=tmp_path / "straight").folder

    from wordloom.training.hooks import Log

    write = Log.write

    def stop_at_seven(self, trainer, line):
        write(self, trainer, line)
        if line["step"] == 6:
            trainer.stop()

    with monkeypatch.context() as patch:
        patch.setattr(Log, "write", stop_at_seven)
        stopped = train(recurrent(), settings, out=tmp_path / "resumed")
    assert stopped.stopped
    resumed = train(recurrent(), settings, out=tmp_path / "resumed", resume=True)
    assert not resumed.stopped
    assert lines(straight) == lines(tmp_path / "resumed")
    last = f"checkpoints/step-{resumed.step}"
    for name in ("model.safetensors", f"{last}/model.safetensors", f"{last}/trainer/state.safetensors"):
        assert (straight / name).read_bytes() == (tmp_path / "resumed" / name).read_bytes(), name


SHORT = ["train.schedule=constant", "train.epochs=none", "train.evaluate_every=0", "train.sample_every=0"]


def test_the_start_says_which_kernel_runs_and_that_nothing_is_compiled(
    recurrent, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(programs, "MINIMUM_ELEMENTS", 0)
    settings = [*SHORT, "train.steps=1", "data.document_mask=true", "train.compile=on"]
    train(recurrent(), settings, out=tmp_path / "run")
    assert "eager (torch.compile has nothing to do: recurrent" in (said := capsys.readouterr().err)
    assert f"lstm by the kernel '{'fused' if programs.ready() else 'steps'}'" in said


@pytest.mark.parametrize("change", ["model.cell=gru", "model.cell=lstm_1997", "model.bias=false"])
def test_a_presets_forget_bias_goes_with_its_gate(change):
    family, settings = model_settings(load_recipe("lstm-ptb-small", [change]))
    config = config_from(family, **settings)
    assert (config.dim, config.init_scale) == (200, 0.1)
    assert (config.cell, config.bias) != ("lstm", True)
    kept = model_settings(load_recipe("lstm-ptb-small", ["model.cell=lstm"]))[1]
    assert kept["forget_bias"] == 0.0
    _, settings = model_settings(load_recipe("lstm-ptb-small", [change, "model.forget_bias=0.5"]))
    with pytest.raises(wordloom.WordloomError, match="forget_bias"):
        config_from(family, **settings)


def test_the_rate_falls_by_epochs(recurrent, tmp_path):
    run = train(recurrent(), ["train.log_every=1", "train.micro_batch_size=none"], out=tmp_path / "run")
    rates = [row["learning_rate"] for row in lines(run.folder) if row["kind"] == "train"]
    windows = run.total_steps / 2.5
    for step, rate in enumerate(rates):
        assert rate == pytest.approx(1e-2 * 0.5 ** max(0, int(step / windows)))
    assert len(set(rates)) == 3


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ["model.family=gpt2", "model.n_heads=2", "model.cell=none"],
            "carries the state of a recurrent model",
        ),
        (
            ["data.order=random"],
            "data.order is not a setting of train.objective 'truncated_bptt'; it is for 'causal_lm'",
        ),
        (["train.steps=5"], "epoch_decay.* counts epochs"),
        (
            ["train.attention_backend=flash"],
            "attention_backend is not a setting of model.family 'rnn'",
        ),
        (
            ["train.batch_size=40000", "train.micro_batch_size=none"],
            "too few for 40000 streams; lower the",
        ),
        (["model.hidden_size=4"], "it is called 'hidden_dim' here"),
    ],
)
def test_mistakes_are_one_clear_line(recurrent, tmp_path, overrides, says):
    with pytest.raises(wordloom.WordloomError, match=says) as caught:
        train(recurrent(), overrides, out=tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_windows_by_themselves_train_it_too(recurrent, tmp_path):
    settings = ["train.objective=causal_lm", "train.steps=20", "train.schedule=constant"]
    result = train(recurrent(), settings, out=tmp_path / "run")
    rows = [row["loss"] for row in lines(result.folder) if row["kind"] == "train"]
    assert rows[-1] < rows[0]
