"""Every compiled decoding program against the modules, at sizes drawn anew on each run.

Hypothesis prints the config, the dtype and the number of rows of a failing case, which reproduce it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.generate.random_models import LONGEST, WITH_PROGRAMS, model_of, reader_of

from wordloom.generate import Conditioned
from wordloom.generate.decoder import next_logits
from wordloom.generate.fast import Accelerated, accelerate, causal, transformer
from wordloom.generate.fast.threads import Threads

CPU = torch.device("cpu")
STEPS = 4


def logits_of(reader: Any, rows: int, seed: int) -> torch.Tensor:
    """[N, V] float32: after the prompts, after given tokens one by one, and after two at once.

    Before the last token rows change places, leave and are copied.
    """
    draw, V = torch.Generator().manual_seed(seed), reader.config.vocab_size
    equal = isinstance(reader, Conditioned)
    lengths = torch.full((rows,), 3) if equal else torch.randint(1, 5, (rows,), generator=draw)
    prompts = [torch.randint(V, (int(n),), generator=draw).tolist() for n in lengths]
    found = []
    with torch.inference_mode():
        cache = reader.new_cache(rows, 6)  # which the steps go beyond
        found.append(next_logits(reader, prompts, device=CPU, cache=cache).float().clone())
        for step in range(STEPS):
            if step == STEPS - 1:
                fewer = max(1, rows - 1)
                cache.select(torch.randint(rows, (fewer,), generator=draw))
                rows = fewer
            T = 2 if step == 1 else 1
            tokens = torch.randint(V, (rows, T), generator=draw)
            logits = reader.lm_head(reader.hidden(tokens, cache=cache))
            found.append(logits.reshape(rows * T, V).float().clone())
    return torch.cat(found)


def check(config: Any, rows: int, threads: int, dtype: torch.dtype, seed: int) -> None:
    model = model_of(config, seed).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        for module in (causal, transformer):
            patch.setattr(module, "threads_for", lambda _weights: Threads(threads))
        reader = reader_of(model, rows, seed)
        program = accelerate(reader)
        assert isinstance(program, Accelerated)
        ours = logits_of(program, rows, seed)
    plain = logits_of(reader, rows, seed)
    if dtype == torch.float32:
        exact = logits_of(reader_of(model.double(), rows, seed), rows, seed)
        # a norm of one number near zero enlarges roundings, those of the modules too
        tolerance = 1e-4 * float(exact.abs().max()) + 4 * float((plain - exact).abs().max())
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=tolerance)
    else:
        exact = logits_of(reader_of(model.float(), rows, seed), rows, seed)
        error, modules_error = (ours - exact).norm(), (plain - exact).norm()
        assert error <= 2 * modules_error + 0.02 * exact.norm()
        tolerance = float((ours - exact).abs().max())
    # the likeliest id is the same unless the two largest logits are closer than rounding errors
    chosen = exact.gather(1, ours.argmax(dim=1, keepdim=True))[:, 0]
    assert bool((chosen >= exact.amax(dim=1) - 2 * tolerance).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", WITH_PROGRAMS)
def test_programs_of_any_size_compute_what_the_modules_do(family: str, dtype: torch.dtype) -> None:
    @settings(max_examples=25, deadline=None)
    @given(
        config=WITH_PROGRAMS[family], rows=st.sampled_from([1, 2, 3, 5, 8, 9]), threads=st.integers(1, 2),
        seed=st.integers(0, 2**31),
    )  # fmt: skip
    def hold(config: Any, rows: int, threads: int, seed: int) -> None:
        # a norm of one number is its sign, one of two the sign of their difference, which rounding can change
        assume(dtype == torch.float32 or config.dim > 2)
        check(config, rows, threads, dtype, seed)

    hold()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["gpt", "gpt2", "llama"])
def test_neither_other_rows_nor_tokens_at_once_change_a_bit(family: str, dtype: torch.dtype) -> None:
    """The logits of a row are those that it would have alone, one token at a time."""

    @settings(max_examples=10, deadline=None)
    @given(config=WITH_PROGRAMS[family], seed=st.integers(0, 2**31), data=st.data())
    def hold(config: Any, seed: int, data: st.DataObject) -> None:
        assume(config.dim >= causal.NARROWEST)  # norms of narrower rows are computed for several rows at once
        program, n = accelerate(model_of(config, seed).to(dtype)), LONGEST
        assert isinstance(program, Accelerated)
        tokens = torch.randint(config.vocab_size, (5, n), generator=torch.Generator().manual_seed(seed))

        def read(rows: list[int], sizes: list[int]) -> torch.Tensor:
            cache, found = program.new_cache(len(rows), n), []
            for part in tokens[rows, : sum(sizes)].split(sizes, dim=1):
                found.append(program.lm_head(program.hidden(part, cache=cache)).clone())
            return torch.cat(found, dim=1)

        with torch.inference_mode():
            wanted = read([0], [1] * n)
            for rows, most in (([0], 8), ([0, 1], 4), ([3, 0, 2], 3), ([4, 3, 2, 1, 0], 1)):
                assert len(rows) * most <= program.most_alike
                sizes = data.draw(st.lists(st.integers(1, most), min_size=n // most, max_size=n // most))
                found = read(rows, sizes)[rows.index(0)]
                assert torch.equal(found, wanted[0, : sum(sizes)]), (rows, sizes)

    hold()
