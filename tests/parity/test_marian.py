"""The 2017 Transformer in a folder that transformers reads as Marian's, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForSeq2SeqLM, MarianConfig, MarianMTModel

from wordloom.errors import CheckpointError
from wordloom.generate import Conditioned, beam_search
from wordloom.models import MODELS, TransformerConfig, build
from wordloom.weights import (
    config_from_json,
    config_to_json,
    load_model,
    load_state,
    renaming_of,
    save_model,
)

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
V, SOURCE_V = 31, 27
EOS, PAD = 2, 0
SHAPE: dict[str, Any] = {"vocab_size": V, "max_seq_len": 40, "dim": 24, "n_layers": 2, "n_heads": 3}
TWO: dict[str, Any] = {"source_vocab_size": SOURCE_V, "share_embeddings": False}
OURS = {
    "paper": TransformerConfig(**SHAPE),
    "all biases": TransformerConfig(**SHAPE, attention_bias=True, output_bias=True, dropout=0.1),
    "halves": TransformerConfig(
        **SHAPE, positions="sinusoidal_halves", attention_bias=True, n_decoder_layers=3, hidden_dim=20
    ),
    "two vocabularies": TransformerConfig(**SHAPE, **TWO, output_bias=True, scale_embeddings=False),
    "untied": TransformerConfig(
        **SHAPE, **TWO, tie_embeddings=False, activation="silu", embedding_dropout=0.2, activation_dropout=0.1
    ),
    "two matrices of one vocabulary": TransformerConfig(
        **SHAPE, share_embeddings=False, attention_dropout=0.1
    ),
}
MARIAN: dict[str, Any] = {
    "vocab_size": V, "max_position_embeddings": 40, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20,
    "pad_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": EOS, "forced_eos_token_id": EOS,
}  # fmt: skip
SEPARATE: dict[str, Any] = {
    "share_encoder_decoder_embeddings": False, "vocab_size": SOURCE_V, "decoder_vocab_size": V
}  # fmt: skip
THEIRS: dict[str, dict[str, Any]] = {
    "usual": {},
    "opus": {"scale_embedding": True, "activation_function": "swish", "decoder_layers": 3},
    "two vocabularies": {**SEPARATE, "activation_function": "relu"},
    "untied": {**SEPARATE, "tie_word_embeddings": False},
    "nothing tied": {"tie_word_embeddings": False},
}
EVERY = pytest.mark.parametrize("name", OURS)
FOREIGN = pytest.mark.parametrize("name", THEIRS)


class Ids:
    """What a tokenizer says of its tokens."""

    vocab_size, bos_id, eos_id, pad_id = V, None, EOS, PAD

    def save_pretrained(self, folder: Any) -> None: ...


def tokens_of(*shape: int, seed: int = 7) -> Tensor:
    return torch.randint(3, SOURCE_V, shape, generator=torch.Generator().manual_seed(seed))


def random_model(config: TransformerConfig) -> Any:
    model = build(config, generator=torch.Generator().manual_seed(0)).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def marian(name: str) -> Any:
    """One of theirs, its final_logits_bias included."""
    torch.manual_seed(3)
    theirs = MarianMTModel(MarianConfig(**MARIAN | THEIRS[name])).eval()
    with torch.no_grad():
        for parameter in [p for p in theirs.parameters() if p.requires_grad] + [theirs.final_logits_bias]:
            parameter.add_(0.2 * torch.randn_like(parameter))
    return theirs


def texts() -> tuple[Tensor, Tensor, Tensor]:
    """Sources, which of their tokens are real, prefixes."""
    attend = torch.arange(9) < torch.tensor([[9], [5], [1]])
    return tokens_of(3, 9) * attend, attend, F.pad(tokens_of(3, 6, seed=8), (1, 0), value=PAD)


def same_logits(ours: Any, theirs: Any) -> None:
    source, attend, prefix = texts()
    expected = theirs(input_ids=source, attention_mask=attend.long(), decoder_input_ids=prefix).logits
    torch.testing.assert_close(ours(source, prefix, attend=attend), expected, **TOLERANCE)


def written(theirs: Any, beams: int) -> list[list[int]]:
    source, attend, _ = texts()
    made = theirs.generate(
        source, attention_mask=attend.long(), num_beams=beams, do_sample=False, max_new_tokens=15,
        num_return_sequences=beams,
    )  # fmt: skip
    return made.tolist()


def greedy(model: Any, n: int) -> list[list[int]]:
    """The reader's own few lines: PAD first, EOS where the room ends, PAD after EOS."""
    source, attend, _ = texts()
    memory, prefix = model.encode(source, attend=attend), torch.full((3, 1), PAD)
    cache = model.new_cache(3, n)
    for step in range(n):
        best = model.lm_head(model.hidden(prefix[:, -1:], memory, cache=cache))[:, -1].argmax(-1)
        best[(prefix == EOS).any(1)] = PAD
        if step == n - 1:
            best[~(prefix == EOS).any(1)] = EOS
        prefix = torch.cat([prefix, best[:, None]], dim=1)
        if (prefix == EOS).any(1).all():
            break
    return prefix.tolist()


