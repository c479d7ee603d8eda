"""Fast paths of nn/ with sizes drawn at random, each compared with the expression that it stands for.

Each case takes a ``random.Random``, fills ``drawn`` with what it drew, and compares.  ``every_size`` lets
kernels take tensors of any size.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from tests.nn.test_recurrent import VARIANTS
from torch import Tensor
from torch.nn import functional as F

from wordloom.kernels import programs
from wordloom.models import BertConfig, RobertaConfig, build
from wordloom.models.fast_encoder import FastEncoder
from wordloom.nn import Linear, fused, head, linear, recurrent_kernels
from wordloom.nn.attention import Pattern, sparse
from wordloom.nn.dropout import dropout
from wordloom.nn.linear import fastest_linear
from wordloom.nn.recurrent import Recurrent

Drawn = dict[str, Any]
CLOSE = {torch.float32: {"atol": 2e-5, "rtol": 1e-4}, torch.bfloat16: {"atol": 3e-2, "rtol": 3e-2}}
PATTERNS = [
    "band:3", "band:1", "band:100", "global:2", "global:70", "dilated:2:3", "dilated:4:2", "dilated:5:70",
    "block:5", "block:64", "random:3:7", "random:2:1", "full", "star", "bigbird:2:1:2", "longformer:3:2",
    "sinks:1:2", "dilated:1:7",
]  # fmt: skip
PRIMES = (1, 2, 3, 5, 7, 13, 17, 31, 37, 61, 67, 97, 127, 131)


@contextmanager
def every_size() -> Iterator[None]:
    with (
        mock.patch.object(programs, "MINIMUM_ELEMENTS", 0),
        mock.patch.object(fused, "FEW_QUERIES", 0),
        mock.patch.object(fused, "has_amx", return_value=False),  # PyTorch's kernel would take bfloat16
        mock.patch.object(linear, "LEAST_PRODUCTS", 0),
        mock.patch.object(linear, "LEAST_ROWS", 0),
        mock.patch.object(linear, "_onednn_is_faster", return_value=torch._C._has_mkldnn),
    ):
        yield


def size(rng: random.Random, most: int) -> int:
    """1, a prime, or any number, up to ``most``."""
    return min(most, rng.choice([1, rng.choice(PRIMES), rng.randint(1, most)]))


def tensor(rng: random.Random, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(rng.getrandbits(60))
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


def a_dtype(rng: random.Random) -> torch.dtype:
    return rng.choice([torch.float32, torch.bfloat16])


def agree(
    fast: Callable[..., Tensor], slow: Callable[..., Tensor], inputs: list[Tensor], **more: Any
) -> None:
    """Compare values, and gradients of all inputs, with those of ``slow`` in float64."""
    given = [x.detach().requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    found, wanted = fast(*given), slow(*exact)
    tolerance = {**CLOSE[inputs[0].dtype], **more}
    torch.testing.assert_close(found.double(), wanted, **tolerance)
    grad = torch.linspace(-1, 1, found.numel()).view(found.shape).to(found.dtype)
    grads = torch.autograd.grad(found, given, grad)
    for g, e in zip(grads, torch.autograd.grad(wanted, exact, grad.double()), strict=True):
        # a sum in bfloat16 is as exact as its largest parts, which are rounded to 8 bits
        size = max(1.0, float(e.abs().max())) if g.dtype == torch.bfloat16 and e.numel() else 1.0
        atol = tolerance["atol"] * size
        torch.testing.assert_close(g.double(), e, **{**tolerance, "atol": atol})


def attention(rng: random.Random, drawn: Drawn) -> None:
    with mock.patch.object(fused, "has_amx", return_value=rng.random() < 0.5) as amx:
        drawn["PyTorch's forward pass in bfloat16"] = amx.return_value
        _attention(rng, drawn)


def _attention(rng: random.Random, drawn: Drawn) -> None:
    dtype, own = a_dtype(rng), rng.random() < 0.5
    B, K, groups, T = size(rng, 3), size(rng, 3), size(rng, 3), size(rng, 140)
    is_causal = rng.random() < 0.5
    S = T if is_causal else size(rng, 140)
    E = 16 * size(rng, 4) if own else size(rng, 40)
    mask, wide = rng.choice(["none", "some", "padding"]), rng.random() < 0.3
    drawn |= {"dtype": dtype, "own products": own, "B": B, "K": K, "groups": groups, "T": T, "S": S, "E": E,
              "causal": is_causal, "mask": mask, "rows apart": wide}  # fmt: skip
    sizes = ((B, T, groups * K), (B, S, K), (B, S, K))
    inputs = [tensor(rng, *shape, E + 3 * wide, dtype=dtype, scale=0.7)[..., :E] for shape in sizes]
    keys = None
    if mask != "none":
        keys = tensor(rng, rng.choice([1, B]), S) < 0.5
        keys = keys if mask == "some" else keys.cumprod(1).bool()

    def fast(*rows: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in rows)
        assert fused.attention_fits(q, k, v, is_causal=is_causal)
        return fused.attention(q, k, v, scale=0.4, is_causal=is_causal, keys=keys)

    def slow(*rows: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in rows)
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
        seen = (
            torch.ones(B, 1, T, S, dtype=torch.bool)
            if keys is None
            else keys[:, None, None].expand(B, 1, T, S)
        )
        seen = seen.tril() if is_causal else seen
        scores = (q @ k.transpose(-2, -1) * 0.4).masked_fill(~seen, -1e30)
        return scores.softmax(-1).masked_fill(~seen, 0.0) @ v

    if not own and not programs.sgemm():
        return
    with mock.patch.object(fused, "attention_products", return_value=0 if own else programs.sgemm()):
        agree(fast, slow, inputs)
        p = rng.choice([0.1, 0.5])
        q, k, v = (x.detach().transpose(1, 2).requires_grad_() for x in inputs)
        out = fused.attention(q, k, v, scale=0.4, is_causal=is_causal, keys=keys, dropout=p)
        out.float().sum().backward()  # that this stays within its memory is what the guarded run looks at
        assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


def sparse_attention(rng: random.Random, drawn: Drawn) -> None:
    """Texts of any length at any place of the rows; tokens between them see nothing."""
    dtype, own = a_dtype(rng), rng.random() < 0.5
    B, K, groups, T = size(rng, 3), size(rng, 3), size(rng, 3), size(rng, 300)
    E = 16 * size(rng, 4) if own else size(rng, 80)
    text, wide = "+".join(rng.choices(PATTERNS, k=rng.randint(1, 3))), rng.random() < 0.3
    pattern = Pattern.parse(text, causal=rng.random() < 0.5)
    texts, seen = [], torch.zeros(B, 1, T, T, dtype=torch.bool)
    for row in range(B):
        at = rng.randint(0, min(2, T - 1))
        while at < T:
            length = rng.randint(1, T - at) if rng.random() < 0.5 else T - at
            texts.append((row, at, length))
            seen[row, 0, at : at + length, at : at + length] = pattern.mask(length)
            at += length + rng.choice([0, 0, 0, 1, T])
    drawn |= {"dtype": dtype, "own products": own, "B": B, "K": K, "groups": groups, "T": T, "E": E,
              "pattern": text, "causal": pattern.causal, "texts": texts, "rows apart": wide}  # fmt: skip
    if not own and not programs.sgemm():
        return
    sizes = ((B, T, groups * K), (B, T, K), (B, T, K))
    inputs = [tensor(rng, *shape, E + 3 * wide, dtype=dtype, scale=0.7)[..., :E] for shape in sizes]
    settings: Drawn = {"pattern": pattern, "segments": torch.tensor(texts), "scale": 0.4}

    def fast(*rows: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in rows)
        assert sparse.sparse_attention_fits(q, k, v)
        return sparse.sparse_attention(q, k, v, **settings)

    def slow(*rows: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in rows)
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
        scores = (q @ k.transpose(-2, -1) * 0.4).masked_fill(~seen, -1e30)
        return scores.softmax(-1).masked_fill(~seen, 0.0) @ v

    with mock.patch.object(sparse, "attention_products", return_value=0 if own else programs.sgemm()):
        agree(fast, slow, inputs)
        q, k, v = (x.detach().transpose(1, 2).requires_grad_() for x in inputs)
        out = sparse.sparse_attention(q, k, v, **settings, dropout=rng.choice([0.1, 0.5]))
        out.float().sum().backward()  # that this stays within its memory is what the guarded run looks at
        assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


def elementwise(rng: random.Random, drawn: Drawn) -> None:
    dtype, shape = a_dtype(rng), [size(rng, 50) for _ in range(rng.randint(1, 3))]
    drawn |= {"dtype": dtype, "shape": shape}
    x, y = tensor(rng, *shape, dtype=dtype), tensor(rng, *shape, dtype=dtype)
    agree(fused.gelu_tanh, lambda x: F.gelu(x, approximate="tanh"), [x])
    agree(fused.swiglu, lambda gate, up: F.silu(gate) * up, [x, y])
    p = rng.choice([0.1, 0.5, 0.9])
    given = x.clone().requires_grad_()
    dropped = dropout(given, p, True)
    kept = dropped != 0
    torch.testing.assert_close(dropped.double(), x.double() / (1 - p) * kept, **CLOSE[dtype])
    dropped.float().sum().backward()
    here = kept | (x == 0)
    torch.testing.assert_close(given.grad[x != 0].double(), (here / (1 - p)).double()[x != 0], **CLOSE[dtype])


def rms_norm(rng: random.Random, drawn: Drawn) -> None:
    dtype, N, D = a_dtype(rng), size(rng, 70), size(rng, 140)
    drawn |= {"dtype": dtype, "N": N, "D": D}
    x, weight = tensor(rng, N, D, dtype=dtype), tensor(rng, D)
    agree(
        lambda x, weight: fused.rms_norm(x, weight, 1e-3),
        lambda x, weight: F.rms_norm(x, (D,), weight, 1e-3),
        [x, weight],
        atol=CLOSE[dtype]["atol"] * max(1, N**0.5),  # the weight's gradient is a sum over rows
    )


def rotation(rng: random.Random, drawn: Drawn) -> None:
    dtype, B, H, T, half = a_dtype(rng), size(rng, 3), size(rng, 5), size(rng, 40), size(rng, 40)
    rows = rng.choice([1, B])
    drawn |= {"dtype": dtype, "B": B, "H": H, "T": T, "E": 2 * half, "rows of angles": rows}
    x, angle = tensor(rng, B, T, H, 2 * half, dtype=dtype), tensor(rng, rows, T, half)

    def slow(x: Tensor) -> Tensor:
        first, second = x.transpose(1, 2).chunk(2, dim=-1)
        cos, sin = angle.double().cos()[:, None], angle.double().sin()[:, None]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    agree(lambda x: fused.rotate(x.transpose(1, 2), angle.cos(), angle.sin()), slow, [x])


def log_sum_exp(rng: random.Random, drawn: Drawn) -> None:
    dtype, N, V = a_dtype(rng), size(rng, 20), size(rng, 300)
    drawn |= {"dtype": dtype, "N": N, "V": V}
    logits = tensor(rng, N, V, dtype=dtype) * rng.choice([1, 30])
    if V > 1:
        logits[:, rng.randrange(V)] = -torch.inf
    wanted = logits.double().logsumexp(dim=-1)
    torch.testing.assert_close(fused.log_sum_exp(logits).double(), wanted, atol=1e-5, rtol=1e-6)
    logits[rng.randrange(N), rng.randrange(V)] = torch.nan
    assert torch.equal(fused.log_sum_exp(logits).isfinite(), ~logits.isnan().any(dim=-1) & wanted.isfinite())


def token_scores(rng: random.Random, drawn: Drawn) -> None:
    dtype, N, V = a_dtype(rng), size(rng, 20), size(rng, 300)
    drawn |= {"dtype": dtype, "N": N, "V": V}
    logits = tensor(rng, N, V, dtype=dtype) * rng.choice([1, 30])
    if rng.random() < 0.5:
        logits = logits.round()  # equal logits
    targets, chosen = (torch.tensor([rng.randrange(V) for _ in range(N)]) for _ in range(2))
    wide = logits.double()
    scored = wide.gather(1, targets[:, None])
    nats, ranks, best = fused.token_scores(logits, targets, chosen)
    wanted = F.cross_entropy(wide, targets, reduction="none")
    torch.testing.assert_close(nats.double(), wanted, atol=1e-5, rtol=1e-6)
    assert torch.equal(ranks, 1 + (wide > scored).sum(1))
    assert torch.equal(best, wide.gather(1, chosen[:, None])[:, 0] == wide.amax(1))
    row = rng.randrange(N)
    logits[row, rng.randrange(V)] = rng.choice([torch.nan, torch.inf])
    assert not fused.token_scores(logits, targets, chosen)[0][row].isfinite()


def cross_entropy(rng: random.Random, drawn: Drawn) -> None:
    dtype, N, D, V = a_dtype(rng), size(rng, 50), size(rng, 40), size(rng, 200)
    bias, smoothing, chunk = rng.random() < 0.5, rng.choice([0.0, 0.1]), rng.choice([1, 4000, 1 << 26])
    strided = rng.random() < 0.5
    drawn |= {"dtype": dtype, "N": N, "D": D, "V": V, "bias": bias, "smoothing": smoothing, "chunk": chunk,
              "targets strided": strided}  # fmt: skip
    layer = head.Head(D, V, bias=bias)
    hidden = tensor(rng, N, D)
    targets = torch.tensor([rng.choice([-100, rng.randrange(V)]) for _ in range(2 * N)])
    targets = targets[::2] if strided else targets[:N]
    parameters = [hidden.requires_grad_(), *layer.parameters()]
    with mock.patch.object(head, "CHUNK_BYTES", chunk):
        layer.product_dtype = dtype
        found = layer.loss(hidden, targets, smoothing=smoothing)
    low = [p.detach().to(dtype).double().requires_grad_() for p in parameters]
    wanted = F.cross_entropy(
        F.linear(*low), targets, ignore_index=-100, reduction="sum", label_smoothing=smoothing
    )
    loose = {"atol": 1e-3, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 0.02 * N, "rtol": 0.05}
    torch.testing.assert_close(found.double(), wanted, **loose)
    grads = torch.autograd.grad(found, parameters)
    for g, e in zip(grads, torch.autograd.grad(wanted, low), strict=True):
        torch.testing.assert_close(g.double(), e, atol=loose["atol"], rtol=loose["rtol"])


def products(rng: random.Random, drawn: Drawn) -> None:
    N, inner, outer, bias = size(rng, 40), size(rng, 70), size(rng, 70), rng.random() < 0.5
    strided, widened = rng.random() < 0.5, rng.random() < 0.5
    drawn |= {"N": N, "in": inner, "out": outer, "bias": bias, "strided": strided, "widened": widened}
    layer = Linear(inner, outer, bias=bias)
    dtype = torch.bfloat16 if widened else torch.float32
    layer.to(dtype)
    x = tensor(rng, N, 2 * inner, dtype=dtype)
    x = x[:, ::2] if strided else x[:, :inner]
    with mock.patch.object(linear, "_has_kernel", return_value=False):
        agree(
            lambda x, *_: layer(x),
            lambda x, *_: F.linear(x, *[p.detach().double() for p in layer.parameters()]),
            [x],
        )
    if not widened:
        plain = [p.detach() for p in layer.parameters()]
        torch.testing.assert_close(fastest_linear(x, *plain), F.linear(x, *plain), atol=1e-5, rtol=1e-5)


def recurrence(rng: random.Random, drawn: Drawn) -> None:
    least = rng.choice([0, 1 << 40])  # elements of U that are copied once for all steps, in bfloat16
    drawn["packed from"] = least
    with (
        mock.patch.object(recurrent_kernels, "PACKED_ELEMENTS", least),
        mock.patch.object(recurrent_kernels, "PACKED_STEPS", 0),
        mock.patch.object(recurrent_kernels, "SMALL_STEP", 0),
    ):
        _recurrence(rng, drawn)


def _recurrence(rng: random.Random, drawn: Drawn) -> None:
    # Consecutive seeds cover every variant.
    settings = dict(list(VARIANTS.values())[drawn["seed"] % len(VARIANTS)])
    B, T, D, H = size(rng, 6), size(rng, 9), size(rng, 20), size(rng, 70)
    if "projection" in settings:
        H = max(H, 2)
        settings["projection"] = rng.randint(1, H - 1)
    masks, low = [name for name in ("attend", "starts") if rng.random() < 0.5], rng.random() < 0.3
    drawn |= {**settings, "B": B, "T": T, "D": D, "H": H, "masks": masks, "bfloat16": low}
    layer = Recurrent(dim=D, hidden_dim=H, **settings)
    for p in layer.parameters():
        p.data = tensor(rng, *p.shape, scale=0.3 / max(1.0, H**0.5 / 3))
    if settings["cell"] == "rnn_relu" and low:  # near the kink, rounding decides which units are active
        for p in layer.parameters():
            p.data = 0.1 * p.data if p.dim() > 1 else torch.where(p.data < 0, -1.0, 1.0)
    x = tensor(rng, T, B, D).transpose(0, 1).requires_grad_()  # not contiguous
    state = tuple(tensor(rng, B, n, scale=0.5).requires_grad_() for n in layer.state_dims)
    where = {which: tensor(rng, B, T) < 0.5 if which in masks else None for which in ("attend", "starts")}
    inputs = [x, *state, *layer.parameters()]

    def total(found: Any) -> Tensor:
        outputs, after = found
        return (outputs.float() * torch.linspace(-1, 1, outputs.numel()).view(outputs.shape)).sum() + sum(
            part.float().sin().sum() for part in after
        )

    exact = layer(x, state, **where, exact=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        ours = layer._fused(x, state, layer.hidden_proj.weight, **where)
    tolerance = {"atol": 0.05, "rtol": 0.05} if low else {"atol": 1e-5, "rtol": 1e-5}
    for a, b in zip((exact[0], *exact[1]), (ours[0], *ours[1]), strict=True):
        torch.testing.assert_close(b.float(), a, **tolerance)
    wanted, found = (torch.autograd.grad(total(result), inputs) for result in (exact, ours))
    for a, b in zip(wanted, found, strict=True):
        if low:
            assert (a - b).norm() <= 0.06 * a.norm() + 0.02
        else:
            torch.testing.assert_close(b, a, atol=2e-5, rtol=1e-3)


def encoder(rng: random.Random, drawn: Drawn) -> None:
    family = rng.choice([BertConfig, RobertaConfig])
    n_heads, head_dim = size(rng, 4), size(rng, 20)
    config = family(
        vocab_size=31, max_seq_len=40, type_vocab_size=2, dim=n_heads * head_dim, n_heads=n_heads,
        hidden_dim=size(rng, 70), n_layers=rng.randint(1, 2),
        activation=rng.choice(["gelu", "relu", "gelu_tanh", "identity"]),
    )  # fmt: skip
    B, T, padded = size(rng, 4), size(rng, 38), rng.random() < 0.5
    drawn |= {"config": config, "B": B, "T": T, "padded": padded}
    model = build(config, generator=torch.Generator().manual_seed(rng.getrandbits(60))).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(tensor(rng, *p.shape, scale=0.1))
    assert FastEncoder.takes(model)
    tokens = torch.tensor([[rng.randrange(31) for _ in range(T)] for _ in range(B)])
    attend = torch.arange(T) < torch.tensor([rng.randint(1, T) for _ in range(B)])[:, None]
    seen = attend if padded else torch.ones_like(attend)
    with torch.no_grad():
        wanted = model.hidden(tokens, None, attend if padded else None)
    found = FastEncoder(model).hidden(tokens, None, attend if padded else None)
    torch.testing.assert_close(found[seen], wanted[seen], atol=5e-5, rtol=1e-4)


CASES: dict[str, Callable[[random.Random, Drawn], None]] = {
    case.__name__: case
    for case in (
        attention, sparse_attention, elementwise, rms_norm, rotation, log_sum_exp, token_scores,
        cross_entropy, products, recurrence, encoder,
    )
}  # fmt: skip


def run(name: str, seed: int) -> None:
    """Draw and compare once; a failure names the seed and all that was drawn."""
    drawn: Drawn = {"seed": seed}
    with every_size():
        torch.manual_seed(seed)
        try:
            CASES[name](random.Random(seed), drawn)
        except Exception as error:
            raise AssertionError(f"{name}, drew {drawn}: {error}") from error
