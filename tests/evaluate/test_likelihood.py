"""Likelihoods of stretches against logits computed one text at a time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from wordloom.evaluate import likelihood
from wordloom.evaluate.likelihood import Stretch, _are_first_of_highest, likelihoods
from wordloom.models import CBOWConfig, LlamaConfig, RNNConfig, build


def test_nats_and_the_most_likely_tokens(rng: random.Random) -> None:
    vocab = rng.choice([2, 7, 61, 300])
    config = LlamaConfig(vocab_size=vocab, dim=24, n_layers=1, n_heads=2, max_seq_len=19)
    model = build(config, generator=torch.Generator().manual_seed(rng.getrandbits(30))).eval()
    stretches, wanted = [], []
    for _ in range(rng.randint(1, 12)):
        n = rng.randint(1, 19)
        inputs = np.array([rng.randrange(vocab) for _ in range(n)])
        with torch.no_grad():
            logits = model(torch.from_numpy(inputs)[None])[0, -rng.randint(1, n) :].double()  # [m, V]
        best = logits.argmax(1).numpy()
        targets = np.array([rng.choice([at, rng.randrange(vocab)]) for at in best])
        stretches.append((len(stretches), Stretch(inputs, targets)))
        nats = logits.logsumexp(1) - logits[torch.arange(len(targets)), torch.from_numpy(targets)]
        wanted.append((nats, targets == best))
    for asked in (False, True):
        found = list(likelihoods(model, stretches, batch_size=rng.randint(1, 5), greedy=asked))
        assert [key for key, _ in found] == list(range(len(stretches)))
        for (_, one), (nats, is_greedy) in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one.nats, nats, atol=1e-5)
            assert one.greedy is None or (one.greedy == is_greedy).all()
            assert (one.greedy is not None) == asked


def test_texts_without_a_limit_are_read_in_pieces(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of many lengths, with targets anywhere at their end or none, as each alone and whole."""
    vocab = rng.choice([2, 61])
    config: Any = CBOWConfig(vocab_size=vocab, dim=9, window=3)
    if rng.random() < 0.8:
        cell = rng.choice(["rnn_tanh", "gru", "lstm"])
        config = RNNConfig(vocab_size=vocab, dim=9, hidden_dim=11, n_layers=2, cell=cell)
    model = build(config, generator=torch.Generator().manual_seed(rng.getrandbits(30))).eval()
    stretches = []
    for key in range(rng.randint(1, 13)):
        n = rng.choice([1, 2, 7, 40, 97])
        ids = np.array([rng.randrange(vocab) for _ in range(2 * n)])
        stretches.append((key, Stretch(ids[:n], ids[n : n + rng.choice([0, 1, n, rng.randint(0, n)])])))
    expected = list(likelihoods(model, stretches, batch_size=1, greedy=True))

    read, hidden = [1], model.hidden

    def counted(tokens: Tensor, **more: Any) -> Tensor:
        read.append(tokens.numel())
        return hidden(tokens, **more)

    monkeypatch.setattr(model, "hidden", counted)
    most, rows = rng.choice([1, 6, 30]), rng.randint(1, 5)
    monkeypatch.setattr(likelihood, "BATCH_TOKENS", most)
    found = list(likelihoods(model, stretches, batch_size=rows, greedy=True))
    assert max(read) <= max(most, rows)
    for (_, one), (_, other), (_, stretch) in zip(found, expected, stretches, strict=True):
        assert one.nats.shape == stretch.targets.shape
        np.testing.assert_allclose(one.nats, other.nats, atol=1e-5)
        assert np.array_equal(one.greedy, other.greedy)


def test_of_equal_logits_the_first_is_the_most_likely(rng: random.Random) -> None:
    for N, V in ((1, 1), (5, 2), (13, 7), (300, 61), (3, 9001)):
        logits = torch.tensor([[float(rng.randrange(4)) for _ in range(V)] for _ in range(N)])
        targets = torch.tensor([rng.randrange(V) for _ in range(N)])
        firsts = torch.tensor([row.index(max(row)) for row in logits.tolist()])
        targets = torch.where(torch.rand(N) < 0.5, firsts, targets)
        assert torch.equal(_are_first_of_highest(logits, targets), firsts == targets)
