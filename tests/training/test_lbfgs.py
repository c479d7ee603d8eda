"""L-BFGS: it finds what scikit-learn finds, one evaluation at a step, and goes on where it stopped."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from wordloom.data.batches.labelled import BagBatches
from wordloom.errors import NonFiniteError, RecipeError
from wordloom.models import BagOfWordsConfig, build
from wordloom.objectives import OBJECTIVES
from wordloom.recipe import TrainSettings, load_recipe
from wordloom.training import Trainer
from wordloom.training.hooks import Log
from wordloom.training.lbfgs import LBFGS
from wordloom.training.plan import Work

N, V = 400, 40


@pytest.fixture(scope="module", params=[2, 4])
def task(request):
    """Counts, and labels that depend on them and on chance."""
    rng = np.random.default_rng(1)
    counts = csr_matrix(rng.poisson(0.4, (N, V)).astype(np.int32))
    scores = counts @ rng.normal(size=(V, request.param)) + rng.gumbel(size=(N, request.param))
    return counts, scores.argmax(1), request.param


def trainer_of(task, **settings):
    counts, targets, C = task
    values = {"steps": 300, "objective": "classification", "optimizer": "lbfgs", "batch_size": N,
              "precision": "fp32", "device": "cpu", "tolerance": 1e-5, **settings}  # fmt: skip
    s = TrainSettings(**values)
    names = {str(n): f"c{n}" for n in range(C)}
    model = build(BagOfWordsConfig(vocab_size=V, id2label=names, features="counts"))
    batches = BagBatches(counts, targets, order="sequential")
    return Trainer(model, OBJECTIVES["classification"], batches, s, total_steps=s.steps, seed=1)


def test_the_optimum_is_scikit_learns(task):
    counts, targets, C = task
    strength = 0.7  # scikit-learn's C
    # two classes have one weight vector there, which two of ours of half its size stand for
    trainer = trainer_of(task, tolerance=2e-6, l2=(2 if C == 2 else 1) / (strength * N))
    assert trainer.run() == "done"
    assert trainer.optimizer.converged
    assert trainer.step == trainer.total_steps < 100
    peer = LogisticRegression(C=strength, tol=1e-8, max_iter=1000).fit(counts, targets)
    batch = trainer.batches.batch(0, N)
    with torch.no_grad():
        ours = torch.softmax(trainer.model(*batch.inputs).double(), 1).numpy()
    np.testing.assert_allclose(ours, peer.predict_proba(counts), atol=2e-4)


@pytest.mark.parametrize("start", [(-1.2, 1.0), (3.0, -4.0)])
def test_a_curved_valley_is_followed_to_its_end(start):
    """Rosenbrock's function, where unit steps fail and have to be shortened."""
    p = torch.nn.Parameter(torch.tensor(start))
    lbfgs = LBFGS([{"params": [p], "l2": 0.0}], tolerance=1e-4)
    values = []
    for _ in range(300):
        p.grad = None
        value = (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2
        value.backward()
        values.append(value.item())
        lbfgs.evaluated(value.item())
        if lbfgs.converged:
            break
    assert lbfgs.converged
    assert p.tolist() == pytest.approx([1.0, 1.0], abs=1e-2)
    assert max(b - a for a, b in pairwise(values)) > 0  # a step was too long, and undone
    theirs = minimize(lambda x: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2, start, method="L-BFGS-B")
    assert len(values) < 3 * theirs.nfev


def test_the_point_is_the_best_so_far_and_leaving_it_changes_nothing(task):
    trainer = trainer_of(task, l2=1e-3)
    losses = []
    for _ in range(12):
        trainer.train_step()
        before = [p.detach().clone() for p in trainer.model.parameters()]
        with trainer.optimizer.lbfgs.at_point(), torch.no_grad():
            loss = OBJECTIVES["classification"](trainer.model, trainer.batches.batch(0, N)).total / N
            squares = trainer.model.classifier.weight.square().sum()
            losses.append(float(loss + 1e-3 / 2 * squares))
        assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
        assert losses[-1] == pytest.approx(trainer.optimizer.lbfgs._numbers.loss, rel=1e-5)
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("stop", [1, 2, 7, 15])
def test_it_goes_on_from_its_state_to_the_bit(task, stop):
    straight, first = trainer_of(task), trainer_of(task)
    for _ in range(20):
        straight.train_step()
    for _ in range(stop):
        first.train_step()
    tensors, values = first.state_dict()
    second = trainer_of(task)
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict({key: value.clone() for key, value in tensors.items()}, values)
    for _ in range(20 - stop):
        second.train_step()
    for a, b in zip(straight.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    ours, theirs = straight.state_dict()[0], second.state_dict()[0]
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_a_converged_run_stays_where_it_is(task):
    trainer = trainer_of(task)
    trainer.run()
    assert trainer.optimizer.converged
    weights = [p.detach().clone() for p in trainer.model.parameters()]
    tensors, values = trainer.state_dict()
    again = trainer_of(task)
    again.model.load_state_dict(trainer.model.state_dict())
    again.load_state_dict(tensors, {**values, "total_steps": 300})
    assert again.run() == "done"
    assert again.step == trainer.step
    assert all(torch.equal(a, b) for a, b in zip(weights, again.model.parameters(), strict=True))


def test_micro_batches_change_nothing_but_rounding(task):
    whole, parts = trainer_of(task, steps=8), trainer_of(task, steps=8, micro_batch_size=96)
    whole.run()
    parts.run()
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_gradients_are_not_clipped_and_the_record_says_how_long_the_step_was(task):
    trainer = trainer_of(task, clip=1e-6)
    records = [trainer.train_step() for _ in range(5)]
    assert records[-1]["learning_rate"] == trainer.optimizer.lbfgs._numbers.length > 0
    assert records[-1]["loss_total"] < records[0]["loss_total"]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_trial_loss_that_is_not_finite_shortens_the_step(wrong):
    """10 x - ln x has its minimum at 0.1 and no value below 0, where the first step leads."""
    x = torch.nn.Parameter(torch.tensor([0.5]))
    lbfgs = LBFGS([{"params": [x], "l2": 0.0}], tolerance=1e-4)
    tried = []
    while not lbfgs.converged and len(tried) < 60:
        at = x.item()
        tried.append(at)
        x.grad = torch.tensor([10 - 1 / at if at > 0 else wrong])
        lbfgs.evaluated(10 * at - float(np.log(at)) if at > 0 else wrong)
    assert lbfgs.converged
    assert tried[1] < 0
    assert x.item() == pytest.approx(0.1, rel=1e-3)


def test_the_trainer_goes_on_after_a_trial_that_is_not_finite(task, tmp_path):
    trainer, exact = trainer_of(task, l2=0.01), OBJECTIVES["classification"]
    evaluations = []

    def objective(model, batch):
        loss = exact(model, batch)
        evaluations.append(len(evaluations))
        return loss._replace(total=loss.total * float("nan")) if evaluations[-1] in (1, 4, 5) else loss

    trainer.objective = objective
    lines = []
    log = Log(
        tmp_path / "metrics.jsonl",
        every=1,
        report=lines.append,
        work=lambda steps: Work(0, 0),
        peak_flops=None,
    )
    trainer.hooks = [log]
    assert trainer.run() == "done"
    assert trainer.optimizer.converged
    assert [n for n, line in enumerate(lines) if line["loss"] is None] == [1, 4, 5]
    assert lines[1]["gradient_norm"] is None
    expected = trainer_of(task, l2=0.01)
    expected.run()
    weights = (t.model.classifier.weight for t in (trainer, expected))  # penalised, so there is one minimum
    torch.testing.assert_close(*weights, atol=1e-3, rtol=0)
    first = trainer_of(task)
    first.objective = lambda model, batch: exact(model, batch)._replace(
        total=torch.tensor(torch.nan, requires_grad=True)
    )
    with pytest.raises(NonFiniteError, match="step 1: loss nan"):
        first.run()


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train.optimizer=lbfgs", "reads all samples at every step"),
        ("train.objective=classification", "data.field|order|document_mask|sample_every|is not a setting of"),
    ],
)
def test_language_models_do_not_take_it(override, says):
    with pytest.raises(RecipeError, match=says):
        load_recipe("llama-gutenberg", [override])


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train.ema=0.9", "train.ema averages noisy steps"),
        ("train.precision=bf16", "needs fp32"),
        ("train.sample_every=5", "train.sample_every is not a setting of train.objective"),
        ("data.field=body", "data.field is not a setting of train.objective 'classification'; it is for"),
        ("data.document_mask=true", r"data\.document_mask is not a setting of"),
    ],
)
def test_what_does_not_go_together_is_refused(override, says):
    with pytest.raises(RecipeError, match=says):
        load_recipe("bag-of-words-sst2", [override])


def test_columns_are_for_rows_alone():
    with pytest.raises(RecipeError, match=r"data\.text_column has no effect without data\.label_prefix"):
        load_recipe("llama-gutenberg", ["data.text_column=body"])
