"""A grid of runs: each trained once, gone on with where it stopped, compared; mistakes told at first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from wordloom.errors import (
    ChatError,
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    EvaluationError,
    NonFiniteError,
    RecipeError,
    TokenizerError,
)
from wordloom.progress import TrainingProgress
from wordloom.run.sweep import sweep as sweep_module
from wordloom.run.sweep.grid import combinations, split_settings
from wordloom.run.sweep.sweep import sweep
from wordloom.run.train import train
from wordloom.training.hooks import Log
from wordloom.training.trainer import Trainer

RECIPE = """
name = "bag"
[data]
train = "{folder}/train.tsv"
validation = "{folder}/dev.tsv"
text_column = 1
label_column = 2
[tokenizer]
kind = "word"
[model]
family = "bag_of_words"
[train]
steps = 4
batch_size = 3
objective = "classification"
learning_rate = 0.05
device = "cpu"
log_every = 1
evaluate_every = 2
"""
TRAIN = (
    "a fine film\tgood\na dull film\tbad\nfine and warm\tgood\ndull and cold\tbad\nwarm\tgood\ncold\tbad\n"
)
DEV = "fine\tgood\ndull\tbad\na cold film\tbad\nwarm but dull, dull\tgood\n"
GRID = {"train.learning_rate": [0.05, 0.5], "train.steps": [2, 4]}

_METRICS = "wordloom.run.models.heads.classification.TextClassifier.metrics"


@pytest.fixture(scope="module", autouse=True)
def no_fsync():
    """No power is cut here, and dozens of runs would wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        yield


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "train.tsv").write_text(TRAIN)
    (folder / "dev.tsv").write_text(DEV)
    (folder / "bag.toml").write_text(RECIPE.format(folder=folder))
    return folder / "bag.toml"


@pytest.fixture(scope="module")
def swept(recipe, tmp_path_factory) -> Path:
    """The grid, trained; tests leave it as it is."""
    out = tmp_path_factory.mktemp("swept") / "out"
    sweep(recipe, GRID, out=out)
    return out


@pytest.fixture
def steps(monkeypatch) -> list[int]:
    """The number of every step that is trained from here on."""
    trained = []
    step = Trainer.train_step

    def counted(self):
        trained.append(self.step + 1)
        return step(self)

    monkeypatch.setattr(Trainer, "train_step", counted)
    return trained


def stopping_at(monkeypatch, number: int) -> None:
    """Ctrl-C at the ``number``-th train line from here on."""
    write, left = Log.write, [number]

    def stop(self, trainer, line):
        write(self, trainer, line)
        left[0] -= line["kind"] == "train"
        if left[0] == 0:
            trainer.stop()

    monkeypatch.setattr(Log, "write", stop)


def rows(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "table.jsonl").read_text().splitlines()]


def test_every_combination_is_the_run_that_train_makes(recipe, swept, tmp_path):
    names = [f"learning_rate={rate},steps={steps}" for rate in (0.05, 0.5) for steps in (2, 4)]
    assert sorted(path.name for path in swept.iterdir() if path.is_dir()) == sorted(names)
    alone = train(recipe, ["train.learning_rate=0.5"], out=tmp_path / "alone").folder
    for name in ("model.safetensors", "vocabulary.json"):
        assert (alone / name).read_bytes() == (swept / names[-1] / name).read_bytes()
    assert [row["folder"] for row in rows(swept)] == names
    assert [row["settings"]["train.steps"] for row in rows(swept)] == [2, 4, 2, 4]
    assert {row["state"] for row in rows(swept)} == {"done"}
    losses = [row["metrics"]["loss"] for row in rows(swept)]
    assert [row["best"] for row in rows(swept)] == [loss == min(losses) for loss in losses]
    table = [line.split("\t") for line in (swept / "table.tsv").read_text().splitlines()]
    assert table[0] == ["train.learning_rate", "train.steps", "state", "loss", "accuracy", "f1", "matthews",
                        "steps", "seconds", "best", "folder"]  # fmt: skip
    assert [float(line[3]) for line in table[1:]] == pytest.approx(losses, rel=1e-5)
    about = json.loads((swept / "sweep.json").read_text())
    assert (about["grid"], about["metric"], about["direction"]) == (GRID, "loss", "lower")


