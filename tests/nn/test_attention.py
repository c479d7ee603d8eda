"""Attention: the formula written out by hand, every backend against it, and the small print."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wordloom.errors import ConfigError, DeviceError
from wordloom.kernels import programs
from wordloom.nn import Attention, KeyValueCache, Visibility, causal_mask, set_attention_backend
from wordloom.nn.attention import exact_attention, running_kernel
from wordloom.nn.attention import layer as layer_module

CPU_BACKENDS = ["auto", "flash", "math", "exact"]


def by_hand(layer: Attention, x: Tensor, context: Tensor | None, allowed: Tensor) -> Tensor:
    """One query, one head, one key at a time, in float64; ``allowed`` [B, H, T, S]."""
    source = x if context is None else context
    E, groups = layer.head_dim, layer.n_heads // layer.n_kv_heads
    q, k, v = layer.q_proj(x).double(), layer.k_proj(source).double(), layer.v_proj(source).double()
    rows = []
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            heads = []
            for h in range(layer.n_heads):
                mine, shared = slice(h * E, (h + 1) * E), slice(h // groups * E, (h // groups + 1) * E)
                keys = [s for s in range(source.shape[1]) if allowed[b, h, t, s]]
                scores = torch.stack([q[b, t, mine] @ k[b, s, shared] / math.sqrt(E) for s in keys])
                weight = scores.exp() / scores.exp().sum()
                heads.append(sum(w * v[b, s, shared] for w, s in zip(weight, keys, strict=True)))
            rows.append(torch.cat(heads))
    joined = torch.stack(rows).view(*x.shape[:2], -1)
    bias = 0 if layer.o_proj.bias is None else layer.o_proj.bias.double()
    return (joined @ layer.o_proj.weight.double().t() + bias).float()


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(4, 4), (4, 2), (4, 1)], ids=["multi", "grouped", "mqa"])
@pytest.mark.parametrize(
    "kind", ["self", "causal", "masked", "cross", "one query", "causal and masked", "documents", "lengths"]
)
@torch.no_grad()
def test_every_backend_computes_the_formula(backend: str, n_heads: int, n_kv_heads: int, kind: str) -> None:
    torch.manual_seed(0)
    B, D, C = 2, 12, 10
    T, S = {"cross": (3, 5), "one query": (1, 5), "lengths": (2, 5)}.get(kind, (5, 5))
    layer = Attention(
        dim=D,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=6,  # not dim / n_heads
        context_dim=C if T != S else None,
        bias=kind != "self",
    )
    layer.backend = backend
    x = torch.randn(B, T, D)
    context = torch.randn(B, S, C) if T != S else None
    allowed = torch.ones(B, T, S, dtype=torch.bool)
    real, documents, starts = None, None, None
    if kind.startswith("causal"):
        allowed = allowed & causal_mask(T, S)
    if kind.endswith(("masked", "one query")):
        real = torch.rand(B, S) < 0.6
        real[:, 0] = True
        allowed = allowed & real[:, None]
    if kind == "documents":
        documents = torch.tensor([[0, 0, 1, 1, 1], [3, 4, 3, 3, 0]])
        allowed = documents[:, :, None] == documents[:, None]
    if kind == "lengths":
        starts = torch.tensor([3, 1])  # the queries are tokens 3 and 4 of one row, 1 and 2 of the other
        allowed = torch.tensor([[[1, 1, 1, 1, 0], [1] * 5], [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]]).bool()
    causal = kind == "lengths" or kind.startswith("causal")
    visibility = Visibility(causal=causal, starts=starts, documents=documents, real_keys=real)
    allowed = allowed[:, None].expand(B, n_heads, T, S)
    out = layer(x, context=context, visibility=visibility)
    torch.testing.assert_close(out, by_hand(layer, x, context, allowed), rtol=1e-5, atol=1e-5)


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_fast_equals_exact_forward_and_gradient(data: st.DataObject) -> None:
    draw = data.draw
    K, groups, E = draw(st.integers(1, 3)), draw(st.integers(1, 3)), 2 * draw(st.integers(1, 4))
    T, S = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    torch.manual_seed(draw(st.integers(0, 1000)))
    layer = Attention(dim=8, n_heads=K * groups, n_kv_heads=K, head_dim=E, bias=draw(st.booleans()))
    q = torch.randn(2, K * groups, T, E, requires_grad=True)
    k, v = (torch.randn(2, K, S, E, requires_grad=True) for _ in range(2))
    visibility = Visibility(
        causal=draw(st.booleans()),
        starts=torch.randint(max(S - T, 0) + 1, (2,)) if draw(st.booleans()) else None,
        documents=torch.randint(3, (2, T)) if T == S and draw(st.booleans()) else None,
        real_keys=torch.rand(2, S) < 0.5 if draw(st.booleans()) else None,  # some rows have no key at all
    )
    results, weights = [], torch.rand(q.shape) * 2 - 1  # gradients of the size of 1
    for backend in ("auto", "exact"):
        layer.backend = backend
        out = layer.attend(q, k, v, visibility)
        results.append((out, *torch.autograd.grad((out * weights).sum(), [q, k, v])))
    for fast, exact in zip(*results, strict=True):
        torch.testing.assert_close(fast, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fully_masked_row_gives_zeros_and_finite_gradients(backend: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    layer = Attention(dim=8, n_heads=2, n_kv_heads=1)
    layer.backend = backend
    q, k, v = (torch.randn(2, h, 4, 4, dtype=dtype, requires_grad=True) for h in (2, 1, 1))
    real = torch.tensor([[False, True, True, True], [True] * 4])  # the first query of row 0 sees no key
    out = layer.attend(q, k, v, Visibility(causal=True, real_keys=real))
    assert torch.equal(out[0, :, 0], torch.zeros_like(out[0, :, 0]))
    assert out[0, :, 1].abs().min() > 0
    for gradient in torch.autograd.grad(out.float().square().sum(), [q, k, v]):
        assert gradient.isfinite().all()


def test_gradients_in_bfloat16_are_those_of_the_numbers_themselves() -> None:
    """Few keys are widened where PyTorch's backward pass in 16 bits is slow: the same up to rounding."""
    layer = Attention(dim=32, n_heads=2)
    inputs = [torch.randn(2, 2, 8, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    visibility = Visibility(real_keys=torch.arange(8) < torch.tensor([[5], [8]]))
    exact = [x.detach().double().requires_grad_() for x in inputs]
    out = layer.attend(*inputs, visibility)
    expected = layer.attend(*exact, visibility)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), expected, atol=1e-2, rtol=1e-2)
    grads = torch.autograd.grad(out.float().square().sum(), inputs)
    for grad, wide in zip(grads, torch.autograd.grad(expected.square().sum(), exact), strict=True):
        assert grad.dtype == torch.bfloat16
        torch.testing.assert_close(grad.double(), wide, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_true_in_a_mask_takes_part(backend: str) -> None:
    layer = Attention(dim=8, n_heads=2)
    layer.backend = backend
    q, k, v = torch.randn(3, 1, 2, 4, 4).unbind(0)
    out = layer.attend(q, k, v, Visibility(real_keys=torch.arange(4)[None] == 2))
    torch.testing.assert_close(out, v[:, :, 2:3].expand_as(out))


def test_causal_mask_ends_at_the_last_key() -> None:
    assert causal_mask(2, 4).tolist() == [[True, True, True, False], [True, True, True, True]]
    cpu = torch.device("cpu")
    assert Visibility(causal=True).is_causal(3, 3)
    assert not Visibility(causal=True).is_causal(1, 4)
    assert Visibility(causal=True).mask(1, 4, device=cpu) is None
    attend = torch.tensor([[False, True, True], [True, True, True]])
    visibility = Visibility(causal=True, real_keys=attend)
    assert not visibility.is_causal(3, 3)
    mask = visibility.mask(3, 3, device=cpu)
    assert mask is not None
    assert visibility.mask(3, 3, device=cpu) is mask  # made once for all layers
    assert mask[0, 0].tolist() == [[False] * 3, [False, True, False], [False, True, True]]
    assert torch.equal(mask[1, 0], causal_mask(3, 3))


@pytest.mark.parametrize("head_dim", [4, 16])
def test_scale_is_one_over_root_of_head_dim_and_can_be_given(head_dim: int) -> None:
    assert Attention(dim=8, n_heads=2, head_dim=head_dim).scale == 1 / math.sqrt(head_dim)
    layer = Attention(dim=8, n_heads=2, head_dim=head_dim, scale=0.0)
    q, k, v = torch.randn(3, 1, 2, 5, head_dim).unbind(0)
    mean = v.mean(dim=2, keepdim=True).expand_as(v)  # scale 0: every key weighs the same
    torch.testing.assert_close(layer.attend(q, k, v), mean)


def test_the_exact_twin_takes_its_softmax_over_keys_in_float32() -> None:
    torch.manual_seed(0)
    q, k, v = (2 * torch.randn(3, 1, 2, 4, 16)).bfloat16().unbind(0)
    out, weights = exact_attention(q, k, v, scale=0.25)
    assert (out.dtype, weights.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1, 2, 4))
    right = (q.double() @ k.double().transpose(-2, -1) * 0.25).softmax(dim=-1)
    torch.testing.assert_close(weights.double(), right, rtol=1e-4, atol=1e-6)
    in_bf16 = (q @ k.transpose(-2, -1) * 0.25).softmax(dim=-1)
    assert (in_bf16.double() - right).abs().max() > 1e-4  # what float32 is for


