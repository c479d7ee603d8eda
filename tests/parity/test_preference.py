"""Direct preference optimisation: our loss and gradients are those of the formula, and trl's loss."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.conversations import conversation_rows
from wordloom.data.batches.preferences import PreferenceBatches
from wordloom.data.rows.conversations import Conversation
from wordloom.models import LlamaConfig, build
from wordloom.objectives import Preference, answer_logprobs
from wordloom.text import Tokenizer
from wordloom.text.chat import ChatIds, Message
from wordloom.weights import save_model

V = 300


def a_model(seed: int) -> Any:
    config = LlamaConfig(vocab_size=V, dim=12, n_layers=2, n_heads=3, max_seq_len=64)
    return build(config, generator=torch.Generator().manual_seed(seed))


def pairs_of(rows: list[tuple[list[int], list[int], list[int]]], **settings: Any) -> PreferenceBatches:
    sides = []
    for side in (1, 2):
        chats = iter([
            ChatIds([*row[0], *row[side]], [False] * len(row[0]) + [True] * len(row[side])) for row in rows
        ])  # fmt: skip
        given = [
            Conversation((Message("user", "q"), Message("assistant", "a")), f"x:{i}")
            for i in range(len(rows))
        ]
        sides.append(conversation_rows(lambda _, chats=chats: next(chats), given, longest=64))
    return PreferenceBatches(*sides, **settings)


def random_rows(rng: random.Random, n: int) -> list[tuple[list[int], list[int], list[int]]]:
    def some(least: int) -> list[int]:
        return [rng.randrange(V) for _ in range(rng.randrange(least, 9))]

    return [(some(1), some(1), some(1)) for _ in range(n)]


@pytest.mark.parametrize("trial", range(4))
def test_the_loss_is_that_of_the_formula(trial: int) -> None:
    rng = random.Random()
    rows, beta = random_rows(rng, rng.randrange(1, 7)), rng.choice([0.1, 1.0])
    model, reference = a_model(trial), a_model(trial + 50)
    batches = pairs_of(rows, pad_id=rng.randrange(V), order="sequential")

    def slow(model: Any, prompt: list[int], answer: list[int]) -> torch.Tensor:
        logprobs = model(torch.tensor([[*prompt, *answer]])).log_softmax(dim=-1)[0]
        return sum(logprobs[len(prompt) + i - 1, token] for i, token in enumerate(answer))  # type: ignore

    for numbers in batches.passes():
        batch = batches.pairs(numbers)
        with torch.no_grad():
            found = answer_logprobs(reference, batch.tokens, batch.targets)
        batches.reference[numbers] = found.view(2, -1).T.numpy()
    margins = []
    for prompt, good, bad in rows:
        ratios = [
            slow(model, prompt, answer) - slow(reference, prompt, answer).detach() for answer in (good, bad)
        ]
        margins.append(beta * (ratios[0] - ratios[1]))
    expected = -torch.nn.functional.logsigmoid(torch.stack(margins)).sum()
    loss = Preference(beta)(model, batches.batch(0, len(rows)))
    assert int(loss.count) == len(rows)
    torch.testing.assert_close(loss.total, expected, rtol=1e-5, atol=1e-5)
    wanted = torch.autograd.grad(expected, list(model.parameters()))
    given = torch.autograd.grad(loss.total, list(model.parameters()))
    for one, other in zip(given, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_loss_is_that_of_trl(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["the sky is blue and the grass is green"] * 9, kind="bpe", vocab_size=V)
    save_model(a_model(1), tmp_path / "model", tokenizer=tokenizer)
    save_model(a_model(2), tmp_path / "reference", tokenizer=tokenizer)
    model, theirs = a_model(1), AutoTokenizer.from_pretrained(tmp_path / "model")
    theirs.pad_token = theirs.eos_token
    texts = [("the sky is", " blue", " green and the"), ("the grass", " is green", " blue")]
    data = Dataset.from_list([
        {"prompt": prompt, "chosen": good, "rejected": bad} for prompt, good, bad in texts
    ])  # fmt: skip
    trainer = DPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(tmp_path / "model"),
        ref_model=AutoModelForCausalLM.from_pretrained(tmp_path / "reference"),
        args=DPOConfig(output_dir=str(tmp_path / "trl"), beta=0.3, use_cpu=True, bf16=False, report_to=[],
                       per_device_train_batch_size=2, gradient_checkpointing=False),
        train_dataset=data,
        processing_class=theirs,
    )  # fmt: skip
    inputs = next(iter(trainer.get_train_dataloader()))
    expected = trainer.compute_loss(trainer.model.eval(), inputs)
    rows = []
    n = len(inputs["input_ids"]) // 2
    for i in range(n):  # the ids that trl read, so that the losses are compared on the same batch
        whole = []
        for row in (i, n + i):
            ids = inputs["input_ids"][row][inputs["attention_mask"][row].bool()].tolist()
            answer = inputs["completion_mask"][row][inputs["attention_mask"][row].bool()].bool().tolist()
            whole.append((ids, answer.index(True)))
        (good, begin), (bad, _) = whole
        rows.append((good[:begin], good[begin:], bad[begin:]))
    batches = pairs_of(rows, order="sequential")
    batch = batches.batch(0, n)
    with torch.no_grad():
        found = answer_logprobs(a_model(2), batch.tokens, batch.targets)
    batches.reference[:] = found.view(2, -1).T.numpy()
    loss = Preference(0.3)(model, batches.batch(0, n))
    torch.testing.assert_close(loss.total / loss.count, expected, rtol=1e-4, atol=1e-5)


def test_pairs_are_padded_and_ordered_alike() -> None:
    rng = random.Random()
    rows = random_rows(rng, 23)
    batches = pairs_of(rows, pad_id=7, seed=3, alike=4)
    assert sorted(n for numbers in batches.passes() for n in numbers.tolist()) == list(range(23))
    batch = batches.batch(5, 6)
    assert batch.tokens.shape[0] == 12
    assert torch.isnan(batch.reference).all()
    scored = (batch.targets != IGNORE).sum(dim=1)
    names = [int(place.removeprefix("x:")) for place in batches.document_ids(5, 6)]
    assert sorted(scored.tolist()) == sorted(len(rows[n][side]) for n in names for side in (1, 2))
    again = pairs_of(rows, pad_id=7, seed=3, alike=4)
    assert again.fingerprint == batches.fingerprint
    assert torch.equal(again.batch(5, 6).tokens, batch.tokens)
