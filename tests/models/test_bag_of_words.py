"""The model against the dense formula, and on disk."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from tests.nn.adapters import WAYS, matrix
from torch.nn import functional as F

from wordloom.data.bags.vectorizer import BagVectorizer, smooth_idf, weighted
from wordloom.data.batches.labelled import BagBatches
from wordloom.errors import CheckpointError, ConfigError
from wordloom.models import MODELS, BagOfWordsConfig, build, config_from, family_of
from wordloom.objectives import OBJECTIVES
from wordloom.weights import load_config, load_model, save_model

N, V, C = 31, 17, 3
LABELS = {"0": "low", "1": "middle", "2": "high"}


@pytest.fixture
def counts() -> csr_matrix:
    dense = np.random.default_rng(0).poisson(0.5, (N, V)).astype(np.int32)
    dense[5] = 0
    return csr_matrix(dense)


def model_of(features: str, counts: csr_matrix):
    model = build(BagOfWordsConfig(vocab_size=V, id2label=LABELS, features=features))
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(generator=torch.Generator().manual_seed(1))
    if features == "tfidf":
        model.idf.copy_(torch.from_numpy(smooth_idf(counts)))
    return model


@pytest.mark.parametrize("features", ["counts", "binary", "tfidf"])
def test_logits_and_gradients_are_those_of_the_dense_matrix(counts, features):
    model = model_of(features, counts)
    targets = np.arange(N) % C
    batch = BagBatches(counts, targets, order="sequential").batch(0, N)
    loss = OBJECTIVES["classification"](model, batch)
    loss.total.backward()
    assert loss.count == N
    rows = torch.from_numpy(weighted(counts, features, smooth_idf(counts)).toarray())
    weight, bias = (p.detach().double().requires_grad_() for p in model.parameters())
    logits = rows @ weight.T + bias
    expected = F.cross_entropy(logits, torch.from_numpy(targets), reduction="sum")
    expected.backward()
    torch.testing.assert_close(model(*batch.inputs).double(), logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loss.total.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.classifier.weight.grad.double(), weight.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.classifier.bias.grad.double(), bias.grad, rtol=1e-5, atol=1e-5)
    assert torch.equal(model(*batch.inputs)[5], model.classifier.bias)  # a text without words


def test_unscored_rows_count_for_nothing(counts):
    model = model_of("tfidf", counts)
    targets = np.arange(N) % C
    some = targets.copy()
    some[7:] = -100
    whole = BagBatches(counts, some, order="sequential").batch(0, N)
    part = BagBatches(counts, targets, order="sequential").batch(0, 7)
    a, b = OBJECTIVES["classification"](model, whole), OBJECTIVES["classification"](model, part)
    assert a.count == b.count == 7
    torch.testing.assert_close(a.total, b.total)


def test_parameters_are_as_many_as_the_file_says_and_start_at_zero():
    model = build(BagOfWordsConfig(vocab_size=V, id2label=LABELS))
    assert sum(p.numel() for p in model.parameters()) == C * V + C
    with torch.device("meta"):
        blank = MODELS["bag_of_words"].model(model.config)
    blank.to_empty(device="cpu")
    for tensor in blank.state_dict().values():
        tensor.fill_(torch.nan)
    blank.init_weights()
    assert all(tensor.isfinite().all() for tensor in blank.state_dict().values())
    assert not any(p.any() for p in blank.parameters())
    assert family_of(model.config) == "bag_of_words"


@pytest.mark.parametrize("features", ["counts", "tfidf"])
def test_on_disk_and_back(counts, features, tmp_path):
    model = model_of(features, counts)
    vectorizer = BagVectorizer([f"w{n}" for n in range(V)])
    save_model(model, tmp_path, tokenizer=vectorizer)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "bag_of_words"
    assert config["id2label"] == LABELS
    assert config["label2id"] == {"low": 0, "middle": 1, "high": 2}
    assert "eos_token_id" not in config
    assert not (tmp_path / "generation_config.json").exists()
    assert load_config(tmp_path) == model.config
    again = load_model(tmp_path)
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(again.state_dict()[key], value) for key, value in model.state_dict().items())
    assert ("idf" in again.state_dict()) == (features == "tfidf")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"label2id": {"low": 1, "middle": 0, "high": 2}}, "is not the inverse of id2label"),
        ({"features": "tf-idf"}, "unknown features 'tf-idf'; did you mean 'tfidf'"),
        ({"id2label": {"1": "a", "0": "b"}}, "label2id"),
        ({"vocab_size": 5}, r"classifier\.weight is \[3, 17\], expected \[3, 5\]"),
        ({"id2label": None}, "needs a table id2label"),
    ],
)
def test_a_damaged_config_is_told(counts, tmp_path, change, says):
    save_model(model_of("tfidf", counts), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError, match=says):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"id2label": {"0": "a"}}, "two classes or more"),
        ({"id2label": {"1": "a", "2": "b"}}, "numbered"),
        ({"id2label": {"0": "a", "1": "a"}}, "two classes one name"),
        ({"vocab_size": 0}, "vocab_size must be a whole number above 0"),
        ({"features": "idf"}, "did you mean 'tfidf'"),
        ({"dim": 3}, "unknown setting 'dim' of model family 'bag_of_words'"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(settings, says):
    with pytest.raises(ConfigError, match=says):
        config_from("bag_of_words", **{"vocab_size": V, "id2label": LABELS, **settings})


@pytest.mark.parametrize("features", ["counts", "binary", "tfidf"])
def test_a_modified_classifier_is_called(features, counts):
    ids, weights, offsets = (torch.from_numpy(part) for part in (counts.indices, counts.data, counts.indptr))
    bags = (ids, weights.float(), offsets)
    for way in ("low rank", "parametrized", "tensor subclass"):
        model, twin = model_of(features, counts), model_of(features, counts)
        WAYS[way](model, "classifier")
        with torch.no_grad():
            twin.classifier.weight.copy_(matrix(model.classifier))
        torch.testing.assert_close(model(*bags), twin(*bags), atol=1e-5, rtol=1e-5)
        model(*bags).square().sum().backward()
        assert all(p.grad is not None for p in model.parameters())
