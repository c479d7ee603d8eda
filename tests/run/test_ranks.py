"""Several ranks train what one process trains: every objective and family, by torchrun with gloo."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from tests.conftest import Forked
from tests.run.conftest import write_corpus, write_recipe
from tests.run.tasks.test_instruction import recipe_in
from tests.run.tasks.test_lora_tasks import CASES, Case
from tests.run.tasks.test_preference import preference_recipe
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load

from wordloom.nn import quantized
from wordloom.run import train
from wordloom.training import optimizers
from wordloom.training.checkpoint import read_state
from wordloom.weights import load_model

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("rank_worker.py")
CODE = f"import runpy; runpy.run_path({str(WORKER)!r}, run_name='__main__')"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
# Biases of keys have no gradient but rounding, which AdamW would enlarge to whole steps with a small epsilon.
SETTINGS = ("train.epsilon=1e-4", "train.precision=fp32")


def torchrun(ranks: int, *arguments: Any, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a script, or with "-m" a module, on ``ranks`` ranks of this machine."""
    command = [*TORCHRUN, f"--nproc-per-node={ranks}", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment())


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def run_of(
    recipe: Path | str, out: Path, *settings: str, start: Path | None = None, resume: bool = False
) -> dict[str, Any]:
    return {
        "recipe": str(recipe), "settings": [*SETTINGS, *settings], "out": str(out),
        "start": None if start is None else str(start), "resume": resume,
    }  # fmt: skip


def on_ranks(ranks: int, place: Path, *runs: dict[str, Any], machines: int = 1) -> None:
    """Train ``runs`` one after another on ``ranks`` ranks of ``machines``, which are all this one."""
    (place / "runs.json").write_text(json.dumps(runs))
    code, errors = forked_ranks(ranks, place / "runs.json", code=CODE, machines=machines)
    assert code == 0, errors


