"""The fast form of an encoder against the model itself."""

from __future__ import annotations

import logging

import pytest
import torch
from tests.nn.adapters import WAYS, Doubled
from torch.nn.modules.module import register_module_forward_hook

from wordloom.errors import ConfigError
from wordloom.kernels import acceptance
from wordloom.models import Bert, BertConfig, RobertaConfig, build
from wordloom.models.fast_encoder import FastEncoder
from wordloom.nn import Attention, Linear

SIZES = {"vocab_size": 50, "max_seq_len": 40, "dim": 64, "n_layers": 3, "n_heads": 4, "type_vocab_size": 2}

pytestmark = pytest.mark.skipif(
    not torch._C._has_mkldnn or not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN"
)


def made(family=BertConfig, **settings):
    model = build(family(**{**SIZES, **settings}), generator=torch.Generator().manual_seed(1)).eval()
    with torch.no_grad():  # far from the start of training, where blocks do next to nothing
        for p in model.parameters():
            p.mul_(4.0 if p.dim() == 2 else 1.0).add_(0.05 * torch.randn_like(p))
    return model


def rows(B=5, T=33):
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(2, 50, (B, T), generator=generator)
    segments = torch.randint(0, 2, (B, T), generator=generator)
    attend = torch.arange(T) < torch.tensor([T, 1, 7, T - 1, 16])[:, None]
    return tokens, segments, attend


@pytest.mark.parametrize("family", [BertConfig, RobertaConfig])
@pytest.mark.parametrize("activation", ["gelu", "relu", "gelu_tanh", "identity"])
def test_the_hidden_states_are_the_models(family, activation):
    model = made(family, activation=activation)
    tokens, segments, attend = rows()
    fast = FastEncoder(model)
    for n_layers in (None, 0, 2):
        for mask in (attend, None):
            with torch.no_grad():
                expected = model.hidden(tokens, segments, mask, n_layers=n_layers)
            found = fast.hidden(tokens, segments, mask, n_layers=n_layers)
            seen = attend if mask is not None else torch.ones_like(attend)
            torch.testing.assert_close(found[seen], expected[seen], atol=1e-5, rtol=1e-5)


def test_bfloat16_stays_near():
    model = made()
    tokens, segments, attend = rows()
    with torch.no_grad():
        expected = model.hidden(tokens, segments, attend)[attend]
    model.bfloat16()
    if not FastEncoder.takes(model):
        pytest.skip("no bfloat16 products on this CPU")
    found = FastEncoder(model).hidden(tokens, segments, attend)[attend].float()
    assert torch.cosine_similarity(found, expected, dim=-1).min() > 0.999


def test_it_knows_when_the_model_has_moved_on():
    model = made()
    fast = FastEncoder(model)
    assert fast.follows(model)
    assert not fast.follows(made())
    with torch.no_grad():
        model.blocks[1].attention.q_proj.weight += 1.0
    assert not fast.follows(model)
    assert not FastEncoder(model).follows(model.double())


def test_a_hook_on_all_modules_is_called():
    model = made()
    with register_module_forward_hook(lambda *_given: None):
        assert not FastEncoder.takes(model)
    assert FastEncoder.takes(model)


def test_what_it_does_not_take():
    assert FastEncoder.takes(made())
    assert not FastEncoder.takes(made(activation="silu"))
    assert not FastEncoder.takes(made().double())
    assert not FastEncoder.takes(torch.nn.Linear(2, 2))
    hooked, replaced, mixed = made(), made(), made()
    hooked.blocks[0].attention.register_forward_hook(lambda *given: None)
    replaced.blocks[1].feed_forward.up_proj = torch.nn.Linear(64, 256)
    mixed.blocks[1].bfloat16()
    assert not any(map(FastEncoder.takes, (hooked, replaced, mixed)))
    with torch.inference_mode():
        assert not FastEncoder.takes(build(BertConfig(**SIZES)))


def test_another_activation_or_kind_of_block_is_the_models_own_to_compute():
    assert FastEncoder.takes(made())
    model = made()
    model.blocks[1].feed_forward.activation = torch.relu
    assert not FastEncoder.takes(model)
    model = made()
    model.blocks[2].ffn_norm.__class__ = type("Another", (type(model.blocks[2].ffn_norm),), {})
    assert not FastEncoder.takes(model)


def test_any_modification_of_a_block_is_the_models_own_to_compute(caplog):
    caplog.set_level(logging.DEBUG, "wordloom")
    acceptance._log_once.cache_clear()
    layers = ("attention.q_proj", "attention.o_proj", "feed_forward.up_proj", "feed_forward.down_proj")
    for name in layers:
        for modify in WAYS.values():
            model = made(n_layers=2)
            parent, _, child = name.rpartition(".")
            modify(model.blocks[1].get_submodule(parent), child)
            assert not FastEncoder.takes(model)
    assert len(caplog.records) == len(layers) * len(WAYS)
    for norm in ("attention_norm", "ffn_norm"):
        model = made(n_layers=2)
        weight = getattr(model.blocks[0], norm).weight
        getattr(model.blocks[0], norm).weight = Doubled(weight.detach())
        assert not FastEncoder.takes(model)
    model = made(n_layers=2)
    model.blocks[0].attention = Attention(dim=64, n_heads=8, bias=True)  # other heads, equal shapes
    assert not FastEncoder.takes(model)
    model = made(n_layers=2)
    model.blocks[0].attention.q_proj = Linear(64, 64, bias=False)
    assert not FastEncoder.takes(model)
    model = made(n_layers=2)
    model.__class__ = type("Another", (Bert,), {})
    assert not FastEncoder.takes(model)


@pytest.mark.parametrize("family", [BertConfig, RobertaConfig])
def test_a_segment_past_the_table_is_one_clear_line(family):
    tokens, segments, attend = rows()
    with pytest.raises(ConfigError, match="segment 2 is given and the model has 2, numbered from 0"):
        made(family)(tokens, segments=segments + 1, attend=attend)
