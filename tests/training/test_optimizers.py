"""Muon against torch's own, groups, schedules against their formulas."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from wordloom.models import BagOfWordsConfig, BertConfig, RNNConfig, TaskConfig, TransformerConfig, build
from wordloom.models.building.lora import add_adapter, linear_layers
from wordloom.nn.lora import LoraSettings
from wordloom.recipe import TrainSettings
from wordloom.training.optimizers import Muon, build_optimizer, orthogonalise
from wordloom.training.schedules import SCHEDULES, learning_rate_share


def test_muon_takes_the_steps_of_torchs_muon(monkeypatch):
    """The update rule, with torch's iteration run in float32 as ours is on CPUs without bfloat16."""

    def in_float32(grad, coefficients, steps, eps):
        x = grad.T if grad.size(0) > grad.size(1) else grad
        x = x / x.norm().clamp(min=eps)
        a, b, c = coefficients
        for _ in range(steps):
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x.T if grad.size(0) > grad.size(1) else x

    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", in_float32)
    monkeypatch.setattr("wordloom.training.optimizers.has_fast_bf16", lambda device: False)
    generator = torch.Generator().manual_seed(0)
    shapes = [(8, 8), (8, 8), (24, 8), (8, 24)]
    ours = [torch.nn.Parameter(torch.randn(s, generator=generator)) for s in shapes]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    a = Muon(ours, lr=0.02, momentum=0.9, weight_decay=0.1)
    b = torch.optim.Muon(theirs, lr=0.02, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        a.step()
        b.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", [(5, 16, 16), (2, 40, 12), (3, 12, 40)])
def test_orthogonalise_brings_singular_values_near_one(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonalise(matrices).float())
    assert values.max() < 1.3
    assert values.median() > 0.6
    # the singular vectors are those of the matrix
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    inner = torch.einsum("nri,nrc,nic->ni", u, orthogonalise(matrices).float(), v)
    assert inner.min() > 0.0


def test_decay_acts_on_matrices_only_and_muon_on_the_blocks_matrices(tiny_model):
    model = tiny_model()
    optimizer = build_optimizer(model, TrainSettings(steps=1, optimizer="muon", weight_decay=0.3))
    decay = {}
    for part, torch_optimizer in optimizer.parts.items():
        for group in torch_optimizer.param_groups:
            for p in group["params"]:
                decay[optimizer.names[p]] = (part, group["weight_decay"])
    assert set(decay) == {name for name, _ in model.named_parameters()}
    for name, p in model.named_parameters():
        inside = name.startswith("blocks.") and p.ndim == 2
        assert decay[name] == ("muon" if inside else "adamw", 0.3 if p.ndim == 2 else 0.0), name


def test_muon_trains_an_adapter_alone(tiny_model):
    """Of which all parameters are matrices of blocks: AdamW has none."""
    model = tiny_model()
    layers = [name for name in linear_layers(model) if "blocks." in name]
    add_adapter(model, LoraSettings(rank=2), layers, generator=torch.Generator().manual_seed(1))
    optimizer = build_optimizer(model, TrainSettings(steps=1, optimizer="muon", muon_learning_rate=0.5))
    assert list(optimizer.parts) == ["muon"]
    optimizer.set_learning_rate(0.5)
    assert optimizer.learning_rate == 0.25
    assert set(optimizer.names.values()) == {n for n, p in model.named_parameters() if p.requires_grad}


def test_muon_finds_the_blocks_of_heads_and_of_translators():
    """By whatever name: under a body, or an encoder's and a decoder's."""
    sizes = {"vocab_size": 50, "dim": 8, "n_layers": 1, "n_heads": 2}
    body = BertConfig(**sizes, hidden_dim=16, max_seq_len=8)
    for config, n in (
        (TaskConfig(task="classification", body=body, id2label={"0": "a", "1": "b"}), 6),
        (TransformerConfig(**sizes), 6 + 10),
        (RNNConfig(vocab_size=50, dim=8, n_layers=1), 2),
        (BagOfWordsConfig(vocab_size=50, id2label={"0": "a", "1": "b"}), 0),
    ):
        optimizer = build_optimizer(build(config), TrainSettings(steps=1, optimizer="muon"))
        muon = optimizer.parts["muon"].param_groups[0]["params"] if "muon" in optimizer.parts else []
        assert len(muon) == n
        assert all("blocks." in optimizer.names[p] for p in muon)


def settings(**changes) -> TrainSettings:
    budget = {"epochs": 20.0} if changes.get("schedule") == "epoch_decay" else {"steps": 100}
    return TrainSettings(**budget, warmup_steps=10, final_share=0.1, **changes)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_warm_up_is_linear_and_never_zero(schedule):
    s = settings(schedule=schedule)
    shares = [learning_rate_share(step, 100, s) for step in range(11)]
    assert shares[0] == pytest.approx(1 / (10 if schedule == "inverse_sqrt" else 11))
    assert shares[10] == pytest.approx(1.0, abs=0.05)
    differences = {round(b - a, 3) for a, b in pairwise(shares[:9])}
    assert len(differences) == 1


def test_inverse_sqrt_is_the_papers_formula():
    """rate ~ min(n^-0.5, n * warmup^-1.5), section 5.3, as a share of its peak, which step 10 reaches."""
    s = settings(schedule="inverse_sqrt")
    shares = [learning_rate_share(n - 1, 100, s) for n in range(1, 101)]
    formula = [min(n**-0.5, n * 10**-1.5) for n in range(1, 101)]
    assert shares == pytest.approx([rate / max(formula) for rate in formula])
    assert shares[9] == max(shares) == 1.0


def test_ends():
    ends = {name: learning_rate_share(99, 100, settings(schedule=name)) for name in SCHEDULES}
    assert ends["constant"] == 1.0
    assert ends["linear"] == pytest.approx(0.1)
    assert ends["cosine"] == pytest.approx(0.1)
    assert ends["warmup_stable_decay"] == pytest.approx(0.1)
    assert ends["inverse_sqrt"] == pytest.approx(math.sqrt(10 / 100))
    assert ends["epoch_decay"] == 0.5**16  # four epochs at the peak, and then half as much in each


def test_epochs_that_do_not_divide_the_steps():
    s = TrainSettings(epochs=2.5, schedule="epoch_decay", flat_epochs=1, decay_factor=0.1)
    shares = [learning_rate_share(step, 10, s) for step in range(10)]
    assert shares == pytest.approx([1.0] * 4 + [0.1] * 4 + [0.01] * 2)


def test_shapes_between():
    middle = 10 + (99 - 10) / 2
    assert learning_rate_share(int(middle), 100, settings(schedule="cosine")) == pytest.approx(0.55, abs=0.01)
    assert learning_rate_share(int(middle), 100, settings(schedule="linear")) == pytest.approx(0.55, abs=0.01)
    stable = settings(schedule="warmup_stable_decay", decay_share=0.2)
    assert learning_rate_share(79, 100, stable) == 1.0
    assert learning_rate_share(90, 100, stable) < 0.6
