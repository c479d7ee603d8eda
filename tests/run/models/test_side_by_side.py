"""Batches by several threads at once are those of one after another."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.run.translators import PAIRS, write_translator
from torch import nn

from wordloom.generate import Sampling
from wordloom.run import Translator, load_as
from wordloom.run.models.side_by_side import side_by_side


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("family", ["transformer", "seq2seq"])
def test_translations_are_those_of_one_batch_after_another(tmp_path, two_threads, family):
    write_translator(tmp_path / "run", family, separate=False)
    translator = load_as(Translator, tmp_path / "run", device="cpu")
    sources = [source for source, _ in PAIRS]
    drawn = Sampling(max_new_tokens=6, seed=3, samples=2)

    def every():
        by_search = list(translator.translate(sources, batch_size=4, max_new_tokens=8))
        return by_search, list(translator.translate(sources, batch_size=4, sampling=drawn))

    beside = every()
    torch.set_num_threads(1)
    after = every()
    for found, alone in zip(beside, after, strict=True):
        for some, others in zip(found, alone, strict=True):
            assert [one.text for one in some] == [one.text for one in others]
            assert [one.score for one in some] == pytest.approx([one.score for one in others], abs=1e-5)


def test_threads_are_shared_and_the_model_stays_as_it_was(two_threads):
    model = nn.Linear(1, 1).train()
    met = threading.Barrier(2, timeout=20)

    def call(item: int) -> tuple[int, int, bool]:
        met.wait()  # two are at work at a time
        return item, torch.get_num_threads(), model.training

    assert side_by_side(model, call, range(6)) == [(item, 1, False) for item in range(6)]
    assert model.training
    assert torch.get_num_threads() == 2
    with ThreadPoolExecutor(1) as executor:  # a server's next request
        assert executor.submit(torch.get_num_threads).result() == 2
    alone = side_by_side(model, lambda item: (item, torch.get_num_threads()), [7])
    assert alone == [(7, 2)]  # one piece of work has all threads
    assert side_by_side(model, call, []) == []


def test_the_first_that_fails_is_raised_and_no_more_are_begun(two_threads):
    begun = []

    def call(item: int) -> None:
        begun.append(item)
        time.sleep(0.01)
        if item in (1, 2):
            raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 1"):
        side_by_side(nn.Linear(1, 1), call, range(50))
    assert len(begun) < 10
