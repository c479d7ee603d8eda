"""Loss and gradients follow a head or a recurrent layer that was modified or replaced, in every family."""

from __future__ import annotations

import logging

import pytest
import torch
from tests.nn.adapters import WAYS, matrix
from torch.nn import functional as F

from wordloom.data.batches.causal import CausalBatch
from wordloom.data.batches.labelled import LabelBatch
from wordloom.data.batches.masked import MaskedBatch
from wordloom.data.batches.pairs import PairBatch
from wordloom.kernels import acceptance
from wordloom.models import GPT2Config, TaskConfig, build, config_from
from wordloom.nn.recurrent import Recurrent
from wordloom.objectives import Translation, WithLanguageModel, causal_lm, classification, masked_lm
from wordloom.run.models.embedder import Embedder

V, D, B, T = 29, 16, 3, 7
SHAPE = {"vocab_size": V, "max_seq_len": 12, "dim": D, "n_layers": 1, "n_heads": 2}
FAMILIES = {
    "gpt": config_from("gpt", **SHAPE, output_bias=True),
    "gpt2": config_from("gpt2", **SHAPE),
    "llama": config_from("llama", **SHAPE, hidden_dim=24),
    "rnn": config_from("rnn", vocab_size=V, dim=D, n_layers=1),
    "bert": config_from("bert", **SHAPE, masked_lm_head=True),
    "roberta": config_from("roberta", **SHAPE, masked_lm_head=True),
    "transformer": config_from("transformer", **SHAPE, hidden_dim=24),
    "bert_generation": config_from("bert_generation", **SHAPE),
    "seq2seq": config_from("seq2seq", vocab_size=V, dim=D, attention="dot"),
    "task_model": TaskConfig(body=GPT2Config(**SHAPE), id2label={"0": "no", "1": "yes"}, language_model=True),
}


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(5, V, shape)


def loss_and_logits(family: str, model):
    """The loss that training minimises, and the logits that the loss should come from, with their targets."""
    tokens, targets = ids(B, T), ids(B, T)
    targets[0, 2:4] = -100
    there = torch.ones(B, T, dtype=torch.bool)
    match family:
        case "transformer" | "bert_generation" | "seq2seq":
            loss = Translation()(model, PairBatch(tokens, there, targets.clamp(min=0), targets))
            return loss.total, model(tokens, targets.clamp(min=0), attend=there), targets
        case "bert" | "roberta":
            loss = masked_lm(model, MaskedBatch(tokens, None, there, targets, None))
            return loss.total, model.lm_head(model.mlm_hidden(model.hidden(tokens, None, there))), targets
        case "task_model":
            answers = torch.tensor([0, 1, 1])
            loss = WithLanguageModel(classification, 0.5)(model, LabelBatch((tokens, None, there), answers))
            return loss.total[1] / 0.5, model.body(tokens[:, :-1]), tokens[:, 1:]
        case _:
            loss = causal_lm(model, CausalBatch(tokens, targets, None, None))
            return loss.total, model(tokens), targets


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_follows_a_modified_head(family: str, way: str, caplog) -> None:
    torch.manual_seed(0)
    model = build(FAMILIES[family]).eval()
    owner = model.body if family == "task_model" else model
    torch.manual_seed(1)
    before, *_ = loss_and_logits(family, model)
    WAYS[way](owner, "lm_head")
    acceptance._log_once.cache_clear()
    caplog.set_level(logging.DEBUG, "wordloom")
    torch.manual_seed(1)
    loss, logits, targets = loss_and_logits(family, model)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
    torch.testing.assert_close(loss, expected)
    assert abs(loss.item() - before.item()) > 1e-4
    parameters = [p for p in model.parameters() if p.requires_grad]
    found, wanted = (torch.autograd.grad(x, parameters, allow_unused=True) for x in (loss, expected))
    for f, w in zip(found, wanted, strict=True):
        if w is not None:
            torch.testing.assert_close(f, w, atol=1e-5, rtol=1e-4)
    lines = [r.getMessage() for r in caplog.records if "the language model's head" in r.getMessage()]
    assert len(lines) == 1


def test_an_unmodified_head_keeps_the_fused_loss(monkeypatch) -> None:
    torch.manual_seed(0)
    model = build(FAMILIES["gpt2"])
    called = []
    monkeypatch.setattr(type(model.lm_head), "forward", lambda *given: called.append(1))
    causal_lm(model, CausalBatch(ids(B, T), ids(B, T), None, None)).total.backward()
    assert not called


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["rnn", "seq2seq", "rnn_classifier"])
def test_the_loss_follows_a_modified_recurrent_layer(family: str, way: str) -> None:
    def made():
        torch.manual_seed(0)
        if family != "rnn_classifier":
            return build(FAMILIES[family])
        names = {"0": "no", "1": "yes"}
        model = build(config_from("rnn_classifier", vocab_size=V, id2label=names, dim=D, cell="gru"))
        torch.nn.init.normal_(model.classifier.weight)  # it starts at zero
        return model

    def loss_of(model):
        torch.manual_seed(1)
        if family != "rnn_classifier":
            return loss_and_logits(family, model)[0]
        batch = LabelBatch((ids(B, T), torch.ones(B, T, dtype=torch.bool)), torch.tensor([0, 1, 1]))
        return classification(model, batch).total

    for name in ("input_proj", "hidden_proj"):
        model, twin = made(), made()
        layers, others = ([m for m in x.modules() if isinstance(m, Recurrent)] for x in (model, twin))
        before = loss_of(model)
        WAYS[way](layers[-1], name)
        modified = getattr(layers[-1], name)
        with torch.no_grad():
            getattr(others[-1], name).weight.copy_(matrix(modified))
            if way == "hook" and name == "input_proj":
                others[-1].input_proj.bias.mul_(2)
        loss = loss_of(model)
        torch.testing.assert_close(loss, loss_of(twin))
        assert abs(loss.item() - before.item()) > 1e-4
        loss.backward()
        assert all(p.grad is not None and p.grad.any() for p in modified.parameters())


@pytest.mark.parametrize("tied", [False, True])
def test_the_width_of_hidden_states_is_the_configs_whatever_the_head(tied: bool) -> None:
    config = config_from("rnn", vocab_size=V, dim=D, hidden_dim=20, n_layers=1, tie_embeddings=tied)
    model = build(config)
    assert model.lm_head.in_features == config.output_dim == model.hidden(ids(B, T)).shape[-1]
    model.lm_head = torch.nn.Sequential(model.lm_head)
    assert Embedder(model, None).dim == config.output_dim
    model = build(FAMILIES["gpt2"])
    model.lm_head = torch.nn.Sequential(model.lm_head)
    assert Embedder(model, None).dim == D
