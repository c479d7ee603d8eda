"""Each compiled kernel beside PyTorch's eager kernels at the shapes of small models.

The two sides take turns, and the least time of each is compared, so that other load falls on both.  Forward
and backward run together where training needs both.  One JSON line for each kernel, shape and dtype.

    python benchmarks/kernels.py [NAME ...] [--rounds 15]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from entry import in_one_line
from torch import Tensor
from torch.nn import functional as F

from wordloom.kernels import programs
from wordloom.kernels.decoding.integers import integers_room, project_integers
from wordloom.kernels.threads import one_thread
from wordloom.nn import fused
from wordloom.nn.dropout import dropout
from wordloom.nn.quantized import quantize
from wordloom.nn.recurrent import CELLS, Recurrent

B, T, D, HIDDEN, V = 8, 256, 512, 1536, 16_384
Side = Callable[[], object]
Case = tuple[str, str, Side, Side]  # name, shape, ours, PyTorch's


def both(inputs: list[Tensor], function: Callable[..., Tensor]) -> Side:
    """Forward and backward of ``function``."""

    def run() -> None:
        out = function(*inputs)
        torch.autograd.grad(out, inputs, torch.ones_like(out))

    return run


def pair(name: str, inputs: list[Tensor], ours: Callable[..., Tensor], plain: Callable[..., Tensor]) -> Case:
    shape = " ".join(str(list(x.shape)) for x in inputs)
    return name, shape, both(inputs, ours), both(inputs, plain)


def leaf(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_()


def elementwise(dtype: torch.dtype) -> Iterator[Case]:
    wide, gate = leaf(B, T, HIDDEN, dtype=dtype), leaf(B, T, HIDDEN, dtype=dtype)
    yield pair("gelu_tanh", [wide], fused.gelu_tanh, lambda x: F.gelu(x, approximate="tanh"))
    yield pair("swiglu", [gate, wide], fused.swiglu, lambda g, u: F.silu(g) * u)
    x, weight = leaf(B, T, D, dtype=dtype), leaf(D, dtype=torch.float32)
    yield pair(
        "rms_norm", [x, weight], lambda x, w: fused.rms_norm(x, w, 1e-5),
        lambda x, w: F.rms_norm(x.float(), (D,), w, 1e-5).to(x.dtype),
    )  # fmt: skip
    yield pair("dropout", [x], lambda x: dropout(x, 0.1, True), lambda x: F.dropout(x, 0.1, True))
    heads, angle = leaf(B, T, 8, D // 8, dtype=dtype), torch.rand(1, T, D // 16)
    cos, sin = angle.cos(), angle.sin()

    def turned(x: Tensor) -> Tensor:
        first, second = x.float().transpose(1, 2).chunk(2, dim=-1)
        c, s = cos.unsqueeze(1), sin.unsqueeze(1)
        return torch.cat([first * c - second * s, second * c + first * s], dim=-1).to(x.dtype)

    yield pair("rotate", [heads], lambda x: fused.rotate(x.transpose(1, 2), cos, sin), turned)


def cross_entropy(dtype: torch.dtype) -> Iterator[Case]:
    logits, targets = torch.randn(1024, V).to(dtype), torch.randint(0, V, (1024,))
    learnt = logits.clone().requires_grad_()

    def plain() -> None:
        loss = F.cross_entropy(learnt.float(), targets, reduction="sum")
        torch.autograd.grad(loss, learnt)

    def ours() -> None:
        fused.softmax_error(logits.clone(), targets, ignore_index=-100)

    yield "softmax_error", str([1024, V]), ours, plain


def log_sum_exp(dtype: torch.dtype) -> Iterator[Case]:
    logits = torch.randn(8, V).to(dtype)
    yield "log_sum_exp", str([8, V]), lambda: fused.log_sum_exp(logits), lambda: logits.float().logsumexp(-1)


def integers(dtype: torch.dtype) -> Iterator[Case]:
    """Products with a weight in 8 bits beside PyTorch's in float32, both on one thread."""
    if dtype != torch.float32:
        return
    N, K = 512, 768
    weight = torch.randn(N, K)
    packed, bias = quantize(weight), np.empty(0, dtype=np.float32)
    for R in (1, 2, 4, 8, 12, 16, 64):
        x, out = torch.randn(R, K), np.empty((R, N), dtype=np.float32)
        room = np.zeros(integers_room(R, K), dtype=np.uint8)

        def ours(x: Tensor = x, out: np.ndarray = out, room: np.ndarray = room) -> None:
            project_integers(out, x.numpy(), packed.data_ptr(), bias, False, room, 0, 1)

        def plain(x: Tensor = x) -> None:
            with one_thread():
                F.linear(x, weight)

        yield "product in 8 bits, one thread", f"[{R}, {K}] [{N}, {K}]^T", ours, plain


