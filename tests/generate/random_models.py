"""Configs of every generative family, and models of them, with sizes drawn anew on each run."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from wordloom.generate import Conditioned
from wordloom.kernels.registers import LANES
from wordloom.models import (
    BertGenerationConfig,
    GPT2Config,
    GPTConfig,
    LlamaConfig,
    Memory,
    RNNConfig,
    Seq2SeqConfig,
    TransformerConfig,
    build,
    translates,
)
from wordloom.nn.recurrent import CELLS
from wordloom.nn.scorers import SCORERS

LONGEST = 20  # tokens that a row comes to, at most

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
        vocab_size=draw(vocabularies), max_seq_len=LONGEST, dim=n_heads * head_dim, n_heads=n_heads,
        n_layers=draw(counts), hidden_dim=draw(st.none() | dims), positions=positions,
        activation=draw(activations), norm_eps=draw(eps), tie_embeddings=draw(st.booleans()),
        output_bias=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def gpt2s(draw: st.DrawFn) -> GPT2Config:
    n_heads, head_dim = draw(st.integers(1, 5)), draw(dims)
    return GPT2Config(
        vocab_size=draw(vocabularies), max_seq_len=LONGEST, dim=n_heads * head_dim, n_heads=n_heads,
        n_layers=draw(counts), hidden_dim=draw(st.none() | dims), activation=draw(activations),
        norm_eps=draw(eps), bias=draw(st.booleans()), tie_embeddings=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def llamas(draw: st.DrawFn) -> LlamaConfig:
    n_kv_heads = draw(st.integers(1, 3))
    return LlamaConfig(
        vocab_size=draw(vocabularies), max_seq_len=LONGEST, dim=draw(dims), n_layers=draw(counts),
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
        "vocab_size": draw(vocabularies), "source_vocab_size": draw(vocabularies), "max_seq_len": LONGEST,
        "dim": dim, "n_heads": draw(st.sampled_from(divisors)), "n_layers": 1,
        "n_decoder_layers": draw(counts), "hidden_dim": LANES * draw(st.integers(1, 24)),
        "activation": draw(activations),
    }  # fmt: skip


@st.composite
def transformers(draw: st.DrawFn) -> TransformerConfig:
    shape = draw(translator_shapes())
    kinds = ["sinusoidal", "sinusoidal_halves", "learned", "none"]
    kinds += [] if shape["dim"] // shape["n_heads"] % 2 else ["rotary"]
    kinds += ["one_hot"] if shape["dim"] > LONGEST else []
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


@st.composite
def seq2seqs(draw: st.DrawFn) -> Seq2SeqConfig:
    attention = draw(st.sampled_from(["none", *SCORERS]))
    bidirectional, query = draw(st.booleans()), "current"
    more: dict[str, Any] = {}
    if attention == "none":
        more["feed_context"] = draw(st.booleans())
    else:
        query = draw(st.sampled_from(["current", "previous"]))
        more["memory_projection"] = (bidirectional and attention == "dot") or draw(st.booleans())
        more["input_feeding"] = query == "current" and draw(st.booleans())
    return Seq2SeqConfig(
        vocab_size=draw(vocabularies), source_vocab_size=draw(vocabularies), dim=draw(dims),
        hidden_dim=draw(dims), n_layers=draw(counts), cell=draw(st.sampled_from(list(CELLS))),
        bidirectional=bidirectional, reverse_source=draw(st.booleans()), attention=attention, query=query,
        deep_output=draw(st.booleans()), tie_embeddings=draw(st.booleans()), **more,
    )  # fmt: skip


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


def memory_of(model: Any, rows: int, draw: torch.Generator) -> Memory:
    """Sources for this many rows, some of them padded."""
    S = int(torch.randint(1, 8, (), generator=draw))
    source = torch.randint(model.config.source_vocab, (rows, S), generator=draw)
    lengths = torch.randint(1, S + 1, (rows, 1), generator=draw)
    with torch.inference_mode():
        return model.encode(source, attend=torch.arange(S) < lengths)


def reader_of(model: Any, rows: int, seed: int) -> Any:
    """``model``, or as a translator with one source for each row."""
    if not translates(model.config):
        return model
    return Conditioned(model, memory_of(model, rows, torch.Generator().manual_seed(seed)))


WITH_PROGRAMS = {
    "gpt": gpts(), "gpt2": gpt2s(), "llama": llamas(), "rnn": rnns(), "transformer": transformers(),
    "bert_generation": bert_generations(),
}  # fmt: skip
FAMILIES = {**WITH_PROGRAMS, "seq2seq": seq2seqs()}
