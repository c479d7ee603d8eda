"""What is hidden, what stands in its place, what is scored: shares, exclusions, and keys that decide all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wordloom.data import IGNORE, Masker, Masking
from wordloom.data.batches.order import mix
from wordloom.errors import DataError, RecipeError
from wordloom.recipe import load_recipe
from wordloom.text import Tokenizer

V, MASK, EMPTY = 200, 4, 5
SPECIAL = range(6)


class Words:
    """Ids from 100 on go on with the word before them."""

    vocab_size, mask_id, special_ids = V, MASK, frozenset(SPECIAL)

    def continuations(self) -> Any:
        return np.arange(V) >= 100


def keys(n: int, seed: int = 0) -> Any:
    return mix(np.arange(n, dtype=np.uint64) + np.uint64(1000 * seed + 1))


def text(B: int, T: int, *, pieces: float = 0.3, seed: int = 0) -> Any:
    """Rows whose words have about 1 / (1 - pieces) tokens each; the first token begins one."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(6, 100, (B, T))
    return np.where(
        (draw.random((B, T)) < pieces) & (np.arange(T) > 0), draw.integers(100, V, (B, T)), tokens
    )


def masked(masking: Masking, tokens: Any, candidates: Any = None, seed: int = 0) -> tuple[Any, Any]:
    every = np.ones(tokens.shape, bool) if candidates is None else candidates
    return Masker(masking, Words(), empty_id=EMPTY)(tokens, every, keys(len(tokens), seed))


def words_of(row: Any) -> list[list[int]]:
    """The places of each word's tokens."""
    found: list[list[int]] = []
    for at, token in enumerate(row.tolist()):
        if token >= 100 and found:
            found[-1].append(at)
        else:
            found.append([at])
    return found


def test_the_published_shares() -> None:
    tokens = text(400, 100)
    inputs, targets = masked(Masking(), tokens)
    chosen = targets != IGNORE
    assert (chosen.sum(1) == 15).all()  # of 100 tokens, in every row
    assert (targets[chosen] == tokens[chosen]).all()
    assert (inputs[~chosen] == tokens[~chosen]).all()
    became_mask = inputs[chosen] == MASK
    stayed = inputs[chosen] == tokens[chosen]
    n = chosen.sum()
    for share, wanted in ((became_mask, 0.8), (stayed, 0.1), (~became_mask & ~stayed, 0.1)):
        assert share.sum() / n == pytest.approx(wanted, abs=0.015)  # four deviations
    others = inputs[chosen][~became_mask & ~stayed]
    assert others.min() >= len(SPECIAL)
    assert len(np.unique(others)) > 150
    places = chosen.sum(0)
    assert places.min() > 25  # of 60 expected at each of the places: none is favoured
    assert places.max() < 100


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize(("T", "share"), [(30, 0.15), (7, 0.15), (31, 0.15), (97, 0.4), (13, 0.08), (5, 1.0)])
def test_the_share_is_right_over_rows_of_any_length(T: int, share: float, whole_words: bool) -> None:
    """Each row's count is its share rounded down or up, and the mean over rows is the share itself."""
    B, exact = 4000, share * T
    _, targets = masked(Masking(share=share, whole_words=whole_words), text(B, T, pieces=0.0))
    counts = (targets != IGNORE).sum(1)
    assert set(counts.tolist()) <= {math.floor(exact), math.ceil(exact)}
    deviation = math.sqrt((exact % 1) * (1 - exact % 1) / B)
    assert counts.mean() == pytest.approx(exact, abs=4 * deviation + 1e-9)


def test_only_candidates_are_chosen_and_one_at_least_is() -> None:
    tokens = text(50, 20)
    candidates = np.zeros(tokens.shape, bool)
    candidates[:, 3:5] = True
    candidates[7] = False
    _, targets = masked(Masking(share=0.15), tokens, candidates)
    chosen = targets != IGNORE
    assert not (chosen & ~candidates).any()
    assert chosen.sum(1).tolist() == [0 if row == 7 else 1 for row in range(50)]


def test_whole_words_are_chosen_with_all_their_pieces() -> None:
    tokens = text(60, 80, pieces=0.5)
    _, targets = masked(Masking(whole_words=True), tokens)
    chosen = targets != IGNORE
    assert chosen.sum() == pytest.approx(60 * 12, rel=0.1)
    assert chosen.sum(1).max() <= 12  # never above the share, unless no word fits
    for row, marks in zip(tokens, chosen, strict=True):
        for word in words_of(row):
            assert len(set(marks[word].tolist())) == 1
    long = np.concatenate([[[6]], np.full((1, 9), 150)], axis=1)  # one word of ten tokens, a share of two
    assert (masked(Masking(whole_words=True), long)[1] != IGNORE).all()


