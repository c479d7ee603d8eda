"""A fast BERT encoder for a CPU: the blocks of :mod:`wordloom.models.bert` in fewer, larger products.

Query, key and value are one product.  Activations and residual sums are part of the products.  Weights are
laid out once for them.  The model itself is the oracle of its tests.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from wordloom.kernels.acceptance import fall_back
from wordloom.models.bert import Bert
from wordloom.models.building.deviation import deviation
from wordloom.models.roberta import Roberta
from wordloom.nn import LayerNorm
from wordloom.nn.attention.visibility import Visibility
from wordloom.nn.linear import PackedLinear


class FastEncoder:
    """``model``'s :meth:`~wordloom.models.bert.Bert.hidden` without gradients and dropout.

    It holds a copy of the blocks' weights; :meth:`follows` compares them with the model's.  Writes through
    ``.data`` go unseen, since PyTorch does not count them as changes.
    """

    def __init__(self, model: Bert) -> None:
        self.model = model
        self.blocks = [_FastBlock(block, model.config.activation) for block in model.blocks]
        self._taken = _state(model)

    @staticmethod
    def takes(model: object) -> bool:
        """Return whether this class computes ``model`` exactly; log the reason if not, at debug level."""
        if reason := _unfit(model):
            fall_back("FastEncoder", reason)
        return not reason

    def follows(self, model: object) -> bool:
        """Return whether this still computes ``model``: its weights have not changed."""
        return model is self.model and _state(self.model) == self._taken

    @torch.inference_mode()
    def hidden(
        self,
        tokens: Tensor,
        segments: Tensor | None = None,
        attend: Tensor | None = None,
        *,
        n_layers: int | None = None,
    ) -> Tensor:
        """tokens [B, T] -> [B, T, D], after the first ``n_layers`` blocks, as ``model.hidden``."""
        visibility = Visibility(real_keys=attend)
        x = self.model.embedded(tokens, segments)
        for block in self.blocks[:n_layers]:
            x = block(x, visibility)
        return x


def _unfit(model: Any) -> str:
    """Return why the modules of ``model`` must be called, or ""."""
    if type(model) not in (Bert, Roberta):
        return f"a {type(model).__name__} is no BERT or RoBERTa as it was built"
    if model.config.activation not in PackedLinear.ACTIVATIONS:
        return f"activation {model.config.activation}"
    if model.config.global_projections:
        return "global tokens have projections of their own"
    if reason := deviation(model):
        return reason
    parameters = list(model.blocks.parameters())
    if any(p.dtype != parameters[0].dtype for p in parameters):
        return "weights are of several dtypes"
    if any(p.is_inference() for p in parameters):
        return "inference tensors do not tell of changes"
    if not all(PackedLinear.takes(p) for p in parameters if p.dim() == 2):
        return f"no packed products in {parameters[0].dtype} on {parameters[0].device.type}"
    return ""


class _FastBlock:
    def __init__(self, block: Any, activation: str) -> None:
        self.attention = block.attention
        self.attention_norm, self.ffn_norm = block.attention_norm, block.ffn_norm
        a, ffn = block.attention, block.feed_forward
        three = (a.q_proj, a.k_proj, a.v_proj)
        self.qkv = PackedLinear(torch.cat([p.weight for p in three]), torch.cat([p.bias for p in three]))
        self.o_proj = PackedLinear(a.o_proj.weight, a.o_proj.bias)
        self.up_proj = PackedLinear(ffn.up_proj.weight, ffn.up_proj.bias, activation=activation)
        self.down_proj = PackedLinear(ffn.down_proj.weight, ffn.down_proj.bias)

    def __call__(self, x: Tensor, visibility: Visibility) -> Tensor:
        a = self.attention
        heads = self.qkv(x).view(*x.shape[:2], 3, a.n_heads, a.head_dim).transpose(1, 3)  # [B, H, 3, T, E]
        q, k, v = heads.unbind(2)
        out = a.attend(q, k, v, visibility.through(a.pattern)).transpose(1, 2).flatten(-2)  # [B, T, D]
        x = _norm(self.attention_norm, self.o_proj(out, x))
        return _norm(self.ffn_norm, self.down_proj(self.up_proj(x), x))


def _norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """The layer in one pass; statistics are float32 for 16-bit numbers too."""
    return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)


def _state(model: Bert) -> list[tuple[int, int]]:
    """Return values that change when a parameter is written to or replaced."""
    return [(p.data_ptr(), p._version) for p in model.blocks.parameters()]
