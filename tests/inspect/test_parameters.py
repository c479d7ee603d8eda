"""The parameter table adds up, whatever the family, and says what is shared or computed."""

from __future__ import annotations

import functools
import itertools
import json
import re
from io import StringIO

import pytest
from rich.console import Console

from wordloom.errors import ConfigError
from wordloom.inspect import parameter_table
from wordloom.inspect.parameters import ParameterTable
from wordloom.models import PRESETS, GPTConfig, LlamaConfig, build
from wordloom.models.building.quantized import quantize_model

EXACT = {
    "gpt": 116_534_784,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "llama-65b": 65_285_660_672,
    "llama2-70b": 68_976_648_192,
    "transformer-base": 63_045_632,
    "transformer-big": 214_171_648,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
}
SHAPE = {"vocab_size": 61, "max_seq_len": 32, "dim": 24, "n_layers": 3, "n_heads": 4}


@functools.cache
def table_of(preset: str) -> ParameterTable:
    return parameter_table(PRESETS[preset])


@pytest.mark.parametrize("preset", EXACT)
def test_rows_add_up_to_the_model(preset):
    table = table_of(preset)
    assert table.total == EXACT[preset]
    assert sum(c.total for c in table.components) == EXACT[preset]
    assert sum(c.parameters * c.copies for c in table.components) == EXACT[preset]
    memory = dict(table.memory)
    in_8_bits = memory.pop("int8", None)
    assert memory == {"fp32": 4 * table.total, "bf16": 2 * table.total}
    if preset.startswith("bert"):
        assert in_8_bits is None
    else:
        assert 8.25 / 8 * table.total < in_8_bits < 1.06 * table.total  # floats: norms, biases, positions


def test_memory_in_8_bits_is_that_of_a_model_in_8_bits():
    for family, tied, dim in itertools.product((LlamaConfig, GPTConfig), (False, True), (8, 72, 136)):
        model = build(family(**{**SHAPE, "dim": dim}, tie_embeddings=tied))
        expected = parameter_table(model).memory["int8"]
        quantize_model(model)
        weights = {id(w): w for w in (*model.parameters(), *model.state_dict(keep_vars=True).values())}
        assert expected == sum(weight.nbytes for weight in weights.values())


def test_a_built_model_and_its_config_give_one_table():
    config = LlamaConfig(**SHAPE, n_kv_heads=2, attention_bias=True)
    assert parameter_table(build(config)) == parameter_table(config)


def test_a_tied_head_counts_once_and_says_with_what():
    rows = {c.name: c for c in parameter_table(PRESETS["gpt2"]).components}
    assert rows["lm_head"].total == 0
    assert rows["lm_head"].tensors == (((50257, 768), "token_embedding"),)
    untied = {c.name: c for c in parameter_table(PRESETS["llama-7b"]).components}
    assert untied["lm_head"].total == 32000 * 4096
    biased = parameter_table(GPTConfig(**SHAPE, output_bias=True))
    head = next(c for c in biased.components if c.name == "lm_head")
    assert head.total == 61
    assert [owner for _, owner in head.tensors] == ["token_embedding", ""]


def test_the_parts_of_a_bert_are_those_of_its_tensors():
    table = parameter_table(PRESETS["bert-base"])
    rows = {c.name.removeprefix("blocks.*."): c.total for c in table.components}
    assert rows["token_embedding"] == 23_440_896
    assert rows["position_embedding"] == 393_216
    assert rows["segment_embedding"] == rows["embedding_norm"] == 1_536
    assert rows["attention.q_proj"] == rows["attention.o_proj"] == 7_087_104
    assert rows["feed_forward.up_proj"] == 28_348_416
    assert rows["feed_forward.down_proj"] == 28_320_768
    assert rows["attention_norm"] == rows["ffn_norm"] == 18_432
    assert rows["pooler"] == 590_592  # once, not for every layer
    assert table.kv_cache == ()


def test_layers_fold_into_one_row_each():
    rows = {c.name: c for c in parameter_table(LlamaConfig(**SHAPE, n_kv_heads=2, hidden_dim=40)).components}
    assert rows["blocks.*.attention.k_proj"].tensors == (((12, 24), ""),)
    assert rows["blocks.*.feed_forward.gate_proj"].copies == 3
    assert rows["blocks.*.feed_forward.gate_proj"].total == 3 * 40 * 24
    assert rows["final_norm"].copies == 1


def test_positions_that_nothing_stores_have_a_row_of_zero():
    def positions(config):
        return [c.name for c in parameter_table(config).components if "position" in c.name]

    assert positions(LlamaConfig(**SHAPE)) == ["rotary positions"]
    assert positions(GPTConfig(**SHAPE, positions="sinusoidal")) == ["sinusoidal positions"]
    assert positions(GPTConfig(**SHAPE)) == ["position_embedding"]


def test_cache_compares_ways_to_share_keys():
    kinds = {k.kind: k for k in parameter_table(PRESETS["llama2-70b"]).kv_cache}
    assert [kinds[k].n_kv_heads for k in ("multi-head", "grouped-query", "multi-query")] == [64, 8, 1]
    assert [k.kind for k in kinds.values() if k.is_this_model] == ["grouped-query"]
    assert kinds["multi-head"].bytes_per_token["bf16"] == 8 * kinds["grouped-query"].bytes_per_token["bf16"]
    # 25 heads: five to a group; a prime number of heads has no grouping between the two ends
    assert [k.n_kv_heads for k in parameter_table(PRESETS["gpt2-xl"]).kv_cache] == [25, 5, 1]
    prime = LlamaConfig(vocab_size=61, dim=28, n_heads=7, n_layers=1)
    assert [k.n_kv_heads for k in parameter_table(prime).kv_cache] == [7, 1]
    one_head = LlamaConfig(vocab_size=61, dim=28, n_heads=1, n_layers=1)
    assert [(k.kind, k.is_this_model) for k in parameter_table(one_head).kv_cache] == [("multi-head", True)]


def test_context_sets_the_attention_term_alone():
    short, long = (parameter_table(PRESETS["gpt2"], context=c).flops for c in (256, 1024))
    assert 4 * short.attention == long.attention
    assert (short.layers, short.head) == (long.layers, long.head)
    with pytest.raises(ConfigError, match=r"context 2048 is above max_seq_len 1024"):
        parameter_table(PRESETS["gpt2"], context=2048)


@pytest.mark.parametrize("preset", PRESETS)
def test_printed_numbers_are_whole_at_80_columns(preset):
    from wordloom.cli.inspect.parameters import print_parameters

    table = table_of(preset)
    console = Console(width=80, record=True, file=StringIO())
    print_parameters(console, preset, PRESETS[preset], table)
    text = console.export_text()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    printed = [
        int(n.replace(",", "")) for n in re.findall(r"([\d,]+) +(?:<?[\d.]+%)", text.split("total")[0])
    ]
    assert sum(printed) == table.total


def test_json_is_plain_values():
    table = parameter_table(PRESETS["gpt2"])
    read = json.loads(json.dumps(table.as_dict()))
    assert sum(c["total"] for c in read["components"]) == read["total"] == 124_439_808
    assert read["flops_per_token"]["training"] == 3 * read["flops_per_token"]["forward"]
    assert {"shape": [50257, 768], "tied_to": "token_embedding"} in read["components"][-1]["tensors"]
