"""Checkpoint folders on disk, both ways, between wordloom and transformers."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from wordloom.errors import CheckpointError
from wordloom.models import LlamaConfig, build, config_from
from wordloom.nn import pairs_to_halves
from wordloom.text import Tokenizer
from wordloom.weights import load_config, load_model, save_model

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
SHAPE = {"vocab_size": 31, "max_seq_len": 40, "dim": 24, "n_layers": 2, "n_heads": 3}
OURS = {
    "gpt": config_from("gpt", **SHAPE, dropout=0.1, activation="silu"),
    "gpt-untied": config_from("gpt", **SHAPE, tie_embeddings=False, hidden_dim=96),
    "gpt2": config_from("gpt2", **SHAPE, hidden_dim=17, activation="sigmoid"),
    "gpt2-untied": config_from("gpt2", **SHAPE, tie_embeddings=False, activation="identity"),
    "llama": config_from("llama", **SHAPE, n_kv_heads=1, head_dim=10, hidden_dim=20, rope_theta=777.0),
    "llama-tied": config_from("llama", **SHAPE, tie_embeddings=True, dropout=0.2, activation="gelu_tanh"),
    "llama-scaled": config_from(
        "llama", **SHAPE, attention_bias=True, rope_scaling={"rope_type": "linear", "factor": 2.0}
    ),
    "llama-dynamic": config_from(
        "llama",
        **SHAPE,
        rope_scaling={"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 40},
    ),
    "llama-band": config_from("llama", **SHAPE, n_kv_heads=1, attention="band:6"),
    "llama-mixed": config_from("llama", **SHAPE, attention="band:9,full", dropout=0.1),
    "llama-llama3": config_from(
        "llama",
        **SHAPE,
        feed_forward_bias=True,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
}


def tokens_of(*shape: int) -> Tensor:
    return torch.randint(0, 31, shape, generator=torch.Generator().manual_seed(7))


def random_model(config: Any) -> Any:
    model = build(config, generator=torch.Generator().manual_seed(0)).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def greedy(model: Any, tokens: Tensor, n: int) -> Tensor:
    """The reader's own few lines, so that nothing of a generation engine is in the comparison."""
    for _ in range(n):
        logits = model(tokens)
        logits = getattr(logits, "logits", logits)
        tokens = torch.cat([tokens, logits[:, -1:].argmax(dim=-1)], dim=1)
    return tokens


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("shards", ["5GB", "3KB"])
@torch.no_grad()
def test_transformers_reads_what_we_write(name: str, shards: str, tmp_path: Path) -> None:
    model = random_model(OURS[name])
    save_model(model, tmp_path / "out", max_shard_size=shards)
    theirs, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert theirs.dtype == torch.float32
    theirs.eval()
    tokens = tokens_of(2, 13)
    torch.testing.assert_close(model(tokens), theirs(tokens).logits, **TOLERANCE)
    torch.testing.assert_close(model(tokens_of(1, 40)), theirs(tokens_of(1, 40)).logits, **TOLERANCE)
    generated = theirs.generate(
        tokens, max_new_tokens=12, do_sample=False, pad_token_id=0, attention_mask=torch.ones_like(tokens)
    )
    assert generated.tolist() == greedy(model, tokens, 12).tolist()