def test_nothing_is_trained_twice(recipe, swept, steps, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(swept, out)
    shutil.rmtree(out / "learning_rate=0.05,steps=2")  # to be done again
    shutil.rmtree(out / "learning_rate=0.5,steps=4" / "checkpoints")  # whose model is there all the same
    wider = {**GRID, "train.steps": [2, 4, 1]}
    result = sweep(recipe, wider, out=out)
    assert steps == [1, 2, 1, 1]
    assert result.count("done") == 6
    again = sweep(recipe, wider, out=out, metric="accuracy")
    assert steps == [1, 2, 1, 1]
    assert again.best.metrics["accuracy"] == max(run.metrics["accuracy"] for run in again.runs)


def test_stopped_within_and_between_runs(recipe, swept, steps, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stopping_at(patch, 5)
        result = sweep(recipe, GRID, out=out)
    assert (result.stopped, [run.state for run in result.runs]) == (
        True, ["done", "stopped", "waiting", "waiting"]
    )  # fmt: skip
    assert [row["state"] for row in rows(out)] == ["done", "stopped", "waiting", "waiting"]

    run = Trainer.run

    def killed_as_the_third_begins(self):
        if self.total_steps == 2:
            raise KeyboardInterrupt
        return run(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "run", killed_as_the_third_begins)
        with pytest.raises(KeyboardInterrupt):
            sweep(recipe, GRID, out=out)
    assert [row["state"] for row in rows(out)] == ["done", "done", "stopped", "waiting"]
    result = sweep(recipe, GRID, out=out)
    assert steps == [1, 2, 1, 2, 3, 4, 1, 2, 1, 2, 3, 4]
    assert not result.stopped
    for path in swept.glob("*/model.safetensors"):
        assert path.read_bytes() == (out / path.relative_to(swept)).read_bytes()


def test_a_run_that_diverges_is_told_and_the_rest_goes_on(recipe, steps, tmp_path, monkeypatch):
    step = Trainer.train_step

    def diverging(self):
        if self.settings.learning_rate == 0.5:
            self._refuse(float("nan"), 1.0)
        return step(self)

    monkeypatch.setattr(Trainer, "train_step", diverging)
    grid = {"train.learning_rate": [0.5, 0.05]}
    result = sweep(recipe, grid, out=tmp_path / "out")
    assert [run.state for run in result.runs] == ["failed", "done"]
    assert "loss" in result.runs[0].reason
    assert result.best is result.runs[1]
    assert not result.stopped
    trained = len(steps)
    assert [run.state for run in sweep(recipe, grid, out=tmp_path / "out").runs] == ["failed", "done"]
    assert len(steps) == trained


def test_seeds_by_their_median(recipe, tmp_path):
    grid = {"seed": [1, 2, 3], "train.learning_rate": [0.05, 0.5]}
    result = sweep(recipe, grid, ["train.steps=2", "train.batch_size=1"], out=tmp_path / "out", median="seed")
    assert [group.settings for group in result.groups] == [
        {"train.learning_rate": 0.05}, {"train.learning_rate": 0.5}
    ]  # fmt: skip
    for group, runs in zip(result.groups, (result.runs[::2], result.runs[1::2]), strict=True):
        losses = sorted(run.metrics["loss"] for run in runs)
        assert len(set(losses)) == 3
        assert (group.low, group.median, group.high) == tuple(losses)
    assert result.best.metrics["loss"] == min(group.median for group in result.groups)


def test_figures_are_of_the_weights_that_are_kept(recipe, tmp_path, monkeypatch):
    """With keep_best the best evaluation's, else the last; of equal runs the cheaper one is best."""
    figures = iter([0.3, 0.5, 0.4, 0.3])
    monkeypatch.setattr(_METRICS, lambda *_: {"loss": next(figures)})
    grid = {"train.keep_best": [True, False]}
    result = sweep(recipe, grid, out=tmp_path / "out")
    assert [run.metrics["loss"] for run in result.runs] == [0.3, 0.3]
    assert result.best is result.runs[0]
    told = [{"loss": 0.0, "accuracy": 0.0}, {"loss": 0.3, "accuracy": 0.9}, {"loss": 0.2, "accuracy": 0.8}]
    found = iter(told * 2)  # of each run first what is asked before anything is trained
    monkeypatch.setattr(_METRICS, lambda *_: next(found))
    by_accuracy = ["train.keep_best=true", "train.best_metric=accuracy"]
    result = sweep(recipe, {"seed": [1, 2]}, by_accuracy, out=tmp_path / "by")
    assert result.runs[0].metrics == told[1]
    places = (result.runs[0].folder, result.runs[0].folder / "checkpoints/step-2")
    final, kept = (load_file(place / "model.safetensors") for place in places)
    assert all(torch.equal(kept[key], final[key]) for key in kept)
    monkeypatch.undo()
    with pytest.raises(
        RecipeError, match=r"best_metric 'spearman' is not evaluated .* allowed: loss, accuracy"
    ):
        train(recipe, ["train.keep_best=true", "train.best_metric=spearman"], out=tmp_path / "f1")
    with pytest.raises(RecipeError, match="did you mean 'accuracy'"):
        train(recipe, ["train.keep_best=true", "train.best_metric=acuracy"], out=tmp_path / "f1")
    monkeypatch.setattr(_METRICS, lambda *_: {"loss": 0.1})
    costly_first = sweep(recipe, {"train.steps": [2, 1]}, out=tmp_path / "two")
    assert costly_first.best is costly_first.runs[1]


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (["train.stpes=2,3"], {}, "did you mean 'steps'"),
        (["train.steps=2,3,0"], {}, "greater than or equal to 1"),
        (["train.steps=2,ten"], {}, "'ten'"),
        (["train.steps=2,3,"], {}, "a comma too many"),
        (["train.steps=2", "seed=1"], {}, "nothing to sweep"),
        (["train.steps=2,3", "train.steps=4"], {}, "train.steps is given twice"),
        (["train.learning_rate=2e-5,3e-5,0.00002"], {}, "2e-5 and 0.00002, which are equal"),
        (["train.clip=1.0,none"], {}, "clip=1.0 and clip=none are the same run"),
        (["tokenizer.special_tokens=[1,2"], {}, "] is missing at its end"),
        (["train.per_gpu_batch_size=1,2"], {}, "called 'train.batch_size' here, and counts all devices"),
        (["seed=1,2"], {"metric": "acuracy"}, "did you mean 'accuracy'"),
        (["seed=1,2"], {"metric": "accuracy", "higher": False}, "leave out --minimize"),
        (["seed=1,2"], {"metric": "bleu"}, r"evaluate no 'bleu' .* takes loss, accuracy"),
        (["seed=1,2"], {"median": "sed"}, "did you mean 'seed'"),
        (["seed=1,2", "data.validation=none", "data.validation_fraction=0.0", "train.evaluate_every=0"], {},
         "nothing is held out"),
    ],
)  # fmt: skip
def test_mistakes_are_told_before_anything_is_trained(recipe, steps, tmp_path, arguments, options, says):
    with pytest.raises(RecipeError, match=says) as told:
        sweep(recipe, *split_settings(arguments), out=tmp_path / "out", **options)
    assert "\n" not in str(told.value)
    assert steps == []
    assert not (tmp_path / "out").exists()


