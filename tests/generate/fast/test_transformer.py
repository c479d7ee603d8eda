"""The compiled programs of the Transformer's decoder against the modules they stand in for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.generate.tiny_models import assert_same, read

from wordloom.errors import GenerationError
from wordloom.generate import Conditioned, Sampling, beam_search, generate
from wordloom.generate.fast import accelerate
from wordloom.generate.fast.threads import Threads
from wordloom.generate.fast.transformer import FastTransformer
from wordloom.models import BertGenerationConfig, Transformer, TransformerConfig, build

VARIANTS: dict[str, dict[str, Any]] = {
    "as the paper": {},
    "halves, scaled not": {"positions": "sinusoidal_halves", "scale_embeddings": False},
    "pre-norm": {"norm_place": "pre", "tie_embeddings": False, "attention_bias": True, "activation": "gelu"},
    "learned": {"positions": "learned", "output_bias": True, "activation": "gelu_tanh"},
    "rotary": {"positions": "rotary", "attention_bias": True, "activation": "silu"},
    "one-hot": {"positions": "one_hot", "max_seq_len": 20, "tie_embeddings": False},
    "heads of a vector and a half": {"dim": 48, "n_heads": 2},
    "heads below a vector": {"n_heads": 16},
    "BERT's": {"family": BertGenerationConfig},
    "none, one head, two sizes": {"positions": "none", "n_heads": 1, "n_decoder_layers": 1, "hidden_dim": 48},
}
SOURCES = [[7, 3, 9, 4, 12], [2, 2], [11, 5, 8, 1, 6, 9, 3], [4], [9, 9, 1]]
START = [[0]] * len(SOURCES)
GIVEN: dict[str, Any] = {
    "n_best": 3,
    "eos_ids": range(5, 80, 4),
    "max_new_tokens": 14,
    "forbidden_ids": [0, 9],
}


def made(name: str = "as the paper", *, seed: int = 0) -> Transformer:
    shape = {"vocab_size": 83, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_seq_len": 30}
    settings = {**shape, **VARIANTS[name]}
    family = settings.pop("family", TransformerConfig)
    wider = 1.5 if family is TransformerConfig else 8.0  # BERT's weights begin closer to nothing
    model = build(family(**settings), generator=torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.mul_(wider) if parameter.dim() > 1 else parameter.add_(0.2 * noise)
    return model.eval()


def logits_of(reader: Any) -> torch.Tensor:
    """After two given tokens and each of more, rows being multiplied, exchanged and dropped between them, and
    more tokens written than the cache was made for."""
    made = []
    cache = reader.new_cache(len(SOURCES), 4)
    tokens = torch.tensor([[0, 1 + row] for row in range(len(SOURCES))])
    draw = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for step in range(8):
            logits = reader.lm_head(reader.hidden(tokens, cache=cache)[:, -1]).float()
            made.append(logits.clone())
            rows = torch.arange(len(logits))
            if step == 0:
                rows = rows.repeat_interleave(3)
            elif step == 5:
                rows = rows[3:]  # a source leaves
            elif step < 7:
                rows = 3 * (rows // 3) + torch.randint(3, (len(rows),), generator=draw)
            cache.select(rows)
            tokens = torch.randint(83, (len(rows), 1), generator=draw)
        assert cache.lengths.eq(9).all()
    return torch.cat(made)


@pytest.mark.parametrize(
    ("name", "threads"), [*((name, 2) for name in VARIANTS), ("rotary", 1), ("rotary", 3)]
)
def test_logits_are_the_modules(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wordloom.generate.fast.transformer.threads_for", lambda _weights: Threads(threads))
    plain = read(made(name), SOURCES)
    program = accelerate(plain)
    assert isinstance(program, FastTransformer)
    torch.testing.assert_close(logits_of(program), logits_of(plain), rtol=1e-5, atol=1e-5)


def test_in_bfloat16_they_stay_near() -> None:
    model = made("pre-norm").bfloat16()
    plain = read(model, SOURCES)
    ours, theirs = logits_of(accelerate(plain)), logits_of(plain)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.05 * theirs.abs().max().item())


@pytest.mark.parametrize("name", VARIANTS)
def test_hypotheses_are_the_modules_and_a_batch_is_its_rows(name: str) -> None:
    model = made(name)
    given = {**GIVEN, "beams": 4, "vocab_size": 80}
    found = beam_search(read(model, SOURCES), START, **given)
    assert_same(found, beam_search(read(model, SOURCES), START, **given, fast=False))
    assert len({len(one.ids) for row in found for one in row}) > 1
    for i, row in enumerate(found):
        alone = read(model, SOURCES).select(torch.tensor([i]))
        assert beam_search(alone, [[0]], **given) == [row]  # bit for bit


@pytest.mark.parametrize("early_stopping", [True, "never"])
def test_settings_of_the_search_are_kept(early_stopping: Any) -> None:
    model = made("learned")
    given = {**GIVEN, "early_stopping": early_stopping, "length_penalty": 0.6, "forced_eos_id": 5, "beams": 6}
    found = beam_search(read(model, SOURCES), START, **given)
    assert_same(found, beam_search(read(model, SOURCES), START, **given, fast=False))
    prefixes = [[0, 3, row] for row in range(5)]
    found = beam_search(read(model, SOURCES), prefixes, **given)
    assert_same(found, beam_search(read(model, SOURCES), prefixes, **given, fast=False))


def test_the_same_tokens_are_drawn() -> None:
    model = made("pre-norm")
    for sampling in (
        Sampling(max_new_tokens=12, temperature=0.0),
        Sampling(max_new_tokens=12, seed=5, samples=3),
        Sampling(max_new_tokens=40, seed=5, past="slide"),
    ):
        ours = generate(read(model, SOURCES), START, sampling, eos_ids=[5])
        plain = generate(read(model, SOURCES), START, sampling, eos_ids=[5], fast=False)
        assert [one.ids for one in ours] == [one.ids for one in plain]


def test_the_likeliest_are_those_of_all_logits() -> None:
    model = made("learned")
    program = accelerate(read(model, SOURCES))
    program.new_cache(len(SOURCES), 3)
    with torch.no_grad():
        model.lm_head.weight[40:60] = model.lm_head.weight[20:40]  # equals: the lowest ids are taken
        model.lm_head.bias[40:60] = model.lm_head.bias[20:40]
    program.new_cache(len(SOURCES), 3)
    hidden = 3 * torch.randn(9, 64, generator=torch.Generator().manual_seed(2))
    logprobs = model.lm_head(hidden).log_softmax(dim=1).detach()
    logprobs[:, [1, 7]] = -torch.inf
    for k in (1, 5, 64):
        values, ids = program.likeliest(hidden, k, forbidden_ids=[1, 7], vocab_size=70)
        torch.testing.assert_close(values, logprobs.gather(1, ids), rtol=1e-5, atol=1e-5)
        order = logprobs[:, :70].sort(dim=1, descending=True, stable=True).indices[:, :k]
        assert torch.equal(ids, order.sort(dim=1).values)
    assert program.likeliest(hidden, 65, forbidden_ids=[], vocab_size=None) is None
    assert program.likeliest(hidden, 9, forbidden_ids=[0, 1], vocab_size=10) is None


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_damaged_weights_are_an_error(value: float) -> None:
    model = made("learned")
    with torch.no_grad():
        model.lm_head.bias[3] = value
    with pytest.raises(GenerationError, match="NaN"):
        beam_search(read(model, SOURCES), START, **GIVEN)


def test_an_id_that_can_never_come_is_no_damage() -> None:
    model = made("learned")
    with torch.no_grad():
        model.lm_head.bias[:70] = -torch.inf
    given = {"beams": 3, "max_new_tokens": 6}
    found = beam_search(read(model, SOURCES), START, **given)
    assert_same(found, beam_search(read(model, SOURCES), START, **given, fast=False))
    assert min(token for row in found for one in row for token in one.ids) >= 70


def test_a_model_in_training_is_searched_as_it_is() -> None:
    model = made()
    before = beam_search(read(model, SOURCES), START, **GIVEN)
    with torch.no_grad():
        model.decoder_blocks[0].feed_forward.up_proj.weight.data.neg_()
    after = beam_search(read(model, SOURCES), START, **GIVEN)
    assert before != after
    assert_same(after, beam_search(read(model, SOURCES), START, **GIVEN, fast=False))


def test_what_has_no_program_runs_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    shape: dict[str, Any] = {"vocab_size": 23, "dim": 32, "n_layers": 1, "n_heads": 4, "max_seq_len": 9}
    for odd in ({"dim": 36}, {"hidden_dim": 50}, {"activation": "swish_learnt"}):
        reader = read(build(TransformerConfig(**{**shape, **odd})).eval(), [[1, 2], [3, 4]])
        assert accelerate(reader) is reader
    model = build(TransformerConfig(**shape)).eval()
    with torch.no_grad():
        source = torch.ones(1, 4, dtype=torch.int64)
        left = Conditioned(model, model.encode(source, attend=torch.tensor([[False, True, True, True]])))
    assert isinstance(accelerate(left), FastTransformer)
    monkeypatch.setattr("wordloom.generate.fast.weights.MOST_WEIGHTS", 1000)
    assert accelerate(left) is left
    assert accelerate(model) is model  # without sources there is nothing to write from


def test_padding_between_the_tokens_of_a_source_is_never_read() -> None:
    model = made()
    attend = torch.tensor([[True, False, True, True, False], [False, True, False, False, True]])
    with torch.no_grad():
        memory = model.encode(torch.tensor([[7, 3, 9, 4, 12], [11, 5, 8, 1, 6]]), attend=attend)
    reader = Conditioned(model, memory)
    assert isinstance(accelerate(reader), FastTransformer)
    ours, plain = (beam_search(reader, [[0]] * 2, **GIVEN, fast=fast) for fast in (True, False))
    assert_same(ours, plain)


@pytest.mark.parametrize("name", ["as the paper", "BERT's"])
def test_a_replaced_norm_runs_the_modules(name: str) -> None:
    model = made(name)
    model.decoder_blocks[1].cross_attention_norm.eps = 0.3
    reader = read(model, SOURCES)
    assert accelerate(reader) is reader


def test_rows_that_the_cache_lacks_are_an_error() -> None:
    program = accelerate(read(made(), SOURCES))
    cache = program.new_cache(len(SOURCES), 3)
    with torch.inference_mode(), pytest.raises(GenerationError, match="2 rows of new tokens do not fit"):
        program.hidden(torch.tensor([[0], [0]]), cache=cache)


def test_a_cache_of_no_length_grows() -> None:
    reader = read(made("rotary"), SOURCES)
    program = accelerate(reader)
    ours, plain = program.new_cache(5, 0), reader.new_cache(5, 0)
    with torch.inference_mode():
        for step in range(20):
            tokens = torch.full((5, 1), step)
            torch.testing.assert_close(
                program.hidden(tokens, cache=ours), reader.hidden(tokens, cache=plain), rtol=1e-5, atol=1e-5
            )


def test_what_is_kept_of_weights_serves_other_sources() -> None:
    model = made()
    kept: dict[str, Any] = {}
    for sources in (SOURCES, SOURCES[:1], SOURCES[::-1]):
        reader = read(model, sources)
        one = Conditioned(model, reader.memory, kept=kept)
        start = START[:1] * len(sources)
        assert_same(beam_search(one, start, **GIVEN), beam_search(reader, start, **GIVEN, fast=False))
    decoder = kept["decoder"]
    assert decoder.bound
    packed = decoder.packed
    beam_search(Conditioned(model, reader.memory, kept=kept), start, **GIVEN)
    assert kept["decoder"] is decoder
    assert decoder.packed is packed  # laid out once
