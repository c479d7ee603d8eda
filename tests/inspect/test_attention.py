"""Attention maps: distributions over the past, equal to what the running kernel used."""

from __future__ import annotations

import base64
import gzip
import io
import json

import pytest
import torch
from rich.console import Console

from wordloom.cli.inspect.attention import _print_attention
from wordloom.errors import ConfigError, GenerationError, WordloomError
from wordloom.inspect import AttentionMap, attention_map, last_attention
from wordloom.inspect.attention import recording
from wordloom.models import BertConfig, LlamaConfig, build
from wordloom.nn import Attention, Visibility

CONFIG = LlamaConfig(
    vocab_size=31, max_seq_len=16, dim=24, n_layers=2, n_heads=4, n_kv_heads=2, hidden_dim=32
)
IDS = [3, 1, 4, 1, 5, 9, 2]


@pytest.fixture(scope="module")
def model():
    return build(CONFIG, generator=torch.Generator().manual_seed(0))


def test_rows_are_distributions_over_the_past(model):
    weights = attention_map(model, IDS).weights
    assert weights.shape == (2, 4, 7, 7)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 4, 7))
    assert torch.equal(weights, weights.tril())
    assert weights.std() > 0.01  # heads of a random model still differ


def test_weights_are_those_that_make_the_first_layers_output(model):
    """Layer 0 by hand: o_proj(weights v), against what the running kernel answers."""
    x = torch.randn(1, len(IDS), 24, generator=torch.Generator().manual_seed(1))
    attention = model.blocks[0].attention
    v = attention.v_proj(x).view(len(IDS), 2, 6).repeat_interleave(2, dim=1)  # [T, H, E]
    attention.backend, attention.recorded = "exact", []
    rotary = model.rotary.angles(torch.arange(len(IDS))[None])
    attention(x, visibility=Visibility(causal=True), rotary=rotary)
    weights = attention.recorded[0][0]
    attention.backend, attention.recorded = "auto", None
    by_hand = attention.o_proj(torch.einsum("hts,she->the", weights, v).flatten(-2))
    assert torch.allclose(
        attention(x, visibility=Visibility(causal=True), rotary=rotary)[0], by_hand, atol=1e-5
    )


def untouched(model):
    layers = [m for m in model.modules() if isinstance(m, Attention)]
    return all(layer.backend == "auto" and layer.recorded is None for layer in layers)


def test_the_model_is_left_as_it_was(model):
    model.train()
    attention_map(model, IDS)
    assert model.training
    assert all(
        m.backend == "auto" and m.recorded is None for m in model.modules() if isinstance(m, Attention)
    )
    with pytest.raises(IndexError):
        attention_map(model, [31])
    assert all(
        m.backend == "auto" and m.recorded is None for m in model.modules() if isinstance(m, Attention)
    )
    model.eval()


def test_one_head_or_the_mean_of_all(model):
    seen = attention_map(model, IDS, list("abcdefg"))
    assert torch.equal(seen.head(1, 2), seen.weights[1, 2])
    assert torch.allclose(seen.head(1), seen.weights[1].mean(0))
    with pytest.raises(ConfigError, match="layer 2 does not exist; allowed: 0 to 1"):
        seen.head(2)
    with pytest.raises(ConfigError, match="head 4 does not exist; allowed: 0 to 3"):
        seen.head(0, 4)


def test_shading_follows_the_weights(model):
    seen = attention_map(model, IDS)
    lines = seen.shaded(0, 0)
    assert [len(line) for line in lines] == [2 * (t + 1) for t in range(7)]
    assert lines[0] == "██"  # the first token has itself alone
    weights = seen.head(0, 0)
    for t, line in enumerate(lines):
        for s in range(t + 1):
            assert " ░▒▓█".index(line[2 * s]) == min(4, int(weights[t, s] * 5))


