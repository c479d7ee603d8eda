"""Likelihoods of stretches against logits computed one text at a time."""

from __future__ import annotations

import random

import numpy as np
import torch

from wordloom.evaluate.likelihood import Stretch, _are_first_of_highest, likelihoods
from wordloom.models import LlamaConfig, build


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
        for (_, likelihood), (nats, is_greedy) in zip(found, wanted, strict=True):
            np.testing.assert_allclose(likelihood.nats, nats, atol=1e-5)
            assert likelihood.greedy is None or (likelihood.greedy == is_greedy).all()
            assert (likelihood.greedy is not None) == asked


def test_of_equal_logits_the_first_is_the_most_likely(rng: random.Random) -> None:
    for N, V in ((1, 1), (5, 2), (13, 7), (300, 61), (3, 9001)):
        logits = torch.tensor([[float(rng.randrange(4)) for _ in range(V)] for _ in range(N)])
        targets = torch.tensor([rng.randrange(V) for _ in range(N)])
        firsts = torch.tensor([row.index(max(row)) for row in logits.tolist()])
        targets = torch.where(torch.rand(N) < 0.5, firsts, targets)
        assert torch.equal(_are_first_of_highest(logits, targets), firsts == targets)
