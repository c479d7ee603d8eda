"""A BERT that reads many texts on a CPU: the blocks of :mod:`wordloom.models.bert` in fewer, larger steps.

Query, key and value are one product, activations and sums are made as part of the products, and weights are
laid out once as these read them.  The model itself is the oracle of its tests.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wordloom.models.bert import Bert, Block
from wordloom.nn import Attention, FeedForward, LayerNorm
from wordloom.nn.feed_forward import activation
from wordloom.nn.linear import Linear, PackedLinear

__all__ = ["FastEncoder"]

_PARTS = (Block, Attention, FeedForward, LayerNorm, LayerNorm)


class FastEncoder:
    """``model``'s :meth:`~wordloom.models.bert.Bert.hidden` without gradients and dropout.

    It holds a copy of the blocks' weights; :meth:`follows` says whether they are still the model's. What is
    written through ``.data`` it does not see, since PyTorch does not count that as a change.
    """

    def __init__(self, model: Bert) -> None:
        self.model = model
        self.blocks = [_FastBlock(block, model.config.activation) for block in model.blocks]
        self._taken = _state(model)

    @staticmethod
    def takes(model: object) -> bool:
        """Whether ``model`` is one whose blocks there is a fast form of, where it lies: as it was built,
        without hooks, which would not be called, or replaced layers."""
        if not isinstance(model, Bert) or model.config.activation not in PackedLinear.ACTIVATIONS:
            return False
        some = torch.linspace(-3, 3, 7)
        wanted = activation(model.config.activation)(some)
        for block in model.blocks:
            b: Any = block
            parts = (b, b.attention, b.feed_forward, b.attention_norm, b.ffn_norm)
            if tuple(map(type, parts)) != _PARTS or not torch.equal(b.feed_forward.activation(some), wanted):
                return False
        for module in model.blocks.modules():
            if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
                return False
            if isinstance(module, nn.Linear) and type(module) is not Linear:
                return False
        parameters = list(model.blocks.parameters())
        if any(p.dtype != parameters[0].dtype or p.is_inference() for p in parameters):
            return False  # the latter do not tell of changes
        return all(PackedLinear.takes(p) for p in parameters if p.dim() == 2)

    def follows(self, model: object) -> bool:
        """Whether this computes what ``model`` does now."""
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
        """As the model's own: tokens [B, T] -> [B, T, D], after the first ``n_layers`` blocks."""
        mask = None if attend is None else attend[:, None, None]  # [B, 1, 1, T]
        x = self.model.embedded(tokens, segments)
        for block in self.blocks[:n_layers]:
            x = block(x, mask)
        return x


class _FastBlock:
    def __init__(self, block: Any, activation: str) -> None:
        self.attention, self.attention_norm, self.ffn_norm = (
            block.attention,
            block.attention_norm,
            block.ffn_norm,
        )
        a, ffn = block.attention, block.feed_forward
        three = (a.q_proj, a.k_proj, a.v_proj)
        self.qkv = PackedLinear(torch.cat([p.weight for p in three]), torch.cat([p.bias for p in three]))
        self.o_proj = PackedLinear(a.o_proj.weight, a.o_proj.bias)
        self.up_proj = PackedLinear(ffn.up_proj.weight, ffn.up_proj.bias, activation=activation)
        self.down_proj = PackedLinear(ffn.down_proj.weight, ffn.down_proj.bias)

    def __call__(self, x: Tensor, mask: Tensor | None) -> Tensor:
        a = self.attention
        heads = self.qkv(x).view(*x.shape[:2], 3, a.n_heads, a.head_dim).transpose(1, 3)  # [B, H, 3, T, E]
        q, k, v = heads.unbind(2)
        out = a.attend(q, k, v, mask=mask, is_causal=False).transpose(1, 2).flatten(-2)  # [B, T, D]
        x = _norm(self.attention_norm, self.o_proj(out, x))
        return _norm(self.ffn_norm, self.down_proj(self.up_proj(x), x))


def _norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """The layer in one pass, whose statistics are float32 for 16-bit numbers too."""
    return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)


def _state(model: Bert) -> list[tuple[int, int]]:
    """What changes when a parameter does, by being written to or replaced."""
    return [(p.data_ptr(), p._version) for p in model.blocks.parameters()]
