"""Time a step's matrix products and attention calls alone; their sum is the limit of the step.

Every product and attention call of one real step is recorded with its shapes and strides, forward and
backward.  Each is then timed alone, in the same process, on tensors of the same layout.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product", "mkldnn_linear", "_linear_pointwise")


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[Any, ...]] = Counter()
        self.examples: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in PRODUCTS or name.startswith("_scaled_dot_product"):
            self.note(name, func, args, kwargs)
        return func(*args, **kwargs)

    def note(self, name: str, func: Any, args: Any, kwargs: Any) -> None:
        key = (name, *(_layout(x) for x in args), *((k, _layout(v)) for k, v in kwargs.items()))
        self.calls[key] += 1
        if key not in self.examples:
            self.examples[key] = (
                func,
                tuple(_like(x) for x in args),
                {k: _like(v) for k, v in kwargs.items()},
            )


@contextmanager
def _our_attention(recorder: _Recorder) -> Iterator[None]:
    """Also record the calls of the attention programs, which PyTorch's dispatcher does not see."""
    fused = sys.modules.get("wordloom.nn.fused")
    if fused is None:
        yield
        return
    run: Any = fused._run_attention

    def noted(name: str, *args: Any) -> None:
        with _disable_current_modes():
            recorder.note(name, partial(run, name), args, {})
            run(name, *args)

    fused._run_attention = noted
    try:
        yield
    finally:
        fused._run_attention = run


def _layout(x: Any) -> Any:
    return (tuple(x.shape), x.stride(), x.dtype) if isinstance(x, torch.Tensor) else repr(x)


def _like(x: Any) -> Any:
    """Return a copy of ``x`` with its values and strides; attention's backward needs a real log-sum-exp."""
    if not isinstance(x, torch.Tensor):
        return x
    copy = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return copy.copy_(x.detach())


def limit_seconds(step: Callable[[], Any], *, repeats: int = 5) -> dict[str, Any]:
    """``wall`` and ``cpu`` seconds, and ``parts``, the wall time by operation.

    Each distinct call is timed ``repeats`` times and its fastest counts.
    """
    with _Recorder() as recorder, _our_attention(recorder):
        step()
    parts: dict[str, float] = {}
    wall = cpu = 0.0
    for key, count in recorder.calls.items():
        func, args, kwargs = recorder.examples.pop(key)
        with torch.no_grad():
            func(*args, **kwargs)
            walls, cpus = [], []
            for _ in range(repeats):
                began, began_cpu = time.perf_counter(), time.process_time()
                func(*args, **kwargs)
                walls.append(time.perf_counter() - began)
                cpus.append(time.process_time() - began_cpu)
        parts[key[0]] = parts.get(key[0], 0.0) + count * min(walls)
        wall += count * min(walls)
        cpu += count * min(cpus)
    return {"wall": wall, "cpu": cpu, "parts": parts}
