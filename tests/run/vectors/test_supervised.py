"""Training a fastText classifier from a recipe: the model left behind, resume, prediction, and mistakes."""

from __future__ import annotations

import gzip
import json
import os
import signal

import numpy as np
import pytest
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.errors import RecipeError, VectorError, WordloomError
from wordloom.recipe.vectors import load_vector_recipe
from wordloom.run.vectors import supervised as module
from wordloom.run.vectors.train import train_vectors
from wordloom.vectors import FastTextClassifier, convert_vectors, load_fasttext

TOPICS = {"__label__day": "monday tuesday friday sunday", "__label__colour": "red green blue White"}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    random = np.random.default_rng(0)
    lines = []
    for _ in range(4000):
        label = list(TOPICS)[int(random.random() < 0.3)]
        words = random.choice([*TOPICS[label].split(), "the", "a"], int(random.integers(1, 9)))
        lines.append(" ".join([label, *words]))
    path = tmp_path_factory.mktemp("text") / "train.txt"
    path.write_text("\n".join(lines), encoding="utf-8")  # the last line ends with the file
    return path


def settings(text, words=None, **vectors):
    vectors = {"algorithm": "fasttext-supervised", "dim": 8, "threads": 2, **vectors}
    return {"name": "t", "data": {"train": str(text)}, "vectors": vectors, "words": words or {}}


def test_the_defaults_are_those_of_fasttexts_supervised():
    recipe = load_vector_recipe(
        {"name": "t", "data": {"train": "x"}}, ["vectors.algorithm=fasttext-supervised"]
    )
    s, w = recipe.vectors.resolved(), recipe.words
    assert (s.alpha, s.min_alpha, s.dim, s.epochs, s.negative) == (0.1, 0.0, 100, 5, 5)
    assert (s.loss, s.word_ngrams, s.min_n, s.max_n, s.buckets) == ("softmax", 1, 0, 0, 2_000_000)
    assert (w.split, w.lower, w.min_count) == ("whitespace", False, 1)
    again = load_vector_recipe(recipe.as_dict())
    assert again == recipe


@pytest.mark.parametrize("loss", ["softmax", "ns", "hs", "ova"])
def test_a_model_is_left_that_knows_its_labels(text, tmp_path, loss):
    result = train_vectors(settings(text, loss=loss, word_ngrams=2, buckets=1000), out=tmp_path / "run")
    assert not result.stopped
    model = load_fasttext(tmp_path / "run" / "model.bin")
    assert dict(zip(model.labels, model.label_counts.tolist(), strict=True)).keys() == TOPICS.keys()
    assert dict(zip(model.words, model.counts.tolist(), strict=True))["</s>"] == 4000
    assert model.n_tokens == len(text.read_text().split()) + 4000
    args = model.args
    assert (args.model, args.loss, args.word_ngrams, args.min_count) == ("supervised", loss, 2, 1)
    classifier = FastTextClassifier.load(tmp_path / "run")
    assert classifier.predict("on monday")[0][0] == "__label__day"
    assert classifier.predict("red and White")[0][0] == "__label__colour"
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["loss"] < json.loads(lines[0])["loss"]


def test_gensim_reads_the_words_once_they_are_converted(text, tmp_path):
    train_vectors(settings(text, min_n=2, max_n=3, buckets=500), out=tmp_path / "run")
    models = pytest.importorskip("gensim.models")
    with pytest.raises(NotImplementedError):  # of classifiers it reads nothing
        models.fasttext.load_facebook_vectors(str(tmp_path / "run" / "model.bin"))
    notes = convert_vectors(tmp_path / "run", tmp_path / "words.vec").notes
    assert len(notes) == 3  # labels, n-grams and counts
    theirs = models.KeyedVectors.load_word2vec_format(str(tmp_path / "words.vec"))
    ours = load_fasttext(tmp_path / "run" / "model.bin").wv
    assert theirs.index_to_key == ours.index_to_key
    assert np.array_equal(theirs.vectors, ours.vectors)


def test_a_stopped_run_resumes_to_the_bits_of_one_left_alone(text, tmp_path, monkeypatch):
    recipe = settings(text, deterministic=True, epochs=4, word_ngrams=2, buckets=1000)
    straight = train_vectors(recipe, out=tmp_path / "straight")
    portions = []

    class StopsEarly(module.SupervisedTrainer):
        def run(self):
            portions.append(self.job)
            if len(portions) == 2:
                os.kill(os.getpid(), signal.SIGINT)
            return super().run()

    with monkeypatch.context() as patch:
        patch.setattr(module, "SupervisedTrainer", StopsEarly)
        stopped = train_vectors(recipe, out=tmp_path / "run")
    assert stopped.stopped
    assert 0 < stopped.job < stopped.jobs
    so_far = FastTextClassifier.load(tmp_path / "run")  # can be asked already
    assert {label for label, _ in so_far.predict("monday", 2)} == TOPICS.keys()
    recipe["vectors"]["threads"] = 1
    ended = train_vectors(recipe, out=tmp_path / "run", resume=True)
    assert ended.job == straight.jobs
    one, other = ((tmp_path / name / "model.bin").read_bytes() for name in ("straight", "run"))
    assert one == other


