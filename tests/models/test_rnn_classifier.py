"""The recurrent classifier against torch.nn's packed layers, its padding, and on disk."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wordloom.errors import CheckpointError, ConfigError
from wordloom.models import MODELS, RNNClassifierConfig, build, config_from, family_of
from wordloom.models.rnn_classifier import POOLINGS
from wordloom.nn.recurrent import CELLS
from wordloom.weights import load_config, load_model, save_model

V, C = 17, 3
LABELS = {"0": "low", "1": "middle", "2": "high"}
SHAPE: dict[str, Any] = {"vocab_size": V, "id2label": LABELS, "dim": 8, "hidden_dim": 6, "n_layers": 2}
LENGTHS = [5, 1, 7, 0, 3]


def made(**settings: Any) -> Any:
    """A model whose classifier tells classes apart."""
    generator = torch.Generator().manual_seed(0)
    model = build(RNNClassifierConfig(**{**SHAPE, **settings}), generator=generator)
    with torch.no_grad():
        for parameter in model.classifier.parameters():
            parameter.normal_(generator=generator)
    return model.eval()


def rows(T: int = 9) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, V, (len(LENGTHS), T), generator=torch.Generator().manual_seed(1))
    return tokens, torch.arange(T) < torch.tensor(LENGTHS)[:, None]


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("cell", list(CELLS))
def test_a_row_is_read_as_it_would_be_alone(cell: str, bidirectional: bool, pooling: str) -> None:
    model = made(cell=cell, bidirectional=bidirectional, pooling=pooling)
    tokens, attend = rows()
    found = model(tokens, attend)
    other = torch.where(attend, tokens, (tokens + 3) % V)
    assert torch.equal(model(other, attend), found)  # what padding holds is nobody's business
    for row, n in enumerate(LENGTHS):
        if n:
            alone = model(tokens[row : row + 1, :n])[0]
            torch.testing.assert_close(found[row], alone, rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(found[row], model.classifier.bias)


@pytest.mark.parametrize("cell", ["lstm", "gru_reset_after", "rnn_tanh"])
def test_states_and_gradients_are_those_of_torchs_packed_layers(cell: str) -> None:
    model = made(cell=cell)
    kind = {"lstm": nn.LSTM, "gru_reset_after": nn.GRU, "rnn_tanh": nn.RNN}[cell]
    theirs = kind(8, 6, num_layers=2, bidirectional=True, batch_first=True)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
        for i, block in enumerate(model.blocks):
            for reader, end in ((block.forwards, ""), (block.backwards, "_reverse")):
                pairs = {"weight_ih": reader.input_proj.weight, "weight_hh": reader.hidden_proj.weight,
                         "bias_ih": reader.input_proj.bias}  # fmt: skip
                for name, weight in pairs.items():
                    getattr(theirs, f"{name}_l{i}{end}").copy_(weight)
                if reader.candidate_bias is not None:
                    getattr(theirs, f"bias_hh_l{i}{end}")[-6:] = reader.candidate_bias
    tokens, attend = (part[[0, 1, 2, 4]] for part in rows())
    x = model.token_embedding(tokens)
    packed = nn.utils.rnn.pack_padded_sequence(x, attend.sum(1), batch_first=True, enforce_sorted=False)
    _, state = theirs(packed)
    last = (state[0] if cell == "lstm" else state)[-2:]  # [2, B, H]: both directions of the last layer
    expected = model.classifier(torch.cat([last[0], last[1]], dim=-1))
    found = model(tokens, attend)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    weight = model.token_embedding.weight
    ours, reference = (torch.autograd.grad(y.square().sum(), weight)[0] for y in (found, expected))
    torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)


def test_what_a_bidirectional_reader_pools_hangs_on_both_ends() -> None:
    tokens, attend = rows()
    for pooling in POOLINGS:
        model = made(pooling=pooling)
        before = model(tokens, attend)[2]
        for t in (0, 6):
            changed = tokens.clone()
            changed[2, t] = (changed[2, t] + 5) % V
            assert not torch.allclose(model(changed, attend)[2], before, atol=1e-3)


@pytest.mark.parametrize("cell", list(CELLS))
def test_parameters_are_as_many_as_the_file_says_and_all_are_set(cell: str) -> None:
    config = RNNClassifierConfig(**SHAPE, cell=cell)
    with torch.device("meta"):
        model: Any = MODELS["rnn_classifier"].model(config)
    G, D, H, wide = len(CELLS[cell]), 8, 6, 12
    inner = H if cell == "gru_reset_after" else 0  # torch's second bias of the candidate
    layers = sum(2 * (G * H * (n + H) + G * H + inner) for n in (D, wide))
    assert sum(p.numel() for p in model.parameters()) == V * D + layers + C * wide + C
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.fill_(math.nan)
    model.init_weights(torch.Generator().manual_seed(0))
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    tokens, attend = rows()
    assert not model(tokens, attend).any()  # every class is as likely as any other
    assert family_of(config) == "rnn_classifier"


def test_it_learns_what_only_order_tells() -> None:
    torch.manual_seed(0)
    model = build(RNNClassifierConfig(**SHAPE), generator=torch.Generator().manual_seed(0))
    tokens, attend = torch.tensor([[1, 2, 3, 0], [3, 2, 1, 0], [2, 1, 3, 0]]), torch.ones(3, 4).bool()
    attend[:, 3] = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens, attend), torch.arange(3)).backward()
        optimizer.step()
    assert model(tokens, attend).argmax(1).tolist() == [0, 1, 2]


@pytest.mark.parametrize("settings", [{}, {"cell": "gru", "bidirectional": False, "pooling": "max"}])
def test_on_disk_and_back(settings: dict[str, Any], tmp_path: Any) -> None:
    model = made(**settings)
    save_model(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "wordloom-rnn_classifier"
    assert config["id2label"] == LABELS
    assert not (tmp_path / "generation_config.json").exists()
    assert load_config(tmp_path) == model.config
    again = load_model(tmp_path)
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(again.state_dict()[key], value) for key, value in model.state_dict().items())
    (tmp_path / "config.json").write_text(json.dumps({**config, "pooling": "first"}))
    with pytest.raises(CheckpointError, match="unknown pooling 'first'; allowed: last, mean, max"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cell": "lsmt"}, "unknown cell 'lsmt'; did you mean 'lstm'"),
        ({"pooling": "lost"}, "unknown pooling 'lost'; did you mean 'last'"),
        ({"dropout": 1.0}, "dropout is a share"),
        ({"weight_drop": 1.0}, "weight_drop is a share"),
        ({"cell": "gru", "forget_bias": 2.0}, "has no forget gate"),
        ({"id2label": {"0": "a"}}, "two classes or more"),
        ({"hidden_size": 3}, "it is called 'hidden_dim' here"),
        ({"bidirectional": "yes"}, "takes bool, not 'yes'"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config_from("rnn_classifier", **{**SHAPE, **settings})
