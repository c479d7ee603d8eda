"""Training on a torch device: against the numpy twin, what chance decides, determinism, resume, quality.

All but what is marked ``gpu`` runs the same code on the processor.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, chisquare
from tests.vectors.word2vec import twin as plain

from wordloom.errors import DeviceError, NonFiniteError, VectorError
from wordloom.vectors.word2vec.layout import Tables
from wordloom.vectors.word2vec.sampling import keep_probabilities
from wordloom.vectors.word2vec.torch_trainer import Draw, TorchWordTrainer, damping, shape_of
from wordloom.vectors.word2vec.trainer import TrainingCorpus, WordTrainer

V = 60
METHODS = {
    "skip-gram": {},
    "CBOW": {"architecture": "cbow"},
    "CBOW of sums": {"architecture": "cbow", "mean": False},
}
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


class Shards:
    """A corpus of a few documents in memory."""

    def __init__(self, documents: list[Any]) -> None:
        self.ids = np.concatenate(documents).astype(np.uint16)
        self.ends = np.cumsum([len(document) for document in documents])

    def __len__(self) -> int:
        return len(self.ids)

    def tokens(self, start: int = 0, stop: int | None = None) -> Any:
        return self.ids[start:stop]


def zipf(*lengths: int) -> Shards:
    random, share = np.random.default_rng(0), 1 / np.arange(1, V + 1)
    return Shards([random.choice(V, size=length, p=share / share.sum()) for length in lengths])


def method(**changed: Any) -> Any:
    s = SimpleNamespace(
        architecture="skipgram", negative=5, mean=True, epochs=2, dim=20, window=4, exponent=0.75,
        sample=0.01, alpha=0.05, min_alpha=1e-3, deterministic=False,
    )  # fmt: skip
    vars(s).update(changed)
    return s


def trainer(
    shards: Shards | None = None, *, device: str = "cpu", seed: int = 3, fresh: bool = False, **changed: Any
) -> TorchWordTrainer:
    shards = shards or zipf(700, 3, 1, 900)
    counts = np.sort(np.bincount(shards.ids, minlength=V) + 1)[::-1].copy()
    corpus = TrainingCorpus.cut(shards)
    made = TorchWordTrainer(corpus, counts, method(**changed), seed=seed, device=device)
    if not fresh:
        outputs = np.random.default_rng(1).normal(0, 0.1, made.outputs.shape).astype(np.float32)
        made.restore({**made.state(), "outputs": outputs})
    return made


def finish(made: Any) -> None:
    while not made.done:
        made.run()


def windows_of(made: TorchWordTrainer, draw: Draw) -> list[tuple[plain.Window, float]]:
    """The windows of a draw and their rates, found one by one from the stream of words kept."""
    s, (L, _, K, _) = made.settings, made.shape
    words, pieces = (f[:, s.window : s.window + L].reshape(-1).tolist() for f in (draw.words, draw.pieces))
    reach, rates = draw.reach.reshape(-1).tolist(), draw.rates.reshape(-1).tolist()
    found = []
    for i in range(draw.kept):
        near = [
            j
            for j in range(max(0, i - reach[i]), min(draw.kept, i + reach[i] + 1))
            if j != i and pieces[j] == pieces[i]
        ]
        noise = draw.negatives[i // L].tolist()
        weight = [1.0] + [s.negative / K * (word != words[i]) for word in noise]
        targets = [words[i], *noise]
        window = plain.Window(words[i], [words[j] for j in near], targets, [1.0] + [0.0] * K, weight, near)
        found.append((window, rates[i]))
    return found


def doubles(made: TorchWordTrainer) -> Tables:
    return Tables(made.inputs.astype(np.float64), made.outputs.astype(np.float64))


def all_one(made: TorchWordTrainer) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(V, device=made.device), torch.ones(V, device=made.device)


@pytest.mark.parametrize("lengths", [(2,), (700, 3, 1, 900)], ids=["one pair", "many windows"])
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("changed", METHODS.values(), ids=METHODS.keys())
def test_a_batch_is_the_sum_of_its_windows_steps(
    changed: dict[str, Any], device: str, lengths: tuple[int, ...]
) -> None:
    made = trainer(zipf(*lengths), sample=0 if len(lengths) == 1 else 0.01, device=device, **changed)
    draw = made.draw(made.portion(0))
    tables, expected = doubles(made), doubles(made)
    how: Any = SimpleNamespace(
        joined=int(made.settings.architecture == "cbow"), mean=int(made.settings.mean), units=0
    )
    loss, predicted = 0.0, 0
    for window, rate in windows_of(made, draw):
        if window.rows:
            inputs, outputs = plain.step(tables, window, how, rate)
            np.add.at(expected.inputs, window.rows, inputs)
            np.add.at(expected.outputs, window.targets, outputs)
            loss += plain.window_loss(tables, window, how)
            predicted += 1 if how.joined else len(window.rows)
    assert predicted > 0
    found = made.step(draw, all_one(made), with_loss=True)
    assert found is not None
    assert found.tolist() == pytest.approx([loss, predicted], rel=1e-5)
    np.testing.assert_allclose(made.inputs, expected.inputs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(made.outputs, expected.outputs, rtol=1e-5, atol=1e-5)
    assert np.abs(expected.inputs - tables.inputs).max() > 1e-3  # something moved


@pytest.mark.parametrize("changed", METHODS.values(), ids=METHODS.keys())
def test_a_small_step_lowers_the_loss_by_what_the_gradient_says(changed: dict[str, Any]) -> None:
    made = trainer(dim=40, **changed)
    draw, rate = made.draw(made.portion(0)), 1e-4
    draw = draw._replace(rates=torch.full_like(draw.rates, rate))
    before = doubles(made)
    first = made.step(draw, all_one(made), with_loss=True)
    moved = [after - table for after, table in zip(doubles(made), before, strict=True)]
    second = made.step(draw, all_one(made), with_loss=True)
    assert first is not None
    assert second is not None
    fell = float(first[0] - second[0])
    assert fell > 0
    if made.settings.architecture == "skipgram":  # CBOW takes other steps than the gradient's
        expected = sum((change**2).sum() for change in moved) / rate
        assert fell == pytest.approx(expected, rel=0.05)


def test_windows_end_with_their_piece() -> None:
    """Documents of two sets of words by turns: no word of one set is ever beside one of the other."""
    random, half = np.random.default_rng(0), V // 2
    documents = [random.integers(0, half - 1, 37) + half * (i % 2) for i in range(60)]
    made = trainer(Shards(documents), dim=V, sample=0)
    eye, nothing = np.eye(V, dtype=np.float32), np.zeros((V, V), dtype=np.float32)
    made.restore({"inputs": eye, "outputs": nothing, "job": np.array([0])})
    draw = made.draw(made.portion(0))
    draw = draw._replace(negatives=torch.full_like(draw.negatives, V - 1))  # a word that does not occur
    made.step(draw, all_one(made))
    together = made.outputs > 0  # [middle, around]
    assert together[: half - 1, : half - 1].mean() > 0.9
    assert together[half : V - 1, half : V - 1].mean() > 0.9
    assert not together[:half, half:].any()
    assert not together[half:, :half].any()


def test_what_is_drawn_is_the_portion_and_nothing_else() -> None:
    made = trainer(zipf(25_000, 300, 1, 12_000), sample=0)
    part = made.portion(0)
    draw, (L, _, _, _), W = made.draw(part), made.shape, made.settings.window
    middle = slice(W, W + L)
    n = len(part.ids)
    assert draw.kept == n
    np.testing.assert_array_equal(draw.words[:, middle].reshape(-1)[:n], part.ids)
    pieces = np.repeat(np.arange(len(part.ends)), np.diff(part.ends, prepend=0))
    np.testing.assert_array_equal(draw.pieces[:, middle].reshape(-1)[:n], pieces)
    jobs = np.searchsorted(part.jobs, pieces, side="right") - 1
    np.testing.assert_array_equal(draw.rates.reshape(-1)[:n], part.rates[jobs])
    assert not draw.reach.reshape(-1)[n:].any()


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_chance_keeps_to_its_formulas(device: str) -> None:
    made = trainer(zipf(400_000), sample=0.001, exponent=0.6, device=device)
    counts = np.sort(np.bincount(made.corpus.shards.tokens(), minlength=V) + 1)[::-1]
    part = made.portion(0)
    draw = made.draw(part)
    L, W = made.shape.windows, made.settings.window
    words = draw.words[:, W : W + L].reshape(-1)[: draw.kept].cpu().numpy()
    there, kept = (np.bincount(ids, minlength=V) for ids in (part.ids, words))
    chance = keep_probabilities(counts, 0.001)
    np.testing.assert_array_equal(kept[chance == 1], there[chance == 1])
    partly = chance < 1
    assert partly.sum() > 10
    expected = (chance * there)[partly]
    z = (kept[partly] - expected) / np.sqrt(expected * (1 - chance[partly]))
    assert chi2.sf((z**2).sum(), partly.sum()) > 1e-3
    noise = np.bincount(draw.negatives.reshape(-1).cpu().numpy(), minlength=V)
    share = counts**0.6 / (counts**0.6).sum()
    assert chisquare(noise, share * noise.sum()).pvalue > 1e-3
    reach = np.bincount(draw.reach.reshape(-1)[: draw.kept].cpu().numpy(), minlength=W + 1)
    assert reach[0] == 0
    assert chisquare(reach[1:]).pvalue > 1e-3


@pytest.mark.parametrize("changed", METHODS.values(), ids=METHODS.keys())
def test_one_seed_gives_one_set_of_vectors(changed: dict[str, Any]) -> None:
    results = []
    for seed in (3, 3, 4):
        made = trainer(zipf(9000, 20_000), seed=seed, fresh=True, **changed)
        finish(made)
        results.append(made.inputs.tobytes() + made.outputs.tobytes())
    assert results[0] == results[1] != results[2]


@pytest.mark.gpu
def test_deterministic_training_on_a_gpu_has_the_same_bits_twice() -> None:
    results = []
    for _ in range(2):
        made = trainer(zipf(*[9000] * 40), device="cuda", fresh=True, deterministic=True)
        finish(made)
        results.append(made.inputs.tobytes() + made.outputs.tobytes())
    assert results[0] == results[1]


def test_both_devices_begin_alike() -> None:
    shards = zipf(700, 3, 1, 900)
    here = trainer(shards, fresh=True)
    counts = np.sort(np.bincount(shards.ids, minlength=V) + 1)[::-1].copy()
    cores = WordTrainer(TrainingCorpus.cut(shards), counts, method(), seed=3, threads=1)
    np.testing.assert_array_equal(here.inputs, cores.inputs)
    np.testing.assert_array_equal(here.outputs, cores.outputs)
    assert (here.jobs, here.alpha) == (cores.jobs, cores.alpha)


def test_training_resumes_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wordloom.vectors.word2vec.trainer.PORTION", 16)
    shards = zipf(*[9000] * 40)
    straight, stopped, resumed = (trainer(shards) for _ in range(3))
    for _ in range(2):
        stopped.run()
    resumed.restore({name: value.copy() for name, value in stopped.state().items()})
    assert 0 < resumed.job < resumed.jobs
    finish(straight)
    finish(resumed)
    assert straight.inputs.tobytes() == resumed.inputs.tobytes()
    assert straight.outputs.tobytes() == resumed.outputs.tobytes()


def test_a_state_goes_from_one_kind_of_device_to_the_other_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wordloom.vectors.word2vec.trainer.PORTION", 2)
    shards = zipf(*[9000] * 8)
    here = trainer(shards, fresh=True)
    counts = np.sort(np.bincount(shards.ids, minlength=V) + 1)[::-1].copy()
    cores = WordTrainer(TrainingCorpus.cut(shards), counts, method(), seed=3, threads=1)
    cores.run()
    here.restore(cores.state())
    np.testing.assert_array_equal(here.inputs, cores.inputs)
    here.run()
    cores.restore(here.state())
    assert cores.job == here.job == 4
    np.testing.assert_array_equal(cores.outputs, here.outputs)
    finish(cores)
    assert np.isfinite(cores.inputs).all()


def test_a_state_of_other_vectors_is_refused() -> None:
    made = trainer()
    state = made.state()
    with pytest.raises(VectorError, match=r"\[60, 19\]"):
        made.restore({**state, "inputs": state["inputs"][:, :19]})


def test_every_word_is_read_once_an_epoch_and_one_word_is_a_corpus() -> None:
    made = trainer(zipf(25_000, 8, 70_001), epochs=3)
    words = 0
    while not made.done:
        words += made.run().words
    assert words == 3 * 95_009
    alone = trainer(zipf(1))
    assert alone.run().loss is None  # nothing is around it


def test_vectors_that_grow_beyond_bounds_end_the_training() -> None:
    made = trainer(zipf(*[9000] * 30), epochs=50, alpha=1e4)
    with pytest.raises(NonFiniteError, match="alpha 10000 is too high"):
        finish(made)


def test_a_device_that_is_full_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")

    made = trainer()
    monkeypatch.setattr(made, "step", full)
    with pytest.raises(DeviceError, match="cpu is out of memory: CUDA out of memory; lower vectors"):
        made.run()
    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(DeviceError, match="out of memory: CUDA out of memory"):
        trainer()


@pytest.mark.parametrize("changed", [{"negative": 0}, {"algorithm": "fasttext"}, {"algorithm": "glove"}])
def test_what_has_no_kernel_is_told(changed: dict[str, Any]) -> None:
    with pytest.raises(VectorError, match=r"is not trained on a GPU; set vectors\.device=cpu"):
        trainer(**changed)


@settings(deadline=None)
@given(window=st.integers(1, 100), negative=st.integers(1, 300), V=st.integers(1, 5000))
def test_groups_fill_tiles_and_hold_what_they_must(window: int, negative: int, V: int) -> None:
    counts = np.sort(np.random.default_rng(V).integers(1, 10_000, V))[::-1]
    L, R, K, B = shape_of(counts, method(window=window, negative=negative), int(counts.sum()))
    assert L + 2 * window == R
    assert R % 64 == (L + K) % 128 == 0
    assert L >= 32
    assert max(L, negative) <= K
    assert 1 <= B <= 64


def test_steps_of_rows_met_too_often_weigh_as_much_as_of_those_just_not() -> None:
    met = torch.tensor([0.0, 1.0, 99.0, 100.0, 101.0, 1e6])
    assert (damping(met, 0.025) * met).tolist() == pytest.approx([0.0, 1.0, 99.0, 100.0, 100.0, 100.0])
    assert (damping(met, 1e-4) * met).tolist() == pytest.approx([0.0, 1.0, 99.0, 100.0, 101.0, 25_000.0])
    assert damping(met, 1e4)[1] == damping(met, 0.0)[-1] == 1.0  # one step is never made smaller


@pytest.mark.parametrize("scaled", [True, False])
def test_large_batches_learn_only_by_steps_scaled_down(scaled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_DAMPED": 1e9, "_BATCHES": 1}.items():  # 3456 windows whatever the vocabulary
        monkeypatch.setattr(f"wordloom.vectors.word2vec.torch_trainer.{name}", value)
    if not scaled:
        monkeypatch.setattr("wordloom.vectors.word2vec.torch_trainer._LOAD", 1e9)
    made = trainer(zipf(*[9000] * 40), fresh=True, sample=0, epochs=4)
    assert made.shape.groups == 64
    if not scaled:
        with pytest.raises(NonFiniteError):
            finish(made)
        return
    while not made.done:
        figures = made.run()
    assert figures.loss is not None
    assert figures.loss < 6 * np.log(2)  # what vectors of zeros cost


# -- quality -----------------------------------------------------------------------------------------------


def company() -> tuple[Shards, Any]:
    """Twenty circles of ten words that keep each other's company, among words that are everywhere."""
    random = np.random.default_rng(0)
    circles, everywhere = 20, 40
    words = random.permutation(circles * 10) + everywhere
    documents = []
    for _ in range(3000):
        own = words.reshape(circles, 10)[random.integers(circles)]
        documents.append(
            np.where(random.random(50) < 0.5, random.choice(own, 50), random.integers(0, 40, 50))
        )
    return Shards(documents), words.reshape(circles, 10)


