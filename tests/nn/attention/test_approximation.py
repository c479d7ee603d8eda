"""Linformer, Nyström and Performer: by definition, against transformers, and where they are refused."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from wordloom.errors import ConfigError
from wordloom.models import BertConfig, LlamaConfig, TransformerConfig, build, config_from
from wordloom.models.building.attention import check_attention_dropout, set_attention
from wordloom.nn.attention import (
    Attention,
    Linformer,
    Nystrom,
    Performer,
    Visibility,
    patterns_of_layers,
    set_attention_backend,
)
from wordloom.nn.attention.low_rank import pseudo_inverse
from wordloom.nn.attention.performer import CHUNK, orthogonal_features


def attention(kind: Any, *, dim: int = 12, n_heads: int = 3, n_kv_heads: int | None = None) -> Attention:
    return Attention(dim=dim, n_heads=n_heads, n_kv_heads=n_kv_heads, pattern=kind).eval()


# -- definitions --------------------------------------------------------------------------------------------


def test_linformer_projects_keys_and_values(rng: random.Random) -> None:
    layer, n = attention(Linformer(False, 5, 30)), rng.choice([1, 4, 17, 30])
    q, k, v = torch.randn(3, 2, 3, n, 4).unbind()
    keys, values = (p.weight[:, :n] for p in (layer.key_projection, layer.value_projection))
    wanted = (q @ (keys @ k).transpose(-2, -1) / 2).softmax(dim=-1) @ (values @ v)
    torch.testing.assert_close(layer.attend(q, k, v), wanted)


def test_nystrom_is_that_of_transformers(rng: random.Random) -> None:
    from transformers import NystromformerConfig
    from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

    landmarks, size, heads = rng.choice([1, 3, 7]), rng.choice([2, 5]), 3
    n = landmarks * size
    theirs = NystromformerSelfAttention(NystromformerConfig(
        hidden_size=12, num_attention_heads=heads, num_landmarks=landmarks, segment_means_seq_len=n,
        conv_kernel_size=1,
    )).eval()  # fmt: skip
    ours = attention(Nystrom(False, landmarks))
    for mine, name in ((ours.q_proj, "query"), (ours.k_proj, "key"), (ours.v_proj, "value")):
        mine.weight.data.copy_(getattr(theirs, name).weight.data)
        getattr(theirs, name).bias.data.zero_()
    x = torch.randn(1, n, 12, requires_grad=True)  # theirs starts the inverse with a maximum over the batch
    theirs.init_option, theirs.conv_kernel_size = "exact", None
    wanted, found = theirs(x)[0], ours.mixed(x)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    weight = torch.randn_like(found)
    grads = [torch.autograd.grad((out * weight).sum(), x)[0] for out in (found, wanted)]
    torch.testing.assert_close(*grads, atol=1e-5, rtol=1e-4)


def test_short_texts_and_many_landmarks_are_full_attention(rng: random.Random) -> None:
    n = rng.choice([2, 5, 11])
    full, x = attention(None), torch.randn(2, n, 12)
    for landmarks in (n, n + 3, 100):
        layer = attention(Nystrom(False, landmarks))
        layer.load_state_dict(full.state_dict())
        torch.testing.assert_close(layer(x), full(x), atol=1e-6, rtol=1e-5)
        assert Nystrom(False, landmarks).n_pairs(n) == n * n


def test_the_pseudo_inverse_of_softmax_weights() -> None:
    x = (2 * torch.eye(6) + 0.3 * torch.randn(2, 6, 6)).softmax(dim=-1).double()
    torch.testing.assert_close(pseudo_inverse(x), torch.linalg.pinv(x), atol=5e-2, rtol=5e-2)


def test_features_are_orthogonal_and_as_long_as_normal_vectors() -> None:
    w = orthogonal_features(70, 16, 3)
    for block in w.split(16):
        products = block @ block.T
        assert float((products - products.diagonal().diag()).abs().max()) < 1e-10
    assert abs(float((orthogonal_features(4096, 16, 0) ** 2).mean()) - 1) < 0.05
    assert torch.equal(w, orthogonal_features.__wrapped__(70, 16, 3))
    assert not torch.equal(w, orthogonal_features(70, 16, 4))


def test_more_features_come_nearer_to_full_attention(rng: random.Random) -> None:
    for causal in (True, False):
        visibility = Visibility(causal=causal)
        full, x = attention(None), 0.5 * torch.randn(2, 40, 12)
        errors = []
        for features in (8, 128, 4096):
            found = []
            for seed in range(9):
                layer = attention(Performer(causal, features, seed))
                layer.load_state_dict(full.state_dict())
                error = layer(x, visibility=visibility) - full(x, visibility=visibility)
                found.append(float(error.detach().norm()))
            errors.append(median(found))  # some draws are far worse than most
        assert errors[0] > 1.3 * errors[1] > 2 * errors[2]


def test_large_keys_do_not_overflow() -> None:
    layer = attention(Performer(True, 64, 0), dim=64, n_heads=1)
    q, k, v = (scale * torch.randn(1, 1, 300, 64) for scale in (8, 8, 1))
    found = layer.attend(q, k, v, Visibility(causal=True))
    assert bool(found.isfinite().all())
    assert float(found.abs().max()) < 10


# -- fast against slow, padding, documents ------------------------------------------------------------------

ENCODERS = ["linformer:1", "linformer:7", "nystrom:1", "nystrom:5", "performer:3", "performer:40"]


def drawn(rng: random.Random, B: int, T: int) -> tuple[dict[str, Any], list[list[tuple[int, int]]]]:
    """Return padding or documents, and the texts of each row as (first token, end)."""
    kind = rng.choice(["whole", "padding", "documents"])
    if kind == "padding":
        ends = [T, *(rng.randint(1, T) for _ in range(B - 1))]
        return {"real_keys": torch.arange(T) < torch.tensor(ends)[:, None]}, [[(0, n)] for n in ends]
    if kind == "documents":
        cuts = [sorted({0, T, *(rng.randint(0, T) for _ in range(2))}) for _ in range(B)]
        numbers = [[sum(t >= c for c in cut) for t in range(T)] for cut in cuts]
        return {"documents": torch.tensor(numbers)}, [list(pairwise(c)) for c in cuts]
    return {}, [[(0, T)]] * B


@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients_of_each_text_alone(rng: random.Random, *, causal: bool) -> None:
    for text in ["performer:3", "performer:40"] * 4 if causal else ENCODERS * 3:
        K, groups = rng.choice([1, 2, 3]), rng.choice([1, 2])
        (kind,) = patterns_of_layers(text, 1, causal=causal, longest=400)
        layer = attention(kind, dim=K * groups * 5, n_heads=K * groups, n_kv_heads=K)
        B, T = rng.choice([1, 2, 3]), rng.choice([1, 2, 13, 41, CHUNK, CHUNK + 1, 3 * CHUNK - 1])
        where, texts = drawn(rng, B, T)
        x = torch.randn(B, T, layer.q_proj.in_features, requires_grad=True)
        weight = torch.randn(B, T, layer.q_proj.out_features)
        visibility = Visibility(causal=causal, **where)
        found = layer.mixed(x, visibility=visibility)
        (grad,) = torch.autograd.grad((found * weight).sum(), x)
        set_attention_backend(layer, "exact")
        layer.recorded = []
        wanted = torch.zeros_like(found)
        for row, parts in enumerate(texts):
            for first, end in parts:
                alone = layer.mixed(x[row : row + 1, first:end], visibility=Visibility(causal=causal))
                wanted[row, first:end] = alone[0]
        (wanted_grad,) = torch.autograd.grad((wanted * weight).sum(), x)
        message = f"{text} {B, T} {list(where)}"
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3, msg=lambda m, w=message: f"{w}: {m}")
        scale = float(wanted_grad.abs().max())
        assert float((grad - wanted_grad).abs().max()) < 2e-4 * max(scale, 1), message
        layer.recorded = recorded = []
        layer.mixed(x, visibility=visibility)
        (weights,) = recorded
        assert weights.shape == (B, K * groups, T, T)
        if causal:
            assert not bool(weights.triu(1).any())


@torch.no_grad()
def test_a_performer_continues_from_a_state(rng: random.Random) -> None:
    for setting in ("performer:9", "performer:5,band:4", "performer:4*2,full"):
        model = build(LlamaConfig(
            vocab_size=13, max_seq_len=300, dim=24, n_layers=3, n_heads=4, n_kv_heads=2, attention=setting
        )).eval()  # fmt: skip
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 0, 0.3)
        texts = torch.randint(0, 13, (3, 280))
        wanted, at = model(texts), [0, 0, 0]
        cache = model.new_cache(3, 20)
        while max(at) < 260:
            n = rng.choice([1, 1, 3, 20, 150])
            n = min(n, 280 - max(at))
            lengths = [rng.randint(1, n) for _ in at]
            tokens = torch.stack([text[a : a + n] for text, a in zip(texts, at, strict=True)])
            attend = torch.arange(n) < torch.tensor(lengths)[:, None]
            found = model.lm_head(model.hidden(tokens, attend=attend, cache=cache))
            for row, (a, length) in enumerate(zip(at, lengths, strict=True)):
                close = wanted[row, a : a + length]
                torch.testing.assert_close(found[row, :length], close, atol=1e-4, rtol=1e-3)
            at = [a + length for a, length in zip(at, lengths, strict=True)]
            order = rng.sample(range(3), 3)
            cache.select(torch.tensor(order))
            texts, wanted, at = texts[order], wanted[order], [at[i] for i in order]
        other = model.new_cache(1, 5)
        model.hidden(texts[:1, :7], cache=other)
        cache.join(other)
        found = model.lm_head(model.hidden(torch.tensor([[1]] * 3 + [[int(texts[0, 7])]]), cache=cache))
        torch.testing.assert_close(found[3, 0], wanted[0, 7], atol=1e-4, rtol=1e-3)
        cache.truncate(cache.lengths)
        with pytest.raises(Exception, match="the state of a Performer cannot be truncated; read the text"):
            cache.truncate(3)


# -- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "setting", "says"),
    [
        ("llama", "linformer:8", "a causal model would see later ones; use it in BERT or RoBERTa"),
        ("gpt2", "full,nystrom:8", "means over all tokens of a text"),
        ("transformer", "linformer:8", "use it in BERT or RoBERTa"),
        ("bert", "linformer:0", "K of 'linformer:K' is a whole number from 1"),
        ("llama", "performer:16385", "performer:16385': a Performer has at most 16,384 features"),
        ("bert", "nystrom", "nystrom is written 'nystrom:M', not 'nystrom'"),
        ("bert", "performer:8+band:3", r"performer approximates full attention, and '\+' joins patterns"),
        ("llama", "band:3+performer:8", r"performer approximates full attention"),
        ("llama", "band:2,,full", "attention 'band:2,,full' has an entry without text"),
        ("llama", '["full", "band:3"]', "write the layers without brackets, as 'full,band:64'"),
        ("llama", "perfromer:8", "unknown attention 'perfromer:8'.*did you mean 'performer'"),
    ],
)
def test_a_mistake_is_one_clear_line(family: str, setting: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        config_from(family, vocab_size=11, dim=8, n_heads=2, n_layers=2, attention=setting)
    assert "\n" not in str(caught.value)


def test_what_an_approximation_has_not() -> None:
    layer = attention(Linformer(False, 3, 10))
    with pytest.raises(ConfigError, match=r"11 tokens is longer than the 10 .*'linformer:3' was built"):
        layer(torch.randn(1, 11, 12))
    model = build(LlamaConfig(vocab_size=11, dim=8, n_heads=2, n_layers=1, attention="performer:4"))
    with pytest.raises(ConfigError, match="attention_backend 'flash' computes full attention"):
        set_attention_backend(model, "flash")
    small: dict[str, Any] = {"vocab_size": 11, "dim": 8, "n_heads": 2, "n_layers": 1}
    with pytest.raises(ConfigError, match=r"'performer:4' has no attention weights for a dropout of 0\.1"):
        check_attention_dropout(BertConfig(**small, attention="performer:4"))
    check_attention_dropout(BertConfig(**small, attention="performer:4", attention_dropout=0.0))
    check_attention_dropout(BertConfig(**small, attention="linformer:4"))
    encoder = build(BertConfig(vocab_size=11, dim=8, n_heads=2, n_layers=1))
    with pytest.raises(ConfigError, match=r"has weights that this model lacks, such as .*key_projection"):
        set_attention(encoder, "linformer:4")
    set_attention(encoder, "nystrom:4")
    assert str(encoder.blocks[0].attention.pattern) == "nystrom:4"


def test_no_texts_have_no_results() -> None:
    for kind in (Performer(True, 4, 0), Performer(False, 4, 0), Linformer(False, 3, 10), Nystrom(False, 2)):
        layer = attention(kind, n_kv_heads=1)
        found = layer.mixed(torch.zeros(0, 5, 12), visibility=Visibility(causal=kind.causal))
        assert found.shape == (0, 5, 12)


def test_a_transformer_translates_with_a_performer() -> None:
    model = build(TransformerConfig(
        vocab_size=11, max_seq_len=30, dim=8, n_heads=2, n_layers=2, attention="performer:16"
    )).eval()  # fmt: skip
    source, prefix = torch.randint(0, 11, (2, 9)), torch.randint(0, 11, (2, 12))
    wanted = model(source, prefix)
    memory, cache = model.encode(source), model.new_cache(2, 3)
    found = [model.lm_head(model.hidden(part, memory, cache=cache)) for part in prefix.split(5, dim=1)]
    torch.testing.assert_close(torch.cat(found, dim=1), wanted, atol=1e-5, rtol=1e-4)


def test_dropout_of_a_linformer_acts_on_its_weights() -> None:
    layer = attention(Linformer(False, 64, 40), dim=16, n_heads=1)
    layer.dropout = 0.5
    x: Tensor = torch.randn(1, 40, 16)
    assert torch.equal(layer(x), layer(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))
    mean = torch.stack([layer(x) for _ in range(2000)]).mean(dim=0)
    torch.testing.assert_close(mean, layer.eval()(x), atol=4 / math.sqrt(2000), rtol=0.2)


class _Elements(TorchDispatchMode):
    """Counts the elements of all results, forward and backward."""

    total = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        self.total += sum(x.numel() for x in tree_leaves(out) if isinstance(x, Tensor))
        return out


@pytest.mark.parametrize("text", ["linformer:8", "nystrom:8", "performer:8", "causal performer:8"])
def test_the_work_is_linear_in_the_text(text: str) -> None:
    work = []
    for n in (8 * CHUNK, 32 * CHUNK):
        (kind,) = patterns_of_layers(text.split()[-1], 1, causal=text.startswith("causal"), longest=n)
        layer, x = attention(kind, dim=8, n_heads=2), torch.randn(1, n, 8, requires_grad=True)
        with _Elements() as counted:
            torch.autograd.grad(layer(x, visibility=Visibility(causal=kind.causal)).sum(), x)
        work.append(counted.total)
    assert work[1] < 4.2 * work[0]
