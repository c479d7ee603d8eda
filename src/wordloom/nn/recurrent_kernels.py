"""Recurrent layers over whole sequences on a CPU, without autograd between steps.

The steps are those of :mod:`wordloom.nn.recurrent`, which is the slow twin.  All inputs are multiplied with
W in one call, and each weight's gradient is one call after the last step backward.  One step is one product
with U and one kernel for everything else (:mod:`wordloom.kernels.recurrent`).  In bfloat16, PyTorch copies U
into the layout of oneDNN in every step; here it is copied once for the sequence.  PyTorch has a
whole-sequence kernel for the LSTM alone, whose backward pass in bfloat16 takes three times as long as its
products; its other cells run step by step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from wordloom.kernels import programs
from wordloom.kernels.acceptance import fall_back, plain
from wordloom.kernels.programs import run
from wordloom.nn.linear import PackedLinear, fastest_linear, product_dtype, widens

# Copying U into the layout of oneDNN takes as long as it saves in about 10 steps.  A small U saves little.
PACKED_STEPS = 32
PACKED_ELEMENTS = 1 << 17

# Up to this many products in a step (rows of h times elements of U), float32 is faster than bfloat16, whose
# products have a fixed cost of some 20 microseconds: up to 2.4 times with one row and 100 units, with AMX.
SMALL_STEP = 1 << 19


class Weights(NamedTuple):
    """The weights of all gates, stacked; shapes and equations as in :mod:`wordloom.nn.recurrent`."""

    w: Tensor
    u: Tensor
    bias: Tensor | None
    candidate_bias: Tensor | None  # of n in a GRU whose reset gate follows the product
    peephole: Tensor | None  # [gates but g, H]
    projection: Tensor | None  # [R, H]


def fits(x: Tensor, hidden_dim: int) -> bool:
    """Return whether there are kernels for x [B, T, D] and enough work for them to win."""
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return False
    if not plain(x):
        fall_back("Recurrent", f"x is a {type(x).__name__}")
        return False
    if product_dtype(x) not in (torch.float32, torch.bfloat16):
        return False
    return x.shape[0] * x.shape[1] * hidden_dim >= programs.MINIMUM_ELEMENTS and programs.ready()


def run_sequence(
    cell: str, x: Tensor, state: tuple[Tensor, ...], weights: Weights, attend: Tensor | None,
    starts: Tensor | None,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Return h of every step [B, T, R] and the last state; only valid where :func:`fits` is True.

    x [B, T, D]; ``state`` is h [B, R] and, in an LSTM, c [B, H]; masks [B, T] or None.  Where 16-bit products
    are faster in float32, everything is computed in float32, and h is rounded.
    """
    dtype = product_dtype(x)
    is_small = len(x) * weights.u.numel() <= SMALL_STEP
    inside = torch.float32 if is_small or widens(x.device, dtype) else dtype
    masks = [None if mask is None else mask.t()[:, :, None] for mask in (attend, starts)]  # [T, B, 1]
    h, *c = state
    outputs, *after = _RunSequence.apply(  # type: ignore[no-untyped-call]
        cell, inside, *masks, x.transpose(0, 1), h, c[0] if c else None, *weights
    )
    last, *cells = after  # h; and, in an LSTM, c, which is float32
    return outputs.transpose(0, 1).to(dtype), (last.to(dtype), *cells)


