"""The tables of names: total, reversible, strict."""

from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wordloom.errors import CheckpointError
from wordloom.models import MODELS, build, config_from, family_of
from wordloom.weights import Renaming, Row, renaming_of, stored_state
from wordloom.weights.configs import FORMATS

TEXT_MODELS = sorted(family for family, form in FORMATS.items() if form.generates)
TABLED = [family for family in TEXT_MODELS if FORMATS[family].table]  # the others have names of our own alone
SHAPE: dict[str, Any] = {"vocab_size": 11, "max_seq_len": 8, "dim": 12, "n_layers": 3, "n_heads": 2}


@st.composite
def configs(draw: st.DrawFn) -> Any:
    family = draw(st.sampled_from(TEXT_MODELS))
    has = {field.name for field in fields(MODELS[family].config)}
    extra: dict[str, Any] = {"n_layers": draw(st.integers(1, 12))}
    if "tie_embeddings" in has:
        extra["tie_embeddings"] = draw(st.booleans())
    if family == "bert_generation":
        extra |= {"n_decoder_layers": draw(st.sampled_from([None, 1, 4])), "source_vocab_size": 9}
    if family == "llama":
        extra |= {
            "attention_bias": draw(st.booleans()),
            "feed_forward_bias": draw(st.booleans()),
            "n_kv_heads": draw(st.sampled_from([None, 1])),
            "head_dim": draw(st.sampled_from([None, 8])),
            "hidden_dim": 20,
        }
    if family == "gpt":
        extra |= {
            "output_bias": draw(st.booleans()),
            "positions": draw(st.sampled_from(["learned", "sinusoidal"])),
        }
    if family == "gpt2":
        extra |= {"bias": draw(st.booleans()), "hidden_dim": draw(st.sampled_from([None, 20]))}
    if family == "transformer":
        extra |= {
            "share_embeddings": draw(st.booleans()),
            "n_decoder_layers": draw(st.sampled_from([None, 1, 4])),
            "positions": draw(st.sampled_from(["sinusoidal", "sinusoidal_halves", "learned"])),
            "attention_bias": draw(st.booleans()),
            "output_bias": draw(st.booleans()),
        }
    shape = {key: value for key, value in SHAPE.items() if key in has}
    return config_from(family, **shape | extra)


@given(configs())
@settings(max_examples=25, deadline=None)
def test_there_and_back_is_the_same_bits(config: Any) -> None:
    state = build(config).state_dict()
    renaming = renaming_of(config)
    theirs = renaming.to_theirs(state)
    stored = sum(theirs[row.theirs].numel() for row in renaming.rows if row.ours)  # the others are zeros
    assert stored == sum(p.numel() for p in build(config).parameters())
    assert not any(theirs[row.theirs].any() for row in renaming.rows if not row.ours)
    back = renaming.to_ours(theirs)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)
    again = renaming.to_theirs(back)
    assert again.keys() == theirs.keys()
    assert all(torch.equal(again[name], theirs[name]) for name in theirs)
    assert ("lm_head.weight" in theirs) != config.tie_embeddings


def test_gpt2s_layout_is_conv1d_with_q_k_and_v_in_one() -> None:
    model = build(config_from("gpt2", **SHAPE))
    theirs, attention = stored_state(model), model.blocks[1].attention
    torch.nn.init.normal_(attention.q_proj.bias)
    fused = stored_state(model)["transformer.h.1.attn.c_attn.weight"]
    assert fused.shape == (12, 36)
    for i, layer in enumerate((attention.q_proj, attention.k_proj, attention.v_proj)):
        assert torch.equal(fused[:, 12 * i : 12 * (i + 1)], layer.weight.t())
    assert torch.equal(stored_state(model)["transformer.h.1.attn.c_attn.bias"][:12], attention.q_proj.bias)
    up_proj = model.blocks[2].feed_forward.up_proj
    assert theirs["transformer.h.2.mlp.c_fc.weight"].shape == (12, 48)
    assert torch.equal(theirs["transformer.h.2.mlp.c_fc.weight"], up_proj.weight.t())


