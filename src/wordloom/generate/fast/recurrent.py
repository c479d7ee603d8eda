"""Fast decoding of recurrent models: one compiled program for one token through all layers.

Prompts pass through the modules.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from wordloom.generate.fast.causal import FastModel
from wordloom.generate.fast.threads import compiling
from wordloom.generate.fast.weights import stacked
from wordloom.kernels.decoding import recurrent as programs
from wordloom.nn.cache import Cache, RecurrentCache
from wordloom.nn.recurrent import CELLS


class WrittenState(tuple[Tensor, ...]):
    """The state of one layer, as views of the program's arrays, which hold the states of all layers.

    Nothing writes to these arrays again, so states can be stored and caches can be stepped in turns.
    """

    arrays: tuple[np.ndarray, np.ndarray]  # h [L, B, R] and c [L, B, H or 0]
    layer: int


class FastRNN(FastModel):
    """A recurrent :class:`wordloom.models.CausalLM` whose single new tokens pass through a program.

    The next call of ``lm_head`` overwrites the result of the last one.
    """

    def _reach(self, length: int) -> None:
        """Do nothing: a recurrent model has no positions."""

    def _by_program(self, tokens: Tensor, attend: Tensor | None, cache: Cache, plain: bool) -> Tensor | None:
        if not isinstance(cache, RecurrentCache):
            return None
        single = plain and tokens.shape[1] == 1 and attend is None and len(tokens) <= self.most_rows
        before = self._states(cache, len(tokens)) if single else None
        if before is not None:
            return self._run_step(tokens, cache, before)
        for layer in cache.layers:
            if layer.state is not None:  # the program's are float32, which the modules may not mix
                layer.state = tuple(part.to(self.dtype) for part in layer.state)
        return None

    def _run_step(
        self, tokens: Tensor, cache: RecurrentCache, before: tuple[np.ndarray, np.ndarray]
    ) -> Tensor:
        after = self.pass_to_states(tokens[:, 0], before)
        views = [torch.from_numpy(array) for array in after[: len(self._state_dims())]]
        for i, layer in enumerate(cache.layers):
            layer.state = written = WrittenState(view[i] for view in views)
            written.arrays, written.layer = after, i
        cache.advance(tokens)
        return self.output(after)[:, None]

    def pass_to_states(
        self, tokens: Tensor, before: tuple[np.ndarray, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pass a token of each row [B] through all layers; return the states after them.

        States, also those ``before`` the tokens, are h [L, B, R] and c [L, B, H or 0].
        """
        B = len(tokens)
        if B not in self.buffers:
            self.buffers = {B: self._new_buffers(B)}
        x = torch.from_numpy(self.buffers[B]["x"])
        x.copy_(self.model.token_embedding(tokens))
        after = self.new_states(B)
        state = programs.State(h=before[0], c=before[1], new_h=after[0], new_c=after[1], **self.buffers[B])
        with compiling(programs.step):
            self.threads.run(programs.step, self.weights, state, self.threads.count)
        return after

    def output(self, states: tuple[np.ndarray, np.ndarray]) -> Tensor:
        """Return the head's input [B, D] after ``states``."""
        h = torch.from_numpy(states[0])[-1]  # [B, R]
        return h if self.model.output_proj is None else self.model.output_proj(h.to(self.dtype)).float()

    def _states(self, cache: RecurrentCache, B: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return h and c of all layers: the arrays of the last step, or copies of the states in ``cache``.

        None if the program does not apply to one new token of each of ``B`` rows; the modules raise if they
        are wrong.
        """
        states = [layer.state for layer in cache.layers]
        if self.weights is None or self.model.training or len(states) != self.config.n_layers:
            return None
        last = states[0].arrays if isinstance(states[0], WrittenState) else None
        if last is not None and last[0].shape[1] == B:
            written = [state for state in states if isinstance(state, WrittenState) and state.arrays is last]
            if [state.layer for state in written] == list(range(len(states))):
                return last
        arrays, widths = self.new_states(B), self._state_dims()
        for i, state in enumerate(states):
            if state is not None and [part.shape for part in state] != [(B, width) for width in widths]:
                return None
            for j, array in enumerate(arrays[: len(widths)]):
                if state is None:
                    array[i] = 0
                else:
                    torch.from_numpy(array)[i].copy_(state[j])
        return arrays

    def new_states(self, B: int) -> tuple[np.ndarray, np.ndarray]:
        """Return room for the states h and c of ``B`` rows."""
        h, *c = self._state_dims()
        L = self.config.n_layers
        return np.empty((L, B, h), dtype=np.float32), np.empty((L, B, sum(c)), dtype=np.float32)

    def _state_dims(self) -> tuple[int, ...]:
        """Return the sizes of h and, in an LSTM, of c."""
        c = self.config
        return (c.state_dim, c.hidden_dim or c.dim) if c.cell.startswith("lstm") else (c.state_dim,)

    def _new_buffers(self, B: int) -> dict[str, np.ndarray]:
        H, cell = self.config.hidden_dim or self.config.dim, self.config.cell
        sums = len(CELLS[cell]) * H
        widths = {
            "x": self.config.dim,
            "gates": 2 * H if cell == "gru" else sums,
            "inner": sums if cell == "gru_reset_after" else 0,
            "n": H if cell == "gru" else 0,
            "wide": H,
        }
        return {name: np.zeros((B, width), dtype=np.float32) for name, width in widths.items()}

    def _read_weights(self) -> Any:
        blocks = self.model.blocks
        layers = [[block.input_proj, block.hidden_proj, block.state_proj] for block in blocks]
        weights = [[None if layer is None else layer.weight for layer in row] for row in layers]
        return programs.Weights(
            like=self._like(),
            cell=list(CELLS).index(self.config.cell),
            hidden_dim=self.config.hidden_dim or self.config.dim,
            matrices=self._addresses(weights),
            biases=stacked([block.input_proj.bias for block in blocks]),
            candidates=stacked([block.candidate_bias for block in blocks]),
            peepholes=stacked([block.peephole for block in blocks], 2),
        )
