"""The parts of a logit sum to it, and each is what its module adds."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.inspect.layers.random_models import random_model

from wordloom.errors import GenerationError, NonFiniteError, WordloomError
from wordloom.inspect import contributions
from wordloom.models import RNNConfig, build
from wordloom.models.building.lora import add_adapter, matching_layers
from wordloom.nn.lora import LoraSettings

FAMILIES = ["gpt", "gpt2", "llama"]


def drawn(family: str, rng: random.Random) -> tuple[Any, list[int], int]:
    model = random_model(family, rng)
    ids = [rng.randrange(model.config.vocab_size) for _ in range(rng.randint(1, 23))]
    return model, ids, rng.randrange(len(ids))


def logits_at(model: Any, ids: list[int], at: int) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids]))[0, at].double()


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_sum_to_the_logit(family: str, rng: random.Random) -> None:
    for _ in range(3):
        model, ids, at = drawn(family, rng)
        target, against = rng.sample(range(model.config.vocab_size), 2)
        logits = logits_at(model, ids, at)
        scale = max(1.0, float(logits.abs().max()))
        one = contributions(model, ids, at=at, target=target)
        assert one.logit == pytest.approx(float(logits[target]), abs=1e-4 * scale)
        assert sum(part.value for part in one.parts) == pytest.approx(one.logit, abs=1e-4 * scale)
        two = contributions(model, ids, at=at, target=target, against=against)
        assert sum(part.value for part in two.parts) == pytest.approx(
            float(logits[target] - logits[against]), abs=1e-4 * scale
        )
        heads = {(part.layer, part.head) for part in one.parts if part.head is not None}
        assert len(heads) == model.config.n_layers * model.config.n_heads
        best = contributions(model, ids, at=at)
        assert best.target == str(int(logits.argmax()))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_without_output_adds_nothing(family: str, rng: random.Random) -> None:
    model, ids, at = drawn(family, rng)
    layer, head = rng.randrange(model.config.n_layers), rng.randrange(model.config.n_heads)
    attention = model.blocks[layer].attention
    columns = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
    with torch.no_grad():
        attention.o_proj.weight[:, columns] = 0.0
    found = {(part.layer, part.head): part.value for part in contributions(model, ids, at=at).parts}
    assert found[layer, head] == pytest.approx(0.0, abs=1e-6)


def test_an_adapter_is_a_part_of_its_head(rng: random.Random) -> None:
    model, ids, at = drawn("llama", rng)
    add_adapter(model, LoraSettings(rank=2), matching_layers(model, ["o_proj", "down_proj"]))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.3)
    model.eval()
    seen = contributions(model, ids, at=at)
    scale = max(1.0, abs(seen.logit))
    assert sum(part.value for part in seen.parts) == pytest.approx(seen.logit, abs=1e-4 * scale)


def test_the_tables_sum_too(rng: random.Random) -> None:
    model, ids, at = drawn("gpt2", rng)
    seen = contributions(model, ids, at=at)
    rows = seen.tables()[0].rows
    assert sum(float(row[-1]) for row in rows[:-1]) == pytest.approx(
        float(rows[-1][-1]), abs=1e-3 * len(rows)
    )


def test_models_without_biases_and_of_two_bytes_have_parts_too(rng: random.Random) -> None:
    plain = random_model("gpt2", rng, bias=False)
    ids = [rng.randrange(plain.config.vocab_size) for _ in range(7)]
    seen = contributions(plain, ids, target=3)
    assert seen.logit == pytest.approx(float(logits_at(plain, ids, 6)[3]), rel=1e-4, abs=1e-4)
    for family in ("gpt2", "llama"):
        model = random_model(family, rng).bfloat16()
        ids = [rng.randrange(model.config.vocab_size) for _ in range(7)]
        seen = contributions(model, ids, target=3)
        assert sum(part.value for part in seen.parts) == pytest.approx(seen.logit, rel=1e-3, abs=1e-3)
        assert seen.logit == pytest.approx(float(logits_at(model, ids, 6)[3]), rel=0.1, abs=0.3)
        assert next(model.parameters()).dtype == torch.bfloat16


def test_layers_that_change_the_sum_are_refused(rng: random.Random) -> None:
    model = random_model("llama", rng)
    model.blocks[0].attention.o_proj.register_forward_pre_hook(lambda _, args: (args[0] * 30 + 100,))
    with pytest.raises(WordloomError, match="or has a hook that changes it"):
        contributions(model, [1, 2, 3])
    model = random_model("gpt2", rng)
    model.blocks[0].feed_forward = torch.nn.Linear(model.config.dim, model.config.dim)
    with pytest.raises(WordloomError, match="feed-forward layers as they were built"):
        contributions(model, [1, 2, 3])
    model = random_model("llama", rng)
    with torch.no_grad():
        model.blocks[-1].ffn_norm.weight[0] = torch.nan
    with pytest.raises(NonFiniteError):
        contributions(model, [1, 2, 3])


def test_mistakes_get_one_line(rng: random.Random) -> None:
    rnn = build(RNNConfig(vocab_size=9, dim=4), generator=torch.Generator().manual_seed(0))
    with pytest.raises(WordloomError, match="this model is of type RNN"):
        contributions(rnn, [1])
    model = random_model("llama", rng)
    with pytest.raises(GenerationError, match="at 2 does not exist; allowed: 0 to 1"):
        contributions(model, [1, 2], at=2)
    with pytest.raises(GenerationError, match="token -1 does not exist"):
        contributions(model, [1, 2], target=-1)
    model.final_norm.register_forward_hook(lambda *_: None)
    with pytest.raises(WordloomError, match="RMSNorm has hooks"):
        contributions(model, [1, 2])


@pytest.mark.gpu
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_a_gpt_on_a_gpu_has_the_parts_of_the_cpu(positions: str, rng: random.Random) -> None:
    model = random_model("gpt", rng, positions=positions)
    on_cpu = [part.value for part in contributions(model, [1, 2, 3], target=1).parts]
    on_gpu = [part.value for part in contributions(model.cuda(), [1, 2, 3], target=1).parts]
    assert on_gpu == pytest.approx(on_cpu, rel=1e-3, abs=1e-3)
