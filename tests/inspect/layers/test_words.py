"""A word in several texts: equal before the first layer, then as different as its states."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.inspect.causes.test_attribution import drawn

from wordloom.errors import GenerationError
from wordloom.inspect import word_in_texts
from wordloom.inspect.layers.states import layer_states
from wordloom.run.views.words import place_of
from wordloom.text import Tokenizer


@pytest.mark.parametrize("family", ["gpt", "gpt2", "llama", "bert", "rnn"])
def test_cosines_of_one_token(family: str, rng: random.Random) -> None:
    model, _, _ = drawn(family, rng)
    V, N = model.config.vocab_size, rng.randint(2, 4)
    rows = [[rng.randrange(V) for _ in range(n)] for n in rng.sample(range(3, 13), N)]
    places = [rng.randrange(len(ids)) for ids in rows]
    for ids, place in zip(rows, places, strict=True):
        ids[place] = 3
    seen = word_in_texts(model, rows, places, "mole", ["text"] * N)
    torch.testing.assert_close(seen.raw[0], torch.ones(N, N), rtol=0, atol=1e-5)
    with torch.no_grad():
        states: list[Any] = [layer_states(model, torch.tensor([ids])) for ids in rows]
    for layer in range(1, len(seen.raw)):
        vectors = torch.stack([each[layer][0, place] for each, place in zip(states, places, strict=True)])
        mean = torch.cat([each[layer][0] for each in states]).mean(0)
        for found, x in ((seen.raw, vectors), (seen.centred, vectors - mean)):
            wanted = torch.nn.functional.cosine_similarity(x[:, None], x[None], dim=-1)
            torch.testing.assert_close(found[layer], wanted, rtol=1e-3, atol=1e-3)


def test_where_a_word_ends(rng: random.Random) -> None:
    tokenizer = Tokenizer.train(["the mole dug a hole, a mole. "] * 9, kind="bpe", vocab_size=290)
    for text in ("the mole dug", "mole", "a moles' mole!", "(mole)", "Zürich, mole: ö"):
        ids, place = place_of(tokenizer, text, "mole")
        assert tokenizer.decode(ids[: place + 1]).rstrip("!):").endswith("mole")
        assert tokenizer.decode(ids[: place + 1]) != tokenizer.decode(ids) or text.endswith("mole")
        assert ids == tokenizer.encode_ids(text)
    with pytest.raises(GenerationError, match="the word 'mole' does not occur in 'moles'"):
        place_of(tokenizer, "moles", "mole")
    ids, place = place_of(tokenizer, "a hole. b", ".")
    assert tokenizer.decode(ids[: place + 1]) == "a hole."
    for word in ("", " "):
        with pytest.raises(GenerationError, match="is empty; give one that occurs in every text"):
            place_of(tokenizer, "mole", word)


def test_mistakes_get_one_line(rng: random.Random) -> None:
    model, _, _ = drawn("llama", rng)
    with pytest.raises(GenerationError, match="give two or more"):
        word_in_texts(model, [[1]], [0], "mole", ["a"])
    with pytest.raises(GenerationError, match="place 1 does not exist; allowed: 0 to 0"):
        word_in_texts(model, [[1], [1]], [0, 1], "mole", ["a", "b"])
