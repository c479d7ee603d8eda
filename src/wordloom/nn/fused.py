"""Functions of layers, each one compiled kernel on a CPU where PyTorch's kernels make several passes.

Each function computes the plain expression in its docstring, in float32 whatever the tensors' dtype.  Where a
kernel does not apply (another device, small tensors, tensor subclasses, torch.compile) it evaluates the plain
expression itself.  The fast path can be differentiated once.  The kernels are in
:mod:`wordloom.kernels.elementwise` and :mod:`wordloom.kernels.attention.dense`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from wordloom.kernels import programs
from wordloom.kernels.acceptance import fall_back, plain
from wordloom.kernels.programs import SHARES, fits, run
from wordloom.nn.dropout import as_argument, row_seeds
from wordloom.nn.linear import has_amx, mkl_is_a_guest

# With fewer queries than this, copying the keys takes as long as the products, and PyTorch's forward pass is
# faster: on Zen 4 twice as fast for one query.
FEW_QUERIES = 32

# On a CPU with AMX, PyTorch's forward pass in bfloat16 takes half our time.  Its backward pass takes longer
# than ours for up to this many elements of a head's keys (for 16 keys of 64, twelve times as long), and for
# up to four times as many in causal attention, where ours does half the work.
FLASH_ELEMENTS = 256 * 64


def gelu_tanh(x: Tensor) -> Tensor:
    """``F.gelu(x, approximate="tanh")``; forward also computes the slope, so backward is one product."""
    if fits(x):
        return _GeluTanh.apply(x)  # type: ignore[no-untyped-call]
    return F.gelu(x, approximate="tanh")


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``F.silu(gate) * up`` (Shazeer 2020, arXiv:2002.05202); backward keeps only the two inputs."""
    if fits(gate, up):
        return _SwiGLU.apply(gate, up)  # type: ignore[no-untyped-call]
    return F.silu(gate) * up


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """``F.rms_norm(x.float(), x.shape[-1:], weight, eps).to(x.dtype)``; weight [D] float32 or None."""
    if weight is not None and fits(x) and _float32(weight, x.shape[-1:]):
        return _RMSNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return F.rms_norm(x.float(), x.shape[-1:], weight, eps).to(x.dtype)


def _float32(t: Tensor, shape: torch.Size) -> bool:
    """Return whether a program may read ``t``, beside tensors that fit, as dense float32 of this shape."""
    if not plain(t):
        fall_back("a fused layer", f"a tensor is a {type(t).__name__}")
        return False
    return t.dtype == torch.float32 and t.device.type == "cpu" and t.shape == shape


def log_sum_exp(logits: Tensor) -> Tensor:
    """``logits.float().logsumexp(dim=-1)`` of logits [N, V], without a gradient.

    A row's result has the same bits beside any other rows.  It is not finite where a logit is NaN or
    infinity, or all are minus infinity.
    """
    logits = logits.contiguous()
    if logits.shape[1] >= programs.MINIMUM_ELEMENTS and not logits.requires_grad and fits(logits):
        out = torch.empty(logits.shape[0])
        run("elementwise.log_sum_exp", logits.dtype, *logits.shape, logits, out)
        return out
    return logits.float().logsumexp(dim=-1)