def attention(dtype: torch.dtype) -> Iterator[Case]:
    for head_dim, is_causal in ((64, True), (64, False), (40, True)):
        sides = [leaf(B, T, 8, head_dim, dtype=dtype) for _ in range(3)]

        def ours(*rows: Tensor, is_causal: bool = is_causal) -> Tensor:
            q, k, v = (x.transpose(1, 2) for x in rows)
            return fused.attention(q, k, v, scale=0.125, is_causal=is_causal)

        def plain(*rows: Tensor, is_causal: bool = is_causal) -> Tensor:
            q, k, v = (x.transpose(1, 2) for x in rows)
            return F.scaled_dot_product_attention(q, k, v, scale=0.125, is_causal=is_causal)

        if fused.attention_program(dtype, head_dim):
            yield pair("attention, causal" if is_causal else "attention", sides, ours, plain)


def recurrent(dtype: torch.dtype) -> Iterator[Case]:
    """Each cell beside what computes it without our kernel: PyTorch's own, or one step after another.

    PyTorch has no LSTM whose state is reset inside a row; for plain LSTMs in float32 its kernel is used.
    """
    x = torch.randn(16, 64, 256)
    for cell in CELLS:
        layer = Recurrent(cell=cell, dim=256, hidden_dim=512)
        for p in layer.parameters():
            torch.nn.init.normal_(p, 0.0, 0.05)
        resets = dtype == torch.float32 and cell.startswith("lstm")
        starts = torch.zeros(16, 64, dtype=torch.bool) if resets else None
        yield f"recurrent {cell}", "[16, 64, 256], H 512", *_recurrent_sides(layer, x, starts, dtype)


def _recurrent_sides(
    layer: Recurrent, x: Tensor, starts: Tensor | None, dtype: torch.dtype
) -> tuple[Side, Side]:
    state, u = layer.new_state(len(x), x), layer.hidden_proj.weight

    def by_us() -> Tensor:
        return layer._fused(x, state, u, None, starts)[0]

    def by_torch() -> Tensor:
        steps = starts is not None or layer.kernel == "steps"
        return layer(x, state, starts=starts, exact=True)[0] if steps else layer._by_torch(x, state, u)[0]

    def side(function: Callable[[], Tensor]) -> Side:
        def run() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
                out = function()
            torch.autograd.grad(out.float().sum(), list(layer.parameters()))

        return run

    return side(by_us), side(by_torch)


def timed(side: Side) -> float:
    before = time.perf_counter()
    side()
    return time.perf_counter() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="kernels whose names contain one of these; default: all")
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    if not programs.ready():
        raise SystemExit("no kernels run here: they need Linux, PyTorch's OpenMP runtime and numba")
    for dtype in (torch.float32, torch.bfloat16):
        for group in (elementwise, cross_entropy, log_sum_exp, integers, attention, recurrent):
            for name, shape, ours, plain in group(dtype):
                if asked.names and not any(part in name for part in asked.names):
                    continue
                for side in (ours, plain, ours, plain):  # compile, and fill the caches
                    side()
                times = [(timed(ours), timed(plain)) for _ in range(asked.rounds)]
                mine, other = min(a for a, _ in times), min(b for _, b in times)
                line = {
                    "kernel": name, "dtype": str(dtype).removeprefix("torch."), "shape": shape,
                    "ours_ms": round(1e3 * mine, 3), "torch_ms": round(1e3 * other, 3),
                    "speedup": round(other / mine, 2),
                    "median_speedup": round(statistics.median(b / a for a, b in times), 2),
                    "threads": 1 if name.endswith("one thread") else torch.get_num_threads(),
                }  # fmt: skip
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    in_one_line(main)