@given(
    st.floats(0, 0.5),
    st.floats(0, 0.5),
    st.sampled_from(["mask", "empty"]),
    st.sampled_from(["changed", "all"]),
)
@settings(max_examples=25, deadline=None)
def test_replaced_words_are_whole_and_never_both(
    first: float, second: float, placeholder: Any, scored: Any
) -> None:
    if not first + second:
        scored = "all"
    masking = Masking(
        kind="replace", mask_words=first, substitute_words=second, placeholder=placeholder, scored=scored
    )
    tokens = text(40, 50, pieces=0.4, seed=3)
    candidates = np.ones(tokens.shape, bool)
    candidates[:, [0, -1]] = False
    inputs, targets = masked(masking, tokens, candidates)
    hidden = MASK if placeholder == "mask" else EMPTY
    became = inputs == hidden
    if scored == "all":
        assert ((targets != IGNORE) == candidates).all()
        changed = inputs != tokens  # a substitute may be what stood there, once in a hundred
    else:
        changed = targets != IGNORE
        assert (inputs[~changed] == tokens[~changed]).all()
    assert not (changed & ~candidates).any()
    masked_words = other_words = words = 0
    for row in range(len(tokens)):
        for word in words_of(tokens[row, 1:-1]):
            places = [at + 1 for at in word]
            assert len(set(became[row, places].tolist())) == 1  # all of a word, or nothing of it
            words += 1
            masked_words += became[row, places[0]]
            if scored == "changed":
                assert len(set(changed[row, places].tolist())) == 1
                other_words += changed[row, places[0]] and not became[row, places[0]]
            if not became[row, places[0]]:  # pieces that begin a word stand for such, others for others
                assert ((inputs[row, places] >= 100) == (tokens[row, places] >= 100)).all()
    assert masked_words / words == pytest.approx(first, abs=0.03)
    if scored == "changed":
        assert other_words / words == pytest.approx(second, abs=0.04)


def test_full_text_is_left_as_it_is_and_scored() -> None:
    tokens = text(3, 30)
    masking = Masking(kind="replace", mask_words=0.0, substitute_words=0.0, scored="all")
    inputs, targets = masked(masking, tokens)
    assert (inputs == tokens).all()
    assert (targets == tokens).all()


KINDS = [Masking(), Masking(whole_words=True), Masking(kind="replace")]


@given(st.integers(0, 2**32), st.sampled_from(KINDS))
@settings(max_examples=25, deadline=None)
def test_a_key_masks_its_row_alike_in_any_company(seed: int, masking: Masking) -> None:
    tokens, own = text(6, 31, seed=seed % 7), keys(6, seed)
    masker = Masker(masking, Words(), empty_id=EMPTY)
    every = np.ones(tokens.shape, bool)
    together = masker(tokens, every, own)
    for row in range(6):
        alone = masker(tokens[row : row + 1], every[:1], own[row : row + 1])
        for one, all_of_them in zip(alone, together, strict=True):
            assert (one[0] == all_of_them[row]).all()
    padded = np.pad(tokens, ((0, 0), (0, 5)))
    candidates = np.pad(every, ((0, 0), (0, 5)))
    for wide, narrow in zip(masker(padded, candidates, own), together, strict=True):
        assert (wide[:, :31] == narrow).all()  # padding changes nothing before it
    assert (masker(tokens, every, keys(6, seed + 1))[0] != together[0]).any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mask_share": 0.8, "random_share": 0.3}, "their sum is 1 at most"),
        ({"kind": "replace", "mask_words": 0.7, "substitute_words": 0.4}, "their sum is 1 at most"),
        ({"kind": "replace", "mask_words": 0.0}, "nothing is changed"),
        ({"scored": "all"}, "scored is not a setting of masking.kind"),
        ({"mask_words": 0.05}, "mask_words is not a setting"),
        ({"kind": "replace", "share": 0.3}, "share is not a setting of masking.kind"),
        ({"kind": "replace", "whole_words": True}, "whole_words is not a setting"),
    ],
)
def test_impossible_shares_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Masking(**given)
    changes = [f"masking.{name}={value}".lower() for name, value in given.items()]
    with pytest.raises(RecipeError, match=message):
        load_recipe("bert-mini-gutenberg", changes)


def test_a_tokenizer_without_a_mask_is_refused() -> None:
    tokenizer = Tokenizer.train(["some words"], kind="bpe", vocab_size=260)
    with pytest.raises(DataError, match=r"no mask token.*\[MASK\]"):
        Masker(Masking(), tokenizer)
    with pytest.raises(DataError, match=r"no empty token.*\[EMPTY\]"):
        Masker(Masking(placeholder="empty"), tokenizer)
    Masker(Masking(mask_share=0.0), tokenizer)  # nothing is to become one


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "char", "byte", "word"])
def test_words_are_found_in_every_kind_of_tokens(kind: str) -> None:
    said = "unbelievable things happened"
    size = {"wordpiece": 60, "bpe": 400, "unigram": 400}.get(kind)
    tokenizer = Tokenizer.train([said, "un things bel hap"], kind=kind, vocab_size=size)
    ids = np.array([tokenizer.encode_ids(said)])
    masking = Masking(kind="replace", mask_words=0.34, placeholder="empty")
    masker = Masker(masking, tokenizer, empty_id=-1)
    assert masker._words(ids, np.ones(ids.shape, bool)).max() + 1 == 3
