"""The recurrent encoder-decoder against a reading of the papers' equations, and what must hold of it."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.models.seq2seq_reading import SHAPE, N, Reading, S, T, V, ids, made, padded
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from wordloom.cli.inspect.parameters import print_parameters
from wordloom.errors import ConfigError
from wordloom.inspect import parameter_table
from wordloom.models import Seq2Seq, Seq2SeqConfig, build, config_from, context_limit, skeleton
from wordloom.models.building.cost import flops_per_token
from wordloom.nn.dropout import dropout
from wordloom.nn.recurrent import CELLS
from wordloom.weights import load_model, load_state, save_model

WAYS: list[dict[str, Any]] = [  # every way of reading the source
    *({"feed_context": fed, "deep_output": deep} for fed in (False, True) for deep in (False, True)),
    *(
        {"attention": scorer, "deep_output": deep, **way}
        for scorer in ("dot", "general", "additive")
        for deep in (False, True)
        for way in ({"query": "previous"}, {}, {"input_feeding": True})
    ),
]
EVERY_WAY = pytest.mark.parametrize(
    "way", WAYS, ids=lambda way: ", ".join(f"{k}={v}" for k, v in way.items())
)
EVERY_CELL = pytest.mark.parametrize("cell", CELLS)
MODELS_TRIED: list[dict[str, Any]] = [  # a few that differ in everything
    {"reverse_source": True, "cell": "lstm", "n_layers": 3},
    {"feed_context": True, "cell": "gru", "bidirectional": True},
    {"attention": "additive", "query": "previous", "cell": "gru_reset_after", "bidirectional": True},
    {"attention": "dot", "cell": "rnn_tanh", "tie_embeddings": True},
    {"attention": "general", "input_feeding": True, "bidirectional": True, "memory_projection": True},
    {"attention": "additive", "attention_dim": 7, "cell": "lstm_1997", "reverse_source": True,
     "deep_output": True, "tie_embeddings": True, "output_bias": False, "bias": False},
]  # fmt: skip
SOME = pytest.mark.parametrize("way", MODELS_TRIED, ids=range(len(MODELS_TRIED)))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def compare(model: Seq2Seq) -> None:
    """Logits, weights and every gradient, of sources of several lengths."""
    (source, attend), prefix = padded(S, 1, 4), ids(V, 3, T)
    logits = model(source, prefix, attend=attend)
    read = [
        Reading(model)(row[real].tolist(), words.tolist())
        for row, real, words in zip(source, attend, prefix, strict=True)
    ]
    expected = torch.stack([row for row, _ in read])
    close(logits, expected)
    weigh = torch.randn(logits.shape, generator=torch.Generator().manual_seed(3))
    found, wanted = (
        torch.autograd.grad((each * weigh).sum(), [*model.parameters()]) for each in (logits, expected)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    if model.config.attention != "none":
        weights = model.alignment(source, prefix, attend)
        for row, (_, theirs) in zip(weights, read, strict=True):
            close(row, F.pad(theirs, (0, S - theirs.shape[1])))


@EVERY_WAY
@EVERY_CELL
def test_it_is_the_papers_equations(way: dict[str, Any], cell: str) -> None:
    bidirectional = (WAYS.index(way) + list(CELLS).index(cell)) % 2 == 1  # every way and every cell has both
    narrow = bidirectional and way.get("attention") == "dot"
    compare(made(cell=cell, bidirectional=bidirectional, memory_projection=narrow, **way))


@SOME
def test_it_is_the_papers_equations_in_other_settings(way: dict[str, Any]) -> None:
    compare(made(**way))


@SOME
@torch.no_grad()
def test_padding_and_other_rows_change_nothing(way: dict[str, Any]) -> None:
    model, prefix = made(**way), ids(V, 4, T)
    source, attend = padded(3, S, 1, 4)
    logits = model(source, prefix, attend=attend)
    for row in range(4):
        close(logits[row], model(source[row][attend[row]][None], prefix[row][None])[0])
    wider = F.pad(source, (0, 3), value=5), F.pad(attend, (0, 3))
    close(model(wider[0], prefix, attend=wider[1]), logits)
    other = torch.where(attend, source, (source + 3) % N)
    close(model(other, prefix, attend=attend), logits)
    order = torch.tensor([2, 0, 3, 1])
    close(model(source[order], prefix[order], attend=attend[order]), logits[order])
    longer = torch.cat([prefix, ids(V, 4, 2)], dim=1)
    close(model(source, longer, attend=attend)[:, :T], logits)  # no step sees a later one


@SOME
@given(data=st.data())
@settings(max_examples=8, deadline=None)
@torch.no_grad()
def test_cached_equals_uncached_for_any_chunking_and_after_select(
    way: dict[str, Any], data: st.DataObject
) -> None:
    model, (source, attend) = made(**way), padded(4, S, 2)
    chunks = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    prefix, memory = (
        ids(V, 3, sum(chunks), seed=data.draw(st.integers(0, 99))),
        model.encode(source, attend=attend),
    )
    cache, rows, start = model.new_cache(3, 4), torch.arange(3), 0
    sizes = set()
    for chunk in chunks:
        part = model.hidden(prefix[rows, start : start + chunk], memory, cache=cache)
        start += chunk
        close(part, model.hidden(prefix[rows, :start], memory)[:, start - chunk :])
        assert cache.lengths.eq(start).all()
        sizes.add(sum(kept[0].numel() for layer in cache.layers for kept in layer.state or ()))
        chosen = torch.tensor(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=4)))
        cache.select(chosen)
        rows, memory = rows[chosen], memory.select(chosen)
    assert len(sizes) == 1  # a row is as large after many tokens as after one


@SOME
@torch.no_grad()
def test_an_alignment_is_a_distribution_over_the_real_tokens(way: dict[str, Any]) -> None:
    model, (source, attend), prefix = made(**way), padded(S, 1, 3), ids(V, 3, T)
    if model.config.attention == "none":
        with pytest.raises(ConfigError, match="attention is 'none'"):
            model.alignment(source, prefix, attend)
        return
    weights = model.alignment(source, prefix, attend)
    assert weights.shape == (3, T, S)
    close(weights.sum(-1), torch.ones(3, T))
    assert not weights.masked_select(~attend[:, None]).any()
    assert (weights.masked_select(attend[:, None]) > 0).all()
    assert weights[0].std(-1).max() > 1e-3


@torch.no_grad()
def test_a_source_without_tokens_is_attended_to_by_nothing() -> None:
    for way in MODELS_TRIED:
        model, prefix = made(**way), ids(V, 2, T)
        source, attend = padded(3, 3)
        attend[1] = False
        logits = model(source, prefix, attend=attend)
        assert logits.isfinite().all()
        close(logits[0], model(source[:1], prefix[:1])[0])


@torch.no_grad()
def test_a_reversed_source_is_the_source_reversed_by_hand() -> None:
    settings: dict[str, Any] = {"attention": "general", "n_layers": 2}
    reversing, plain = made(reverse_source=True, **settings), made(**settings)
    source, attend = padded(S, 2, 4)
    turned = source.clone()
    for row, real in enumerate(attend.sum(1).tolist()):
        turned[row, :real] = source[row, :real].flip(0)
    prefix = ids(V, 3, T)
    close(reversing(source, prefix, attend=attend), plain(turned, prefix, attend=attend))
    ours, theirs = reversing.encode(source, attend=attend), plain.encode(turned, attend=attend)
    for row, real in enumerate(attend.sum(1).tolist()):
        close(ours.values[row, :real], theirs.values[row, :real].flip(0))


@SOME
@torch.no_grad()
def test_without_teacher_forcing_a_step_is_fed_the_models_own_token(way: dict[str, Any]) -> None:
    model, (source, attend), prefix = made(**way, teacher_forcing=0.0), padded(S, 3), ids(V, 2, T)
    assert torch.equal(model(source, prefix, attend=attend), made(**way)(source, prefix, attend=attend))
    model.train()
    logits = model(source, prefix, attend=attend)
    for row in range(2):
        own = Reading(model)(source[row][attend[row]].tolist(), [int(prefix[row, 0]), *[None] * (T - 1)])[0]
        close(logits[row], own)
    fed = torch.cat([prefix[:, :1], logits.argmax(-1)[:, :-1]], dim=1)
    assert not torch.equal(fed, prefix)
    close(logits, model.eval()(source, fed, attend=attend))


def test_teacher_forcing_is_drawn_for_each_token_of_each_row() -> None:
    model, source, prefix = made(teacher_forcing=0.5).train(), ids(N, 8, S), ids(V, 8, 12)
    torch.manual_seed(0)
    first, second = model(source, prefix), model(source, prefix)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(model(source, prefix), first)
    torch.manual_seed(0)
    forced = dropout(torch.ones(8, 12), 0.5, True) > 0
    assert 24 < int(forced.sum()) < 72
    own = first.argmax(-1)
    fed = torch.where(forced[:, 1:], prefix[:, 1:], own[:, :-1])
    close(first, made()(source, torch.cat([prefix[:, :1], fed], dim=1)))
    model.teacher_forcing = 1.0  # a schedule's doing
    assert torch.equal(model(source, prefix), made()(source, prefix))


@SOME
def test_init_weights_sets_every_parameter(way: dict[str, Any]) -> None:
    config = Seq2SeqConfig(**{**SHAPE, **way})
    with torch.device("meta"):
        model = Seq2Seq(config)
    model.to_empty(device="cpu")
    model.tie_weights()
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan)
    model.init_weights(torch.Generator().manual_seed(3))
    again = build(config, generator=torch.Generator().manual_seed(3))
    for name, tensor in model.state_dict().items():
        assert tensor.isfinite().all(), name
        assert torch.equal(tensor, again.state_dict()[name]), name
    assert (model.lm_head.weight is model.token_embedding.weight) == config.tie_embeddings


def test_how_weights_begin() -> None:
    model = build(Seq2SeqConfig(**SHAPE, bidirectional=True, attention="additive"))
    for layer in model.blocks:
        assert torch.equal(layer.input_proj.bias[layer.rows("f")], torch.ones(5))
    assert model.token_embedding.weight.abs().max() <= 0.1 < model.scorer.v.abs().max()
    assert len(model.blocks) == 6
    model = build(Seq2SeqConfig(**SHAPE, cell="rnn_relu", attention="dot"))
    assert all(torch.equal(layer.hidden_proj.weight, torch.eye(5)) for layer in model.blocks)
    model = build(Seq2SeqConfig(**SHAPE, init_scale=0.05, forget_bias=0.0))
    assert all(0.02 < p.abs().max() <= 0.05 for p in model.parameters())


@SOME
def test_one_batch_is_learnt_by_heart(way: dict[str, Any]) -> None:
    config = Seq2SeqConfig(**{**SHAPE, "dim": 16, "hidden_dim": 20, "init_scale": 0.5, **way})
    model = build(config, generator=torch.Generator().manual_seed(0)).train()
    (source, attend), words = padded(S, 4), ids(V, 2, 9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    for _ in range(80):
        loss = F.cross_entropy(
            model(source, words[:, :-1], attend=attend).flatten(0, 1), words[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


@EVERY_WAY
def test_gradient_reaches_every_parameter(way: dict[str, Any]) -> None:
    for cell in CELLS:
        model = made(cell=cell, bidirectional=True, memory_projection=way.get("attention") == "dot", **way)
        model.train()(ids(N, 3, S), ids(V, 3, 8)).square().mean().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().max() > 1e-8, name


@pytest.mark.parametrize("setting", ["dropout", "embedding_dropout", "output_dropout"])
@SOME
@torch.no_grad()
def test_each_dropout_acts_in_training_alone(setting: str, way: dict[str, Any]) -> None:
    model, plain = made(**way, **{setting: 0.5}), made(**way)
    source, prefix = ids(N, 2, S), ids(V, 2, T)
    assert torch.equal(model(source, prefix), plain(source, prefix))
    model.train()
    torch.manual_seed(0)
    first, second = model(source, prefix), model(source, prefix)
    assert (first - second).abs().max() > 1e-4
    torch.manual_seed(0)
    assert torch.equal(model(source, prefix), first)


@SOME
def test_every_bit_comes_back_from_a_folder(way: dict[str, Any], tmp_path: Path) -> None:
    model, (source, attend), prefix = made(**way), padded(S, 2), ids(V, 2, T)
    save_model(model, tmp_path)
    assert '"model_type": "wordloom-seq2seq"' in (tmp_path / "config.json").read_text()
    loaded = load_model(tmp_path)
    assert loaded.config == model.config
    assert torch.equal(loaded(source, prefix, attend=attend), model(source, prefix, attend=attend))
    other = build(config_from("seq2seq", **vars(model.config) | {"teacher_forcing": 0.5, "dropout": 0.1}))
    load_state(other, tmp_path)  # which matter to training alone
    assert torch.equal(other.eval()(source, prefix, attend=attend), model(source, prefix, attend=attend))


@SOME
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_stays_near_float32(way: dict[str, Any], dtype: torch.dtype) -> None:
    model, (source, attend), prefix = made(**way), padded(S, 2), ids(V, 2, T)
    full = model(source, prefix, attend=attend)
    low = model.to(dtype)(source, prefix, attend=attend)
    assert low.dtype == dtype
    error = full.abs().max().item() * (0.1 if dtype == torch.bfloat16 else 0.02)
    torch.testing.assert_close(low.float(), full, rtol=0, atol=error)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_wide_lstms_with_weights_in_bfloat16_are_trained(bidirectional: bool) -> None:
    """Their fused kernel returns c in float32."""
    config = Seq2SeqConfig(
        vocab_size=V,
        dim=24,
        hidden_dim=400,
        n_layers=2,
        cell="lstm",
        bidirectional=bidirectional,
        dropout=0.0,
    )
    model = build(config, generator=torch.Generator().manual_seed(0))
    source, prefix = ids(V, 4, 11), ids(V, 4, 13)
    attend = torch.arange(11) < torch.tensor([[11], [3], [7], [1]])
    full = model(source, prefix, attend=attend)
    low = model.bfloat16()(source, prefix, attend=attend)
    torch.testing.assert_close(low.float(), full, rtol=0, atol=0.1 * full.abs().max().item())
    low.float().square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_the_2014_model_has_the_parameters_it_printed() -> None:
    config = Seq2SeqConfig(vocab_size=80_000, source_vocab_size=160_000, dim=1000, n_layers=4)
    model = skeleton(config)
    assert sum(p.numel() for p in model.parameters()) == 384_112_000
    recurrent = sum(p.numel() for layer in model.blocks for p in layer.parameters())  # type: ignore[union-attr]
    assert recurrent == 64_032_000
    assert parameter_table(config).state == 8_000  # that of an encoder ends with the source
    assert context_limit(config) is None


def test_what_is_printed_of_it_says_what_is_counted() -> None:
    config = Seq2SeqConfig(**SHAPE, attention="additive", cell="gru", bidirectional=True)
    console = Console(width=80, record=True, file=StringIO())
    print_parameters(console, "m", config, parameter_table(config, context=9))
    text = console.export_text()
    assert "Seq2Seq, 2+2 layers, dim 6, cell gru" in text
    assert "attention: 2 × (key + memory) × 9 keys" in text
    assert "Recurrent state of a row: 40 B fp32" in text


@pytest.mark.parametrize("scorer", ["dot", "general", "additive"])
@pytest.mark.parametrize("query", ["previous", "current"])
def test_operations_are_those_of_the_matrices_and_of_attention(scorer: str, query: str) -> None:
    model = made(attention=scorer, query=query, cell="lstm", bidirectional=scorer != "dot", deep_output=True)
    ours = flops_per_token(model, context=S)
    assert ours == flops_per_token(model.config, context=S)
    M, H = model.config.memory_dim, 5
    assert ours.attention == 2 * (H + M) * S
    matrices = sum(
        p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embedding" not in name
    )
    assert ours.layers + ours.head == 2 * matrices
    counter = FlopCounterMode(display=False)
    with counter:
        memory = model.encode(ids(N, 2, S))
    reading = counter.get_total_flops()
    with counter:
        model.lm_head(model.hidden(ids(V, 2, S), memory))
    bridges = sum(2 * p.numel() for name, p in model.named_parameters() if "bridges" in name and p.ndim == 2)
    assert counter.get_total_flops() + reading == 2 * (S * ours.forward - (S - 1) * bridges)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cell": "lsmt"}, "unknown cell 'lsmt'; did you mean 'lstm'"),
        ({"attention": "bilinear"}, "unknown attention 'bilinear'"),
        ({"attention": "dot", "query": "prev"}, "unknown query 'prev'; did you mean 'previous'"),
        (
            {"attention": "dot", "bidirectional": True},
            "needs equal widths, not a state of 256 and a memory of 512",
        ),
        ({"input_feeding": True}, "input_feeding needs attention: choose dot, general, additive"),
        ({"memory_projection": True}, "memory_projection needs attention"),
        ({"query": "previous"}, "query needs attention"),
        (
            {"attention": "dot", "feed_context": True},
            "feeds one vector to all steps; attention 'dot' has one",
        ),
        (
            {"attention": "dot", "query": "previous", "input_feeding": True},
            "input_feeding needs query 'current'",
        ),
        ({"attention": "dot", "attention_dim": 8}, "attention_dim is the width of the additive scorer"),
        ({"teacher_forcing": 1.5}, "teacher_forcing is a share from 0 to 1, not 1.5"),
        ({"dropout": 1.0}, "dropout is a share"),
        ({"cell": "gru", "forget_bias": 2.0}, "forget_bias belongs to an LSTM"),
        ({"init_scale": 0.0}, "init_scale must be above 0"),
        ({"n_layers": 0}, "n_layers must be a whole number above 0"),
        ({"source_vocab_size": 0}, "source_vocab_size must be a whole number above 0"),
        ({"hidden_size": 3}, "it is called 'hidden_dim' here"),
        ({"input_feed": 3}, "it is called 'input_feeding' here"),
        ({"max_seq_len": 30}, "unknown setting 'max_seq_len'"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        config_from("seq2seq", **settings)
    assert "\n" not in str(caught.value)
