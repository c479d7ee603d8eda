"""Leaves against torch.nn and transformers' own modules: forward and gradient, float32, 1e-5."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP, GPT2Attention
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from wordloom.nn import (
    ACTIVATIONS,
    Attention,
    FeedForward,
    GatedFeedForward,
    LayerNorm,
    RMSNorm,
    Rotary,
    Visibility,
    apply_rotary,
    causal_mask,
)
from wordloom.weights.formats import ACTIVATION_NAMES

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
LLAMA = {"hidden_size": 24, "intermediate_size": 20, "num_attention_heads": 4, "max_position_embeddings": 16}


def scramble(*modules: nn.Module) -> None:
    """The same values under the same names, of a size that biases and gains show."""
    torch.manual_seed(0)
    first, *rest = modules
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    for module in rest:
        module.load_state_dict(first.state_dict())


Pairs = list[tuple[list[Tensor], Tensor]]  # parameters of ours, joined, and the one of theirs


def assert_same(x: Tensor, ours: Any, theirs: Any, pairs: Pairs, *, conv1d: bool = False) -> None:
    """Outputs, gradients of the input and of each pair of parameters; ``conv1d``: theirs are [in, out]."""
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [ours(inputs[0]), theirs(inputs[1])]
    torch.testing.assert_close(*outputs, **TOLERANCE)
    weights = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(2))
    for out in outputs:
        (out * weights / out.numel() ** 0.5).sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, **TOLERANCE)
    for mine, other in pairs:
        joined = torch.cat([parameter.grad for parameter in mine])
        torch.testing.assert_close(joined.t() if conv1d else joined, other.grad, **TOLERANCE)


def same_names(ours: nn.Module, theirs: nn.Module) -> Pairs:
    others = dict(theirs.named_parameters())
    assert set(others) == {name for name, _ in ours.named_parameters()}
    return [([parameter], others[name]) for name, parameter in ours.named_parameters()]


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(bias: bool) -> None:
    ours, theirs = LayerNorm(24, eps=1e-3, bias=bias), nn.LayerNorm(24, eps=1e-3, bias=bias)
    scramble(ours, theirs)
    assert_same(torch.randn(3, 5, 24), ours, theirs, same_names(ours, theirs))


@pytest.mark.parametrize("scale", [1.0, 1e-3])  # small inputs, where the place of eps shows
def test_rms_norm(scale: float) -> None:
    ours, theirs = RMSNorm(24, eps=1e-5), LlamaRMSNorm(24, eps=1e-5)
    scramble(ours, theirs)
    assert_same(scale * torch.randn(3, 5, 24), ours, theirs, same_names(ours, theirs))


@pytest.mark.parametrize(("name", "theirs"), ACTIVATION_NAMES.items())
def test_activations(name: str, theirs: str) -> None:
    assert_same(torch.linspace(-6, 6, 101), ACTIVATIONS[name](), ACT2FN[theirs], [])


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_pytorch_tanh", "relu"])
@pytest.mark.parametrize("bias", [True, False])
def test_gated_feed_forward(act: str, bias: bool) -> None:
    name = "gelu_tanh" if act == "gelu_pytorch_tanh" else act
    ours = GatedFeedForward(dim=24, hidden_dim=20, activation=name, bias=bias)
    theirs = LlamaMLP(LlamaConfig(**LLAMA, hidden_act=act, mlp_bias=bias))
    scramble(ours, theirs)
    assert_same(torch.randn(2, 5, 24), ours, theirs, same_names(ours, theirs))


@pytest.mark.parametrize("act", ["gelu_new", "gelu", "relu", "silu"])
def test_feed_forward(act: str) -> None:
    name = "gelu_tanh" if act == "gelu_new" else act
    ours = FeedForward(dim=24, hidden_dim=20, activation=name)
    theirs = GPT2MLP(20, GPT2Config(n_embd=24, n_head=4, activation_function=act, resid_pdrop=0.0))
    scramble(ours)
    with torch.no_grad():
        for mine, other in ((ours.up_proj, theirs.c_fc), (ours.down_proj, theirs.c_proj)):
            other.weight.copy_(mine.weight.t())
            other.bias.copy_(mine.bias)
    pairs = [([ours.up_proj.weight], theirs.c_fc.weight), ([ours.up_proj.bias], theirs.c_fc.bias)]
    pairs += [([ours.down_proj.weight], theirs.c_proj.weight), ([ours.down_proj.bias], theirs.c_proj.bias)]
    assert_same(torch.randn(2, 5, 24), ours, theirs, pairs, conv1d=True)


ROPES = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "theta": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 12,
    },
}


@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("head_dim", [6, 32])
@pytest.mark.parametrize("length", [5, 40])  # within and past the trained context of 16
def test_rotary(kind: str, head_dim: int, length: int) -> None:
    rope = ROPES[kind]
    theirs = LlamaRotaryEmbedding(LlamaConfig(**LLAMA, head_dim=head_dim, rope_parameters=dict(rope)))
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    if kind == "dynamic":
        scaling["original_max_position_embeddings"] = 16
    ours = Rotary(head_dim=head_dim, theta=rope["rope_theta"], scaling=scaling)
    positions = torch.arange(length)[None].flip(1)
    cos, sin = ours.angles(positions)
    q, k = torch.randn(2, 1, 3, length, head_dim).unbind(0)
    expected_cos, expected_sin = theirs(q, positions)
    torch.testing.assert_close(torch.cat([cos, cos], dim=-1), expected_cos, **TOLERANCE)
    torch.testing.assert_close(torch.cat([sin, sin], dim=-1), expected_sin, **TOLERANCE)
    expected = apply_rotary_pos_emb(q, k, expected_cos, expected_sin)
    for x, turned in zip((q, k), expected, strict=True):
        torch.testing.assert_close(apply_rotary(x, cos, sin), turned, **TOLERANCE)

    def turned_by_theirs(x: Tensor) -> Tensor:
        return apply_rotary_pos_emb(x, x, expected_cos, expected_sin)[0]

    assert_same(q, lambda x: apply_rotary(x, cos, sin), turned_by_theirs, [])


@pytest.mark.parametrize("backend", ["auto", "exact"])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("head_dim", "bias"), [(6, False), (10, True)])
def test_llama_attention(backend: str, kv_heads: int, head_dim: int, bias: bool) -> None:
    config = LlamaConfig(**LLAMA, num_key_value_heads=kv_heads, head_dim=head_dim, attention_bias=bias)
    config._attn_implementation = "eager"
    theirs = LlamaAttention(config, layer_idx=0)
    ours = Attention(dim=24, n_heads=4, n_kv_heads=kv_heads, head_dim=head_dim, bias=bias)
    ours.backend = backend
    scramble(ours, theirs)
    T = 7
    visibility = Visibility(causal=True, real_keys=torch.tensor([[1] * T, [1, 0, *[1] * (T - 2)]]).bool())
    mask = visibility.mask(T, T, device=torch.device("cpu"))
    additive = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    positions = torch.arange(T)[None]
    angles = Rotary(head_dim=head_dim).angles(positions)
    their_angles = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    assert_same(
        torch.randn(2, T, 24),
        lambda x: ours(x, visibility=visibility, rotary=angles),
        lambda x: theirs(x, position_embeddings=their_angles, attention_mask=additive)[0],
        same_names(ours, theirs),
    )


@pytest.mark.parametrize("backend", ["auto", "exact"])
def test_gpt2_attention(backend: str) -> None:
    config = GPT2Config(n_embd=24, n_head=4, attn_pdrop=0.0, resid_pdrop=0.0)
    config._attn_implementation = "eager"
    theirs = GPT2Attention(config, layer_idx=0)
    ours = Attention(dim=24, n_heads=4, bias=True)
    ours.backend = backend
    scramble(ours)
    projections = [ours.q_proj, ours.k_proj, ours.v_proj]
    with torch.no_grad():
        theirs.c_attn.weight.copy_(torch.cat([layer.weight for layer in projections]).t())
        theirs.c_attn.bias.copy_(torch.cat([layer.bias for layer in projections]))
        theirs.c_proj.weight.copy_(ours.o_proj.weight.t())
        theirs.c_proj.bias.copy_(ours.o_proj.bias)
    additive = torch.zeros(7, 7).masked_fill(~causal_mask(7, 7), torch.finfo(torch.float32).min)
    assert_same(
        torch.randn(2, 7, 24),
        lambda x: ours(x, visibility=Visibility(causal=True)),
        lambda x: theirs(x, attention_mask=additive)[0],
        [
            ([layer.weight for layer in projections], theirs.c_attn.weight),
            ([layer.bias for layer in projections], theirs.c_attn.bias),
            ([ours.o_proj.weight], theirs.c_proj.weight),
            ([ours.o_proj.bias], theirs.c_proj.bias),
        ],
        conv1d=True,
    )


@pytest.mark.parametrize("backend", ["auto", "exact"])
@pytest.mark.parametrize("context_dim", [None, 15])
def test_torch_multihead_attention(backend: str, context_dim: int | None) -> None:
    """Self- and cross-attention, with keys that take no part (torch's own module wants them True)."""
    theirs = nn.MultiheadAttention(24, 4, kdim=context_dim, vdim=context_dim, batch_first=True)
    ours = Attention(dim=24, n_heads=4, context_dim=context_dim, bias=True)
    ours.backend = backend
    scramble(ours)
    projections = [ours.q_proj, ours.k_proj, ours.v_proj]
    with torch.no_grad():
        if context_dim is None:
            theirs.in_proj_weight.copy_(torch.cat([layer.weight for layer in projections]))
        else:
            for name, layer in zip("qkv", projections, strict=True):
                getattr(theirs, f"{name}_proj_weight").copy_(layer.weight)
        theirs.in_proj_bias.copy_(torch.cat([layer.bias for layer in projections]))
        theirs.out_proj.load_state_dict(ours.o_proj.state_dict())
    context = None if context_dim is None else torch.randn(2, 9, context_dim)
    S = 5 if context is None else 9
    attend = torch.arange(S) < torch.tensor([[S], [S - 2]])

    def theirs_on(x: Tensor) -> Tensor:
        source = x if context is None else context
        return theirs(x, source, source, key_padding_mask=~attend)[0]

    pairs = same_names(ours.o_proj, theirs.out_proj)
    pairs.append(([layer.bias for layer in projections], theirs.in_proj_bias))
    if context_dim is None:
        pairs.append(([layer.weight for layer in projections], theirs.in_proj_weight))
    else:
        for name, layer in zip("qkv", projections, strict=True):
            pairs.append(([layer.weight], getattr(theirs, f"{name}_proj_weight")))
    assert_same(
        torch.randn(2, 5, 24),
        lambda x: ours(x, context=context, visibility=Visibility(real_keys=attend)),
        theirs_on,
        pairs,
    )