@torch.no_grad()
def test_we_read_what_transformers_writes(folder_pair: Any, tmp_path: Path) -> None:
    tokens = tokens_of(2, 13)
    for name, settings in {"whole": {}, "shards": {"max_shard_size": "3KB"}}.items():
        folder_pair.theirs.save_pretrained(tmp_path / name, **settings)
        model = load_model(tmp_path / name)
        assert model.config == folder_pair.ours.config
        assert not model.training
        torch.testing.assert_close(model(tokens), folder_pair.theirs(tokens).logits, **TOLERANCE)
        for key, tensor in folder_pair.ours.state_dict().items():
            assert torch.equal(model.state_dict()[key], tensor), key
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_folders_both_ways(folder_pair: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    tokens = tokens_of(2, 13)
    folder_pair.theirs.to(dtype).save_pretrained(tmp_path / "theirs")
    stored = load_model(tmp_path / "theirs")
    assert {p.dtype for p in stored.parameters()} == {dtype}
    widened = load_model(tmp_path / "theirs", dtype=torch.float32)
    right = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", dtype=torch.float32).eval()
    torch.testing.assert_close(widened(tokens), right(tokens).logits, **TOLERANCE)
    save_model(folder_pair.ours, tmp_path / "ours", dtype=dtype)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert theirs.dtype == dtype  # config.json says so
    torch.testing.assert_close(theirs.float()(tokens).logits, widened(tokens), **TOLERANCE)


@torch.no_grad()
def test_base_model_folders_have_no_prefix_and_no_head(folder_pair: Any, tmp_path: Path) -> None:
    base = getattr(folder_pair.theirs, folder_pair.theirs.base_model_prefix)
    base.save_pretrained(tmp_path)
    if not folder_pair.ours.config.tie_embeddings:
        with pytest.raises(CheckpointError, match=r"lacks lm_head\.weight"):
            load_model(tmp_path)
        return
    tokens = tokens_of(2, 13)
    torch.testing.assert_close(load_model(tmp_path)(tokens), folder_pair.theirs(tokens).logits, **TOLERANCE)


@pytest.mark.parametrize(
    ("head", "case", "told"),
    [
        ("GPT2DoubleHeadsModel", "gpt2", "a multiple choice head"),
        ("OpenAIGPTDoubleHeadsModel", "openai-gpt", "a multiple choice head"),
    ],
)
def test_heads_of_other_tasks_are_told_once_and_left(
    head: str, case: str, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shape = {"vocab_size": 31, "hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2}
    config = AutoConfig.for_model(case, **shape, tie_word_embeddings=True)
    theirs = getattr(transformers, head)(config)
    theirs.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    load_model(tmp_path)
    messages = [record.message for record in caplog.records if told in record.message]
    assert len(messages) == 1
    embedding = theirs.get_input_embeddings().weight
    assert torch.equal(model.token_embedding.weight, embedding)


def test_old_pickled_gpt2_folders_with_masks_and_without_prefix(tmp_path: Path) -> None:
    """As the first GPT-2 folders were: pytorch_model.bin, h.0..., attn.bias and attn.masked_bias."""
    config = transformers.GPT2Config(vocab_size=31, n_positions=8, n_embd=24, n_head=3, n_layer=2)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    state = {key.removeprefix("transformer."): value for key, value in theirs.state_dict().items()}
    for i in range(2):
        state[f"h.{i}.attn.bias"] = torch.ones(8, 8).tril().to(torch.uint8)[None, None]
        state[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    assert "lm_head.weight" in state  # a duplicate of wte.weight, equal to it
    theirs.config.save_pretrained(tmp_path)
    tokens = tokens_of(2, 8)
    for zipped in (True, False):
        torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        with torch.no_grad():
            torch.testing.assert_close(load_model(tmp_path)(tokens), theirs(tokens).logits, **TOLERANCE)


def test_rotary_frequencies_in_old_llama_folders_are_known(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=31, hidden_size=24, intermediate_size=20, num_attention_heads=4, num_hidden_layers=2
    )
    theirs = transformers.LlamaForCausalLM(config)
    theirs.save_pretrained(tmp_path, state_dict=theirs.state_dict())
    state = theirs.state_dict() | {
        f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(3) for i in range(2)
    }
    (tmp_path / "model.safetensors").unlink()
    torch.save(state, tmp_path / "pytorch_model.bin")
    assert torch.equal(load_model(tmp_path).lm_head.weight, theirs.lm_head.weight)


@pytest.mark.parametrize("name", OURS)
def test_transformers_sees_the_same_settings(name: str) -> None:
    """Its config, made from ours and saved again by it, is read back as ours."""
    from wordloom.weights import config_from_json, config_to_json

    written = config_to_json(OURS[name], {"bos_token_id": 1, "eos_token_id": 2})
    theirs = AutoConfig.for_model(**written)
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (1, 2, None)
    assert config_from_json(theirs.to_dict()) == OURS[name]


@pytest.mark.parametrize(
    "config",
    [
        config_from("gpt", **SHAPE, positions="sinusoidal"),
        config_from("gpt", **SHAPE, output_bias=True),
        config_from("gpt2", **SHAPE, bias=False),
        config_from("llama", **{**SHAPE, "dim": 20}, head_dim=6),
    ],
)
def test_transformers_refuses_what_it_would_read_wrongly(config: Any, tmp_path: Path) -> None:
    save_model(random_model(config), tmp_path / "out")
    with pytest.raises(ValueError, match="wordloom-"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "out")


def test_a_folder_with_its_tokenizer_serves_both_libraries(tmp_path: Path) -> None:
    text = "the cat sat on the mat. the dog sat on the log. " * 20
    tokenizer = Tokenizer.train([text], kind="bpe", vocab_size=280)
    config = config_from("llama", **SHAPE | {"vocab_size": tokenizer.vocab_size})
    save_model(random_model(config), tmp_path, tokenizer=tokenizer, generation={"max_new_tokens": 9})
    ids = tokenizer.encode_ids("the cat on the log")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)("the cat on the log")["input_ids"] == list(
        ids
    )
    assert list(Tokenizer.from_pretrained(tmp_path).encode_ids("the cat on the log")) == list(ids)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert theirs.config.eos_token_id == theirs.generation_config.eos_token_id == tokenizer.eos_id
    assert theirs.config.pad_token_id == theirs.generation_config.pad_token_id == tokenizer.pad_id
    assert theirs.generation_config.max_new_tokens == 9
    assert load_model(tmp_path).config == config


DATA = os.environ.get("WORDLOOM_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="WORDLOOM_DATA is not set")


@needs_data
@torch.no_grad()
def test_a_trained_llama() -> None:
    folder = Path(DATA or "") / "weights/stories260K/hf"
    model = load_model(folder)
    assert model.config == LlamaConfig(
        vocab_size=512, max_seq_len=512, dim=64, n_layers=5, n_heads=8, n_kv_heads=4, hidden_dim=172,
        norm_eps=1e-5, tie_embeddings=True,
    )  # fmt: skip
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = torch.randint(3, 512, (2, 200), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(tokens), theirs(tokens).logits, **TOLERANCE)
    prompt = torch.tensor([[1, 403, 407, 261, 378]])
    generated = theirs.generate(
        prompt, max_new_tokens=60, do_sample=False, attention_mask=torch.ones_like(prompt)
    )
    assert generated.tolist() == greedy(model, prompt, generated.shape[1] - 5).tolist()


@needs_data
def test_rotary_pairs_of_the_original_file_become_halves() -> None:
    """The same model in the paper's convention: its wq and wk, permuted, are the folder's."""
    folder = Path(DATA or "") / "weights/stories260K"
    raw = torch.frombuffer(bytearray((folder / "stories260K.bin").read_bytes()[28:]), dtype=torch.float32)
    V, D, L, H, E = 512, 64, 5, 8, 8
    start = V * D + L * D  # after the embedding and the attention norms
    wq = raw[start : start + L * D * D].view(L, D, D)
    wk = raw[start + L * D * D :][: L * D * D // 2].view(L, D // 2, D)
    model = load_model(folder / "hf")
    for i, block in enumerate(model.blocks):
        for weight, projection in ((wq[i], block.attention.q_proj), (wk[i], block.attention.k_proj)):
            assert torch.equal(pairs_to_halves(weight, head_dim=E), projection.weight)
            assert not torch.equal(weight, projection.weight)
    assert H * E == D


@needs_data
def test_real_configs_are_read_as_they_are(tmp_path: Path) -> None:
    folder = Path(DATA or "") / "weights/stories260K/hf"
    written = json.loads((folder / "config.json").read_text())
    assert load_config(folder).rope_theta == written["rope_theta"]
    (tmp_path / "config.json").write_text(json.dumps(written | {"rope_theta": 5000, "rope_scaling": None}))
    assert load_config(tmp_path).rope_theta == 5000
