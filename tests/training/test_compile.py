"""torch.compile block by block: it trains, repeats its bits, resumes to them, and steps aside if it must."""

from __future__ import annotations

import logging

import pytest
import torch

from wordloom.models.building.attention import set_attention
from wordloom.objectives import causal_lm
from wordloom.run.tasks.building import set_up_blocks
from wordloom.training.precision import compile_blocks
from wordloom.training.trainer import Trainer

CPU = torch.device("cpu")


def trainer_of(model, batches, settings) -> tuple[Trainer, str]:
    trainer = Trainer(model, causal_lm, batches, settings, total_steps=settings.steps, seed=1)
    return trainer, compile_blocks(trainer.model, settings, trainer.device)


def weights(trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.model.parameters()]


@pytest.mark.timeout(240)  # the first compilation on a cold machine
def test_compiled_training_repeats_its_bits_and_resumes_to_them(tiny_model, batches, settings):
    torch._dynamo.reset()
    s = settings(compile="on")
    names = list(tiny_model().state_dict())
    runs = []
    for _ in range(2):
        trainer, done = trainer_of(tiny_model(0.1), batches, s)
        assert done == "compiled per block"
        records = [trainer.train_step() for _ in range(6)]
        runs.append((weights(trainer), [r["loss_total"] for r in records]))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1  # it did compile
    assert list(trainer.model.state_dict()) == names  # and a checkpoint is named as ever
    for a, b in zip(runs[0][0], runs[1][0], strict=True):
        assert torch.equal(a, b)
    assert runs[0][1] == runs[1][1]

    half, _ = trainer_of(tiny_model(0.1), batches, s)
    for _ in range(3):
        half.train_step()
    tensors, values = half.state_dict()
    resumed, _ = trainer_of(tiny_model(0.1), batches, s)
    resumed.model.load_state_dict(half.model.state_dict())
    resumed.load_state_dict({key: t.clone() for key, t in tensors.items()}, values)
    for _ in range(3):
        resumed.train_step()
    for a, b in zip(runs[0][0], weights(resumed), strict=True):
        assert torch.equal(a, b)

    plain = tiny_model(0.1)
    plain.load_state_dict(resumed.model.state_dict())
    tokens = batches.batch(0, 4).tokens
    with torch.no_grad():
        torch.testing.assert_close(resumed.model.eval()(tokens), plain.eval()(tokens), atol=1e-5, rtol=1e-5)


def test_without_a_compiler_one_line_says_so_and_training_goes_on(tiny_model, batches, settings, caplog):
    import torch._inductor.config

    missing = torch._inductor.config.patch("cpp.cxx", ("/nonexistent/c++",))
    with missing, caplog.at_level(logging.WARNING, "wordloom"):
        trainer, done = trainer_of(tiny_model(), batches, settings(compile="on"))
    assert done == "eager (no C++ compiler was found (set CXX, or install g++))"
    assert [record.getMessage() for record in caplog.records] == [
        "train.compile 'on': no C++ compiler was found (set CXX, or install g++); running without "
        "torch.compile"
    ]
    plain, _ = trainer_of(tiny_model(), batches, settings(compile="off"))
    trainer.train_step(), plain.train_step()
    for a, b in zip(weights(trainer), weights(plain), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("choice", ["auto", "off"])
def test_a_cpu_is_left_alone_unless_asked(tiny_model, settings, choice):
    model = tiny_model()
    assert compile_blocks(model, settings(compile=choice), CPU) == "eager"
    assert all(block._compiled_call_impl is None for block in model.blocks)


@pytest.mark.parametrize(
    ("attention", "words"),
    [
        ("full", "kernel 'flash'"),
        ("band:8", "band:8 by kernel 'flash'"),
        ("performer:8", "performer:8 by kernel 'performer'"),
        ("performer:8,full", "performer:8,full by kernels 'performer' and 'flash'"),
    ],
)
def test_the_line_names_the_kernels_that_compiled_blocks_call(
    attention: str, words: str, tiny_model, batches, settings
) -> None:
    model, s = tiny_model(), settings(compile="on")
    set_attention(model, attention)
    trainer = Trainer(model, causal_lm, batches, s, total_steps=s.steps, seed=1)
    assert set_up_blocks(trainer, s, tokens=64) == f"compiled per block, attention {words}"