def forked_ranks(ranks: int, *arguments: object, machines: int = 1, **options: str) -> tuple[int, str]:
    """Run a command or ``code`` on several ranks; return the exit code and the errors of those that ended.

    The processes have the environment that torchrun gives.  They are forked, because processes of its own
    take seconds to start.  As with torchrun, the end of one by an error ends the others.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = ranks // machines
    processes = [
        Forked(
            *arguments, **options, OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
            WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(here), RANK=str(rank),
            LOCAL_RANK=str(rank % here), GROUP_RANK=str(rank // here),
        )
        for rank in range(ranks)
    ]  # fmt: skip
    while any(process.returncode is None for process in processes):
        if any(process.returncode for process in processes):
            time.sleep(1)  # for those that are about to end, too
            for process in processes:
                process.process.kill()
        time.sleep(0.02)
    done = [process.completed() for process in processes]
    worst = max((process.returncode for process in done), key=abs)
    return worst, "".join(process.stderr for process in done)


def error_on_ranks(ranks: int, place: Path, run: dict[str, Any]) -> str:
    """Return the one line with which a run ends on all ranks."""
    (place / "runs.json").write_text(json.dumps([run]))
    code, errors = forked_ranks(ranks, place / "runs.json", code=CODE)
    assert code != 0
    return one_line(errors)


def one_line(errors: str) -> str:
    (line,) = (line for line in errors.splitlines() if line.startswith("wordloom: "))
    return line.removeprefix("wordloom: ")


def alone(run: dict[str, Any]) -> Path:
    """Train a run in this process."""
    return train(run["recipe"], run["settings"], out=run["out"], start_from=run["start"]).folder


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


TIMES = ("seconds", "tokens_per_second", "data_wait_share", "memory_mb", "seconds_left", "flop_utilisation")


def assert_equal_runs(one: Path, many: Path, *, rounds: bool = False) -> None:
    """Weights and logged figures are equal to 1e-6, of the norm of all weights and of each figure.

    Figures of a model that ``rounds`` its inputs to 8 bits are equal to 1e-5: a rounding can go either way.
    So are those of preferences, which are differences of larger numbers.
    """
    name = next(each for each in ("adapter_model.safetensors", "model.safetensors") if (one / each).exists())
    expected, found = load_file(one / name), load_file(many / name)
    assert expected.keys() == found.keys()
    off = sum(float((found[key].double() - expected[key].double()).norm()) ** 2 for key in expected)
    size = sum(float(tensor.double().norm()) ** 2 for tensor in expected.values())
    assert (off / size) ** 0.5 < 1e-6, many
    assert len(lines(one)) == len(lines(many))
    for a, b in zip(lines(one), lines(many), strict=True):
        assert a.keys() == b.keys()
        for key in a.keys() - set(TIMES):
            if key in ("pearson", "spearman"):
                continue  # the order of predictions that are still almost equal is one of roundings
            if isinstance(a[key], float):
                off = {"loss": 1e-6, "perplexity": 1e-5}.get(key, 2e-6)  # perplexity is exp(loss)
                off = 1e-5 if rounds else off
                assert b[key] == pytest.approx(a[key], rel=off, abs=1e-7), (many, a["step"], key)
            else:
                assert a[key] == b[key], (many, a["step"], key)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))
    return tmp_path


TALKS = [
    Case(partial(recipe_in, family="gpt2")),
    Case(partial(recipe_in, family="rnn")),
    Case(preference_recipe),
]


def test_two_ranks_train_every_objective_as_one(
    place: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapters or all weights of every family, with dropout, parts of a batch and any sharding.

    A checkpoint that the ranks wrote in parts has the weights of the finished model.  One run keeps its best
    step, which is not the last.
    """
    monkeypatch.setattr(quantized, "MOST_EXACT_ROWS", sys.maxsize)  # as in the workers
    runs, ones = [], []
    for i, case in enumerate([*CASES.values(), *TALKS]):
        folder = place / str(i)
        folder.mkdir()
        recipe = case.write(folder)
        shard = f"train.shard={rng.choice(['none', 'full'])}"
        given = ["lora.rank=2", "lora.alpha=4", "train.save_every=0", *case.settings]
        if case is CASES["contrastive"]:  # a scale of 20 would multiply the rounding errors of cosines by 20
            given.append("train.similarity_scale=1")
        if rng.random() < 0.5:
            given = [setting for setting in given if not setting.startswith("lora.")]
        if not {"contrastive", "translation"} & set(re.findall(r"\w+", Path(recipe).read_text())):
            # One process and two ranks then add up the same numbers, and round alike.
            given.append("train.micro_batch_size=2")
        ones.append(run_of(recipe, folder / "one", *given, start=folder / "body"))
        runs.append(run_of(recipe, folder / "many", *given, shard, start=folder / "body"))
    best = ("train.keep_best=true", "train.evaluate_every=2", "train.learning_rate=0.3", "train.steps=8",
            "train.warmup_steps=8", "train.save_every=0",
            f"train.ema={rng.choice(['none', '0.5'])}")  # fmt: skip
    recipe = write_recipe(place, write_corpus(place), "gpt2")
    ones.append(run_of(recipe, place / "best" / "one", *best))
    runs.append(run_of(recipe, place / "best" / "many", *best, shard))
    for run in ones:
        alone(run)
    losses = {
        line["step"]: line["loss"] for line in lines(place / "best" / "one") if line["kind"] == "evaluate"
    }
    assert min(losses, key=losses.__getitem__) < 8, "the best step must not be the last"
    on_ranks(2, place, *runs)
    for one, many in zip(ones, runs, strict=True):
        rounds = "lora.base=int8" in one["settings"] or one["recipe"].endswith("preference.toml")
        assert_equal_runs(Path(one["out"]), Path(many["out"]), rounds=rounds)
        if "lora.rank=2" not in one["settings"] and "train.keep_best=true" not in one["settings"]:
            (last,) = (Path(many["out"]) / "checkpoints").iterdir()
            expected, found = load_model(many["out"]).state_dict(), load_model(last).state_dict()
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def cut(folder: Path, step: int) -> None:
    """Take away what a run wrote after ``step``, as if it had been killed."""
    for path in (folder / "checkpoints").iterdir():
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)
    for name in ("config.json", "model.safetensors", "generation_config.json"):
        (folder / name).unlink()