def test_labels_with_a_prefix_of_their_own_and_words_in_lower_case(text, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(text.read_text().replace("__label__", "#").upper())
    recipe = settings(other, words={"lower": True}, label_prefix="#")
    train_vectors(recipe, out=tmp_path / "run")
    classifier = FastTextClassifier.load(tmp_path / "run")
    assert set(classifier.labels) == {"#DAY", "#COLOUR"}
    assert "monday" in classifier.model.words
    assert classifier.predict("MONDAY #COLOUR Tuesday")[0][0] == "#DAY"
    assert classifier.test(["#DAY Monday", "#COLOUR RED", "#NEW blue"]) == (2, 1.0, 1.0, 1, 1)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["vectors.window=3"], "vectors.window is not a setting of"),
        (["vectors.architecture=cbow"], "vectors.architecture is not a setting of"),
        (["words.phrases=1"], "words.phrases is not a setting of"),
        (["words.split=words"], "would split labels"),
        (["vectors.negative=7"], "vectors.loss='ns'"),
        (["vectors.loss=adaptive"], "vectors.loss"),
        (["vectors.label_prefix='a b'"], "vectors.label_prefix"),
        (
            ["vectors.algorithm=word2vec", "vectors.loss=ova"],
            "vectors.loss is not a setting of",
        ),
        (
            ["vectors.algorithm=fasttext", "vectors.word_ngrams=2"],
            "vectors.word_ngrams is not a setting of",
        ),
    ],
)
def test_settings_that_would_do_nothing_are_refused(text, overrides, says, tmp_path):
    with pytest.raises(RecipeError, match=says):
        train_vectors(settings(text), overrides, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_text_without_labels_is_refused(tmp_path):
    (tmp_path / "text.txt").write_text("no labels here\n")
    with pytest.raises(VectorError, match="begins with '__label__'"):
        train_vectors(settings(tmp_path / "text.txt"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- the commands ----------------------------------------------------------------------------------------


def run(*arguments, text=None):
    return CliRunner().invoke(app, ["vectors", *map(str, arguments)], input=text)


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    os.environ["WORDLOOM_CACHE"], before = str(folder / "cache"), os.environ.get("WORDLOOM_CACHE")
    try:
        out = folder / "run"
        done = run("train", "--corpus", text, "--algorithm", "fasttext-supervised", "--dim", 8, "--out", out)
    finally:
        os.environ.pop("WORDLOOM_CACHE")
        if before is not None:
            os.environ["WORDLOOM_CACHE"] = before
    assert done.exit_code == 0, done.output
    return folder / "run"


def test_the_command_predicts_labels_line_by_line(trained, tmp_path):
    done = run("predict", trained, "--top-k", -1, text="monday tuesday\nred\n")
    assert done.exit_code == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == ["__label__day", "__label__colour"]
    assert all(float(line[1]) + float(line[3]) == pytest.approx(1, abs=2e-4) for line in lines)
    (tmp_path / "text").write_bytes(b"red\r\nblue\xff\n")
    done = run("predict", trained / "model.bin", tmp_path / "text", "--json")
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [fact["line"] for fact in facts] == [1, 2]
    assert facts[0]["answers"][0]["label"] == "__label__colour"
    assert len(run("predict", trained, "--threshold", 1, text="red\n").stdout.strip()) == 0
    (tmp_path / "marked.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf__label__day monday\n"))
    done = run("predict", trained, tmp_path / "marked.txt.gz", "--labelled")
    assert done.stdout == "N\t1\nP@1\t1.0000\nR@1\t1.0000\n"


def test_the_command_judges_by_labels_that_stand_there(trained, tmp_path):
    text = "__label__day monday\n__label__colour monday\nunlabelled\n__label__new red\n"
    done = run("predict", trained, "--labelled", text=text)
    assert done.stdout == "N\t2\nP@1\t0.5000\nR@1\t0.5000\n"
    assert "2 lines without a known label" in done.stderr
    facts = json.loads(run("predict", trained, "--labelled", "--json", "--top-k", 2, text=text).stdout)
    assert (facts["examples"], facts["precision"], facts["recall"]) == (2, 0.5, 1.0)
    assert facts["unknown"] == 1


def test_mistakes_are_one_line(trained, tmp_path):
    for arguments, says in (
        (("predict", tmp_path / "none"), "none"),
        (("predict", tmp_path), "holds no classifier"),
        (("predict", trained, tmp_path / "none"), "cannot be opened"),
        (("predict", trained, "--top-k", 0), "asks for no labels"),
    ):
        done = run(*arguments, text="red\n")
        assert done.exit_code != 0
        assert isinstance(done.exception, WordloomError)
        assert says in str(done.exception)


def test_words_of_a_classifier_are_asked_like_any(trained):
    facts = json.loads(run("similar", trained, "monday", "--top-k", 3, "--json").stdout)
    assert {answer["word"] for answer in facts["answers"]} == {"tuesday", "friday", "sunday"}


def test_the_command_converts(trained, tmp_path):
    done = run("convert", trained, tmp_path / "words.txt")
    assert done.exit_code == 0
    assert "word2vec-text" in done.stdout
    assert "labels and their rows are left out" in done.stderr
    again = run("convert", trained, tmp_path / "words.txt", "--json")
    assert "already" in str(again.exception)
    facts = json.loads(run("convert", trained, tmp_path / "words.txt", "--json", "--force").stdout)
    assert (facts["format"], facts["dim"]) == ("word2vec-text", 8)
    assert len(facts["notes"]) == 2
