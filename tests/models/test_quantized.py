"""Weights in 8 bits: what they stand for, the compiled programs against a slow twin, and what is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.generate.random_models import WITH_PROGRAMS, model_of, reader_of
from torch import Tensor
from torch.nn import functional as F

import wordloom
from wordloom.errors import WordloomError
from wordloom.generate import Sampling, steps
from wordloom.generate.decoder import next_logits
from wordloom.generate.fast import Accelerated, accelerate
from wordloom.kernels.decoding.leaves import project
from wordloom.models import BertConfig, GPT2Config, LlamaConfig, RNNConfig, build
from wordloom.models.building.quantized import QUANTIZED_FAMILIES, quantize_model
from wordloom.nn.quantized import GROUP, Int8Linear, dequantize, quantize
from wordloom.text import Tokenizer
from wordloom.weights import save_model

CPU = torch.device("cpu")


def twin(weight: Tensor) -> Tensor:
    """Return what weight [N, K] stands for in 8 bits, group by group."""
    found = torch.zeros_like(weight)
    for n, k in np.ndindex(len(weight), -(-weight.shape[1] // GROUP)):
        group = weight[n, k * GROUP : (k + 1) * GROUP]
        exact = float(group.abs().max()) / 127
        scale = float(torch.tensor(exact).bfloat16())
        while scale < exact:
            scale = float(torch.nextafter(torch.tensor(scale).bfloat16(), torch.tensor(np.inf).bfloat16()))
        if scale:
            found[n, k * GROUP : (k + 1) * GROUP] = (group / scale).round() * scale
    return found


def test_groups_have_a_scale_each(rng: random.Random) -> None:
    for N, K in ((1, 1), (3, 31), (2, 32), (5, 33), (4, 100), (1, 64)):
        weight = torch.randn(N, K) * 10.0 ** rng.randint(-6, 4)
        weight[rng.randrange(N)] *= rng.choice([0, 1, 1e-3])
        found = dequantize(quantize(weight), N, K)
        torch.testing.assert_close(found, twin(weight), atol=0, rtol=1e-6)
        bound = F.pad(weight, (0, -K % GROUP)).view(N, -1, GROUP).abs().amax(dim=-1).max() / 127
        assert float((found - weight).abs().max()) <= 0.51 * float(bound) * 1.01
        rows = torch.randint(N, (2, 3))
        assert torch.equal(dequantize(quantize(weight), N, K, rows), found[rows])


@given(
    R=st.sampled_from([1, 2, 3, 4, 5, 8, 9]), N=st.integers(1, 41), K=st.integers(1, 130),
    threads=st.integers(1, 2), add=st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_the_product_is_that_of_the_float_weight(R: int, N: int, K: int, threads: int, add: bool) -> None:
    weight, x = torch.randn(N, K), np.random.default_rng(R + K).standard_normal((R, K)).astype(np.float32)
    packed, bias = quantize(weight), np.arange(N, dtype=np.float32)
    out = np.ones((R, N), dtype=np.float32)
    for thread in range(threads):
        project(out, x, packed.data_ptr(), bias, add, np.empty(0, np.int8), thread, threads)
    wanted = x.astype(np.float64) @ dequantize(packed, N, K).double().numpy().T + bias + add
    np.testing.assert_allclose(out, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", QUANTIZED_FAMILIES)
def test_programs_compute_what_the_modules_do(family: str) -> None:
    @settings(max_examples=8, deadline=None)
    @given(config=WITH_PROGRAMS[family], rows=st.sampled_from([1, 3, 5]), seed=st.integers(0, 2**31))
    def hold(config: Any, rows: int, seed: int) -> None:
        model = model_of(config, seed)
        accelerate(reader_of(model, rows, seed))  # of the float weights
        quantize_model(model)
        reader = reader_of(model, rows, seed)
        program = accelerate(reader)
        assert isinstance(program, Accelerated)
        tokens = torch.randint(config.vocab_size, (rows, 9), generator=torch.Generator().manual_seed(seed))
        found = []
        with torch.inference_mode():
            for each in (program, reader):
                cache = each.new_cache(rows, 4)
                logits = [next_logits(each, tokens[:, :3].tolist(), device=CPU, cache=cache).float().clone()]
                for t in range(3, 9):
                    hidden = each.hidden(tokens[:, t : t + 1], cache=cache)
                    logits.append(each.lm_head(hidden)[:, -1].float().clone())
                found.append(torch.stack(logits))
        scale = float(found[1].abs().max())
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4 * scale)

    hold()


def test_a_tied_head_shares_the_table_and_twins_agree(rng: random.Random) -> None:
    config = LlamaConfig(vocab_size=37, max_seq_len=40, dim=40, n_layers=2, n_heads=2, tie_embeddings=True)
    model, slow = build(config).eval(), build(config).eval()
    slow.load_state_dict(model.state_dict())
    quantize_model(model)
    assert model.lm_head.packed is model.token_embedding.packed
    for name, module in model.named_modules():
        if isinstance(module, Int8Linear):
            slow.get_submodule(name).weight.data = twin(slow.get_submodule(name).weight.data)
    tokens = torch.randint(0, 37, (2, 17))
    torch.testing.assert_close(model(tokens), slow(tokens), atol=1e-5, rtol=1e-4)
    settings_: dict[str, Any] = {"sampling": Sampling(temperature=0, max_new_tokens=15)}
    found = [[step.id for step in steps(each, [[1, 2]], **settings_)] for each in (model, slow)]
    assert found[0] == found[1]


def test_what_is_refused(tmp_path: Path) -> None:
    for config in (RNNConfig(vocab_size=9, dim=8), BertConfig(vocab_size=9, dim=8, n_heads=1, n_layers=1)):
        with pytest.raises(WordloomError, match="dtype 'int8' is for models of these families: gpt, gpt2"):
            quantize_model(build(config))
    model = build(GPT2Config(vocab_size=9, dim=8, n_heads=1, n_layers=1))
    quantize_model(model)
    with pytest.raises(WordloomError, match=r"weights in 8 bits .* cannot be saved"):
        save_model(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_loaded_in_8_bits(tmp_path: Path, rng: random.Random) -> None:
    text = "The dog sat on the mat. " * 20
    tokenizer = Tokenizer.train([text], kind="byte")
    config = LlamaConfig(vocab_size=tokenizer.vocab_size, max_seq_len=64, dim=32, n_layers=2, n_heads=4)
    model = build(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0, 0.2)
    save_model(model, tmp_path / "m", tokenizer=tokenizer)
    exact, small = wordloom.load(tmp_path / "m"), wordloom.load(tmp_path / "m", dtype="int8")
    tokens = torch.randint(0, 250, (1, 30))
    logits, near = exact.model(tokens), small.model(tokens)
    assert 0 < float((near - logits).norm()) < 0.05 * float(logits.norm())
    plain = small.generate("The", seed=1, max_new_tokens=20)
    assert small.generate("The", seed=1, max_new_tokens=20, speculate="lookup") == plain
    size = sum(p.numel() for p in exact.model.parameters())
    packed = sum(buffer.numel() for buffer in small.model.buffers())
    rest = sum(p.numel() for p in small.model.parameters())
    assert packed + 4 * rest < 1.2 * size