def test_the_exact_backend_returns_weights_and_the_fast_ones_hide_them() -> None:
    layer = Attention(dim=8, n_heads=4, n_kv_heads=2)
    layer.recorded = []
    x = torch.randn(2, 3, 8)
    layer(x, visibility=Visibility(causal=True))
    assert layer.recorded == []
    layer.backend = "exact"
    layer(x, visibility=Visibility(causal=True))
    (weights,) = layer.recorded
    assert weights.shape == (2, 4, 3, 3)
    assert torch.equal(weights.triu(1), torch.zeros_like(weights))


@pytest.mark.parametrize("backend", ["auto", "math", "exact"])
def test_dropout_acts_on_the_weights_in_training_alone(backend: str) -> None:
    layer = Attention(dim=8, n_heads=2, dropout=0.5)
    layer.backend = backend
    q, k = torch.randn(2, 1, 2, 64, 4).unbind(0)
    v = torch.eye(64).expand(1, 2, 64, 64)  # the output is the weights themselves
    layer.eval()
    whole = layer.attend(q, k, v)
    assert torch.equal(whole, layer.attend(q, k, v))
    layer.train()
    dropped = layer.attend(q, k, v)
    kept = dropped != 0
    assert 0.45 < kept.float().mean() < 0.55
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])  # the rest is scaled up by 1 / (1 - p)


