"""The recurrent language model: its own dropouts, initialisation, state and settings."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wordloom.errors import ConfigError
from wordloom.models import RNN, RNNConfig, build, config_from, context_limit
from wordloom.models.building.cost import flops_per_token
from wordloom.nn.cache import RecurrentCache
from wordloom.nn.recurrent import CELLS

SHAPE: dict[str, Any] = {"vocab_size": 29, "dim": 16, "hidden_dim": 20, "n_layers": 2}


def made(**settings: Any) -> RNN:
    return build(RNNConfig(**{**SHAPE, **settings}), generator=torch.Generator().manual_seed(0))


def tokens_of(*shape: int) -> Tensor:
    return torch.randint(0, 29, shape, generator=torch.Generator().manual_seed(1))


class Plain(nn.Module):
    """The model as PyTorch's users write it."""

    def __init__(self, model: RNN) -> None:
        super().__init__()
        c = model.config
        self.embedding = nn.Embedding(c.vocab_size, c.dim)
        self.lstm = nn.LSTM(c.dim, c.hidden_dim or c.dim, c.n_layers, batch_first=True)
        self.head = nn.Linear(c.hidden_dim or c.dim, c.vocab_size)
        with torch.no_grad():
            self.embedding.weight.copy_(model.token_embedding.weight)
            self.head.load_state_dict(model.lm_head.state_dict())
            for i, block in enumerate(model.blocks):
                getattr(self.lstm, f"weight_ih_l{i}").copy_(block.input_proj.weight)
                getattr(self.lstm, f"weight_hh_l{i}").copy_(block.hidden_proj.weight)
                getattr(self.lstm, f"bias_ih_l{i}").copy_(block.input_proj.bias)
                getattr(self.lstm, f"bias_hh_l{i}").zero_()

    def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        x, state = self.lstm(self.embedding(tokens), state)
        return self.head(x), state


def test_it_is_the_model_that_pytorchs_users_write() -> None:
    model, tokens = made(), tokens_of(3, 12)
    plain = Plain(model)
    ours, (theirs, _) = model(tokens), plain(tokens)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for logits in (ours, theirs):
        F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    pairs = [
        (model.token_embedding.weight, plain.embedding.weight),
        (model.lm_head.weight, plain.head.weight),
    ]
    for i, block in enumerate(model.blocks):
        pairs += [(block.input_proj.weight, getattr(plain.lstm, f"weight_ih_l{i}")),
                  (block.hidden_proj.weight, getattr(plain.lstm, f"weight_hh_l{i}")),
                  (block.input_proj.bias, getattr(plain.lstm, f"bias_hh_l{i}"))]  # fmt: skip
    for mine, other in pairs:
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_the_cache_stays_as_large_as_it_is() -> None:
    model = made().eval()
    cache = model.new_cache(2, 10)
    assert isinstance(cache, RecurrentCache)
    sizes = set()
    for _ in range(5):
        model(tokens_of(2, 7), cache=cache)
        sizes.add(tuple(part.shape for layer in cache.layers for part in layer.state or ()))
    assert cache.lengths.eq(35).all()
    assert sizes == {((2, 20),) * 4}
    assert context_limit(model.config) is None


def test_the_forget_gate_starts_open_and_the_others_at_zero() -> None:
    for block in made(forget_bias=1.5).blocks:
        bias = block.input_proj.bias
        assert torch.equal(bias[block.rows("f")], torch.full((20,), 1.5))
        assert all(not bias[block.rows(gate)].any() for gate in "igo")
    for block in made(init_scale=0.1, forget_bias=1.0).blocks:
        assert (block.input_proj.bias[block.rows("f")] - 1).abs().max() <= 0.1
        assert block.input_proj.bias[block.rows("i")].any()
    model = made(init_scale=0.05, forget_bias=0.0)
    for name, parameter in model.named_parameters():
        assert parameter.abs().max() <= 0.05, name
        assert parameter.abs().max() > 0.03, name


def test_a_layer_of_relus_begins_as_the_identity() -> None:
    for block in made(cell="rnn_relu").blocks:
        assert torch.equal(block.hidden_proj.weight, torch.eye(20))
        assert 0.0008 < block.input_proj.weight.std() < 0.0012
    for block in made(cell="rnn_tanh").blocks:
        assert block.hidden_proj.weight.abs().max() <= 1 / math.sqrt(20)


@torch.no_grad()
def test_a_state_that_adds_up_what_it_reads_stays_small_at_first() -> None:
    model, tokens = made(cell="rnn_relu").eval(), tokens_of(1, 5001)
    late = F.cross_entropy(model(tokens[:, :-1])[0, -500:], tokens[0, -500:])
    assert late < math.log(29) + 0.1


