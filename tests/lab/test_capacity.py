"""Knowledge capacity: the facts and their entropy, bits against models that are known exactly, and runs."""

from __future__ import annotations

import errno
import json
import math
import random
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from wordloom.errors import CheckpointError, ConfigError, DeviceError
from wordloom.lab.capacity.bits import BIOGRAPHIES, KnowledgeSpace, Nats
from wordloom.lab.capacity.comparing import compare
from wordloom.lab.capacity.experiment import run
from wordloom.lab.capacity.facts import NAME, REST, VALUE
from wordloom.lab.capacity.facts.bio_d import END, BioD, Exposures
from wordloom.lab.capacity.facts.bio_s import WINDOW, BioS, Windows
from wordloom.lab.capacity.facts.biographies import (
    CITIES,
    COMPANIES,
    FIRST_NAMES,
    LAST_NAMES,
    MAJORS,
    MIDDLE_NAMES,
    PIECES,
    UNIVERSITIES,
    Biographies,
)  # fmt: skip
from wordloom.lab.capacity.measuring import measure, rounded, used_parameters
from wordloom.lab.capacity.models import RotaryGPT2, config_of, new_model, read_model
from wordloom.lab.capacity.settings import DATA, FAMILIES, Settings
from wordloom.models.building.quantized import quantize_model
from wordloom.nn import quantized
from wordloom.training import Trainer


def some_facts(rng: random.Random) -> BioD:
    return BioD(
        people=rng.randint(1, 30),
        seed=rng.randrange(2**32),
        name_tokens=rng.randint(6, 12),
        attributes=rng.randint(1, 8),
        values=rng.randint(2, 40),
    )


# -- the facts


def test_each_exposure_shows_all_people_once_with_all_their_facts(rng: random.Random) -> None:
    facts = some_facts(rng)
    exposures, N, K = Exposures(facts), facts.people, facts.attributes
    first_marker = 1 + facts.name_tokens
    known = {tuple(name): list(row) for name, row in zip(facts.names, facts.value_tokens, strict=True)}
    assert len(known) == N
    for exposure in (0, rng.randrange(10**9)):
        batch = exposures.batch(exposure * N, N)
        assert batch.tokens.shape == batch.targets.shape == (N, 2 * K + 3)
        assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
        assert {tuple(row[1:3].tolist()) for row in batch.tokens} == set(known)
        for row in torch.cat([batch.tokens, batch.targets[:, -1:]], dim=1).tolist():
            assert row[0] == row[-1] == END
            shown = dict(zip(row[3:-1:2], row[4:-1:2], strict=True))
            assert [shown[first_marker + k] for k in range(K)] == known[tuple(row[1:3])]


def test_rows_depend_on_the_seed_and_their_number_alone(rng: random.Random) -> None:
    facts = some_facts(rng)
    start, count = rng.randrange(5 * facts.people), rng.randint(2, 3 * facts.people + 2)
    together = Exposures(facts).batch(start, count)
    fresh = Exposures(BioD(**{name: getattr(facts, name) for name in facts.__dataclass_fields__}))
    order = list(range(count))
    rng.shuffle(order)
    for i in order:
        alone = fresh.batch(start + i, 1)
        assert torch.equal(alone.tokens[0], together.tokens[i])
        assert torch.equal(alone.targets[0], together.targets[i])


def test_other_seeds_and_streams_give_other_rows() -> None:
    facts = BioD(people=50)
    rows = Exposures(facts).batch(0, 50).tokens
    assert not torch.equal(rows, Exposures(facts).batch(50, 50).tokens)
    assert not torch.equal(rows, Exposures(facts, measuring=True).batch(0, 50).tokens)
    assert not torch.equal(rows, Exposures(BioD(people=50, seed=1)).batch(0, 50).tokens)


