"""Weights in 8 bits: what they stand for, the compiled programs against a slow twin, and what is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numba
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
from wordloom.kernels import integer_products, registers
from wordloom.kernels.decoding.integers import MANY_ROWS, integers_room, project_integers
from wordloom.kernels.integer_products import (
    PANEL,
    integer_panel,
    integer_tile,
    narrow,
    narrowed_bytes,
    panel_bytes,
)
from wordloom.models import (
    BertConfig,
    BertGenerationConfig,
    GPT2Config,
    LlamaConfig,
    RNNConfig,
    TransformerConfig,
    build,
)
from wordloom.models.building import quantized
from wordloom.models.building.quantized import QUANTIZED_FAMILIES, quantize_model
from wordloom.nn.head import head_loss
from wordloom.nn.linear import has_fast_bf16
from wordloom.nn.quantized import (
    GROUP,
    MOST_EXACT_ROWS,
    Int8Embedding,
    Int8Linear,
    dequantize,
    narrowed,
    quantize,
)
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
    for N, K in ((1, 1), (3, 63), (2, 64), (5, 65), (4, 100), (1, 128)):
        weight = torch.randn(N, K) * 10.0 ** rng.randint(-6, 4)
        weight[rng.randrange(N)] *= rng.choice([0, 1, 1e-3])
        found = dequantize(quantize(weight), N, K)
        torch.testing.assert_close(found, twin(weight), atol=0, rtol=1e-6)
        bound = F.pad(weight, (0, -K % GROUP)).view(N, -1, GROUP).abs().amax(dim=-1).max() / 127
        assert float((found - weight).abs().max()) <= 0.51 * float(bound) * 1.01
        rows = torch.randint(N, (2, 3))
        assert torch.equal(dequantize(quantize(weight), N, K, rows), found[rows])


def narrowed_twin(x: np.ndarray) -> np.ndarray:
    """Return x [R, K] as groups of 16-bit integers and their scales stand for it, in float64."""
    found = x.astype(np.float64)
    for r, k in np.ndindex(len(x), -(-x.shape[1] // GROUP)):
        group = x[r, k * GROUP : (k + 1) * GROUP]
        top = np.abs(group).max()
        factor = np.float32(32767) / top if top >= 1e-30 else 0
        integers = np.rint(np.float64(group) * factor)
        found[r, k * GROUP : (k + 1) * GROUP] = integers * np.float64(top / np.float32(32767))
    return found


@given(
    R=st.sampled_from([1, 2, 3, 5, *range(MANY_ROWS - 1, MANY_ROWS + 3)]), N=st.integers(1, 71),
    K=st.integers(1, 130), threads=st.integers(1, 2), add=st.booleans(), seed=st.integers(0, 2**32),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_the_product_is_that_of_integers(R: int, N: int, K: int, threads: int, add: bool, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((R, K)).astype(np.float32)
    x *= 10.0 ** generator.integers(-3, 3, size=K)  # outliers
    x[:, : K // 2] *= generator.choice([1, 0, 1e-37])
    weight = torch.randn(N, K, generator=torch.Generator().manual_seed(seed))
    packed, bias = quantize(weight), np.arange(N, dtype=np.float32)
    out = np.ones((R, N), dtype=np.float32)
    for thread in range(threads):
        room = np.full(integers_room(R, K), 255, dtype=np.uint8)
        project_integers(out, x, packed.data_ptr(), bias, add, room, thread, threads)
    near = narrowed_twin(x)
    np.testing.assert_allclose(narrowed(torch.from_numpy(x)), near, rtol=1e-6, atol=4e-5 * np.abs(x).max())
    wide = dequantize(packed, N, K).double().numpy()
    size = np.abs(near) @ np.abs(wide).T + np.abs(bias) + 1
    np.testing.assert_array_less(np.abs(out - (near @ wide.T + bias + add)), 1e-6 * size)
    assert np.abs(near - x).max() <= np.abs(x).max() / 32767


def test_a_product_with_what_is_no_number_is_none(rng: random.Random) -> None:
    for bad in (np.nan, np.inf, -np.inf, -np.nan):
        for R in (3, MANY_ROWS + 1):
            K, N = rng.choice([1, 31, 70]), 5
            packed, x = quantize(torch.randn(N, K)), np.ones((R, K), dtype=np.float32)
            x[1, rng.randrange(K)] = bad
            out, room = np.zeros((R, N), dtype=np.float32), np.zeros(integers_room(R, K), dtype=np.uint8)
            project_integers(out, x, packed.data_ptr(), np.empty(0, np.float32), False, room, 0, 1)
            assert not np.isfinite(out[1]).any()
            assert np.isfinite(np.delete(out, 1, axis=0)).all()


def product_by_tile(kernel: Any) -> Any:
    @numba.njit
    def product(x: Any, room: Any, weight: int, out: Any, there: int) -> None:
        K = x.shape[1]
        row = narrowed_bytes(K)
        for r in range(x.shape[0]):
            narrow(x[r], room.ctypes.data + r * row)
        kernel(weight, K, weight + 3 * K, there, room.ctypes.data, row, K, out.ctypes.data, 3, 1, False)

    return product


def product_by_panel(kernel: Any, pack_panel: Any) -> Any:
    @numba.njit
    def product(x: Any, room: Any, weight: int, out: Any, there: int) -> None:
        K = x.shape[1]
        row, whole = narrowed_bytes(K), np.zeros((x.shape[0], PANEL), np.float32)
        for r in range(x.shape[0]):
            narrow(x[r], room.ctypes.data + r * row)
        panel = room.ctypes.data + x.shape[0] * row
        pack_panel(weight, weight + 3 * K, there, 0, K, panel)
        kernel(panel, room.ctypes.data, row, K, False, whole.ctypes.data, PANEL)
        out[:, :there] = whole[:, :there]

    return product


def test_every_kernel_has_the_same_bits_with_and_without_the_instruction(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    K, there = GROUP * rng.choice([1, 7, 8, 13, 33]), rng.randint(1, 3)
    in_tile, in_panel = rng.choice([1, 2, 4]), rng.choice([1, 2, 3])  # tokens; each takes seconds to compile
    packed = quantize(torch.randn(3, K))
    x = np.random.default_rng(K).standard_normal((4, K)).astype(np.float32)
    wanted = narrowed_twin(x) @ dequantize(packed, 3, K).double().numpy().T
    found = []
    for instruction in (registers._PAIRS, ""):
        monkeypatch.setattr(registers, "_PAIRS", instruction)
        pack_panel = registers.vector_kernel(integer_products.write_pack_panel)
        products = [
            (in_tile, product_by_tile(integer_tile(in_tile))),
            (in_panel, product_by_panel(integer_panel(in_panel), pack_panel)),
        ]
        for tokens, product in products:
            out = np.zeros((tokens, 3), np.float32)
            room = np.zeros(4 * narrowed_bytes(K) + panel_bytes(K), np.uint8)
            product(x[:tokens], room, packed.data_ptr(), out, there)
            np.testing.assert_allclose(out[:, :there], wanted[:tokens, :there], atol=1e-3, rtol=1e-3)
            assert not out[:, there:].any()
            found.append(out)
    longest = max(found, key=len)
    assert all(np.array_equal(out, longest[: len(out)]) for out in found)


@given(N=st.integers(1, 70), K=st.integers(1, 900), seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_a_row_has_the_same_bits_beside_any_others(N: int, K: int, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((MANY_ROWS + 2, K)).astype(np.float32)
    packed = quantize(torch.randn(N, K, generator=torch.Generator().manual_seed(seed)))
    found = []
    many = len(x)
    for rows in (range(many), *([r] for r in range(many)), range(3), range(5, many), range(1, many)):
        out = np.zeros((len(rows), N), np.float32)
        room = np.zeros(integers_room(len(rows), K), np.uint8)
        some = np.ascontiguousarray(x[list(rows)])
        project_integers(out, some, packed.data_ptr(), np.empty(0, np.float32), False, room, 0, 1)
        found.append(out)
    whole = found[0]
    assert np.array_equal(whole, np.concatenate(found[1 : many + 1]))
    for first, last, out in ((0, 3, found[-3]), (5, many, found[-2]), (1, many, found[-1])):
        assert np.array_equal(whole[first:last], out)


CAUSAL = ("gpt", "gpt2", "llama")


@pytest.mark.parametrize("family", QUANTIZED_FAMILIES)
def test_programs_compute_what_the_modules_do(family: str) -> None:
    # where the last bit of a sum differs, a number may round to the next of 65,535 steps, or a key or value
    # of a causal model to the next bfloat16, 2^-8 away
    assert_programs_are_the_modules(family, close=2e-2 if family in CAUSAL else 1e-3)


def test_with_keys_and_values_in_float32_programs_are_closer(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One family in each run: compiling its program takes many seconds, and no other test needs it."""
    monkeypatch.setattr(quantized, "KEPT_DTYPE", torch.float32)
    family = rng.choice(CAUSAL)
    print(family)
    assert_programs_are_the_modules(family, close=1e-3, examples=2)


