"""Models whose attention has a pattern: fast paths, padding, documents and caches against the dense mask."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from wordloom.errors import ConfigError, GenerationError
from wordloom.models import (
    BertConfig,
    GPT2Config,
    GPTConfig,
    LlamaConfig,
    RobertaConfig,
    TransformerConfig,
    build,
)
from wordloom.models.building.attention import set_attention
from wordloom.models.fast_encoder import FastEncoder
from wordloom.nn.attention import set_attention_backend
from wordloom.nn.cache import SPARE_PLACES

PATTERNS = [
    "band:5", "band:1", "band:7+global:3", "dilated:3:4", "block:6", "random:3:1", "longformer:4:2",
    "bigbird:3:2:2", "star", "band:4,full", "band:3*2,block:5", "dilated:2:3+band:4+global:1",
]  # fmt: skip
VOCABULARY, LENGTH = 13, 64


def with_large_weights(config: Any) -> Any:
    """Return a model in which every key matters."""
    model = build(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0, 0.4)
    return model


def a_causal_model(rng: random.Random, pattern: str) -> Any:
    heads = rng.choice([1, 2, 3, 4])
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY, "max_seq_len": LENGTH, "dim": heads * rng.choice([4, 6, 10]),
        "n_layers": rng.choice([1, 2, 3]), "n_heads": heads, "attention": pattern,
    }  # fmt: skip
    kv_heads = rng.choice([n for n in range(1, heads + 1) if heads % n == 0])
    return with_large_weights(
        rng.choice([GPTConfig(**shape), GPT2Config(**shape), LlamaConfig(n_kv_heads=kv_heads, **shape)])
    )


def exact(model: Any, *inputs: Any, **more: Any) -> Tensor:
    set_attention_backend(model, "exact")
    found: Tensor = model(*inputs, **more)
    set_attention_backend(model, "auto")
    return found


def close(found: Tensor, wanted: Tensor, where: str) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4, msg=lambda m: f"{where}: {m}")


@torch.no_grad()
def test_causal_models_in_one_pass_and_in_chunks(rng: random.Random) -> None:
    for pattern in PATTERNS * 4:
        model = a_causal_model(rng, pattern)
        B, T = rng.choice([1, 2, 3]), rng.choice([1, 2, 5, 17, 33, 64])
        tokens = torch.randint(0, VOCABULARY, (B, T))
        wanted, where = exact(model, tokens), f"{type(model).__name__} {pattern} {B, T}"
        close(model(tokens), wanted, where)
        cache, parts, t = model.new_cache(B, rng.choice([1, T])), [], 0
        while t < T:  # chunks may be longer than what a layer keeps
            n = rng.choice([1, 1, 2, 3, 9, 20])
            parts.append(model.lm_head(model.hidden(tokens[:, t : t + n], cache=cache)))
            t += n
        close(torch.cat(parts, dim=1), wanted, f"{where}, cached")
        for layer, each in zip(cache.layers, model.config.patterns, strict=True):
            if each.remembered is not None and layer.keys is not None:
                assert layer.keys.shape[2] <= sum(each.remembered) + SPARE_PLACES


@torch.no_grad()
def test_rows_of_different_lengths_join_and_leave(rng: random.Random) -> None:
    for pattern in PATTERNS * 2:
        model = a_causal_model(rng, pattern)
        texts = [torch.randint(0, VOCABULARY, (LENGTH,)) for _ in range(6)]
        wanted = [exact(model, text[None])[0] for text in texts]
        cache, rows, at = model.new_cache(0, 3), list[int](), dict[int, int]()
        for _ in range(14):
            if rows and rng.random() < 0.3:  # some leave, and others change places
                kept = rng.sample(range(len(rows)), rng.randint(1, len(rows)))
                cache.select(torch.tensor(kept))
                rows = [rows[i] for i in kept]
            fresh = [i for i in range(6) if i not in rows]
            if fresh and (not rows or rng.random() < 0.4):
                i, n = rng.choice(fresh), rng.choice([1, 3, 12, 30])
                joining = cache.empty(1, rng.choice([1, 40]))
                found = model.lm_head(model.hidden(texts[i][None, :n], cache=joining))[0]
                close(found, wanted[i][:n], f"{pattern}: prompt of {n}")
                cache.join(joining)
                rows, at[i] = [*rows, i], n
            n = min(rng.choice([1, 1, 2, 8]), *(LENGTH - at[i] for i in rows))
            if n == 0:
                break
            lengths = [rng.randint(1, n) for _ in rows]
            lengths[rng.randrange(len(rows))] = n
            attend = torch.arange(n) < torch.tensor(lengths)[:, None]
            tokens = torch.stack([texts[i][at[i] : at[i] + n] for i in rows])
            ragged = None if bool(attend.all()) else attend
            found = model.lm_head(model.hidden(tokens, attend=ragged, cache=cache))
            for row, (i, length) in enumerate(zip(rows, lengths, strict=True)):
                close(found[row, :length], wanted[i][at[i] : at[i] + length], f"{pattern}: row {row}")
                at[i] += length


@torch.no_grad()
def test_the_last_tokens_of_a_ring_can_be_truncated(rng: random.Random) -> None:
    for pattern in ("band:4", "band:1+global:2", "dilated:3:4", "block:6"):
        model = a_causal_model(rng, pattern)
        tokens = torch.randint(0, VOCABULARY, (2, LENGTH))
        wanted, cache, length, highest = exact(model, tokens), model.new_cache(2, LENGTH), 0, 0
        for _ in range(12):
            n = min(rng.choice([1, 2, 17, 40]), LENGTH - length)
            if n:
                found = model.lm_head(model.hidden(tokens[:, length : length + n], cache=cache))
                close(found, wanted[:, length : length + n], f"{pattern}: {n} tokens at {length}")
            length += n
            highest = max(highest, length)
            if length > highest - SPARE_PLACES and rng.random() < 0.7:
                length = rng.randint(max(0, highest - SPARE_PLACES), length)
                cache.truncate(length)
    ragged, lengths = model.new_cache(2, 5), torch.tensor([[LENGTH], [3]])
    attend = torch.arange(LENGTH) < lengths
    model.hidden(torch.randint(0, VOCABULARY, (2, LENGTH)), attend=attend, cache=ragged)
    ragged.truncate(torch.tensor([LENGTH, 2]))  # padding took no place of the short row's tokens
    assert ragged.lengths.tolist() == [LENGTH, 2]
    cache = model.new_cache(2, 5)
    model.hidden(torch.randint(0, VOCABULARY, (2, LENGTH)), cache=cache)
    with pytest.raises(GenerationError, match=r"with a ring of \d+ cannot be truncated to \[2, 2\]"):
        cache.truncate(2)
    cache.truncate(LENGTH - SPARE_PLACES)
    with pytest.raises(GenerationError, match="the last 32 tokens can be removed"):
        cache.truncate(LENGTH - SPARE_PLACES - 20)  # places of earlier tokens were taken before


@torch.no_grad()
def test_encoders_with_padding_on_either_side(rng: random.Random) -> None:
    for pattern in PATTERNS * 4:
        heads, B, T = rng.choice([1, 2, 3]), rng.choice([1, 2, 3]), rng.choice([1, 2, 5, 17, 33, 64])
        shape: dict[str, Any] = {
            "vocab_size": VOCABULARY, "max_seq_len": LENGTH, "n_heads": heads, "n_layers": rng.choice([1, 2]),
            "dim": heads * rng.choice([4, 8, 14]), "attention": pattern,
        }  # fmt: skip
        lengths = torch.tensor([T, *(rng.randint(1, T) for _ in range(B - 1))])
        attend = torch.arange(T) < lengths[:, None]
        attend = attend.flip(1) if rng.random() < 0.3 else attend
        tokens, where = torch.randint(0, VOCABULARY, (B, T)), f"{pattern} {B, T}"
        model = with_large_weights(BertConfig(pooler=False, **shape))
        set_attention_backend(model, "exact")
        wanted = model.hidden(tokens, attend=attend)[attend]
        set_attention_backend(model, "auto")
        close(model.hidden(tokens, attend=attend)[attend], wanted, where)
        if FastEncoder.takes(model):
            close(FastEncoder(model).hidden(tokens, None, attend)[attend], wanted, f"{where}, FastEncoder")


@torch.no_grad()
def test_both_sides_of_a_transformer(rng: random.Random) -> None:
    for pattern in PATTERNS * 2:
        heads, B, S, T = (
            rng.choice([1, 2, 3]),
            rng.choice([1, 2]),
            rng.choice([1, 9, 40]),
            rng.choice([1, 4, 40]),
        )
        model = with_large_weights(TransformerConfig(
            vocab_size=VOCABULARY, max_seq_len=LENGTH, dim=heads * rng.choice([4, 8]), n_heads=heads,
            n_layers=rng.choice([1, 2]), n_decoder_layers=rng.choice([1, 2, 3]), attention=pattern,
        ))  # fmt: skip
        source, prefix = torch.randint(0, VOCABULARY, (B, S)), torch.randint(0, VOCABULARY, (B, T))
        lengths = torch.tensor([S, *(rng.randint(1, S) for _ in range(B - 1))])
        attend = torch.arange(S) < lengths[:, None]
        wanted = exact(model, source, prefix, attend=attend)
        close(model(source, prefix, attend=attend), wanted, pattern)
        memory, cache, parts = model.encode(source, attend=attend), model.new_cache(B, 5), []
        for part in prefix.split(rng.choice([1, 2, 7]), dim=1):
            parts.append(model.lm_head(model.hidden(part, memory, cache=cache)))
        close(torch.cat(parts, dim=1), wanted, f"{pattern}, cached")


@torch.no_grad()
def test_packed_documents_see_what_they_would_see_alone(rng: random.Random) -> None:
    for pattern in PATTERNS * 2:
        shape: dict[str, Any] = {"vocab_size": VOCABULARY, "max_seq_len": LENGTH, "dim": 12, "n_layers": 2}
        model = with_large_weights(LlamaConfig(n_heads=3, n_kv_heads=1, attention=pattern, **shape))
        lengths = [rng.randint(1, 20) for _ in range(3)]
        tokens = torch.randint(0, VOCABULARY, (1, sum(lengths)))
        documents = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
        found = model(tokens, documents=documents)
        for part, text in zip(found.split(lengths, dim=1), tokens.split(lengths, dim=1), strict=True):
            close(part, exact(model, text), f"{pattern} {lengths}")


@pytest.mark.parametrize("attention", ["full", "band:3", "band:3+random:2:0", "performer:4", "block:2"])
def test_batches_without_a_token_have_no_error(attention: str) -> None:
    size: dict[str, Any] = {"vocab_size": 9, "max_seq_len": 16, "dim": 8, "n_heads": 2, "n_layers": 1}
    for config in (
        LlamaConfig(hidden_dim=8, attention=attention, **size),
        BertConfig(attention=attention, **size),
    ):
        model = build(config).eval()
        for rows, tokens in ((1, 4), (3, 1), (0, 4), (0, 0)):
            attend = torch.zeros(rows, tokens, dtype=torch.bool)
            found = model.hidden(torch.zeros(rows, tokens, dtype=torch.long), attend=attend)
            assert found.shape == (rows, tokens, 8)


def test_other_attention_is_that_of_a_model_built_with_it() -> None:
    size: dict[str, Any] = {"vocab_size": 13, "max_seq_len": 20, "dim": 12, "n_heads": 2, "n_layers": 2}
    model = with_large_weights(RobertaConfig(attention="longformer:3:1", global_projections=True, **size))
    tokens = torch.randint(0, 13, (2, 17))
    for pattern in ("longformer:3:4", "longformer:2:2,longformer:5:1"):
        other = build(replace(model.config, attention=pattern)).eval()
        other.load_state_dict(model.state_dict())
        set_attention(model, pattern)
        torch.testing.assert_close(model.hidden(tokens), other.hidden(tokens))
    with pytest.raises(ConfigError, match=r"global_projections are for the tokens of 'global:G'"):
        set_attention(model, "band:3")
    with pytest.raises(ConfigError, match=r"linformer:4' has weights of another shape than this model's"):
        set_attention(build(BertConfig(attention="linformer:8", **size)), "linformer:4")
