"""Every compiled decoding program against the modules, at sizes drawn anew on each run.

Hypothesis prints the config, the dtype and the number of rows of a failing case, which reproduce it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wordloom.generate import Conditioned, fast, fast_transformer
from wordloom.generate.engine import next_logits
from wordloom.generate.fast import Accelerated, Team, accelerate
from wordloom.kernels.registers import LANES
from wordloom.models import (
    BertGenerationConfig,
    GPT2Config,
    GPTConfig,
    LlamaConfig,
    RNNConfig,
    TransformerConfig,
    build,
    translates,
)
from wordloom.nn.recurrent import CELLS

CPU = torch.device("cpu")
STEPS = 4
WRITTEN = 12  # tokens that the prompt and the steps come to, at most

dims = st.one_of(st.integers(1, 36), st.sampled_from([47, 63, 65, 81, 100]))
counts = st.integers(1, 2)
vocabularies = st.integers(2, 70)
activations = st.sampled_from(["relu", "gelu", "gelu_tanh", "silu"])
eps = st.sampled_from([1e-2, 1e-1])  # smaller ones amplify rounding errors of a norm of two or three numbers


@st.composite
def gpts(draw: st.DrawFn) -> GPTConfig:
    n_heads, head_dim = draw(st.integers(1, 5)), draw(dims)
    positions = "learned" if n_heads * head_dim % 2 else draw(st.sampled_from(["learned", "sinusoidal"]))
    return GPTConfig(
        vocab_size=draw(vocabularies), max_seq_len=WRITTEN, dim=n_heads * head_dim, n_heads=n_heads,
        n_layers=draw(counts), hidden_dim=draw(st.none() | dims), positions=positions,
        activation=draw(activations), norm_eps=draw(eps), tie_embeddings=draw(st.booleans()),
        output_bias=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def gpt2s(draw: st.DrawFn) -> GPT2Config:
    n_heads, head_dim = draw(st.integers(1, 5)), draw(dims)
    return GPT2Config(
        vocab_size=draw(vocabularies), max_seq_len=WRITTEN, dim=n_heads * head_dim, n_heads=n_heads,
        n_layers=draw(counts), hidden_dim=draw(st.none() | dims), activation=draw(activations),
        norm_eps=draw(eps), bias=draw(st.booleans()), tie_embeddings=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def llamas(draw: st.DrawFn) -> LlamaConfig:
    n_kv_heads = draw(st.integers(1, 3))
    return LlamaConfig(
        vocab_size=draw(vocabularies), max_seq_len=WRITTEN, dim=draw(dims), n_layers=draw(counts),
        n_heads=n_kv_heads * draw(st.integers(1, 3)), n_kv_heads=n_kv_heads,
        head_dim=2 * draw(st.integers(1, 20)), hidden_dim=draw(dims) * draw(st.integers(1, 3)),
        activation=draw(activations), attention_bias=draw(st.booleans()),
        feed_forward_bias=draw(st.booleans()), norm_eps=draw(eps), tie_embeddings=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def rnns(draw: st.DrawFn) -> RNNConfig:
    cell, hidden_dim = draw(st.sampled_from(list(CELLS))), draw(dims)
    projection = None
    if cell.startswith("lstm") and hidden_dim > 1:
        projection = draw(st.none() | st.integers(1, hidden_dim - 1))
    return RNNConfig(
        vocab_size=draw(vocabularies), dim=draw(dims), hidden_dim=hidden_dim, n_layers=draw(counts),
        cell=cell, bias=draw(st.booleans()), peephole=cell.startswith("lstm") and draw(st.booleans()),
        projection=projection, output_bias=draw(st.booleans()), tie_embeddings=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def translator_shapes(draw: st.DrawFn) -> dict[str, Any]:
    dim = LANES * draw(st.integers(1, 7))
    divisors = [n for n in range(1, dim + 1) if dim % n == 0]
    return {
        "vocab_size": draw(vocabularies), "source_vocab_size": draw(vocabularies), "max_seq_len": WRITTEN,
        "dim": dim, "n_heads": draw(st.sampled_from(divisors)), "n_layers": 1,
        "n_decoder_layers": draw(counts), "hidden_dim": LANES * draw(st.integers(1, 24)),
        "activation": draw(activations),
    }  # fmt: skip


@st.composite
def transformers(draw: st.DrawFn) -> TransformerConfig:
    shape = draw(translator_shapes())
    kinds = ["sinusoidal", "sinusoidal_halves", "learned", "none"]
    kinds += [] if shape["dim"] // shape["n_heads"] % 2 else ["rotary"]
    kinds += ["one_hot"] if shape["dim"] > WRITTEN else []
    positions = draw(st.sampled_from(kinds))
    return TransformerConfig(
        **shape, positions=positions, norm_place=draw(st.sampled_from(["pre", "post"])), norm_eps=draw(eps),
        share_embeddings=False, tie_embeddings=positions != "one_hot" and draw(st.booleans()),
        scale_embeddings=draw(st.booleans()), attention_bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def bert_generations(draw: st.DrawFn) -> BertGenerationConfig:
    return BertGenerationConfig(**draw(translator_shapes()), norm_eps=draw(eps))


def model_of(config: Any, seed: int) -> Any:
    """A model of random weights, biases and gains, whose logits depend on the whole prompt."""
    generator = torch.Generator().manual_seed(seed)
    model = build(config, generator=generator)
    with torch.no_grad():
        for parameter in model.parameters():
            fan_in = parameter.shape[-1] if parameter.dim() > 1 else 4
            noise = torch.randn(parameter.shape, generator=generator) * fan_in**-0.5
            parameter.add_(noise) if parameter.dim() == 1 else parameter.copy_(1.5 * noise)
    return model.eval()


def reader_of(model: Any, rows: int, seed: int) -> Any:
    """``model``, or as a translator with one source for each row, some of them padded."""
    if not translates(model.config):
        return model
    draw = torch.Generator().manual_seed(seed)
    source = torch.randint(model.config.source_vocab, (rows, 5), generator=draw)
    lengths = torch.randint(1, 6, (rows, 1), generator=draw)
    with torch.inference_mode():
        return Conditioned(model, model.encode(source, attend=torch.arange(5) < lengths))


def logits_of(reader: Any, rows: int, seed: int) -> torch.Tensor:
    """[N, V] float32: after the prompts, after given tokens one by one, and after two at once.

    Before the last token rows change places, leave and are copied.
    """
    draw, V = torch.Generator().manual_seed(seed), reader.config.vocab_size
    equal = isinstance(reader, Conditioned)
    lengths = torch.full((rows,), 3) if equal else torch.randint(1, 5, (rows,), generator=draw)
    prompts = [torch.randint(V, (int(n),), generator=draw).tolist() for n in lengths]
    found = []
    with torch.inference_mode():
        cache = reader.new_cache(rows, 6)  # which the steps go beyond
        found.append(next_logits(reader, prompts, device=CPU, cache=cache).float().clone())
        for step in range(STEPS):
            if step == STEPS - 1:
                fewer = max(1, rows - 1)
                cache.select(torch.randint(rows, (fewer,), generator=draw))
                rows = fewer
            T = 2 if step == 1 else 1
            tokens = torch.randint(V, (rows, T), generator=draw)
            logits = reader.lm_head(reader.hidden(tokens, cache=cache))
            found.append(logits.reshape(rows * T, V).float().clone())
    return torch.cat(found)


def check(config: Any, rows: int, threads: int, dtype: torch.dtype, seed: int) -> None:
    model = model_of(config, seed).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        for module in (fast, fast_transformer):
            patch.setattr(module, "team_of", lambda _weights: Team(threads))
        reader = reader_of(model, rows, seed)
        program = accelerate(reader)
        assert isinstance(program, Accelerated)
        ours = logits_of(program, rows, seed)
    plain = logits_of(reader, rows, seed)
    if dtype == torch.float32:
        exact, tolerance = plain, 1e-4 * float(plain.abs().max())
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=tolerance)
    else:
        exact = logits_of(reader_of(model.float(), rows, seed), rows, seed)
        error, modules_error = (ours - exact).norm(), (plain - exact).norm()
        assert error <= 2 * modules_error + 0.02 * exact.norm()
        tolerance = float((ours - exact).abs().max())
    # the likeliest id is the same unless the two largest logits are closer than rounding errors
    chosen = exact.gather(1, ours.argmax(dim=1, keepdim=True))[:, 0]
    assert bool((chosen >= exact.amax(dim=1) - 2 * tolerance).all())


FAMILIES = {
    "gpt": gpts(), "gpt2": gpt2s(), "llama": llamas(), "rnn": rnns(), "transformer": transformers(),
    "bert_generation": bert_generations(),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_programs_of_any_size_compute_what_the_modules_do(family: str, dtype: torch.dtype) -> None:
    @settings(max_examples=25, deadline=None)
    @given(
        config=FAMILIES[family], rows=st.sampled_from([1, 2, 3, 5, 8, 9]), threads=st.integers(1, 2),
        seed=st.integers(0, 2**31),
    )  # fmt: skip
    def hold(config: Any, rows: int, threads: int, seed: int) -> None:
        check(config, rows, threads, dtype, seed)

    hold()
