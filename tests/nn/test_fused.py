"""One pass over memory against the plain expression: value and gradient, float32 and bfloat16."""

from __future__ import annotations

import hashlib

import pytest
import torch
from tests.nn.fused_cases import TOLERANCE, agree, both_dtypes, draw
from torch.nn import functional as F

from wordloom.kernels import programs
from wordloom.models import GPT2Config, LlamaConfig, build
from wordloom.nn import fused
from wordloom.nn.head import linear_cross_entropy

pytestmark = pytest.mark.skipif(
    not programs.ready(), reason="no OpenMP runtime or no numba: nothing is fused"
)


@pytest.fixture(autouse=True)
def _every_size(monkeypatch):
    monkeypatch.setattr(programs, "MINIMUM_ELEMENTS", 0)


@both_dtypes
@pytest.mark.parametrize("shape", [(1,), (3, 37), (129, 65)])
def test_gelu_tanh(dtype, shape):
    plain = lambda x: F.gelu(x, approximate="tanh")  # noqa: E731
    agree(fused.gelu_tanh, plain, [draw(*shape, dtype=dtype, scale=3.0)], dtype, "GeluTanh")


def test_gelu_tanh_far_out_and_without_numbers():
    x = torch.cat([torch.linspace(-60, 60, 20001), torch.tensor([0.0, 1e30, -1e30])]).requires_grad_()
    y = fused.gelu_tanh(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    exact = x.detach().double().clamp(-1e5, 1e5).requires_grad_()
    expected = F.gelu(exact, approximate="tanh")
    (expected_slope,) = torch.autograd.grad(expected.sum(), exact)
    torch.testing.assert_close(y[:-2].double(), expected[:-2], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(slope[:-2].double(), expected_slope[:-2], atol=1e-6, rtol=1e-6)
    assert fused.gelu_tanh(torch.tensor([torch.nan, 1.0])).isnan().tolist() == [True, False]


@both_dtypes
@pytest.mark.parametrize("shape", [(1,), (3, 37), (129, 65)])
def test_swiglu(dtype, shape):
    inputs = [draw(*shape, dtype=dtype, scale=4.0), draw(*shape, dtype=dtype, seed=1)]
    agree(fused.swiglu, lambda gate, up: F.silu(gate) * up, inputs, dtype, "SwiGLU")


@both_dtypes
@pytest.mark.parametrize("shape", [(1, 5), (2, 3, 37), (200, 64)])
def test_rms_norm(dtype, shape):
    inputs = [draw(*shape, dtype=dtype), draw(shape[-1], seed=1)]
    agree(
        lambda x, weight: fused.rms_norm(x, weight, 1e-3),
        lambda x, weight: F.rms_norm(x, shape[-1:], weight, 1e-3),
        inputs, dtype, "RMSNorm",
    )  # fmt: skip


@both_dtypes
@pytest.mark.parametrize("rows", [1, 3])
def test_rotate(dtype, rows):
    B, H, T, E = 3, 2, 5, 6
    projected = draw(B, T, H, E, dtype=dtype)
    angle = torch.rand(rows, T, E // 2, generator=torch.Generator().manual_seed(1)) * 6

    def plain(x):
        cos, sin = angle.double().cos()[:, None], angle.double().sin()[:, None]
        first, second = x.transpose(1, 2).chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    agree(
        lambda x: fused.rotate(x.transpose(1, 2), angle.cos(), angle.sin()),
        plain,
        [projected],
        dtype,
        "Rotate",
    )


@pytest.mark.parametrize("V", [1, 700, 5_000, 16_384, 20_011])
def test_the_log_sum_exp_of_a_row_has_the_same_bits_beside_any_others(V, monkeypatch):
    monkeypatch.undo()  # with the least size that a kernel has outside tests
    logits = 3 * torch.randn(9, 4, V, generator=torch.Generator().manual_seed(V))
    for k in range(4):
        found = fused.log_sum_exp(logits[:, k])  # rows apart in memory, as those after drafts are
        torch.testing.assert_close(found, logits[:, k].logsumexp(dim=-1), atol=1e-5, rtol=1e-6)
        for row in range(9):
            assert torch.equal(fused.log_sum_exp(logits[row, k : k + 1]), found[row : row + 1])


@both_dtypes
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("by_program", [True, False])
def test_softmax_error(monkeypatch, dtype, smoothing, by_program):
    if not by_program:
        monkeypatch.setattr(fused, "fits", lambda *_: False)
    logits = draw(70, 53, dtype=dtype, scale=5.0).detach()
    targets = torch.randint(0, 53, (70,), generator=torch.Generator().manual_seed(2))
    targets[::7] = -100
    exact = logits.double().requires_grad_()
    asked = {"ignore_index": -100, "reduction": "sum", "label_smoothing": smoothing}
    expected = F.cross_entropy(exact, targets, **asked)
    (expected_grad,) = torch.autograd.grad(expected, exact)
    work = logits.clone()
    loss, grad = fused.softmax_error(work, targets, ignore_index=-100, smoothing=smoothing)
    assert (grad.data_ptr() == work.data_ptr()) == by_program  # in place
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(grad.double(), expected_grad, **TOLERANCE[dtype])


@pytest.mark.parametrize("wrong", [53, 10**9, -1])
def test_a_target_outside_the_vocabulary_is_refused_as_torch_does(wrong):
    with pytest.raises(IndexError, match="out of bounds"):
        fused.softmax_error(torch.zeros(2, 53), torch.tensor([0, wrong]), ignore_index=-100)


@pytest.mark.parametrize("by_program", [True, False])
def test_a_logit_of_minus_infinity_is_a_word_that_cannot_come(monkeypatch, by_program):
    if not by_program:
        monkeypatch.setattr(fused, "fits", lambda *_: False)
    logits = draw(3, 53).detach()
    logits[:, 7] = -torch.inf
    targets = torch.tensor([1, 2, 3])
    expected = F.cross_entropy(logits.double(), targets, reduction="sum")
    loss, grad = fused.softmax_error(logits.clone(), targets, ignore_index=-100)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert grad.isfinite().all()
    assert grad[:, 7].max() < 1e-30  # e to the -80 is the least that the program's exponential makes


def test_a_row_that_is_not_a_number_says_so():
    logits = torch.zeros(3, 53)
    logits[1, 7] = torch.nan
    loss, grad = fused.softmax_error(logits, torch.tensor([1, 2, 3]), ignore_index=-100)
    assert loss.isnan()
    assert grad.isnan().all(dim=1).tolist() == [False, True, False]


def test_what_does_not_fit_goes_the_plain_way(monkeypatch):
    x = draw(8, 8)
    assert "GeluTanh" in str(fused.gelu_tanh(x).grad_fn)
    assert "GeluTanh" not in str(fused.gelu_tanh(x.t()).grad_fn)  # not dense
    assert "GeluTanh" not in str(fused.gelu_tanh(x.double()).grad_fn)
    assert "SwiGLU" not in str(fused.swiglu(x, x[:1]).grad_fn)
    monkeypatch.setattr(programs, "MINIMUM_ELEMENTS", 65)
    assert "GeluTanh" not in str(fused.gelu_tanh(x).grad_fn)


def test_a_second_derivative_is_refused_not_wrong():
    x = draw(8)
    (grad,) = torch.autograd.grad(fused.gelu_tanh(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|does not require grad"):
        torch.autograd.grad(grad.sum(), x)


CONFIGS = {
    "gpt2": GPT2Config(vocab_size=61, max_seq_len=24, dim=32, n_layers=2, n_heads=4, dropout=0.0),
    "llama": LlamaConfig(
        vocab_size=61, max_seq_len=24, dim=32, n_layers=2, n_heads=4, n_kv_heads=2, hidden_dim=48
    ),
}


@pytest.mark.parametrize("family", CONFIGS)
def test_a_whole_model_has_the_same_loss_and_gradients(monkeypatch, family):
    model = build(CONFIGS[family], generator=torch.Generator().manual_seed(0))
    tokens = torch.randint(0, 61, (3, 24), generator=torch.Generator().manual_seed(1))

    def step():
        model.zero_grad()
        hidden = model.hidden(tokens).flatten(0, 1)
        loss = linear_cross_entropy(hidden, model.lm_head.weight, None, tokens.roll(-1, 1).flatten())
        loss.backward()
        return loss.item(), [p.grad.clone() for p in model.parameters()]

    loss, grads = step()
    monkeypatch.setattr(programs, "MINIMUM_ELEMENTS", 1 << 60)
    plain_loss, plain_grads = step()
    assert loss == pytest.approx(plain_loss, rel=1e-6)
    for a, b in zip(grads, plain_grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.threads2
def test_bits_do_not_depend_on_the_number_of_threads():
    x, weight = draw(501, 37), draw(37, seed=1)

    heads = [draw(2, 3, 100, 16, seed=seed) for seed in range(3)]

    def bits(threads):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            y = fused.rms_norm(x, weight, 1e-6)
            grads = torch.autograd.grad(y.square().sum(), (x, weight))
            if programs.sgemm():
                grads += torch.autograd.grad(
                    fused.attention(*heads, scale=1.0, is_causal=True).square().sum(), heads
                )
            return grads
        finally:
            torch.set_num_threads(before)

    for a, b in zip(bits(1), bits(2), strict=True):
        assert torch.equal(a, b)


_BITS = """
import hashlib, sys, numba, torch
numba.config.CACHE_DIR = sys.argv[1]  # before the programs are imported
from wordloom.nn import (fused)
from wordloom.kernels import programs
programs.MINIMUM_ELEMENTS = 0
x = torch.linspace(-3, 3, 37 * 101).view(101, 37).requires_grad_()
y = fused.rms_norm(x, torch.linspace(0, 2, 37).requires_grad_(), 1e-6)
(g,) = torch.autograd.grad(y.sin().sum(), x)
if programs.sgemm():
    q = x[:, :32].view(1, 101, 2, 16).transpose(1, 2)
    z = fused.attention(q, q, q, scale=1.0, is_causal=True)
    g = torch.cat([z.detach().flatten(), torch.autograd.grad(z.sin().sum(), x)[0].flatten(), g.flatten()])
print(hashlib.sha256(g.numpy().tobytes()).hexdigest())
"""


def test_code_kept_on_disk_gives_the_bits_of_code_just_compiled(forked, tmp_path):
    """Else a run resumed in a second process would not end like one left alone."""
    digests, kept = set(), []
    for _ in range(2):
        done = forked(tmp_path, code=_BITS).completed()
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout.strip())
        kept.append({path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")})
    assert kept[0]
    assert kept[0] == kept[1]  # the second process compiled nothing
    assert len(digests) == 1
    assert len(digests.pop()) == len(hashlib.sha256().hexdigest())
