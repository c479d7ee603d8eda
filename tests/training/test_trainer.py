"""The loop: accumulation, precision, averages, stopping, refusing; equal bits where bits are promised."""

from __future__ import annotations

import math
import os
import signal

import pytest
import torch
from tests.apple_gpu import AppleGPU

from wordloom.errors import NonFiniteError
from wordloom.objectives import Loss, causal_lm
from wordloom.training.hooks import Evaluate
from wordloom.training.plan import make_plan
from wordloom.training.precision import Precision
from wordloom.training.ranks import ALONE
from wordloom.training.stopping import sigterm_interrupts
from wordloom.training.trainer import Hook, Trainer, dropout_seed


def train(model, batches, settings, steps, **more) -> Trainer:
    trainer = Trainer(model, causal_lm, batches, settings, total_steps=settings.steps, seed=1, **more)
    for _ in range(steps):
        trainer.train_step()
    return trainer


def weights(model) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("micro", [1, 3, 4])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_micro_batches_equal_one_batch(tiny_model, batches, settings, micro, share):
    """Loss and gradient of the step, to 1e-6 of the gradient's norm, with dropout too."""

    def gradient(size):
        model = tiny_model(share)
        trainer = Trainer(model, causal_lm, batches, settings(clip=None), total_steps=9, seed=1)
        parts = ALONE.parts(8, size)
        loss, total, count = trainer._accumulate([batches.batch(*part[:2]) for part in parts], parts)
        assert loss == total / count
        return loss, torch.cat([p.grad.flatten() for p in trainer.model.parameters()])

    (whole_loss, whole), (parts_loss, parts) = gradient(8), gradient(micro)
    assert parts_loss == pytest.approx(whole_loss, rel=1e-6)
    assert (whole - parts).norm() < 1e-6 * whole.norm()


def test_micro_batches_are_weighed_by_their_tokens(tiny_model, batches, settings):
    """Windows score 5 or 8 targets: a mean of means would give another gradient."""
    model = tiny_model()
    trainer = Trainer(
        model, causal_lm, batches, settings(micro_batch_size=1, clip=None), total_steps=9, seed=1
    )
    parts = [batches.batch(i, 1) for i in range(8)]
    mean, total, count = trainer._accumulate(parts, ALONE.parts(8, 1))
    assert count == 8 * 8 - 2 * 3
    accumulated = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    batch = batches.batch(0, 8)
    logits = model(batch.tokens)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=-100)
    loss.backward()
    assert mean == total / count == pytest.approx(loss.item(), rel=1e-6)
    for grad, p in zip(accumulated, model.parameters(), strict=True):
        torch.testing.assert_close(grad, p.grad, rtol=1e-5, atol=1e-7)