@pytest.mark.parametrize("family", TABLED)
def test_names_without_prefix_are_the_same_names(family: str) -> None:
    model = build(config_from(family, **SHAPE))
    renaming = renaming_of(model.config)
    prefix = FORMATS[family].prefixes[0]
    bare = {
        name.removeprefix(prefix): tensor for name, tensor in renaming.to_theirs(model.state_dict()).items()
    }
    assert not any(name.startswith(prefix) for name in bare)
    for name, tensor in renaming.to_ours(bare).items():
        assert torch.equal(tensor, model.state_dict()[name])


def test_missing_and_unexpected_names_are_listed() -> None:
    config = config_from("gpt2", **SHAPE)
    renaming = renaming_of(config)
    state = renaming.to_theirs(build(config).state_dict())
    del state["transformer.h.0.ln_1.bias"]
    state["transformer.h.0.ln_9.bias"] = torch.zeros(1)
    with pytest.raises(CheckpointError) as caught:
        renaming.to_ours(state)
    assert "lacks transformer.h.0.ln_1.bias" in str(caught.value)
    assert "holds the unknown transformer.h.0.ln_9.bias" in str(caught.value)
    ours = build(config).state_dict()
    ours["blocks.0.extra"] = ours.pop("blocks.0.attention_norm.weight")
    with pytest.raises(CheckpointError, match=r"lacks blocks\.0\.attention_norm.* unknown blocks\.0\.extra"):
        renaming.to_theirs(ours)


def test_non_parameters_are_known_by_name_not_by_luck() -> None:
    config = config_from("gpt2", **SHAPE)
    renaming = renaming_of(config)
    names = list(renaming.to_theirs(build(config).state_dict()))
    known = ["h.0.attn.bias", "transformer.h.2.attn.masked_bias", "score.weight"]
    assert set(renaming.match([*names, *known]).ignored) == set(known)
    for stranger in ("h.0.attn.bias2", "attn.bias", "x.h.0.attn.bias", "rotary_emb.inv_freq"):
        with pytest.raises(CheckpointError, match="unknown"):
            renaming.match([*names, stranger])


def test_a_tied_copy_must_be_equal() -> None:
    config = config_from("llama", **SHAPE, tie_embeddings=True)
    renaming = renaming_of(config)
    state = renaming.to_theirs(build(config).state_dict())
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    assert torch.equal(renaming.to_ours(state)["lm_head.weight"], state["lm_head.weight"])
    only_head = {k: v for k, v in state.items() if k != "model.embed_tokens.weight"}
    assert torch.equal(renaming.to_ours(only_head)["token_embedding.weight"], state["lm_head.weight"])
    state["lm_head.weight"][0, 0] += 1
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs .*\"tie_word_embeddings\": false"):
        renaming.to_ours(state)
    ours = build(config).state_dict()
    ours["lm_head.weight"] = ours["lm_head.weight"] + 1
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from token_embedding\.weight"):
        renaming.to_theirs(ours)


def test_a_tensor_stored_under_two_spellings_is_refused() -> None:
    config = config_from("gpt2", **SHAPE)
    renaming = renaming_of(config)
    names = [*renaming.to_theirs(build(config).state_dict()), "wte.weight"]
    with pytest.raises(CheckpointError, match=r"transformer\.wte\.weight is stored twice"):
        renaming.match(names)


def test_a_table_with_a_hole_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match=r"no row of the table holds b"):
        Renaming.of([Row("x", ("a",))], names=["a", "b"], n_layers=1)


@pytest.mark.parametrize("family", TABLED)
def test_every_row_of_a_table_is_used_by_some_model(family: str) -> None:
    settings: list[dict[str, Any]] = [{"tie_embeddings": False}]
    if family == "llama":
        settings[0] |= {"attention_bias": True, "feed_forward_bias": True}
    config = config_from(family, **SHAPE | settings[0])
    assert family_of(config) == family
    used = {row.theirs.replace(".0.", ".{i}.") for row in renaming_of(config).rows}
    assert {row.theirs for row in FORMATS[family].table} <= used
