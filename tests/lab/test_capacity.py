"""Knowledge capacity: the facts and their entropy, bits against models that are known exactly, and runs."""

from __future__ import annotations

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

from wordloom.errors import CheckpointError, ConfigError
from wordloom.lab.capacity.biographies import (
    CITIES,
    COMPANIES,
    FIRST_NAMES,
    LAST_NAMES,
    MAJORS,
    MIDDLE_NAMES,
    UNIVERSITIES,
    Biographies,
)  # fmt: skip
from wordloom.lab.capacity.bits import BIOGRAPHIES, KnowledgeSpace, Nats
from wordloom.lab.capacity.comparing import compare
from wordloom.lab.capacity.experiment import run
from wordloom.lab.capacity.facts import END, Exposures, Facts
from wordloom.lab.capacity.measuring import measure, rounded_to_int8, used_parameters
from wordloom.lab.capacity.settings import FAMILIES, Settings
from wordloom.models.building.build import build
from wordloom.models.building.quantized import quantize_model
from wordloom.training import Trainer


def some_facts(rng: random.Random) -> Facts:
    return Facts(
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
    fresh = Exposures(Facts(**{name: getattr(facts, name) for name in facts.__dataclass_fields__}))
    order = list(range(count))
    rng.shuffle(order)
    for i in order:
        alone = fresh.batch(start + i, 1)
        assert torch.equal(alone.tokens[0], together.tokens[i])
        assert torch.equal(alone.targets[0], together.targets[i])


def test_other_seeds_and_streams_give_other_rows() -> None:
    facts = Facts(people=50)
    rows = Exposures(facts).batch(0, 50).tokens
    assert not torch.equal(rows, Exposures(facts).batch(50, 50).tokens)
    assert not torch.equal(rows, Exposures(facts, measuring=True).batch(0, 50).tokens)
    assert not torch.equal(rows, Exposures(Facts(people=50, seed=1)).batch(0, 50).tokens)


def test_names_values_and_orders_are_uniform() -> None:
    """Empirical entropies are at most a few thousandths of a bit below those of uniform draws."""
    facts = Facts(people=40_000)
    for tokens, choices in ((facts.names, 256), (facts.value_tokens, 512)):
        for column in tokens.T:
            share = np.bincount(column - column.min(), minlength=choices) / len(column)
            entropy = -(share[share > 0] * np.log2(share[share > 0])).sum()
            assert math.log2(choices) - 0.02 < entropy <= math.log2(choices)
    rows = Exposures(Facts(people=6_000, attributes=3)).batch(0, 6_000).tokens
    orders = Counter(tuple(row) for row in rows[:, 3::2].tolist())
    assert len(orders) == 6
    assert all(abs(count - 1_000) < 150 for count in orders.values())  # five standard deviations
    assert Exposures(facts).batch(0, 1).tokens.shape[1] == 19


def test_memory_does_not_grow_with_exposures() -> None:
    exposures = Exposures(Facts(people=3))
    for exposure in range(100):
        exposures.batch(3 * exposure, 3)
    assert exposures._exposure.cache_info().currsize == 2


def test_impossible_facts_are_errors() -> None:
    with pytest.raises(ConfigError, match="too few for 10 people"):
        Facts(people=10, name_tokens=3)
    for name in ("people", "values"):
        with pytest.raises(ConfigError, match=f"{name} must be 1 or more"):
            Facts(**{"people": 5, name: 0})
    with pytest.raises(ConfigError, match="seed must be 0 or more"):
        Facts(people=5, seed=-1)


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
    number, exposures = rng.randrange(people.people), [rng.randrange(10**9) for _ in range(40)]
    texts = set()
    for exposure in exposures:
        text, spans = people.biography(number, exposure)
        person = people.person(number)
        assert {name: text[start:end] for name, (start, end) in spans.items()} == person._asdict()
        assert text.startswith(person.name)
        assert text.count(person.name) == 1
        assert text.count(".") == 6
        assert "{" not in text
        assert Biographies(people.people, seed=people.seed).biography(number, exposure).text == text
        texts.add(text)
    assert len(texts) == len(set(exposures))  # of 720 orders and 6^6 templates
    assert sorted(people.order(exposures[0])) == list(range(people.people))


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
    facts = Facts(people=2_000)
    assert facts.space.most(2_000).total == pytest.approx(2_000 * (math.log2(65_536 / 2_000) + 72))
    with pytest.raises(ConfigError, match="people must be from 1"):
        facts.space.most(65_537)


# -- measurements


class Table(nn.Module):
    """A model that knows a share of the facts exactly, and predicts the rest uniformly.

    It reads the row so far and returns log-probabilities; ``lm_head`` passes them on.
    """

    def __init__(self, facts: Facts, known: int) -> None:
        super().__init__()
        self.facts, self.known = facts, known
        self.lm_head = nn.Linear(1, 1)
        self.lm_head.forward = lambda hidden: hidden  # type: ignore[method-assign]
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
        for i in range(2, facts.predictions):
            share = np.zeros(facts.vocab_size)
            if i == facts.predictions - 1:
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
    assert losses.markers == pytest.approx(facts.attributes * math.log(facts.attributes), rel=1e-5, abs=1e-6)
    assert losses.end == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_equal_size_never_store_more_than_there_is(family: str, rng: random.Random) -> None:
    settings = Settings(people=rng.randint(1, 300), exposures=1, family=family, seed=rng.randrange(2**32))
    facts, model = settings.facts, build(settings.config)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(151_500, rel=0.01)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(rng.uniform(0, 5))
    assert facts.space.stored(facts.people, measure(model, facts).nats).total <= (
        facts.space.most(facts.people).total
    )


def test_losses_are_those_of_the_objective(rng: random.Random) -> None:
    settings = Settings(people=rng.randint(1, 300), exposures=1, dim=16, layers=1, family="lstm")
    facts, model = settings.facts, build(settings.config)
    losses = measure(model, facts, orders=1)
    batch = Exposures(facts, measuring=True).batch(0, facts.people)
    logits = model(batch.tokens)  # [N, T, V]
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum")
    assert sum(losses) == pytest.approx(expected.item() / facts.people, rel=1e-5)


def test_rounded_weights_are_those_of_int8_models(rng: random.Random) -> None:
    """Wordloom's int8 models also round the activations of products, about a hundred times finer."""
    for family in ("gpt2", "llama"):
        settings = Settings(people=40, exposures=1, family=family)
        model, tokens = build(settings.config), Exposures(settings.facts).batch(0, 8).tokens
        with torch.no_grad():
            before = model(tokens)
            with rounded_to_int8(model):
                rounded = model(tokens)
            assert torch.equal(model(tokens), before)  # the exact weights are back
            quantize_model(model.eval())
            packed = model(tokens)
        assert not torch.equal(rounded, before)
        assert (rounded - packed).abs().max() < 0.2 * (rounded - before).abs().max()


def test_rows_of_tokens_that_never_occur_are_not_counted() -> None:
    for family in FAMILIES:
        settings = Settings(people=3, exposures=1, family=family, dim=16, layers=1)
        model, facts = build(settings.config), settings.facts
        used = {token for row in Exposures(facts).batch(0, 3).tokens.tolist() for token in row}
        assert facts.used_tokens == len(used)
        whole = sum(parameter.numel() for parameter in model.parameters())
        assert used_parameters(model, facts) == whole - 16 * (facts.vocab_size - len(used))


# -- runs


def small(**more: Any) -> dict[str, Any]:
    """Return the settings of a run of a fraction of a second."""
    return {"people": 12, "exposures": 6, "batch_size": 4, "dim": 16, "layers": 1, **more}


def files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("model.safetensors", "result.json")}