def assert_programs_are_the_modules(family: str, *, close: float, examples: int = 8) -> None:
    """Compare the logits of random models of ``family``, to a relative difference of ``close``."""

    @settings(max_examples=examples, deadline=None)
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
        torch.testing.assert_close(found[0], found[1], rtol=close, atol=close * scale)

    hold()


@pytest.mark.parametrize("bias", [True, False])
def test_many_rows_are_multiplied_in_bfloat16_where_it_is_fast(bias: bool, rng: random.Random) -> None:
    for _ in range(10):
        N, K, R = rng.randint(1, 150), rng.randint(1, 300), rng.choice([1, 63, 64, 65, 66, 97, 200])
        linear = torch.nn.Linear(K, N, bias=bias)
        x = torch.randn(2, R, K)
        found = Int8Linear(linear)(x).detach()
        linear.weight.data = twin(linear.weight.data)
        wanted = linear(x).detach()
        short = 2 * R > MOST_EXACT_ROWS and has_fast_bf16(CPU)
        assert found.dtype == torch.float32
        close = 2**-7 if short else 1e-4
        assert float((found - wanted).norm()) <= close * float(wanted.norm())
        assert not short or float((found - wanted).norm()) > 0


def test_a_tied_head_shares_the_table_and_twins_agree(rng: random.Random) -> None:
    config = LlamaConfig(vocab_size=37, max_seq_len=40, dim=40, n_layers=2, n_heads=2, tie_embeddings=True)
    model, slow = build(config).eval(), build(config).eval()
    slow.load_state_dict(model.state_dict())
    quantize_model(model)
    assert model.lm_head.packed is model.token_embedding.packed
    for name, module in model.named_modules():
        if isinstance(module, Int8Linear):
            linear = slow.get_submodule(name)
            linear.weight.data = twin(linear.weight.data)
            linear.register_forward_pre_hook(lambda _module, given: (narrowed(given[0]),))
    for block in slow.blocks:
        block.attention.kept_dtype = torch.bfloat16
    tokens = torch.randint(0, 37, (2, 17))
    # an input that rounds to the next of its 32,767 steps changes a logit by some 1e-5
    torch.testing.assert_close(model(tokens), slow(tokens), atol=5e-5, rtol=1e-4)
    settings_: dict[str, Any] = {"sampling": Sampling(temperature=0, max_new_tokens=15)}
    found = [[step.id for step in steps(each, [[1, 2]], **settings_)] for each in (model, slow)]
    assert found[0] == found[1]


