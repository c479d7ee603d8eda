"""Initialisation fills everything, or says what it does not fill."""

from __future__ import annotations

import pytest
import torch
from tests.models.test_modified_layers import FAMILIES
from torch import nn

from wordloom.errors import ConfigError
from wordloom.models import (
    BagOfWordsConfig,
    GPTConfig,
    RNNClassifierConfig,
    TransformerConfig,
    build,
    config_from,
    skeleton,
)

LABELS = {"0": "no", "1": "yes"}
EVERY = {
    **FAMILIES,
    "bag_of_words": BagOfWordsConfig(vocab_size=11, id2label=LABELS),
    "rnn_classifier": RNNClassifierConfig(vocab_size=11, id2label=LABELS, dim=8),
    "bert-learnt": config_from(
        "bert", vocab_size=11, max_seq_len=8, dim=8, n_layers=1, n_heads=2, masked_lm_head=True,
        next_sentence_head=True, tie_embeddings=False, activation="swish_learnt",
    ),
    "transformer-learned": config_from(
        "transformer", vocab_size=11, max_seq_len=8, dim=8, n_layers=1, n_heads=2, hidden_dim=8,
        positions="learned", norm_place="pre",
    ),
}  # fmt: skip
UNIFORM = ("rnn", "seq2seq", "rnn_classifier")  # whose rule for layers, "uniform", covers what is added there


@pytest.mark.parametrize("name", EVERY)
def test_a_parameter_or_buffer_without_a_rule_is_named(name):
    skeleton(EVERY[name]).init_weights()  # on the meta device there is nothing to fill
    model = skeleton(EVERY[name]).to_empty(device="cpu")
    model.tie_weights()
    for tensor in (*model.parameters(), *model.buffers()):
        nn.init.constant_(tensor, torch.nan)
    model.init_weights()
    assert all(tensor.isfinite().all() for tensor in (*model.parameters(), *model.buffers()))
    model.register_buffer("seen", torch.zeros(3))
    with pytest.raises(ConfigError, match=f"{type(model).__name__} has no rule for seen; fill"):
        model.init_weights()
    del model.seen
    inner = next(module for module in model.modules() if isinstance(module, nn.Linear))
    inner.register_parameter("extra", nn.Parameter(torch.full((3,), torch.nan)))
    if name in UNIFORM:
        model.init_weights()
        assert inner.extra.isfinite().all()
    else:
        with pytest.raises(ConfigError, match=r"has no rule for [\w.]*extra; fill"):
            model.init_weights()


def test_sinusoidal_positions_of_an_odd_size_are_refused_at_once():
    for config in (GPTConfig, TransformerConfig):
        with pytest.raises(ConfigError, match="even"):
            config(dim=15, n_heads=3, positions="sinusoidal")


def test_inference_tensors_are_filled_unchecked():
    with torch.inference_mode():
        assert build(EVERY["gpt2"]).lm_head.weight.std() > 0