def test_png(model, tmp_path):
    pytest.importorskip("matplotlib", reason="drawing is the plots extra")
    seen = attention_map(model, IDS, list("abcdefg"))
    seen.save(tmp_path / "all.png")
    seen.save(tmp_path / "one.png", layer=1)
    for name in ("all.png", "one.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_mistakes(model):
    with pytest.raises(GenerationError, match="at least one token"):
        attention_map(model, [])
    with pytest.raises(GenerationError, match="17 tokens and the model takes 16"):
        attention_map(model, [1] * 17)


def test_an_encoder_attends_in_both_directions():
    config = BertConfig(vocab_size=31, max_seq_len=16, dim=24, n_layers=2, n_heads=3, hidden_dim=32)
    bert = build(config, generator=torch.Generator().manual_seed(0))
    for parameter in bert.parameters():
        torch.nn.init.normal_(parameter, 0, 0.5, generator=torch.Generator().manual_seed(1))
    seen = attention_map(bert, IDS)
    assert seen.weights.shape == (2, 3, 7, 7)
    assert torch.allclose(seen.weights.sum(-1), torch.ones(2, 3, 7), atol=1e-5)
    assert (seen.weights.triu(1) > 0).any()
    strong = seen.weights[0, 0].argmax(-1)
    lines = seen.shaded(0, 0)
    row = int((strong > torch.arange(7)).int().argmax())  # one that looks ahead
    if float(seen.weights[0, 0, row].max()) >= 0.2:
        assert lines[row][2 * int(strong[row])] != " "


def random_encoder(rng, attention, **settings):
    heads = rng.choice([1, 2, 3])
    config = BertConfig(
        vocab_size=31, max_seq_len=16, dim=heads * rng.choice([2, 5]), n_layers=2, n_heads=heads,
        hidden_dim=8, attention=attention, **settings,
    )  # fmt: skip
    model = build(config, generator=torch.Generator().manual_seed(rng.randrange(2**31)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    return model.eval()


def test_recorded_weights_of_global_tokens_are_those_of_their_own_projections(rng):
    """Weights times values give the layer's output: of the usual values, and of those for global tokens."""
    for _ in range(8):
        G, T = rng.randint(1, 4), rng.randint(1, 16)
        model = random_encoder(rng, f"band:{rng.randint(1, 4)}+global:{G}", global_projections=True)
        layer = model.blocks[0].attention
        x = torch.randn(2, T, model.config.dim)
        real = torch.arange(T) < torch.tensor([[T], [rng.randint(1, T)]])
        visibility = rng.choice([Visibility(), Visibility(real_keys=real)])
        real = real if visibility.real_keys is not None else torch.ones_like(real)
        with torch.no_grad(), recording([layer]) as recorded:
            layer.mixed(x, visibility=visibility)
        (weights,) = recorded
        with torch.no_grad():
            wanted = layer.mixed(x, visibility=visibility)  # by the running kernel
            usual, by_global = (
                proj(x).unflatten(-1, (layer.n_heads, -1)).transpose(1, 2)
                for proj in (layer.v_proj, layer.v_global_proj)
            )
        is_global = (torch.arange(T) < G)[None, None, :, None]
        found = torch.where(is_global, weights @ by_global, weights @ usual).transpose(1, 2).flatten(-2)
        torch.testing.assert_close(found[real], wanted[real], rtol=1e-4, atol=1e-4)
        sums = weights.sum(-1).transpose(1, 2)[real]  # [tokens, H]
        torch.testing.assert_close(sums, torch.ones_like(sums))
        ids = [rng.randrange(31) for _ in range(T)]
        torch.testing.assert_close(last_attention(model, ids), attention_map(model, ids).weights[:, :, -1])


@pytest.mark.parametrize("attention", ["linformer:4", "nystrom:2"])
def test_weights_of_approximations_say_how_they_are_drawn(rng, attention):
    model = random_encoder(rng, attention)
    layer = model.blocks[0].attention
    x = torch.randn(1, 16, model.config.dim)
    with torch.no_grad(), recording([layer]) as recorded:
        layer.mixed(x)
    with torch.no_grad():
        values = layer.v_proj(x).unflatten(-1, (layer.n_heads, -1)).transpose(1, 2)
        wanted = layer.mixed(x)
    found = (recorded[0] @ values).transpose(1, 2).flatten(-2)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    seen = attention_map(model, [rng.randrange(31) for _ in range(16)])
    assert bool(seen.notes()) == bool(((seen.weights < 0) | (seen.weights > 1.0001)).any())


def test_weights_outside_0_to_1_are_drawn_at_the_ends():
    seen = AttentionMap(("a", "b"), torch.tensor([[[[-0.22, 1.4], [0.5, -3.0]]]]))
    assert seen.shaded(0, 0) == ["  ██", "▒▒  "]
    data = json.loads(seen.body().split('id="attention">')[1].split("</script>")[0])
    assert list(gzip.decompress(base64.b64decode(data["weights"]))) == [0, 255, round(255 * 0.5**0.5), 0]
    note = "some weights are negative or above 1; they are drawn as 0 and 1"
    printed = io.StringIO()
    _print_attention(Console(file=printed, width=80), seen, layer=0, head=None)
    assert note in printed.getvalue()
    assert note in seen.html()
    assert seen.as_dict()["weights"][0][0][0] == pytest.approx([-0.22, 1.4])
    assert AttentionMap(("a",), torch.ones(1, 1, 1, 1)).notes() == ()


def test_pictures_that_cannot_be_drawn_are_refused_with_advice(tmp_path):
    pytest.importorskip("matplotlib", reason="drawing is the plots extra")
    names = tuple(map(str, range(70)))
    many = AttentionMap(names, torch.zeros(150, 1, 70, 70))
    with pytest.raises(WordloomError, match="a side has at most 65,535; name a --layer, or use --html"):
        many.save(tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()
    many.save(tmp_path / "a.png", layer=3)
    wide = AttentionMap(names, torch.zeros(1, 150, 70, 70))
    with pytest.raises(WordloomError, match="a side has at most 65,535; use --html"):
        wide.figure()