@pytest.mark.parametrize(
    "setting", ["dropout", "embedding_dropout", "output_dropout", "word_dropout", "weight_drop"]
)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@torch.no_grad()
def test_each_dropout_acts_in_training_alone(setting: str, cell: str) -> None:
    model, plain, tokens = made(cell=cell, **{setting: 0.5}), made(cell=cell).eval(), tokens_of(2, 9)
    model.eval()
    assert torch.equal(model(tokens), plain(tokens))
    model.train()
    torch.manual_seed(0)
    first, second = model(tokens), model(tokens)
    assert (first - second).abs().max() > 1e-4
    torch.manual_seed(0)
    assert torch.equal(model(tokens), first)


@torch.no_grad()
def test_variational_dropout_drops_the_same_components_at_every_step() -> None:
    tokens = tokens_of(3, 40)
    for variational in (True, False):
        model = made(output_dropout=0.5, variational=variational).train()
        torch.manual_seed(0)
        gone = model.hidden(tokens) == 0  # [B, T, R]
        assert bool((gone.all(1) | ~gone.any(1)).all()) == variational
        assert 0.2 < gone.float().mean() < 0.8
    assert not torch.equal(gone[0], gone[1])  # rows drop their own


@torch.no_grad()
def test_word_dropout_takes_a_word_out_wherever_it_stands() -> None:
    model, tokens = made(word_dropout=0.5).train(), tokens_of(4, 50)
    torch.manual_seed(0)
    x = model._embedded(tokens)
    gone = (x == 0).all(-1)  # [B, T]
    for word in range(29):
        assert gone[tokens == word].unique().numel() == 1
    assert 0.2 < gone.float().mean() < 0.8
    torch.testing.assert_close(x[~gone], 2 * model.token_embedding(tokens)[~gone])


@torch.no_grad()
def test_documents_without_positions_begin_where_their_number_changes() -> None:
    model, tokens = made().eval(), tokens_of(2, 10)
    documents = torch.tensor([[3] * 4 + [5] * 6, [1] * 10])
    apart = model(tokens, documents=documents)
    torch.testing.assert_close(apart[0, 4:], model(tokens[:1, 4:])[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(apart[1], model(tokens[1:])[0], rtol=1e-5, atol=1e-6)


def test_a_narrow_head_is_tied_through_a_projection() -> None:
    model = made(tie_embeddings=True)
    assert model.lm_head.weight is model.token_embedding.weight
    assert model.output_proj is not None
    assert made(tie_embeddings=True, hidden_dim=16).output_proj is None
    assert made().output_proj is None


@pytest.mark.parametrize("cell", CELLS)
def test_operations_are_two_for_every_weight_of_a_matrix(cell: str) -> None:
    model = made(cell=cell)
    matrices = sum(
        p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embedding" not in name
    )
    assert flops_per_token(model, context=7).forward == 2 * matrices


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cell": "lsmt"}, "unknown cell 'lsmt'; did you mean 'lstm'"),
        ({"cell": "gru", "peephole": True}, "peephole belongs to an LSTM; cell 'gru' has none"),
        ({"cell": "gru", "projection": 4}, "projection belongs to an LSTM"),
        ({"cell": "gru", "forget_bias": 2.0}, "forget_bias belongs to an LSTM"),
        ({"cell": "lstm_1997", "forget_bias": 2.0}, "has no forget gate"),
        ({"cell": "LSTM"}, "unknown cell 'LSTM'; did you mean 'lstm'\\?"),
        ({"cell": "rnn"}, "unknown cell 'rnn'; did you mean 'rnn_tanh'\\?"),
        ({"cell": "Elman"}, "unknown cell 'Elman'; did you mean 'rnn_tanh'\\?"),
        ({"bias": False, "forget_bias": 0.0}, "forget_bias is a bias, and bias is false"),
        ({"dim": 8, "projection": 8}, "projection narrows hidden_dim 8, so it is below that, not 8"),
        ({"bidirectional": True}, "\\('bidirectional' belongs to seq2seq, rnn_classifier\\)"),
        ({"weight_drop": 1.0}, "weight_drop is a share"),
        ({"word_dropout": -0.1}, "word_dropout is a share"),
        ({"init_scale": 0.0}, "init_scale must be above 0"),
        ({"forget_bias": math.inf}, "forget_bias must be a finite number"),
        ({"hidden_size": 3}, "it is called 'hidden_dim' here"),
        ({"max_seq_len": 30}, "unknown setting 'max_seq_len'"),
        ({"n_heads": 2}, "unknown setting 'n_heads'"),
        ({"rnn_type": "lstm"}, "it is called 'cell' here"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config_from("rnn", **settings)


def test_a_forget_bias_as_it_is_anyway_harms_no_cell() -> None:
    assert config_from("rnn", cell="gru", forget_bias=1.0).cell == "gru"