def test_a_small_run_learns_nearly_all_facts(tmp_path: Path) -> None:
    result = run(
        tmp_path / "run",
        {"people": 16, "exposures": 150, "batch_size": 8, "dim": 32, "layers": 1, "learning_rate": 1e-2},
    )
    assert result is not None
    for knowledge in (result.fp32, result.int8):
        assert 0.97 * result.most.total < knowledge.stored.total <= result.most.total
    shown = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    bits = [line["bits_per_parameter"] for line in shown if line["kind"] == "evaluate"]
    assert len(bits) == 10
    assert bits[-1] == pytest.approx(result.fp32.stored.total / result.parameters, rel=0.01)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_resumed_run_ends_with_the_bytes_of_an_uninterrupted_one(
    family: str, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(family=family, seed=rng.randrange(2**32))
    assert run(tmp_path / "whole", settings) is not None
    stop_at = rng.randint(1, 17)
    steps = Trainer.train_step

    def stopping(trainer: Trainer) -> Any:
        if trainer.step == stop_at - 1:
            trainer.stop()
        return steps(trainer)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train_step", stopping)
        assert run(tmp_path / "halves", settings) is None
    assert not (tmp_path / "halves" / "result.json").exists()
    resumed = run(tmp_path / "halves", {}, resume=True)
    assert files(tmp_path / "halves") == files(tmp_path / "whole")
    assert run(tmp_path / "halves", {}, resume=True) == resumed  # a finished run is read


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
    assert first.fp32 == pytest.approx(sum(bits) / 2)
    run(tmp_path / "wider", small(dim=32, exposures=1))
    assert [curve.name for curve in compare(tmp_path).curves] == [
        "gpt2, 1 exposure, dim 16", "gpt2, 1 exposure, dim 32", "llama, 1 exposure, dim 16",
    ]  # fmt: skip


def test_mistakes_are_errors(tmp_path: Path) -> None:
    for given, message in (
        ({"family": "gpt"}, "unknown family"),
        ({"people": 65_537}, "too few for 65,537 people"),
        ({"exposures": 0}, "exposures must be 1 or more"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"dim": 100, "family": "gpt2", "layers": 0}, "layers must be 1 or more"),
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
    expected = [people.biography(i, e) for e in range(3) for i in people.order(e).tolist()]
    assert [
        (line["text"], {name: tuple(span) for name, span in line["spans"].items()}) for line in lines
    ] == [tuple(each) for each in expected]
    again = printed(*arguments)
    assert again.returncode == 2
    assert "exists; choose another name, or replace it with --force" in again.stderr


def test_mistakes_on_the_command_line_are_one_line(printed: partial, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    train = ("train", "--out", tmp_path / "run")
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