def token_scores(logits: Tensor, targets: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores of two tokens of each row of logits [N, V], without a gradient.

    They are ``F.cross_entropy(logits.float(), targets, reduction="none")`` [N]; the rank of the target [N],
    int64, 1 + the number of larger logits; and whether the logit of ``chosen`` [N] is the largest, bool.  The
    loss is not finite where a logit is NaN or infinity.
    """
    logits = logits.contiguous()
    N, V = logits.shape
    may = N > 0 and V < 1 << 24 and not logits.requires_grad  # float32 counts to 2**24
    if may and fits(logits) and all(_class_numbers(each, logits.shape) for each in (targets, chosen)):
        nats, larger, best = (torch.empty(N) for _ in range(3))
        arguments = (logits, targets.contiguous(), chosen.contiguous(), nats, larger, best)
        run("elementwise.token_scores", logits.dtype, N, V, *arguments)
        return nats, larger.long() + 1, best.bool()
    logits = logits.float()
    # log_softmax reads the logits in one pass, and is three times as fast as logsumexp
    nats = -logits.log_softmax(1).gather(1, targets[:, None])[:, 0]
    larger = logits > logits.gather(1, targets[:, None])  # [N, V]
    ranks = larger.view(torch.int8).sum(1, dtype=torch.int32).long() + 1  # sums of bool are twice as slow
    return nats, ranks, logits.gather(1, chosen[:, None])[:, 0] == logits.amax(1)


def softmax_error(
    logits: Tensor, targets: Tensor, *, ignore_index: int, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """``F.cross_entropy(logits.float(), targets, ..., reduction="sum")`` and its gradient.

    logits [N, V], which may be overwritten; targets [N]; ``smoothing`` is ``label_smoothing``.  The gradient,
    [N, V] in the dtype of the logits, is softmax - (1 - smoothing) onehot(target) - smoothing / V on scored
    rows and zero on the others.
    """
    scored = targets != ignore_index
    kept = targets.masked_fill(~scored, 0)
    if fits(logits) and _class_numbers(kept, logits.shape):
        losses = torch.empty(logits.shape[0], device=logits.device)
        known = targets.masked_fill(~scored, -1).contiguous()
        run("elementwise.softmax_error", logits.dtype, *logits.shape, smoothing, logits, known, losses)
        return losses.sum(), logits
    log_probability = F.log_softmax(logits, dim=-1, dtype=torch.float32)
    loss = F.nll_loss(log_probability, targets, ignore_index=ignore_index, reduction="sum")
    if smoothing:
        spread = log_probability.mean(dim=-1).masked_fill(~scored, 0.0).sum()
        loss = (1.0 - smoothing) * loss - smoothing * spread
    grad = log_probability.exp_()
    if smoothing:
        grad -= smoothing / logits.shape[1]
    grad.scatter_add_(1, kept[:, None], (smoothing - 1.0) * scored[:, None].to(grad.dtype))
    if grad.is_cuda or not bool(scored.all()):  # reading ``scored`` would stall a CUDA stream
        grad.mul_(scored[:, None])
    return loss, grad.to(logits.dtype)


def _class_numbers(targets: Tensor, shape: torch.Size) -> bool:
    """Return whether ``targets`` are int64, one for each of the N rows of ``shape``, and numbers below V."""
    N, V = shape
    if not plain(targets) or targets.dtype != torch.int64 or targets.shape != (N,):
        return False
    return bool(targets.min() >= 0) and bool(targets.max() < V)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate elements i and i + E/2 of each head (Su et al. 2021, arXiv:2104.09864).

    x [B, H, T, E]; cos and sin [B or 1, T, E/2] float32 -> [B, H, T, E].
    """
    heads_last = x.transpose(1, 2)  # [B, T, H, E], as projections lie in memory
    B, _, T, E = x.shape
    rows = cos.shape[0] if cos.dim() == 3 else 0
    angles = torch.Size((rows, T, E // 2))
    known = E % 2 == 0 and rows in (1, B) and _float32(cos, angles) and _float32(sin, angles)
    if known and fits(heads_last) and not cos.requires_grad:
        return _Rotate.apply(x, cos.contiguous(), sin.contiguous())  # type: ignore[no-untyped-call]
    cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)  # [B or 1, 1, T, E/2]
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def attention_fits(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, dropout: float = 0.0) -> bool:
    """Return whether :func:`attention` accepts these and is the faster path."""
    if torch.compiler.is_compiling() or q.numel() < programs.MINIMUM_ELEMENTS:
        return False
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or k.shape != v.shape or q.shape[1] % k.shape[1]:
        return False
    if is_causal and q.shape[2] != k.shape[2]:
        return False
    trains = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if q.shape[2] < FEW_QUERIES <= k.shape[2] and not trains:
        return False
    for t in (q, k, v):
        if t.device.type != "cpu" or t.dtype != q.dtype:
            return False
        if not plain(t):
            fall_back("attention", f"queries, keys or values are a {type(t).__name__}")
            return False
        if t.stride(3) != 1 or t.stride(2) < t.shape[3]:  # the BLAS takes no overlapping rows
            return False
    elements = k.shape[2] * k.shape[3]
    if not dropout and flash_is_faster(q.dtype, elements, is_causal=is_causal, trains=trains):
        return False
    return attention_program(q.dtype, q.shape[3])


def attention_program(dtype: torch.dtype, head_dim: int) -> bool:
    """Return whether there is a kernel for attention in ``dtype`` here."""
    return dtype in (torch.float32, torch.bfloat16) and attention_products(head_dim) is not None


def flash_is_faster(dtype: torch.dtype, elements: int, *, is_causal: bool, trains: bool) -> bool:
    """Return whether PyTorch's kernel is faster than ours, where the keys of a head have ``elements``.

    ``trains`` says whether gradients are computed.  In bfloat16, PyTorch's kernel uses AMX; with AVX512
    alone, it has half our speed.
    """
    if dtype != torch.bfloat16 or not has_amx():
        return False
    return not trains or elements > (4 if is_causal else 1) * FLASH_ELEMENTS


def attention_products(head_dim: int) -> int | None:
    """Return the address of the ``sgemm`` that attention calls; 0 for our own products, None without either.

    Our own products take whole vectors, and are used where MKL is not faster.
    """
    if head_dim % 16 == 0 and mkl_is_a_guest() and programs.ready():
        return 0
    return programs.sgemm() or None


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    is_causal: bool = False,
    keys: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """``F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True, ...)``, where it fits.

    q [B, H, T, E]; k, v [B, K, S, E], head h of q with head h // (H / K) of k -> [B, H, T, E].
    ``keys`` [B or 1, S] is True for visible keys; None means all.  A query without visible keys gives zeros.
    ``dropout`` of the weights keeps no mask in memory: see :mod:`wordloom.nn.dropout`.
    """
    seeds = as_argument(row_seeds(len(q))) if dropout else None
    return _Attention.apply(q, k, v, keys, scale, is_causal, dropout, seeds)  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, keys: Tensor | None, *settings: Any) -> Tensor:
        B, H, T, E = q.shape
        if keys is not None:
            keys = keys.expand(B, k.shape[2]).contiguous()
        if q.dtype == torch.bfloat16 and keys is None and not settings[2] and has_amx():
            out, sums = _flash_forward(q, k, v, *settings[:2])
        else:
            out = q.new_empty(B, T, H, E)
            sums = q.new_empty(B, H, T, dtype=torch.float32)
            _run_attention("attention", q, k, v, keys, settings, out, sums)
        ctx.save_for_backward(q, k, v, keys, out, sums)
        ctx.settings = settings
        return out.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, keys, out, sums = ctx.saved_tensors
        B, H, T, E = q.shape
        K, S = k.shape[1:3]
        d_q, d_k, d_v = q.new_empty(B, T, H, E), q.new_empty(B, S, K, E), q.new_empty(B, S, K, E)
        grad = grad.transpose(1, 2).contiguous()
        _run_attention("attention_backward", q, k, v, keys, ctx.settings, out, sums, grad, d_q, d_k, d_v)
        return (*(d.transpose(1, 2) for d in (d_q, d_k, d_v)), *[None] * 5)


def _flash_forward(q: Tensor, k: Tensor, v: Tensor, scale: float, is_causal: bool) -> tuple[Tensor, Tensor]:
    """Return what our kernel writes, computed by PyTorch's: outputs [B, T, H, E], and sums [B, H, T]."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, sums = flash(q, k, v, 0.0, is_causal, scale=scale)
    return out.transpose(1, 2).contiguous(), sums.contiguous()


def _run_attention(
    name: str, q: Tensor, k: Tensor, v: Tensor, keys: Tensor | None, settings: Any, *others: Tensor
) -> None:
    from wordloom.kernels.attention.dense import scratch_elements

    (_, H, T, E), (B, K, S) = q.shape, k.shape[:3]
    scale, is_causal, dropout, seeds = settings
    steps = [t.stride(axis) for t in (q, k, v) for axis in (0, 2, 1)]
    run(
        f"attention.dense.{name}", q.dtype, B * K, attention_products(E), T, S, E, H, K, scale, is_causal,
        keys, seeds, int(dropout * (1 << 32)), 1.0 / (1.0 - dropout), q, k, v, *steps, *others,
        scratch=scratch_elements(S, E),
    )  # fmt: skip


class _GeluTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y, slope = torch.empty_like(x), torch.empty_like(x)
        run("elementwise.gelu_tanh", x.dtype, x.numel(), x, y, slope)
        ctx.save_for_backward(slope)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return grad * slope


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotated(grad, cos, -sin), None, None  # the transpose of a rotation is its inverse


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x = x.transpose(1, 2).contiguous()  # [B, T, H, E]
    B, T, H, E = x.shape
    y = torch.empty_like(x)
    run("elementwise.rotate", x.dtype, B * T, T, H, E // 2, cos.shape[0] * T, x, cos, sin, y)
    return y.transpose(1, 2)  # [B, H, T, E]


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        y = torch.empty_like(gate)
        run("elementwise.swiglu", gate.dtype, gate.numel(), gate, up, y)
        ctx.save_for_backward(gate, up)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        d_gate, d_up = torch.empty_like(gate), torch.empty_like(up)
        run(
            "elementwise.swiglu_backward", gate.dtype, gate.numel(), gate, up, grad.contiguous(), d_gate, d_up
        )
        return d_gate, d_up


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        D = x.shape[-1]
        N = x.numel() // D
        y, scale = torch.empty_like(x), x.new_empty(N, dtype=torch.float32)
        run("elementwise.rms_norm", x.dtype, N, D, eps, x, weight.contiguous(), y, scale)
        ctx.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        D = x.shape[-1]
        d_x = torch.empty_like(x)
        d_weight = weight.new_zeros(SHARES, D)
        run(
            "elementwise.rms_norm_backward", x.dtype, scale.numel(), D, x, weight.contiguous(), scale,
            grad.contiguous(), d_x, d_weight,
        )  # fmt: skip
        return d_x, d_weight.sum(0), None