@pytest.mark.parametrize("architecture", ["skipgram", "cbow"])
@pytest.mark.parametrize("where", ["numba", "cpu", GPU])
def test_words_that_keep_the_same_company_come_out_alike(where: str, architecture: str) -> None:
    shards, circles = company()
    counts = np.bincount(shards.ids)
    order = np.argsort(-counts, kind="stable")  # ids by falling count, as a vocabulary has them
    rank = np.argsort(order)
    shards.ids, circles = rank[shards.ids].astype(np.uint16), rank[circles]
    s = method(architecture=architecture, dim=32, window=5, epochs=5, sample=1e-2, min_alpha=1e-4)
    corpus, counts = TrainingCorpus.cut(shards), counts[order]
    made: Any
    if where == "numba":
        made = WordTrainer(corpus, counts, s, seed=1, threads=2)
    else:
        made = TorchWordTrainer(corpus, counts, s, seed=1, device=where)
    while not made.done:
        figures = made.run()
    assert figures.loss is not None
    assert figures.loss < 0.8 * 6 * np.log(2)  # what vectors of zeros cost
    unit = made.inputs / np.linalg.norm(made.inputs, axis=1, keepdims=True)
    alike = unit @ unit.T
    np.fill_diagonal(alike, -1)
    nearest = np.argsort(-alike, axis=1)[:, :9]
    right = [np.isin(nearest[word], circle).mean() for circle in circles for word in circle]
    assert np.mean(right) > 0.97
