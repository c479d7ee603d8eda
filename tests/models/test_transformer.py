"""The 2017 Transformer: both sides, its positions, its cache, its settings."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from wordloom.errors import ConfigError, GenerationError
from wordloom.models import MODELS, PRESETS, Memory, TransformerConfig, build, config_from, skeleton
from wordloom.models.building.cost import flops_per_token, kv_cache_bytes_per_token
from wordloom.models.transformer import POSITIONS
from wordloom.nn import set_attention_backend, sinusoidal_positions

V, SOURCE_V = 29, 23
SHAPE: dict[str, Any] = {"vocab_size": V, "max_seq_len": 16, "dim": 16, "n_layers": 2, "n_heads": 4}
UNTIED: dict[str, Any] = {"share_embeddings": False, "tie_embeddings": False}
CONFIGS = {
    "paper": TransformerConfig(**SHAPE, n_decoder_layers=1),
    "biases": TransformerConfig(
        **SHAPE, attention_bias=True, output_bias=True, positions="sinusoidal_halves"
    ),
    "pre": TransformerConfig(**SHAPE, norm_place="pre", scale_embeddings=False, activation="swish_learnt"),
    "two vocabularies": TransformerConfig(
        **SHAPE, source_vocab_size=SOURCE_V, share_embeddings=False, n_decoder_layers=3, hidden_dim=20
    ),
    "untied": TransformerConfig(**SHAPE, positions="none", tie_embeddings=False),
    "learned": TransformerConfig(**SHAPE, **UNTIED, positions="learned"),
    "rotary": TransformerConfig(**SHAPE, positions="rotary", norm_place="pre", attention_bias=True),
    "one-hot": TransformerConfig(**SHAPE | {"dim": 24}, **UNTIED, positions="one_hot"),
}
EVERY = pytest.mark.parametrize("name", list(CONFIGS))


def model_of(config: TransformerConfig | str, **changes: Any) -> Any:
    """A model whose weights are large enough that every part of it shows in the logits."""
    config = CONFIGS[config] if isinstance(config, str) else config
    generator = torch.Generator().manual_seed(0)
    model = build(replace(config, **changes), generator=generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.2, generator=generator))
    return model.eval()


def tokens_of(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(0, SOURCE_V, shape, generator=torch.Generator().manual_seed(seed))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@EVERY
@torch.no_grad()
def test_padding_on_either_side_and_of_either_text_changes_nothing(name: str) -> None:
    model, S, T, lengths = model_of(name), 9, 7, ((9, 4), (4, 7), (1, 1))
    sources = [tokens_of(1, length, seed=length) for length, _ in lengths]
    prefixes = [tokens_of(1, length, seed=length + 50) for _, length in lengths]
    alone = [model(source, prefix)[0] for source, prefix in zip(sources, prefixes, strict=True)]
    for side in ("left", "right"):
        padded, attend = tokens_of(3, S, seed=5), torch.zeros(3, S, dtype=torch.bool)
        written = tokens_of(3, T, seed=6)
        for row, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
            length = source.shape[1]
            real = slice(S - length, S) if side == "left" else slice(0, length)
            padded[row, real], attend[row, real] = source[0], True
            written[row, : prefix.shape[1]] = prefix[0]  # these are padded on the right alone
        logits = model(padded, written, attend=attend)
        assert logits.isfinite().all()
        for row, expected in enumerate(alone):
            close(logits[row, : len(expected)], expected)


@EVERY
@torch.no_grad()
def test_the_prefix_sees_the_whole_source_and_nothing_that_comes(name: str) -> None:
    model, source, prefix = model_of(name), tokens_of(2, 9), tokens_of(2, 8)
    before = model(source, prefix)
    for t in (0, 3, 7):
        changed = prefix.clone()
        changed[:, t] = (changed[:, t] + 7) % SOURCE_V
        after = model(source, changed)
        close(after[:, :t], before[:, :t])
        assert ((after[:, t:] - before[:, t:]).abs().amax(dim=(0, 2)) > 1e-4).all()
        changed = source.clone()
        changed[:, t] = (changed[:, t] + 7) % SOURCE_V
        assert ((model(changed, prefix) - before).abs().amax(dim=(0, 2)) > 1e-4).all()


@EVERY
@given(data=st.data())
@settings(max_examples=12, deadline=None)
@torch.no_grad()
def test_cached_equals_uncached_for_any_chunks_and_rows(name: str, data: st.DataObject) -> None:
    """Beams of the sources multiply, change places and leave between the chunks."""
    model, draw = model_of(name), data.draw
    source = tokens_of(3, 6, seed=draw(st.integers(0, 99)))
    attend = (
        torch.arange(6) < torch.tensor(draw(st.lists(st.integers(0, 6), min_size=3, max_size=3)))[:, None]
    )
    memory = model.encode(source, attend=attend if draw(st.booleans()) else None)
    chunks = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    written = tokens_of(3, sum(chunks), seed=draw(st.integers(0, 99)))[:, :16]
    cache = model.new_cache(3, draw(st.integers(1, 16)))
    reads = torch.arange(3)  # the source of each row
    start = 0
    for chunk in chunks:
        stop = min(start + chunk, written.shape[1])
        if start == stop:
            break
        whole = model.hidden(written[:, :stop], memory.select(reads))
        given = (
            memory if draw(st.booleans()) else memory.select(reads)
        )  # after the first chunk it is not read
        part = model.hidden(written[:, start:stop], given if start else memory, cache=cache)
        close(part, whole[:, start:])
        start = stop
        assert cache.lengths.eq(stop).all()
        rows = torch.tensor(draw(st.lists(st.integers(0, len(reads) - 1), min_size=1, max_size=6)))
        if draw(st.booleans()):  # every row as often
            rows = rows.sort().values.unique().repeat_interleave(draw(st.integers(1, 3)))
        cache.select(rows)
        reads, written = reads[rows], written[rows]


@torch.no_grad()
def test_beams_share_what_is_kept_of_their_source() -> None:
    model = model_of("paper")
    source, attend = tokens_of(3, 6), torch.arange(6) < torch.tensor([[6], [3], [2]])
    memory, cache = model.encode(source, attend=attend), model.new_cache(3, 8)

    def step(rows: list[int]) -> tuple[int, int]:
        cache.select(torch.tensor(rows))
        model.hidden(tokens_of(len(rows), 1), memory, cache=cache)
        keys, values = cache.layer(0).source
        assert len(keys) == len(values) == len(cache.source_attend)
        return len(keys), keys.data_ptr()

    model.hidden(tokens_of(3, 1), memory, cache=cache)
    first = step([0, 0, 1, 1, 2, 2])
    assert first[0] == 3
    assert step([1, 0, 3, 3, 5, 4]) == first  # within their sources: nothing was copied
    assert step([2, 3, 5, 5])[0] == 2  # the first source's have left
    assert torch.equal(cache.source_attend, attend[1:])
    assert step([0, 1, 2])[0] == 3  # not as many of each: every row keeps its own
    assert step([2])[0] == 1


@torch.no_grad()
def test_several_prefixes_of_one_source_are_read_as_if_each_had_its_own() -> None:
    model, memory = model_of("pre"), model_of("pre").encode(tokens_of(2, 6))
    prefixes = tokens_of(6, 5, seed=3)
    repeated = memory.select(torch.arange(2).repeat_interleave(3))
    close(model.hidden(prefixes, memory), model.hidden(prefixes, repeated))
    with pytest.raises(RuntimeError, match="shape"):
        model.hidden(prefixes[:5], memory)


@torch.no_grad()
def test_an_empty_source_is_read_as_nothing() -> None:
    model, prefix = model_of("paper", attention_bias=False), tokens_of(2, 4)
    attend = torch.tensor([[False] * 5, [True] * 5])
    logits = model(tokens_of(2, 5), prefix, attend=attend)
    assert logits.isfinite().all()
    other = model(tokens_of(2, 5, seed=9), prefix, attend=attend)
    close(logits[0], other[0])
    assert (logits[1] - other[1]).abs().max() > 1e-3


@torch.no_grad()
def test_an_encoder_without_positions_is_permutation_equivariant() -> None:
    source, order = tokens_of(2, 9), torch.randperm(9, generator=torch.Generator().manual_seed(0))
    attend = torch.arange(9) < torch.tensor([[9], [5]])
    for positions in POSITIONS:
        model = model_of("one-hot", positions=positions)
        plain = model.encode(source, attend=attend).values[:, order]
        moved = model.encode(source[:, order], attend=attend[:, order]).values
        real = attend[:, order]
        assert torch.allclose(plain[real], moved[real], atol=1e-5) == (positions == "none"), positions


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("k", [1, 7, 100])
def test_the_table_k_positions_on_is_a_linear_map_of_it(layout: str, k: int) -> None:
    table = sinusoidal_positions(400, 32, layout=layout).double()
    turn = torch.zeros(32, 32, dtype=torch.float64)
    for i in range(16):
        angle = k * 10000 ** (-2 * i / 32)
        sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, 16 + i)
        turn[sine, sine] = turn[cosine, cosine] = math.cos(angle)
        turn[sine, cosine], turn[cosine, sine] = math.sin(angle), -math.sin(angle)
    torch.testing.assert_close(table[:-k] @ turn.t(), table[k:], rtol=0, atol=1e-6)


@torch.no_grad()
def test_positions_that_are_added_and_positions_that_stand_behind() -> None:
    source = tokens_of(2, 5)
    x = model_of("one-hot").embedded(source, torch.arange(5)[None], is_source=True)
    close(x[..., :8], model_of("one-hot").source_embedding(source) * math.sqrt(24))
    assert torch.equal(x[..., 8:], torch.eye(16)[:5].expand(2, 5, 16))
    table = sinusoidal_positions(16, 16)
    for name in ("paper", "pre"):
        model = model_of(name)
        scaled = model.token_embedding(source) * (4 if model.config.scale_embeddings else 1)
        close(model.embedded(source, torch.arange(5)[None], is_source=True), scaled + table[:5])
    model = model_of("learned")
    sides = (model.source_position_embedding, model.position_embedding)
    for side, is_source in zip(sides, (True, False), strict=True):
        x = model.embedded(source, torch.arange(5)[None], is_source=is_source)
        embedding = model.source_embedding if is_source else model.token_embedding
        close(x - 4 * embedding(source), side.weight[:5].expand(2, 5, 16))


@torch.no_grad()
def test_exact_attention_gives_the_alignment() -> None:
    model, source, prefix = model_of("paper", n_decoder_layers=2), tokens_of(2, 6), tokens_of(2, 4)
    attend = torch.arange(6) < torch.tensor([[6], [4]])
    fast = model(source, prefix, attend=attend)
    set_attention_backend(model, "exact")
    alignments: list[Tensor] = []
    for block in model.decoder_blocks:
        block.cross_attention.recorded = alignments
    close(model(source, prefix, attend=attend), fast)
    assert [each.shape for each in alignments] == [(2, 4, 4, 6)] * 2  # [B, H, T, S]
    for weights in alignments:
        close(weights.sum(-1), torch.ones(2, 4, 4))
        assert not weights[1, ..., 4:].any()


@EVERY
def test_init_weights_sets_every_parameter(name: str) -> None:
    config = CONFIGS[name]
    with torch.device("meta"):
        model = MODELS["transformer"].model(config)
    model.to_empty(device="cpu")
    model.tie_weights()
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data.fill_(torch.nan)
    model.init_weights(torch.Generator().manual_seed(3))
    again = build(config, generator=torch.Generator().manual_seed(3))
    for key, tensor in model.state_dict().items():
        assert tensor.isfinite().all(), key
        assert torch.equal(tensor, again.state_dict()[key]), key
    other = build(config, generator=torch.Generator().manual_seed(4))
    assert not torch.equal(model.token_embedding.weight, other.token_embedding.weight)
    assert (model.lm_head.weight is model.token_embedding.weight) == config.tie_embeddings
    assert (model.source_embedding is None) == config.share_embeddings


def test_matrices_begin_by_xavier_and_embeddings_as_large_as_positions() -> None:
    model = build(TransformerConfig(vocab_size=400, dim=256, n_layers=1, n_heads=4, **UNTIED))
    block = model.decoder_blocks[0]
    for layer in (block.cross_attention.q_proj, block.feed_forward.up_proj, block.feed_forward.down_proj):
        bound = math.sqrt(6 / sum(layer.weight.shape))
        assert 0.98 * bound < layer.weight.abs().max() <= bound
    for weight in (model.token_embedding.weight, model.source_embedding.weight, model.lm_head.weight):
        assert weight.std().item() == pytest.approx(1 / 16, rel=0.02)


@EVERY
def test_one_batch_is_learnt_by_heart(name: str) -> None:
    model = build(CONFIGS[name], generator=torch.Generator().manual_seed(0)).train()
    source, targets = tokens_of(3, 7), tokens_of(3, 6, seed=2)
    prefix = F.pad(targets[:, :-1], (1, 0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(150):
        loss = F.cross_entropy(model(source, prefix).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


@EVERY
def test_gradient_reaches_every_parameter(name: str) -> None:
    model = model_of(name).train()
    model(tokens_of(2, 16), tokens_of(2, 16, seed=2)).square().mean().backward()
    turned = model.config.positions == "rotary"
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        # a bias on keys shifts all scores of a query alike, which softmax does not see (rotary turns it)
        if not key.endswith("k_proj.bias") or (turned and "cross" not in key):
            assert parameter.grad.abs().max() > 1e-7, key


PLACES: dict[str, tuple[dict[str, float], tuple[str, ...]]] = {
    "the embedding sum": ({"embedding_dropout": 0.5}, ("o_proj", "down_proj")),
    "attention weights": ({"attention_dropout": 0.5}, ("down_proj",)),
    "activations": ({"activation_dropout": 0.5}, ("o_proj",)),
    "after attention": ({"dropout": 0.5, "embedding_dropout": 0.0}, ("down_proj",)),
    "after feed-forward": ({"dropout": 0.5, "embedding_dropout": 0.0}, ("o_proj",)),
}


@pytest.mark.parametrize("name", ["paper", "pre"])
@pytest.mark.parametrize("place", PLACES)
@torch.no_grad()
def test_dropout_acts_at_each_of_its_places_in_training_alone(name: str, place: str) -> None:
    changes, silenced = PLACES[place]
    model, plain, texts = model_of(name, **changes), model_of(name), (tokens_of(2, 8), tokens_of(2, 6))
    _silence(model, *silenced)
    _silence(plain, *silenced)
    assert torch.equal(model(*texts), plain(*texts))
    model.train()
    assert (model(*texts) - model(*texts)).abs().max() > 1e-3
    _silence(model, "o_proj", "down_proj")  # nothing is left to drop but the embedding
    assert torch.equal(model(*texts), model(*texts)) == (place != "the embedding sum")


def _silence(model: nn.Module, *projections: str) -> None:
    for key, parameter in model.named_parameters():
        if any(f".{projection}." in key for projection in projections):
            parameter.zero_()


@pytest.mark.parametrize("name", ["paper", "learned", "one-hot"])
def test_a_position_past_the_table_is_an_error_not_a_crash(name: str) -> None:
    model = model_of(name)
    for texts in ((tokens_of(1, 17), tokens_of(1, 2)), (tokens_of(1, 2), tokens_of(1, 17))):
        with pytest.raises(GenerationError, match="position 16 lies past max_seq_len 16"):
            model(*texts)


@EVERY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_stays_near_float32(name: str, dtype: torch.dtype) -> None:
    model, texts = model_of(name), (tokens_of(2, 9), tokens_of(2, 7))
    full = model(*texts)
    low = model.to(dtype)(*texts)
    assert low.dtype == dtype
    scale = full.abs().max().item()
    torch.testing.assert_close(
        low.float(), full, rtol=0, atol=scale * (0.1 if dtype == torch.bfloat16 else 0.02)
    )


@pytest.mark.parametrize(
    ("preset", "without", "with_biases"),
    [("transformer-base", 63_045_632, 63_082_496), ("transformer-big", 214_171_648, 214_245_376)],
)
def test_the_papers_sizes(preset: str, without: int, with_biases: int) -> None:
    for attention_bias, count in ((False, without), (True, with_biases)):
        model = skeleton(replace(PRESETS[preset], attention_bias=attention_bias))
        assert sum(parameter.numel() for parameter in model.parameters()) == count


@EVERY
def test_costs_are_of_a_source_and_a_target_token_together(name: str) -> None:
    B, T = 2, 16
    model = model_of(name)
    set_attention_backend(model, "math")  # whose matrix products the counter sees one by one
    texts = (tokens_of(B, T), tokens_of(B, T))
    counter = FlopCounterMode(display=False)
    with counter:
        model(*texts).sum().backward()
    assert flops_per_token(model.config, context=T).training * B * T == counter.get_total_flops()
    cache = model.new_cache(B, T)
    model.hidden(texts[1], model.encode(texts[0]), cache=cache)
    held = [part.nbytes for layer in cache.layers for part in (layer.keys, layer.values, *layer.source)]
    assert kv_cache_bytes_per_token(model.config, element_bytes=4) * B * T == sum(held)


def test_memory_without_padding_has_no_mask() -> None:
    memory = model_of("paper").encode(tokens_of(2, 5))
    assert isinstance(memory, Memory)
    assert (memory.attend, memory.state) == (None, ())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"positions": "sinusoid"}, "unknown positions 'sinusoid'; did you mean 'sinusoidal'"),
        ({"norm_place": "before"}, "unknown norm_place 'before'; allowed: post, pre"),
        ({"source_vocab_size": 7}, "share_embeddings needs one vocabulary, not 7 source tokens and 29; set"),
        ({"source_vocab_size": 0}, "source_vocab_size must be a whole number above 0"),
        ({"n_decoder_layers": 3000}, "n_decoder_layers can be 2,000 at most, not 3,000"),
        ({"dim": 15, "n_heads": 3}, "sinusoidal positions need an even number of components, not 15"),
        ({"dim": 12, "positions": "rotary"}, "rotary positions need an even number of components, not 3"),
        ({"positions": "one_hot"}, "one_hot positions take 16 (max_seq_len) of dim's 16 components and the"),
        ({"positions": "one_hot", "dim": 20}, "raise dim above max_seq_len and set tie_embeddings to false"),
        ({"dim": 18}, "dim 18 does not divide into 4 heads"),
        ({"activation_dropout": 1.0}, "activation_dropout is a share"),
        ({"norm_eps": 0.0}, "norm_eps must be a number above 0"),
        ({"nhead": 2}, "it is called 'n_heads' here"),
        ({"num_decoder_layers": 2}, "it is called 'n_decoder_layers' here"),
        ({"norm_first": True}, "it is called 'norm_place' here"),
        ({"n_kv_heads": 2}, "unknown setting 'n_kv_heads' of model family 'transformer'"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from("transformer", **SHAPE | changes)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
