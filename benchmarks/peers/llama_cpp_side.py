"""llama.cpp as the other side of a benchmark: a process that measures when it is asked to.

    python benchmarks/peers/llama_cpp_side.py MODEL.gguf THREADS

It reads a JSON line for each request and answers with one: ``{"prefill": prompts}`` and
``{"generate": prompts, "new": n}`` with the seconds and the ids, by greedy choice; ``{"logits": ids, "to":
FILE}`` writes the logits after each id.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / ".llama_cpp"))


class Side:
    def __init__(self, path: str, threads: int, *, rows: int, length: int) -> None:
        import llama_cpp

        self.lib: Any = llama_cpp
        quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
        self.quiet = quiet  # the library keeps its address
        llama_cpp.llama_backend_init()
        settings = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), settings)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        made = llama_cpp.llama_context_default_params()
        made.n_ctx, made.n_seq_max, made.n_threads, made.n_threads_batch = (
            rows * length,
            rows,
            threads,
            threads,
        )
        made.n_batch = made.n_ubatch = max(512, rows * length)
        made.kv_unified = True
        self.context = llama_cpp.llama_init_from_model(self.model, made)
        self.batch = llama_cpp.llama_batch_init(rows * length, 0, 1)

    def clear(self) -> None:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def decode(self, rows: list[list[int]], start: int, *, all_logits: bool = False) -> np.ndarray:
        """Pass new ids of every row and return the logits of the last ones, or of all."""
        batch, n = self.batch, 0
        wanted: list[int] = []
        for row, ids in enumerate(rows):
            for i, token in enumerate(ids):
                last = all_logits or i == len(ids) - 1
                batch.token[n], batch.pos[n] = token, start + i
                batch.n_seq_id[n], batch.seq_id[n][0], batch.logits[n] = 1, row, last
                if last:
                    wanted.append(n)
                n += 1
        batch.n_tokens = n
        if self.lib.llama_decode(self.context, batch):
            raise SystemExit("llama_decode failed")
        rows_of = [self.lib.llama_get_logits_ith(self.context, place) for place in wanted]
        return np.stack([np.ctypeslib.as_array(row, shape=(self.vocab_size,)) for row in rows_of])

    def generate(self, prompts: list[list[int]], new: int) -> tuple[float, list[list[int]]]:
        self.clear()
        made: list[list[int]] = [[] for _ in prompts]
        began = time.perf_counter()
        rows, at = prompts, 0
        for _ in range(new):
            chosen = self.decode(rows, at).argmax(axis=1).tolist()
            at += len(rows[0])
            for ids, token in zip(made, chosen, strict=True):
                ids.append(token)
            rows = [[token] for token in chosen]
        return time.perf_counter() - began, made


def main() -> None:
    path, threads, rows, length = sys.argv[1], *map(int, sys.argv[2:])
    side = Side(path, threads, rows=rows, length=length)
    for line in sys.stdin:
        asked = json.loads(line)
        if "logits" in asked:
            side.clear()
            np.save(asked["to"], side.decode([asked["logits"]], 0, all_logits=True))
            answer: dict[str, Any] = {}
        else:
            seconds, ids = side.generate(asked["prompts"], asked["new"])
            answer = {"seconds": seconds, "ids": ids}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