@pytest.mark.parametrize("positions", ["learned", "one_hot"])
@torch.no_grad()
def test_the_embedding_of_sources_has_8_bits_too(positions: str, rng: random.Random) -> None:
    V, S, heads = rng.randint(5, 90), rng.randint(5, 90), rng.choice([1, 3])
    sizes: dict[str, Any] = {"vocab_size": V, "source_vocab_size": S, "max_seq_len": 9, "dim": heads * 22}
    sizes |= {"n_layers": 1, "n_heads": heads}
    for config in (
        TransformerConfig(**sizes, share_embeddings=False, tie_embeddings=False, positions=positions),
        BertGenerationConfig(**sizes),
    ):
        model = build(config).eval()
        source, prefix = torch.randint(S, (2, 7)), torch.randint(V, (2, 5))
        exact, table = model(source, prefix), model.source_embedding.weight.detach().clone()
        quantize_model(model)
        assert isinstance(model.source_embedding, Int8Embedding)
        torch.testing.assert_close(model.source_embedding(source), twin(table)[source], atol=0, rtol=1e-6)
        assert float((model(source, prefix) - exact).norm()) < 0.05 * float(exact.norm())
        learned = [name for name, p in model.named_parameters() if p.dim() > 1 and "position" not in name]
        assert not learned
        packed = {id(buffer): buffer.nbytes for buffer in model.buffers() if buffer.dtype == torch.uint8}
        stored = sum(packed.values()) + sum(parameter.nbytes for parameter in model.parameters())
        assert quantized.int8_bytes(config) == stored


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
    config = LlamaConfig(vocab_size=tokenizer.vocab_size, max_seq_len=64, dim=64, n_layers=2, n_heads=4)
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
    assert packed + 4 * rest < 1.2 * size  # dim and hidden_dim are whole groups


def test_the_loss_of_a_head_in_8_bits_is_that_of_its_logits(rng: random.Random) -> None:
    for N, D, V in ((1, 1, 1), (7, 63, 5), (300, 65, 131)):
        head = Int8Linear(torch.nn.Linear(D, V, bias=rng.random() < 0.5))
        targets = torch.randint(V, (N,))
        targets[torch.rand(N) < 0.2] = -100
        found, expected = (torch.randn(N, D, requires_grad=True) for _ in range(2))
        expected.data.copy_(found.data)
        loss = head_loss(head, found, targets)
        plain = F.cross_entropy(head(expected), targets, ignore_index=-100, reduction="sum")
        torch.testing.assert_close(loss, plain, rtol=1e-5, atol=1e-5)
        (3 * loss).backward()
        (3 * plain).backward()
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-5)
        hooked: list[object] = []
        head.register_forward_hook(lambda *_, hooked=hooked: hooked.append(1))
        head_loss(head, found, targets)
        assert hooked, "a modified head is called"