def test_names_values_and_orders_are_uniform() -> None:
    """Empirical entropies are at most a few thousandths of a bit below those of uniform draws."""
    facts = BioD(people=40_000)
    for tokens, choices in ((facts.names, 256), (facts.value_tokens, 512)):
        for column in tokens.T:
            share = np.bincount(column - column.min(), minlength=choices) / len(column)
            entropy = -(share[share > 0] * np.log2(share[share > 0])).sum()
            assert math.log2(choices) - 0.02 < entropy <= math.log2(choices)
    rows = Exposures(BioD(people=6_000, attributes=3)).batch(0, 6_000).tokens
    orders = Counter(tuple(row) for row in rows[:, 3::2].tolist())
    assert len(orders) == 6
    assert all(abs(count - 1_000) < 150 for count in orders.values())  # five standard deviations
    assert Exposures(facts).batch(0, 1).tokens.shape[1] == 19


def test_memory_does_not_grow_with_exposures() -> None:
    exposures = Exposures(BioD(people=3))
    for exposure in range(100):
        exposures.batch(3 * exposure, 3)
    assert exposures._exposure.cache_info().currsize == 2


def test_impossible_facts_are_errors() -> None:
    with pytest.raises(ConfigError, match="too few for 10 people"):
        BioD(people=10, name_tokens=3)
    for name in ("people", "values"):
        with pytest.raises(ConfigError, match=f"{name} must be 1 or more"):
            BioD(**{"people": 5, name: 0})
    with pytest.raises(ConfigError, match="seed must be 0 or more"):
        BioD(people=5, seed=-1)


# -- biographies


def test_biographies_have_the_tables_of_the_paper() -> None:
    tables = (FIRST_NAMES, MIDDLE_NAMES, LAST_NAMES, CITIES, UNIVERSITIES, MAJORS, COMPANIES)
    assert [len(set(table)) for table in tables] == [400, 400, 1_000, 200, 300, 100, 263]
    assert math.prod(map(len, tables[:3])) == BIOGRAPHIES.names
    people = Biographies(2_000, seed=3)
    persons = [people.person(i) for i in range(2_000)]
    assert len({person.name for person in persons}) == 2_000
    assert len({person.birthday for person in persons}) > 1_900  # of 67,200
    cities: dict[str, str] = {}
    assert all(cities.setdefault(person.company, person.work_city) == person.work_city for person in persons)


def test_a_biography_names_every_fact_once_at_its_span(rng: random.Random) -> None:
    people = Biographies(rng.randint(1, 200), seed=rng.randrange(2**32))
    texts = set()
    for number in range(20):
        exposure = people.exposure(rng.randrange(10**9), measuring=number % 2 == 0)
        assert sorted(exposure.order) == list(range(people.people))
        lives = list(exposure.biographies())
        assert len(lives) == people.people
        for who, (text, spans) in zip(exposure.order.tolist(), lives, strict=True):
            person = people.person(who)
            assert {name: text[start:end] for name, (start, end) in spans.items()} == person._asdict()
            assert text.startswith(person.name)
            assert text.count(person.name) == 1
            assert text.count(".") == 6
            assert "{" not in text
            assert "  " not in text
        texts.add(lives[0].text)
    assert len(texts) == 20  # of 720 orders and 6^6 templates


def test_biographies_depend_on_the_seed_the_stream_and_the_exposure_alone(rng: random.Random) -> None:
    people = Biographies(rng.randint(2, 9_000), seed=rng.randrange(2**32))  # up to three blocks
    exposure = people.exposure(rng.randrange(10**9))
    pieces = exposure.pieces(0, people.people)
    first = rng.randrange(people.people)
    last = rng.randint(first + 1, people.people)
    again = Biographies(people.people, seed=people.seed).exposure(exposure._key[-1])
    assert np.array_equal(again.pieces(first, last), pieces[first:last])
    for other in (
        people.exposure(exposure._key[-1], measuring=True),
        people.exposure(exposure._key[-1] + 1),
        Biographies(people.people, seed=people.seed + 1).exposure(exposure._key[-1]),
    ):
        assert not np.array_equal(other.pieces(0, people.people), pieces)
    templates = exposure.templates()
    assert templates.sum(axis=1).tolist() == [people.people] * 6
    assert np.array_equal(
        np.bincount(pieces[:, :, 3].ravel(), minlength=PIECES.after)[PIECES.before :], templates.ravel()
    )


