"""The compiled programs against the modules they stand in for."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.generate.tiny_models import FAMILIES, tiny_model
from torch.nn.modules.module import register_module_forward_hook

from wordloom.errors import GenerationError
from wordloom.generate import Decoder, Sampling, generate
from wordloom.generate.decoder import next_logits
from wordloom.generate.fast import accelerate, causal
from wordloom.generate.fast.causal import FastModel
from wordloom.generate.fast.threads import Threads
from wordloom.generate.fast.weights import whole_vectors
from wordloom.kernels import acceptance
from wordloom.kernels.barrier import barrier
from wordloom.kernels.decoding import leaves as kernels
from wordloom.models import GPT2Config, GPTConfig, Llama, LlamaConfig, build
from wordloom.nn import LayerNorm, Linear, RMSNorm, Rotary, set_attention_backend

CPU = torch.device("cpu")
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15], [16]]

VARIANTS = {
    "gpt": lambda: tiny_model("gpt"),
    "gpt-sinusoidal-relu": lambda: tiny_model("gpt", positions="sinusoidal", activation="relu"),
    "gpt-output-bias": lambda: tiny_model("gpt", output_bias=True),
    "gpt2": lambda: tiny_model("gpt2"),
    "gpt2-without-biases": lambda: tiny_model("gpt2", bias=False, activation="gelu"),
    "llama": lambda: tiny_model("llama"),
    "llama-multi-head": lambda: tiny_model("llama", n_kv_heads=4),
    "llama-multi-query": lambda: tiny_model("llama", n_kv_heads=1),
    "llama-odd-sizes": lambda: tiny_model(
        "llama", vocab_size=67, dim=30, n_heads=3, n_kv_heads=1, hidden_dim=37
    ),
    "llama-biases-tied": lambda: tiny_model(
        "llama", attention_bias=True, feed_forward_bias=True, tie_embeddings=True, head_dim=6
    ),
    "llama-scaled-rotary": lambda: tiny_model(
        "llama", rope_theta=500.0, rope_scaling={"rope_type": "linear", "factor": 2.0}
    ),
}


@pytest.fixture(params=[1, 2, 3], ids=lambda n: f"threads-{n}")
def n_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(causal, "threads_for", lambda _weights: Threads(request.param))
    return int(request.param)


def logits_of(model: Any, prompts: list[list[int]], steps: int = 6) -> torch.Tensor:
    """[steps, B, V]: after the prompts and after each of some given tokens; a row leaves halfway."""
    made = []
    with torch.no_grad():
        cache = model.new_cache(len(prompts), 20)
        made.append(next_logits(model, prompts, device=CPU, cache=cache).clone())
        rows = torch.arange(len(prompts))
        for step in range(steps):
            if step == steps // 2 and len(prompts) > 2:
                rows = rows[[0, *range(2, len(rows))]]
                cache.select(torch.tensor([0, *range(2, len(prompts))]))
            tokens = (7 * step + 3 * rows[:, None]) % 61
            logits = model.lm_head(model.hidden(tokens, cache=cache)[:, -1])
            whole = torch.zeros_like(made[0])
            whole[rows] = logits.to(whole.dtype)
            made.append(whole)
    return torch.stack(made).float()


@pytest.mark.parametrize("B", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("variant", VARIANTS)
def test_in_float32_logits_are_the_modules(variant: str, B: int) -> None:
    model = VARIANTS[variant]()
    program = accelerate(model)
    assert isinstance(program, FastModel)
    ours, plain = logits_of(program, PROMPTS[:B]), logits_of(model, PROMPTS[:B])
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5 * float(plain.abs().max()))


@pytest.mark.parametrize("family", FAMILIES)
def test_threads_share_the_work_and_change_nothing(family: str, n_threads: int) -> None:
    model = tiny_model(family)
    ours, plain = logits_of(accelerate(model), PROMPTS[:3]), logits_of(model, PROMPTS[:3])
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5 * float(plain.abs().max()))


@pytest.mark.parametrize("variant", VARIANTS)
def test_in_bfloat16_logits_are_nearer_to_the_exact_ones_than_the_modules(variant: str) -> None:
    model = VARIANTS[variant]().to(torch.bfloat16)
    plain = logits_of(model, PROMPTS)
    ours = logits_of(accelerate(model), PROMPTS)
    exact = logits_of(model.float(), PROMPTS)  # the same weights, every operation in float32
    error, theirs = (ours - exact).norm() / exact.norm(), (plain - exact).norm() / exact.norm()
    assert error < 0.02
    assert error <= theirs


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0, max_new_tokens=30), Sampling(seed=1, max_new_tokens=30)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_the_modules_tokens(family: str, sampling: Sampling) -> None:
    model = tiny_model(family)
    ours, plain = generate(model, PROMPTS, sampling), generate(model, PROMPTS, sampling, fast=False)
    assert [g.ids for g in ours] == [g.ids for g in plain]


def stored(values: np.ndarray, bfloat16: bool) -> np.ndarray:
    """As the programs read it: float32, or the bits of bfloat16."""
    return (
        torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16) if bfloat16 else values
    )


def as_float32(values: np.ndarray) -> np.ndarray:
    return values if values.dtype == np.float32 else (values.astype(np.uint32) << 16).view(np.float32)


@settings(max_examples=150, deadline=None)
@given(
    R=st.integers(1, 19), N=st.integers(1, 45), K=st.integers(1, 70), threads=st.integers(1, 3),
    bfloat16=st.booleans(), add=st.booleans(), bias=st.booleans(), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_a_product_by_shares_is_numpys(
    R: int, N: int, K: int, threads: int, bfloat16: bool, add: bool, bias: bool, seed: int
) -> None:
    numbers = np.random.default_rng(seed)
    x = numbers.standard_normal((R, K), dtype=np.float32)
    weight = stored(numbers.standard_normal((N, K), dtype=np.float32), bfloat16)
    b = numbers.standard_normal(N if bias else 0, dtype=np.float32)
    before = numbers.standard_normal((R, N), dtype=np.float32)
    room = np.full(R * N + 64, np.float32(7))  # what lies behind must stay
    out = room[: R * N].reshape(R, N)
    out[:] = before
    like = np.empty(0, dtype=weight.dtype)
    for thread in range(threads):
        kernels.project(out, x, weight.ctypes.data, b, add, like, thread, threads)
    expected = x.astype(np.float64) @ as_float32(weight).T + (before if add else 0) + (b if bias else 0)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-4)
    assert (room[R * N :] == 7).all()


@settings(max_examples=100, deadline=None)
@given(
    E=st.sampled_from([2, 6, 8, 16, 20, 32, 64, 80, 128]), S=st.integers(1, 40), bfloat16=st.booleans(),
    seed=st.integers(0, 2**31), data=st.data(),
)  # fmt: skip
def test_attention_over_part_of_a_cache_is_numpys(
    E: int, S: int, bfloat16: bool, seed: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, S))
    stop = data.draw(st.integers(start, S))
    numbers = np.random.default_rng(seed)
    q = 3 * numbers.standard_normal((2, 3 * E), dtype=np.float32)
    keys, values = (stored(numbers.standard_normal((S, E), dtype=np.float32), bfloat16) for _ in range(2))
    out = np.full((2, 3 * E), np.float32(7))
    weights = np.zeros(whole_vectors(S), dtype=np.float32)
    kernels.attend(
        out, q, 1, 1, E, keys.ctypes.data, values.ctypes.data, start, stop, 0.3, weights,
        np.empty(0, dtype=keys.dtype),
    )  # fmt: skip
    scores = 0.3 * (as_float32(keys)[start:stop].astype(np.float64) @ q[1, E : 2 * E])
    shares = np.exp(scores - scores.max(initial=-np.inf))
    expected = (shares / shares.sum()) @ as_float32(values)[start:stop] if stop > start else np.zeros(E)
    np.testing.assert_allclose(out[1, E : 2 * E], expected, rtol=1e-5, atol=1e-5)
    out[1, E : 2 * E] = 7
    assert (out == 7).all()


def test_long_prompts_agree_through_the_programs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    plain = logits_of(model, PROMPTS)
    monkeypatch.setattr(causal, "FLOAT32_ROWS", 10**6)
    torch.testing.assert_close(logits_of(accelerate(model), PROMPTS), plain, rtol=1e-5, atol=1e-4)


def test_a_model_in_training_is_sampled_as_it_is() -> None:
    model = tiny_model("gpt2")
    program = accelerate(model)
    with torch.no_grad():
        before = logits_of(program, PROMPTS)
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
        after = logits_of(program, PROMPTS)
    assert (after - before).abs().max() > 0.1
    torch.testing.assert_close(after, logits_of(model, PROMPTS), rtol=1e-5, atol=1e-4)


class Quantized(torch.nn.Linear):
    """A layer of another kind that has a weight all the same."""


class Marked(torch.nn.Parameter):
    """A tensor subclass, whose products may be others than those of its numbers."""


def changed(change: Callable[[Any], Any], **settings: Any) -> Callable[[], Any]:
    def make() -> Any:
        model = tiny_model("llama", **settings)
        change(model)
        return model

    return make


def set_on(path: str, name: str, value: Any) -> Callable[[], Any]:
    """A LLaMA one of whose modules has another attribute."""
    return changed(lambda model: setattr(model.get_submodule(path), name, value))


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no program": (lambda: torch.nn.Linear(3, 3), "no program for this model"),
    "subclass": (lambda: type("Other", (Llama,), {})(tiny_model("llama").config), "no program for this"),
    "hook": (
        changed(lambda model: model.blocks[0].register_forward_hook(lambda *_: None)),
        "blocks.0 has a forward hook",
    ),
    "hook before": (
        changed(lambda model: model.lm_head.register_forward_pre_hook(lambda *_: None)),
        "lm_head has a forward hook",
    ),
    "forward": (set_on("blocks.2.feed_forward", "forward", lambda x: x), "2.feed_forward.forward is new"),
    "method": (set_on("blocks.2.attention", "attend", lambda *_: None), "blocks.2.attention.attend is new"),
    "method of the model": (set_on("", "hidden", lambda *_: None), "hidden is new"),
    "backend": (changed(lambda model: set_attention_backend(model, "exact")), "backend is exact, not auto"),
    "scale": (set_on("blocks.1.attention", "scale", 0.5), "blocks.1.attention.scale is 0.5"),
    "layout": (set_on("blocks.1.attention", "rotary_layout", "pairs"), "rotary_layout is pairs"),
    "activation": (set_on("blocks.1.feed_forward", "activation", torch.relu), "feed_forward.activation is"),
    "layer": (set_on("blocks.1.attention", "q_proj", Quantized(32, 32)), "is a Quantized, not a Linear"),
    "layer of torch": (set_on("", "lm_head", torch.nn.Linear(32, 61, bias=False)), "is a Linear, not a Head"),
    "missing norm": (set_on("blocks.1", "ffn_norm", torch.nn.Identity()), "ffn_norm is a Identity"),
    "kind of norm": (set_on("blocks.1", "ffn_norm", LayerNorm(32)), "ffn_norm is a LayerNorm, not a RMSNorm"),
    "offset of a norm": (set_on("blocks.1", "ffn_norm", RMSNorm(32, offset=1.0)), "ffn_norm.offset is 1.0"),
    "eps of a norm": (set_on("blocks.2.attention_norm", "eps", 0.1), "blocks.2.attention_norm.eps is 0.1"),
    "no gain": (set_on("", "final_norm", RMSNorm(32, gain=False)), "model.final_norm.weight is missing"),
    "rotary": (set_on("", "rotary", Rotary(head_dim=8, theta=1.0)), "model.rotary is"),
    "width": (set_on("blocks.0.feed_forward", "up_proj", Linear(32, 41, bias=False)), "out_features is 41"),
    "shape": (set_on("lm_head", "weight", torch.nn.Parameter(torch.zeros(60, 32))), "weight has shape [60"),
    "more modules": (set_on("blocks.0", "adapter", torch.nn.Linear(3, 3)), "blocks.0.adapter is new"),
    "tensor subclass": (
        changed(lambda model: setattr(model.lm_head, "weight", Marked(torch.zeros(61, 32)))),
        "lm_head.weight is a Marked",
    ),
    "part in training": (changed(lambda model: model.blocks[1].train()), "is in training mode"),
    "two dtypes": (changed(lambda model: model.lm_head.to(torch.bfloat16)), "neither all float32 nor all"),
    "float16": (lambda: tiny_model("llama").to(torch.float16), "neither all float32 nor all bfloat16"),
    "transpose": (
        changed(lambda m: setattr(m.lm_head.weight, "data", torch.zeros(32, 61).t())), "not contiguous"
    ),
    "no such activation": (changed(lambda _: None, activation="swish_learnt"), "activation swish_learnt"),
    "dynamic rotary": (changed(lambda _: None, rope_scaling=DYNAMIC), "frequencies depend on the length"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_differs_from_its_config_runs_its_modules(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, reason = REFUSED[name]
    model = make()
    acceptance._log_once.cache_clear()
    with caplog.at_level("DEBUG", logger="wordloom"):
        assert accelerate(model) is model
    (line,) = caplog.messages
    assert line.startswith("decoding calls the modules: ")
    assert reason in line


def test_a_hook_on_all_modules_is_called() -> None:
    model, handle = tiny_model("gpt2"), register_module_forward_hook(lambda *_: None)
    try:
        assert accelerate(model) is model
    finally:
        handle.remove()
    assert accelerate(model) is not model


def test_a_model_changed_after_it_was_wrapped_runs_its_modules() -> None:
    model = tiny_model("llama")
    program = accelerate(model)
    before = logits_of(program, PROMPTS)
    model.blocks[1].ffn_norm = RMSNorm(32, offset=1.0)
    after = logits_of(program, PROMPTS)
    assert torch.equal(after, logits_of(model, PROMPTS))
    assert not torch.equal(after, before)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_the_program_may_become_more_than_it_takes(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16, the program's float32 vectors then pass through the modules' head."""
    monkeypatch.setattr(FastModel, "_most_rows", lambda _model: 4)
    model = tiny_model(family).to(torch.bfloat16)
    found = []
    for fast in (True, False):
        decoder = Decoder(model, fast=fast)
        decoder.admit(PROMPTS[:4], new_tokens=4)
        decoder.step()
        decoder.append([1, 2, 3, 4])
        decoder.admit([[14, 15]], new_tokens=4)
        found.append(decoder.step())
    torch.testing.assert_close(*found, rtol=0.1, atol=0.1 * float(found[1].abs().max()))


