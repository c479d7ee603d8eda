"""A whole comparison: each run trained once, resumed where it stopped, and equal to the run alone."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.data.rows.choices import choice_rows
from wordloom.errors import CheckpointError, DataError, DeviceError, NonFiniteError, RecipeError
from wordloom.evaluate import choices, perplexity
from wordloom.evaluate.baselines import KneserNey
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.run import LanguageModel, load_as, train
from wordloom.run.compare import runs as runs_module
from wordloom.run.compare.budget import Budget
from wordloom.run.compare.compare import compare
from wordloom.run.compare.entries import Entry, family_entry, shape_of
from wordloom.run.compare.result import Result, Row
from wordloom.run.compare.settings import Settings, base_recipe
from wordloom.run.folder import name_of
from wordloom.training.hooks import Log

FAMILIES = ["ngram", "bag", "gru", "llama-band", "bert"]
#: What differs between two runs of one comparison: times.
TIMES = ("minutes", "decoded_per_second")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(3)
    words = ["the", "cat", "dog", "sat", "on", "a", "mat", "and", "ran", "far", "away", "é"]
    lines = [" ".join(rng.choices(words, k=rng.randint(3, 12))) for _ in range(400)]
    path = tmp_path_factory.mktemp("compare") / "text.txt"
    path.write_text("\n".join(lines))
    return path


def settings(text: Path, **changes: Any) -> Settings:
    given = {
        "source": str(text),
        "budget": Budget("tokens", 6000),
        "families": FAMILIES,
        "parameters": [25e3],
        "tokenizer": "byte",
        "seeds": 2,
        "rates": 2,
        "overrides": [
            *("data.separator=line", "train.seq_len=23", "train.batch_size=5", "train.evaluate_windows=7"),
            "train.device=cpu",
        ],
    }
    return Settings(**{**given, **changes})


@pytest.fixture(scope="module")
def result(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    found = compare(settings(text), out=tmp_path_factory.mktemp("result"), progress=TrainingProgress())
    assert isinstance(found, Result)
    return found


def row_of(result: Result, name: str) -> Row:
    return next(row for row in result.rows if row.name == name)


def without_times(result: Result) -> dict[str, Any]:
    values = result.as_dict()
    for row in values["rows"]:
        for name in (*TIMES, "folder"):
            del row[name]
        for point in row["points"]:
            del point["minutes"]
    return values


def test_all_files_and_rows_are_there(result: Result) -> None:
    assert {row.name for row in result.rows} == {*FAMILIES, "lzma"}
    names = {path.name for path in result.folder.iterdir()}
    assert {"table.txt", "table.json", "table.csv", "compare.png", "report.html", "models"} <= names
    assert json.loads((result.folder / "table.json").read_text()) == json.loads(json.dumps(result.as_dict()))
    page = (result.folder / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    for row in result.rows:
        assert row.title in page
        if row.sample:
            assert "<pre>" in page
    for row in result.causal:
        if row.parameters is None:
            continue
        assert len(row.seeds) == 2
        assert row.seeds[0] != row.seeds[1]
        assert row.tokens == 6000 // 115 * 115
        assert [point.share for point in row.points] == [0.03, 0.1, 0.3, 1.0]
        assert row.memory > 12 * row.parameters
        assert row.decoded_per_second > 0
        assert row.positions[0][0] == 1
        assert 2 < row.score < 9
    assert row_of(result, "bert").score > 1
    assert [point.share for point in row_of(result, "bert").points] == [0.03, 0.1, 0.3, 1.0]
    assert {path.name for path in result.folder.glob("*.png")} == {"compare.png", "encoders.png"}


def test_a_model_is_scored_as_evaluate_does_and_the_ngram_as_in_the_demo(result: Result, text: Path) -> None:
    row = row_of(result, "llama-band")
    lm = load_as(LanguageModel, row.folder)
    lines = text.read_text().split("\n")
    held_out = [line for line in lines if line][-result.units :]
    # the split is by characters: the first held-out line may be the end of a training line
    size = sum(len(line.encode()) for line in held_out)
    held_out[0] = held_out[0].encode()[size - result.held_out_bytes :].decode()
    score = perplexity(lm.model, lm.text_tokenizer, held_out)["bits_per_byte"]
    assert row.seeds[0] == pytest.approx(score.value, rel=1e-6)
    train_text = "\n".join(lines)[: -len("\n".join(held_out))].split("\n")
    stream = b"".join(line.encode() + b"\0" for line in held_out)
    ngram = KneserNey(order=5).fit(b"".join(line.encode() + b"\0" for line in train_text if line))
    expected = ngram.bits_per_byte(stream) * len(stream) / result.held_out_bytes
    assert row_of(result, "ngram").score == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["gru", "bag"])
def test_a_run_alone_gives_the_same_bytes(result: Result, name: str, tmp_path: Path) -> None:
    folder = Path(row_of(result, name).folder)
    train(folder / "recipe.toml", out=tmp_path / "alone")
    assert (tmp_path / "alone/model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_a_comparison_that_was_stopped_continues_to_the_same_table(
    result: Result, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops in the middle of a run, in each of three calls, and trains no finished run again."""
    real, trained, budget = runs_module.train, [], {"left": 0}

    def stopping(recipe: Any, **options: Any) -> Any:
        trained.append(recipe.name)
        budget["left"] -= 1
        if budget["left"] < 0:
            raise KeyboardInterrupt
        return real(recipe, **options)

    monkeypatch.setattr(runs_module, "train", stopping)
    # its tokenizer.path is compared too, so the folder has the same name
    again = settings(text)
    for left in (3, 8, 9):
        budget["left"] = left
        stopped = compare(again, out=tmp_path / "again")
        assert isinstance(stopped, Result)
        assert stopped.stopped
    budget["left"] = 1000
    found = compare(again, out=tmp_path / "again")
    assert isinstance(found, Result)
    assert not found.stopped
    assert len(trained) == len(set(trained)) + 3
    assert without_times(found) == without_times(result)
    trained.clear()
    assert without_times(compare(again, out=tmp_path / "again")) == without_times(result)
    assert not trained