def test_templates_and_orders_are_uniform() -> None:
    exposure = Biographies(36_000).exposure(0)
    assert (abs(exposure.templates() - 6_000) < 400).all()  # more than five standard deviations
    first = Counter((exposure.pieces(0, 36_000)[:, 0, 3] - PIECES.before) // 6)
    assert len(first) == 6
    assert all(abs(count - 6_000) < 400 for count in first.values())


# -- biographies as tokens


def test_windows_are_the_tokens_of_the_texts(rng: random.Random) -> None:
    """The pieces are encoded alone; the tokens are those of the whole texts."""
    facts = BioS(people=rng.randint(20, 60), seed=rng.randrange(2**32))
    tokenizer, end, tokens = facts.vocabulary.tokenizer, facts.vocabulary.end, list[int]()
    exposures = rng.randint(2, 5)
    windows = Windows(facts)
    for number in range(exposures):
        assert windows.start_of(number) == len(tokens)
        for life in facts.source.exposure(number).biographies():
            tokens += [end, *tokenizer.encode_ids(life.text)]
    assert facts.rows(exposures) == math.ceil(len(tokens) / WINDOW)
    count = (len(tokens) - 1) // WINDOW
    batch = Windows(facts).batch(0, count)
    assert batch.tokens.flatten().tolist() == tokens[: count * WINDOW]
    assert batch.targets.flatten().tolist() == tokens[1 : count * WINDOW + 1]
    for i in rng.sample(range(count), count):
        assert torch.equal(windows.batch(i, 1).tokens[0], batch.tokens[i])
    far = rng.randrange(1_000)
    assert torch.equal(Windows(facts).batch(far, 2).targets[1:], windows.batch(far + 1, 1).targets)


def test_rows_of_biographies_are_labelled_by_their_parts(rng: random.Random) -> None:
    facts = BioS(people=rng.randint(1, 30), seed=rng.randrange(2**32))
    tokenizer, orders = facts.vocabulary.tokenizer, rng.randint(1, 3)
    lives = [life for e in range(orders) for life in facts.source.exposure(e, measuring=True).biographies()]
    seen = 0
    for rows in facts.measuring(orders, rng.randint(1, 9)):
        for tokens, targets, parts in zip(*rows, strict=True):
            text, spans = lives[seen]
            real = targets >= 0
            assert tokenizer.decode(targets[real].tolist()) == text
            assert tokens[0] == facts.vocabulary.end
            assert torch.equal(tokens[1:][real[1:]], targets[:-1][real[1:]])
            assert (parts[~real] == REST).all()
            assert tokenizer.decode(targets[parts == NAME].tolist()) == text[slice(*spans.pop("name"))]
            values = "".join(f" {text[start:end]}" for start, end in sorted(spans.values()))
            assert tokenizer.decode(targets[parts == VALUE].tolist()).strip() == values.strip()
            seen += 1
    assert seen == len(lives)
    assert facts.used_tokens <= len(set(tokenizer.encode_ids(" ".join(life.text for life in lives)))) + 400


def test_used_tokens_of_biographies_are_those_that_occur() -> None:
    facts = BioS(people=40, seed=5)
    seen = {facts.vocabulary.end}
    for number in range(60):  # all templates occur
        for life in facts.source.exposure(number).biographies():
            seen.update(facts.vocabulary.tokenizer.encode_ids(life.text))
    assert facts.used_tokens == len(seen)


def test_impossible_biographies_are_errors() -> None:
    with pytest.raises(ConfigError, match="people must be from 1"):
        Biographies(0)
    with pytest.raises(ConfigError, match="seed must be 0 or more"):
        Biographies(1, seed=-1)


# -- the formulas


def test_the_uniform_predictor_stores_nothing_and_a_table_stores_all(rng: random.Random) -> None:
    facts = some_facts(rng)
    space, N = facts.space, facts.people
    uniform = Nats(2 * math.log(facts.name_tokens), facts.attributes * math.log(facts.values))
    assert space.stored(N, uniform).total == pytest.approx(0, abs=1e-8)
    table = space.stored(N, Nats(math.log(N), 0.0))
    assert table == pytest.approx(space.most(N))
    expected = N * (math.log2(facts.name_tokens**2 / N) + facts.attributes * math.log2(facts.values))
    assert table.total == pytest.approx(expected)


def test_bits_follow_the_formula_as_it_is_printed(rng: random.Random) -> None:
    names, N = rng.randint(1_000, 10**6), rng.randint(1, 1_000)
    D, K = rng.randint(2, 500), rng.randint(1, 9)
    p1, each = rng.uniform(0, 12), rng.uniform(0, 6)
    stored = KnowledgeSpace(names, K * math.log2(D)).stored(N, Nats(p1, K * each))
    assert stored.names == pytest.approx(N * math.log2(names / math.exp(p1)), rel=1e-9, abs=1e-6)
    assert stored.values == pytest.approx(N * K * math.log2(D / math.exp(each)), rel=1e-9, abs=1e-6)


def test_the_numbers_of_the_paper() -> None:
    assert pytest.approx(47.59, abs=0.005) == BIOGRAPHIES.value_bits
    assert BIOGRAPHIES.names == 1.6e8
    facts = BioD(people=2_000)
    assert facts.space.most(2_000).total == pytest.approx(2_000 * (math.log2(65_536 / 2_000) + 72))
    with pytest.raises(ConfigError, match="people must be from 1"):
        facts.space.most(65_537)


# -- measurements


class PassOn(nn.Linear):
    """A head that returns what it reads."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden


class Table(nn.Module):
    """A model that knows a share of the facts exactly, and predicts the rest uniformly.

    It reads the row so far and returns log-probabilities; ``lm_head`` passes them on.
    """

    def __init__(self, facts: BioD, known: int) -> None:
        super().__init__()
        self.facts, self.known = facts, known
        self.lm_head = PassOn(1, 1)
        self.people = {tuple(name): i for i, name in enumerate(facts.names.tolist())}

    def hidden(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] -> log-probabilities [B, T, V]."""
        return torch.stack([torch.stack(self.predictions(row)) for row in tokens.tolist()])

    def predictions(self, row: list[int]) -> list[Tensor]:
        facts, names = self.facts, self.facts.names
        first_value = 1 + facts.name_tokens + facts.attributes
        person = self.people[tuple(row[1:3])]
        first = np.bincount(names[:, 0], minlength=facts.vocab_size)
        second = np.bincount(names[names[:, 0] == row[1], 1], minlength=facts.vocab_size)
        shares = [first, second]
        for i in range(2, facts.window):
            share = np.zeros(facts.vocab_size)
            if i == facts.window - 1:
                share[END] = 1
            elif i % 2 == 0:
                share[1 + facts.name_tokens : first_value] = 1
            elif person < self.known:
                share[facts.value_tokens[person, row[i] - 1 - facts.name_tokens]] = 1
            else:
                share[first_value:] = 1
            shares.append(share)
        return [torch.tensor(share / share.sum()).log() for share in shares]


def test_a_table_of_the_facts_stores_their_bits(rng: random.Random) -> None:
    facts = some_facts(rng)
    known = rng.randint(0, facts.people)
    losses = measure(Table(facts, known), facts, orders=2)
    stored, most = facts.space.stored(facts.people, losses.nats), facts.space.most(facts.people)
    assert stored.names == pytest.approx(most.names, rel=1e-5, abs=1e-4)
    assert stored.values == pytest.approx(most.values * known / facts.people, rel=1e-5, abs=1e-3)
    assert losses.rest == pytest.approx(facts.attributes * math.log(facts.attributes), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_equal_size_never_store_more_than_there_is(family: str, rng: random.Random) -> None:
    settings = Settings(people=rng.randint(1, 300), exposures=1, family=family, seed=rng.randrange(2**32))
    facts, model = settings.facts, new_model(settings)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(151_000, rel=0.02)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(rng.uniform(0, 5))
    assert facts.space.stored(facts.people, measure(model, facts).nats).total <= (
        facts.space.most(facts.people).total
    )


@pytest.mark.parametrize("data", DATA)
def test_losses_are_those_of_the_objective(data: str, rng: random.Random) -> None:
    family = rng.choice(FAMILIES)
    settings = Settings(people=rng.randint(1, 300), exposures=1, dim=16, layers=1, family=family, data=data)
    facts, model = settings.facts, new_model(settings)
    losses = measure(model, facts, orders=1)
    (batch,) = facts.measuring(1, facts.people)
    logits = model(batch.tokens)  # [N, T, V]
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum")
    assert sum(losses) == pytest.approx(expected.item() / facts.people, rel=1e-5)


def test_rotary_gpt2_is_gpt2_without_learned_positions_and_gpt_neox(rng: random.Random) -> None:
    """GPT-NeoX with sequential sub-blocks and rotary positions of whole heads is the same model."""
    transformers = pytest.importorskip("transformers")
    heads, layers = rng.randint(1, 3), rng.randint(1, 3)
    settings = Settings(people=20, exposures=1, dim=64 * heads, layers=layers)
    ours = new_model(settings).eval()
    assert "position_embedding.weight" not in dict(ours.named_parameters())
    c = config_of(settings)
    theirs = transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            vocab_size=c.vocab_size,
            hidden_size=c.dim,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * c.dim,
            hidden_act="gelu_new",
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
            use_parallel_residual=False,
            tie_word_embeddings=True,
        )
    ).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(0, 0.1)
        body = theirs.gpt_neox
        body.embed_in.weight.copy_(ours.token_embedding.weight)
        theirs.lm_head.weight.copy_(ours.lm_head.weight)
        body.final_layer_norm.load_state_dict(ours.final_norm.state_dict())
        for block, layer in zip(ours.blocks, body.layers, strict=True):
            layer.input_layernorm.load_state_dict(block.attention_norm.state_dict())
            layer.post_attention_layernorm.load_state_dict(block.ffn_norm.state_dict())
            projections = (block.attention.q_proj, block.attention.k_proj, block.attention.v_proj)
            for name in ("weight", "bias"):
                by_head = [getattr(each, name).view(heads, 64, -1) for each in projections]
                mixed = torch.cat(by_head, dim=1).view_as(getattr(layer.attention.query_key_value, name))
                getattr(layer.attention.query_key_value, name).copy_(mixed)
            layer.attention.dense.load_state_dict(block.attention.o_proj.state_dict())
            layer.mlp.dense_h_to_4h.load_state_dict(block.feed_forward.up_proj.state_dict())
            layer.mlp.dense_4h_to_h.load_state_dict(block.feed_forward.down_proj.state_dict())
        tokens = torch.randint(c.vocab_size, (rng.randint(1, 3), rng.randint(1, 19)))
        expected = theirs(tokens).logits
        torch.testing.assert_close(ours(tokens), expected, rtol=1e-4, atol=1e-4)
        cache = ours.new_cache(len(tokens), 19)
        steps = [ours(column, cache=cache) for column in tokens.split(1, dim=1)]
        torch.testing.assert_close(torch.cat(steps, dim=1), expected, rtol=1e-4, atol=1e-4)


