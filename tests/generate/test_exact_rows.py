"""Rows of continuous batching: each has the bits of a row alone, whatever joins, leaves, or was saved."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.generate.random_models import FAMILIES, LONGEST, model_of

from wordloom.generate import exact_rows as module
from wordloom.generate.exact_rows import (
    ExactRows,
    ModuleRows,
    ProgramRows,
    Saved,
    Slot,
    adapted_rows,
    exact_rows,
    next_piece,
)
from wordloom.models import GPT2Config, LlamaConfig, translates
from wordloom.models.building.lora import add_adapter, matching_layers
from wordloom.models.building.quantized import quantize_model
from wordloom.nn.lora import LoraSettings

CAUSAL = [name for name in FAMILIES if name not in ("seq2seq", "transformer", "bert_generation")]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.float32}


def read_all(rows: ExactRows, slot: Slot, ids: list[int]) -> torch.Tensor:
    logits = torch.empty(0)
    while slot.length < len(ids):
        n = next_piece(slot.length, len(ids))
        logits = rows.read(slot, ids[slot.length : slot.length + n])
    return logits


def alone(rows: ExactRows, prompt: list[int], new: list[int]) -> list[torch.Tensor]:
    """The logits after the prompt, and after each new token."""
    slot = rows.new_slot()
    return [read_all(rows, slot, prompt), *(rows.step([slot], [token])[0] for token in new)]


CASES = [
    *((family, dtype, True) for family in CAUSAL for dtype in DTYPES if (family, dtype) != ("rnn", "int8")),
    *((family, dtype, False) for family in CAUSAL for dtype in ("float32", "bfloat16")),
]


@pytest.mark.parametrize(
    ("family", "dtype", "fast"),
    CASES,
    ids=lambda value: {True: "programs", False: "modules"}.get(value, value),
)
def test_a_row_has_the_bits_that_it_has_alone(
    family: str, dtype: str, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE", 3)

    @settings(max_examples=8, deadline=None)
    @given(data=st.data())
    def hold(data: st.DataObject) -> None:
        seed = data.draw(st.integers(0, 2**31))
        model = model_of(data.draw(FAMILIES[family]), seed).to(DTYPES[dtype])
        assert not translates(model.config)
        if dtype == "int8":
            quantize_model(model)
        rng = random.Random(seed)
        rows = exact_rows(model, LONGEST, fast=fast)
        if fast and not isinstance(rows, ModuleRows):  # more rows than a program takes pass in groups
            most = rng.choice([2, 3, rows.program.most_rows])
            rows.program.most_rows = rows.program.most_alike = most
        free = [rows.new_slot() for _ in range(2)]
        live: list[tuple[Slot, list[int], list[int]]] = []
        saved: list[tuple[Saved, list[int]]] = []
        for _ in range(14):
            if rng.random() < 0.6:
                slot = free.pop() if free else rows.new_slot()
                rows.clear(slot)
                ids = [rng.randrange(model.config.vocab_size) for _ in range(rng.randint(1, 9))]
                if saved and rng.random() < 0.6:
                    kept, before = rng.choice(saved)
                    n = rng.randint(1, kept.length) if kept.truncates else kept.length
                    n -= 0 if rows.anywhere else n % module.PIECE
                    if n == kept.length or kept.truncates:
                        ids = (before[:n] + ids)[: LONGEST - 4]
                        if n and n < len(ids):
                            rows.restore(slot, kept, n)
                expected = alone(rows, ids, [])[-1]
                assert torch.equal(read_all(rows, slot, ids), expected)
                live.append((slot, ids, []))
            if live:
                rng.shuffle(live)
                tokens = [rng.randrange(model.config.vocab_size) for _ in live]
                logits = rows.step([slot for slot, _, _ in live], tokens)
                for (_, prompt, new), token, found in zip(live, tokens, logits, strict=True):
                    new.append(token)
                    assert torch.equal(found, alone(rows, prompt, new)[-1])
            for row in list(live):
                slot, prompt, new = row
                if len(prompt) + len(new) >= LONGEST or rng.random() < 0.2:
                    live.remove(row)
                    free.append(slot)
                    ids = prompt + new
                    if rows.anywhere:
                        saved.append((rows.save(slot), ids))
                    elif rows.truncates and len(prompt) >= module.PIECE:
                        kept = rows.save(slot)
                        n = len(prompt) - len(prompt) % module.PIECE
                        saved.append((kept._replace(length=n), ids))

    hold()


@pytest.mark.parametrize("family", CAUSAL)
def test_rows_of_several_adapters_share_a_batch_and_a_base(family: str) -> None:
    shared = 0

    @settings(max_examples=12, deadline=None)
    @given(data=st.data())
    def hold(data: st.DataObject) -> None:
        nonlocal shared
        seed = data.draw(st.integers(0, 2**31))
        config, rng = data.draw(FAMILIES[family]), random.Random(seed)
        model = model_of(config, seed)
        draw = torch.Generator().manual_seed(seed)
        adapters: dict[str, Any] = {}
        for name in ("one", "two", "three"):
            adapted = copy.deepcopy(model)
            settings = LoraSettings(
                rank=rng.randint(1, 5), alpha=rng.choice([1.0, 4.0]), dora=name == "three",
                rank_stabilised=rng.random() < 0.5,
            )  # fmt: skip
            targets = rng.choice([["*_proj"], ["q_proj", "up_proj"]]) if family != "rnn" else ["*_proj"]
            add_adapter(adapted, settings, matching_layers(adapted, targets), name=name, generator=draw)
            for parameter in adapted.parameters():
                if parameter.requires_grad:
                    parameter.data += 0.1 * torch.randn(parameter.shape, generator=draw)
            adapters[name] = adapted.eval()
        rows = adapted_rows(model, {name: copy.deepcopy(each) for name, each in adapters.items()}, LONGEST)
        shared += rows["one"][0] is rows[None][0]
        assert isinstance(rows["one"][0], ProgramRows) == (rows["one"][0] is rows[None][0])
        assert rows["three"][0] is not rows[None][0]
        ids = {name: [rng.randrange(config.vocab_size) for _ in range(rng.randint(2, 9))] for name in rows}
        slots: dict[str | None, Slot] = {}
        alone: dict[str | None, torch.Tensor] = {}
        for name, (own, number) in rows.items():
            for found in (slots, alone):
                slot = own.new_slot()
                slot.adapter = number
                read_all(own, slot, ids[name][:-1])
                if found is slots:
                    slots[name] = slot
                else:
                    alone[name] = own.step([slot], ids[name][-1:])[0]
        for own in {rows for rows, _ in rows.values()}:
            names = [name for name in rows if rows[name][0] is own]
            rng.shuffle(names)
            logits = own.step([slots[name] for name in names], [ids[name][-1] for name in names])
            for name, found in zip(names, logits, strict=True):
                assert torch.equal(found, alone[name])
                with torch.no_grad():
                    expected = (model if name is None else adapters[name])(torch.tensor([ids[name]]))[0, -1]
                torch.testing.assert_close(
                    found, expected, rtol=1e-3, atol=1e-4 * max(1.0, float(expected.abs().max()))
                )

    hold()
    assert shared or family == "rnn"


ATTENTIONS = ("band:3", "band:16", "band:40", "band:5,full", "band:4+global:2", "dilated:3:2")


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_texts_have_the_same_bits_in_any_pieces(dtype: str) -> None:
    """A window keeps fewer places than the texts have tokens, and than a program takes at once."""
    seed = random.randrange(2**31)
    rng = random.Random(seed)
    for attention in ATTENTIONS:
        made = [LlamaConfig, GPT2Config][rng.randrange(2)]
        heads = rng.choice([1, 3])
        config = made(
            vocab_size=37, dim=heads * rng.choice([16, 18]), n_layers=2, n_heads=heads, max_seq_len=200,
            attention=attention,
        )  # fmt: skip
        model = model_of(config, seed).to(DTYPES[dtype])
        if dtype == "int8":
            quantize_model(model)
        rows = exact_rows(model, 200)
        assert isinstance(rows, ProgramRows)
        rows.program.most_alike = rng.choice([5, 32, 256])
        rows = ProgramRows(rows.program, 200)
        ids = [rng.randrange(37) for _ in range(rng.randint(50, 150))]
        slow, fast = rows.new_slot(), rows.new_slot()
        one_by_one = [rows.read(slow, [token]) for token in ids]
        assert torch.equal(read_all(rows, fast, ids), one_by_one[-1]), (seed, attention)
        cut = rng.randrange(1, len(ids))
        begun, other = rows.new_slot(), rows.new_slot()
        assert torch.equal(read_all(rows, begun, ids[:cut]), one_by_one[cut - 1]), (seed, attention)
        rows.restore(other, rows.save(begun), cut)
        assert torch.equal(read_all(rows, other, ids), one_by_one[-1]), (seed, attention)
        # modules in bfloat16 round more often than programs
        by_modules, exact = (
            each.lm_head(each.hidden(torch.tensor([ids])))[0, -1].float()
            for each in (model, copy.deepcopy(model).float())
        )
        most = max(0.05 * exact.norm(), (by_modules - exact).norm())
        assert (one_by_one[-1] - exact).norm() <= most, (seed, attention)
