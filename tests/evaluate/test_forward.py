"""The loss that training asks for: one sum over one count, whatever the batches."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from wordloom.data import IGNORE, CausalBatch
from wordloom.errors import EvaluationError
from wordloom.evaluate import evaluate_batches
from wordloom.objectives import Loss, causal_lm
from wordloom.training.ranks import Ranks


def batch_of(rows, seed, scored=1.0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(258, (rows, 9), generator=generator)
    targets = torch.randint(258, (rows, 9), generator=generator)
    targets[torch.rand(rows, 9, generator=generator) >= scored] = IGNORE
    return CausalBatch(tokens, targets, None, None)


def test_tokens_weigh_the_same_in_whatever_batch_they_come(llama):
    batches = [batch_of(4, 0), batch_of(1, 1, scored=0.4), batch_of(7, 2, scored=0.8)]
    score = evaluate_batches(llama, causal_lm, batches, settings={"data": "x"})
    tokens, targets = (torch.cat([getattr(b, name) for b in batches]) for name in ("tokens", "targets"))
    with torch.no_grad():
        expected = F.cross_entropy(llama(tokens).flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
    assert score.value == pytest.approx(float(expected), rel=1e-5)
    means = [evaluate_batches(llama, causal_lm, [b]).value for b in batches]
    assert abs(sum(means) / 3 - score.value) > 1e-3  # a mean of means is another number
    assert score.interval is None
    assert score.signature.startswith("loss|data:x|ci:no|")


def test_ranks_add_up(llama):
    """Two halves, each reduced with the other's sums, give the score of all: value, interval, signature."""
    batches = [batch_of(2, seed) for seed in range(24)]
    whole = evaluate_batches(llama, causal_lm, batches)
    sums = []

    def keep(t):
        sums.append(t)
        return t

    evaluate_batches(llama, causal_lm, batches[:10], reduce=keep)
    rest = evaluate_batches(llama, causal_lm, batches[10:], reduce=lambda t: t + sums[0])
    assert rest.value == pytest.approx(whole.value, rel=1e-9)
    assert rest.interval == pytest.approx(whole.interval, rel=1e-6)
    assert rest.signature == whole.signature
    assert "|ci:24-batches|" in whole.signature


def test_ranks_call_the_model_equally_often_and_score_each_batch_once(rng):
    for _ in range(20):
        values, size = [rng.random() for _ in range(rng.randrange(1, 30))], rng.randrange(1, 9)
        calls, totals = [], []

        def one(model, value, calls=calls):
            calls[-1] += 1
            return Loss(torch.tensor(value, dtype=torch.float64), torch.tensor(1))

        def add(sums, totals=totals):
            totals.append(sums)
            return sum(totals)

        for rank in range(size):
            calls.append(0)
            own, others = Ranks(rank, size).divided(values)
            score = evaluate_batches(torch.nn.Linear(1, 1), one, own, unscored=others, reduce=add)
        assert set(calls) == {-(-len(values) // size)}
        assert score.value == pytest.approx(sum(values) / len(values), rel=1e-12)
        assert int(sum(totals)[0]) == len(values)


def test_dropout_is_off_and_training_goes_on(llama):
    llama.train()
    try:
        first, second = (evaluate_batches(llama, causal_lm, [batch_of(4, 0)]).value for _ in range(2))
        assert first == second
        assert llama.training
    finally:
        llama.eval()
    state = torch.get_rng_state()
    evaluate_batches(llama, causal_lm, [batch_of(4, 0)])
    assert torch.equal(torch.get_rng_state(), state)  # nor does it disturb the randomness of training


def test_nothing_scored_is_an_error_not_a_nan(llama):
    with pytest.raises(EvaluationError, match="no item of the batches is scored"):
        evaluate_batches(llama, causal_lm, [])
    with pytest.raises(EvaluationError, match="no item of the batches is scored"):
        evaluate_batches(llama, causal_lm, [batch_of(2, 0, scored=0.0)])


def test_any_objective_will_do(llama):
    def constant(_model, batch):
        return Loss(torch.tensor(3.0 * len(batch.tokens)), torch.tensor(len(batch.tokens)))

    assert evaluate_batches(llama, constant, [batch_of(2, 0), batch_of(5, 1)], name="three").value == 3.0
