"""The whole way: a recipe to a finished folder, stopped and resumed, refused where it must be."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import wordloom
from wordloom.errors import CheckpointError, EvaluationError, NonFiniteError, RecipeError
from wordloom.recipe import load_recipe
from wordloom.run import train
from wordloom.run.folder import RunFolder, locked
from wordloom.training.hooks import Evaluate

TIMING = {"seconds", "seconds_left", "tokens_per_second", "data_wait_share", "memory_mb", "flop_utilisation"}


def lines(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMING} for row in rows]


def parameters_in_memory() -> list[torch.nn.Parameter]:
    """Return the parameters of models that are reachable, or in a cycle that Python cannot free.

    The list keeps them, so that a later list is longer only by new ones.
    """
    gc.collect()
    return [found for found in gc.get_objects() if type(found) is torch.nn.Parameter]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt"])
def test_a_finished_folder(recipe, tmp_path, family):
    before = parameters_in_memory()
    result = train(recipe(family), out=tmp_path / "run")
    assert len(parameters_in_memory()) == len(before)
    run = tmp_path / "run"
    assert not result.stopped
    assert result.step == result.total_steps == 24
    assert result.plan.step_seconds > 0
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "recipe.toml",
                 "metrics.jsonl", "ledger.json", "generation_config.json"):  # fmt: skip
        assert (run / name).is_file(), name
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-20", "step-24"]
    kinds = [row["kind"] for row in lines(run)]
    assert kinds.count("train") == 8
    assert kinds.count("evaluate") == 3
    assert kinds.count("sample") == 2
    losses = [row["loss"] for row in lines(run) if row["kind"] == "evaluate"]
    assert losses[-1] < losses[0]
    signed = {row["signature"] for row in lines(run) if row["kind"] == "evaluate"}
    assert len(signed) == 1
    assert "|window:16|stride:16|" in signed.pop()
    assert result.metrics["loss"] == losses[-1]
    assert tomllib.loads((run / "recipe.toml").read_text())["train"]["steps"] == 24

    lm = wordloom.load(run)
    assert lm.config.dim == 16
    text = lm.generate("The cat", max_new_tokens=8, temperature=0)
    assert text == "".join(lm.stream("The cat", max_new_tokens=8, temperature=0))
    # the finished weights are the average; a checkpoint's are the trained ones
    averaged, last = (
        load_file(run / "model.safetensors"),
        load_file(run / "checkpoints/step-24/model.safetensors"),
    )
    assert averaged.keys() == last.keys()
    assert any(not torch.equal(averaged[key], last[key]) for key in last)
    # ids, because a first token that ends the text would leave an empty text
    assert wordloom.load(run / "checkpoints" / "step-20").generate([5, 6], max_new_tokens=4)


def test_transformers_reads_the_folder(recipe, tmp_path):
    transformers = pytest.importorskip("transformers")
    run = train(recipe(), out=tmp_path / "run").folder
    theirs = transformers.AutoModelForCausalLM.from_pretrained(run)
    tokenizer = transformers.AutoTokenizer.from_pretrained(run)
    lm = wordloom.load(run)
    ids = tokenizer("The cat sat", return_tensors="pt")["input_ids"]
    assert ids[0].tolist() == lm.tokenizer.encode("The cat sat").ids
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, lm.model(ids), atol=1e-4, rtol=1e-4)
    out = theirs.generate(ids, max_new_tokens=8, do_sample=False)
    assert tokenizer.decode(out[0][ids.shape[1] :]) == lm.generate(
        "The cat sat", max_new_tokens=8, temperature=0
    )


@pytest.mark.threads2
@pytest.mark.parametrize(
    "settings", [[], ["train.optimizer=muon"], ["train.precision=bf16-pure"], ["train.precision=bf16"]]
)
def test_stopped_and_resumed_ends_like_one_left_alone(recipe, tmp_path, monkeypatch, settings):
    """Through the files of a checkpoint, in the middle of the second epoch."""
    path = recipe(document_mask=True)
    settings = [*settings, "train.batch_size=30", "train.micro_batch_size=20"]
    straight = train(path, settings, out=tmp_path / "straight").folder

    from wordloom.training.hooks import Log

    write = Log.write

    def stop_at_seven(self, trainer, line):
        write(self, trainer, line)
        if line["step"] == 6:
            trainer.stop()

    with monkeypatch.context() as patch:
        patch.setattr(Log, "write", stop_at_seven)
        stopped = train(path, settings, out=tmp_path / "resumed")
    assert stopped.stopped
    assert stopped.step == 6
    # what a power cut may leave: lines past the checkpoint, a broken last one, a half-written checkpoint
    with (tmp_path / "resumed" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 9, "loss": 1.0}\n7\n{"kind": "tr')
    (tmp_path / "resumed" / "checkpoints" / ".writing-step-9").mkdir()
    resumed = train(path, settings, out=tmp_path / "resumed", resume=True)
    assert not resumed.stopped
    assert lines(straight) == lines(tmp_path / "resumed")
    for name in (
        "model.safetensors",
        "checkpoints/step-24/model.safetensors",
        "checkpoints/step-24/trainer/state.safetensors",
    ):
        assert (straight / name).read_bytes() == (tmp_path / "resumed" / name).read_bytes(), name


def test_a_run_named_by_its_folder_resumes_there(recipe, tmp_path):
    run = train(recipe(), ["train.steps=2"], out=tmp_path / "mine").folder
    resumed = train(run, ["train.steps=3"], resume=True)
    assert (resumed.folder, resumed.step) == (run, 3)


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_without_a_run_is_no_recipe(tmp_path, resume):
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError) as caught:
        train(tmp_path, resume=resume)
    assert str(caught.value) == f"{tmp_path} holds no run; give a recipe or the folder of a run"


def test_a_folder_called_like_a_built_in_recipe_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    with pytest.raises(CheckpointError, match=r"runs/quickstart holds no run to resume"):
        train("quickstart", resume=True)


def test_a_run_is_never_overwritten_unasked(recipe, tmp_path):
    path = recipe()
    run = train(path, ["train.steps=3"], out=tmp_path / "run").folder
    before = (run / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match=r"--resume.*--force"):
        train(path, ["train.steps=3"], out=run)
    assert (run / "model.safetensors").read_bytes() == before
    train(path, ["train.steps=4", "seed=6"], out=run, force=True)
    assert (run / "model.safetensors").read_bytes() != before
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-4"]
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "chapter1.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="no run"):
        train(path, out=foreign, force=True)
    (foreign / "recipe.toml").write_text(path.read_text())
    with pytest.raises(CheckpointError, match="no run"):
        train(path, out=foreign, force=True)
    assert (foreign / "chapter1.txt").exists()


def test_force_removes_only_once_training_can_begin(recipe, tmp_path, monkeypatch):
    run = train(recipe(), ["train.steps=2"], out=tmp_path / "run").folder
    (run / "notes.txt").write_text("mine")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(wordloom.WordloomError, match="nope"):
        train(recipe(), ["data.train=nope.txt"], out=run, force=True)
    with pytest.raises(CheckpointError, match="that --from names"):
        train(recipe(), out=run, force=True, start_from=run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "torch.utils.tensorboard", None)
        with pytest.raises(RecipeError, match="needs the package tensorboard"):
            train(recipe(), ["train.tensorboard=true"], out=run, force=True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    train(recipe(), ["train.steps=1"], out=run, force=True)
    assert (run / "notes.txt").read_text() == "mine"
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-1"]


def test_a_start_that_failed_does_not_stand_in_the_way(recipe, tmp_path):
    with pytest.raises(wordloom.WordloomError):
        train(recipe(), ["data.train=nope.txt"], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(recipe(), ["train.steps=1"], out=tmp_path / "run")


def test_killed_before_the_first_checkpoint(recipe, tmp_path, monkeypatch, capsys):
    """The run begins again from what --from named, and says so; another recipe is refused."""
    first = train(recipe(), ["train.steps=2"], out=tmp_path / "first").folder
    short = ["train.steps=8"]
    with monkeypatch.context() as patch:
        patch.setattr(
            "wordloom.training.trainer.Trainer.run", lambda self: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            train(recipe(), short, out=tmp_path / "run", start_from=first)
    with pytest.raises(RecipeError, match="learning_rate"):
        train(recipe(), [*short, "train.learning_rate=0.5"], out=tmp_path / "run", resume=True)
    capsys.readouterr()
    train(recipe(), short, out=tmp_path / "run", resume=True)
    said = capsys.readouterr().err
    assert "no checkpoint was written yet" in said
    assert f"weights and tokenizer of {first}" in said
    straight = train(recipe(), short, out=tmp_path / "straight", start_from=first).folder
    assert (straight / "model.safetensors").read_bytes() == (tmp_path / "run/model.safetensors").read_bytes()


def test_a_run_that_cannot_fit_is_refused_before_it_allocates(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("wordloom.training.plan._available_bytes", lambda device: 10_000)
    with pytest.raises(wordloom.WordloomError, match=r"36,304 parameters; lower model\.n_layers"):
        train(recipe(), out=tmp_path / "run")
    monkeypatch.setattr("wordloom.training.plan._available_bytes", lambda device: 740_000)
    three = r"train\.micro_batch_size \(now 4\).*train\.seq_len \(now 16\).*train\.gradient_checkpointing"
    with pytest.raises(wordloom.WordloomError, match=three):
        train(recipe(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_the_tokenizer_lacks_is_said(recipe, tmp_path, capsys):
    train(recipe(), ["tokenizer.kind=char", "tokenizer.vocab_size=10", "train.steps=1"], out=tmp_path / "run")
    said = capsys.readouterr().err
    assert "training tokens stand for text the tokenizer lacks" in said
    assert "bits per byte is not given" in said


def test_characters_that_give_all_text_back_have_bits_per_byte(recipe, tmp_path, capsys):
    settings = ["tokenizer.kind=char", "tokenizer.vocab_size=300", "train.steps=1"]
    settings.append("tokenizer.special_tokens=[]")  # none for what is unknown
    metrics = train(recipe(), settings, out=tmp_path / "run").metrics
    assert "bits per byte is not given" not in capsys.readouterr().err
    # a character of this text is a byte
    assert metrics["bits_per_byte"] * math.log(2) == pytest.approx(metrics["loss"], rel=0.02)


@pytest.mark.parametrize("number", ["inf", "nan"])
@pytest.mark.parametrize("setting", ["minutes", "flops", "learning_rate"])
def test_a_setting_that_is_no_finite_number_is_refused(recipe, tmp_path, setting, number):
    with pytest.raises(RecipeError, match=rf"train\.{setting}.*finite number"):
        train(recipe(), [f"train.{setting}={number}"], out=tmp_path / "run")


def test_resume_refuses_another_recipe_and_another_text(recipe, tmp_path, corpus):
    path = recipe()
    train(path, ["train.steps=5"], out=tmp_path / "run")
    with pytest.raises(RecipeError, match=r"train\.learning_rate 0\.01 -> 0\.5"):
        train(path, ["train.steps=9", "train.learning_rate=0.5"], out=tmp_path / "run", resume=True)
    with corpus.open("a") as file:
        file.write('{"text": "one more"}\n')
    with pytest.raises(CheckpointError, match="the training text is not the one"):
        train(path, ["train.steps=9"], out=tmp_path / "run", resume=True)
    with pytest.raises(CheckpointError, match="no run to resume"):
        train(path, out=tmp_path / "nothing", resume=True)


def test_a_finished_run_can_be_given_more_steps(recipe, tmp_path, capsys):
    """A schedule that another budget bends is reported; one that does not know the budget is not."""
    first = train(recipe(), ["train.steps=5"], out=tmp_path / "run")
    assert first.plan.step_seconds is None  # to time steps would take longer than so short a run
    longer = train(recipe(), ["train.steps=8"], out=tmp_path / "run", resume=True)
    assert longer.step == 8
    said = capsys.readouterr().err
    assert "the schedule 'cosine' now ends at step 8, not 5: step 5 had a learning rate of 0.001, and" in said
    train(recipe(), ["train.steps=8"], out=tmp_path / "run", resume=True)
    constant = ["train.schedule=constant", "train.evaluate_every=0"]
    train(recipe(), ["train.steps=2", *constant], out=tmp_path / "other")
    train(recipe(), ["train.steps=3", *constant], out=tmp_path / "other", resume=True)
    assert "the schedule" not in capsys.readouterr().err
    assert [row["step"] for row in lines(tmp_path / "run") if row["kind"] == "train"] == [3, 5, 6, 8]


def test_from_a_checkpoint(recipe, tmp_path):
    first = train(recipe(), ["train.steps=6"], out=tmp_path / "first")
    second = train(recipe(), ["train.steps=2", "train.learning_rate=1e-9", "train.ema=none"],
                   out=tmp_path / "second", start_from=tmp_path / "first")  # fmt: skip
    assert second.metrics["loss"] == pytest.approx(first.metrics["loss"], abs=1e-3)


def test_from_a_checkpoint_of_another_shape_is_refused(recipe, tmp_path):
    first = train(recipe(), ["train.steps=1"], out=tmp_path / "first").folder
    with pytest.raises(CheckpointError) as caught:
        train(recipe("gpt2"), out=tmp_path / "second", start_from=first)
    assert "\n" not in str(caught.value)
    wider = ["model.dim=32", "train.steps=1"]
    with pytest.raises(CheckpointError, match=r"dim|shape"):
        train(recipe(), wider, out=tmp_path / "third", start_from=first)


def test_a_recipe_without_a_model_takes_the_checkpoints(recipe, tmp_path):
    first = train(recipe(), ["train.steps=2"], out=tmp_path / "first").folder
    bare = tmp_path / "bare.toml"
    text = recipe().read_text()
    bare.write_text(text[: text.index("[model]")] + text[text.index("[train]") :])
    run = train(bare, ["train.steps=1"], out=tmp_path / "second", start_from=first).folder
    assert wordloom.load(run).config.dim == 16
    with pytest.raises(RecipeError, match=r"model\.family"):
        train(bare, ["train.steps=1"], out=tmp_path / "third")


def test_minutes_are_settled_once_and_more_may_be_given(recipe, tmp_path):
    quiet = ["train.evaluate_every=0", "train.sample_every=0"]
    first = train(recipe(), ["train.minutes=0.004", *quiet], out=tmp_path / "run")
    again = train(recipe(), ["train.minutes=0.004", *quiet], out=tmp_path / "run", resume=True)
    assert again.total_steps == first.total_steps == again.step
    longer = train(recipe(), [f"train.steps={first.step + 2}", *quiet], out=tmp_path / "run", resume=True)
    assert longer.step == first.step + 2


def test_the_best_is_kept_and_is_what_remains(recipe, tmp_path):
    """A learning rate that spoils the model at the end: the finished weights are the best ones'."""
    run = train(recipe(), ["train.keep_best=true", "train.evaluate_every=4", "train.learning_rate=0.2",
                           "train.schedule=constant", "train.ema=none", "train.keep_last=1"],
                out=tmp_path / "run").folder  # fmt: skip
    losses = {row["step"]: row["loss"] for row in lines(run) if row["kind"] == "evaluate"}
    best = min(losses, key=losses.get)
    assert (run / f"checkpoints/step-{best}").is_dir()
    kept, final = (
        load_file(run / f"checkpoints/step-{best}/model.safetensors"),
        load_file(run / "model.safetensors"),
    )
    assert all(torch.equal(kept[key], final[key]) for key in kept)


