"""Fast decoding of recurrent models on a CPU: one compiled program for a token, as
:mod:`wordloom.generate.fast` has for attention models.  Prompts and all else pass through the modules as
before; those are the oracle.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from wordloom.generate.fast import FastModel, compiling
from wordloom.nn.cache import Cache, RecurrentCache
from wordloom.nn.recurrent import CELLS

__all__ = ["FastRNN"]


class FastRNN(FastModel):
    """A recurrent :class:`wordloom.models.CausalLM` whose single new tokens pass through a program.

    What ``hidden`` and ``lm_head`` return is overwritten by their next call.
    """

    def __init__(self, model: Any) -> None:
        from wordloom.kernels.decoding import causal as programs
        from wordloom.kernels.decoding import recurrent as recurrent_programs

        self.model = model
        self.config = model.config
        self.programs, self.step = programs, recurrent_programs
        self.dtype = model.lm_head.weight.dtype
        self.most_rows = self._most_rows()
        self.logits = np.empty((0, 0), dtype=np.float32)
        self.bound: Any = None
        self.room: Any = None

    def new_cache(self, batch: int, length: int) -> Any:
        """An empty cache; the program sees the weights as they are now."""
        self.team = self._team()
        self.bound = self._bind(length)
        self.room = None
        return self.model.new_cache(batch, length)

    def hidden(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        attend: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """tokens [B, T] -> [B, T, D], float32 from the program, else the model's own dtype."""
        alone = (
            tokens.shape[1] == 1
            and positions is documents is attend is None
            and len(tokens) <= self.most_rows
        )
        if (
            not (alone and self.bound is not None and isinstance(cache, RecurrentCache))
            or self.model.training
        ):
            where: dict[str, Any] = {"positions": positions, "documents": documents, "attend": attend}
            return self.model.hidden(tokens, **where, cache=cache)
        return self._run_step(tokens, cache)

    def _run_step(self, tokens: Tensor, cache: RecurrentCache) -> Tensor:
        B = len(tokens)
        if self.room is None or len(self.room.x) != B:
            self.room = self._make_state(B)
            self.views = [torch.from_numpy(self.room.h), torch.from_numpy(self.room.c)]
        x = torch.from_numpy(self.room.x)
        x.copy_(self.model.token_embedding(tokens[:, 0]))
        for i, layer in enumerate(cache.layers):
            for part, view in enumerate(self.views):
                if layer.state is None:
                    view[i].zero_()
                elif part < len(layer.state) and layer.state[part].data_ptr() != view[i].data_ptr():
                    view[i].copy_(layer.state[part])  # else it is where the last step left it
        with compiling(self.step.step):
            self.team.run(self.step.step, self.bound, self.room, self.team.threads)
        parts = len(self.model.blocks[0].state_dims)
        for i, layer in enumerate(cache.layers):
            layer.state = tuple(view[i] for view in self.views[:parts])
        cache.advance(1)
        h = self.views[0][-1]  # [B, R]
        if self.model.output_proj is not None:
            h = self.model.output_proj(h.to(self.dtype)).float()
        return h[:, None]

    def _make_state(self, B: int) -> Any:
        block = self.model.blocks[0]
        L, H, cell = len(self.model.blocks), block.hidden_dim, block.cell
        sums = block.hidden_proj.weight.shape[0]
        widths = {
            "x": self.config.dim,
            "gates": 2 * H if cell == "gru" else sums,
            "inner": sums if cell == "gru_reset_after" else 0,
            "n": H if cell == "gru" else 0,
            "wide": H,
        }
        arrays = {name: np.zeros((B, width), dtype=np.float32) for name, width in widths.items()}
        c = block.state_dims[1] if len(block.state_dims) > 1 else 0
        return self.step.State(
            h=np.zeros((L, B, block.state_dims[0]), dtype=np.float32),
            c=np.zeros((L, B, c), dtype=np.float32),
            **arrays,
        )

    def _bind(self, length: int) -> Any:
        blocks = self.model.blocks
        addresses = [
            [
                block.input_proj.weight.data_ptr(),
                block.hidden_proj.weight.data_ptr(),
                0 if block.state_proj is None else block.state_proj.weight.data_ptr(),
            ]
            for block in blocks
        ]
        return self.step.Weights(
            like=np.empty(0, dtype=np.float32 if self.dtype == torch.float32 else np.uint16),
            cell=list(CELLS).index(blocks[0].cell),
            matrices=np.array(addresses),
            biases=_floats([block.input_proj.bias for block in blocks], 1),
            candidates=_floats([block.candidate_bias for block in blocks], 1),
            peepholes=_floats([block.peephole for block in blocks], 2),
        )


def _floats(parts: list[Tensor | None], dims: int) -> np.ndarray:
    """[L, ...] float32; [L, 0, ..] where the layers have none."""
    if parts[0] is None:
        return np.zeros((len(parts), *[0] * dims), dtype=np.float32)
    return np.stack([part.detach().float().numpy() for part in parts if part is not None])
