"""The parts of a comparison: budgets, sizes of models, units of the held-out text, intervals and tables."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from wordloom.data import Document
from wordloom.data.rows.minimal_pairs import MinimalPair
from wordloom.errors import EvaluationError, RecipeError
from wordloom.evaluate import perplexity
from wordloom.evaluate.baselines import KneserNey
from wordloom.models import build, config_from
from wordloom.recipe import Recipe, load_recipe
from wordloom.run.compare.baselines import ngram_acceptability, ngram_sample
from wordloom.run.compare.budget import Budget, Cost, parse_amount, short
from wordloom.run.compare.cautions import _worse_with_more
from wordloom.run.compare.entries import (
    FAMILIES,
    count_parameters,
    entry_config,
    family_entry,
    own_entry,
    shape_for,
    shape_of,
)
from wordloom.run.compare.figure import comparison_figure
from wordloom.run.compare.held_out import HeldOut, byte_stream
from wordloom.run.compare.measuring import prompt_of
from wordloom.run.compare.result import Point, Result, Row, in_order, paired
from wordloom.run.compare.tables import csv_of, text_of
from wordloom.text import Tokenizer

BASE = {
    "name": "base",
    "data": {"train": "a.txt"},
    "tokenizer": {"kind": "byte"},
    "model": {"family": "gru"},
    "train": {"steps": 1, "seq_len": 24, "batch_size": 3},
}


def base_recipe(**train: object) -> Recipe:
    values = {**BASE, "model": {"family": "llama", "dim": 24, "n_layers": 3, "n_heads": 2}}
    return Recipe.model_validate({**values, "train": {**BASE["train"], **train}})


# -- budgets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "amount"),
    [("50M", 5e7), ("1.5k", 1500), ("2_000", 2000), ("1e15", 1e15), ("3b", 3e9), ("0.5", 0.5), ("1T", 1e12)],
)
def test_amounts(text: str, amount: float) -> None:
    assert parse_amount(text, "x") == amount


@pytest.mark.parametrize("text", ["tokens=20.04k", "tokens=2M", "minutes=0.123456", "flops=1.2345678e15"])
def test_a_budget_is_written_exactly(text: str) -> None:
    assert Budget.parse(str(Budget.parse(text))) == Budget.parse(text)


@pytest.mark.parametrize("text", ["", "0", "-3", "50 million", "nan", "inf", "1e999", "M", "5M5"])
def test_amounts_that_are_refused(text: str) -> None:
    with pytest.raises(RecipeError, match=r"--parameters: .* is no number above 0"):
        parse_amount(text, "--parameters")


def test_a_budget_is_converted_to_steps() -> None:
    cost = Cost(tokens=512, flops=2e6, seconds=0.5)
    assert cost.steps(Budget.parse("tokens=51200")) == 100
    assert cost.steps(Budget.parse("tokens=51200"), 0.1) == 10
    assert cost.steps(Budget.parse("flops=2e8")) == 100
    assert cost.steps(Budget.parse("minutes=1")) == 120
    assert cost.steps(Budget.parse("tokens=512"), 0.03) == 1
    with pytest.raises(RecipeError, match="tokens=511 is smaller than one step, which takes 512 tokens"):
        cost.steps(Budget.parse("tokens=511"))
    for wrong in ("tokens", "50M", "hours=3", "tokens=", "=5"):
        with pytest.raises(RecipeError):
            Budget.parse(wrong)
    assert [str(Budget.parse(text)) for text in ("tokens=50M", "flops=1e15", "minutes=20")] == [
        "tokens=50M", "flops=1e+15", "minutes=20",
    ]  # fmt: skip
    assert [short(amount) for amount in (999, 1_500, 2e6, 7e9)] == ["999", "1.5k", "2M", "7B"]


# -- entries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", range(3))
def test_models_of_one_size_have_as_many_parameters(attempt: int, rng: random.Random) -> None:
    """Half of a hidden unit of the widest layer is the most that numbers can differ by."""
    vocab_size, parameters = rng.randint(60, 3000), rng.uniform(4e5, 5e6)
    shape = shape_for(parameters, vocab_size)
    assert abs(shape.weights + vocab_size * shape.dim - parameters) <= 1
    for name in FAMILIES:
        entry = family_entry(name, base_recipe(), shape, vocab_size)
        assert abs(entry.weights / shape.weights - 1) < 0.02, name
        assert abs(entry.parameters / parameters - 1) < 0.06, name  # learned positions are on top
        model = entry.recipe.model
        config = entry_config(model["family"], {k: v for k, v in model.items() if k != "family"}, vocab_size)
        assert count_parameters(config) == (entry.parameters, entry.weights)
        built = sum(p.numel() for p in build(config).parameters())
        assert built == entry.parameters
        assert config.tie_embeddings


def test_the_shape_of_a_recipe_is_that_of_its_model() -> None:
    recipe = base_recipe()
    shape = shape_of(recipe, 300)
    config = config_from("llama", dim=24, n_layers=3, n_heads=2, vocab_size=300, tie_embeddings=True)
    assert shape == (24, 3, 2, count_parameters(config)[1])
    assert family_entry("gpt2", recipe, shape, 300).recipe.model["n_heads"] == 2


def test_too_few_parameters() -> None:
    with pytest.raises(RecipeError, match=r"leave no room for layers.*--parameters"):
        shape_for(5e5, 20_000)


def test_settings_that_entries_share(tmp_path) -> None:
    recipe = base_recipe(optimizer="muon", weight_decay=0.3, schedule="linear", sample_every=7, clip=0.5)
    shape = shape_of(recipe, 257)
    for name, family in FAMILIES.items():
        train = family_entry(name, recipe, shape, 257).recipe.train
        assert (train.optimizer, train.weight_decay, train.clip) == ("adamw", 0.3, 0.5)
        assert (train.objective, train.schedule, train.sample_every) == (family.objective, "cosine", 0)
    own = tmp_path / "mine.toml"
    own.write_text(
        '[data]\ntrain = "other.txt"\n[tokenizer]\nkind = "char"\n[model]\nfamily = "gpt"\ndim = 8\n'
        'n_heads = 2\nn_layers = 1\n[train]\nminutes = 3\nlearning_rate = 0.01\noptimizer = "sgd"\n'
        'momentum = 0.9\nseq_len = 99\nsample_every = 5\nsample_prompt = "x"\nevaluate_every = 9\n'
    )
    entry = own_entry(own, load_recipe(own), recipe, 257)
    assert entry.name == "mine"
    assert entry.rates == (0.0025, 0.005, 0.01, 0.02, 0.04)
    assert entry.recipe.data.train == "a.txt"
    assert entry.recipe.tokenizer.kind == "byte"
    s = entry.recipe.train
    assert (s.optimizer, s.momentum, s.seq_len) == ("sgd", 0.9, 24)
    assert (s.minutes, s.sample_every, s.evaluate_every) == (None, 0, 0)


def test_an_own_recipe_keeps_its_optimizer_and_takes_the_context_of_the_comparison(tmp_path) -> None:
    base = base_recipe(beta2=0.99, weight_decay=0.3, final_share=0.02, clip=0.5, threads=1)
    own = tmp_path / "mine.toml"
    own.write_text(
        '[data]\ntrain = "other.txt"\n[model]\npreset = "gpt2"\nvocab_size = 99\nn_layers = 1\n'
        '[train]\nsteps = 9\nbeta2 = 0.95\nthreads = 2\nschedule = "constant"\n'
    )
    entry = own_entry(own, load_recipe(own), base, 257)
    s = entry.recipe.train
    assert (s.optimizer, s.beta2, s.schedule, s.threads) == ("adamw", 0.95, "constant", 1)
    plain = Recipe.model_validate({**BASE, "model": {"family": "llama"}}).train
    assert (s.weight_decay, s.clip, s.final_share) == (plain.weight_decay, plain.clip, plain.final_share)
    assert entry.recipe.model["max_seq_len"] == 24
    assert "vocab_size" not in entry.recipe.model
    config = config_from("gpt2", dim=768, n_heads=12, n_layers=1, max_seq_len=24, vocab_size=257)
    assert entry.parameters == count_parameters(config)[0]


def test_an_own_encoder_keeps_its_masking(tmp_path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text(
        '[data]\ntrain = "other.txt"\n[model]\nfamily = "bert"\ndim = 8\nn_heads = 2\nn_layers = 1\n'
        '[train]\nobjective = "masked_lm"\nsteps = 9\nseq_len = 16\nlong_seq_len = 20\n'
        "[masking]\nshare = 0.4\n"
    )
    entry = own_entry(own, load_recipe(own), base_recipe(), 257)
    assert entry.recipe.masking.share == 0.4
    assert entry.recipe.train.long_seq_len is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('objective = "classification"\n', "trains no language model"),
        ('schedule = "epoch_decay"\n', "counts epochs, and a comparison counts its budget in steps"),
        ("", "from scratch"),
        ("[other]", "mine.toml: rows of 24 tokens are longer than model.max_seq_len 8"),
    ],
)
def test_recipes_that_cannot_be_entered(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    start = "" if text else 'start_from = "runs/x"\n'  # of the second case
    more = "max_seq_len = 8" if text == "[other]" else ""
    text = text.replace("[other]", "")
    budget = "epochs" if "epoch" in text else "steps"
    path.write_text(
        f'{start}[data]\ntrain = "a.tsv"\n[model]\nfamily = "llama"\n{more}\n[train]\n{budget} = 3\n{text}'
    )
    with pytest.raises(RecipeError, match=message):
        own_entry(path, load_recipe(path), base_recipe(), 257)


# -- the held-out text ---------------------------------------------------------------------------------------


def random_documents(rng: random.Random, count: int, longest: int) -> list[Document]:
    letters = "abc \né中"
    texts = ["".join(rng.choices(letters, k=rng.randint(1, longest))) for _ in range(count)]
    return [Document(text, "made", i) for i, text in enumerate(texts)]


def random_tokenizer(rng: random.Random, documents: list[Document]) -> Tokenizer:
    kind = rng.choice(["byte", "char", "bpe"])
    settings = {"vocab_size": 290} if kind == "bpe" else {}
    if kind == "char":  # without a token for unknown characters, which would lose them
        settings["special_tokens"] = rng.choice([[], ["<|endoftext|>"]])
    return Tokenizer.train((document.text for document in documents), kind=kind, **settings)


@pytest.mark.parametrize(("count", "longest"), [(25, 40), (3, 1500), (1, 1), (1, 700), (19, 5), (20, 600)])
def test_the_bits_of_all_units_are_those_of_perplexity_and_of_the_ngram(
    count: int, longest: int, rng: random.Random
) -> None:
    documents = random_documents(rng, count, longest)
    tokenizer = random_tokenizer(rng, documents)
    held_out = HeldOut(documents, tokenizer, "refuse")
    n_bytes = sum(len(document.text.encode()) for document in documents)
    assert held_out.n_bytes == n_bytes
    assert held_out.unit == ("documents" if count >= 20 else "blocks")
    family = rng.choice(["gpt2", "rnn", "cbow"])
    shape = {"max_seq_len": 32, "n_heads": 2} if family == "gpt2" else {}
    model = build(config_from(family, vocab_size=tokenizer.vocab_size, dim=8, n_layers=1, **shape)).eval()
    if longest == 1 and tokenizer.eos_id is None:  # one character with nothing before it
        with pytest.raises(EvaluationError, match="no token to score"):
            held_out.model_bits(model)
        return
    bits = held_out.model_bits(model)
    assert bits.shape == held_out.sizes.shape
    score = perplexity(model, tokenizer, documents)["bits_per_byte"]
    assert bits.sum() / n_bytes == pytest.approx(score.value, rel=1e-6)
    found, expected = held_out.statistics(bits).interval(), score.interval
    assert found is None if expected is None else found == pytest.approx(expected, rel=1e-5)

    train = byte_stream(random_documents(rng, 30, 60))
    ngram = KneserNey(order=rng.randint(1, 6)).fit(train)
    stream = byte_stream(documents)
    bits = held_out.ngram_bits(ngram)
    assert bits.shape == held_out.sizes.shape
    each = ngram.bits(stream)
    ends = np.frombuffer(stream, dtype=np.uint8) == 0
    assert bits.sum() == pytest.approx(each.sum() if held_out.ends_scored else each[~ends].sum())
    if held_out.ends_scored:
        assert bits.sum() == pytest.approx(ngram.bits_per_byte(stream) * len(stream))


@pytest.mark.parametrize(("count", "longest"), [(25, 40), (3, 1500), (1, 1)])
def test_a_tokenizer_that_puts_a_space_before_a_text(
    count: int, longest: int, rng: random.Random, data: Path
) -> None:
    documents = random_documents(rng, count, longest)
    tokenizer = Tokenizer.from_pretrained(data / "weights/stories260K/hf")
    held_out = HeldOut(documents, tokenizer, "refuse")
    assert held_out.n_bytes == sum(len(document.text.encode()) for document in documents)
    ngram = KneserNey(order=2).fit(byte_stream(documents))
    each = ngram.bits(stream := byte_stream(documents))
    ends = np.frombuffer(stream, dtype=np.uint8) == 0
    assert held_out.ngram_bits(ngram).sum() == pytest.approx(
        each.sum() if held_out.ends_scored else each[~ends].sum()
    )
    model = build(config_from("rnn", vocab_size=tokenizer.vocab_size, dim=8, n_layers=1)).eval()
    score = perplexity(model, tokenizer, documents)["bits_per_byte"]
    assert held_out.model_bits(model).sum() / held_out.n_bytes == pytest.approx(score.value, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("床前明月光\n疑是地上霜\n" * 9, "床前明月光\n疑是地上霜\n" * 3 + "床前明月光"),
        (
            "\n 12 -- A tale of two cities, and of more than two cities in it",
            "A tale of two cities, and of more than two",
        ),
        ("one\n\ttwo", "one\n\ttwo"),
        ("?! 12", "?! 12"),
        ("x" * 300, "x" * 80),
        ("  ", "  "),
    ],
)
def test_a_prompt_is_a_part_of_the_text(text: str, prompt: str) -> None:
    assert prompt_of([Document(text, "made", 0)]) == prompt
    assert prompt in text


def test_a_lossy_tokenizer_and_no_text_are_refused() -> None:
    documents = [Document("a b", "made", 0)]
    lossy = Tokenizer.train(["a b c"], kind="word")
    with pytest.raises(EvaluationError, match="bits per byte are undefined"):
        HeldOut([Document("a  x", "made", 0)], lossy, "refuse")
    with pytest.raises(EvaluationError, match="empty"):
        HeldOut([Document("", "made", 0)], Tokenizer.train([], kind="byte"), "refuse")
    assert HeldOut(documents, Tokenizer.train([], kind="byte"), "refuse").n_bytes == 3


def test_the_ngram_writes_what_it_has_seen() -> None:
    ngram = KneserNey(order=5).fit(b"the cat sat on the mat. " * 50 + b"\0")
    text = ngram_sample(ngram, "the cat")
    assert text.startswith(" sat on the ")
    assert text == ngram_sample(ngram, "the cat")


# -- results -------------------------------------------------------------------------------------------------


def made_result(rng: random.Random) -> tuple[Result, dict[str, np.ndarray], HeldOut]:
    documents = random_documents(rng, 40, 50)
    held_out = HeldOut(documents, Tokenizer.train([], kind="byte"), "refuse")
    bits = {name: held_out.sizes * rng.uniform(1, 3) + np.random.rand(40) for name in ("a", "b", "c")}
    rows = [
        (Row(name=name, title=name.upper(), score=float(of.sum() / held_out.n_bytes), seeds=[2.0, 2.5],
             seed_numbers=[7, 9], tasks={"blimp": 0.75}), of)
        for name, of in bits.items()
    ]  # fmt: skip
    rows.append((Row(name="lzma", title="lzma", score=9.0), None))
    rows.append((Row(name="bert", title="BERT", score=1.0, encodes=True, tasks={"blimp": 0.5}), None))
    result = Result(
        folder=None, budget=Budget.parse("tokens=1M"), text="text", prompt="p", unit=held_out.unit,
        units=40, held_out_bytes=held_out.n_bytes, tokenizer="byte", seeds=2,
        rows=in_order(rows, held_out), pairs=paired(rows, held_out), runs=3, flops=2e9, signature="s",
        notes=["a note"],
    )  # fmt: skip
    return result, bits, held_out


def test_differences_are_paired_by_unit(rng: random.Random) -> None:
    result, bits, held_out = made_result(rng)
    best, *others = result.causal
    assert best.score == min(row.score for row in result.causal)
    assert best.difference is None
    assert [row.name for row in result.encoders] == ["bert"]
    for row in others[:-1]:
        assert row.difference == pytest.approx(row.score - best.score)
        each = bits[row.name] - bits[best.name]
        n, sizes = len(each), held_out.sizes
        ratio = each.sum() / sizes.sum()
        half = 1.959964 * math.sqrt(n / (n - 1) * ((each - ratio * sizes) ** 2).sum()) / sizes.sum()
        assert row.difference_interval == pytest.approx((ratio - half, ratio + half), rel=1e-4)
    assert others[-1].name == "lzma"
    assert others[-1].difference_interval is None
    names = [row.title for row in result.causal[:-1]]
    assert [(pair.first, pair.second) for pair in result.pairs] == list(combinations(names, 2))
    for pair, row in zip(result.pairs, others, strict=False):  # those of the best one come first
        if pair.first == best.title and row.title == pair.second:
            assert pair.interval == pytest.approx(row.difference_interval)
    for pair in result.pairs:
        assert pair.excludes_zero == (not pair.interval[0] <= 0 <= pair.interval[1])


def test_differences_are_to_the_best_trained_model(rng: random.Random) -> None:
    result, bits, held_out = made_result(rng)
    rows = [(replace(row, difference=None, parameters=5), bits.get(row.name)) for row in result.causal]
    rows = [(replace(row, score=0.5, parameters=None) if row.name == "a" else row, of) for row, of in rows]
    first, second, *_ = in_order(rows, held_out)
    assert (first.name, second.difference) == ("a", None)
    assert first.difference == pytest.approx(first.score - second.score)


def test_tables_hold_every_row(rng: random.Random) -> None:
    result, *_ = made_result(rng)
    text = text_of(result)
    for row in result.rows:
        assert row.title in text
    assert "note: a note" in text
    assert "trained in all: 3 runs, 2e+09 FLOPs" in text
    assert "published on BLiMP" in text
    rows = list(csv.DictReader(io.StringIO(csv_of(result))))
    assert [row["name"] for row in rows if row["seed"] in ("", "7")] == [row.name for row in result.rows]
    assert {row["blimp"] for row in rows if row["name"] == "bert"} == {"0.5"}
    assert [(row["seed"], row["score"], row["blimp"]) for row in rows if row["name"] == "a"] == [
        ("7", "2.0", "0.75"), ("9", "2.5", ""),  # of the first seed alone
    ]  # fmt: skip
    assert json.loads(json.dumps(result.as_dict()))["budget"] == {"kind": "tokens", "amount": 1e6}


def test_the_small_panel_leaves_out_what_would_stretch_its_scale(rng: random.Random) -> None:
    scores = {"near": 2.0, "second": 2.5, "far": 2.51}
    rows = [
        Row(
            name=name, title=name, score=score, tokens=30, positions=[(1, 9, score + 0.5), (9, 64, score)],
            points=[Point(share=share, tokens=t, flops=t, minutes=t, score=score + 1)
                    for share, t in ((0.1, 3), (1.0, 30))],
        )
        for name, score in scores.items()
    ]  # fmt: skip
    figure = comparison_figure(replace(made_result(rng)[0], rows=rows))
    lines = {axes.get_ylabel(): axes.lines for axes in figure.axes if axes.lines}
    assert len(lines["bits per byte of held-out text"]) == 3
    assert [list(line.get_ydata()) for line in lines["bits per byte"]] == [[2.5, 2.0], [3.0, 2.5]]


@pytest.mark.parametrize(("budget", "expected"), [("minutes=20", [2.0, 20.0]), ("tokens=30", [3, 30])])
def test_a_busy_machine_does_not_move_marks(budget: str, expected: list[float], rng: random.Random) -> None:
    points = [
        Point(share=share, tokens=t, flops=t, minutes=35.0, score=2.0) for share, t in ((0.1, 3), (1.0, 30))
    ]
    rows = [Row(name="a", title="A", score=2.0, points=points)]
    figure = comparison_figure(replace(made_result(rng)[0], rows=rows, budget=Budget.parse(budget)))
    (line,) = figure.axes[0].lines
    assert list(line.get_xdata()) == pytest.approx(expected)


def test_a_note_tells_of_a_longer_run_that_is_worse() -> None:
    def row(*scores: float) -> Row:
        points = [
            Point(share=share, tokens=int(1e6 * share), flops=1, minutes=1, score=score)
            for share, score in zip((1.0, 0.3, 0.1), scores, strict=True)
        ]
        return Row(name="gru", title="GRU", score=scores[0], rate=0.008, points=points)

    losses = {100_000: 1.5, 300_000: 1.6, 1_000_000: 0.7}
    assert list(_worse_with_more(row(1.5, 1.8, 2.0), losses)) == []
    assert list(_worse_with_more(row(1.5, 1.8, 1.77), losses)) == []
    for known in (losses, {}):
        assert list(_worse_with_more(row(1.5, 2.3, 1.8), known)) == [
            "GRU: 2.300 bits per byte after 300,000 tokens, and 1.800 after 100,000; with a learning rate of "
            "0.008, some runs hardly learn"
        ]
    (note,) = _worse_with_more(row(2.4, 1.7, 1.8), losses)
    assert note.endswith("its loss on the training text is lower, so it overfits")


def test_the_edge_of_the_learning_rates() -> None:
    row = Row(name="a", title="a", score=1.0, rate=0.004, trials=[(0.001, 3.0), (0.002, 2.0), (0.004, 1.0)])
    assert row.edge == "highest"
    assert Row(name="a", title="a", score=1.0, rate=0.002, trials=row.trials).edge is None


def test_minimal_pairs_of_an_ngram_model(rng: random.Random) -> None:
    letters = "abc é"
    ngram = KneserNey(order=rng.randint(1, 5)).fit(
        b"".join("".join(rng.choices(letters, k=9)).encode() + b"\0" for _ in range(90))
    )

    def sentence() -> str:
        return "".join(rng.choices(letters, k=rng.randint(1, 12)))

    pairs = [MinimalPair(sentence(), sentence(), rng.choice("xyz"), "", "", 0) for _ in range(60)]

    def bits(text: str, before: bytes) -> float:
        found, written = 0.0, before
        for byte in text.encode():
            found -= math.log2(ngram.distribution(written)[byte])
            written += bytes([byte])
        return found

    right: dict[str, list[bool]] = {}
    for pair in pairs:
        good, bad = bits(pair.good, b"\0" * 5), bits(pair.bad, b"\0" * 5)
        right.setdefault(pair.paradigm, []).append(bad - good > 1e-6)
    expected = np.mean([np.mean(each) for each in right.values()])
    assert ngram_acceptability(ngram, pairs) == pytest.approx(float(expected))