def test_of_averaged_weights_the_best_average_is_finished(recipe, tmp_path, monkeypatch):
    from wordloom.training import Evaluate

    evaluate = Evaluate.after_step

    def best_at_twelve(self, trainer, record):
        evaluate(self, trainer, record)
        if "evaluation" in record:
            record["evaluation"]["loss"] = 1.0 + abs(trainer.step - 12)

    monkeypatch.setattr(Evaluate, "after_step", best_at_twelve)
    settings = ["train.keep_best=true", "train.evaluate_every=4", "train.keep_last=1", "train.ema=0.5"]
    run = train(recipe(), settings, out=tmp_path / "run").folder
    state = load_file(run / "checkpoints/step-12/trainer/state.safetensors")
    final = wordloom.load(run).model
    for name, weight in final.named_parameters():
        assert torch.equal(weight, state[f"average.{name}"]), name


def test_resume_refuses_a_budget_that_is_already_spent(recipe, tmp_path):
    run = train(recipe(), ["train.steps=6"], out=tmp_path / "run").folder
    before = (run / "recipe.toml").read_bytes()
    with pytest.raises(RecipeError, match="has done 6 steps and the budget is 5; give a larger one"):
        train(recipe(), ["train.steps=5"], out=run, resume=True)
    assert (run / "recipe.toml").read_bytes() == before