def test_a_step_on_an_apple_gpu(tiny_model, batches, settings, monkeypatch):
    """It has no float64, which the sum of the losses has."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch, "manual_seed", lambda seed: None)  # it would seed the real one
    with AppleGPU():
        model = tiny_model(tie_embeddings=False)  # the stand-in unties them
        trainer = Trainer(model, causal_lm, batches, settings(device="mps"), total_steps=3, seed=1)
        there = [trainer.train_step() for _ in range(3)]
    assert str(trainer.device) == "mps"
    model = tiny_model(tie_embeddings=False)
    trainer = Trainer(model, causal_lm, batches, settings(), total_steps=3, seed=1)
    for step in there:
        here = trainer.train_step()
        assert step["loss_total"] == pytest.approx(here["loss_total"], rel=1e-5)
        assert step["gradient_norm"] == pytest.approx(here["gradient_norm"], rel=1e-4)


def test_the_loss_falls(tiny_model, batches, settings):
    class Losses(Hook):
        def __init__(self):
            self.seen = []

        def after_step(self, trainer, record):
            self.seen.append(record["loss_total"] / record["loss_count"])

    hook = Losses()
    trainer = Trainer(
        tiny_model(), causal_lm, batches, settings(steps=150), total_steps=150, seed=1, hooks=[hook]
    )
    assert trainer.run() == "done"
    assert hook.seen[0] == pytest.approx(math.log(17), abs=0.1)
    assert sum(hook.seen[-8:]) / 8 < 0.6 * hook.seen[0]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize(
    "extra", [{}, {"ema": 0.9, "micro_batch_size": 3}, {"precision": "bf16-pure"}, {"precision": "bf16"}]
)
def test_resume_is_exact(tiny_model, batches, settings, optimizer, extra):
    """State saved after 5 of 9 steps and loaded into a fresh trainer ends in the bits of an unbroken run."""
    s = settings(optimizer=optimizer, **extra)
    straight = train(tiny_model(0.2), batches, s, 9)
    first = train(tiny_model(0.2), batches, s, 5)
    tensors, values = first.state_dict()
    tensors = {key: tensor.clone() for key, tensor in tensors.items()}
    half = weights(first.model)
    torch.manual_seed(999)  # whatever the process drew in between
    second = train(tiny_model(0.2), batches, s, 0)
    with torch.no_grad():
        for p, weight in zip(second.model.parameters(), half, strict=True):
            p.copy_(weight)
    second.load_state_dict(tensors, values)
    for _ in range(4):
        second.train_step()
    for a, b in zip(weights(straight.model), weights(second.model), strict=True):
        assert torch.equal(a, b)
    for key, tensor in straight.state_dict()[0].items():
        assert torch.equal(tensor, second.state_dict()[0][key]), key


def test_the_seed_of_dropout_depends_on_seed_and_step_only():
    assert len({dropout_seed(a, b) for a in range(5) for b in range(20)}) == 5 * 20
    assert dropout_seed(1, 2) == dropout_seed(1, 2)


def test_pure_bf16_keeps_float32_masters(tiny_model, batches, settings):
    trainer = train(tiny_model(), batches, settings(precision="bf16-pure", learning_rate=1e-6), 3)
    assert {p.dtype for p in trainer.model.parameters()} == {torch.bfloat16}
    before = tiny_model()
    moved = 0
    masters = {trainer.optimizer.names[p]: p for p in trainer.optimizer.master.full.values()}
    for name, p in before.named_parameters():
        difference = (masters[name] - p.to(torch.bfloat16).float()).abs().max()
        assert difference < 1e-5
        moved += int(difference > 0)
    assert moved == len(masters)  # steps far below a bfloat16's resolution are not lost


def test_the_average_is_what_it_says(tiny_model, batches, settings):
    s = settings(ema=0.5)
    trainer = train(tiny_model(), batches, s, 0)
    expected = weights(trainer.model)
    for n in range(4):
        trainer.train_step()
        decay = min(0.5, (1 + n) / (10 + n))
        expected = [
            decay * e + (1 - decay) * w for e, w in zip(expected, weights(trainer.model), strict=True)
        ]
    for e, a in zip(expected, trainer.average.average, strict=True):
        torch.testing.assert_close(e, a)
    own = weights(trainer.model)
    with trainer.average.applied(trainer.model):
        for e, p in zip(trainer.average.average, trainer.model.parameters(), strict=True):
            assert torch.equal(e, p)
    for w, p in zip(own, trainer.model.parameters(), strict=True):
        assert torch.equal(w, p)


def test_the_plan_changes_nothing_and_counts_what_is_there(tiny_model, batches, settings):
    s = settings(ema=0.9, optimizer="muon")
    straight = train(tiny_model(0.1), batches, s, 4)
    trainer = train(tiny_model(0.1), batches, s, 0)
    plan = make_plan(trainer, timed_steps=2)
    for _ in range(4):
        trainer.train_step()
    for a, b in zip(weights(straight.model), weights(trainer.model), strict=True):
        assert torch.equal(a, b)
    n = sum(p.numel() for p in trainer.model.parameters())
    assert plan.parameters == n
    assert plan.weight_bytes == plan.gradient_bytes == 4 * n
    tensors, _ = trainer.state_dict()
    held = sum(t.numel() * 4 for key, t in tensors.items() if not key.endswith((".step", "_updates")))
    assert plan.optimizer_bytes == held
    assert plan.activation_bytes > 0
    assert plan.step_seconds > 0


def test_non_finite_loss_stops_before_the_optimizer_step(tiny_model, batches, settings):
    def diverging(model, batch):
        loss = causal_lm(model, batch)
        return Loss(loss.total * (math.nan if trainer.step == 2 else 1.0), loss.count)

    trainer = Trainer(tiny_model(), diverging, batches, settings(), total_steps=12, seed=1)
    trainer.last_checkpoint = "runs/x/checkpoints/step-2"
    trainer.train_step(), trainer.train_step()
    before = weights(trainer.model)
    with pytest.raises(NonFiniteError, match=r"step 3: loss nan.*synthetic\.txt#16.*step-2"):
        trainer.train_step()
    for a, b in zip(before, weights(trainer.model), strict=True):
        assert torch.equal(a, b)


def test_a_validation_loss_that_is_no_number_stops_the_run(tiny_model, batches, settings):
    hooks = [Evaluate(lambda model, ranks: {"loss": math.nan if trainer.step > 2 else 1.0}, every=2)]
    trainer = Trainer(tiny_model(), causal_lm, batches, settings(), total_steps=12, seed=1, hooks=hooks)
    trainer.last_checkpoint = "runs/x/checkpoints/step-2"
    with pytest.raises(NonFiniteError, match=r"step 4: the validation loss is nan\. .*step-2\. Lower train"):
        trainer.run()


def test_non_finite_gradients_stop_too(tiny_model, batches, settings):
    model = tiny_model()
    trainer = Trainer(model, causal_lm, batches, settings(), total_steps=12, seed=1)
    model.blocks[0].feed_forward.up_proj.weight.register_hook(lambda grad: grad * math.inf)
    with pytest.raises(NonFiniteError, match=r"gradient norm (inf|nan)"):
        trainer.train_step()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_after_the_step_under_way(tiny_model, batches, settings, number):
    class Kill(Hook):
        def after_step(self, trainer, record):
            if record["step"] == 3:
                os.kill(os.getpid(), number)

    handler = signal.getsignal(number)
    trainer = Trainer(tiny_model(), causal_lm, batches, settings(), total_steps=12, seed=1, hooks=[Kill()])
    assert trainer.run() == "stopped"
    assert trainer.step in (3, 4)  # the handler runs at the next bytecode of the main thread
    assert signal.getsignal(number) is handler


def test_a_second_sigterm_lets_the_last_checkpoint_be_written(tiny_model, batches, settings):
    class Save(Hook):
        saved = False

        def after_step(self, trainer, record):
            os.kill(os.getpid(), signal.SIGTERM)

        def on_end(self, trainer):
            os.kill(os.getpid(), signal.SIGTERM)
            self.saved = sum(range(100)) > 0  # the handler runs before

    save = Save()
    trainer = Trainer(tiny_model(), causal_lm, batches, settings(), total_steps=12, seed=1, hooks=[save])
    with sigterm_interrupts():
        assert trainer.run() == "stopped"
    assert save.saved


def test_clipping_scales_to_the_norm(tiny_model, batches, settings):
    trainer = Trainer(tiny_model(), causal_lm, batches, settings(clip=0.01), total_steps=12, seed=1)
    trainer._accumulate([batches.batch(0, 8)], ALONE.parts(8))
    norm = trainer._clip()
    after = torch.nn.utils.get_total_norm([p.grad for p in trainer.model.parameters()])
    assert norm > 0.01
    assert float(after) == pytest.approx(0.01, rel=1e-3)


def test_gradients_below_the_norm_keep_their_bits(tiny_model, batches, settings):
    trainer = Trainer(tiny_model(), causal_lm, batches, settings(clip=1e3), total_steps=12, seed=1)
    trainer._accumulate([batches.batch(0, 8)], ALONE.parts(8))
    before = [p.grad.clone() for p in trainer.model.parameters()]
    assert 0 < trainer._clip() < 1e3
    for p, kept in zip(trainer.model.parameters(), before, strict=True):
        assert torch.equal(p.grad, kept)


@pytest.mark.parametrize(("mode", "pace"), [("fp32", torch.float32), ("bf16-head", torch.bfloat16)])
def test_the_plan_measures_the_pace_of_the_fastest_products(mode, pace):
    """Else a step whose head alone is in bfloat16 would be told to go faster than the machine."""
    assert Precision(device=torch.device("cpu"), mode=mode).fastest_dtype == pace
