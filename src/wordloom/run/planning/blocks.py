"""The activations of a Transformer block: what it keeps for the backward pass, and what that pass needs.

All sizes are bytes per token.  The layers and their order are those of :mod:`wordloom.models.gpt2` and
:mod:`wordloom.models.llama`; GPT has the same layers in another order.

- Eager PyTorch keeps the inputs of each operation.  With mixed precision, each linear layer keeps a rounded
  copy of its input, and queries, keys and values are three layers.
- A compiled block keeps one copy of such inputs and computes elementwise operations again.
"""

from __future__ import annotations

from dataclasses import dataclass

from wordloom.run.planning.shapes import BlockShape, Widths


@dataclass(frozen=True)
class Stage:
    """A part of a block in the backward pass.

    Attributes:
        name: of the layers.
        kept: bytes that the forward pass kept for it, freed at its end.
        during: bytes of gradients of activations that exist during it.
        weights: the elements of weights whose gradients it computes.
    """

    name: str
    kept: int
    during: int
    weights: int = 0


def stages(b: BlockShape, w: Widths, *, compiled: bool) -> list[Stage]:
    """Return the stages of a block in the order of the forward pass.

    The input of the block is not among the bytes kept: it is the result of the block before.
    """
    D, F, HE, KE = b.dim, b.hidden_dim, b.queries, b.keys
    r, c = w.residual, w.compute
    mixed = r != c
    norm = _norm_bytes(b, w, compiled=compiled)
    cast = c * D if mixed else 0  # a gradient is rounded before the products, and widened after them
    grad = r * D  # the gradient of the residual stream
    inputs = 1 if compiled or not mixed else 3  # copies of the input of queries, keys and values
    ups = 2 if b.gated else 1
    rotated = 4 * HE + c * HE if b.rotary and not compiled else 0
    mask = D if b.dropout and not compiled else 0  # one byte per element
    return [
        # the copies of the input are freed with the projections that read them
        Stage("attention norm", norm, 3 * grad),
        Stage("q, k, v", inputs * c * D, 2 * grad + c * (HE + 2 * KE) + cast, D * (HE + 2 * KE)),
        Stage("attention", 4 * c * HE + 4 * b.n_heads, grad + 4 * c * HE + rotated),
        # rotated queries give a result in another layout, which is copied
        Stage("o", (c * HE if b.rotary else 0) + mask, grad + cast + c * HE, HE * D),
        Stage("ffn norm", _second_norm(b, w, compiled=compiled), 3 * grad),
        Stage(
            "up",
            (1 if compiled or not mixed else ups) * c * D,
            (2 if b.gated else 1) * grad + (ups * c * F) + cast + grad,
            ups * D * F,
        ),
        Stage("activation", _activation(b, c, compiled=compiled), grad + (3 if b.gated else 2) * c * F),
        Stage("down", c * F + mask, grad + cast + c * F, F * D),
    ]


def _norm_bytes(b: BlockShape, w: Widths, *, compiled: bool) -> int:
    """Return the bytes that the first norm keeps: its input in float32, if that is not the block's input."""
    statistics = 4 if b.rotary else 8  # RMSNorm's root mean square, or LayerNorm's mean and deviation
    copied = 0 if w.residual == 4 else w.residual if compiled else 4
    return statistics + copied * b.dim


def _second_norm(b: BlockShape, w: Widths, *, compiled: bool) -> int:
    """Return the bytes that the second norm keeps: its input, or what it is computed from."""
    statistics = 4 if b.rotary else 8
    return statistics + (w.compute * b.dim if compiled else 4 * b.dim)


def _activation(b: BlockShape, c: int, *, compiled: bool) -> int:
    """Return the bytes that the activation keeps; its result is the input of down_proj."""
    if not b.gated:
        return c * b.hidden_dim if b.keeps_input else 0
    if compiled:
        return 2 * c * b.hidden_dim  # gate and up
    return (3 if b.keeps_input else 2) * c * b.hidden_dim  # gate, activation of the gate, and up


def kept_bytes(b: BlockShape, w: Widths, *, compiled: bool) -> int:
    """Return the bytes per token that a block keeps for the backward pass, beside its input."""
    return sum(stage.kept for stage in stages(b, w, compiled=compiled))