def test_rounded_weights_are_those_of_int8_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wordloom's int8 models also round the activations of products, about a hundred times finer.

    With fast bfloat16, they would multiply many rows in it, which rounds as much as the weights.
    """
    monkeypatch.setattr(quantized, "MOST_EXACT_ROWS", 1 << 40)
    settings = Settings(people=40, exposures=1, family="llama")
    model, tokens = new_model(settings), Exposures(settings.facts).batch(0, 8).tokens
    with torch.no_grad():
        before = model(tokens)
        with rounded(model, "int8"):
            found = model(tokens)
        assert torch.equal(model(tokens), before)  # the exact weights are back
        quantize_model(model.eval())
        packed = model(tokens)
    assert not torch.equal(found, before)
    assert (found - packed).abs().max() < 0.2 * (found - before).abs().max()


def test_weights_in_4_bits_are_those_of_q4_0(rng: random.Random) -> None:
    """The definition of llama.cpp's Q4_0: of 32 weights, the largest in size is level -8 of 16."""
    model = nn.Linear(rng.randint(1, 100), rng.randint(1, 40))
    with torch.no_grad():
        model.weight.mul_(10.0 ** rng.randint(-4, 4))
        model.weight[0].zero_()
    exact = model.weight.detach().clone()
    with rounded(model, "int4"):
        found = model.weight.detach().clone()
    assert torch.equal(model.weight, exact)
    assert (found[0] == 0).all()
    for row, rounded_row in zip(exact.tolist(), found.tolist(), strict=True):
        for start in range(0, len(row), 32):
            group, got = row[start : start + 32], rounded_row[start : start + 32]
            scale = max(group, key=abs) / -8
            kept = float(np.float16(scale))
            for weight, value in zip(group, got, strict=True):
                level = 0.0 if scale == 0 else min(15, math.floor(weight / scale + 8.5)) - 8
                assert value == pytest.approx(level * kept, rel=1e-6) or (
                    abs(weight / scale % 1 - 0.5) < 1e-3  # a tie may round to either side
                    and abs(value - level * kept) <= abs(kept) * 1.001
                )