def test_bias_is_a_keyword_and_head_dim_is_free() -> None:
    names = set(dict(Attention(dim=12, n_heads=3, head_dim=8, bias=False).named_parameters()))
    assert names == {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"}
    layer = Attention(dim=12, n_heads=4, n_kv_heads=2, head_dim=8, bias=True, out_bias=False)
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert shapes == {
        "q_proj.weight": (32, 12),
        "q_proj.bias": (32,),
        "k_proj.weight": (16, 12),
        "k_proj.bias": (16,),
        "v_proj.weight": (16, 12),
        "v_proj.bias": (16,),
        "o_proj.weight": (12, 32),
    }


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dim": 10, "n_heads": 4}, "dim 10 does not divide into 4 heads"),
        ({"dim": 8, "n_heads": 4, "n_kv_heads": 3}, "n_heads 4 is not a multiple of n_kv_heads 3"),
        ({"dim": 8, "n_heads": 4, "n_kv_heads": 0}, "n_kv_heads 0"),
    ],
)
def test_heads_that_do_not_divide_are_refused(settings: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Attention(**settings)


def test_a_backend_that_cannot_run_is_an_error_that_says_so() -> None:
    layer = Attention(dim=8, n_heads=2)
    set_attention_backend(layer, "efficient")
    with pytest.raises(DeviceError, match=r"attention_backend 'efficient' cannot run on cpu .* use 'auto'"):
        layer(torch.randn(1, 3, 8), visibility=Visibility(causal=True))
    dropping = Attention(dim=8, n_heads=2, dropout=0.1)
    set_attention_backend(dropping, "flash")
    dropping.eval()(torch.randn(1, 3, 8))
    with pytest.raises(DeviceError, match=r"'flash' cannot run .* dropout 0.1"):
        dropping.train()(torch.randn(1, 3, 8))
    with pytest.raises(ConfigError, match="did you mean 'flash'"):
        set_attention_backend(layer, "flsh")


def test_with_few_keys_pytorch_is_faster_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    for amx, few, many in ((True, (16, 1023), (16, 1024)), (False, (64, 511), (64, 512))):
        monkeypatch.setattr(layer_module, "has_amx", lambda amx=amx: amx)
        monkeypatch.setattr(layer_module, "widens", lambda device, dtype: False)
        for (E, S), expected in ((few, True), (many, False)):
            keys = torch.zeros(1, 1, S, E, dtype=torch.bfloat16)
            assert layer_module._faster_in_float32(keys, keys) == expected
            assert not layer_module._faster_in_float32(keys.float(), keys.float())


def test_the_running_kernel_is_found_by_asking() -> None:
    where = {"head_dim": 8, "device": torch.device("cpu"), "dtype": torch.float32}
    assert running_kernel("exact", **where) == "exact"
    assert running_kernel("math", **where) == "math"
    assert running_kernel("auto", **where) == running_kernel("flash", **where) == "flash"
    if programs.sgemm():
        assert running_kernel("auto", elements=1 << 20, **where) == "blocked"
    assert running_kernel("auto", elements=8, **where) == "flash"  # too little to be worth it
    assert running_kernel("auto", elements=1 << 20, masked=True, **where) == "flash"
    usual = running_kernel("auto", elements=1 << 20, **where)
    assert running_kernel("auto", elements=1 << 20, dropout=0.1, padded=True, **where) == usual
    assert running_kernel("auto", padded=True, **where) == "flash"
    assert running_kernel("auto", dropout=0.1, **where) == "math"  # the CPU's flash kernel has no dropout
    with pytest.raises(DeviceError, match="'efficient' cannot run"):
        running_kernel("efficient", **where)


def test_one_query_over_a_grouped_cache_copies_nothing_and_agrees() -> None:
    torch.manual_seed(0)
    layer = Attention(dim=16, n_heads=4, n_kv_heads=2).eval()
    x = torch.randn(2, 6, 16)
    whole = layer(x, visibility=Visibility(causal=True))
    cache = KeyValueCache(n_layers=1, batch=2, length=6)
    for t in range(6):
        out = layer(x[:, t : t + 1], cache=cache.layer(0))
        cache.advance(x[:, t : t + 1])
        torch.testing.assert_close(out, whole[:, t : t + 1], rtol=1e-5, atol=1e-6)


def test_flash_runs_under_every_mask_the_models_make() -> None:
    layer = Attention(dim=8, n_heads=2)
    layer.backend = "flash"
    x = torch.randn(2, 5, 8)
    attend = torch.tensor([[False, False, True, True, True], [True] * 5])
    visibility = Visibility(causal=True, real_keys=attend)
    out = layer(x, visibility=visibility)
    layer.backend = "exact"
    torch.testing.assert_close(out, layer(x, visibility=visibility), rtol=1e-5, atol=1e-6)


def test_documents_beside_a_cache_are_refused() -> None:
    with pytest.raises(ConfigError, match="without a cache"):
        Visibility(causal=True, documents=torch.zeros(1, 2)).mask(2, 5, device=torch.device("cpu"))
