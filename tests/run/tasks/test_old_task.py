"""What fine-tuning forgets, measured, and the old task gone on with beside the new one."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.run import bodies
from tests.run.test_train import lines
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.data.batches.mixed import RehearsedBatches
from wordloom.errors import WordloomError
from wordloom.models import BertConfig, build
from wordloom.recipe import load_recipe
from wordloom.run import train
from wordloom.run.sweep.sweep import sweep
from wordloom.text import Tokenizer
from wordloom.training.hooks import Log
from wordloom.weights import load_config, save_model

OLD = """
name = "old"
seed = 9
[data]
train = "{place}/old.txt"
[tokenizer]
{tokenizer}
[model]
family = "{family}"
dim = 16
n_layers = 1
n_heads = 2
max_seq_len = 16
[train]
objective = "{objective}"
steps = {steps}
seq_len = 16
batch_size = 4
learning_rate = 1e-2
precision = "fp32"
compile = "off"
"""
NEW = """
name = "new"
seed = 3
[data]
train = "{place}/rows.tsv"
validation_fraction = 0.25
[old_task]
train = "{place}/old.txt"
seed = 9
[train]
objective = "classification"
steps = 6
seq_len = 16
batch_size = 4
learning_rate = 3e-3
precision = "fp32"
compile = "off"
log_every = 2
evaluate_every = 3
save_every = 3
"""
KINDS = {
    "bert": {"tokenizer": 'kind = "wordpiece"\nvocab_size = 60', "objective": "masked_lm", "steps": 2},
    "gpt2": {"tokenizer": 'kind = "byte"', "objective": "causal_lm", "steps": 60},
}
ROWS = [("the cat sat", "yes"), ("a dog ran far", "no"), ("the cat slept", "yes"), ("dogs run", "no")] * 4


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An old text, new rows, and for each kind a model of the old text."""
    folder = tmp_path_factory.mktemp("forgetting")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORDLOOM_CACHE", str(folder / "cache"))
        patch.setattr("os.fsync", lambda handle: None)
        words = ("the cat sat on a mat and then a dog ran far from it " * 60).split()
        (folder / "old.txt").write_text(" ".join(words[i * 7 % len(words)] for i in range(len(words))))
        table = ["text\tlabel", *("\t".join(row) for row in ROWS)]
        (folder / "rows.tsv").write_text("\n".join(table) + "\n")
        (folder / "new.toml").write_text(NEW.format(place=folder))
        for family, its in KINDS.items():
            (folder / f"{family}.toml").write_text(OLD.format(place=folder, family=family, **its))
            train(folder / f"{family}.toml", out=folder / family)
        yield folder


@pytest.fixture(autouse=True)
def places(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORDLOOM_CACHE", str(place / "cache"))
    monkeypatch.setattr("os.fsync", lambda handle: None)


Tune = Callable[..., Path]


@pytest.fixture
def tune(place: Path, tmp_path: Path) -> Tune:
    def run(kind: str | None, *overrides: str, name: str = "run", **settings: Any) -> Path:
        start = None if kind is None else place / kind
        return train(place / "new.toml", overrides, out=tmp_path / name, start_from=start, **settings).folder

    return run


def told(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "old_task.json").read_text())
    return found


def of_kind(run: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
            if line["kind"] == kind]  # fmt: skip


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_loss_before_is_the_checkpoints_and_tiny_steps_keep_it(
    kind: str, place: Path, tune: Tune
) -> None:
    run = tune(kind, "train.learning_rate=1e-9", "model.dropout=0.0")
    losses = told(run)
    if kind == "bert":
        own = bodies.scored_at_the_command(place / kind)["loss"]
    else:
        own = of_kind(place / kind, "evaluate")[-1]["loss"]
    assert losses["before"] == pytest.approx(own, abs=1e-5)
    assert losses["after"] == pytest.approx(losses["before"], abs=1e-5)
    assert [line["step"] for line in of_kind(run, "old_task")] == [0, 6]
    assert of_kind(run, "old_task")[1]["loss"] == losses["after"]
    assert "old_task" in json.loads((run / "ledger.json").read_text())