def test_the_embedding_has_8_bits_where_the_blocks_have_4() -> None:
    settings = Settings(people=40, exposures=1, family="llama", dim=32)
    model = new_model(settings)
    exact = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    found = {}
    for to in ("int8", "int4"):
        with rounded(model, to):
            found[to] = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for name, parameter in exact.items():
        equal = torch.equal(found["int8"][name], found["int4"][name])
        assert equal == (parameter.dim() == 1 or name == "token_embedding.weight"), name
        assert torch.equal(found["int8"][name], parameter) == (parameter.dim() == 1)


def test_a_width_that_equals_the_vocabulary_counts_whole() -> None:
    for family, dim in (("gpt2", 256), ("lstm", 205)):  # their hidden widths are 1,024, as the vocabulary
        settings = Settings(people=50, exposures=1, family=family, dim=dim, layers=1, data="bioS")
        model, facts = new_model(settings), settings.facts
        whole = sum(parameter.numel() for parameter in model.parameters())
        assert used_parameters(model, facts) == whole - dim * (facts.vocab_size - facts.used_tokens)


def test_rows_of_tokens_that_never_occur_are_not_counted() -> None:
    for family in FAMILIES:
        settings = Settings(people=3, exposures=1, family=family, dim=16, layers=1)
        model, facts = new_model(settings), settings.facts
        used = {token for row in Exposures(facts).batch(0, 3).tokens.tolist() for token in row}
        assert facts.used_tokens == len(used)
        whole = sum(parameter.numel() for parameter in model.parameters())
        assert used_parameters(model, facts) == whole - 16 * (facts.vocab_size - len(used))