@pytest.mark.parametrize(
    "left", [(), ("metrics.jsonl",), ("metrics.jsonl", "ledger.json", ".recipe.toml.123.tmp")]
)
def test_a_run_cut_short_while_it_began_stands_in_nobodys_way(recipe, tmp_path, left):
    run = tmp_path / "run"
    run.mkdir()
    for name in left:
        (run / name).touch()
    with pytest.raises(CheckpointError, match="holds no run to resume"):
        train(recipe(), out=run, resume=True)
    assert train(recipe(), ["train.steps=1"], out=run).step == 1


@pytest.mark.parametrize(("name", "content"), [("ledger.json", "mine"), ("metrics.jsonl", "mine")])
def test_a_file_that_is_somebody_elses_is_not_taken_for_a_beginning(recipe, tmp_path, name, content):
    run = tmp_path / "run"
    run.mkdir()
    (run / name).write_text(content)
    with pytest.raises(CheckpointError, match="is not empty and holds no run of Wordloom's"):
        train(recipe(), out=run)
    assert (run / name).read_text() == content


@pytest.mark.parametrize("state", ["{}", "[]", "7", "{"])
def test_a_damaged_state_says_resume_command(recipe, tmp_path, state):
    run = train(recipe(), ["train.steps=6", "train.save_every=3"], out=tmp_path / "run").folder
    (run / "checkpoints/step-6/trainer/state.json").write_text(state)
    with pytest.raises(CheckpointError, match=r"remove .*step-6 to continue from the checkpoint before it"):
        train(recipe(), ["train.steps=6"], out=run, resume=True)
    shutil.rmtree(run / "checkpoints/step-6")
    assert train(recipe(), ["train.steps=6"], out=run, resume=True).step == 6


