"""Training word vectors from a recipe or settings: what is left behind, resume, and mistakes."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest
from safetensors import safe_open

from wordloom.errors import CheckpointError, DataError, RecipeError, VectorError
from wordloom.recipe import load_recipe, shipped_recipes
from wordloom.recipe.vectors import load_vector_recipe, shipped_vector_recipes
from wordloom.run.vectors import vector_run as module
from wordloom.run.vectors.train import train_vectors
from wordloom.vectors import FastTextVectors, load_vectors
from wordloom.vectors.files import saved_state


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path):
    """Some hundred thousand words in which days follow days and colours colours."""
    random = np.random.default_rng(0)
    days = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
    colours = ["red", "green", "blue", "yellow", "white", "black", "brown"]
    lines = []
    for _ in range(8000):
        kind = days if random.random() < 0.5 else colours
        lines.append(" ".join(["the", *random.choice(kind, 8), "New", "York"]))
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def settings(text, **vectors):
    vectors = {"dim": 16, "threads": 2, "device": "cpu", "sample": 0.0, "epochs": 2, **vectors}
    return {"name": "t", "data": {"train": str(text)}, "vectors": vectors}


def test_words_that_keep_the_same_company_come_out_alike(text, tmp_path):
    result = train_vectors(settings(text), out=tmp_path / "run")
    assert not result.stopped
    wv = load_vectors(tmp_path / "run")
    assert len(wv) == 17
    near = {word for word, _ in wv.most_similar("monday", topn=6)}
    assert near == {"tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}
    assert wv.counts.sum() == 8000 * 11
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["job"] == result.jobs
    assert lines[-1]["loss"] < 6 * np.log(2)  # what vectors of zeros cost


def test_phrases_are_words(text, tmp_path):
    train_vectors(settings(text), ["words.phrases=1", "words.phrase_threshold=0.01"], out=tmp_path / "run")
    wv = load_vectors(tmp_path / "run")
    assert "new_york" in wv
    assert "york" not in wv


@pytest.fixture
def short_portions(monkeypatch):
    monkeypatch.setattr("wordloom.vectors.word2vec.trainer.PORTION", 2)


def test_a_stopped_run_resumes_to_the_bits_of_one_left_alone(text, tmp_path, short_portions, monkeypatch):
    straight = train_vectors(settings(text, deterministic=True), out=tmp_path / "straight")
    portions = []

    class StopsEarly(module.WordTrainer):
        def run(self):
            portions.append(self.job)
            if len(portions) == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return super().run()

    with monkeypatch.context() as patch:
        patch.setattr(module, "WordTrainer", StopsEarly)
        stopped = train_vectors(settings(text, deterministic=True), out=tmp_path / "run")
    assert stopped.stopped
    assert 0 < stopped.job < stopped.jobs
    so_far = load_vectors(tmp_path / "run")  # can be asked already
    with safe_open(tmp_path / "run" / "checkpoints" / "vectors.safetensors", framework="numpy") as saved:
        assert so_far.vectors.tobytes() == saved.get_tensor("inputs").tobytes()
    again = settings(text, deterministic=True, threads=1)
    ended = train_vectors(again, out=tmp_path / "run", resume=True)
    assert ended.job == straight.jobs
    left_alone, resumed = (load_vectors(tmp_path / name).vectors for name in ("straight", "run"))
    assert left_alone.tobytes() == resumed.tobytes()
    jobs = [json.loads(line)["job"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert jobs == sorted(set(jobs))


def test_a_killed_run_resumes_from_what_was_saved(forked, text, tmp_path, short_portions):
    script = f"""
import os
import wordloom.vectors.word2vec.trainer as training
from wordloom.recipe import load_recipe, shipped_recipes
from wordloom.run.vectors import train, vector_run as module
training.PORTION = 2
class Killed(module.WordTrainer):
    def run(self):
        if self.job >= 6:
            os.kill(os.getpid(), 9)
        return super().run()