@pytest.mark.parametrize("kind", list(KINDS))
def test_plain_steps_leave_the_old_head_alone(kind: str, place: Path, tune: Tune) -> None:
    """The embeddings that it shares with the body move; what is its own does not, and stays in the folder."""
    run = tune(kind, "old_task.every_evaluation=true")
    assert [line["step"] for line in of_kind(run, "old_task")] == [0, 3, 6]
    assert told(run)["after"] != told(run)["before"]
    assert load_config(run).language_model
    old, new = (load_file(folder / "model.safetensors") for folder in (place / kind, run))
    own = [name for name in old if name.startswith("cls.predictions")]
    assert all(torch.equal(old[name], new[name]) for name in own)
    assert bool(own) == (kind == "bert")
    again = tune(kind, name="again")  # from what was tuned, the old task is measured on
    shutil.rmtree(again)
    train(place / "new.toml", ["train.steps=1"], out=again, start_from=run)
    assert told(again)["before"] == pytest.approx(told(run)["after"], abs=1e-5)


class Numbers:
    """Rows that are their own numbers."""

    samples_per_epoch = 100

    def __init__(self, sign: int) -> None:
        self.sign = sign

    def batch(self, start: int, count: int) -> list[int]:
        return [self.sign * n for n in range(start, start + count)]

    def document_ids(self, start: int, count: int) -> list[str]:
        return [f"{self.sign}#{start}"]


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
def test_a_share_of_the_steps_is_of_old_rows_in_order(share: float) -> None:
    mixed = RehearsedBatches(Numbers(1), Numbers(-1), batch_size=4, rows=3, share=share)
    steps = [[mixed.batch(4 * step, 2), mixed.batch(4 * step + 2, 2)] for step in range(40)]
    old = [row for parts in steps for part in parts for row in part.old or ()]
    new = [row for parts in steps for part in parts for row in part.new or ()]
    assert len(old) == 3 * round(40 * share)
    assert old == [-n for n in range(len(old))]
    assert new == list(range(4 * (40 - round(40 * share))))
    assert all(len({part.old is None for part in parts}) == 1 for parts in steps)  # a step is of one kind
    assert mixed.samples_per_epoch == round(100 / (1 - share))


def test_both_in_every_step() -> None:
    mixed = RehearsedBatches(Numbers(1), Numbers(-1), batch_size=4, rows=2, share=None)
    assert mixed.batch(8, 4)[:2] == ([8, 9, 10, 11], [-4, -5])
    assert mixed.batch(8, 2)[:2] == ([8, 9], [-4])
    assert [each.tolist() for each in mixed.batch(8, 2)[2:]] == [[8, 9], [4]]
    assert mixed.document_ids(8, 2) == ["1#8", "-1#4"]


REHEARSAL = ("train.rehearsal_share=0.34",)
TOKENS = ("data.task_tokens=true",)  # which a tokenizer that goes on has already
AUXILIARY = ('train.language_model_texts="old"', "train.language_model_weight=0.5")


@pytest.mark.parametrize(("kind", "remedy"), [("bert", REHEARSAL), ("gpt2", (*AUXILIARY, *TOKENS))])
def test_a_run_cut_short_ends_with_the_same_bits(kind: str, remedy: tuple[str, ...], tune: Tune) -> None:
    given = (*remedy, "train.keep_last=9", "train.micro_batch_size=2")
    whole = tune(kind, *given)
    cut = tune(kind, *given, name="cut")
    shutil.rmtree(cut / "checkpoints/step-6")
    for name in ("config.json", "model.safetensors", "old_task.json"):
        (cut / name).unlink()
    tune(kind, *given, name="cut", resume=True)
    assert lines(whole) == lines(cut)
    for name in ("model.safetensors", "old_task.json"):
        assert (whole / name).read_bytes() == (cut / name).read_bytes()
    if remedy is REHEARSAL:  # steps 3 and 6
        assert ["old_loss" in line for line in of_kind(whole, "train")] == [False, True, True]


@pytest.mark.parametrize(("kind", "remedy"), [("gpt2", REHEARSAL), ("bert", REHEARSAL), ("bert", AUXILIARY)])
def test_gradient_checkpointing_changes_no_number(kind: str, remedy: tuple[str, ...], tune: Tune) -> None:
    """The second pass drops what the first did, though it is made for the rows of another batch."""
    given = (*remedy, "train.micro_batch_size=2", "lora.rank=2", "lora.dropout=0.5")
    first = load_file(tune(kind, *given) / "adapter_model.safetensors")
    second = load_file(
        tune(kind, *given, "train.gradient_checkpointing=true", name="again") / "adapter_model.safetensors"
    )
    for key, tensor in first.items():
        torch.testing.assert_close(tensor, second[key], rtol=1e-5, atol=1e-6)