class _StepProduct:
    """x [B, in] times weight [out, in]^T, plus ``bias`` [out], in each of many steps."""

    def __init__(self, weight: Tensor, steps: int, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        self.packed: PackedLinear | None = None
        pays = steps >= PACKED_STEPS and weight.numel() >= PACKED_ELEMENTS
        if pays and weight.dtype == torch.bfloat16 and PackedLinear.takes(weight):
            self.packed = PackedLinear(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product without the bias."""
        return torch.mm(x, self.weight.t()) if self.packed is None else self.packed(x)

    def add_to(self, sums: Tensor, x: Tensor) -> None:
        """Add the product, without the bias, to ``sums`` [B, out] in place."""
        if self.packed is None:
            sums.addmm_(x, self.weight.t())
        else:
            sums.copy_(self.packed(x, sums))

    def write(self, out: Tensor, x: Tensor) -> None:
        """Write the product, with the bias if there is one, to ``out`` [B, out]."""
        if self.packed is not None:
            out.copy_(self.packed(x))
        elif self.bias is None:
            torch.mm(x, self.weight.t(), out=out)
        else:
            torch.addmm(self.bias, x, self.weight.t(), out=out)


class _RunSequence(torch.autograd.Function):
    """Time comes first inside: x [T, B, D]; masks are [T, B, 1]."""

    @staticmethod
    def forward(
        ctx: Any, cell: str, dtype: torch.dtype, attend: Tensor | None, starts: Tensor | None, x: Tensor,
        h0: Tensor, c0: Tensor | None, *weights: Any,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        with torch.autocast("cpu", enabled=False):
            ctx.run = _Pass(cell, dtype, x, attend, starts, Weights(*weights))
            outputs, state = ctx.run.forward(h0, c0)
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (x, h0, c0, *weights)]
        return outputs, *state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor, *d_state: Tensor) -> tuple[Any, ...]:
        with torch.autocast("cpu", enabled=False):
            gradients = ctx.run.backward(d_outputs, *d_state)
        gradients = [
            None if gradient is None or dtype is None else gradient.to(dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        ]
        return None, None, None, None, *gradients


class _Pass:
    """One forward pass and the tensors that its backward pass needs."""

    def __init__(
        self, cell: str, dtype: torch.dtype, x: Tensor, attend: Tensor | None, starts: Tensor | None,
        weights: Weights,
    ) -> None:  # fmt: skip
        """``dtype`` is that of everything inside but c and the gradients of states."""
        self.cell, self.dtype, self.attend, self.starts = cell, dtype, attend, starts
        # the only setting of a step's kernel: ReLU in Elman's network, the forget gate in an LSTM
        self.variant = cell == "rnn_relu" if cell.startswith("rnn") else cell == "lstm"
        self.T, self.B, _ = x.shape
        self.x = x.to(dtype).contiguous()
        w, u, bias, candidate_bias, peephole, projection = weights
        self.w, self.u = w.to(dtype).contiguous(), u.to(dtype).contiguous()
        self.bias = None if bias is None else bias.to(dtype)
        self.candidate_bias = None if candidate_bias is None else candidate_bias.to(dtype)
        self.peephole = None if peephole is None else peephole.float().contiguous()
        self.projection = None if projection is None else projection.to(dtype).contiguous()

    def _run(self, kernel: str, *arguments: Tensor | bool | None) -> None:
        run(f"recurrent.{kernel}", self.dtype, self.B, self.H, *arguments)

    # -- forward -----------------------------------------------------------------------------------------

    def forward(self, h0: Tensor, c0: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        T, B, self.R = self.T, *h0.shape
        self.H = H = self.R if c0 is None else c0.shape[1]
        new = self.x.new_empty
        self.h = new(T + 1, B, self.R)  # [T + 1, B, R]: before the first step, and after each
        self.h[0] = h0
        self.c: Tensor | None = None
        if c0 is not None:
            self.c = new(T + 1, B, H, dtype=torch.float32)
            self.c[0] = c0
        self.restarts = [False] * T if self.starts is None else self.starts.flatten(1).any(dim=1).tolist()
        split = 2 * H if self.cell == "gru" else len(self.w)
        self.gates = self._of_inputs(slice(split))
        if self.cell == "gru":
            self.n = self._of_inputs(slice(split, None))
            self.product = torch.empty_like(self.n)  # r h
        if self.cell == "gru_reset_after":
            self.inner = torch.empty_like(self.gates)
        if self.projection is not None:
            self.wide = new(T, B, H)
            self.project = _StepProduct(self.projection, T)
        self._set_up_products()
        for t in range(T):
            before = self._before(t)
            self._step(t, *before)
            if self.attend is not None:
                for after, kept in zip((self.h, self.c), before, strict=True):
                    if after is not None and kept is not None:
                        after[t + 1] = torch.where(self.attend[t], after[t + 1], kept)
        state = (self.h[T].clone(),) if self.c is None else (self.h[T].clone(), self.c[T].clone())
        return self.h[1:], state

    def _of_inputs(self, rows: slice) -> Tensor:
        """Return W x + b of all steps for these rows of W: [T, B, rows]."""
        bias = None if self.bias is None else self.bias[rows]
        return fastest_linear(self.x.flatten(0, 1), self.w[rows], bias).view(self.T, self.B, -1)

    def _set_up_products(self) -> None:
        """Set up the products with U: those of the gates, and of a GRU's candidate apart."""
        split = 2 * self.H if self.cell == "gru" else len(self.u)
        bias = None
        if self.cell == "gru_reset_after" and self.candidate_bias is not None:
            bias = torch.cat([self.candidate_bias.new_zeros(2 * self.H), self.candidate_bias])
        self.times_u = _StepProduct(self.u[:split], self.T, bias)
        if self.cell == "gru":
            self.times_u_of_n = _StepProduct(self.u[split:], self.T)

    def _before(self, t: int) -> tuple[Tensor, Tensor | None]:
        """Return h and c before step ``t``: zeros in rows that restart."""
        h, c = self.h[t], None if self.c is None else self.c[t]
        if self.starts is None or not self.restarts[t]:
            return h, c
        start = self.starts[t]
        return h.masked_fill(start, 0.0), None if c is None else c.masked_fill(start, 0.0)

    def _step(self, t: int, h: Tensor, c: Tensor | None) -> None:
        gates = self.gates[t]
        if self.cell == "gru":
            self.times_u.add_to(gates, h)
            self._run("gru_gates", gates, h, self.product[t])
            self.times_u_of_n.add_to(self.n[t], self.product[t])
            self._run("gru_state", gates, self.n[t], h, self.h[t + 1])
        elif self.cell == "gru_reset_after":
            self.times_u.write(self.inner[t], h)
            self._run("gru_reset_after", gates, self.inner[t], h, self.h[t + 1])
        elif self.c is None:
            self.times_u.add_to(gates, h)
            self._run("elman", self.variant, gates, self.h[t + 1])
        else:
            self.times_u.add_to(gates, h)
            out = self.h[t + 1] if self.projection is None else self.wide[t]
            self._run("lstm", self.variant, gates, c, self.c[t + 1], out, self.peephole)
            if self.projection is not None:
                self.project.write(self.h[t + 1], self.wide[t])

    # -- backward ----------------------------------------------------------------------------------------

    def backward(
        self, d_outputs: Tensor, d_h: Tensor, d_c: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        """Gradients of x, h0, c0, w, u, bias, candidate_bias, peephole, projection."""
        T, B = self.T, self.B
        # kernels turn gates into gradients in place; a retained graph needs the gates again
        self.d_gates = torch.empty_like(self.gates) if self.cell.startswith("rnn") else self.gates.clone()
        if self.cell == "gru":
            self.d_n = self.n.clone()
        if self.cell == "gru_reset_after":
            self.d_inner = self.inner.clone()
        split = 2 * self.H if self.cell == "gru" else len(self.u)
        self.back_through_u = _StepProduct(self.u[:split].t(), T)
        if self.cell == "gru":
            self.back_through_u_of_n = _StepProduct(self.u[split:].t(), T)
        if self.projection is not None:
            self.d_h = self.h.new_empty(T, B, self.R)
            self.back_through_projection = _StepProduct(self.projection.t(), T)
        dh = d_h.float().clone()  # [B, R], of the state after step t
        dc = None if d_c is None or self.c is None else d_c.float().clone()
        for t in reversed(range(T)):
            dh += d_outputs[t]
            after_h, after_c = dh, dc
            if self.attend is not None:
                dh = torch.where(self.attend[t], dh, 0.0)
                dc = None if dc is None else torch.where(self.attend[t], dc, 0.0)
            dh = self._step_back(t, dh, dc)
            if self.attend is not None:
                dh = torch.where(self.attend[t], dh, after_h)
                dc = None if dc is None or after_c is None else torch.where(self.attend[t], dc, after_c)
            if self.starts is not None and self.restarts[t]:
                dh.masked_fill_(self.starts[t], 0.0)
                if dc is not None:
                    dc.masked_fill_(self.starts[t], 0.0)
        return self._gradients(dh, dc)

    def _step_back(self, t: int, dh: Tensor, dc: Tensor | None) -> Tensor:
        """Return d_h before step t from d_h [B, R] after it, and change d_c in place."""
        (h, c), gates = self._before(t), self.d_gates[t]
        if self.cell == "gru":
            before = torch.empty_like(dh)
            self._run("gru_state_backward", gates, self.d_n[t], h, dh, before)
            d_product = self.back_through_u_of_n(self.d_n[t])
            self._run("gru_gates_backward", gates, h, d_product, before)
            return before.add_(self.back_through_u(gates))
        if self.cell == "gru_reset_after":
            before = torch.empty_like(dh)
            self._run("gru_reset_after_backward", gates, self.d_inner[t], h, dh, before)
            return before.add_(self.back_through_u(self.d_inner[t]))
        if self.c is None:
            self._run("elman_backward", self.variant, self.h[t + 1], dh, gates)
        else:
            if self.projection is not None:
                self.d_h[t] = dh
                dh = self.back_through_projection(self.d_h[t]).float()
            self._run("lstm_backward", self.variant, gates, c, self.c[t + 1], dh, dc, self.peephole)
        return self.back_through_u(gates).float()

    def _gradients(self, dh: Tensor, dc: Tensor | None) -> tuple[Tensor | None, ...]:
        H = self.H
        h_before = self.h[:-1] if self.starts is None else self.h[:-1].masked_fill(self.starts, 0.0)
        rows, h_in = self.x.flatten(0, 1), h_before.flatten(0, 1)  # [T * B, D], [T * B, R]
        d_gates = self.d_gates.flatten(0, 1)
        inner = d_gates
        if self.cell == "gru":
            d_n = self.d_n.flatten(0, 1)
            d_u = torch.cat([d_gates.t() @ h_in, d_n.t() @ self.product.flatten(0, 1)])
            d_gates = torch.cat([d_gates, d_n], dim=1)
        else:
            if self.cell == "gru_reset_after":
                inner = self.d_inner.flatten(0, 1)
            d_u = inner.t() @ h_in
        d_x = fastest_linear(d_gates, self.w.t()).view(self.x.shape)
        d_w = d_gates.t() @ rows
        d_bias = None if self.bias is None else d_gates.sum(0, dtype=torch.float32)
        d_candidate = None if self.candidate_bias is None else inner[:, 2 * H :].sum(0, dtype=torch.float32)
        d_peephole, d_projection = self._peephole_gradient(), self._projection_gradient()
        return d_x, dh, dc, d_w, d_u, d_bias, d_candidate, d_peephole, d_projection

    def _peephole_gradient(self) -> Tensor | None:
        if self.peephole is None or self.c is None:
            return None
        c_before = self.c[:-1] if self.starts is None else self.c[:-1].masked_fill(self.starts, 0.0)
        H, inner = self.H, len(self.peephole) - 1  # i and f, or i alone, see c before the step, o after it
        d = self.d_gates.float()
        parts = [(d[..., k * H : (k + 1) * H] * c_before).sum((0, 1)) for k in range(inner)]
        return torch.stack([*parts, (d[..., -H:] * self.c[1:]).sum((0, 1))])

    def _projection_gradient(self) -> Tensor | None:
        if self.projection is None:
            return None
        return self.d_h.flatten(0, 1).t() @ self.wide.flatten(0, 1)
