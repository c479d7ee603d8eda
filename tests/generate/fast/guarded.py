"""Run every compiled decoding program on memory that ends where its arrays end.

Run as a script, it decodes with each program and compares the logits with those of the modules.  Weights,
caches and all arrays that a program is given lie against a page that may not be touched: a read or write past
an array ends the process by a signal.  The forbidden page is behind the arrays or in front, drawn anew
in each run.  The other side of an array is filled with NaN, which would show in the logits.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import resource
import sys
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wordloom.generate import Conditioned
from wordloom.generate.decoder import next_logits
from wordloom.generate.fast import accelerate, causal, transformer
from wordloom.generate.fast.threads import Threads
from wordloom.kernels.decoding import leaves as kernels
from wordloom.kernels.registers import LANES
from wordloom.models import (
    BertGenerationConfig,
    GPT2Config,
    GPTConfig,
    LlamaConfig,
    RNNConfig,
    TransformerConfig,
    build,
    translates,
)
from wordloom.models.building import quantized
from wordloom.models.building.quantized import quantize_model
from wordloom.nn.cache import KeyValueCache, layers
from wordloom.nn.quantized import Int8Linear

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_kept: list[Any] = []  # mappings in use


class Guard:
    """Places arrays against a forbidden page, behind them or in front of them."""

    def __init__(self, *, behind: bool) -> None:
        self.behind = behind

    def array(self, values: np.ndarray) -> np.ndarray:
        """Return a copy of ``values`` with a forbidden page on one side and NaN on the other."""
        room = -(-max(values.nbytes, 1) // PAGE) * PAGE
        mapping = mmap.mmap(-1, room + 2 * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        for page in (start, start + PAGE + room):
            if _libc.mprotect(ctypes.c_void_p(page), PAGE, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        _kept.append(mapping)
        raw = np.frombuffer(mapping, dtype=np.uint8, count=room, offset=PAGE)
        raw[:] = 0xFF
        at = PAGE + (room - values.nbytes if self.behind else 0)
        placed = np.frombuffer(mapping, dtype=values.dtype, count=values.size, offset=at).reshape(
            values.shape
        )
        placed[...] = values
        return placed

    def tensor(self, values: Tensor) -> Tensor:
        values = values.detach().contiguous()
        if values.dtype == torch.bfloat16:
            return torch.from_numpy(self.array(values.view(torch.int16).numpy())).view(torch.bfloat16)
        return torch.from_numpy(self.array(values.numpy()))

    def cache(self, cache: Any) -> Any:
        """Return ``cache`` with its keys and values in guarded memory."""
        if isinstance(cache, KeyValueCache):
            for layer in cache.key_values:
                if layer.keys is not None:
                    layer.keys, layer.values = self.tensor(layer.keys), self.tensor(layer.values)
        elif isinstance(cache, transformer.SlotCache):
            cache.set_sources(self.tensor(cache.keys_values[0]), None)
            block = np.full((len(cache.sources), *cache.block_shape), np.nan, dtype=np.float32)
            cache.free[:] = [self.array(block) for _ in range(8)]
        return cache

    def run(self, threads: Threads, program: Any, *arguments: Any) -> None:
        """As :meth:`Threads.run`, with guarded copies of all arrays, whose contents are copied back."""
        copies: list[tuple[np.ndarray, np.ndarray]] = []

        def placed(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                copies.append((value, self.array(value)))
                return copies[-1][1]
            if isinstance(value, tuple):
                parts = [placed(part) for part in value]
                return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
            return value

        _run(threads, program, *[placed(argument) for argument in arguments])
        for original, copy in copies:
            original[...] = copy


_run: Callable[..., None] = Threads.run
pack = transformer.programs.pack
THREADS = Threads(1), Threads(2)

SHAPE: dict[str, Any] = {"vocab_size": 37, "max_seq_len": 20, "n_layers": 2}
WIDE = {"dim": 3 * LANES, "hidden_dim": 5 * LANES, "n_heads": 6, "share_embeddings": False, **SHAPE}
BERT = {name: value for name, value in WIDE.items() if name != "share_embeddings"}
CASES: dict[str, Any] = {
    "gpt": GPTConfig(dim=35, n_heads=5, hidden_dim=43, output_bias=True, **SHAPE),
    "gpt2": GPT2Config(dim=35, n_heads=5, hidden_dim=150, **SHAPE),
    "gpt2 without biases": GPT2Config(dim=35, n_heads=5, bias=False, **SHAPE),
    "llama, biases of attention": LlamaConfig(
        dim=15, n_heads=6, n_kv_heads=2, head_dim=6, hidden_dim=111, attention_bias=True, **SHAPE
    ),
    "llama, biases of feed-forwards": LlamaConfig(
        dim=15, n_heads=6, n_kv_heads=3, head_dim=18, hidden_dim=19, feed_forward_bias=True, **SHAPE
    ),
    "llama, rings": LlamaConfig(
        dim=15,
        n_heads=6,
        n_kv_heads=2,
        head_dim=6,
        hidden_dim=19,
        attention="band:2+global:1,dilated:2:2",
        **SHAPE,
    ),
    "gpt2, random keys": GPT2Config(
        dim=35, n_heads=5, hidden_dim=33, attention="random:2:1,block:3", **SHAPE
    ),
    "transformer, pre-norm": TransformerConfig(norm_place="pre", attention_bias=True, **WIDE),
    "transformer, rotary": TransformerConfig(
        positions="rotary", **{**WIDE, "n_heads": 4, "dim": 40 * LANES // 8}
    ),
    "bert_generation": BertGenerationConfig(**BERT),
    **{
        cell: RNNConfig(vocab_size=37, dim=13, hidden_dim=11, n_layers=2, cell=cell)
        for cell in ("rnn_tanh", "gru", "gru_reset_after")
    },
    "lstm": RNNConfig(vocab_size=37, dim=13, hidden_dim=11, n_layers=2, peephole=True, projection=7),
}


IN_8_BITS = ("gpt", "gpt2 without biases", "llama, biases of attention", "llama, rings")


def logits_of(reader: Any, rows: int, guarded: Callable[[Any], Any] = lambda cache: cache) -> Tensor:
    """Logits after a prompt and after each of four more tokens; rows change places in between."""
    found, draw = [], torch.Generator().manual_seed(0)
    cache = guarded(reader.new_cache(rows, 8))
    prompts = [[1, 2 + row, 3] for row in range(rows)]
    found.append(next_logits(reader, prompts, device=torch.device("cpu"), cache=cache).float().clone())
    for step in range(4):
        if step == 2:
            cache.select(torch.arange(rows).flip(0))
            if isinstance(cache, KeyValueCache):
                guarded(cache)
        tokens = torch.randint(37, (rows, 1), generator=draw)
        hidden = reader.hidden(tokens, cache=cache)
        found.append(reader.lm_head(hidden)[:, -1].float().clone())
        if hasattr(reader, "likeliest"):
            reader.likeliest(hidden[:, -1], 5, forbidden_ids=[3], vocab_size=None)
    return torch.stack(found)


def check(config: Any, dtype: torch.dtype, rows: int, guard: Guard, *, in_8_bits: bool = False) -> None:
    model = build(config, generator=torch.Generator().manual_seed(0))
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=draw)
    model.to(dtype).eval()
    if in_8_bits:
        quantize_model(model)
    reader = model
    if translates(config):
        source = torch.randint(config.vocab_size, (rows, 5), generator=draw)
        reader = Conditioned(model, model.encode(source))
    plain = logits_of(reader, rows)
    for parameter in model.parameters():
        parameter.data = guard.tensor(parameter.data)
    for module in model.modules():
        if isinstance(module, Int8Linear):
            module.packed = guard.tensor(module.packed)
    program = accelerate(reader)
    assert program is not reader
    transformer.programs.pack = lambda weight: guard.tensor(pack(weight))
    Threads.run = lambda *given: guard.run(*given)  # type: ignore[method-assign, assignment]
    causal.threads_for = transformer.threads_for = lambda _weights: THREADS[rows > 1]
    try:
        ours = logits_of(program, rows, guard.cache)
    finally:
        Threads.run, transformer.programs.pack = _run, pack  # type: ignore[method-assign]
        _kept.clear()  # the number of mappings of a process is limited
    kept = quantized.KEPT_DTYPE if in_8_bits else dtype  # of keys and values
    tolerance = 1e-4 if kept == torch.float32 else 0.05
    torch.testing.assert_close(ours, plain, rtol=0, atol=tolerance * float(plain.abs().max()))


def past_the_end(*, behind: bool) -> None:
    """Let a kernel read one row past a weight, or in front of it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    guard = Guard(behind=behind)
    x, out = np.ones((1, 8), np.float32), np.zeros((1, 4), np.float32)
    weight = guard.array(np.ones((4, 8), np.float32))
    at, like = weight.ctypes.data, np.empty(0, np.float32)
    for first in (at, at + 32 if behind else at - 32):
        kernels.project(out, x, first, np.empty(0, np.float32), False, like, 0, 1)
        print("read", flush=True)


def cases() -> Iterator[tuple[str, torch.dtype, int, bool]]:
    for name in CASES:
        for dtype in (torch.float32, torch.bfloat16):
            for rows in (1, 9):
                yield name, dtype, rows, random.random() < 0.5


if __name__ == "__main__":
    torch.set_num_threads(1)
    layers.SPARE_PLACES = causal.SPARE_PLACES = 1  # so that rings are full after a few tokens
    if len(sys.argv) > 1:
        past_the_end(behind=sys.argv[1] == "behind")
    else:
        with torch.inference_mode():
            for case in cases():
                print(*case, flush=True)
                check(CASES[case[0]], *case[1:3], Guard(behind=case[3]))
            for name, rows in product(IN_8_BITS, (1, 9)):
                behind = random.random() < 0.5
                print(name, "in 8 bits", rows, behind, flush=True)
                check(CASES[name], torch.float32, rows, Guard(behind=behind), in_8_bits=True)
        print("all done")
