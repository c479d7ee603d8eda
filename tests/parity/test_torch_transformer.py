"""The 2017 Transformer against PyTorch's own ``nn.Transformer``: outputs and gradients, float32."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wordloom.models import TransformerConfig, build
from wordloom.nn import sinusoidal_positions


def model_of(norm_place: str) -> Any:
    """Three blocks write what two have read; all weights away from where they begin."""
    config = TransformerConfig(
        vocab_size=29, max_seq_len=16, dim=16, n_layers=2, n_decoder_layers=3, n_heads=4, attention_bias=True,
        norm_place=norm_place,
    )  # fmt: skip
    model = build(config, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.2, generator=generator))
    return model.train()


def tokens_of(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 29, shape, generator=torch.Generator().manual_seed(seed))


class Torch(nn.Module):
    """PyTorch's own encoder and decoder with the weights of ``model``; it has no embeddings and no head."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        c = model.config
        shape: dict[str, Any] = {
            "d_model": c.dim, "nhead": c.n_heads, "dim_feedforward": c.ffn_dim, "dropout": 0.0,
            "batch_first": True, "norm_first": c.norm_place == "pre", "layer_norm_eps": c.norm_eps,
        }  # fmt: skip
        norms = [nn.LayerNorm(c.dim) if c.norm_place == "pre" else None for _ in range(2)]
        encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**shape), c.n_layers, norms[0], enable_nested_tensor=False
        )
        decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**shape), c.decoder_layers, norms[1])
        self.plain = nn.Transformer(
            c.dim, c.n_heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
        )
        self.pairs: list[tuple[Tensor, list[Tensor]]] = []  # theirs, and ours joined in it
        for layers, blocks in (
            (encoder.layers, model.encoder_blocks),
            (decoder.layers, model.decoder_blocks),
        ):
            for layer, block in zip(layers, blocks, strict=True):
                norms_of = [block.attention_norm, block.ffn_norm]
                self.attention(layer.self_attn, block.attention)
                if hasattr(block, "cross_attention"):
                    self.attention(layer.multihead_attn, block.cross_attention)
                    norms_of.insert(1, block.cross_attention_norm)
                for number, norm in enumerate(norms_of, 1):
                    self.pair(getattr(layer, f"norm{number}"), norm)
                self.pair(layer.linear1, block.feed_forward.up_proj)
                self.pair(layer.linear2, block.feed_forward.down_proj)
        for theirs, ours in zip(norms, (model.encoder_norm, model.final_norm), strict=True):
            if theirs is not None:
                self.pair(theirs, ours)
        with torch.no_grad():
            for stored, parts in self.pairs:
                stored.copy_(torch.cat(parts))
        assert sum(len(theirs.flatten()) for theirs, _ in self.pairs) == sum(
            p.numel() for p in self.parameters()
        )

    def attention(self, theirs: Any, ours: Any) -> None:
        projections = (ours.q_proj, ours.k_proj, ours.v_proj)
        self.pairs.append((theirs.in_proj_weight, [p.weight for p in projections]))
        self.pairs.append((theirs.in_proj_bias, [p.bias for p in projections]))
        self.pair(theirs.out_proj, ours.o_proj)

    def pair(self, theirs: Any, ours: Any) -> None:
        self.pairs += [(theirs.weight, [ours.weight]), (theirs.bias, [ours.bias])]

    def forward(self, x: Tensor, y: Tensor, attend: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(y.shape[1]) != 0
        away = ~attend
        return self.plain(x, y, tgt_mask=causal, src_key_padding_mask=away, memory_key_padding_mask=away)


@pytest.mark.parametrize("norm_place", ["post", "pre"])
def test_it_computes_what_pytorchs_transformer_computes(norm_place: str) -> None:
    model = model_of(norm_place)
    theirs = Torch(model).train()
    source, prefix = tokens_of(3, 9), tokens_of(3, 7, seed=2)
    attend = torch.arange(9) < torch.tensor([[9], [4], [1]])
    table = sinusoidal_positions(16, 16)
    x, y = (model.token_embedding(tokens) * 4 + table[: tokens.shape[1]] for tokens in (source, prefix))
    outputs = (model.hidden(prefix, model.encode(source, attend=attend)), theirs(x, y, attend))
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-5)
    away = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(5))
    parameters = [part for _, parts in theirs.pairs for part in parts]
    ours = torch.autograd.grad((outputs[0] * away).sum(), [model.token_embedding.weight, *parameters])
    embedding, *expected = torch.autograd.grad(
        (outputs[1] * away).sum(), [model.token_embedding.weight, *(stored for stored, _ in theirs.pairs)]
    )
    torch.testing.assert_close(ours[0], embedding, rtol=1e-4, atol=1e-4)
    taken = iter(ours[1:])
    for (_, parts), gradient in zip(theirs.pairs, expected, strict=True):
        joined = torch.cat([next(taken) for _ in parts])
        torch.testing.assert_close(joined, gradient, rtol=1e-4, atol=1e-4)