module.WordTrainer = Killed
train.train_vectors({settings(text, deterministic=True, save_minutes=1e-9)!r}, out={str(tmp_path / "run")!r})
"""
    assert forked(code=script).completed().returncode == -9
    straight = train_vectors(settings(text, deterministic=True), out=tmp_path / "straight")
    resumed = train_vectors(
        settings(text, deterministic=True, save_minutes=1e-9), out=tmp_path / "run", resume=True
    )
    assert resumed.job == straight.jobs
    left_alone, after = (load_vectors(tmp_path / name).vectors for name in ("straight", "run"))
    assert left_alone.tobytes() == after.tobytes()


def test_a_full_disk_leaves_what_was_saved_before(text, tmp_path, short_portions, monkeypatch):
    saves = []

    def full(arrays, path, metadata):
        saves.append(path)
        if len(saves) == 2:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        return real(arrays, path, metadata=metadata)

    real = saved_state.save_file
    monkeypatch.setattr(saved_state, "save_file", full)
    with pytest.raises(CheckpointError, match="No space left"):
        train_vectors(settings(text, save_minutes=1e-9, deterministic=True), out=tmp_path / "run")
    left = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert left == ["vectors.safetensors"]
    monkeypatch.setattr(saved_state, "save_file", real)
    ended = train_vectors(
        settings(text, save_minutes=1e-9, deterministic=True), out=tmp_path / "run", resume=True
    )
    assert ended.job == ended.jobs


def test_text_that_vanishes_while_it_is_read_is_an_error(text, tmp_path, monkeypatch):
    count = module.WordVocabulary.count

    def vanishing(texts, **rest):
        found = count(texts, **rest)
        text.unlink()
        return found

    monkeypatch.setattr(module.WordVocabulary, "count", vanishing)
    with pytest.raises(DataError, match=r"text\.txt"):
        train_vectors(settings(text), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_was_trained_on_can_be_deleted_once_training_runs(text, tmp_path, short_portions, monkeypatch):
    class Deleting(module.WordTrainer):
        def run(self):
            text.unlink(missing_ok=True)
            return super().run()

    monkeypatch.setattr(module, "WordTrainer", Deleting)
    assert not train_vectors(settings(text), out=tmp_path / "run").stopped
    assert len(load_vectors(tmp_path / "run")) == 17


@pytest.mark.parametrize(
    ("overrides", "error", "says"),
    [
        (["words.min_count=1000000"], VectorError, "lower min_count"),
        (["vectors.dims=5"], RecipeError, "did you mean 'dim'"),
        (["dim=5"], RecipeError, "did you mean 'vectors.dim'"),
        (["vectors.hierarchical_softmax=true", "vectors.negative=7"], RecipeError, "leave one of them out"),
        (["vectors.negative=0"], RecipeError, "hierarchical_softmax"),
        (["vectors.alpha=0.01", "vectors.min_alpha=0.1"], RecipeError, "min_alpha 0.1 is above"),
        (["vectors.alpha=1e9"], Exception, "lower it"),
    ],
)
def test_mistakes_are_told(text, tmp_path, overrides, error, says):
    with pytest.raises(error, match=says):
        train_vectors(settings(text), overrides, out=tmp_path / "run")


def test_an_empty_corpus_is_told(tmp_path):
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises((VectorError, DataError), match=r"no words|empty"):
        train_vectors(settings(tmp_path / "empty.txt"), out=tmp_path / "run")


def test_a_run_is_neither_overwritten_nor_resumed_by_another_recipe(text, tmp_path):
    train_vectors(settings(text), out=tmp_path / "run")
    with pytest.raises(CheckpointError, match="--resume"):
        train_vectors(settings(text), out=tmp_path / "run")
    with pytest.raises(RecipeError, match="dim 16 -> 20"):
        train_vectors(settings(text), ["vectors.dim=20"], out=tmp_path / "run", resume=True)
    text.write_text("monday and entirely other words " * 5000)
    with pytest.raises(CheckpointError, match="training text"):
        train_vectors(settings(text), out=tmp_path / "run", resume=True)
    train_vectors(settings(text), out=tmp_path / "run", force=True)
    assert "entirely" in load_vectors(tmp_path / "run")


def test_a_damaged_state_is_found_and_a_missing_log_is_reported(text, tmp_path, capsys):
    run = train_vectors(settings(text), out=tmp_path / "run").folder
    (run / "metrics.jsonl").unlink()
    with pytest.raises(CheckpointError, match="holds a run"):
        train_vectors(settings(text), out=run)
    assert not train_vectors(settings(text), out=run, resume=True).stopped
    assert "metrics.jsonl is missing" in capsys.readouterr().err
    state = run / "checkpoints" / "vectors.safetensors"
    content = state.read_bytes()
    state.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    with pytest.raises(CheckpointError, match=r"cannot read .*: its checksum differs; .*--force"):
        train_vectors(settings(text), out=run, resume=True)


def test_resuming_does_not_count_again(text, tmp_path, monkeypatch):
    train_vectors(settings(text), out=tmp_path / "run")

    def count(*_, **__):
        raise AssertionError("counted again")

    monkeypatch.setattr(module.WordVocabulary, "count", count)
    assert not train_vectors(settings(text), out=tmp_path / "run", resume=True).stopped


@pytest.mark.parametrize(
    ("constants", "architecture", "expected"),
    [
        ("gensim", "cbow", (0.025, 1e-4, 1e-3)),
        ("word2vec.c", "cbow", (0.05, 5e-6, 1e-3)),
        ("word2vec.c", "skipgram", (0.025, 2.5e-6, 1e-3)),
        ("fasttext", "skipgram", (0.05, 0.0, 1e-4)),
    ],
)
def test_constants_are_whose_they_are_said_to_be(constants, architecture, expected):
    recipe = load_vector_recipe(
        {"name": "t", "data": {"train": "x"}},
        [f"vectors.constants={constants}", f"vectors.architecture={architecture}"],
    )
    s = recipe.vectors.resolved()
    assert (s.alpha, s.min_alpha, s.sample) == pytest.approx(expected)


@pytest.mark.parametrize("name", sorted(shipped_vector_recipes()))
def test_shipped_recipes_read_back_equal_and_train(name, tmp_path):
    recipe = load_vector_recipe(name)
    path = tmp_path / f"{name}.toml"
    path.write_text(recipe.to_toml(), encoding="utf-8")
    assert load_vector_recipe(path) == recipe
    assert recipe.result is not None
    assert recipe.result.command.startswith(f"wordloom vectors train {name}")
    if "WORDLOOM_DATA" not in os.environ:
        pytest.skip("WORDLOOM_DATA is not set: this recipe's text is not here")
    small = ["data.train=gutenberg/valid", "vectors.epochs=1"]
    small += ["vectors.buckets=20000"] if recipe.vectors.algorithm == "fasttext" else []
    train_vectors(name, small, out=tmp_path / "run")
    assert len(load_vectors(tmp_path / "run")) > 1000


def test_a_recipe_for_the_other_command_is_told_apart():
    with pytest.raises(RecipeError, match="wordloom vectors train"):
        load_recipe(shipped_vector_recipes()["word2vec-gutenberg"])
    with pytest.raises(RecipeError, match="'wordloom train'"):
        load_vector_recipe(shipped_recipes()["quickstart"])
    with pytest.raises(RecipeError, match="recipe 'word2vec-gutenberg' is for 'wordloom vectors train'"):
        load_recipe("word2vec-gutenberg")
    with pytest.raises(RecipeError, match="recipe 'quickstart' is for 'wordloom train'"):
        load_vector_recipe("quickstart")
    for table, verb in (("words", "vectors train"), ("model", "train"), ("tokenizer", "train")):
        load = load_recipe if table == "words" else load_vector_recipe
        with pytest.raises(RecipeError, match=rf"table \[{table}\]: it is for 'wordloom {verb}'"):
            load({"name": "t", "data": {"train": "x"}, table: {}})


def test_fasttext_gives_vectors_to_words_never_seen(text, tmp_path):
    given = settings(text, algorithm="fasttext", buckets=5000, deterministic=True)
    train_vectors(given, out=tmp_path / "run")
    wv = load_vectors(tmp_path / "run")
    assert isinstance(wv, FastTextVectors)
    assert "mondays" in wv
    assert "mondays" not in wv.key_to_index
    days = np.mean([wv.similarity("mondays", day) for day in ("monday", "tuesday", "friday")])
    colours = np.mean([wv.similarity("mondays", colour) for colour in ("red", "blue", "green")])
    assert days > colours + 0.2
    again = train_vectors({**given, "vectors": {**given["vectors"], "threads": 1}}, out=tmp_path / "again")
    assert not again.stopped
    assert load_vectors(tmp_path / "again").vectors_ngrams.tobytes() == wv.vectors_ngrams.tobytes()


def test_fasttext_without_ngrams_is_word2vec(text, tmp_path):
    train_vectors(settings(text, algorithm="fasttext", max_n=0), out=tmp_path / "run")
    wv = load_vectors(tmp_path / "run")
    near = {word for word, _ in wv.most_similar("monday", topn=6)}
    assert near == {"tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}
    assert "mondays" not in wv


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["vectors.buckets=10"], "vectors.buckets is not a setting of vectors.algorithm 'word2vec'"),
        (["vectors.algorithm=fasttext", "vectors.min_n=4", "vectors.max_n=3"], "max_n 3 is below"),
        (["vectors.algorithm=fastext"], "'fasttext'"),
        (
            ["vectors.algorithm=glove", "vectors.negative=3"],
            "it is for 'word2vec' or 'fasttext'",
        ),
    ],
)
def test_mistakes_about_ngrams_are_told(text, tmp_path, overrides, says):
    with pytest.raises(RecipeError, match=says):
        train_vectors(settings(text), overrides, out=tmp_path / "run")


def test_glove_finds_the_same_company(text, tmp_path):
    given = {"dim": 16, "threads": 2, "window": 4, "x_max": 10.0}
    recipe = {**settings(text), "vectors": {**given, "algorithm": "glove"}}
    result = train_vectors(recipe, out=tmp_path / "run")
    wv = load_vectors(tmp_path / "run")
    near = {word for word, _ in wv.most_similar("monday", topn=6)}
    assert near == {"tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 26))
    assert lines[-1]["loss"] < lines[0]["loss"] / 2
    assert "records_per_second" in lines[0]
    assert result.loss == lines[-1]["loss"]


def test_glove_resumes_to_the_same_bits(text, tmp_path, monkeypatch):
    vectors = {"algorithm": "glove", "dim": 16, "threads": 2, "deterministic": True, "epochs": 6}
    recipe = {**settings(text), "vectors": vectors}
    train_vectors(recipe, out=tmp_path / "straight")

    class StopsEarly(module.GloVeTrainer):
        def run(self):
            if self.job == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().run()

    with monkeypatch.context() as patch:
        patch.setattr(module, "GloVeTrainer", StopsEarly)
        assert train_vectors(recipe, out=tmp_path / "run").job == 3
    train_vectors({**recipe, "vectors": {**vectors, "threads": 1}}, out=tmp_path / "run", resume=True)
    left_alone, resumed = (load_vectors(tmp_path / name).vectors for name in ("straight", "run"))
    assert left_alone.tobytes() == resumed.tobytes()