# -- runs


def small(**more: Any) -> dict[str, Any]:
    """Return the settings of a run of a fraction of a second."""
    return {"people": 12, "exposures": 6, "batch_size": 4, "dim": 16, "layers": 1, **more}


def prose(**more: Any) -> dict[str, Any]:
    """Return the settings of a short run on biographies."""
    return small(data="bioS", people=100, exposures=3, **more)


def files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("model.safetensors", "result.json")}


def test_a_small_run_learns_nearly_all_facts(tmp_path: Path) -> None:
    result = run(
        tmp_path / "run",
        {"people": 16, "exposures": 150, "batch_size": 8, "dim": 32, "layers": 1, "learning_rate": 1e-2},
    )
    assert result is not None
    assert result.int4.stored.total < result.fp32.stored.total
    for knowledge in (result.fp32, result.int8):
        assert 0.97 * result.most.total < knowledge.stored.total <= result.most.total
    shown = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    bits = [line["bits_per_parameter"] for line in shown if line["kind"] == "evaluate"]
    assert len(bits) == 10
    assert bits[-1] == pytest.approx(result.fp32.stored.total / result.parameters, rel=0.01)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", [small, prose])
def test_a_resumed_run_ends_with_the_bytes_of_an_uninterrupted_one(
    kind: Any, family: str, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = kind(family=family, seed=rng.randrange(2**32))
    assert run(tmp_path / "whole", given) is not None
    settings = Settings(**given)
    stop_at = rng.randint(1, settings.steps - 1)
    steps = Trainer.train_step

    def stopping(trainer: Trainer) -> Any:
        if trainer.step == stop_at - 1:
            trainer.stop()
        return steps(trainer)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train_step", stopping)
        assert run(tmp_path / "halves", given) is None
    assert not (tmp_path / "halves" / "result.json").exists()
    resumed = run(tmp_path / "halves", {}, resume=True)
    assert files(tmp_path / "halves") == files(tmp_path / "whole")
    assert run(tmp_path / "halves", {}, resume=True) == resumed  # a finished run is read
    model = read_model(settings, tmp_path / "halves")
    assert isinstance(model, RotaryGPT2) == (family == "gpt2")
    assert measure(model, settings.facts) == resumed.fp32.losses


def test_a_run_killed_between_checkpoints_repeats_the_lost_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path / "whole", small()) is not None
    steps = Trainer.train_step

    def killed(trainer: Trainer) -> Any:
        if trainer.step == 9:
            raise MemoryError
        return steps(trainer)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train_step", killed)
        with pytest.raises(MemoryError):
            run(tmp_path / "killed", small(), save_seconds=0)
    assert len(list((tmp_path / "killed" / "checkpoints").iterdir())) == 2  # older ones are removed
    assert run(tmp_path / "killed", {}, resume=True) is not None
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