def test_a_signal_after_the_last_step_of_a_run_stops_the_comparison(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has ended, and the next one does not begin."""
    write, trained = Log.write, []

    def stop(self: Log, trainer: Any, line: dict[str, Any]) -> None:
        write(self, trainer, line)
        if trainer.step == trainer.total_steps:
            trained.append(line)
            trainer.stop()

    monkeypatch.setattr(Log, "write", stop)
    found = compare(settings(text, families=["bag"], seeds=1, rates=3), out=tmp_path / "one")
    assert isinstance(found, Result)
    assert found.stopped
    assert len({line["kind"] for line in trained}) == len(trained)  # of one run
    assert len(list((tmp_path / "one" / "trials").iterdir())) == 1


def test_a_run_that_diverges_is_left_out(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = runs_module.train

    def diverging(recipe: Any, **options: Any) -> Any:
        if recipe.name.startswith("bag") or recipe.name == "rnn-rate-0.002":
            raise NonFiniteError("the loss is not finite")
        return real(recipe, **options)

    monkeypatch.setattr(runs_module, "train", diverging)
    two = settings(text, families=["bag", "rnn"], seeds=1)
    found = compare(two, out=tmp_path / "diverging")
    assert isinstance(found, Result)
    assert [row.name for row in found.rows if row.parameters] == ["rnn"]
    assert any("bag of words (order-free) diverged with every learning rate" in note for note in found.notes)
    assert "each model has one seed, so how much seeds differ is not known" in found.notes
    (lower, loss), (higher, none) = row_of(found, "rnn").trials
    assert (lower, higher, none) == (0.001, 0.002, None)
    assert 0 < loss < 10


def test_seeds_that_diverge_are_named(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first seed that does not is measured as the first; a model whose every seed does is left out."""
    real = runs_module.train

    def diverging(recipe: Any, **options: Any) -> Any:
        if recipe.name == "bag-seed-1337" or recipe.name.startswith("rnn-seed"):
            raise NonFiniteError("the loss is not finite")
        return real(recipe, **options)

    monkeypatch.setattr(runs_module, "train", diverging)
    found = compare(settings(text, families=["bag", "rnn"], rates=1), out=tmp_path / "diverging")
    assert isinstance(found, Result)
    bag = row_of(found, "bag")
    assert (len(bag.seeds), bag.seed_numbers) == (1, [1338])
    assert bag.sample
    assert bag.positions
    assert bag.decoded_per_second is not None
    assert (
        "bag of words (order-free) diverged with seed 1337 of 2: its score is that of the others"
        in found.notes
    )
    assert "tanh RNN diverged with seeds 1337, 1338 of 2: it is left out" in found.notes
    assert [row.name for row in found.rows if row.parameters] == ["bag"]
    lines = (tmp_path / "diverging" / "table.csv").read_text().splitlines()
    assert [line.split(",")[3] for line in lines if line.startswith("bag,")] == ["1338"]


def test_a_model_that_the_memory_does_not_hold_is_left_out(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = runs_module.train

    def refusing(recipe: Any, **options: Any) -> Any:
        if recipe.name.startswith("rnn-rate-0.002") or recipe.name.startswith(also):
            raise DeviceError("this run needs about 9.0 GiB and 2.0 GiB are free; lower something")
        return real(recipe, **options)

    monkeypatch.setattr(runs_module, "train", refusing)
    also, two = "-", settings(text, families=["bag", "rnn"], seeds=1)
    found = compare(two, out=tmp_path / "small")
    assert isinstance(found, Result)
    assert [row.name for row in found.rows if row.parameters] == ["bag"]
    assert "tanh RNN is left out: this run needs about 9.0 GiB and 2.0 GiB are free" in found.notes
    assert not any("diverged" in note for note in found.notes)
    also = "bag"
    with pytest.raises(DeviceError, match="lower something"):
        compare(two, out=tmp_path / "none")
    monkeypatch.setattr(runs_module, "train", real)
    found = compare(two, out=tmp_path / "small")  # on a larger machine
    assert isinstance(found, Result)
    assert {row.name for row in found.rows if row.parameters} == {"bag", "rnn"}


def test_baselines_need_memory(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "wordloom.run.compare.baselines.psutil.virtual_memory"
    one = settings(text, families=["ngram"])
    with monkeypatch.context() as full:
        full.setattr(module, lambda: SimpleNamespace(available=2**16))
        found = compare(one, out=tmp_path / "full")
    assert isinstance(found, Result)
    assert not found.rows
    assert [note.partition(" is left out: ")[0] for note in found.notes] == [
        "order-5 Kneser-Ney n-gram of bytes",
        "lzma",
    ]
    found = compare(one, out=tmp_path / "full")
    assert isinstance(found, Result)
    assert {row.name for row in found.rows} == {"ngram", "lzma"}


@pytest.mark.parametrize("prompt", [None, "The dog"])
def test_a_prompt_that_the_tokenizer_cannot_read_is_refused_before_the_training(
    tmp_path: Path, prompt: str | None
) -> None:
    poem = tmp_path / "poem.txt"
    poem.write_text("床前明月光\n疑是地上霜\n举头望明月\n低头思故乡\n" * 40)
    one = settings(poem, families=["bag"], seeds=1, rates=1, tokenizer="char", prompt=prompt)
    one = replace(one, overrides=[*one.overrides[1:]])  # the poem is one document
    if prompt is None:
        found = compare(one, out=tmp_path / "poems")
        assert isinstance(found, Result)
        assert found.prompt in poem.read_text()
        return
    with pytest.raises(RecipeError, match=r"samples cannot begin with 'The dog' .--prompt.: ") as caught:
        compare(one, out=tmp_path / "poems")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "poems" / "trials").exists()


def test_entries_that_differ_in_case_alone(text: Path, tmp_path: Path) -> None:
    own = tmp_path / "GRU.toml"
    own.write_text(
        '[data]\ntrain = "x.txt"\n[model]\nfamily = "gpt"\ndim = 12\nn_heads = 3\nn_layers = 1\n'
        "[train]\nsteps = 3\n"
    )
    with pytest.raises(RecipeError, match="two entries are called 'GRU'"):
        compare(settings(text, families=["gru"], recipes=[str(own)]), out=tmp_path / "out")


def test_a_folder_without_runs_takes_another_text(text: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("\n".join("".join(random.Random(n).choices("abcxyz ", k=40)) for n in range(200)))
    ngram = settings(text, families=["ngram"])
    compare(ngram, out=tmp_path / "reused")
    for out in ("reused", "fresh"):
        compare(replace(ngram, source=str(other)), out=tmp_path / out)
    first, second = ((tmp_path / out / "table.json").read_bytes() for out in ("reused", "fresh"))
    assert first == second


def test_a_folder_without_runs_takes_a_changed_text(text: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.txt"
    ngram = settings(copy, families=["ngram"])
    for content in (text.read_text(), text.read_text()[::-1]):
        copy.write_text(content)
        compare(ngram, out=tmp_path / "reused")
    compare(ngram, out=tmp_path / "fresh")
    first, second = ((tmp_path / out / "table.json").read_bytes() for out in ("reused", "fresh"))
    assert first == second


def test_lzma_and_tasks_that_fail_take_nothing_else_along(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    """Too long a text for lzma is a note; a task that cannot be read now is tried again by the next call."""
    monkeypatch.setattr("wordloom.evaluate.baselines._LZMA_MAX_DICTIONARY", 1000)

    def unreachable(*_: Any) -> float:
        raise DataError("the network is down")

    module = "wordloom.run.compare.compare.task_score"
    one = settings(text, families=["bag"], rates=1, tasks=["copa/eval"])
    with monkeypatch.context() as broken:
        broken.setattr(module, unreachable)
        found = compare(one, out=tmp_path / "failing")
    assert isinstance(found, Result)
    assert row_of(found, "bag").tasks == {"copa/eval": None}
    assert "bag-seed-1337 is not scored on copa/eval: the network is down" in found.notes
    assert any(note.startswith("lzma is left out: ") for note in found.notes)
    monkeypatch.setattr(module, lambda *_: 0.25)
    again = compare(replace(one, seeds=1), out=tmp_path / "failing")
    assert isinstance(again, Result)
    assert row_of(again, "bag").tasks == {"copa/eval": 0.25}
    assert len(row_of(again, "bag").seeds) == 2  # those that are trained stay


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
@pytest.mark.parametrize("source", ["quickstart", "lstm-ptb-small", "llama-gutenberg"])
def test_another_tokenizer_replaces_that_of_the_recipe(source: str, kind: str) -> None:
    given = ["tokenizer.vocab_size=900"] if kind == "bpe" else []
    made = settings(Path(source), tokenizer=kind, overrides=given)
    recipe = base_recipe(made, TrainingProgress())
    assert recipe.tokenizer.kind == kind
    assert recipe.tokenizer.vocab_size == (900 if kind == "bpe" else None)
    assert recipe.tokenizer.split is None


@pytest.mark.parametrize("dim", [1, 33, 100, 200, 650])
def test_models_that_attend_beside_a_recurrent_recipe(dim: int) -> None:
    values = {"family": "rnn", "dim": dim, "hidden_dim": 4 * dim, "n_layers": 2, "cell": "lstm"}
    recipe = Recipe.model_validate({
        "name": "r", "data": {"train": "a.txt"}, "tokenizer": {"kind": "byte"}, "model": values,
        "train": {"objective": "truncated_bptt", "steps": 1, "seq_len": 24, "batch_size": 3},
    })  # fmt: skip
    shape = shape_of(recipe, 258)
    assert shape.dim % shape.n_heads == 0
    assert dim % 2 or shape.dim // shape.n_heads % 2 == 0
    assert dim < 33 or 16 <= shape.dim // shape.n_heads <= 64
    for name in ("gpt2", *(["llama"] if dim % 2 == 0 else [])):
        entry = family_entry(name, recipe, shape, 258)
        assert abs(entry.weights / shape.weights - 1) < 0.1


def test_a_signal_while_steps_are_timed_stops(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An equal call keeps what was timed.  Another budget is allowed, because no run has begun."""
    one = settings(text, families=["bag", "rnn"], seeds=1, rates=1, budget=Budget("minutes", 0.02))
    timed: list[str] = []

    def time_step(entry: Entry, minutes: float, folder: Path, progress: Any) -> float:
        timed.append(entry.name)
        (folder / "recipe.toml").parent.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.toml").touch()
        if len(timed) == 2:
            raise KeyboardInterrupt
        return 0.001

    monkeypatch.setattr("wordloom.run.compare.schedule.time_step", time_step)
    found = compare(one, out=tmp_path / "minutes")
    assert isinstance(found, Result)
    assert found.stopped
    assert not found.rows
    assert timed == ["bag", "rnn"]
    (tmp_path / "minutes" / "trials" / "kept").touch()
    for budget, stays in ((0.02, True), (0.03, False)):
        timed[:] = ["bag"]
        found = compare(replace(one, budget=Budget("minutes", budget)), out=tmp_path / "minutes")
        assert isinstance(found, Result)
        assert found.stopped
        assert (tmp_path / "minutes" / "trials" / "kept").exists() == stays


def test_minutes_are_converted_once(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = settings(text, families=["bag"], seeds=1, rates=1, budget=Budget("minutes", 0.02))
    found = compare(one, out=tmp_path / "minutes")
    assert isinstance(found, Result)
    steps = row_of(found, "bag").tokens
    monkeypatch.setattr("wordloom.run.compare.schedule.time_step", None)
    again = compare(one, out=tmp_path / "minutes")
    assert isinstance(again, Result)
    assert row_of(again, "bag").tokens == steps


def test_steps_are_timed_by_turns_and_the_fastest_count(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log, the lower quartile of the times counts, and of the rounds the fastest."""
    timed: list[str] = []

    def logged(recipe: Recipe, out: Path, **_: object) -> SimpleNamespace:
        timed.append(recipe.name)
        out.mkdir(parents=True)
        factor = {1: 1, 2: 3, 3: 2}[-(-len(timed) // 2)] * (1 if recipe.name.startswith("bag") else 2)
        speeds = [9000, *[10 * factor] * 3, 20 * factor, *[30 * factor] * 2, 40 * factor]
        lines = [json.dumps({"kind": "train", "tokens_per_second": speed}) + "\n" for speed in speeds]
        (out / "metrics.jsonl").write_text("".join(lines))
        return SimpleNamespace(interrupted=False)

    monkeypatch.setattr(runs_module, "train", logged)
    two = settings(text, families=["bag", "rnn"], seeds=1, rates=1, budget=Budget("minutes", 30))
    planned = compare(two, out=tmp_path / "minutes", dry_run=True)
    assert isinstance(planned, list)
    assert timed == ["bag-timing", "rnn-timing"] * 3
    bag, rnn = (next(run for run in planned if run.name == f"{name}-seed-1337") for name in ("bag", "rnn"))
    tokens = bag.entry.tokens_per_step
    assert bag.recipe.train.steps == round(30 * 60 * 90 / tokens)
    assert rnn.recipe.train.steps == round(30 * 60 * 180 / tokens)


def test_a_note_says_which_models_missed_the_minutes(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wordloom.run.compare.schedule.time_step", lambda *_: 60.0)
    one = settings(text, families=["bag"], seeds=1, rates=1, budget=Budget("minutes", 50))
    found = compare(one, out=tmp_path / "minutes")
    assert isinstance(found, Result)
    minutes = row_of(found, "bag").minutes
    assert minutes is not None
    assert f"planned for 50 minutes each, these models took bag of words (order-free) {minutes:.1f}: " in str(
        found.notes
    )


def test_an_own_recipe_two_sizes_and_tasks_that_are_added_later(
    text: Path, tmp_path: Path, data: Path
) -> None:
    own = tmp_path / "mine.toml"
    own.write_text(
        '[data]\ntrain = "nothing.txt"\n[model]\nfamily = "gpt"\ndim = 12\nn_heads = 3\nn_layers = 1\n'
        "[train]\nsteps = 3\nlearning_rate = 0.003\n"
    )
    both = settings(text, families=["bag"], parameters=[20e3, 30e3], recipes=[str(own)], seeds=1, rates=1)
    found = compare(both, out=tmp_path / "both")
    assert isinstance(found, Result)
    assert {row.name for row in found.rows if row.parameters} == {"bag-20k", "bag-30k", "mine"}
    assert row_of(found, "mine").rate == 0.003
    with pytest.raises(RecipeError, match="has no mask token"):
        compare(replace(both, families=["bert"]), out=tmp_path / "both")
    later = compare(replace(both, tasks=["copa/eval"], families=["ngram", "bag"]), out=tmp_path / "both")
    assert isinstance(later, Result)
    mine, bag = row_of(later, "mine"), row_of(later, "bag-20k")
    again = compare(replace(both, families=["ngram"], recipes=[]), out=tmp_path / "both")
    assert isinstance(again, Result)
    assert {row.name for row in again.rows} == {row.name for row in later.rows}  # and bert was not kept
    before = (tmp_path / "both" / "compare.json").read_bytes()
    assert compare(replace(both, families=["gru"]), out=tmp_path / "both", dry_run=True)
    assert (tmp_path / "both" / "compare.json").read_bytes() == before
    lm = load_as(LanguageModel, bag.folder)
    expected = choices(lm.model, lm.text_tokenizer, choice_rows(["copa/eval"], answered=True))
    assert bag.tasks == {"copa/eval": expected["accuracy"].value}
    assert mine.tasks == {"copa/eval": None}
    assert any("mine-seed-1337 is not scored on copa/eval: " in note for note in later.notes)
    assert row_of(later, "ngram").tasks == {"copa/eval": None}
    assert mine.score == row_of(found, "mine").score
    own.unlink()  # the folder has a copy
    again = compare(both, out=tmp_path / "both")
    assert isinstance(again, Result)
    assert row_of(again, "mine").score == mine.score
    with pytest.raises(RecipeError, match=r"mine\.toml"):
        compare(both, out=tmp_path / "new")


def test_the_learning_rate_rises_in_a_fifth_of_the_steps(text: Path, tmp_path: Path) -> None:
    given = settings(text, families=["lstm"], budget=Budget("tokens", 1e6), seeds=1)
    runs = compare(given, out=tmp_path / "dry", dry_run=True)
    assert isinstance(runs, list)
    found = {run.purpose: (run.recipe.train.steps, run.recipe.train.warmup_steps) for run in runs}
    assert found == {"rate": (870, 174), "curve": (2609, 200), "final": (8696, 200)}


# -- the command -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", ["1M", "6k"])
def test_a_dry_run_prints_the_runs_and_writes_nothing(text: Path, tmp_path: Path, budget: str) -> None:
    arguments = [
        *(
            "compare",
            text,
            "--budget",
            f"tokens={budget}",
            "--parameters",
            "25k",
            "--tokenizer",
            "byte",
            "--json",
        ),
        *("--out", tmp_path / "dry", "--families", "ngram,lstm", "--seeds", "1", "--dry-run"),
    ]
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    names = [run["run"] for run in json.loads(done.stdout)]
    assert names == [
        *(f"lstm-rate-{rate}" for rate in ("0.001", "0.002", "0.004", "0.008", "0.016")),
        *(
            ("lstm-budget-0.03", "lstm-budget-0.3") if budget == "1M" else ()
        ),  # 6k is a step whatever the share
        "lstm-seed-1337",
    ]
    assert not (tmp_path / "dry").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--families", "lstm,gtp2"], "gpt2"),
        (["--families", "lstm,lstm"], "twice"),
        (["--budget", "hours=3"], "--budget"),
        (["--parameters", "no"], "--parameters"),
        (["--tokenizer", "bp"], "bpe"),
        (["--tokenizer", "word"], "bits per byte are undefined"),
        (
            ["--tokenizer", "char", f"data.validation={__file__}"],
            "a tokenizer that reads all text (byte, bpe)",
        ),
        (["--task", "nothing"], "nothing"),
        (["--task", "ptb"], "'ptb' has parts; say which"),
        (["--task", "ptb/test"], "this set was made for language modelling; allowed: sets for last-word"),
        (["--entry", "nothing.toml"], "nothing.toml"),
        (["--families", ""], "nothing to compare"),
        (["data.validation_fraction=0"], "held out"),
        (["train.objective=masked_lm"], "the comparison decides it"),
        (["--parameters", "100"], "no room"),
        (["--parameters", "25k,25.01k"], "--parameters names 25k twice"),
        (["train.optimizer=muon"], "the comparison decides it; allowed: seed"),
        (["train.seqlen=9"], "did you mean 'seq_len'"),
        (["other.txt"], "other.txt is no KEY=VALUE; a comparison reads one text or recipe, so quote"),
        (["model.dim=8"], "enter a model of your own with --entry"),
        (["--budget", "token=5k"], "did you mean 'tokens'"),
    ],
)
def test_mistakes_are_one_line(text: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    given = {"--budget": "tokens=6k", "--parameters": "25k", "--tokenizer": "byte"}
    options = [part for pair in given.items() if pair[0] not in arguments for part in pair]
    command = ["compare", str(text), "--out", str(tmp_path / "x"), *options, *arguments]
    done = CliRunner().invoke(app, command)
    assert done.exit_code != 0
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not (tmp_path / "x" / "models").exists()


def test_a_mistake_can_be_corrected_in_the_same_folder(text: Path, tmp_path: Path) -> None:
    command = ["compare", str(text), "--budget", "tokens=300", "--tokenizer", "byte", "--families", "bag"]
    command += ["--out", str(tmp_path / "out"), "--seeds", "1", "--rates", "1", "train.seq_len=9"]
    done = CliRunner().invoke(app, [*command, "--parameters", "100"])
    assert "no room" in str(done.exception)
    done = CliRunner().invoke(app, [*command, "--parameters", "25k", "--json"])
    assert done.exit_code == 0, done.output
    assert [row["name"] for row in json.loads(done.stdout)["rows"] if row["parameters"]] == ["bag"]


def test_a_changed_text_is_refused(text: Path, tmp_path: Path) -> None:
    copy = tmp_path / "text.txt"
    copy.write_text(text.read_text())
    one = settings(copy, families=["bag"], seeds=1, rates=1)
    compare(one, out=tmp_path / "one")
    copy.write_text(text.read_text()[::-1])
    with pytest.raises(CheckpointError, match="the held-out text has changed"):
        compare(one, out=tmp_path / "one")


def test_a_run_that_was_killed_before_its_memory_was_written_is_measured(text: Path, tmp_path: Path) -> None:
    one = settings(text, families=["bag"], seeds=1, rates=1)
    compare(one, out=tmp_path / "one")
    for file in (*tmp_path.rglob("memory.json"), *(tmp_path / "one" / "scores").iterdir()):
        file.unlink()
    found = compare(one, out=tmp_path / "one")
    assert isinstance(found, Result)
    assert row_of(found, "bag").memory is None


@pytest.mark.parametrize(
    ("source", "name"),
    [("a/books/*.txt", "books"), ("my text (1).v2.txt", "my-text-1"), ("gutenberg/train", "gutenberg-train"),
     ("*.txt", "text"), ("b/../c.txt.gz", "c"), ("-", "text"), ("/", "text"), ("books/*", "books")],
)  # fmt: skip
def test_the_name_of_a_comparison(source: str, name: str) -> None:
    assert name_of(source, default="text") == name


def test_a_folder_that_was_moved_and_a_damaged_file(result: Result, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "moved"
    shutil.copytree(result.folder, folder)
    again = compare(settings(text), out=folder)
    assert isinstance(again, Result)
    assert without_times(again) == without_times(result)
    trial = folder / "trials" / "bag-rate-0.004"
    for file, content, message in (
        (
            folder / "scores" / "ngram.json",
            '{"sco',
            r"ngram\.json: .*; remove it, and the same command makes it",
        ),
        (folder / "scores" / "gru-seed-1337.json", '{"a": 1}', r"gru-seed-1337\.json: .*; remove it"),
        (trial / "failed.json", "{", r"failed\.json: .*; remove .*bag-rate-0\.004, and the same command"),
        (trial / "metrics.jsonl", "", "bag-rate-0.004 has no validation loss in its log; remove this folder"),
        (folder / "compare.json", "{", "compare.json: .*; choose another --out"),
    ):
        before = file.read_bytes() if file.exists() else None
        file.write_text(content)
        with pytest.raises(CheckpointError, match=message) as caught:
            compare(settings(text), out=folder)
        assert "\n" not in str(caught.value)
        file.write_bytes(before) if before is not None else file.unlink()
    again = compare(settings(text), out=folder)
    assert isinstance(again, Result)
    assert without_times(again) == without_times(result)


@pytest.mark.parametrize("rate", ["0.002", "0.004"])
def test_a_trial_that_was_removed_is_trained_again(
    result: Result, text: Path, tmp_path: Path, rate: str
) -> None:
    """Whether its rate is the one that was chosen or not; the runs that follow stay."""
    folder = tmp_path / "again"
    shutil.copytree(result.folder, folder)
    for name in ("gru", "bag"):
        shutil.rmtree(folder / "trials" / f"{name}-rate-{rate}")
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("model.safetensors")}
    again = compare(settings(text), out=folder)
    assert isinstance(again, Result)
    assert without_times(again) == without_times(result)
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_weights_may_be_removed_once_they_are_measured(
    result: Result, text: Path, tmp_path: Path, data: Path
) -> None:
    folder = tmp_path / "small"
    shutil.copytree(result.folder, folder)
    for file in folder.rglob("model*.safetensors"):
        file.unlink()
    again = compare(settings(text), out=folder)
    assert isinstance(again, Result)
    assert without_times(again) == without_times(result)
    assert not list(folder.rglob("model*.safetensors"))  # nothing was trained
    more = compare(settings(text, seeds=3), out=folder)
    assert isinstance(more, Result)
    trained = {file.parent.name for file in folder.glob("*/*/model*.safetensors")}
    assert trained == {f"{name}-seed-1339" for name in FAMILIES if name != "ngram"}
    later = compare(settings(text, tasks=["copa/eval"]), out=folder)
    assert isinstance(later, Result)
    assert row_of(later, "gru").tasks == {"copa/eval": None}
    assert any("gru-seed-1337 is not scored on copa/eval: " in note for note in later.notes)
    assert not (folder / "scores" / "gru-seed-1337-copa-eval.json").exists()  # it may be trained again
    (folder / "scores" / "bag-seed-1338.json").unlink()
    with pytest.raises(CheckpointError, match="bag-seed-1338 has no weights to measure; remove this folder"):
        compare(settings(text), out=folder)


def test_a_folder_is_continued_with_its_own_settings(result: Result, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(result.folder, folder)
    command = ["compare", str(text), "--out", str(folder), "--budget", "tokens=7k", "--parameters", "25k"]
    done = CliRunner().invoke(app, command)
    assert "with other settings" in str(done.exception)
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").touch()
    done = CliRunner().invoke(app, [*command[:2], "--out", str(other), *command[4:]])
    assert "holds no comparison" in str(done.exception)
