"""Which device word vectors are trained on, and going on from one to the other."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from wordloom.errors import DeviceError, RecipeError, VectorError
from wordloom.progress import TrainingProgress
from wordloom.recipe.vectors import load_vector_recipe
from wordloom.run.vectors import vector_run as module
from wordloom.run.vectors.train import train_vectors
from wordloom.run.vectors.vector_run import vector_device
from wordloom.vectors import load_vectors
from wordloom.vectors.word2vec.torch_trainer import TorchWordTrainer


def chosen(**vectors):
    recipe = load_vector_recipe({"name": "t", "data": {"train": "x"}, "vectors": vectors})
    return vector_device(recipe.vectors.resolved())


@pytest.fixture
def gpu(monkeypatch):
    """A machine that says it has one GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_the_cores_where_there_is_no_gpu(no_gpu):
    assert chosen() == chosen(device="cpu") == (None, "")
    with pytest.raises(DeviceError, match="'cuda' is not on this machine"):
        chosen(device="cuda")
    with pytest.raises(DeviceError, match="unknown device 'gpu'"):
        chosen(device="gpu")


def test_a_gpu_is_taken_where_it_can_do_it(gpu):
    assert chosen() == (torch.device("cuda"), "")
    assert chosen(architecture="cbow", device="cuda:0") == (torch.device("cuda:0"), "")
    assert chosen(device="cpu") == (None, "")
    for cannot, named in (
        ({"hierarchical_softmax": True}, "hierarchical softmax"),
        ({"algorithm": "fasttext"}, "fastText with its n-grams"),
    ):
        assert chosen(**cannot) == (None, f"; the GPU is idle: {named} is not trained on it")
        with pytest.raises(VectorError, match=rf"{named} is not trained on a GPU; set vectors\.device=cpu"):
            chosen(device="cuda", **cannot)
    with pytest.raises(DeviceError, match="'cuda:1' is not on this machine"):
        chosen(device="cuda:1")


def test_threads_do_nothing_on_a_gpu():
    with pytest.raises(RecipeError, match=r"vectors\.threads is not a setting of vectors\.device 'cuda'"):
        load_vector_recipe(
            {"name": "t", "data": {"train": "x"}}, ["vectors.threads=2", "vectors.device=cuda"]
        )


class Heard(TrainingProgress):
    def __init__(self):
        super().__init__()
        self.lines = []

    def say(self, message):
        self.lines.append(message)


def test_a_run_goes_on_on_another_device_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("wordloom.vectors.word2vec.trainer.PORTION", 2)
    random = np.random.default_rng(0)
    kinds = [["red", "green", "blue", "white", "black"], ["one", "two", "three", "four", "five"]]
    lines = [" ".join(random.choice(kinds[random.integers(2)], 10)) for _ in range(9000)]
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    settings = {
        "name": "t",
        "data": {"train": str(tmp_path / "text.txt")},
        "vectors": {"dim": 16, "sample": 0.0, "epochs": 2, "device": "cpu", "deterministic": True},
    }

    class StopsEarly(module.WordTrainer):
        @property
        def done(self):
            return self.job >= 6

    heard = Heard()
    with monkeypatch.context() as patch:
        patch.setattr(module, "WordTrainer", StopsEarly)
        patch.setattr(module.VectorRun, "_save_vectors", lambda *_: None)
        train_vectors(settings, out=tmp_path / "run", progress=heard)
    assert any(line.startswith("running     skipgram") and "numba kernel" in line for line in heard.lines)

    class Pretends(TorchWordTrainer):  # torch on the processor in the place of a GPU
        def __init__(self, *given, device, **rest):
            super().__init__(*given, device="cpu", **rest)
            self.device = device.type

    monkeypatch.setattr(module, "TorchWordTrainer", Pretends)
    monkeypatch.setattr(module, "vector_device", lambda _: (torch.device("cuda"), ""))
    heard = Heard()
    settings["vectors"]["device"] = "cuda"
    ended = train_vectors(settings, out=tmp_path / "run", resume=True, progress=heard)
    assert ended.job == ended.jobs > 6
    said = [line for line in heard.lines if line.startswith("continuing")]
    assert len(said) == 1
    assert "on cuda after training on cpu: the random numbers differ" in said[0]
    assert any(line.startswith("running     skipgram") and "torch on cpu" in line for line in heard.lines)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["job"] for line in lines] == sorted({json.loads(line)["job"] for line in lines})
    near = {word for word, _ in load_vectors(tmp_path / "run").most_similar("red", topn=4)}
    assert near == {"green", "blue", "white", "black"}