def test_a_full_disk_at_the_end_loses_no_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rng: random.Random
) -> None:
    """The first write into the run's folder after training fails, then the run is resumed."""
    from wordloom.lab.capacity import experiment

    given = small()
    run(tmp_path / "straight", given)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    name = rng.choice(["save_weights", "write_text", "sync_tree"])
    whole = getattr(experiment, name)

    def full_at_the_end(*given: Any) -> None:
        folder = given[-1] if name == "save_weights" else given[0]
        (full if folder in (tmp_path / "run", tmp_path / "run" / "result.json") else whole)(*given)

    monkeypatch.setattr(experiment, name, full_at_the_end)
    with pytest.raises(CheckpointError, match=r"could not write the result into .*No space left.*--resume"):
        run(tmp_path / "run", given)
    monkeypatch.undo()
    run(tmp_path / "run", {}, resume=True)
    for name in ("model.safetensors", "result.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()


def test_runs_are_compared_by_people_and_seed(tmp_path: Path) -> None:
    for people, seed, family in ((12, 0, "gpt2"), (12, 1, "gpt2"), (24, 0, "gpt2"), (12, 0, "llama")):
        run(
            tmp_path / f"{family}-{people}-{seed}",
            small(people=people, seed=seed, family=family, exposures=1),
        )
    curves = compare(tmp_path).curves
    assert [curve.name for curve in curves] == ["gpt2, 1 exposure", "llama, 1 exposure"]
    first = curves[0].points[0]
    assert [(point.people, len(point.results)) for point in curves[0].points] == [(12, 2), (24, 1)]
    bits = [each.fp32.stored.total / each.parameters for each in first.results]
    assert first.bits("fp32") == pytest.approx(sum(bits) / 2)
    run(tmp_path / "wider", small(dim=32, exposures=1))
    assert [curve.name for curve in compare(tmp_path).curves] == [
        "gpt2, 1 exposure, dim 16", "gpt2, 1 exposure, dim 32", "llama, 1 exposure",
    ]  # fmt: skip


def test_mistakes_are_errors(tmp_path: Path) -> None:
    for given, message in (
        ({"family": "gpt"}, "unknown family"),
        ({"data": "bios"}, "unknown data 'bios'.*bioS"),
        ({"precision": "fp16"}, "unknown precision 'fp16'"),
        ({"people": 65_537}, "too few for 65,537 people"),
        ({"exposures": 0}, "exposures must be 1 or more"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"dim": 100, "family": "gpt2", "layers": 0}, "layers must be 1 or more"),
        ({"batch_size": 73}, "batch_size must be at most 72, the rows of all exposures, not 73"),
        ({"dim": 33}, "dim must be a multiple of 2, not 33"),
        ({"dim": 130, "family": "llama"}, "dim must be a multiple of 4, not 130"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(tmp_path / "run", small() | given)
    assert not (tmp_path / "run").exists()
    run(tmp_path / "run", small())
    with pytest.raises(CheckpointError, match="holds a run: continue it with --resume"):
        run(tmp_path / "run", small())
    with pytest.raises(CheckpointError, match="was begun with people 12, not 13"):
        run(tmp_path / "run", {"people": 13}, resume=True)
    (tmp_path / "run" / "result.json").write_text("{}")
    with pytest.raises(CheckpointError, match="remove the file"):
        compare(tmp_path)


# -- the commands


def test_the_commands_train_and_draw(printed: partial, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = [f"--{name.replace('_', '-')}={value}" for name, value in small().items()]
    done = printed("lab", "capacity", "train", *options, "--out", tmp_path / "runs" / "a", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((tmp_path / "runs" / "a" / "result.json").read_text(encoding="utf-8"))
    assert found["fp32"]["bits_per_parameter"] == pytest.approx(
        found["fp32"]["bits"]["total"] / found["parameters"]
    )
    compared = printed("lab", "capacity", "compare", tmp_path, "--out", tmp_path / "out", "--json")
    assert compared.returncode == 0, compared.stderr
    assert json.loads(compared.stdout)["curves"][0]["points"][0]["runs"] == [found]
    assert (tmp_path / "out" / "capacity.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out" / "capacity.json").read_text()) == json.loads(compared.stdout)


def test_biographies_are_written_as_lines_of_json(printed: partial, tmp_path: Path) -> None:
    out = tmp_path / "new" / "lives.jsonl"
    arguments = ("lab", "capacity", "biographies", "--people", 5, "--exposures", 3, "--seed", 7, "--out", out)
    assert printed(*arguments).returncode == 0
    lines = [json.loads(line) for line in out.open(encoding="utf-8")]
    people = Biographies(5, seed=7)
    expected = [life for exposure in range(3) for life in people.exposure(exposure).biographies()]
    assert [
        (line["text"], {name: tuple(span) for name, span in line["spans"].items()}) for line in lines
    ] == [tuple(each) for each in expected]
    again = printed(*arguments)
    assert again.returncode == 2
    assert "exists; choose another name, or replace it with --force" in again.stderr


def test_mistakes_on_the_command_line_are_one_line(printed: partial, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    train = ("train", "--out", tmp_path / "run")
    diverges = ("train", "--people", 5, "--exposures", 2, "--dim", 16, "--learning-rate", 1e30)
    done = printed("lab", "capacity", *diverges, "--out", tmp_path / "diverges")
    assert done.returncode == 2
    assert "not finite" in done.stderr
    assert "Traceback" not in done.stderr
    for arguments, message in (
        ((*train, "--family", "gpt"), "unknown family 'gpt'"),
        ((*train, "--people", 100_000), "too few for 100,000 people"),
        ((*train, "--learning-rate", -1), "learning_rate must be above 0"),
        ((*train, "--dim", 129), "dim"),
        ((*train, "--resume"), "holds no run"),
        (("train", "--out", tmp_path / "file"), "is in use"),
        (("train",), "--out"),
        (("biographies", "--out", tmp_path / "lives.txt"), "is no .jsonl file"),
        (("biographies", "--out", tmp_path / "a.jsonl", "--people", 10**8), "people must be from 1"),
        (("compare", tmp_path), "holds no finished run"),
        (("compare", tmp_path, "--force"), "leave out --force"),
        (("compare", tmp_path, "--out", tmp_path / "file"), "is not a folder"),
    ):
        done = printed("lab", "capacity", *arguments)
        assert done.returncode == 2, (arguments, done)
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1, done.stderr
        assert message in done.stderr, done.stderr
    assert not (tmp_path / "run").exists()


def test_ctrl_c_saves_and_names_the_command_to_continue(forked: partial, tmp_path: Path) -> None:
    out = tmp_path / "out"
    started = forked("lab", "capacity", "train", "--people", 50, "--dim", 16, "--out", out)
    deadline = time.monotonic() + 60
    while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(1)
    started.send_signal(signal.SIGINT)
    _, stderr = started.communicate()
    assert started.returncode == 0, stderr
    assert "Traceback" not in stderr
    assert f"lab capacity train --out {out} --resume" in stderr
    assert list((out / "checkpoints").glob("step-*"))


def test_a_device_that_is_not_here_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="'cuda:77' is not on this machine"):
        run(tmp_path / "run", {"people": 5, "exposures": 5}, device="cuda:77")
    assert not (tmp_path / "run").exists()