def test_a_budget_that_is_used_up_is_measured(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped run is continued with a budget of as many steps as it has taken."""
    monkeypatch.setattr(Log, "after_step", stopping_after(3, Log.after_step))
    tune("gpt2", "train.evaluate_every=0", "train.save_every=0")
    monkeypatch.undo()
    run = tune("gpt2", "train.evaluate_every=0", "train.save_every=0", "train.steps=3", resume=True)
    assert told(run)["step"] == 3


def stopping_after(step: int, real: Any) -> Any:
    def after_step(self: Log, trainer: Any, record: Any) -> None:
        real(self, trainer, record)
        if trainer.step == step:
            trainer.stop()

    return after_step


def test_rehearsal_keeps_more_of_the_old_task(place: Path, tune: Tune) -> None:
    fast = ("train.steps=40", "train.learning_rate=1e-2", "train.evaluate_every=0", "train.save_every=0")
    plain = told(tune("gpt2", *fast))
    kept = told(tune("gpt2", *fast, "train.rehearsal_share=0.5", name="rehearsed"))
    assert kept["before"] == plain["before"]
    assert kept["after"] < plain["before"] < plain["after"]


def test_tokens_are_those_of_both_tasks(place: Path, tune: Tune) -> None:
    given = ("train.tokens=400", "train.evaluate_every=0", "train.save_every=0")
    plain = of_kind(tune("bert", *given), "train")[-1]
    rehearsed = of_kind(tune("bert", *given, "train.rehearsal_share=0.5", name="rehearsed"), "train")[-1]
    both = of_kind(tune("bert", *given, *AUXILIARY, name="both"), "train")[-1]
    for line in (plain, rehearsed, both):
        assert 400 <= line["tokens"] < 450
    assert both["step"] == pytest.approx(plain["step"] / 2, abs=2)


def test_joint_training_begins_afresh(place: Path, tune: Tune) -> None:
    afresh = [f"tokenizer.path={place}/gpt2", "model.family=gpt2", "model.dim=16", "model.n_layers=1"]
    run = tune(None, *afresh, "model.n_heads=2", "train.rehearsal_share=0.5", "train.steps=20",
               "train.learning_rate=1e-2")  # fmt: skip
    assert told(run)["before"] == pytest.approx(math.log(load_config(run).vocab_size), abs=0.1)
    assert told(run)["after"] < told(run)["before"]


def test_a_language_model_of_a_new_text_is_measured_on_the_old_one(place: Path, tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("rain fell all night and we slept " * 80)
    change = [f"data.train={tmp_path}/new.txt", "train.objective=causal_lm", "train.rehearsal_share=0.5"]
    run = train(place / "new.toml", change, out=tmp_path / "run", start_from=place / "gpt2").folder
    assert told(run)["before"] == pytest.approx(of_kind(place / "gpt2", "evaluate")[-1]["loss"], abs=1e-5)
    assert any("old_loss" in line for line in of_kind(run, "train"))


def test_keep_best_tells_of_the_weights_it_keeps(tune: Tune) -> None:
    run = tune("gpt2", "train.keep_best=true", "train.learning_rate=0.3")
    best = min(of_kind(run, "evaluate"), key=lambda line: line["loss"])["step"]
    losses = {line["step"]: line["loss"] for line in of_kind(run, "old_task")}
    assert (told(run)["step"], told(run)["after"]) == (best, losses[best])


def test_runs_stand_beside_one_another(place: Path, tmp_path: Path) -> None:
    out, view = tmp_path / "sweep", ["inspect", str(tmp_path / "sweep"), "forgetting"]
    result = sweep(
        place / "new.toml",
        {"train.rehearsal_share": [None, 0.5]},
        ["train.steps=2", "train.save_every=0"],
        out=out,
        start_from=place / "gpt2",
    )
    assert [set(run.metrics) for run in result.runs] == [
        {"loss", "accuracy", "f1", "matthews", "old_loss_before", "old_loss"}
    ] * 2
    done = CliRunner().invoke(app, [*view, "--json", "--plot", str(tmp_path / "seen.svg")])
    assert done.exit_code == 0, done.exception
    alone, rehearsed = json.loads(done.stdout)
    assert (alone["remedy"], alone["label"]) == ("fine-tuning alone", "rate 3e-3")
    assert (rehearsed["remedy"], rehearsed["label"]) == ("rehearsal", "50 %")
    for told_of, run in zip((alone, rehearsed), result.runs, strict=True):
        assert (told_of["metric"], told_of["score"]) == ("accuracy", run.metrics["accuracy"])
        assert (told_of["before"], told_of["after"]) == (
            run.metrics["old_loss_before"], run.metrics["old_loss"],
        )  # fmt: skip
    drawn = (tmp_path / "seen.svg").read_text()
    for text in ("fine-tuning alone", "50 %", "new task: accuracy", "checkpoint before training"):
        assert text in drawn
    wrong = CliRunner().invoke(app, [*view, "--metric", "acuracy"])
    assert "did you mean 'accuracy'" in str(wrong.exception)
    wrong = CliRunner().invoke(app, ["inspect", str(place / "gpt2"), "forgetting"])
    assert "holds no finished run" in str(wrong.exception)
    path = result.runs[0].folder / "old_task.json"
    path.write_text(path.read_text().replace("window:16", "window:8"))
    assert "cannot be compared" in str(CliRunner().invoke(app, view).exception)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["train.language_model_weight=1.5", *AUXILIARY[:1]], "less than or equal to 1"),
        (["train.rehearsal_share=1.0"], "less than 1"),
        (["train.rehearsal_share=0.0"], "greater than 0"),
        (["train.rehearsal_share=0.1", "old_task=none"], "needs old text: name it as old_task.train"),
        (["train.rehearsal_share=0.1", *AUXILIARY], "give one of them"),
        (["train.language_model_weight=0.5"], 'train.language_model_texts = "old"'),
        (["old_task.trian=x"], "did you mean 'train'"),
        (["old_task.document_mask=true"], "old_task.document_mask is not a setting of"),
        (["old_task.seq_len=99"], "rows of [old_task] have 99 tokens and the model reads 16"),
        (["old_task.train=none"], "[old_task] names no text"),
        (["old_task.train=nowhere.txt"], "nowhere.txt"),
    ],
)
def test_mistakes_are_one_line(place: Path, tmp_path: Path, overrides: list[str], says: str) -> None:
    command = ["train", str(place / "new.toml"), *overrides, "--from", str(place / "bert"), "--out"]
    done = CliRunner().invoke(app, [*command, str(tmp_path / "run")])
    assert isinstance(done.exception, WordloomError)  # exit code 2
    assert says in str(done.exception)
    assert "\n" not in str(done.exception)


def test_a_checkpoint_without_its_old_head_is_refused(place: Path, tmp_path: Path) -> None:
    body = build(BertConfig(vocab_size=60, dim=16, n_layers=1, n_heads=2, max_seq_len=16))
    save_model(body, tmp_path / "body", tokenizer=Tokenizer.from_pretrained(place / "bert"))
    with pytest.raises(Exception, match=r"body holds no head for masked tokens .*leave \[old_task\]"):
        train(place / "new.toml", out=tmp_path / "run", start_from=tmp_path / "body")
    assert not (tmp_path / "run").exists()


def test_a_new_old_text_makes_room_for_itself(place: Path) -> None:
    told_apart = load_recipe(place / "new.toml", [f"old_task.validation={place}/old.txt"])
    assert told_apart.old_task is not None
    path = place / "apart.toml"
    path.write_text(told_apart.to_toml())
    changed = load_recipe(path, ["old_task.train=elsewhere.txt"]).old_task
    assert changed is not None
    assert changed.validation is None


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_text_may_be_there_to_be_measured_alone(kind: str, place: Path, tmp_path: Path) -> None:
    """The loss is that of a run which holds the same text out, whole."""
    words = (place / "old.txt").read_text().split()
    (tmp_path / "held.txt").write_text(" ".join(words[:300]))
    own = train(
        place / f"{kind}.toml",
        [f"data.validation={tmp_path}/held.txt", "train.steps=1", "train.learning_rate=1e-9"],
        out=tmp_path / "own",
        start_from=place / kind,
    ).metrics["loss"]
    old, alone = f'train = "{place}/old.txt"', f'validation = "{tmp_path}/held.txt"'
    (tmp_path / "new.toml").write_text((place / "new.toml").read_text().replace(old, alone))
    run = train(tmp_path / "new.toml", out=tmp_path / "run", start_from=place / kind).folder
    assert told(run)["before"] == pytest.approx(own, abs=1e-5)
