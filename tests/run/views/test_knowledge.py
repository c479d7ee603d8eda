"""Facts: probabilities, ranks and bits are those of the model's distribution over the answers."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
import torch
from tests.inspect.layers.random_models import random_model

from wordloom.data.rows.facts import Fact, facts_of
from wordloom.errors import DataError, EvaluationError
from wordloom.models import RNNConfig, build
from wordloom.models.building.quantized import quantize_model
from wordloom.run import LanguageModel
from wordloom.run.views.knowledge import knowledge
from wordloom.text import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the mole dug a hole"], kind="byte")


def model_of(tokenizer: Tokenizer, rng: random.Random, family: str) -> LanguageModel:
    if family == "rnn":
        config = RNNConfig(vocab_size=tokenizer.vocab_size, dim=9, cell="gru")
        model = build(config, generator=torch.Generator().manual_seed(rng.randrange(2**31))).eval()
    else:
        model = random_model(family, rng, vocab_size=tokenizer.vocab_size)
    return LanguageModel(model=model, tokenizer=tokenizer, config=model.config)


@pytest.mark.parametrize("family", ["gpt2", "llama", "rnn"])
def test_bits_are_those_of_the_distribution(family: str, tokenizer: Tokenizer, rng: random.Random) -> None:
    lm = model_of(tokenizer, rng, family)
    facts = [
        Fact("the mole", " dug", (" is", " sat")),
        Fact("a", "b", tuple("cdefg")),
        Fact("x", "yz"),
    ]
    view = knowledge(lm, facts)

    def nats(prompt: str, answer: str) -> float:
        before, after = (tokenizer.encode(text).ids for text in (prompt, answer))
        with torch.no_grad():
            shares = lm.model(torch.tensor([[*before, *after]]))[0].double().log_softmax(-1)
        return -sum(float(shares[len(before) + i - 1, index]) for i, index in enumerate(after))

    for each, fact in zip(view.known, facts, strict=True):
        own = nats(fact.prompt, fact.answer)
        assert each.probability == pytest.approx(math.exp(-own), rel=1e-3)
        with torch.no_grad():
            logits = lm.model(torch.tensor([tokenizer.encode(fact.prompt).ids]))[0, -1]
        first = tokenizer.encode(fact.answer).ids[0]
        assert each.first_rank == sorted(logits.tolist(), reverse=True).index(float(logits[first])) + 1
        if not fact.alternatives:
            assert (each.rank, each.share, each.bits) == (None, None, None)
            continue
        every = [own, *(nats(fact.prompt, other) for other in fact.alternatives)]
        share = math.exp(-own) / sum(math.exp(-value) for value in every)
        assert each.share == pytest.approx(share, rel=1e-3)
        assert each.bits == pytest.approx(math.log2(len(every)) + math.log2(share), abs=1e-3)
        assert each.rank == sorted(every).index(own) + 1
    assert view.possible_bits == pytest.approx(math.log2(3) + math.log2(6))
    assert view.bits == pytest.approx(sum(each.bits for each in view.known if each.bits is not None))
    assert view.parameters == sum(parameter.numel() for parameter in lm.model.parameters())
    json.dumps(view.as_dict())


def test_a_model_without_knowledge_has_no_bits_and_one_that_knows_has_all(
    tokenizer: Tokenizer, rng: random.Random
) -> None:
    lm = model_of(tokenizer, rng, "gpt2")
    facts = [Fact("a", letter, tuple(set("bcdefgh") - {letter})) for letter in "bcd"]
    with torch.no_grad():
        lm.model.lm_head.weight.zero_()
    assert knowledge(lm, facts).bits == pytest.approx(0, abs=1e-9)
    known = [Fact("a", "b", tuple("cdefgh"))]
    hook = lm.model.lm_head.register_forward_hook(
        lambda _, __, output: torch.nn.functional.one_hot(
            torch.full(output.shape[:-1], tokenizer.encode("b").ids[0]), output.shape[-1]
        ) * 100.0
    )  # fmt: skip
    view = knowledge(lm, known)
    hook.remove()
    assert view.bits == pytest.approx(math.log2(7))
    assert view.notes()[0] == "1 of 1 answers rank first among their alternatives"


@pytest.mark.parametrize(("line", "says"), [
    ('{"prompt": "a"}', ":2: 'answer' is a text that is not empty, not None"),
    ('{"prompt": "", "answer": "b"}', "'prompt' is a text that is not empty, not ''"),
    ('{"prompt": "a", "answer": "b", "alternatives": "c"}', "'alternatives' is a list of texts, not 'c'"),
    ('{"prompt": "a", "answer": "b", "alternatives": ["b"]}', "must be different texts"),
    ('["a", "b"]', "each line must be a JSON object"),
])  # fmt: skip
def test_facts_that_make_no_sense(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "facts.jsonl"
    path.write_text(f'{{"prompt": "a", "answer": "b"}}\n{line}\n')
    with pytest.raises(DataError, match=says):
        facts_of(str(path))


def test_files_of_facts(tmp_path: Path, tokenizer: Tokenizer, rng: random.Random) -> None:
    facts = [{"prompt": "a", "answer": "b", "id": 3}, {"prompt": "c", "answer": "d", "alternatives": ["e"]}]
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    assert facts_of(str(tmp_path / "facts.json")) == [Fact("a", "b"), Fact("c", "d", ("e",))]
    (tmp_path / "facts.txt").write_text("a")
    with pytest.raises(DataError, match=r"is no \.jsonl or .json file"):
        facts_of(str(tmp_path / "facts.txt"))
    (tmp_path / "none.json").write_text("[]")
    with pytest.raises(DataError, match="has no facts"):
        facts_of(str(tmp_path / "none.json"))
    with pytest.raises(EvaluationError, match="no fact to look for"):
        knowledge(model_of(tokenizer, rng, "llama"), [])


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_model_in_8_bits_has_as_many_parameters(
    family: str, tokenizer: Tokenizer, rng: random.Random
) -> None:
    lm = model_of(tokenizer, rng, family)
    parameters = sum(parameter.numel() for parameter in lm.model.parameters())
    quantize_model(lm.model)
    assert knowledge(lm, [Fact("a", "b", ("c",))]).parameters == parameters
