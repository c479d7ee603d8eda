"""Conversations as batches: every answer is scored once, and packed ones do not see one another."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.conversations import (
    ConversationBatches,
    ConversationRows,
    TooLong,
    conversation_rows,
    packed,
)
from wordloom.data.rows.conversations import Conversation
from wordloom.errors import DataError
from wordloom.models import GPT2Config, GPTConfig, LlamaConfig, RNNConfig, build
from wordloom.objectives import objective
from wordloom.text.chat import ChatIds, Message

V = 13


def rows_of(chats: list[ChatIds], *, longest: int = 1 << 20, too_long: TooLong = "error") -> ConversationRows:
    found = iter(chats)
    given = [
        Conversation((Message("user", "q"), Message("assistant", "" if i % 3 == 1 else "a")), f"chat:{i + 1}")
        for i in range(len(chats))
    ]
    return conversation_rows(lambda _: next(found), given, longest=longest, too_long=too_long, unknown=V - 1)


def random_chats(rng: random.Random, n: int, *, most: int = 17) -> list[ChatIds]:
    chats = []
    for _ in range(n):
        length = rng.randrange(2, most + 2)
        scored = [rng.random() < 0.4 for _ in range(length)]
        scored[rng.randrange(1, length)] = True
        chats.append(ChatIds([rng.randrange(V) for _ in range(length)], scored))
    return chats


def gradients(model: torch.nn.Module, batches: list[Any]) -> tuple[float, int, dict[str, Tensor]]:
    model.zero_grad()
    total, count = 0.0, 0
    for batch in batches:
        loss = objective("instruction")(model, batch)
        loss.total.backward()
        total, count = total + float(loss.total.detach()), count + int(loss.count)
    return total, count, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def a_model(rng: random.Random) -> Any:
    heads = rng.choice([1, 3])
    shape: dict[str, Any] = {
        "vocab_size": V,
        "dim": heads * rng.choice([2, 6, 10]),
        "n_layers": rng.choice([1, 2]),
    }
    family = rng.choice(["llama", "gpt", "gpt2", "lstm", "gru"])
    if family in ("lstm", "gru"):
        return build(RNNConfig(**shape, hidden_dim=rng.choice([5, 7]), cell=family))
    shape |= {"n_heads": heads, "max_seq_len": 64}
    attention = rng.choice(["full", "band:3", "block:4"])
    dropout = {} if family == "llama" else {"dropout": 0.0}
    config = {"llama": LlamaConfig, "gpt": GPTConfig, "gpt2": GPT2Config}[family]
    return build(config(**shape, **dropout, attention=attention))


@pytest.mark.parametrize("trial", range(8))
def test_packed_gradients_are_those_of_single_conversations(trial: int) -> None:
    rng = random.Random()
    chats = random_chats(rng, rng.randrange(1, 9))
    rows = rows_of(chats)
    size = int(rows.inputs.max()) + rng.randrange(0, 12)
    windows = ConversationBatches(rows, seq_len=size, pad_id=rng.randrange(V), seed=trial)
    single = ConversationBatches(rows, seq_len=None, seed=trial)
    model = a_model(rng)
    count = windows.samples_per_epoch
    together = gradients(model, [windows.batch(0, count)])
    alone = gradients(model, [single.batch(i, 1) for i in range(len(chats))])
    assert together[1] == alone[1] == sum(sum(chat.scored[1:]) for chat in chats)
    assert together[0] == pytest.approx(alone[0], rel=1e-5)
    for name, expected in alone[2].items():
        torch.testing.assert_close(together[2][name], expected, rtol=1e-4, atol=1e-5, msg=name)


def test_every_scored_token_is_a_target_once_in_each_epoch() -> None:
    rng = random.Random()
    for _ in range(20):
        chats = random_chats(rng, rng.randrange(1, 30))
        rows = rows_of(chats)
        expected = sorted(
            token for chat in chats for token, scored in list(zip(*chat, strict=True))[1:] if scored
        )
        for seq_len in (None, int(rows.inputs.max()), int(rows.inputs.max()) + 13):
            batches = ConversationBatches(
                rows, seq_len=seq_len, seed=rng.randrange(99), alike=rng.choice([1, 4])
            )
            n = batches.samples_per_epoch
            for epoch in range(2):
                found, start = [], epoch * n
                while start < (epoch + 1) * n:
                    size = min(rng.randrange(1, 5), (epoch + 1) * n - start)
                    targets = batches.batch(start, size).targets
                    found += targets[targets != IGNORE].tolist()
                    start += size
                assert sorted(found) == expected
            assert 0 < batches.packed_share <= 1
            assert sum(count for _, count in batches.passes()) == n
            assert batches.document_ids(0, n) == [f"chat:{i + 1}" for i in range(len(chats))] or n > 1


def test_a_batch_depends_on_its_number_alone() -> None:
    rng = random.Random()
    rows = rows_of(random_chats(rng, 23))
    for seq_len in (None, 40):
        one, other = (ConversationBatches(rows, seq_len=seq_len, seed=5, alike=3) for _ in range(2))
        assert one.fingerprint == other.fingerprint
        assert one.fingerprint != ConversationBatches(rows, seq_len=seq_len, seed=6, alike=3).fingerprint
        whole = one.batch(7, 6)
        for i in range(6):
            part, T = other.batch(7 + i, 1), int(other.batch(7 + i, 1).tokens.shape[1])
            assert torch.equal(part.targets[0], whole.targets[i, :T])
            assert torch.equal(part.tokens[0], whole.tokens[i, :T])


def test_packing_wastes_little_and_loses_nothing() -> None:
    rng = np.random.default_rng()
    for _ in range(30):
        size = int(rng.integers(1, 200))
        most = size if rng.random() < 0.5 else max(1, size // 4)
        lengths = rng.integers(1, most + 1, size=int(rng.integers(1, 300)))
        windows = packed(lengths, size)
        assert sorted(row for window in windows for row in window) == list(range(len(lengths)))
        filled = [int(lengths[window].sum()) for window in windows]
        assert max(filled) <= size
        if 4 * lengths.max() <= size:  # a window is left with less room than any row needs, but for the last
            assert sum(4 * tokens <= 3 * size for tokens in filled) <= 1
    with pytest.raises(DataError, match="a row of 5 tokens does not fit a window of 4"):
        packed([1, 5], 4)


def test_long_conversations_are_refused_dropped_or_cut() -> None:
    short, long = (
        ChatIds([1, 2, 3], [False, True, True]),
        ChatIds([1, 2, 3, 4, 5], [False, False, True, True, True]),
    )
    late = ChatIds([1, 2, 3, 4, 5], [False, False, False, False, True])
    with pytest.raises(
        DataError, match=r"^chat:2: has 4 tokens and train.seq_len allows 3; raise it, or say"
    ):
        rows_of([short, long], longest=3)
    dropped = rows_of([short, long], longest=3, too_long="drop")
    assert (dropped.dropped, dropped.tokens.cut, dropped.inputs.tolist()) == (1, 0, [2])
    cut = rows_of([short, long], longest=3, too_long="cut")
    assert (cut.dropped, cut.tokens.cut, cut.inputs.tolist()) == (0, 1, [2, 3])
    assert cut.scored.tolist() == [False, True, True, False, False, True, True]
    assert cut.empty == 1
    with pytest.raises(
        DataError,
        match=r"^chat:2: its answer lies behind the first 3 tokens, and train.seq_len allows no more",
    ):
        rows_of([short, late], longest=3, too_long="cut")
    with pytest.raises(DataError, match="is longer than the 3 tokens that train"):
        rows_of([late], longest=3, too_long="drop")
    with pytest.raises(DataError, match=r"^chat:1: has no token of an answer"):
        rows_of([ChatIds([1, 2], [True, False])])
    assert rows_of([ChatIds([V - 1, V - 1], [False, True])]).tokens.unknown == 2