def test_a_run_resumes_on_another_number_of_ranks(
    place: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From two machines with two ranks each; with an average, any optimizer, and uneven parts."""
    monkeypatch.setattr(optimizers, "has_fast_bf16", lambda _: False)  # as in the workers
    recipe = write_recipe(place, write_corpus(place), rng.choice(["llama", "gpt2"]))
    optimizer = rng.choice(["muon", "adamw", "sgd"])
    rate = 0.1 if optimizer == "sgd" else 1e-2
    batch = rng.choice([1, 5, 6, 7])
    given = [f"train.optimizer={optimizer}", f"train.learning_rate={rate}", f"train.batch_size={batch}",
             f"train.micro_batch_size={rng.randint(1, batch)}", "train.keep_last=9"]  # fmt: skip
    if optimizer == "sgd":
        given.append("train.epsilon=none")
    whole = alone(run_of(recipe, place / "whole", *given))
    on_ranks(4, place, run_of(recipe, place / "begun", *given, "train.shard=hybrid"), machines=2)
    assert_equal_runs(whole, place / "begun")
    cut(place / "begun", 10)
    one = run_of(recipe, place / "begun", *given, resume=True)
    train(recipe, one["settings"], out=place / "begun", resume=True)
    assert_equal_runs(whole, place / "begun")
    cut(whole, 10)
    on_ranks(rng.choice([3, 4]), place, run_of(recipe, whole, *given, "train.shard=full", resume=True))
    assert_equal_runs(place / "begun", whole)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("shard", ["none", "full"])
def test_two_gpus_train_as_one(shard: str, place: Path) -> None:
    """By NCCL, without dropout, whose numbers a GPU draws for the batch that it has."""
    recipe = write_recipe(place, write_corpus(place))
    given = ["train.device=cuda", "model.dropout=0", "train.compile=off"]
    alone(run_of(recipe, place / "one", *given))
    on_ranks(2, place, run_of(recipe, place / "many", *given, f"train.shard={shard}"))
    for a, b in zip(lines(place / "one"), lines(place / "many"), strict=True):
        if "loss" in a:
            assert b["loss"] == pytest.approx(a["loss"], rel=1e-4)


def started(
    place: Path, recipe: Path, out: Path, *settings: str, resume: bool = False, **more: str
) -> subprocess.Popen[bytes]:
    """Start a run of two ranks in the background."""
    (place / "runs.json").write_text(json.dumps([run_of(recipe, out, *settings, resume=resume) | more]))
    return subprocess.Popen(
        [*TORCHRUN, "--nproc-per-node=2", str(WORKER), str(place / "runs.json")], env=environment(),
        stderr=subprocess.DEVNULL,
    )  # fmt: skip


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.02)


def test_a_killed_rank_ends_the_job_and_nothing_is_lost(place: Path, rng: random.Random) -> None:
    """In a save, and at any moment; the resumed run has the bytes of an uninterrupted one.

    Training goes on while a checkpoint is written, which has the weights of its step nevertheless.
    """
    recipe, run = write_recipe(place, write_corpus(place)), place / "killed"
    given = ["train.shard=full", "train.save_every=4", "train.log_every=1", "train.keep_last=9"]
    on_ranks(2, place, run_of(recipe, place / "whole", *given))
    process = started(place, recipe, run, *given, held=str(place / "released"))
    wait_for_step(run, 8, process)
    assert [path.name for path in (run / "checkpoints").iterdir()] == [".writing-step-4"]
    (place / "released").mkdir()
    (place / "released" / "step-4").touch()
    wait_for(run / "checkpoints" / "step-4", process)
    assert_equal_parts(place / "whole" / "checkpoints" / "step-4", run / "checkpoints" / "step-4")
    wait_for_step(run, 12, process)
    assert (run / "checkpoints" / ".writing-step-8").exists()
    kill_one(process, rng)
    assert process.wait(60) != 0
    process = started(place, recipe, run, *given, resume=True)
    wait_for(run / "checkpoints" / f"step-{rng.choice([8, 12])}", process)
    time.sleep(rng.random())
    killed = kill_one(process, rng)
    process.wait(60)
    assert not killed or process.returncode != 0 or (run / "model.safetensors").exists()
    on_ranks(2, place, run_of(recipe, run, *given, resume=True))
    assert_equal_parts(place / "whole" / "checkpoints" / "step-24", run / "checkpoints" / "step-24")
    assert (run / "model.safetensors").read_bytes() == (place / "whole" / "model.safetensors").read_bytes()


def assert_equal_parts(one: Path, other: Path) -> None:
    """The files of both ranks have the same bytes."""
    names = sorted(path.name for path in (one / "trainer" / "ranks").iterdir())
    assert len(names) == 2
    for name in names:
        wanted, found = (place / "trainer" / "ranks" / name for place in (one, other))
        assert found.read_bytes() == wanted.read_bytes(), found


def wait_for_step(run: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    while (
        not (run / "metrics.jsonl").exists() or max((line["step"] for line in lines(run)), default=0) < step
    ):
        assert process.poll() is None
        time.sleep(0.02)


def kill_one(process: subprocess.Popen[bytes], rng: random.Random) -> bool:
    """Kill one of the ranks; return False if they have ended already."""
    ranks = psutil.Process(process.pid).children()
    if ranks:
        rng.choice(ranks).kill()
    return bool(ranks)


def test_a_checkpoint_of_ranks_is_read_as_any_other(place: Path, rng: random.Random) -> None:
    """By Wordloom from the parts, by all tools where the ranks consolidate, and by PyTorch's own reader.

    In bfloat16, the losses are those of one process up to its rounding.
    """
    recipe = write_recipe(place, write_corpus(place), rng.choice(["llama", "gpt2", "gpt"]))
    precision = rng.choice(["fp32", "bf16", "bf16-pure", "bf16-head"])
    given = ["train.save_every=0", f"train.optimizer={rng.choice(['adamw', 'muon'])}"]
    given += [f"train.shard={rng.choice(['none', 'full'])}", f"train.precision={precision}"]
    gathered = run_of(recipe, place / "one", *given, "train.consolidate=true")
    on_ranks(2, place, run_of(recipe, place / "parts", *given), gathered)
    alone(run_of(recipe, place / "alone", *given))
    for a, b in zip(lines(place / "alone"), lines(place / "parts"), strict=True):
        if "loss" in a:
            assert b["loss"] == pytest.approx(a["loss"], rel=5e-4)
    parts, one = (place / name / "checkpoints" / "step-24" for name in ("parts", "one"))
    expected, found = load_model(one).state_dict(), load_model(parts).state_dict()
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    states = read_state(one)[0], read_state(parts)[0]
    assert {name for name in states[1] if not name.startswith("model.")} == set(states[0])
    for name, tensor in states[0].items():
        assert torch.equal(states[1][name], tensor), name
    theirs = {name: torch.empty_like(tensor) for name, tensor in states[0].items()}
    load(theirs, storage_reader=HuggingFaceStorageReader(str(parts / "trainer" / "ranks")), no_dist=True)
    assert all(torch.equal(theirs[name], tensor) for name, tensor in states[0].items())


def test_sigterm_to_torchrun_makes_one_checkpoint(place: Path) -> None:
    recipe, run = write_recipe(place, write_corpus(place)), place / "run"
    process = started(place, recipe, run, "train.steps=5000", "train.save_every=0", "train.log_every=1")
    wait_for(run / "metrics.jsonl", process)
    while not (run / "metrics.jsonl").read_text().count("\n"):
        time.sleep(0.02)
    process.terminate()
    assert process.wait(60) != 0
    (saved,) = (run / "checkpoints").iterdir()
    load_model(saved)
    assert len(lines(run)) >= int(saved.name.removeprefix("step-"))


def test_the_mistakes_of_one_rank_are_one_line(place: Path, rng: random.Random) -> None:
    """A full disk, other data or settings, a loss that is not finite; the last good checkpoint stays."""
    recipe = write_recipe(place, write_corpus(place))
    full = run_of(recipe, place / "full", "train.save_every=1000") | {"limit": 30_000}
    (place / "runs.json").write_text(json.dumps([full]))
    done = torchrun(2, WORKER, place / "runs.json")
    assert done.returncode != 0
    assert "could not write checkpoint" in one_line(done.stderr)
    assert not list((place / "full" / "checkpoints").iterdir())
    other = rng.choice([
        {"rank 1": ["seed=6"]}, {"rank 1": [f"data.train={place}/other.jsonl"]}, {"version": "0.0"}
    ])  # fmt: skip
    (place / "other.jsonl").write_text((place / "corpus.jsonl").read_text().replace("cat", "cow"))
    differs = error_on_ranks(2, place, run_of(recipe, place / "differs") | other)
    assert differs.startswith("rank 1 has another ")
    assert not (place / "differs").exists()
    diverges = run_of(recipe, place / "diverges", "train.learning_rate=1e30", "train.warmup_steps=0")
    assert re.search(r"^step \d+: .*not taken", error_on_ranks(2, place, diverges))


def test_what_one_process_must_train_is_refused_in_one_line(place: Path) -> None:
    recipe = write_recipe(place, write_corpus(place), "llama")
    (place / "words.txt").write_text("a b c\n")
    for command, advice in (
        (["train", recipe, 'train.inspect=["heads"]', "train.shard=full"], "leave one out"),
        (["vectors", "train", "--corpus", place / "words.txt"], "leave out torchrun"),
    ):
        code, errors = forked_ranks(2, *command, "--out", place / "run")
        assert code != 0
        assert advice in one_line(errors)
        assert not (place / "run").exists()
