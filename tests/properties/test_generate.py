"""Properties of generation over arbitrary text, chunks, batches and filters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wordloom.generate.engine import generate
from wordloom.generate.sampling import Sampling, filter_logits, greedy, keep_min_p, keep_top_k, keep_top_p
from wordloom.generate.text import StopWatch
from wordloom.models import GPT2Config, LlamaConfig, build

few_letters = st.text("ab\n", max_size=12)


class Chunks:
    """A decoder whose tokens are the chunks of a text."""

    def __init__(self, chunks: list[str]) -> None:
        self.chunks = chunks

    def push(self, token: int) -> str:
        return self.chunks[token]

    def flush(self) -> str:
        return ""


@settings(max_examples=150, deadline=None)
@given(chunks=st.lists(few_letters, max_size=8), stop=st.lists(few_letters.filter(bool), max_size=3))
def test_stopping_does_not_depend_on_where_tokens_end(chunks: list[str], stop: list[str]) -> None:
    watch = StopWatch(Chunks(chunks), stop)  # type: ignore[arg-type]
    given_out = ""
    for token in range(len(chunks)):
        given_out += watch.push(token)
        if watch.stopped:
            break
    stopped = watch.stopped
    given_out += watch.flush()

    text = "".join(chunks)
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(s) for s in stop)]
    assert stopped == bool(ends)
    if ends:
        longest = max(len(s) for s in stop if text[: ends[0]].endswith(s))
        assert given_out == text[: ends[0] - longest]
    else:
        assert given_out == text


def models() -> dict[str, Any]:
    shape: dict[str, Any] = {"vocab_size": 23, "max_seq_len": 16, "dim": 16, "n_layers": 2, "n_heads": 2}
    made = {
        "gpt2": build(GPT2Config(**shape), generator=torch.Generator().manual_seed(0)),
        "llama": build(LlamaConfig(**shape, n_kv_heads=1), generator=torch.Generator().manual_seed(0)),
    }
    with torch.no_grad():
        for model in made.values():
            for parameter in model.parameters():
                parameter.mul_(8.0 if parameter.dim() > 1 else 1.0)
    return made


MODELS = models()
ids = st.lists(st.integers(0, 22), min_size=1, max_size=14)


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(ids, min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
    temperature=st.sampled_from([0.0, 1.0]),
    past=st.sampled_from(["error", "slide"]),
    ends=st.sets(st.integers(0, 22), max_size=2),
    family=st.sampled_from(["gpt2", "llama"]),
)
def test_no_row_depends_on_its_batch_or_on_the_cache(
    prompts: list[list[int]], seed: int, temperature: float, past: Any, ends: set[int], family: str
) -> None:
    model = MODELS[family]
    new = 6 if past == "slide" else None
    sampling = Sampling(seed=seed, temperature=temperature, past=past, max_new_tokens=new)
    together = generate(model, prompts, sampling, eos_ids=ends)
    uncached = generate(model, prompts, sampling, eos_ids=ends, use_cache=False)
    assert [g.ids for g in together] == [g.ids for g in uncached]
    for row, prompt in enumerate(prompts):
        alone = generate(model, [prompt], sampling, eos_ids=ends, first_row=row)[0]
        assert (alone.ids, alone.finish_reason) == (together[row].ids, together[row].finish_reason)


logit_rows = st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=40).map(
    lambda row: torch.tensor([row])
)


@settings(max_examples=100, deadline=None)
@given(logits=logit_rows, k=st.integers(1, 50), p=st.floats(0.01, 1.0), share=st.floats(0.0, 1.0))
def test_every_filter_keeps_the_likeliest_and_only_likelier_tokens(
    logits: torch.Tensor, k: int, p: float, share: float
) -> None:
    for kept in (keep_top_k(logits, k), keep_top_p(logits, p), keep_min_p(logits, share)):
        inside = kept > -torch.inf
        assert torch.equal(kept[inside], logits[inside])
        assert logits[inside].max() == logits.max()
        if not inside.all():
            assert logits[inside].min() >= logits[~inside].max()
    probability = logits.softmax(-1)[keep_top_p(logits, p) > -torch.inf]
    assert probability.sum() >= p - 1e-5
    assert probability.sum() - probability.min() < p + 1e-5  # the smallest such set


@settings(max_examples=100, deadline=None)
@given(logits=logit_rows, temperature=st.floats(0, exclude_min=True, allow_infinity=False))
def test_no_temperature_makes_nan(logits: torch.Tensor, temperature: float) -> None:
    probability = filter_logits(logits, Sampling(temperature=temperature)).softmax(-1)
    assert float(probability.sum()) == pytest.approx(1.0, abs=1e-5)
    assert probability[0, greedy(logits)[0]] == probability.max()