def test_mistakes_of_models_and_folders(recipe, swept, steps, tmp_path):
    with pytest.raises(ConfigError, match="n_heads=3"):
        sweep("quickstart", {"model.n_heads": [2, 3]}, ["model.dim=16"], out=tmp_path / "out")
    with pytest.raises(RecipeError, match="evaluate no 'spearman'"):
        sweep(recipe, GRID, metric="spearman", out=swept)
    with pytest.raises(CheckpointError, match="nowhere"):
        sweep(recipe, GRID, start_from="nowhere", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(
        RecipeError, match=r"steps=2: the run was started with another recipe \(train\.weight_decay"
    ):
        sweep(recipe, GRID, ["train.weight_decay=0.5"], out=swept)
    with pytest.raises(CheckpointError, match=r"over train\.learning_rate, train\.steps, not over seed"):
        sweep(recipe, {"seed": [1, 2]}, out=swept)
    with pytest.raises(CheckpointError, match="holds no sweep"):
        sweep(recipe, GRID, out=recipe.parent)
    assert steps == []


def test_a_dry_run_leaves_no_trace(recipe, tmp_path):
    result = sweep(recipe, GRID, out=tmp_path / "out", dry_run=True)
    assert [run.state for run in result.runs] == ["waiting"] * 4
    assert list(tmp_path.iterdir()) == []


def test_figures_that_were_not_measured_alike_are_told(recipe, tmp_path):
    """A loss of tokens depends on the window, an accuracy of texts does not depend on what reads them."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog ran to the cat\n" * 40)
    small = [
        f"data.train={tmp_path}/text.txt", "data.separator=line", "data.validation_fraction=0.2",
        "data.validation=none", "tokenizer.kind=char", "tokenizer.vocab_size=none", "model.dim=8",
        "model.n_layers=1", "model.n_heads=2", "model.max_seq_len=32", "train.minutes=none", "train.steps=1",
        "train.batch_size=2", "train.evaluate_every=1", "train.sample_every=0", "train.device=cpu",
    ]  # fmt: skip
    windows = sweep("quickstart", {"train.seq_len": [8, 16]}, small, out=tmp_path / "windows")
    assert "window: 8, 16" in windows.measured_differently
    alike = sweep("quickstart", {"train.learning_rate": [1e-3, 2e-3]},
                  [*small, "train.seq_len=8"], out=tmp_path / "rates")  # fmt: skip
    assert alike.measured_differently == ""
    rows = sweep(recipe, {"model.max_ngram": [1, 2]}, out=tmp_path / "ngrams")
    assert rows.measured_differently == ""


def test_a_mistake_of_one_combination_leaves_the_others_trained(recipe, steps, tmp_path):
    """It is told at the end, and again by the same command, which trains nothing else twice."""
    grid = {"data.text_column": [3, 1]}
    for wanted in (4, 0):
        before = len(steps)
        with pytest.raises(DataError, match=r"text_column=3: .*train\.tsv:1"):
            sweep(recipe, grid, out=tmp_path / "out")
        assert len(steps) - before == wanted
    assert [row["state"] for row in rows(tmp_path / "out")] == ["waiting", "done"]


@pytest.mark.parametrize("error", [DeviceError, TokenizerError, ChatError, EvaluationError])
def test_any_mistake_of_one_run_leaves_the_others_trained(recipe, tmp_path, monkeypatch, error):
    real, trained = sweep_module.train, []

    def failing(given, **options):
        if given.train.learning_rate == 0.5:
            raise error("this one does not fit")
        trained.append(given.train.learning_rate)
        return real(given, **options)

    monkeypatch.setattr(sweep_module, "train", failing)
    with pytest.raises(error, match=r"learning_rate=0\.5: this one does not fit"):
        sweep(recipe, {"train.learning_rate": [0.5, 0.25]}, out=tmp_path / "out")
    assert trained == [0.25]
    assert [row["state"] for row in rows(tmp_path / "out")] == ["waiting", "done"]


def test_rows_that_are_too_short_are_refused_before_anything(tmp_path):
    with pytest.raises(RecipeError, match=r"long_seq_len 32 is not above train\.seq_len 32"):
        sweep("bert-mini-gutenberg", {"train.long_seq_len": [128, 32]}, out=tmp_path / "out")


def test_the_old_loss_is_a_figure_before_any_run_is_done(tmp_path, monkeypatch):
    """What an untrained model evaluates has none; the recipe's [old_task] says that runs will."""

    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("wordloom.run.sweep.sweep._Sweep.train", stop)
    monkeypatch.setattr("wordloom.run.sweep.sweep.load_config", lambda folder: None)
    with pytest.raises(KeyboardInterrupt):
        sweep("forgetting", {"seed": [1, 2]}, start_from="somewhere", metric="old_loss", higher=False,
              out=tmp_path / "out")  # fmt: skip


def test_commas_within_a_value_and_names_of_folders(recipe):
    grid, overrides = split_settings(
        ['data.train=["a.txt", "b,c"],d/e.txt', 'train.sample_prompt="x, y"', "name=don't,won't", "seed=3"]
    )
    assert grid == {"data.train": ['["a.txt", "b,c"]', "d/e.txt"], "name": ["don't", "won't"]}
    assert overrides == ['train.sample_prompt="x, y"', "seed=3"]
    found = combinations(
        recipe, {"data.train": ["a/b", "a-b"], "model.max_ngram": [1, 2]}, ["data.validation=d"]
    )
    names = [one.name for one in found]
    assert len(set(names)) == 4
    assert all("/" not in name for name in names)
    assert names[2] == "train=a-b,max_ngram=1"
    plus = {"data.train": [["a.txt", "b.txt"], "a.txt+b.txt"]}  # written alike, and not the same
    first, second = (one.name for one in combinations(recipe, plus, ["data.validation=d"]))
    assert first == "train=a.txt+b.txt" != second
    assert second.startswith(f"{first}-")
    both = {"tokenizer.vocab_size": [5, 6], "model.vocab_size": [5, 6]}
    assert combinations(recipe, both)[0].name == "tokenizer.vocab_size=5,model.vocab_size=5"
    many = {"train.learning_rate": ["2e-5", 3e-5], "seed": [1, 2]}
    assert [one.recipe.train.learning_rate for one in combinations(recipe, many)] == [2e-5, 2e-5, 3e-5, 3e-5]


@pytest.mark.parametrize("changes", [[], ["train.keep_best=true", "train.best_metric=pearson"]])
def test_a_figure_that_one_run_does_not_define_leaves_the_others_theirs(
    recipe, monkeypatch, tmp_path, changes
):
    """With numbers that are all the same there is no correlation."""
    nan = float("nan")
    monkeypatch.setattr(
        _METRICS,
        lambda head, _: {"loss": 0.5, "pearson": nan if head.model.dull else 0.25},
    )
    monkeypatch.setattr("wordloom.models.bag_of_words.BagOfWords.dull", True, raising=False)
    grid = {"train.learning_rate": [0.05, 0.5]}

    def run():
        return sweep(recipe, grid, changes, metric="pearson", out=tmp_path / "out")

    say = TrainingProgress.say

    def watched(self, lines):  # from the second run on the model tells classes apart
        if isinstance(lines, str) and "run 2 of 2" in lines:
            monkeypatch.setattr("wordloom.models.bag_of_words.BagOfWords.dull", False)
        say(self, lines)

    monkeypatch.setattr(TrainingProgress, "say", watched)
    for _ in range(2):  # the second time nothing is left to train
        result = run()
        assert [run.metrics.get("pearson") for run in result.runs] == [None, 0.25]
        assert result.best is result.runs[1]
        assert result.undefined == ["learning_rate=0.05: pearson is undefined"]
    assert (tmp_path / "out/learning_rate=0.05/config.json").exists()


def test_a_run_that_fails_before_it_begins_is_told_as_failed(recipe, monkeypatch, tmp_path):
    """As where the timed steps diverge, which leave no folder behind."""

    def diverging(one, *, out, **settings):
        if one.train.learning_rate == 0.05:
            raise NonFiniteError("step 1: the loss is nan")
        return train(one, out=out, **settings)

    monkeypatch.setattr("wordloom.run.sweep.sweep.train", diverging)
    for _ in range(2):
        result = sweep(recipe, {"train.learning_rate": [0.05, 0.5]}, out=tmp_path / "out")
        assert [run.state for run in result.runs] == ["failed", "done"]
        assert result.runs[0].reason == "step 1: the loss is nan"