@EVERY
@pytest.mark.parametrize("shards", ["5GB", "3KB"])
@torch.no_grad()
def test_transformers_reads_what_we_write(name: str, shards: str, tmp_path: Path) -> None:
    model = random_model(OURS[name])
    save_model(model, tmp_path, max_shard_size=shards, tokenizer=Ids())
    theirs, info = MarianMTModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert theirs.dtype == torch.float32
    same_logits(model, theirs.eval())
    assert written(theirs, 1) == greedy(model, 15)


@EVERY
@torch.no_grad()
def test_beams_of_both_libraries_are_the_same(name: str, tmp_path: Path) -> None:
    model = random_model(OURS[name])
    save_model(model, tmp_path, tokenizer=Ids())
    theirs = MarianMTModel.from_pretrained(tmp_path).eval()
    source, attend, _ = texts()
    reading = Conditioned(model, model.encode(source, attend=attend))
    found = beam_search(
        reading, [[PAD]] * 3, beams=5, n_best=5, max_new_tokens=15, eos_ids=[EOS], forced_eos_id=EOS
    )
    ours = [list(hypothesis.ids) for row in found for hypothesis in row]
    assert [_ended(ids) for ids in ours] == [_ended(ids[1:]) for ids in written(theirs, 5)]


def _ended(ids: list[int]) -> list[int]:
    """Up to the first EOS."""
    return ids[: ids.index(EOS)] if EOS in ids else ids


@EVERY
@torch.no_grad()
def test_saved_by_transformers_it_is_still_ours(name: str, tmp_path: Path) -> None:
    """It drops position tables and tied copies when it saves, and keeps settings that it does not know."""
    model = random_model(OURS[name])
    save_model(model, tmp_path / "ours", tokenizer=Ids())
    theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert type(theirs) is MarianMTModel
    theirs.save_pretrained(tmp_path / "theirs")
    for folder in ("ours", "theirs"):
        loaded = load_model(tmp_path / folder)
        assert loaded.config == model.config
        state = loaded.state_dict()
        assert state.keys() == model.state_dict().keys()
        for key, tensor in model.state_dict().items():
            assert torch.equal(state[key], tensor), key


