"""Runs of word vectors that stop, go on, lose their text, or ask for too much."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import namedtuple

import numpy as np
import pytest

from wordloom.errors import CheckpointError, DataError, RecipeError, VectorError
from wordloom.progress import Clock, TrainingProgress
from wordloom.run.vectors import vector_run
from wordloom.run.vectors import vector_run as module
from wordloom.run.vectors.train import train_vectors
from wordloom.run.vectors.word_corpus import WordCorpus
from wordloom.vectors import FastTextClassifier, load_vectors, open_vectors
from wordloom.vectors.files.saved_state import stopped_at


@pytest.fixture(autouse=True)
def _small(tmp_path, monkeypatch):
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("wordloom.vectors.word2vec.trainer.PORTION", 2)


@pytest.fixture
def folder(tmp_path):
    """Two files of some fifty thousand words."""
    random = np.random.default_rng(0)
    (tmp_path / "text").mkdir()
    for name in ("a.txt", "b.txt"):
        lines = [" ".join(random.choice(list("abcdefgh"), 10)) for _ in range(5000)]
        (tmp_path / "text" / name).write_text("\n".join(lines))
    return tmp_path / "text"


def settings(text, **vectors):
    vectors = {"dim": 8, "threads": 2, "device": "cpu", "epochs": 3, "deterministic": True, **vectors}
    return {"name": "t", "data": {"train": str(text)}, "words": {"split": "whitespace"}, "vectors": vectors}


class Heard(TrainingProgress):
    def __init__(self):
        super().__init__()
        self.lines = []

    def say(self, lines):
        self.lines += [lines] if isinstance(lines, str) else lines


def stopped_run(recipe, out, monkeypatch, *, after=2, trainer="WordTrainer"):
    """A run that is stopped once it has done ``after`` portions."""

    class Stops(getattr(module, trainer)):
        portions = 0

        def run(self):
            self.portions += 1
            if self.portions == after:
                os.kill(os.getpid(), signal.SIGINT)
            return super().run()

    with monkeypatch.context() as patch:
        patch.setattr(module, trainer, Stops)
        result = train_vectors(recipe, out=out)
    assert result.stopped
    assert 0 < result.job < result.jobs
    return result


# -- stopping and going on -------------------------------------------------------------------------------


def test_a_run_goes_on_by_the_recipe_it_keeps(folder, tmp_path, monkeypatch):
    straight = train_vectors(settings(folder), out=tmp_path / "straight")
    run = tmp_path / "run"
    part = stopped_run(settings(folder), run, monkeypatch)
    assert stopped_at(run) == part.job / part.jobs
    with pytest.raises(RecipeError, match="dim 8 -> 9"):
        train_vectors(None, ["vectors.dim=9"], out=run, resume=True)
    ended = train_vectors(None, ["vectors.threads=1"], out=run, resume=True)
    assert ended.job == straight.jobs
    assert stopped_at(run) is None
    one, other = (load_vectors(path).vectors for path in (tmp_path / "straight", run))
    assert one.tobytes() == other.tobytes()
    with pytest.raises(RecipeError, match=r"Give its folder: --out runs/NAME --resume"):
        train_vectors(None, resume=True)


@pytest.mark.parametrize(
    ("algorithm", "trainer"),
    [("glove", "GloVeTrainer"), ("fasttext", "WordTrainer"), ("word2vec", "WordTrainer")],
)
def test_what_is_learnt_when_it_stops_can_be_asked(folder, tmp_path, monkeypatch, algorithm, trainer):
    more = {"buckets": 100} if algorithm == "fasttext" else {}
    recipe = settings(folder, algorithm=algorithm, **more)
    stopped_run(recipe, tmp_path / "run", monkeypatch, trainer=trainer)
    wv = open_vectors(tmp_path / "run")
    assert sorted(wv.index_to_key) == list("abcdefgh")
    assert np.isfinite(wv.vectors).all()
    assert wv.vectors.any(axis=1).all()


def test_a_run_broken_off_before_it_left_anything_says_resume_command(folder, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "prepare", interrupted)
    run = tmp_path / "run"
    result = train_vectors(settings(folder), out=run)
    assert (result.stopped, result.job, result.jobs) == (True, 0, 0)
    for ask in (open_vectors, FastTextClassifier.load):
        with pytest.raises(
            VectorError, match=rf"resume it with: wordloom vectors train --out {run} --resume"
        ):
            ask(run)
    (run / "recipe.toml").write_text('[train]\nname = "a model"\n')
    with pytest.raises(VectorError, match=rf"resume it with: wordloom train {run} --resume"):
        open_vectors(run)


def test_a_second_interruption_keeps_what_the_first_one_kept(folder, tmp_path, monkeypatch):
    run = tmp_path / "run"
    part = stopped_run(settings(folder), run, monkeypatch)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "prepare", interrupted)
        again = train_vectors(None, out=run, resume=True)
    assert (again.stopped, again.job, again.jobs) == (True, part.job, part.jobs)
    assert not train_vectors(None, out=run, resume=True).stopped


# -- text that is gone -----------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["a.txt", "."])
def test_a_run_goes_on_without_its_text(folder, tmp_path, monkeypatch, gone):
    train_vectors(settings(folder), out=tmp_path / "straight")
    run = tmp_path / "run"
    stopped_run(settings(folder), run, monkeypatch)
    (folder / gone).unlink() if gone != "." else shutil.rmtree(folder)
    heard = Heard()
    assert not train_vectors(None, out=run, resume=True, progress=heard).stopped
    assert [line for line in heard.lines if line.startswith("text        is gone")]
    one, other = (load_vectors(path).vectors for path in (tmp_path / "straight", run))
    assert one.tobytes() == other.tobytes()


def test_without_its_text_and_its_ids_a_run_says_so(folder, tmp_path, monkeypatch):
    run = tmp_path / "run"
    stopped_run(settings(folder), run, monkeypatch)
    kept = (run / "vectors.npy").read_bytes()
    shutil.rmtree(tmp_path / "cache")
    assert stopped_at(run)
    (folder / "b.txt").rename(folder / "c.txt")
    with pytest.raises(CheckpointError, match=r"b\.txt\) is gone, and so are the ids .* put the text back"):
        train_vectors(None, out=run, resume=True)
    assert (run / "vectors.npy").read_bytes() == kept
    (folder / "c.txt").rename(folder / "b.txt")
    assert not train_vectors(None, out=run, resume=True).stopped


def test_another_text_is_refused_before_anything_was_learnt_too(folder, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(module.VectorRun, "_trainer", interrupted)
        assert train_vectors(settings(folder), out=run).stopped
    (folder / "a.txt").write_text("a b c d e f g h " * 100)
    with pytest.raises(CheckpointError, match="the training text differs from what"):
        train_vectors(None, out=run, resume=True)


def test_a_file_deleted_while_another_is_read_ends_the_run_with_what_was_saved(folder, tmp_path, monkeypatch):
    """A new run has nothing, and leaves nothing; one that went on has what it had."""
    run = tmp_path / "run"
    stopped_run(settings(folder), run, monkeypatch)
    shutil.rmtree(tmp_path / "cache")
    second = (folder / "b.txt").read_bytes()
    saved = (run / "checkpoints" / "vectors.safetensors").read_bytes()
    real = WordCorpus.pieces

    def pieces(corpus, part, **rest):
        for piece in real(corpus, part, **rest):
            (folder / "b.txt").unlink(missing_ok=True)  # a.txt is being read
            yield piece

    monkeypatch.setattr(WordCorpus, "pieces", pieces)
    for out, recipe in ((run, None), (tmp_path / "new", settings(folder))):
        (folder / "b.txt").write_bytes(second)
        with pytest.raises(DataError, match=r"b\.txt: cannot be opened"):
            train_vectors(recipe, out=out, resume=recipe is None)
    assert (run / "checkpoints" / "vectors.safetensors").read_bytes() == saved
    assert sorted(open_vectors(run).index_to_key) == list("abcdefgh")
    assert not (tmp_path / "new").exists()
    assert not [path for path in (tmp_path / "cache" / "tokens").iterdir() if path.is_dir()]


# -- what is said ----------------------------------------------------------------------------------------


def test_one_thread_gives_the_same_vectors_and_says_so(folder, tmp_path):
    said = []
    for name in ("one", "other"):
        heard = Heard()
        train_vectors(settings(folder, threads=1, deterministic=False), out=tmp_path / name, progress=heard)
        said += [line for line in heard.lines if line.startswith("running")]
    one, other = (load_vectors(tmp_path / name).vectors for name in ("one", "other"))
    assert one.tobytes() == other.tobytes()
    assert all("on 1 thread (fast: deterministic on one thread)" in line for line in said)


def test_the_clock_leaves_out_what_is_compiled_first():
    clock = Clock()
    clock.take(100.0, 10, 1)
    assert (clock.rate, clock.seconds_for(3)) == (None, None)
    clock.take(2.0, 10, 1)
    clock.take(2.0, 20, 1)
    assert (clock.rate, clock.seconds_for(3)) == (7.5, 6.0)


def test_rates_are_told_from_the_second_portion_on(folder, tmp_path):
    result = train_vectors(settings(folder), out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) > 2
    assert (lines[0]["words_per_second"], lines[0]["seconds_left"]) == (None, None)
    assert all(line["words_per_second"] > 0 for line in lines[1:])
    assert result.words_per_second == pytest.approx(lines[-1]["words_per_second"], abs=0.1)


# -- memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vectors", "needed"),
    [
        ({}, 4 * 8 * 16),
        ({"algorithm": "glove"}, 4 * 8 * 32),
        ({"algorithm": "fasttext", "buckets": 100}, 4 * 8 * 116),
        ({"algorithm": "fasttext", "buckets": 100, "max_n": 0}, 4 * 8 * 16),
    ],
)
def test_the_bytes_that_vectors_need_are_told_before_they_are_taken(
    folder, tmp_path, monkeypatch, vectors, needed
):
    memory = namedtuple("memory", "available")
    recipe = settings(folder, **vectors)
    monkeypatch.setattr(vector_run.psutil, "virtual_memory", lambda: memory(needed - 1))
    with pytest.raises(VectorError, match=rf"vectors\.dim 8 takes {needed:,} bytes .*; lower vectors\.dim"):
        train_vectors(recipe, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(vector_run.psutil, "virtual_memory", lambda: memory(needed))
    assert not train_vectors(recipe, out=tmp_path / "run").stopped


@pytest.mark.parametrize("error", [MemoryError("no 9 GiB"), OSError(12, "Cannot allocate memory")])
def test_memory_that_is_refused_all_the_same_is_one_line(folder, tmp_path, monkeypatch, error):
    def refused(*_, **__):
        raise error

    monkeypatch.setattr(module, "WordTrainer", refused)
    with pytest.raises(VectorError, match=r"no memory for training vectors\.dim 8 .* lower it"):
        train_vectors(settings(folder), out=tmp_path / "run")


def test_another_error_of_the_system_is_not_taken_for_memory(folder, tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "WordTrainer", refused)
    with pytest.raises(OSError, match="No space left"):
        train_vectors(settings(folder), out=tmp_path / "run")