@pytest.mark.parametrize(
    "budget", ["train.tokens=960", "train.epochs=0.5", "train.flops=6e8", "train.minutes=0.005"]
)
def test_budgets_become_steps(recipe, tmp_path, budget):
    result = train(recipe(), [budget, "train.evaluate_every=0", "train.sample_every=0"], out=tmp_path / "run")
    per_step = 6 * 16
    if "tokens" in budget:
        assert result.total_steps == 10
    if "flops" in budget:
        assert result.total_steps == round(6e8 / (result.plan.costs.flops_per_token * per_step))
    assert result.step == result.total_steps >= 1
    state = json.loads((tmp_path / "run" / f"checkpoints/step-{result.step}/trainer/state.json").read_text())
    assert state["total_steps"] == result.total_steps


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model.family=lama", "did you mean 'llama'"),
        ("model.family=transformer", "'transformer' turns one text into another"),
        ("model.n_embd=4", "it is called 'dim' here"),
        ("model.dim=15", "does not divide into 2 heads"),
        ("model.vocab_size=10", "below the tokenizer's 300"),
        ("train.seq_len=5000", "5001|lower seq_len"),
        ("model.max_seq_len=8", r"rows of 16 tokens are longer than model\.max_seq_len 8"),
        ("train.device=cuda:7", "not on this machine|unknown"),
        ("train.attention_backend=efficient", "cannot run"),
        ("data.train=nowhere.txt", "nowhere.txt"),
        ("tokenizer.path=nowhere", "nowhere"),
    ],
)
def test_mistakes_are_one_clear_line(recipe, tmp_path, override, says):
    with pytest.raises(wordloom.WordloomError, match=says) as caught:
        train(recipe(), [override], out=tmp_path / "run")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "setting",
    [
        "train.precision=bf16",
        "train.precision=bf16-pure",
        "train.gradient_checkpointing=true",
        "train.attention_backend=exact",
        "train.optimizer=muon",
    ],
)
def test_variants_train(recipe, tmp_path, setting):
    short = ["train.steps=12", "train.evaluate_every=12", "train.sample_every=0"]
    result = train(recipe(), [setting, *short], out=tmp_path / "run")
    losses = [row["loss"] for row in lines(tmp_path / "run") if row["kind"] == "train"]
    assert losses[-1] < losses[0]
    assert result.step == 12