def test_weights_outlive_a_model_that_is_given_others() -> None:
    model = tiny_model("llama")
    program = accelerate(model)
    program.new_cache(1, 4)
    hidden = torch.randn(1, 1, 32)
    with torch.no_grad():
        before = program.lm_head(hidden).clone()
        model.to(torch.bfloat16)
        assert torch.equal(program.lm_head(hidden), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_does_not_fit_is_the_modules_error(family: str) -> None:
    model = tiny_model(family, max_seq_len=8)
    program = accelerate(model)
    with torch.no_grad():
        cache = program.new_cache(2, 12)
        program.hidden(torch.tensor([[1], [2]]), cache=cache)
        with pytest.raises(RuntimeError):
            program.hidden(torch.tensor([[1], [2], [3]]), cache=cache)  # rows that the cache has not
        with pytest.raises(RuntimeError):
            program.lm_head(torch.zeros(1, 31))
        cache.layers[1].keys = cache.layers[1].keys[:, :, :2]
        with pytest.raises(RuntimeError):
            program.hidden(torch.tensor([[1, 1, 1], [2, 2, 2]]), cache=cache)
        if family != "llama":
            with pytest.raises(GenerationError, match="position 8 lies past max_seq_len 8"):
                program.hidden(torch.tensor([list(range(9))]), cache=program.new_cache(1, 12))


def test_dropout_in_training_mode_is_the_modules_business() -> None:
    model = tiny_model("llama", dropout=0.5).train()
    program = accelerate(model)
    cache = program.new_cache(1, 8)
    torch.manual_seed(0)
    first = program.hidden(torch.tensor([[1]]), cache=cache).clone()
    assert not torch.equal(first, program.hidden(torch.tensor([[1]]), cache=program.new_cache(1, 8)))


def test_padding_behind_the_tokens_and_a_full_cache_change_nothing() -> None:
    model = tiny_model("llama")
    program = accelerate(model)
    attend = torch.tensor([[True, True, False], [True, True, True]])
    tokens = torch.tensor([[1, 2, 0], [3, 4, 5]])
    with torch.no_grad():
        ours = program.hidden(tokens, attend=attend, cache=program.new_cache(2, 3))
        plain = model.hidden(tokens, attend=attend, cache=model.new_cache(2, 3))
        torch.testing.assert_close(ours[attend], plain[attend], rtol=1e-5, atol=1e-5)
        cache, other = program.new_cache(1, 2), model.new_cache(1, 2)
        for token in range(5):
            step = torch.tensor([[token]])
            torch.testing.assert_close(
                program.hidden(step, cache=cache), model.hidden(step, cache=other), rtol=1e-5, atol=1e-5
            )


def test_several_threads_may_generate_at_once(n_threads: int) -> None:
    model = tiny_model("llama")
    sampling = Sampling(seed=1, max_new_tokens=20)
    expected = [g.ids for g in generate(model, PROMPTS, sampling)]
    results: list[Any] = [None] * 4

    def work(place: int) -> None:
        results[place] = [g.ids for g in generate(model, PROMPTS, sampling)]

    workers = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert results == [expected] * 4


def test_threads_survive_an_interrupted_start(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(2)

    def program(counters: np.ndarray, thread: int) -> None:
        if thread == 0:
            raise KeyboardInterrupt
        barrier(counters, 2, 200)  # would wait for ever

    with pytest.raises(KeyboardInterrupt):
        threads.run(program)
    met = []
    threads.run(lambda counters, thread: (barrier(counters, 2, 200), met.append(thread)))
    assert sorted(met) == [0, 1]


def test_a_bfloat16_is_stored_as_torch_rounds_it() -> None:
    values = torch.cat(
        [
            torch.randn(4000) * torch.logspace(-30, 30, 4000),
            torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 3.4e38, 1e-40]),
            torch.tensor([1.0, 1.00390625, 1.01171875]),  # the two last lie halfway
        ]
    )
    stored = torch.zeros(len(values), dtype=torch.bfloat16)
    like = np.empty(0, dtype=np.uint16)
    kernels.store_row(like, stored.data_ptr(), 0, values.numpy()[None], 0, 0, len(values))
    expected = values.to(torch.bfloat16)
    assert torch.equal(stored.isnan(), expected.isnan())
    assert torch.equal(stored[~expected.isnan()], expected[~expected.isnan()])


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        (kernels.SILU, torch.nn.functional.silu),
        (kernels.GELU, torch.nn.functional.gelu),
        (kernels.GELU_TANH, lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
        (kernels.RELU, torch.relu),
    ],
)
def test_activations_are_torchs(kind: int, function: Any) -> None:
    x = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([-1e4, 1e4, -90.0, 90.0, 0.0])])
    ours = x.numpy()[None].copy()
    kernels.activate(ours, kind, 0, len(x))
    # in float64: with AVX512 PyTorch takes a coarser exponential for its own float32 GELU
    torch.testing.assert_close(torch.from_numpy(ours[0]).double(), function(x.double()), rtol=2e-6, atol=5e-7)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [0, 1, 2, 9, 64])
def test_shares_cover_everything_once(n: int, threads: int) -> None:
    parts = [kernels.share(n, thread, threads) for thread in range(threads)]
    assert [i for first, last in parts for i in range(first, last)] == list(range(n))


def test_presets_have_a_program() -> None:
    shape: dict[str, Any] = {"vocab_size": 8, "max_seq_len": 8, "dim": 8, "n_layers": 1, "n_heads": 2}
    for config in (GPTConfig(**shape), GPT2Config(**shape), LlamaConfig(**shape)):
        assert isinstance(accelerate(build(config)), FastModel)