@EVERY
@torch.no_grad()
def test_without_our_settings_it_is_the_same_model_in_marians_order(name: str, tmp_path: Path) -> None:
    model = random_model(OURS[name])
    save_model(model, tmp_path, tokenizer=Ids())
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("wordloom", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = load_model(tmp_path)
    assert loaded.config.positions == "sinusoidal_halves"
    source, attend, prefix = texts()
    torch.testing.assert_close(
        loaded(source, prefix, attend=attend), model(source, prefix, attend=attend), rtol=1e-5, atol=1e-5
    )


@FOREIGN
@torch.no_grad()
def test_we_read_what_transformers_writes_and_write_it_again(name: str, tmp_path: Path) -> None:
    theirs = marian(name)
    theirs.save_pretrained(tmp_path / "theirs")
    model = load_model(tmp_path / "theirs")
    assert not model.training
    same_logits(model, theirs)
    assert written(theirs, 1) == greedy(model, 15)
    save_model(model, tmp_path / "ours", tokenizer=Ids())
    again = MarianMTModel.from_pretrained(tmp_path / "ours").eval()
    same_logits(model, again)
    state = again.state_dict()
    for key, tensor in theirs.state_dict().items():
        if key != "model.shared.weight" or key in state:  # which nothing reads where nothing is tied
            assert torch.equal(state[key], tensor), key
    assert written(again, 1) == written(theirs, 1)
    assert written(again, 5) == written(theirs, 5)


@torch.no_grad()
def test_beams_are_those_of_the_same_model_in_the_other_order(tmp_path: Path) -> None:
    """An interleaved model is stored permuted: theirs, given the weights as they are, finds other beams."""
    model = random_model(OURS["paper"])
    save_model(model, tmp_path / "permuted", tokenizer=Ids())
    halves = MODELS["transformer"].model(TransformerConfig(**SHAPE, positions="sinusoidal_halves")).eval()
    halves.load_state_dict(model.state_dict())
    save_model(halves, tmp_path / "as it is", tokenizer=Ids())
    right, wrong = (
        MarianMTModel.from_pretrained(tmp_path / name).eval() for name in ("permuted", "as it is")
    )
    same_logits(model, right)
    same_logits(halves, wrong)
    source, attend, prefix = texts()
    assert (model(source, prefix, attend=attend) - halves(source, prefix, attend=attend)).abs().max() > 0.1


@FOREIGN
def test_gradients(name: str) -> None:
    theirs = marian(name)
    model: Any = MODELS["transformer"].model(config_from_json(theirs.config.to_dict())).eval()
    renaming = renaming_of(model.config)
    model.load_state_dict(renaming.to_ours(theirs.state_dict()))
    model.tie_weights()
    source, attend, prefix = texts()
    targets = tokens_of(3, 7, seed=9)
    for logits in (
        model(source, prefix, attend=attend),
        theirs(input_ids=source, attention_mask=attend.long(), decoder_input_ids=prefix).logits,
    ):
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    ours, found = dict(model.named_parameters()), dict(theirs.named_parameters())
    for row in renaming.rows:
        if row.theirs == "final_logits_bias":  # no parameter there
            continue
        gradient, (expected,) = ours[row.ours[0]].grad, row.split(found[row.theirs].grad)
        if row.theirs.endswith(("shared.weight", "embed_tokens.weight")):  # padding learns nothing there
            gradient, expected = gradient[PAD + 1 :], expected[PAD + 1 :]
        torch.testing.assert_close(gradient, expected, **TOLERANCE)


def test_the_settings_that_they_need(tmp_path: Path) -> None:
    save_model(random_model(OURS["paper"]), tmp_path, tokenizer=Ids())
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["wordloom"] == {"positions": "sinusoidal", "attention_bias": False, "output_bias": False}
    for key, value in {
        "model_type": "marian", "architectures": ["MarianMTModel"], "scale_embedding": True,
        "activation_function": "relu", "decoder_start_token_id": PAD, "pad_token_id": PAD,
        "eos_token_id": EOS, "forced_eos_token_id": EOS, "is_encoder_decoder": True,
    }.items():  # fmt: skip
        assert config[key] == value, key
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert (generation["decoder_start_token_id"], generation["forced_eos_token_id"]) == (PAD, EOS)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
        assert not file.get_tensor("final_logits_bias").any()
        assert not file.get_tensor("model.decoder.layers.1.encoder_attn.q_proj.bias").any()
    assert not any("embed_positions" in name for name in names)
    assert not {"lm_head.weight", "model.decoder.embed_tokens.weight"} & names


def test_a_model_saved_without_a_tokenizer_is_read_too(tmp_path: Path) -> None:
    save_model(random_model(OURS["two vocabularies"]), tmp_path)
    with torch.no_grad():
        same_logits(load_model(tmp_path), MarianMTModel.from_pretrained(tmp_path).eval())


@EVERY
def test_transformers_sees_the_same_settings(name: str) -> None:
    theirs = AutoConfig.for_model(**config_to_json(OURS[name], {"eos_token_id": EOS, "pad_token_id": PAD}))
    assert (theirs.eos_token_id, theirs.pad_token_id, theirs.decoder_start_token_id) == (EOS, PAD, PAD)
    assert config_from_json(theirs.to_dict()) == OURS[name]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_folders(dtype: torch.dtype, tmp_path: Path) -> None:
    save_model(random_model(OURS["paper"]), tmp_path, dtype=dtype, tokenizer=Ids())
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {dtype}
    assert MarianMTModel.from_pretrained(tmp_path).dtype == dtype
    assert {p.dtype for p in load_model(tmp_path).parameters()} == {dtype}
    theirs = MarianMTModel.from_pretrained(tmp_path, dtype=torch.float32)
    same_logits(load_model(tmp_path, dtype=torch.float32), theirs.eval())


@torch.no_grad()
def test_old_folders_with_tables_and_every_tied_copy(tmp_path: Path) -> None:
    """As the first ones were: pytorch_model.bin with the position tables and four names of one matrix."""
    theirs = marian("opus")
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    theirs.config.save_pretrained(tmp_path)
    assert {"model.encoder.embed_positions.weight", "lm_head.weight"} <= theirs.state_dict().keys()
    same_logits(load_model(tmp_path), theirs)
    state = theirs.state_dict() | {"model.encoder.embed_tokens.weight": torch.zeros(V, 24)}
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(
        CheckpointError, match=r"encoder\.embed_tokens\.weight differs from model\.shared\.weight"
    ):
        load_model(tmp_path)


def test_biases_learnt_there_that_our_settings_deny_are_an_error_before_anything_is_changed(
    tmp_path: Path,
) -> None:
    model = random_model(OURS["paper"])
    save_model(model, tmp_path, tokenizer=Ids())
    state = load_file(tmp_path / "model.safetensors")
    state["model.encoder.layers.1.self_attn.v_proj.bias"][3] = 0.5
    save_file(state, tmp_path / "model.safetensors")
    other = build(OURS["paper"])
    before = {key: tensor.clone() for key, tensor in other.state_dict().items()}
    for load in (lambda: load_model(tmp_path), lambda: load_state(other, tmp_path)):
        with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.v_proj\.bias is not zero, and"):
            load()
    assert all(torch.equal(tensor, before[key]) for key, tensor in other.state_dict().items())


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_place": "pre"},
        {"positions": "learned"},
        {"positions": "rotary"},
        {"positions": "none"},
        {"positions": "one_hot", "dim": 48, "share_embeddings": False, "tie_embeddings": False},
        {"norm_eps": 1e-6},
        {"activation": "swish_learnt"},
        {"tie_embeddings": False},
    ],
)
def test_what_transformers_would_compute_otherwise_it_refuses(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    model = random_model(TransformerConfig(**SHAPE | changes))
    save_model(model, tmp_path, tokenizer=Ids())
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "wordloom-transformer"
    with pytest.raises(ValueError, match="wordloom-transformer"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.config == model.config
    assert all(torch.equal(loaded.state_dict()[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"decoder_attention_heads": 4},
            "unsupported setting decoder_attention_heads = 4; only 3 is computed",
        ),
        ({"decoder_ffn_dim": 7}, "unsupported setting decoder_ffn_dim = 7"),
        ({"decoder_vocab_size": 7}, "unsupported setting decoder_vocab_size = 7; only 31"),
        (
            {"decoder_start_token_id": 5},
            "decoder_start_token_id = 5; the decoder starts with pad_token_id 0",
        ),
        ({"activation_function": "quick_gelu"}, "unsupported activation activation_function = 'quick_gelu'"),
        (
            {"d_model": 25, "encoder_attention_heads": 5, "decoder_attention_heads": 5},
            "even number of components",
        ),
    ],
)
def test_what_we_would_compute_otherwise_is_refused_by_name(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        config_from_json({"model_type": "marian"} | MARIAN | changes)
    assert says in str(caught.value)