def test_gradient_checkpointing_changes_no_number(recipe, tmp_path):
    plain = train(recipe(), ["train.steps=4"], out=tmp_path / "plain").folder
    again = train(
        recipe(), ["train.steps=4", "train.gradient_checkpointing=true"], out=tmp_path / "again"
    ).folder
    a, b = load_file(plain / "model.safetensors"), load_file(again / "model.safetensors")
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=1e-5, atol=1e-6)


def test_a_failing_evaluation_loses_no_work(recipe, tmp_path, monkeypatch):
    """The step is saved, and the run goes on from it."""
    given = ["train.steps=4", "train.evaluate_every=0", "train.save_every=0", "train.sample_every=0"]
    whole = train(recipe(), given, out=tmp_path / "whole").folder

    def fails(self, trainer, record):
        if trainer.step == trainer.total_steps:
            raise EvaluationError("no item of the validation data is scored")

    with monkeypatch.context() as patch:
        patch.setattr(Evaluate, "after_step", fails)
        with pytest.raises(EvaluationError, match="no item"):
            train(recipe(), given, out=tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()
    again = train(recipe(), given, out=tmp_path / "run", resume=True)
    assert again.step == 4
    name = "model.safetensors"
    assert (again.folder / name).read_bytes() == (whole / name).read_bytes()


def test_a_sample_prompt_is_tried_before_the_training(recipe, tmp_path):
    given = ["train.sample_every=3", "train.sample_prompt=<|endoftext|>"]
    with pytest.raises(RecipeError, match=r"train\.sample_prompt '<\|endoftext\|>' cannot be read: "):
        train(recipe(), given, out=tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_tensorboard_on_request(recipe, tmp_path):
    run = train(recipe(), ["train.steps=3", "train.tensorboard=true"], out=tmp_path / "run").folder
    (events,) = (run / "tensorboard").iterdir()
    assert b"train/loss" in events.read_bytes()


def test_the_ledger_is_kept(recipe, tmp_path):
    run = train(recipe(), ["train.steps=1"], out=tmp_path / "run").folder
    ledger = json.loads((run / "ledger.json").read_text())
    assert ledger["train"]["documents"] + ledger["validation"]["documents"] == 40
    assert ledger["train"]["tokens"] > ledger["validation"]["tokens"] > 0
    assert 0 < ledger["train"]["packed_share"] <= 1


SHORT = ["train.steps=6", "train.save_every=3", "train.evaluate_every=0", "train.sample_every=0"]


@pytest.fixture
def short_run(recipe, tmp_path) -> Path:
    """A run of six steps with checkpoints of steps 3 and 6."""
    return train(recipe(), SHORT, out=tmp_path / "run").folder


def test_a_flipped_byte_in_a_checkpoint_is_found(recipe, short_run):
    newest = short_run / "checkpoints/step-6"
    for name in ("model.safetensors", "tokenizer.json", "trainer/state.safetensors"):
        before = (newest / name).read_bytes()
        (newest / name).write_bytes(before[:-3] + bytes([before[-3] ^ 1]) + before[-2:])
        damaged = (
            rf"step-6.* is damaged: {name} is not as .*remove .*step-6 to continue from .* before it, step-3"
        )
        with pytest.raises(CheckpointError, match=damaged):
            train(recipe(), SHORT, out=short_run, resume=True)
        with pytest.raises(CheckpointError, match=damaged):
            wordloom.load(newest)
        (newest / name).write_bytes(before)
    (newest / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors is missing; remove"):
        train(recipe(), SHORT, out=short_run, resume=True)
    shutil.rmtree(short_run / "checkpoints/step-3")
    with pytest.raises(CheckpointError, match=r"no checkpoint before it is left: .*--force"):
        train(recipe(), SHORT, out=short_run, resume=True)


def test_weights_that_are_not_finite_are_never_called_good(recipe, tmp_path):
    """The last step writes infinity into the weights, after its loss was found finite."""
    run = tmp_path / "run"
    infinite = ["train.learning_rate=3e38", "train.weight_decay=3", "train.clip=none"]
    settings = [
        "train.steps=1",
        "train.warmup_steps=0",
        "train.evaluate_every=0",
        "data.validation_fraction=0.0",
    ]
    with pytest.raises(NonFiniteError, match=r"step 1: \S+ is not finite; .* Last good checkpoint: none yet"):
        train(recipe(), [*settings, *infinite], out=run)
    assert not (run / "model.safetensors").exists()
    assert not list((run / "checkpoints").glob("*"))


def test_a_state_with_one_other_value_is_refused(recipe, short_run):
    newest = short_run / "checkpoints/step-6"
    path = newest / "trainer/state.json"
    before = path.read_text()
    values = json.loads(before)
    hooks = values["hooks"]
    changes = [
        *({key: 10**30} for key in values),
        *({"hooks": hooks | {name: state}} for name in hooks for state in ({}, [], {"best_value": 1.0})),
        *({"step": step} for step in ("6", -1, 4, 6.0, True)),
        *({"hooks": {}}, {"files": {}}, {"samples": values["samples"] - 1}),
    ]
    changes = [change for change in changes if json.dumps(values | change) != json.dumps(values)]
    assert len(changes) > 20
    for change in changes:
        path.write_text(json.dumps(values | change))
        says = r"state.json is not as it was written; remove .*step-6 to continue from .* before it, step-3"
        with pytest.raises(CheckpointError, match=says) as caught:
            train(recipe(), SHORT, out=short_run, resume=True)
        assert "\n" not in str(caught.value)
    path.write_text("[" * 10**5)
    with pytest.raises(CheckpointError, match=r"cannot read trainer/state.json .*; remove .*step-6"):
        train(recipe(), SHORT, out=short_run, resume=True)
    path.write_text(before)
    newest.rename(newest.with_name("step-7"))
    with pytest.raises(CheckpointError, match="it is of step 6, and its folder is called step-7; remove"):
        train(recipe(), SHORT, out=short_run, resume=True)


class Killed(BaseException):
    """Stands for a kill: nothing handles it."""


@pytest.mark.parametrize("recipe_lost", [False, True])
def test_a_kill_while_force_removes_a_run_leaves_a_run_to_replace(
    recipe, short_run, tmp_path, monkeypatch, recipe_lost
):
    """Killed before each change of a file, the folder starts again with --force; no checkpoint is a part."""
    new = load_recipe(recipe(), SHORT)
    if recipe_lost:
        (short_run / "recipe.toml").unlink()
    whole = {path.name for path in (short_run / "checkpoints/step-6").iterdir()}
    changes = [(os, name) for name in ("unlink", "rename", "replace", "rmdir", "open")]
    left = 0

    def dying(change):
        def step(path, *arguments, **settings):
            nonlocal left
            left -= 1
            if not left:
                raise Killed
            return change(path, *arguments, **settings)

        return step

    for moment in range(1, 1000):
        run = tmp_path / f"run-{moment}"
        shutil.copytree(short_run, run)
        with contextlib.suppress(Killed), RunFolder(run, resume=False, force=True) as folder:
            with monkeypatch.context() as patch:
                left = moment
                for module, name in changes:
                    patch.setattr(module, name, dying(getattr(module, name)))
                folder.begin(new, "{}")
            break
        for step in (run / "checkpoints").glob("step-*"):
            assert {path.name for path in step.iterdir()} == whole
        with RunFolder(run, resume=False, force=True) as folder:
            folder.begin(new, "{}")
        assert not folder.missing()
        shutil.rmtree(run)
    assert moment > 20


def test_a_run_goes_on_from_its_checkpoints_alone(recipe, short_run, capsys):
    kept = (short_run / "recipe.toml").read_text()
    for lost in (("recipe.toml",), ("metrics.jsonl",), ("recipe.toml", "metrics.jsonl", "ledger.json")):
        for name in lost:
            (short_run / name).unlink()
        with pytest.raises(CheckpointError, match=r"holds a run; .*--resume.*--force"):
            train(recipe(), SHORT, out=short_run)
        capsys.readouterr()
        assert train(short_run, out=short_run, resume=True).step == 6
        said = capsys.readouterr().err
        assert all(f"{name} is missing" in said for name in lost if name != "ledger.json")
        assert (short_run / "recipe.toml").read_text() == kept
        assert (short_run / "metrics.jsonl").exists()
    (short_run / "recipe.toml").unlink()
    with pytest.raises(RecipeError, match="seed 5 -> 6"):
        train(recipe(), [*SHORT, "seed=6"], out=short_run, resume=True)
    assert train(recipe(), ["train.steps=1"], out=short_run, force=True).step == 1


def test_a_folder_is_held_by_one_process_and_left_free(tmp_path):
    """A sweep's folder, too: the lock file is gone afterwards."""
    path = tmp_path / "run"
    with locked(path, "is training"):
        with pytest.raises(CheckpointError, match=r"another process is training into .*run; wait"):
            RunFolder(path, resume=False, force=False).__enter__()
        with pytest.raises(CheckpointError, match="another process sweeps into"), locked(path, "sweeps"):
            pass
    assert not list(path.iterdir())
    with RunFolder(path, resume=False, force=False), pytest.raises(CheckpointError, match="wait for it"):
        RunFolder(path, resume=False, force=False).__enter__()
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="choose another --out"):
        RunFolder(tmp_path / "file" / "run", resume=False, force=False).__enter__()
