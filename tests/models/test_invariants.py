"""What must hold for every causal model, whatever its paper."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from wordloom.errors import GenerationError
from wordloom.models import MODELS, PRESETS, build, config_from, family_of
from wordloom.nn import set_attention_backend
from wordloom.nn.recurrent import CELLS

SHAPE: dict[str, Any] = {"vocab_size": 29, "max_seq_len": 24, "dim": 16, "n_layers": 2, "n_heads": 4}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 12,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": SHAPE["max_seq_len"]}
CONFIGS = {
    "gpt": config_from("gpt", **SHAPE),
    "gpt-2017": config_from("gpt", **SHAPE, positions="sinusoidal", activation="relu", output_bias=True),
    "gpt2": config_from("gpt2", **SHAPE),
    "gpt2-plain": config_from("gpt2", **SHAPE, bias=False, tie_embeddings=False, activation="swish_learnt"),
    "llama": config_from("llama", **SHAPE, n_kv_heads=2, hidden_dim=24),
    "llama-mqa": config_from(
        "llama", **SHAPE, n_kv_heads=1, head_dim=6, hidden_dim=24, attention_bias=True,
        feed_forward_bias=True, tie_embeddings=True, activation="swish_learnt", rope_theta=500.0,
    ),
    "llama3": config_from("llama", **SHAPE, hidden_dim=24, rope_scaling=LLAMA3),
    "llama-dynamic": config_from("llama", **SHAPE, hidden_dim=24, rope_scaling=DYNAMIC),
}  # fmt: skip
WITH_ATTENTION = pytest.mark.parametrize("name", list(CONFIGS))
RECURRENT: dict[str, Any] = {"vocab_size": 29, "dim": 16, "n_layers": 2}
CONFIGS |= {
    **{cell: config_from("rnn", **RECURRENT, cell=cell, hidden_dim=20) for cell in CELLS},
    "lstm-peephole": config_from("rnn", **RECURRENT, peephole=True, tie_embeddings=True, hidden_dim=12),
    "lstm-projection": config_from("rnn", **RECURRENT, hidden_dim=24, projection=10, init_scale=0.3),
    "gru-plain": config_from("rnn", **RECURRENT, cell="gru", bias=False, output_bias=False),
}
CONFIGS |= {  # with bags that hold the whole text, and with one that leaves tokens behind
    "cbow": config_from("cbow", **RECURRENT, window=24),
    "cbow-odd": config_from("cbow", **RECURRENT, window=11, hidden_dim=7, tie_embeddings=False),
}
EVERY = pytest.mark.parametrize("name", list(CONFIGS))


def model_of(name: str, **changes: Any) -> Any:
    """A model whose weights are large enough that every part of it shows in the logits."""
    generator = torch.Generator().manual_seed(0)
    family = family_of(CONFIGS[name])
    model = build(config_from(family, **vars(CONFIGS[name]) | changes), generator=generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.3, generator=generator))
        if getattr(model.config, "cell", None) == "rnn_relu":  # whose states would grow from step to step
            for block in model.blocks:
                block.hidden_proj.weight.mul_(0.4)
    return model.eval()


def tokens_of(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 29, shape, generator=torch.Generator().manual_seed(seed))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@EVERY
@torch.no_grad()
def test_no_token_sees_a_later_one(name: str) -> None:
    model, tokens = model_of(name), tokens_of(2, 11)
    before = model(tokens)
    for t in (0, 4, 10):
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] + 7) % 29
        after = model(changed)
        close(after[:, :t], before[:, :t])
        assert ((after[:, t:] - before[:, t:]).abs().amax(dim=(0, 2)) > 1e-4).all()


@EVERY
@given(data=st.data())
@settings(max_examples=8, deadline=None)
@torch.no_grad()
def test_cached_equals_uncached_for_any_chunking(name: str, data: st.DataObject) -> None:
    model = model_of(name)
    chunks = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=5))
    T = min(sum(chunks), 24)
    tokens = tokens_of(3, T, seed=data.draw(st.integers(0, 99)))
    shorter = torch.tensor(data.draw(st.lists(st.integers(0, chunks[0] - 1), min_size=3, max_size=3)))
    whole = model(tokens)
    cache = model.new_cache(3, data.draw(st.integers(1, 24)))  # room for less than comes, or all
    start = 0
    for chunk in chunks:
        stop = min(start + chunk, T)
        if start == stop:
            break
        # in the first piece rows have padding behind their tokens; they continue from their own lengths
        T_new, starts = stop - start, cache.lengths
        real = torch.arange(T_new) < T_new - shorter[:, None] if start == 0 else None
        new = torch.stack([row[at : at + T_new] for row, at in zip(tokens, starts.tolist(), strict=True)])
        part = model(new, attend=real, cache=cache)
        assert torch.equal(cache.lengths, starts + T_new - (shorter if start == 0 else 0))
        for row in range(3):
            at, to = int(starts[row]), int(cache.lengths[row])
            close(part[row, : to - at], whole[row, at:to])
        start = stop


@EVERY
@torch.no_grad()
def test_padding_changes_nothing(name: str) -> None:
    model, T = model_of(name), 9
    lengths = (9, 5, 1)
    alone = [tokens_of(1, length, seed=length) for length in lengths]
    for side in ("left", "right"):
        padded, attend = tokens_of(3, T, seed=5), torch.zeros(3, T, dtype=torch.bool)
        for row, tokens in enumerate(alone):
            real = slice(T - lengths[row], T) if side == "left" else slice(0, lengths[row])
            padded[row, real], attend[row, real] = tokens[0], True
        logits = model(padded, attend=attend)
        assert logits.isfinite().all()
        for row, tokens in enumerate(alone):
            close(logits[row, attend[row]], model(tokens)[0])


@EVERY
@torch.no_grad()
def test_rows_do_not_know_one_another(name: str) -> None:
    model, tokens = model_of(name), tokens_of(4, 7)
    order = torch.tensor([2, 0, 3, 1])
    close(model(tokens)[order], model(tokens[order]))
    cache = model.new_cache(4, 8)
    model(tokens[:, :6], cache=cache)
    cache.select(order)
    close(model(tokens[order, 6:], cache=cache), model(tokens[order])[:, 6:])


@torch.no_grad()
def test_dynamic_rotary_past_its_context_turns_by_the_longest_row() -> None:
    """As in transformers: a row computes what it would at the start of a text as long as the longest."""
    model, tokens = model_of("llama-dynamic"), tokens_of(2, 40)
    short = tokens[:1, :26]  # past the context of 24 by itself
    attend = torch.arange(40) < torch.tensor([[26], [40]])
    beside = model(tokens, attend=attend)[:1, :26]
    close(beside, model(tokens[:1])[:, :26])
    assert (beside - model(short)).abs().max() > 1e-3
    close(model(tokens[:, :26])[:1], model(short))  # rows of one length do not know one another


@EVERY
@torch.no_grad()
def test_a_document_mask_equals_running_documents_apart(name: str) -> None:
    model = model_of(name)
    pieces = [tokens_of(1, length, seed=length) for length in (4, 1, 6)]
    packed = torch.cat(pieces, dim=1)
    documents = torch.cat([torch.full((1, p.shape[1]), i) for i, p in enumerate(pieces)], dim=1)
    positions = torch.cat([torch.arange(p.shape[1])[None] for p in pieces], dim=1)
    logits = model(packed, documents=documents, positions=positions)
    close(logits, torch.cat([model(p) for p in pieces], dim=1))
    assert (logits - model(packed)).abs().max() > 1e-3  # and the mask mattered


@WITH_ATTENTION
@torch.no_grad()
def test_fast_and_exact_attention_agree_in_the_whole_model(name: str) -> None:
    model, tokens = model_of(name), tokens_of(2, 8)
    attend = torch.arange(8) >= torch.tensor([[0], [3]])
    fast = model(tokens, attend=attend)
    set_attention_backend(model, "exact")
    close(fast, model(tokens, attend=attend))


@EVERY
@pytest.mark.parametrize("activation", ["relu", "swish_learnt"])
def test_init_weights_sets_every_parameter_and_buffer(name: str, activation: str) -> None:
    config = CONFIGS[name]
    if hasattr(config, "activation"):
        config = replace(config, activation=activation)
    with torch.device("meta"):
        model = MODELS[family_of(config)].model(config)
    model.to_empty(device="cpu")
    model.tie_weights()
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data.fill_(torch.nan)
    model.init_weights(torch.Generator().manual_seed(3))
    for key, tensor in model.state_dict().items():
        assert tensor.isfinite().all(), key
    again = build(config, generator=torch.Generator().manual_seed(3))
    other = build(config, generator=torch.Generator().manual_seed(4))
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[key]), key
    assert not torch.equal(model.token_embedding.weight, other.token_embedding.weight)
    tied = model.lm_head.weight is model.token_embedding.weight
    assert tied == config.tie_embeddings


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_projections_into_the_residual_stream_start_smaller(family: str) -> None:
    model = build(config_from(family, vocab_size=64, dim=128, n_layers=8, n_heads=2, max_seq_len=16))
    block = model.blocks[3]
    for layer in (block.attention.o_proj, block.feed_forward.down_proj):
        assert layer.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)  # sqrt(2 * 8) = 4
    for weight in (
        block.attention.q_proj.weight,
        block.feed_forward.up_proj.weight,
        model.token_embedding.weight,
    ):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)


@EVERY
def test_one_batch_is_learnt_by_heart(name: str) -> None:
    model = build(CONFIGS[name], generator=torch.Generator().manual_seed(0)).train()
    tokens = tokens_of(2, 13)
    recurrent = family_of(CONFIGS[name]) == "rnn"
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    for _ in range(200 if recurrent else 60):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


@EVERY
def test_gradient_reaches_every_parameter(name: str) -> None:
    model = model_of(name).train()
    model(tokens_of(2, 24)).square().mean().backward()
    exempt = family_of(CONFIGS[name]) in ("llama", "rnn")
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        # a bias on keys shifts all scores of a query alike, which softmax does not see (rotary turns it)
        if exempt or not key.endswith("k_proj.bias"):
            assert parameter.grad.abs().max() > 1e-7, key


def silence(model: nn.Module, *projections: str) -> None:
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if any(f".{projection}." in key for projection in projections):
                parameter.zero_()


PLACES = {
    "the embedding sum": ({"embedding_dropout": 0.5, "attention_dropout": 0.0}, ("o_proj", "down_proj")),
    "attention weights": ({"attention_dropout": 0.5, "embedding_dropout": 0.0}, ("down_proj",)),
    "after o_proj": ({"dropout": 0.5, "embedding_dropout": 0.0, "attention_dropout": 0.0}, ("down_proj",)),
    "after feed-forward": ({"dropout": 0.5, "embedding_dropout": 0.0, "attention_dropout": 0.0}, ("o_proj",)),
}


@WITH_ATTENTION
@pytest.mark.parametrize("place", PLACES)
@torch.no_grad()
def test_dropout_acts_at_each_of_its_places_in_training_alone(name: str, place: str) -> None:
    settings, silenced = PLACES[place]
    model, plain, tokens = model_of(name, **settings), model_of(name), tokens_of(2, 8)
    for each in (model, plain):
        silence(each, *silenced)
    torch.manual_seed(0)
    assert torch.equal(model(tokens), plain(tokens))
    model.train()
    first, second = model(tokens), model(tokens)
    assert (first - second).abs().max() > 1e-3
    silence(model, "o_proj", "down_proj")  # nothing is left to drop but the embedding
    still = torch.equal(model(tokens), model(tokens))
    assert still == (place != "the embedding sum")
    model.eval()
    silence(plain, "o_proj", "down_proj")
    assert torch.equal(model(tokens), plain(tokens))


@WITH_ATTENTION
def test_one_dropout_setting_acts_at_all_four_places(name: str) -> None:
    model = model_of(name, dropout=0.25)
    assert model.embedding_dropout == 0.25
    assert all(block.dropout == block.attention.dropout == 0.25 for block in model.blocks)


@pytest.mark.parametrize("name", ["gpt", "gpt-2017", "gpt2"])
def test_a_position_past_the_table_is_an_error_not_a_crash(name: str) -> None:
    with pytest.raises(GenerationError, match="position 24 lies past max_seq_len 24"):
        model_of(name)(tokens_of(1, 25))


@EVERY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_stays_near_float32(name: str, dtype: torch.dtype) -> None:
    model, tokens = model_of(name), tokens_of(2, 9)
    full = model(tokens)
    low = model.to(dtype)(tokens)
    assert low.dtype == dtype
    scale = full.abs().max().item()
    torch.testing.assert_close(
        low.float(), full, rtol=0, atol=scale * (0.1 if dtype == torch.bfloat16 else 0.02)
    )


COUNTS = {
    "gpt": 116_534_784,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama-15m": 15_191_712,
    "llama-42m": 41_689_600,
    "llama-110m": 109_529_856,
    "llama-125m": 124_668_672,
    "lstm-ptb-small": 4_651_600,
    "lstm-ptb-medium": 19_775_200,
    "lstm-ptb-large": 66_022_000,
    "gru-ptb-small": 4_491_200,  # no paper's, by hand: 2 V D + V and two layers of 3 gates, or one
    "gru-ptb-medium": 18_083_900,
    "rnn-ptb-small": 4_170_400,
    "rnn-ptb-medium": 14_701_300,
    "transformer-base": 63_045_632,
    "transformer-big": 214_171_648,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "bert-medium": 41_373_184,
    "bert-small": 28_763_648,
    "bert-mini": 11_170_560,
    "bert-tiny": 4_385_920,
    "roberta-base": 124_645_632,
    "roberta-large": 355_359_744,
    "bert2bert-base": 246_177_594,
    "bert2bert-large": 809_665_718,
}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_have_the_exact_number_of_parameters(preset: str) -> None:
    config = PRESETS[preset]
    with torch.device("meta"):
        model = MODELS[family_of(config)].model(config)
    assert all(parameter.is_meta for parameter in model.parameters())
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == COUNTS[preset]


def test_every_size_the_papers_print_is_a_preset() -> None:
    assert set(COUNTS) <= set(PRESETS)
    for preset in ("llama-7b", "llama-13b", "llama-33b", "llama-65b"):
        assert (PRESETS[preset].norm_eps, PRESETS[preset].max_seq_len) == (1e-6, 2048)
    for preset in ("llama2-7b", "llama2-13b", "llama2-70b"):
        assert (PRESETS[preset].norm_eps, PRESETS[preset].max_seq_len) == (1e-5, 4096)
    hidden = {name: PRESETS[name].ffn_dim for name in COUNTS if name.startswith("llama")}
    assert [hidden[f"llama-{size}"] for size in ("7b", "13b", "33b", "65b")] == [11008, 13824, 17920, 22016]
    # llama2.c rounds 8/3 dim up to a multiple of 32
    assert [hidden[f"llama-{size}"] for size in ("15m", "42m", "110m")] == [768, 1376, 2048]
    assert (hidden["llama2-70b"], PRESETS["llama2-70b"].kv_heads) == (28672, 8)
